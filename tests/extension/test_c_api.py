# SPDX-License-Identifier: BSD-3-Clause
# The C interface from Python's ctypes: what a program in another language does, what it does wrong, and the list of
# symbols that must not change.

from __future__ import annotations

import ctypes
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.building import BUILD, CXX, ROOT, built, run

OK, INVALID_ARGUMENT, INVALID_STATE, NOT_FOUND = 0, 0x12, 0x02, 0x20
NONE, TENSOR, INT = 0, 1, 4
FLOAT32, FLOAT64 = 6, 7

# Functions of the stable interface: names may be added, never removed.
SYMBOLS = [
    "torchette_c_api_version",
    "torchette_error_name",
    "torchette_method_execute",
    "torchette_method_input_info",
    "torchette_method_load",
    "torchette_method_num_inputs",
    "torchette_method_num_outputs",
    "torchette_method_output",
    "torchette_method_output_info",
    "torchette_method_unload",
    "torchette_module_free",
    "torchette_module_method_name",
    "torchette_module_num_methods",
    "torchette_module_open",
    "torchette_module_open_buffer",
    "torchette_module_set_num_threads",
    "torchette_set_log",
    "torchette_set_num_threads",
]
# The platform's, which a program may define itself.
PLATFORM = "abort allocate current_ticks emit_log_message free init ticks_to_ns_multiplier"


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_size_t),
        ("dtype", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * 16),
        ("order", ctypes.c_uint8 * 16),
    ]


