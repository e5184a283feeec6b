# SPDX-License-Identifier: BSD-3-Clause
# An import of `torchette.<path of ExecuTorch>` that is not a file of ours is served from the table in names.txt. The modules
# next to this file define the names that no code of ours uses. This file imports none of them: it is at the bottom, they are
# at the top.
"""ExecuTorch's module paths under our root, so that a migration is a change of the import root.

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
    """TABLE and ABSENT of the file's text."""
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
                    found = table[path]
                    if name == "*" or isinstance(found, str):
                        table[path] = home
                    else:
                        found[name] = f"{home}:{called}" if renamed else home
        else:
            paths = line.split()
            table |= {path: {} for path in paths}
    return table, absent


# Path below the root -> name -> our module that has it, with ":name" if its name there differs; or one module of ours that
# has all names. And the beginning of a path -> what there is instead of the paths and names that are not here.
with open(f"{__path__[0]}/names.txt", encoding="utf-8") as _file:
    TABLE, ABSENT = _read(_file.read())

# Paths of our own that have moved -> where they are now.
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

# A package under another name of ours: the name that it had in ExecuTorch's first releases.
ALIASES = {"sdk": "devtools"}

_ROOT, _PEER = "torchette.", "executorch"
_PACKAGES = {path.rsplit(".", depth)[0] for path in TABLE for depth in range(1, path.count(".") + 1)}


class _Callable(ModuleType):
    def __call__(self, *args: object, **kwargs: object) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Finder:
    """Stands last among Python's finders: it is asked only for what is no file of ours. (Deriving from the classes of
    importlib.abc would import a dozen modules.)"""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        name = fullname.removeprefix(_ROOT)
        if name in MOVED and name != fullname:
            raise ModuleNotFoundError(f"{fullname} has moved: import {_ROOT}{MOVED[name]}", name=fullname)
        if name == fullname:
            return None
        if name not in TABLE and name not in _PACKAGES and _renamed(name) is None:
            if instead := _instead(name):
                # Without `name=`: `from package import name` would hide the text of an error that has it.
                raise ModuleNotFoundError(f"{fullname} is not there. {instead}")
            return None
        # All are packages, except paths that `python -m` runs: `from path import name` then asks this finder for a missing
        # name.
        return importlib.machinery.ModuleSpec(fullname, self, is_package="main" not in TABLE.get(name, ()))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The import system makes it, but for one that has a name of its own name: it takes the place of that name."""
        name = spec.name.removeprefix(_ROOT)
        names = TABLE.get(name, ())
        return (
            _Callable(spec.name) if name.rpartition(".")[2] in names and not isinstance(names, str) else None
        )

    def exec_module(self, module: ModuleType) -> None:
        renamed = _renamed(module.__name__.removeprefix(_ROOT))
        if renamed is not None:  # the module itself, under both names
            sys.modules[module.__name__] = importlib.import_module(_ROOT + renamed)
            return
        names = TABLE.get(module.__name__.removeprefix(_ROOT), {})

        module.__doc__ = "ExecuTorch's module path; see torchette.compat."
        module.__getattr__ = attributes(module.__name__)  # type: ignore[method-assign]
        listed = (
            (lambda: dir(importlib.import_module(names))) if isinstance(names, str) else lambda: sorted(names)
        )
        module.__dir__ = listed  # type: ignore[method-assign]
        if not isinstance(names, str):  # for `from path import *`
            vars(module)["__all__"] = [name for name in names if not name.startswith("_")]
        for name in () if isinstance(names, str) else names:
            # A module of the package that is called like a name of it: imported later, it would stand in its place.
            if f"{module.__name__}.{name}".removeprefix(_ROOT) in TABLE:
                importlib.import_module(f"{module.__name__}.{name}")
                delattr(module, name)

    def get_code(self, fullname: str) -> Any:
        """For `python -m`: run the path's `main`."""
        names = TABLE.get(fullname.removeprefix(_ROOT), {})
        if isinstance(names, str) or "main" not in names:
            return None
        return compile(f"import sys\nfrom {names['main']} import main\nsys.exit(main())", fullname, "exec")


def attributes(module: str) -> Callable[[str], Any]:
    """Returns a `__getattr__` for a module: it serves the names that the table has for the module's path. A module of ours
    uses it if ExecuTorch has more names in its module of the same path."""
    names = TABLE.get(module.removeprefix(_ROOT), {})
    # As of a package: `from module import name` then asks `_Finder` for a name that is not there.
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
    """Returns the alternative to a path or name of ExecuTorch, as a sentence; empty if no prefix of the table fits."""
    found = max((path for path in ABSENT if f"{name}.".startswith(f"{path}.")), key=len, default="")
    return f"Try: {ABSENT[found]} (docs/from-executorch.md)" if found else ""


def _renamed(name: str) -> str | None:
    """The path of ours that a path under an alias means."""
    first, dot, rest = name.partition(".")
    return ALIASES[first] + dot + rest if first in ALIASES else None


def install() -> None:
    """Serve the table's paths; done when `torchette` is imported, and only once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Alias:
    """Serves `executorch` and all below it: the modules of ours, under both names."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        first, dot, rest = fullname.partition(".")
        if first != _PEER:
            return None
        try:
            found = importlib.util.find_spec(_ROOT + rest if dot else _ROOT[:-1])
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{fullname}: `executorch` stands for torchette here: {error}"
            ) from None
        if found is None:
            raise ModuleNotFoundError(
                f"{fullname}: `executorch` stands for torchette here, which has no module {rest}. "
                "What it has is in docs/from-executorch.md",
                name=fullname,
            )
        return importlib.machinery.ModuleSpec(fullname, self)  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        """The import system makes one, which `exec_module` throws away."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.removeprefix(_PEER)
        sys.modules[module.__name__] = importlib.import_module(_ROOT[:-1] + name)
        # Else the next import of a submodule would put it over a name of its package that is called alike.
        for loaded in [loaded for loaded in sys.modules if loaded.startswith(_ROOT)]:
            sys.modules.setdefault(_PEER + loaded[len(_ROOT) - 1 :], sys.modules[loaded])


def alias_executorch() -> None:
    """Let code that imports `executorch` and that one cannot edit get Torchette: `executorch.exir` is `torchette.exir`, and
    so on, the same objects. For the whole process; a second call changes nothing. It hides an ExecuTorch that is installed.

    Importing what is not there raises ModuleNotFoundError, which says what there is instead.

    Raises:
        TorchetteError: ExecuTorch itself has been imported already; the two would mix.
    """
    if any(isinstance(finder, _Alias) for finder in sys.meta_path):
        return
    loaded = next((name for name in sys.modules if name.partition(".")[0] == _PEER), None)
    if loaded is not None:
        from torchette.errors import TorchetteError

        raise TorchetteError(
            f"{loaded} has been imported already, so that `executorch` cannot stand for torchette in this process",
            hints=["call torchette.compat.alias_executorch() before anything that imports executorch"],
        )
    sys.meta_path.insert(0, _Alias())
    importlib.import_module(_PEER)
