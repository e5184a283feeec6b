# SPDX-License-Identifier: BSD-3-Clause
# In: models and the name of a device. Out: the runtime, its kernels and a runner, compiled for that device.
"""Builds the runtime for other machines, for `torchette build`.

`torchette.targets` lists the machines, `selection` determines the requirements of models, `toolchain` compiles and
links.
"""
