# SPDX-License-Identifier: BSD-3-Clause
# The operators of a target, and the patterns of Edge operators that they replace.
