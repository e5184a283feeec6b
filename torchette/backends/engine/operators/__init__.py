# SPDX-License-Identifier: BSD-3-Clause
"""The engine's operators, each defined by its pattern: a file for each kernel file of torchette/kernels/engine."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
