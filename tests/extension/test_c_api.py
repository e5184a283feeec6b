# SPDX-License-Identifier: BSD-3-Clause
# Tests the C interface with ctypes, like a program in another language: calls, invalid calls, and the binary interface, which
# must not change.

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.building import BUILD, CC, ROOT, built, run
from tests.extension import c_abi
from tests.extension.counter import Counter, X
from torchette.exir import to_edge
from torchette.format import etdump

OK, INVALID_ARGUMENT, INVALID_STATE, NOT_FOUND, ACCESS_FAILED, OUT_OF_RESOURCES = (
    0,
    0x12,
    0x02,
    0x20,
    0x22,
    0x25,
)
NONE, TENSOR, STRING, INT, BOOLEAN = 0, 1, 2, 4, 5
FLOAT32, FLOAT64 = 6, 7


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
    # A copy of the library, because the Python module of this process uses the original and the log function is global.
    copied = shutil.copy(BUILD / "libtorchette.so", tmp_path_factory.mktemp("c_api"))
    library = ctypes.CDLL(str(copied))
    library.torchette_error_name.restype = ctypes.c_char_p
    library.torchette_last_error.restype = ctypes.c_char_p
    library.torchette_num_backends.restype = ctypes.c_size_t
    library.torchette_module_method_name.restype = ctypes.c_char_p
    library.torchette_module_num_methods.restype = ctypes.c_size_t
    return library


def value(array: np.ndarray, dtype: int = FLOAT32) -> Value:
    result = Value(kind=TENSOR)
    result.tensor = Tensor(array.ctypes.data, array.nbytes, dtype, array.ndim)
    result.tensor.sizes[: array.ndim] = array.shape
    return result


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
        inputs = (Value * 1)(value(x))
        assert library.torchette_method_execute(module, b"forward", inputs, ctypes.c_size_t(1)) == OK
        assert library.torchette_method_output(*ask) == OK
        y = np.ctypeslib.as_array(ctypes.cast(output.tensor.data, ctypes.POINTER(ctypes.c_float)), (2, 4))
        np.testing.assert_array_equal(y, np.repeat(x.sum(1, keepdims=True), 4, 1))
        x += 1
    assert library.torchette_method_unload(module, b"forward") == OK
    assert library.torchette_method_unload(module, b"forward") == NOT_FOUND
    library.torchette_module_free(module)

    # The results of a program in memory are equal.
    data = np.fromfile(two_methods, np.uint8)
    aligned = np.empty(len(data) + 16, np.uint8)
    start = -aligned.ctypes.data % 16
    aligned[start : start + len(data)] = data
    place = ctypes.c_void_p(aligned.ctypes.data + start)
    assert library.torchette_module_open_buffer(place, ctypes.c_size_t(len(data)), ctypes.byref(module)) == OK
    assert library.torchette_method_load(module, b"twice") == OK
    library.torchette_module_free(module)


def test_invalid_calls_return_errors(library: ctypes.CDLL, two_methods: Path, tmp_path: Path) -> None:
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
        for invalid in (*wrong, short, deep, negative, nothing, disordered):
            ran = library.torchette_method_execute(module, b"forward", (Value * 1)(invalid), size(1))
            assert ran == INVALID_ARGUMENT, invalid.kind
        assert library.torchette_method_execute(module, b"forward", None, size(1)) == INVALID_ARGUMENT
        assert library.torchette_method_execute(module, b"forward", None, size(0)) == INVALID_ARGUMENT
        inputs = (Value * 1)(value(x))
        assert library.torchette_method_execute(module, b"backward", inputs, size(1)) == INVALID_ARGUMENT
        assert library.torchette_method_execute(module, b"forward", inputs, size(1)) == OK
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
    assert b"cannot open none: No such file or directory" in lines
    assert b"method forward expects 1 inputs, got 0" in lines and len(lines) > 15


READ = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Loader(ctypes.Structure):
    _fields_ = [("context", ctypes.c_void_p), ("size", ctypes.c_size_t), ("read", READ), ("free", FREE)]


class Option(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("integer", ctypes.c_int32), ("text", ctypes.c_char * 256)]


