# SPDX-License-Identifier: BSD-3-Clause
# The finder in this file serves imports of `torchette.<ExecuTorch's module path>` if Torchette has no file of that
# path. The table in names.txt maps the names. Modules in this folder define names that no other code of Torchette uses.
# This file does not import them: it belongs to the lowest layer, they belong to the highest.
"""ExecuTorch's module paths below `torchette`, so that code migrates by changing the import root.

>>> from torchette.exir.backend.partitioner import Partitioner       # is torchette.exir.delegation.delegate.Partitioner
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def _read(text: str) -> tuple[dict[str, dict[str, str] | str], dict[str, str]]:
    """Parses the text of names.txt into TABLE and ABSENT."""
    table: dict[str, dict[str, str] | str] = {}
    absent: dict[str, str] = {}
    paths: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        before, mark, instead = line.partition(" ! ")
        if mark:
            absent |= dict.fromkeys(before.split(), instead)
        elif line.startswith(" "):
            home, _, names = line.strip().partition(": ")
            home = f"torchette{home}" if home.startswith(".") else home
            for name in names.split():
                name, renamed, called = name.partition("=")
                for path in paths:
                    entries = table[path]
                    if name == "*" or isinstance(entries, str):
                        table[path] = home
                    else:
                        entries[name] = f"{home}:{called}" if renamed else home
        else:
            paths = line.split()
            table |= {path: {} for path in paths}
    return table, absent


# TABLE: path below the root -> name -> the Torchette module that defines it, with ":name" if its name there differs; or
# one module that defines all names. ABSENT: prefix of a path -> the alternative to paths and names that are not in
# TABLE.
with open(f"{__path__[0]}/names.txt", encoding="utf-8") as _file:
    TABLE, ABSENT = _read(_file.read())

# Moved paths of Torchette -> their new paths.
MOVED = {
    **{f"exir.{name}": f"exir.delegation.{name}" for name in ("cost", "explain", "partition")},
    "checks": "capture.checks",
    "compilation": "_compile",
    "custom": "custom_ops",
    "devtools.memory": "devtools.device_memory",
    "devtools.receipt": "receipt",
    "exir.partitioners": "compat.partitioners",
    "exir.delegation.partitioners": "compat.partitioners",
    "exir.dialects.verifier": "compat.verifier",
    "exir.exir_program": "compat.exir_program",
    "exir.memory.banks": "compat.banks",
    "export.one_call": "compat.export_util",
    "exir.budget": "fit.propose",
    "exir.fit": "fit",
    "exir.passes.plan_memory": "exir.memory.plan_memory",
    "exir.recipes": "export.recipe",
    "fitting": "fit",
    "quantization.one_call": "quantization.quantize",
    "quantization.pt2e": "capture.pt2e",
    "rewrites": "capture.rewrites",
    "session": "export",
}

# Package name in ExecuTorch's first releases -> its current name.
ALIASES = {"sdk": "devtools"}

_ROOT, _PEER = "torchette.", "executorch"
_PACKAGES = {path.rsplit(".", depth)[0] for path in TABLE for depth in range(1, path.count(".") + 1)}


class _Callable(ModuleType):
    def __call__(self, *args: object, **kwargs: object) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Finder:
    """Serves the paths of TABLE. It is the last of Python's finders, so that files of Torchette have priority.

    It does not derive from importlib.abc, which would import a dozen modules.
    """

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        name = fullname.removeprefix(_ROOT)
        if name in MOVED and name != fullname:
            raise ModuleNotFoundError(f"{fullname} has moved: import {_ROOT}{MOVED[name]}", name=fullname)
        if name == fullname:
            return None
        if name not in TABLE and name not in _PACKAGES and _renamed(name) is None:
            if instead := _instead(name):
                # Without `name=`, because `from package import name` replaces the text of an error with this attribute.
                raise ModuleNotFoundError(f"{fullname} does not exist. {instead}")
            return None
        # All modules are packages, except paths that `python -m` runs. `from path import name` then asks this finder
        # for a name that the module does not define.
        return importlib.machinery.ModuleSpec(fullname, self, is_package="main" not in TABLE.get(name, ()))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Returns a callable module if a name in the module has the name of the module itself, otherwise None.

        For None, the import system creates the module.
        """
        name = spec.name.removeprefix(_ROOT)
        names = TABLE.get(name, ())
        return (
            _Callable(spec.name) if name.rpartition(".")[2] in names and not isinstance(names, str) else None
        )

    def exec_module(self, module: ModuleType) -> None:
        renamed = _renamed(module.__name__.removeprefix(_ROOT))
        if renamed is not None:  # one module object under both names
            sys.modules[module.__name__] = importlib.import_module(_ROOT + renamed)
            return
        names = TABLE.get(module.__name__.removeprefix(_ROOT), {})

        module.__doc__ = "ExecuTorch's module path; see torchette.compat."
        module.__getattr__ = attributes(module.__name__)  # type: ignore[method-assign]
        listed = (
            (lambda: dir(importlib.import_module(names))) if isinstance(names, str) else lambda: sorted(names)
        )
        module.__dir__ = listed  # type: ignore[method-assign]
        if not isinstance(names, str):  # used by `from path import *`
            vars(module)["__all__"] = [name for name in names if not name.startswith("_")]
        for name in () if isinstance(names, str) else names:
            # Import a submodule with the same name as an attribute first. A later import would overwrite the attribute.
            if f"{module.__name__}.{name}".removeprefix(_ROOT) in TABLE:
                importlib.import_module(f"{module.__name__}.{name}")
                delattr(module, name)

    def get_code(self, fullname: str) -> Any:
        """Returns code for `python -m` that calls the path's `main`."""
        names = TABLE.get(fullname.removeprefix(_ROOT), {})
        if isinstance(names, str) or "main" not in names:
            return None
        return compile(f"import sys\nfrom {names['main']} import main\nsys.exit(main())", fullname, "exec")