class Value(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("integer", ctypes.c_int64),
        ("number", ctypes.c_double),
        ("tensor", Tensor),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built("torchette_shared")
    # A copy: the Python module of this process uses the library itself, and where its log lines go is set once for both.
    copied = shutil.copy(BUILD / "libtorchette.so", tmp_path_factory.mktemp("c_api"))
    library = ctypes.CDLL(str(copied))
    library.torchette_error_name.restype = ctypes.c_char_p
    library.torchette_module_method_name.restype = ctypes.c_char_p
    library.torchette_module_num_methods.restype = ctypes.c_size_t
    return library


def value(array: np.ndarray, dtype: int = FLOAT32) -> Value:
    made = Value(kind=TENSOR)
    made.tensor = Tensor(array.ctypes.data, array.nbytes, dtype, array.ndim)
    made.tensor.sizes[: array.ndim] = array.shape
    return made


def test_a_model_runs(library: ctypes.CDLL, two_methods: Path) -> None:
    module = ctypes.c_void_p()
    assert library.torchette_module_open(str(two_methods).encode(), 1, ctypes.byref(module)) == OK
    names = [
        library.torchette_module_method_name(module, ctypes.c_size_t(i))
        for i in range(library.torchette_module_num_methods(module))
    ]
    assert sorted(names) == [b"forward", b"twice"]
    assert library.torchette_module_method_name(module, ctypes.c_size_t(2)) is None

    count, info = ctypes.c_size_t(), Value()
    assert (
        library.torchette_method_num_inputs(module, b"forward", ctypes.byref(count)) == OK
        and count.value == 1
    )
    assert (
        library.torchette_method_num_outputs(module, b"forward", ctypes.byref(count)) == OK
        and count.value == 1
    )
    assert (
        library.torchette_method_input_info(module, b"forward", ctypes.c_size_t(0), ctypes.byref(info)) == OK
    )
    assert (info.kind, info.tensor.dtype, info.tensor.dim, info.tensor.nbytes) == (TENSOR, FLOAT32, 2, 24)
    assert list(info.tensor.sizes[:2]) == [2, 3] and list(info.tensor.order[:2]) == [0, 1]
    assert info.tensor.data is None

    output = Value()
    ask = (module, b"forward", ctypes.c_size_t(0), ctypes.byref(output))
    assert library.torchette_method_output(*ask) == INVALID_STATE
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    for _ in range(2):
        given = (Value * 1)(value(x))
        assert library.torchette_method_execute(module, b"forward", given, ctypes.c_size_t(1)) == OK
        assert library.torchette_method_output(*ask) == OK
        y = np.ctypeslib.as_array(ctypes.cast(output.tensor.data, ctypes.POINTER(ctypes.c_float)), (2, 4))
        np.testing.assert_array_equal(y, np.repeat(x.sum(1, keepdims=True), 4, 1))
        x += 1
    assert library.torchette_method_unload(module, b"forward") == OK
    assert library.torchette_method_unload(module, b"forward") == NOT_FOUND
    library.torchette_module_free(module)

    # from memory; the same
    data = np.fromfile(two_methods, np.uint8)
    aligned = np.empty(len(data) + 16, np.uint8)
    start = -aligned.ctypes.data % 16
    aligned[start : start + len(data)] = data
    place = ctypes.c_void_p(aligned.ctypes.data + start)
    assert library.torchette_module_open_buffer(place, ctypes.c_size_t(len(data)), ctypes.byref(module)) == OK
    assert library.torchette_method_load(module, b"twice") == OK
    library.torchette_module_free(module)


def test_what_is_wrong_is_an_error(library: ctypes.CDLL, two_methods: Path, tmp_path: Path) -> None:
    module, out, size = ctypes.c_void_p(), Value(), ctypes.c_size_t
    lines: list[bytes] = []
    log = ctypes.CFUNCTYPE(None, ctypes.c_char, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p)
    keep = log(lambda _level, _file, _number, line: lines.append(line))
    library.torchette_set_log(keep)
    try:
        assert library.torchette_module_open(b"none", 0, ctypes.byref(module)) == 0x22 and not module.value
        assert library.torchette_error_name(0x22) == b"AccessFailed"
        assert library.torchette_error_name(0x99) == b"an unknown error"
        assert library.torchette_module_open(None, 0, ctypes.byref(module)) == INVALID_ARGUMENT
        assert library.torchette_module_open(str(two_methods).encode(), 0, None) == INVALID_ARGUMENT
        library.torchette_module_free(None)
        assert library.torchette_module_num_methods(None) == 0
        assert library.torchette_method_load(None, b"forward") == INVALID_ARGUMENT

        assert library.torchette_module_open(str(two_methods).encode(), 0, ctypes.byref(module)) == OK
        x = np.ones((2, 3), np.float32)
        wrong = [value(x[:1].copy()), value(x, FLOAT64), value(x, 99), Value(kind=INT), Value(kind=77)]
        short = value(x)
        short.tensor.nbytes = 20
        deep = value(x)
        deep.tensor.dim = 17
        negative = value(x)
        negative.tensor.sizes[0] = -2
        nothing = value(x)
        nothing.tensor.data = None
        disordered = value(x)
        disordered.tensor.order[:2] = [1, 1]
        for given in (*wrong, short, deep, negative, nothing, disordered):
            ran = library.torchette_method_execute(module, b"forward", (Value * 1)(given), size(1))
            assert ran == INVALID_ARGUMENT, given.kind
        assert library.torchette_method_execute(module, b"forward", None, size(1)) == INVALID_ARGUMENT
        assert library.torchette_method_execute(module, b"forward", None, size(0)) == INVALID_ARGUMENT
        given = (Value * 1)(value(x))
        assert library.torchette_method_execute(module, b"backward", given, size(1)) == INVALID_ARGUMENT
        assert library.torchette_method_execute(module, b"forward", given, size(1)) == OK
        assert (
            library.torchette_method_output(module, b"forward", size(1), ctypes.byref(out))
            == INVALID_ARGUMENT
        )
        assert (
            library.torchette_method_input_info(module, b"forward", size(1), ctypes.byref(out))
            == INVALID_ARGUMENT
        )
        library.torchette_module_free(module)
    finally:
        library.torchette_set_log(log())
    assert b"none cannot be opened: No such file or directory" in lines
    assert b"forward takes 1 inputs, 0 are given" in lines and len(lines) > 15


def test_the_symbols_are_those_of_the_header(library: ctypes.CDLL) -> None:
    listed = run("nm", "-D", "--defined-only", BUILD / "libtorchette.so").stdout.splitlines()
    exported = {line.split()[-1] for line in listed}
    ours = {name for name in exported if not name.startswith("_")}
    assert ours == {*SYMBOLS, *(f"torchette_pal_{name}" for name in PLATFORM.split())}
    header = (ROOT / "torchette/extension/c_api.h").read_text()
    assert sorted(re.findall(r"^TORCHETTE_API [\w* ]+?\*?\s?(torchette_\w+)\(", header, re.M)) == sorted(
        SYMBOLS
    )
    assert library.torchette_c_api_version() == 2


def test_the_structs_are_what_they_were(tmp_path: Path) -> None:
    """Sizes and offsets of what passes the border, on 64-bit machines."""
    program = tmp_path / "sizes.cpp"
    program.write_text(
        '#include "torchette/extension/c_api.h"\n'
        "static_assert(sizeof(torchette_tensor_t) == 168 && offsetof(torchette_tensor_t, sizes) == 24);\n"
        "static_assert(offsetof(torchette_tensor_t, order) == 152);\n"
        "static_assert(sizeof(torchette_value_t) == 192 && offsetof(torchette_value_t, tensor) == 24);\n"
    )
    run(CXX, "-std=c++17", "-fsyntax-only", "-I", ROOT, program)
    assert ctypes.sizeof(Tensor) == 168 and ctypes.sizeof(Value) == 192