def run_counter(library: ctypes.CDLL, module: ctypes.c_void_p) -> list[np.ndarray]:
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    inputs = (Value * 1)(value(x))
    assert library.torchette_method_execute(module, b"forward", inputs, ctypes.c_size_t(1)) == OK, last(
        library
    )
    outputs, count = [], ctypes.c_size_t()
    assert library.torchette_method_num_outputs(module, b"forward", ctypes.byref(count)) == OK
    for i in range(count.value - 2, count.value):
        out = Value()
        assert (
            library.torchette_method_output(module, b"forward", ctypes.c_size_t(i), ctypes.byref(out)) == OK
        )
        shape = tuple(out.tensor.sizes[: out.tensor.dim])
        data = ctypes.cast(out.tensor.data, ctypes.POINTER(ctypes.c_float))
        outputs.append(np.ctypeslib.as_array(data, shape).copy())
    with torch.no_grad():
        np.testing.assert_allclose(outputs[0], Counter()(X)[0].numpy(), rtol=1e-6)
    return outputs


def last(library: ctypes.CDLL) -> str:
    return library.torchette_last_error().decode()


def test_data_files_and_state(library: ctypes.CDLL, counter: list[Path]) -> None:
    program, data = (str(path).encode() for path in counter)
    library.torchette_set_log(None)
    module = ctypes.c_void_p()
    assert library.torchette_module_open(program, 1, ctypes.byref(module)) == OK
    assert last(library) == ""
    # The method does not load without its data. After the data is added, it loads.
    assert library.torchette_method_load(module, b"forward") != OK and "linear.weight" in last(library)
    assert library.torchette_module_add_data_file(module, b"none.ptd", 0) == ACCESS_FAILED
    assert last(library) == "cannot open none.ptd: No such file or directory"
    assert library.torchette_module_add_data_file(module, program, 0) != OK and last(library)
    assert library.torchette_module_add_data_file(module, data, 0) == OK and last(library) == ""
    assert run_counter(library, module)[1] == 6 and run_counter(library, module)[1] == 7
    assert library.torchette_module_add_data_file(module, data, 0) == INVALID_STATE
    assert last(library) == "cannot add a data file after a method is loaded; add it before"
    assert library.torchette_method_reset(module, b"forward") == OK
    assert run_counter(library, module)[1] == 6
    assert library.torchette_method_reset(module, b"backward") == INVALID_ARGUMENT
    assert "backward" in last(library)
    library.torchette_module_free(module)


def test_caller_defined_loaders(library: ctypes.CDLL, counter: list[Path]) -> None:
    library.torchette_set_log(None)
    contents = [path.read_bytes() for path in counter]
    freed: list[int] = []
    broken = False

    def read(context: int | None, offset: int, size: int, to: int) -> int:
        ctypes.memmove(to, contents[(context or 0) - 1][offset : offset + size], size)
        return 77 if broken else OK

    functions = READ(read), FREE(lambda context: freed.append(context or 0))
    program, data = (Loader(i + 1, len(content), *functions) for i, content in enumerate(contents))
    module = ctypes.c_void_p()
    assert library.torchette_module_open_loader(ctypes.byref(program), ctypes.byref(module)) == OK
    assert library.torchette_module_add_data_loader(module, ctypes.byref(data)) == OK
    run_counter(library, module)
    assert freed == []
    library.torchette_module_free(module)
    assert sorted(freed) == [1, 2]

    # A failed call also frees the loader.
    broken = True
    assert library.torchette_module_open_loader(ctypes.byref(program), ctypes.byref(module)) == ACCESS_FAILED
    assert "the loader failed to read" in last(library) and "error 0x4d" in last(library)
    assert freed.count(1) == 2 and not module.value
    assert library.torchette_module_add_data_loader(None, ctypes.byref(data)) == INVALID_ARGUMENT
    assert freed.count(2) == 2
    nothing = Loader(1, 5, READ(), FREE())
    assert (
        library.torchette_module_open_loader(ctypes.byref(nothing), ctypes.byref(module)) == INVALID_ARGUMENT
    )
    assert library.torchette_module_open_loader(None, ctypes.byref(module)) == INVALID_ARGUMENT


def test_example_with_loaders_runs(library: ctypes.CDLL, counter: list[Path], tmp_path: Path) -> None:
    """Runs examples/loaders.c, which uses loaders and a trace in C99."""
    source = ROOT / "examples/loaders.c"
    strict = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I", ROOT)
    run(CC, *strict, source, "-o", tmp_path / "loaders", f"-L{BUILD}", f"-Wl,-rpath,{BUILD}", "-ltorchette")
    run(tmp_path / "loaders", *counter, cwd=tmp_path)
    (block,) = etdump.load(tmp_path / "model.etdp").run_data
    assert any(event.profile_event for event in block.events)
    errors = run(tmp_path / "loaders", counter[0], counter[0], cwd=tmp_path, status=1).stderr
    assert "is not a data file" in errors, errors


