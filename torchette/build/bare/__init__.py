# SPDX-License-Identifier: BSD-3-Clause
# In: a model and a board. Out: an image that runs on the board without an operating system.
"""Bare metal: start-up code, linker scripts and projects for microcontrollers."""