def attributes(module: str) -> Callable[[str], Any]:
    """Returns a `__getattr__` for a module that serves the names of the module's path in the table.

    A module of Torchette uses it if ExecuTorch's module of the same path has more names.
    """
    names = TABLE.get(module.removeprefix(_ROOT), {})
    # Makes the module a package, so that `from module import name` asks `_Finder` for missing names.
    vars(sys.modules[module]).setdefault("__path__", [])

    def lookup(name: str) -> Any:
        if isinstance(names, str):
            public = not name.startswith("_") and hasattr(importlib.import_module(names), name)
            ours = names if public else None
        else:
            ours = names.get(name)
        if ours is None:
            instead = "" if name.startswith("__") else _instead(f"{module}.{name}".removeprefix(_ROOT))
            raise AttributeError(f"module {module!r} has no attribute {name!r}. {instead}".rstrip(" ."))
        home, _, called = ours.partition(":")
        value = getattr(importlib.import_module(home), called or name)
        setattr(sys.modules[module], name, value)
        return value

    return lookup


def _instead(name: str) -> str:
    """Returns the alternative to a path or name of ExecuTorch as a sentence, or an empty string."""
    prefix = max((path for path in ABSENT if f"{name}.".startswith(f"{path}.")), key=len, default="")
    return f"Try: {ABSENT[prefix]} (docs/from-executorch.md)" if prefix else ""


def _renamed(name: str) -> str | None:
    """Returns Torchette's path for a path below an alias, or None."""
    first, dot, suffix = name.partition(".")
    return ALIASES[first] + dot + suffix if first in ALIASES else None


def install() -> None:
    """Registers the finder. Called when `torchette` is imported; further calls have no effect."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Alias:
    """Serves `executorch` and its submodules: the modules of Torchette under both names."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        first, dot, suffix = fullname.partition(".")
        if first != _PEER:
            return None
        try:
            spec = importlib.util.find_spec(_ROOT + suffix if dot else _ROOT[:-1])
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{fullname}: `executorch` is an alias of torchette: {error}") from None
        if spec is None:
            raise ModuleNotFoundError(
                f"{fullname}: `executorch` is an alias of torchette, which has no module {suffix}. "
                "docs/from-executorch.md lists the modules",
                name=fullname,
            )
        return importlib.machinery.ModuleSpec(fullname, self)  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        """Returns None, so that the import system creates a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix(_PEER)
        sys.modules[module.__name__] = importlib.import_module(_ROOT[:-1] + name)
        # Otherwise the next import of a submodule would overwrite an attribute of its package with the same name.
        for loaded in [loaded for loaded in sys.modules if loaded.startswith(_ROOT)]:
            sys.modules.setdefault(_PEER + loaded[len(_ROOT) - 1 :], sys.modules[loaded])


def alias_executorch() -> None:
    """Makes `executorch` an alias of `torchette` in this process, for code that imports `executorch` and cannot be
    changed.

    `executorch.exir` becomes `torchette.exir`, and so on: the same objects under both names. An installed ExecuTorch is
    hidden. Further calls have no effect. Importing a missing module raises ModuleNotFoundError, which names an
    alternative.

    Raises:
        TorchetteError: if ExecuTorch is already imported.

    Example:
        ``torchette.compat.alias_executorch(); import executorch.exir``
    """
    if any(isinstance(finder, _Alias) for finder in sys.meta_path):
        return
    loaded = next((name for name in sys.modules if name.partition(".")[0] == _PEER), None)
    if loaded is not None:
        from torchette.errors import TorchetteError

        raise TorchetteError(
            f"{loaded} is already imported, so `executorch` cannot become an alias of torchette in this process",
            hints=["call torchette.compat.alias_executorch() before any import of executorch"],
        )
    sys.meta_path.insert(0, _Alias())
    importlib.import_module(_PEER)