def test_tracing(library: ctypes.CDLL, counter: list[Path], tmp_path: Path) -> None:
    library.torchette_set_log(None)
    module, data, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    assert library.torchette_module_open(str(counter[0]).encode(), 1, ctypes.byref(module)) == OK
    assert library.torchette_module_add_data_file(module, str(counter[1]).encode(), 1) == OK
    ask = (module, ctypes.byref(data), ctypes.byref(size))
    assert library.torchette_module_etdump(*ask) == INVALID_STATE
    assert last(library) == "the module is not traced"
    values = (ctypes.c_uint8 * 65536)()
    assert library.torchette_module_trace(module, values, ctypes.c_size_t(len(values))) == OK
    run_counter(library, module)
    assert library.torchette_module_trace(module, None, ctypes.c_size_t(0)) == INVALID_STATE
    assert last(library) == "method forward is already loaded"
    assert library.torchette_module_etdump(*ask) == OK
    dump = etdump.load(ctypes.string_at(data.value, size.value))
    names = {event.profile_event.name for run in dump.run_data for event in run.events if event.profile_event}
    assert {"aten::add.out", "aten::linear.out"} <= names
    assert any(event.debug_event for run in dump.run_data for event in run.events)
    assert Counter()(X)[0].detach().numpy().tobytes() in bytes(values), (
        "relu's result is not among the values"
    )
    assert library.torchette_module_etdump(*ask) == OK and size.value == 0 and not data.value
    library.torchette_module_free(module)


def test_options_of_backends(library: ctypes.CDLL) -> None:
    library.torchette_set_log(None)
    library.torchette_backend_name.restype = ctypes.c_char_p
    names = [
        library.torchette_backend_name(ctypes.c_size_t(i)) for i in range(library.torchette_num_backends())
    ]
    assert b"XnnpackBackend" in names and len(set(names)) == len(names)
    assert library.torchette_backend_name(ctypes.c_size_t(len(names))) is None
    option = Option()
    get = (b"XnnpackBackend", b"library", ctypes.byref(option))
    assert library.torchette_backend_get_option(*get) == OK and option.kind == BOOLEAN
    has_library = option.integer
    option = Option(kind=INT, integer=1)
    threads = (b"XnnpackBackend", b"num_threads")
    set_threads = library.torchette_backend_set_option(*threads, ctypes.byref(option))
    if has_library:
        assert set_threads == OK
        assert library.torchette_backend_get_option(*threads, ctypes.byref(option)) == OK
        assert (option.kind, option.integer) == (INT, 1)
    else:
        assert set_threads != OK and "num_threads" in last(library)
    for wrong in (Option(kind=TENSOR), Option(kind=STRING, text=b"x" * 256)):
        assert library.torchette_backend_set_option(*threads, ctypes.byref(wrong)) == INVALID_ARGUMENT
    assert library.torchette_backend_set_option(b"none", b"x", ctypes.byref(option)) == NOT_FOUND
    assert last(library) == "backend none does not accept option x of kind 4"
    assert library.torchette_backend_get_option(b"none", b"x", ctypes.byref(option)) == NOT_FOUND
    assert library.torchette_backend_set_option(b"none", b"x" * 64, ctypes.byref(option)) == INVALID_ARGUMENT


