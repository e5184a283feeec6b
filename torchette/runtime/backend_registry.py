# SPDX-License-Identifier: BSD-3-Clause
# The backends of the process and their options.

from __future__ import annotations

import os
from typing import Any

from torchette.errors import InputError, RuntimeLoadError, did_you_mean
from torchette.runtime import native


class BackendRegistry:
    """The backends that can run delegates. `Runtime.backend_registry` returns it.

    Example:
        >>> registry = Runtime.get().backend_registry
        >>> registry.is_available("XnnpackBackend")
    """

    @property
    def registered_backend_names(self) -> list[str]:
        """The names of the registered backends."""
        result: list[str] = native.module().backends()
        return result

    def is_available(self, backend_name: str) -> bool:
        """Returns whether a backend is registered and can run on this machine.

        Args:
            backend_name: the name of the backend.
        """
        result: bool = native.module().is_backend_available(backend_name)
        return result

    def set_option(self, backend_name: str, **options: bool | int | str) -> None:
        """Sets options of a backend, such as ``set_option("XnnpackBackend", num_threads=2)``.

        Args:
            backend_name: the name of the backend.
            options: the values by option name.

        Raises:
            InputError: there is no such backend or option, or the option does not accept the value.
        """
        for key, value in options.items():
            self._option(backend_name, "set_backend_option", key, value)

    def get_option(self, backend_name: str, key: str) -> bool | int | str:
        """Returns the value of an option of a backend.

        Args:
            backend_name: the name of the backend.
            key: the name of the option.

        Raises:
            InputError: there is no such backend or option.
        """
        result: bool | int | str = self._option(backend_name, "get_backend_option", key)
        return result

    def _option(self, backend_name: str, function: str, key: str, *value: object) -> Any:
        binding = native.module()
        try:
            return getattr(binding, function)(backend_name, key, *value)
        except binding.Fault as fault:
            names = self.registered_backend_names
            if backend_name in names:
                why, hints = fault.args[2] or "it has no such option, or does not accept the value", []
            else:
                why, hints = "there is no such backend" + did_you_mean(backend_name, names), names
            raise InputError(
                f"option {key} of {backend_name}: {why}",
                hints=[f"registered backends: {', '.join(hints)}"] if hints else [],
                code="bad-backend-option",
            ) from None

    def load(self, path: str | os.PathLike[str]) -> str:
        """Registers the backend in a shared library.

        Args:
            path: a library with ``extern "C" torchette::Backend* torchette_backend()``.

        Returns:
            The name of the backend.

        Raises:
            RuntimeLoadError: it cannot be loaded, has no such function, or the name is already registered.
        """
        binding = native.module()
        try:
            result: str = binding.load_backend(os.path.abspath(path))
            return result
        except binding.Fault as fault:
            raise RuntimeLoadError(
                f"the backend in {os.fspath(path)} cannot be registered: {fault.args[2]}",
                hints=["`torchette backend new NAME` creates a folder that builds one"],
            ) from None
