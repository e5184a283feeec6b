# SPDX-License-Identifier: BSD-3-Clause
# In: a compiled model. Out: its generated C++ as a shared library, and the interpreter's results for comparison.
"""A generated unit, compiled for this machine and called through ctypes."""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.building import CXX, ROOT, program
from torchette.codegen import codegen
from torchette.devtools.inspect import MethodInfo, describe

needs_compiler = pytest.mark.skipif(shutil.which(CXX) is None, reason="no C++ compiler")

# Compiled without vector extensions, so that results do not depend on the compiler's contraction of multiply-adds.
_ISA = {"TORCHETTE_ISA": "v1"}
_NUMBERS = {"int": ctypes.c_int64, "bool": ctypes.c_bool, "double": ctypes.c_double}
# The flags of the kernel library, without those that only reduce the run time.
FLAGS = ("-std=c++17", "-fwrapv", "-fno-math-errno", "-fno-trapping-math")


class Unit:
    """The unit of a .pte file. `unit.call("forward", x)` returns the same outputs as the interpreter."""

    def __init__(self, pte: Path, *flags: str) -> None:
        self.pte, self.folder = pte, pte.parent / f"{pte.stem}_unit"
        self.files = codegen(pte, self.folder)
        sources = sorted(path.name for path in self.folder.glob("*.cpp"))
        more = ("-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", *flags)
        library = program(
            self.folder / "unit.so", sources, *FLAGS, *more, link=["-shared", "-Wl,-z,defs", *flags]
        )
        self.library = ctypes.CDLL(str(library))
        self.methods: dict[str, MethodInfo] = {method.name: method for method in describe(pte).methods}

    def reset(self, method: str = "forward") -> None:
        getattr(self.library, f"{self.pte.stem}_{method}_reset")()

    def error(self, method: str, inputs: Sequence[Any]) -> int:
        return self._call(method, inputs)[0]

    def call(self, method: str, *inputs: Any) -> list[Any]:
        error, outputs = self._call(method, inputs)
        assert error == 0, hex(error)
        return outputs

    def _call(self, method: str, inputs: Sequence[Any]) -> tuple[int, list[Any]]:
        info = self.methods[method]
        words: list[Any] = []
        arrays = []  # keeps the memory of the pointers alive
        for port, argument in zip(info.inputs, inputs):
            tensor = info.values[port.index].tensor
            if tensor is None:
                words.append(_NUMBERS[info.values[port.index].kind](argument))
                continue
            array = np.array(argument, order="C")
            arrays.append(array)
            words.append(array.ctypes.data_as(ctypes.c_void_p))
            words += [ctypes.c_int32(array.shape[d]) for d in self._varying(info, port.index)]
        results: list[tuple[np.ndarray | Any, Any]] = []
        for port in info.outputs:
            value = info.values[port.index]
            if value.tensor is None:
                number = _NUMBERS[value.kind]()
                results.append((number, None))
                words.append(ctypes.byref(number))
                continue
            array = np.empty(value.tensor.sizes, value.tensor.dtype)
            sizes = (ctypes.c_int32 * len(value.tensor.sizes))()
            words.append(array.ctypes.data_as(ctypes.c_void_p))
            if value.tensor.dynamism != "static":
                words.append(sizes)
            results.append((array, sizes if value.tensor.dynamism != "static" else None))
        error = getattr(self.library, f"{self.pte.stem}_{method}")(*words)
        outputs = []
        for array, sizes in results:
            if not isinstance(array, np.ndarray):
                outputs.append(array.value)
            elif sizes is None:
                outputs.append(array)
            else:
                shape = tuple(sizes)
                outputs.append(array.reshape(-1)[: int(np.prod(shape))].reshape(shape))
        return error, outputs

    def _varying(self, info: MethodInfo, index: int) -> list[int]:
        """Returns the dimensions with sizes that are arguments of the function in the header."""
        number = [port.index for port in info.inputs].index(index)
        header = (self.folder / f"{self.pte.stem}.h").read_text()
        line = next(line for line in header.splitlines() if f" {self.pte.stem}_{info.name}(" in line)
        names = [word.strip(",);").split()[-1] for word in line.partition("(")[2].split(",")]
        return [int(name.rpartition("size")[2]) for name in names if name.startswith(f"in{number}_size")]


_INTERPRETER = """
import pickle, sys
from torchette.runtime import Runtime
calls = pickle.load(sys.stdin.buffer)
program = Runtime.get().load_program(sys.argv[1])
methods = {}
outputs = []
for name, inputs in calls:
    if name not in methods:
        methods[name] = program.load_method(name)
    if inputs is None:
        methods[name].reset()
        outputs.append(None)
    else:
        outputs.append([getattr(item, "copy", lambda: item)() for item in methods[name].execute(inputs)])
pickle.dump(outputs, sys.stdout.buffer)
"""


def interpreted(pte: Path, calls: Sequence[tuple[str, Sequence[Any] | None]]) -> list[Any]:
    """Returns the interpreter's outputs for a sequence of calls (method, inputs). Inputs None resets the method."""
    command = [sys.executable, "-c", _INTERPRETER, str(pte)]
    request = pickle.dumps([(name, None if inputs is None else list(inputs)) for name, inputs in calls])
    done = subprocess.run(command, input=request, capture_output=True, cwd=ROOT, env={**os.environ, **_ISA})
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return pickle.loads(done.stdout)


def assert_same(unit: Unit, calls: Sequence[tuple[str, Sequence[Any] | None]]) -> None:
    """Checks that the unit returns the same results as the interpreter, bit for bit."""
    for (method, inputs), expected in zip(calls, interpreted(unit.pte, calls), strict=True):
        if inputs is None:
            unit.reset(method)
            continue
        actual = unit.call(method, *inputs)
        assert len(actual) == len(expected)
        for mine, theirs in zip(actual, expected):
            assert np.shape(mine) == np.shape(theirs)
            assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()
