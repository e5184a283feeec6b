# SPDX-License-Identifier: BSD-3-Clause
# The compiler's passes, one per file: each takes an ExportedProgram, edits it in place and returns it.
