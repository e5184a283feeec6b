# SPDX-License-Identifier: BSD-3-Clause
"""Language models: export, sessions, serving."""
