# SPDX-License-Identifier: BSD-3-Clause
# The operators that have kernels, and libraries that add kernels.

from __future__ import annotations

import importlib
import os

from torchette.errors import RuntimeLoadError
from torchette.runtime import native


class OperatorRegistry:
    """The operators that have kernels. `Runtime.operator_registry` returns it.

    Example:
        >>> "aten::add.out" in Runtime.get().operator_registry.operator_names
        True
    """

    def __init__(self, aten: bool = False) -> None:
        self._aten = aten

    @property
    def operator_names(self) -> set[str]:
        """Full names, such as ``aten::add.out``; in ATen mode also the operators of torch."""
        if not self._aten:
            return operator_names()
        return operator_names().union(importlib.import_module("torch")._C._dispatch_get_all_op_names())


def operator_names() -> set[str]:
    """Returns the full names of all operators that have kernels, such as ``aten::add.out``.

    Example:
        >>> "aten::add.out" in operator_names()
        True
    """
    return set(operator_signatures())


def operator_signatures() -> dict[str, str]:
    """Returns the signature of each kernel by full name: one code of torchette/schema/kernels.def per parameter.

    Example:
        >>> signature = operator_signatures()["aten::add.out"]
    """
    binding = native.module()
    return dict((*binding.operators(), *binding.loaded_operators()))


def load_kernels(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Registers the kernels of a library built by `torchette custom build`. A second call has no effect.

    Args:
        path: the library.

    Returns:
        (schema, Python expression for an empty result) of each operator that the library describes, for `torchette.load_library`.

    Raises:
        RuntimeLoadError: it cannot be loaded, has another version, or a kernel name is already registered.

    Example:
        >>> load_kernels("libmine.so")
    """
    binding = native.module()
    try:
        result: list[tuple[str, str]] = binding.load_library(os.path.abspath(path))
        return result
    except binding.Fault as fault:
        raise RuntimeLoadError(
            f"the operators in {os.fspath(path)} cannot be registered: {fault.args[2]}",
            hints=["`torchette custom build my_op.cpp` builds a library with operators"],
        ) from None