def test_another_thread_cancels_an_execution(library: ctypes.CDLL, tmp_path: Path) -> None:
    class Loop(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            def more(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
                return i < n

            def turn(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return i + 1, x.sin() + x

            return torch._higher_order_ops.while_loop(more, turn, (torch.tensor(0), x))[1]

    library.torchette_set_log(None)
    exported = torch.export.export(Loop(), (torch.ones(16), torch.tensor(2)))
    to_edge(exported).to_executorch().save(str(tmp_path / "loop.pte"))
    module, out = ctypes.c_void_p(), Value()
    assert library.torchette_module_open(str(tmp_path / "loop.pte").encode(), 1, ctypes.byref(module)) == OK
    assert library.torchette_method_cancel(module, b"forward") == INVALID_STATE
    assert last(library) == "method forward is not loaded"
    assert library.torchette_method_load(module, b"forward") == OK
    x, n = np.ones(16, np.float32), np.array(2**40, np.int64)

    def later() -> None:
        time.sleep(0.05)
        library.torchette_method_cancel(module, b"forward")

    for turns, result in ((2**40, OUT_OF_RESOURCES), (3, OK)):
        n[...] = turns
        inputs = (Value * 2)(value(x), value(n, 4))
        thread = threading.Thread(target=later)
        if result != OK:
            thread.start()
        assert library.torchette_method_execute(module, b"forward", inputs, ctypes.c_size_t(2)) == result
        if result != OK:
            thread.join()
            assert last(library)
    assert library.torchette_method_output(module, b"forward", ctypes.c_size_t(0), ctypes.byref(out)) == OK
    library.torchette_module_free(module)


def test_copies_are_row_major(library: ctypes.CDLL) -> None:
    library.torchette_set_log(None)
    x = np.arange(120, dtype=np.int16).reshape(2, 3, 4, 5)
    for order in ((0, 1, 2, 3), (0, 2, 3, 1), (3, 1, 0, 2)):
        stored = np.ascontiguousarray(x.transpose(order))
        tensor, to = value(stored, 2).tensor, np.zeros_like(x)
        tensor.sizes[:4], tensor.order[:4] = x.shape, order
        copy = (ctypes.byref(tensor), ctypes.c_void_p(to.ctypes.data))
        assert library.torchette_tensor_copy(*copy, ctypes.c_size_t(x.nbytes)) == OK
        np.testing.assert_array_equal(to, x)
        assert library.torchette_tensor_copy(*copy, ctypes.c_size_t(8)) == INVALID_ARGUMENT
        assert last(library) == "cannot copy a tensor of 240 bytes to a buffer of 8 bytes"
    tensor.order[:2] = [1, 1]
    assert library.torchette_tensor_copy(*copy, ctypes.c_size_t(x.nbytes)) == INVALID_ARGUMENT
    assert library.torchette_tensor_copy(None, None, ctypes.c_size_t(0)) == INVALID_ARGUMENT


def test_abi_is_unchanged(library: ctypes.CDLL) -> None:
    """Compares symbols, prototypes, constants and, on 64-bit machines, sizes and offsets of structs with c_api.abi."""
    dump, renew = c_abi.dump(BUILD / "libtorchette.so"), "python -m tests.extension.c_abi"
    stored = c_abi.STORED.read_text(encoding="utf-8")
    assert dump == stored, f"programs that are built already may break; if this is meant: {renew}"
    assert set(c_abi.declared()) <= set(c_abi.exported(BUILD / "libtorchette.so"))
    version = f"constant TORCHETTE_C_API_VERSION {library.torchette_c_api_version()}\n"
    assert version in stored
    assert f"struct torchette_value_t {ctypes.sizeof(Value)}\n" in stored
    assert f"struct torchette_option_t {ctypes.sizeof(Option)}\n" in stored


BOTH = """
import ctypes, sys

library_path, order = sys.argv[1:]
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_char, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p)
lines = []
keep = FUNCTION(lambda level, file, line, message: lines.append(message.decode()))


def use_c():
    global library
    library = ctypes.CDLL(library_path)
    library.torchette_last_error.restype = ctypes.c_char_p
    library.torchette_set_log(keep)


def use_python():
    global Runtime
    from torchette.runtime import Runtime


for use in (use_c, use_python) if order == "c first" else (use_python, use_c):
    use()
handle = ctypes.c_void_p()
assert library.torchette_module_open(b"none.pte", 0, ctypes.byref(handle)) != 0
assert "cannot open none.pte" in library.torchette_last_error().decode() and len(lines) == 1
try:
    Runtime.get().load_program(b"no program")
except ValueError as error:
    assert "the program: " in str(error) and len(str(error)) > 30, error
else:
    raise AssertionError
print("both", sorted(Runtime.get().backend_registry.registered_backend_names))
"""


@pytest.mark.parametrize("order", ["c first", "python first"])
def test_the_c_library_and_python_share_a_process(order: str) -> None:
    """Each reports its errors with their messages, and the backends are registered once."""
    built("torchette_shared")
    command = [sys.executable, "-c", BOTH, str(BUILD / "libtorchette.so"), order]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("both") and "already" not in done.stderr, (
        done.stderr
    )
