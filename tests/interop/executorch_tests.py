# SPDX-License-Identifier: BSD-3-Clause
# In: folders of the installed executorch package. Out: for each test file, the number of tests that pass when
# `executorch` is an alias of torchette. The tests and their helpers come from executorch; all other imports come from
# Torchette. A missing name is replaced by a class that cannot be instantiated, so that only the tests that use it fail,
# not the whole file.
"""Runs ExecuTorch's Python tests on Torchette: python -m tests.interop.executorch_tests OUT.json runtime/test exir/emit

Each file runs in a separate forked process, for at most LIMIT seconds.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import _pytest.python
import pytest
import torch

from tests.models import zoo

LIMIT = 600
PEER = Path(torch.__file__).parents[1] / "executorch"
# Tests of backends that Torchette does not have, of examples, and of the build.
OTHERS = (
    "apple", "arm", "cadence", "cortex_m", "cuda", "mlx", "native", "nxp", "openvino", "qualcomm", "samsung", "webgpu",
)  # fmt: skip
LEFT_OUT = (
    "examples",
    "codegen",
    "extension/llm/tokenizers",
    "extension/wasm",
    *(f"backends/{name}" for name in OTHERS),
)


# Modules that tests share, with other names.
SHARED = "executorch.devtools.bundled_program.util"


class _Tests:
    """Serves `executorch.<path>` from the installed package if it is a test or a module that tests share."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        parts = name.split(".")[1:]
        is_test = any(p in ("test", "tests") or p.startswith("test_") for p in parts)
        if not name.startswith("executorch.") or not (is_test or name == SHARED):
            return None
        place = PEER.joinpath(*parts)
        if place.with_suffix(".py").exists():
            _stand_in(place.with_suffix(".py"))
            return importlib.util.spec_from_file_location(name, place.with_suffix(".py"))
        if not place.is_dir():
            return None
        if (place / "__init__.py").exists():
            return importlib.util.spec_from_file_location(
                name, place / "__init__.py", submodule_search_locations=[str(place)]
            )
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec


def _missing(name: str) -> type:
    def refuse(cls: Any, *args: Any, **kwargs: Any) -> Any:
        raise ImportError(f"{name} is not here")

    return type(name.rpartition(".")[2], (), {"__new__": refuse})


def _found(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _stand_in(place: Path) -> None:
    """Provides the modules that a file imports from executorch, and placeholders for missing names."""
    names_by_module: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(place.read_text())):
        for name, names in (
            [(node.module or "", [alias.name for alias in node.names])] if isinstance(node, ast.ImportFrom)
            else [(alias.name, []) for alias in node.names] if isinstance(node, ast.Import) else []
        ):  # fmt: skip
            parts = name.split(".")
            if parts[0] == "executorch" and not {"test", "tests"} & set(parts):
                names_by_module.setdefault(name, []).extend(names)
    for name, names in names_by_module.items():
        module = _found(name) or ModuleType(name)
        sys.modules.setdefault(name, module)
        for each in names:
            if not hasattr(module, each) and _found(f"{name}.{each}") is None:
                setattr(module, each, _missing(f"{name}.{each}"))


def _import(path: Path, config: Any) -> Any:
    """Returns the name by which pytest imports a test file, so that the table is asked for its imports."""
    place = Path(path).relative_to(PEER).with_suffix("")
    place = place.parent if place.name == "__init__" else place
    for depth in range(1, len(place.parts)):  # a Torchette module may be a folder of tests in ExecuTorch
        above = importlib.import_module(".".join(("executorch", *place.parts[:depth])))
        above.__path__ = getattr(above, "__path__", [])
    try:
        return importlib.import_module(".".join(("executorch", *place.parts)))
    except Exception as error:
        raise pytest.Collector.CollectError("".join(traceback.format_exception(error))) from None


class _Reports:
    def __init__(self, file: Any) -> None:
        self.file = file

    def _write(self, name: str, outcome: str, text: Any) -> None:
        print(json.dumps([name, outcome, str(text)[-2000:]]), file=self.file, flush=True)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            self._write(report.nodeid, report.outcome, report.longrepr)

    def pytest_collectreport(self, report: Any) -> None:
        if not report.passed:
            self._write(report.nodeid, "failed" if report.failed else "skipped", report.longrepr)


def files(*folders: str) -> list[Path]:
    """Returns the test files below these folders, or all."""
    paths = sorted(path.relative_to(PEER) for path in PEER.rglob("test_*.py"))
    paths = [
        path
        for path in paths
        if {"test", "tests"} & set(path.parts) and not path.as_posix().startswith(LEFT_OUT)
    ]
    return [path for path in paths if not folders or path.as_posix().startswith(folders)]


def run(paths: list[Path], output: Path) -> Counter[str]:
    """Counts the passed, failed and skipped tests, and appends one line of JSON for each file."""
    output.write_text("")
    for path in paths:
        child = os.fork()
        if not child:
            with output.open("a") as file, open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
                signal.alarm(LIMIT)
                options = [
                    "-p",
                    "no:cacheprovider",
                    "-c",
                    os.devnull,
                    "--rootdir",
                    str(PEER),
                    "--import-mode=importlib",
                    "--assert=plain",  # otherwise pytest imports the files itself
                ]
                pytest.main([*options, str(PEER / path)], plugins=[_Reports(file)])
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            with output.open("a") as file:
                print(json.dumps([path.as_posix(), "failed", "its process ended"]), file=file)
        print(path, flush=True)
    last = {name: outcome for name, outcome, _ in map(json.loads, output.read_text().splitlines())}
    return Counter(last.values())


def main() -> None:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    from torchette.compat import alias_executorch

    alias_executorch()
    zoo.declare_torchvision_operators()
    sys.meta_path.insert(0, _Tests())
    _pytest.python.importtestmodule = _import
    torch.set_num_threads(1)
    importlib.import_module("executorch.exir.tests.common")  # imports most of the shared modules
    output, *folders = sys.argv[1:]
    print(json.dumps(run(files(*folders), Path(output))))


if __name__ == "__main__":
    main()
