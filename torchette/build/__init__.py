# SPDX-License-Identifier: BSD-3-Clause
# In: models and the name of a device. Out: the runtime, its kernels and a runner, compiled for that device.
"""Builds the runtime for other machines: what `torchette build` does.

`torchette.targets` lists the machines, `selection` finds what models need, `toolchain` compiles and links.
"""
