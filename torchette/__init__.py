# SPDX-License-Identifier: BSD-3-Clause
# The public API. Names are resolved on first use, so that importing the package is cheap and the runtime part works
# without torch.
"""Torchette: PyTorch models to ExecuTorch programs, and a small runtime that executes them.

>>> import torch, torchette
>>> model = torchette.compile(torch.nn.Linear(4, 2).eval(), (torch.ones(1, 4),))
>>> model(torch.ones(1, 4))          # runs on the real runtime
>>> model.save("linear.pte")
>>> torchette.load("linear.pte")(torch.ones(1, 4))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchette import compat
from torchette.errors import TorchetteError
from torchette.packages import import_compiler

if TYPE_CHECKING:
    from torchette import errors, exir, runtime
    from torchette._compile import compile
    from torchette.custom_ops import load_library
    from torchette.device import Device
    from torchette.model import Model, load
    from torchette.quantization.quantize import quantize

__version__ = "0.1.0"

compat.install()

# Public name -> (module, attribute of the module); None means the module itself.
_LAZY: dict[str, tuple[str, str | None]] = {
    "Device": ("torchette.device", "Device"),
    "compile": ("torchette._compile", "compile"),
    "load": ("torchette.model", "load"),
    "load_library": ("torchette.custom_ops", "load_library"),
    "Model": ("torchette.model", "Model"),
    "quantize": ("torchette.quantization.quantize", "quantize"),
    "errors": ("torchette.errors", None),
    "exir": ("torchette.exir", None),
    "runtime": ("torchette.runtime", None),
}

__all__ = [
    "Device",
    "Model",
    "TorchetteError",
    "__version__",
    "compile",
    "errors",
    "exir",
    "load",
    "load_library",
    "quantize",
    "runtime",
]


if not TYPE_CHECKING:  # hidden from type checkers, which would accept every attribute

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(
                f"module 'torchette' has no attribute {name!r}; public names: {', '.join(__all__)}"
            )
        module_name, attribute = _LAZY[name]
        module = import_compiler(module_name, f"torchette.{name}")
        value = module if attribute is None else getattr(module, attribute)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
