# SPDX-License-Identifier: BSD-3-Clause
# torchette.runtime with programs built from records in this file. Neither the compiler nor torch is needed.

from __future__ import annotations

import functools
import gc
import io
import logging
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchette.errors import (
    ExecutionError,
    FormatError,
    InputError,
    InputTypeError,
    ModelNotFoundError,
    RuntimeLoadError,
)
from torchette.format import pte
from torchette.runtime import Runtime, Verification

ROOT = Path(__file__).parents[2]
FLOAT = pte.ScalarType.FLOAT


def tensor(
    sizes: list[int], *, at: int | None = None, data: int = 0, order: list[int] | None = None, **more
) -> Any:
    return pte.Tensor(
        scalar_type=more.pop("dtype", FLOAT),
        sizes=sizes,
        dim_order=bytes(order or range(len(sizes))),
        data_buffer_idx=data,
        allocation_info=None if at is None else pte.AllocationDetails(1, at, 0),
        **more,
    )


def named(name: str) -> Any:
    return pte.ExtraTensorInfo(fully_qualified_name=name)


def program(
    values: list, calls: list, inputs: list, outputs: list, *, planned: int = 0, mutable: tuple = ()
) -> bytes:
    """Returns a file with one method; a call is (name, overload, indices of values)."""
    operators = list(dict.fromkeys((name, overload) for name, overload, _ in calls))
    plan = pte.ExecutionPlan(
        name="forward",
        container_meta_type=pte.ContainerMetadata("", ""),
        values=[pte.EValue(value) for value in values],
        inputs=inputs,
        outputs=outputs,
        chains=[
            pte.Chain(
                instructions=[
                    pte.Instruction(pte.KernelCall(operators.index((name, overload)), list(args)))
                    for name, overload, args in calls
                ]
            )
        ],
        operators=[pte.Operator(*operator) for operator in operators],
        non_const_buffer_sizes=[0, planned],
    )
    return bytes(pte.write(pte.Program(version=0, execution_plan=[plan]), mutable_data=mutable))


def sum_program(
    sizes: list[int], *, plan: bool = False, dtype: Any = FLOAT, order: list[int] | None = None, **more
) -> bytes:
    """left + right."""
    size = int(np.prod(sizes)) * (8 if dtype in (pte.ScalarType.LONG, pte.ScalarType.DOUBLE) else 4) + 64
    offsets = [0, size, 2 * size] if plan else [None] * 3
    names = ["left", "right", ""]
    tensors = [
        tensor(
            sizes, at=at, dtype=dtype, order=order, extra_tensor_info=named(name) if name else None, **more
        )
        for at, name in zip(offsets, names)
    ]
    return program(
        [*tensors, pte.Int(1)],
        [("aten::add", "out", [0, 1, 3, 2, 2])],
        [0, 1],
        [2],
        planned=3 * size if plan else 0,
    )


def load(contents: bytes) -> Any:
    return Runtime.get().load_program(contents).load_method("forward")


def ones(*sizes: int) -> np.ndarray:
    return np.ones(sizes, np.float32)


# ---- programs ----


def test_sources(tmp_path: Path) -> None:
    contents = sum_program([2, 3])
    path = tmp_path / "sum.pte"
    path.write_bytes(contents)
    odd = memoryview(b"x" + contents)[1:]  # misaligned
    with path.open("rb") as file:
        for source in (contents, bytearray(contents), odd, path, str(path), file, io.BytesIO(contents)):
            for verification in (Verification.Minimal, Verification.InternalConsistency):
                if hasattr(source, "seek"):
                    source.seek(0)
                loaded = Runtime.get().load_program(source, verification=verification)
                assert loaded.method_names == {"forward"}
                (result,) = loaded.load_method("forward").execute([ones(2, 3), ones(2, 3)])
                assert (result == 2).all()


class Decrypting(io.RawIOBase):
    """A user's loader of an encrypted file."""

    def __init__(self, file: io.BytesIO) -> None:
        self.file = file

    def read(self, size: int = -1) -> bytes:
        return bytes(byte ^ 0x5A for byte in self.file.read(size))


def test_decrypting_source(tmp_path: Path) -> None:
    hidden = io.BytesIO(bytes(byte ^ 0x5A for byte in sum_program([2])))
    method = Runtime.get().load_program(Decrypting(hidden)).load_method("forward")
    assert method.execute([ones(2), ones(2)])[0].tolist() == [2, 2]


def test_bytearray_is_copied() -> None:
    contents = bytearray(sum_program([2]))
    method = load(contents)
    contents[:] = bytes(len(contents))
    assert method.execute([ones(2), ones(2)])[0].tolist() == [2, 2]


def test_refused_sources(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"nowhere\.pte"):
        Runtime.get().load_program(tmp_path / "nowhere.pte")
    with pytest.raises(FormatError, match="folder"):
        Runtime.get().load_program(tmp_path)
    with pytest.raises(InputTypeError, match="int"):
        Runtime.get().load_program(3)
    for contents in (b"", b"x" * 64, sum_program([2])[:300]):
        with pytest.raises(FormatError):
            Runtime.get().load_program(contents)
    with pytest.raises(RuntimeLoadError, match=r"'backward'.*'forward'"):
        Runtime.get().load_program(sum_program([2])).load_method("backward")


def test_all_missing_kernels_are_named() -> None:
    contents = program(
        [tensor([2])], [("a::b", "c", [0]), ("aten::add", "out", [0]), ("d::e", "", [0])], [0], [0]
    )
    with pytest.raises(RuntimeLoadError, match=r"a::b\.c, d::e"):
        load(contents)


def test_missing_backend_is_named() -> None:
    plan = pte.ExecutionPlan(
        name="forward",
        values=[pte.EValue(tensor([2]))],
        inputs=[0],
        outputs=[0],
        chains=[pte.Chain(instructions=[pte.Instruction(pte.DelegateCall(0, [0, 0]))])],
        delegates=[pte.BackendDelegate("FancyBackend", pte.BackendDelegateDataReference(index=0), [])],
        non_const_buffer_sizes=[0],
    )
    contents = bytes(pte.write(pte.Program(version=0, execution_plan=[plan]), delegate_data=[b"blob"]))
    loaded = Runtime.get().load_program(contents)
    assert loaded.metadata("forward").backend_names == ["FancyBackend"]
    with pytest.raises(RuntimeLoadError, match=r"FancyBackend.*not registered"):
        loaded.load_method("forward")


def test_metadata() -> None:
    loaded = Runtime.get().load_program(sum_program([2, 3], plan=True))
    meta = loaded.metadata("forward")
    assert (meta.name(), meta.num_inputs(), meta.num_outputs(), meta.num_attributes()) == ("forward", 2, 1, 0)
    info = meta.input_tensor_meta(1)
    assert (info.sizes(), info.dtype(), info.dtype_name, info.nbytes()) == ((2, 3), 6, "float32", 24)
    assert info.is_memory_planned() and info.name == "right" and info.dim_order == (0, 1)
    assert repr(meta) == "forward(left: float32[2, 3], right: float32[2, 3]) -> float32[2, 3]"
    assert meta.planned_sizes == [264]
    with pytest.raises(IndexError):
        meta.input_tensor_meta(2)
    assert "forward" in repr(loaded) and "0x" not in repr(loaded)
    assert "aten::add.out" in Runtime.get().operator_registry.operator_names
    assert not Runtime.get().backend_registry.is_available("NoSuchBackend")


# ---- inputs ----


def test_metadata_of_shared_records_is_bounded() -> None:
    """30,000 values share one record and a name, and there are 30,000 inputs: a comparison of all pairs would last minutes."""
    count = 30_000
    info = pte.ExtraTensorInfo(fully_qualified_name="again")
    tensor = pte.EValue(
        pte.Tensor(
            scalar_type=pte.ScalarType.FLOAT, sizes=[1], dim_order=[0], allocation_info=pte.AllocationDetails(1, 0, 0),
            extra_tensor_info=info,
        )
    )  # fmt: skip
    plan = pte.ExecutionPlan(
        name="forward",
        container_meta_type=pte.ContainerMetadata("", ""),
        values=[tensor] * count,
        inputs=[0] * count,
        chains=[pte.Chain(instructions=[])],
        non_const_buffer_sizes=[0, 16],
    )
    program = Runtime.get().load_program(bytes(pte.write(pte.Program(version=0, execution_plan=[plan]))))
    assert program.metadata("forward").num_attributes() == 0


@pytest.mark.parametrize("plan", [False, True])
def test_layouts_are_converted_and_never_misread(plan: bool) -> None:
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    channels_last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    wide = np.repeat(x, 2, axis=3)[..., ::2]
    backwards = np.ascontiguousarray(x[::-1, :, ::-1])[::-1, :, ::-1]
    packed = np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)  # misaligned
    frozen = x.copy()
    frozen.flags.writeable = False
    for order in ([0, 1, 2, 3], [0, 2, 3, 1]):
        method = load(sum_program([2, 3, 4, 5], plan=plan, order=order))
        for array in (
            x,
            channels_last,
            np.asfortranarray(x),
            wide,
            backwards,
            packed,
            frozen,
            x.astype("f4", order="K"),
        ):
            assert np.array_equal(array, x)
            (result,) = method.execute([array, x])
            assert np.array_equal(result, 2 * x)
            assert np.argsort(result.strides)[::-1].tolist() == order


def test_inputs_are_used_in_place() -> None:
    """An instruction that writes to an input writes to the caller's array, or to a copy of a read-only array."""
    contents = program([tensor([2]), pte.Int(1)], [("aten::add", "out", [0, 0, 1, 0, 0])], [0], [0])
    method, x = load(contents), ones(2)
    (result,) = method.execute([x])
    assert x.tolist() == result.tolist() == [2, 2]
    frozen = ones(2)
    frozen.flags.writeable = False
    assert method.execute([frozen])[0].tolist() == [2, 2] and frozen.tolist() == [1, 1]


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    ("right", "kind", "words"),
    [
        (np.ones((2, 3)), InputError, r"input 1 \(right\).*float64.*float32"),
        (ones(3, 2), InputError, r"input 1 \(right\).*\(3, 2\).*\(2, 3\)"),
        (ones(6), InputError, r"\(6,\).*\(2, 3\)"),
        (ones(0, 3), InputError, r"\(0, 3\).*\(2, 3\)"),
        (np.float32(1), InputError, r"\(\).*\(2, 3\)"),
        ("three", InputTypeError, "str"),
        (None, InputTypeError, "NoneType"),
        (3.0, InputTypeError, "float"),
        (b"123456789012345678901234", InputTypeError, "bytes"),
        ([[1.0] * 3] * 2, InputTypeError, "list"),
        (np.array([["a"] * 3] * 2), InputTypeError, "format"),
        (ones(2, 3).astype(">f4"), InputTypeError, "format"),
        (np.array([[object()] * 3] * 2), InputTypeError, "right"),
    ],
)
@pytest.mark.parametrize("plan", [False, True])
def test_refused_inputs(right: Any, kind: type, words: str, plan: bool) -> None:
    method = load(sum_program([2, 3], plan=plan))
    with pytest.raises(kind, match=words):
        method.execute([ones(2, 3), right])
    assert method.execute([ones(2, 3), ones(2, 3)])[0].sum() == 12  # a refused call has no effect


@pytest.mark.parametrize("count", [0, 1, 3])
def test_wrong_number_of_inputs(count: int) -> None:
    with pytest.raises(InputError, match=rf"expects 2 inputs \(left.*right.*got {count}"):
        load(sum_program([2])).execute([ones(2)] * count)


def test_each_dimension_has_its_own_bound() -> None:
    method = load(sum_program([4, 4], shape_dynamism=pte.TensorShapeDynamism.DYNAMIC_BOUND))
    for shape in [(4, 4), (1, 4), (3, 2), (4, 4), (0, 4)]:
        (result,) = method.execute([ones(*shape), ones(*shape)])
        assert result.shape == shape and (result == 2).all()
    with pytest.raises(InputError, match=r"\(2, 8\).*at most \(4, 4\)"):
        method.execute([ones(2, 8), ones(2, 8)])


def test_scalars_and_strings() -> None:
    values = [
        tensor([2]),
        pte.Int(3),
        pte.Double(0.5),
        pte.Bool(True),
        pte.String("mean"),
        pte.Null(),
        tensor([2]),
    ]
    values[1:1] = []
    contents = program(values, [("aten::add", "out", [0, 0, 1, 6, 6])], [0, 1, 2, 3, 4, 5], [6, 1, 4, 5])
    method = load(contents)
    result, number, text, nothing = method.execute([ones(2), 5, 0.5, True, "mean", None])
    assert result.tolist() == [6, 6] and (number, text, nothing) == (
        5,
        "mean",
        None,
    )  # an instruction reads the 5
    for index, value in ((2, 0.75), (3, False), (4, "sum")):
        inputs = [ones(2), 3, 0.5, True, "mean", None]
        inputs[index] = value
        with pytest.raises(InputError, match=rf"input {index} must be the value"):
            method.execute(inputs)
    for index, value in ((1, 3.0), (1, True), (2, "x"), (3, 1), (4, 0), (5, 0)):
        inputs = [ones(2), 3, 0.5, True, "mean", None]
        inputs[index] = value
        with pytest.raises(InputTypeError, match=rf"input {index} "):
            method.execute(inputs)


# ---- outputs ----


@pytest.mark.parametrize("plan", [False, True])
def test_caller_owns_outputs(plan: bool) -> None:
    method = load(sum_program([2], plan=plan))
    (first,) = method.execute([ones(2), ones(2)])
    (second,) = method.execute([5 * ones(2), ones(2)])
    assert first.tolist() == [2, 2] and second.tolist() == [6, 6]
    assert first.flags.writeable and first.ctypes.data % 64 == 0
    del method
    gc.collect()
    first += 1
    assert first.tolist() == [3, 3]


def test_input_returned_as_output_is_copied() -> None:
    method = load(program([tensor([2])], [], [0], [0, 0]))
    x = ones(2)
    a, b = method.execute([x])
    x[:] = 7
    a[:] = 8
    assert b.tolist() == [1, 1]


def test_output_types_match_input_types() -> None:
    torch = pytest.importorskip("torch")
    for name in ("FLOAT", "HALF", "BFLOAT16", "DOUBLE", "INT", "LONG", "BYTE", "CHAR", "SHORT"):
        dtype = getattr(
            torch,
            {
                "FLOAT": "float32",
                "HALF": "float16",
                "BFLOAT16": "bfloat16",
                "DOUBLE": "float64",
                "INT": "int32",
                "LONG": "int64",
                "BYTE": "uint8",
                "CHAR": "int8",
                "SHORT": "int16",
            }[name],
        )
        method = load(sum_program([2, 3], dtype=getattr(pte.ScalarType, name)))
        x = torch.arange(6).reshape(2, 3).to(dtype)
        (result,) = method.execute([x, x])
        assert type(result) is torch.Tensor and torch.equal(result, x + x)
        if name != "BFLOAT16":
            (result,) = method.execute([x.numpy(), x.numpy()])
            assert type(result) is np.ndarray and np.array_equal(result, (x + x).numpy())
            (result,) = method.execute([x.numpy(), x])
            assert type(result) is torch.Tensor
    method = load(sum_program([2, 3]))
    weight = torch.nn.Parameter(torch.ones(2, 3))
    (result,) = method.execute([weight, weight.T.contiguous().T])
    assert torch.equal(result, 2 * weight.detach())


# ---- state ----


def counter() -> bytes:
    """state += x; the initial state is 10, and the state is the output."""
    info = pte.ExtraTensorInfo(mutable_data_segments_idx=0, fully_qualified_name="state")
    values = [tensor([1]), tensor([1], at=0, data=1, extra_tensor_info=info), pte.Int(1), tensor([1])]
    calls = [("aten::add", "out", [1, 0, 2, 1, 1]), ("aten::add", "out", [1, 0, 2, 3, 3])]
    return program(values, calls, [0], [3], planned=64, mutable=(b"", struct.pack("<f", 10)))


def test_state_persists_per_method() -> None:
    loaded = Runtime.get().load_program(counter())
    first, second = loaded.load_method("forward"), loaded.load_method("forward")
    assert [first.execute([ones(1)])[0].tolist() for _ in range(3)] == [[12], [13], [14]]
    assert second.execute([ones(1)])[0].tolist() == [12]
    state = first.get_attribute("state")
    assert state.tolist() == [13]
    first.reset()
    assert state.tolist() == [13] and first.get_attribute("state").tolist() == [10]
    with pytest.raises(KeyError):
        first.get_attribute("other")
    assert loaded.metadata("forward").attribute_tensor_meta(0).name == "state"


@pytest.mark.parametrize("call", ["execute", "take_events", "reset", "get_attribute", "set_attribute"])
def test_observer_that_calls_its_method_is_refused(call: str) -> None:
    method = Runtime.get().load_program(counter()).load_method("forward", tracing=True)
    arguments = {"execute": ([ones(1)],), "get_attribute": ("state",), "set_attribute": ("state", ones(1))}
    again = functools.partial(getattr(method, call), *arguments.get(call, ()))
    with pytest.raises(ExecutionError, match="'forward' failed: its observer called it while it executes"):
        method.execute([ones(1)], lambda value: again())
    again()
    assert len(method.execute([ones(1)])) == 1


# ---- errors during execution ----


def test_execution_error_names_operator() -> None:
    values = [tensor([2]), tensor([3]), pte.Int(1), tensor([2])]
    method = load(program(values, [("aten::add", "out", [0, 1, 2, 3, 3])], [0, 1], [3]))
    with pytest.raises(ExecutionError, match="'forward' failed") as caught:
        method.execute([ones(2), ones(3)])
    assert "aten::add.out" in str(caught.value) and "0x" not in str(caught.value)


def test_messages_go_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    method = load(sum_program([2]))
    with caplog.at_level(logging.ERROR, "torchette"), pytest.raises(InputError):
        method.execute([ones(2), ones(3)])
    assert any("(3,)" in record.getMessage() for record in caplog.records)


# ---- lifetimes and threads ----


def test_results_outlive_program() -> None:
    contents = sum_program([2])
    for _ in range(1000):
        (result,) = (
            Runtime.get()
            .load_program(bytes(bytearray(contents)))
            .load_method("forward")
            .execute([ones(2)] * 2)
        )
        assert result.tolist() == [2, 2]


def test_program_bytes_are_released() -> None:
    contents = sum_program([2])
    count = sys.getrefcount(contents)
    method = load(contents)
    assert sys.getrefcount(contents) == count + 1  # used in place, and kept alive
    del method
    gc.collect()
    assert sys.getrefcount(contents) == count


def test_memory_does_not_grow() -> None:
    method = load(sum_program([1 << 16], plan=True))
    x = ones(1 << 16)
    for _ in range(50):
        method.execute([x, x])
    before = resident()
    for _ in range(500):
        method.execute([x, x])
        with pytest.raises(InputError):
            method.execute([x, x[:-1]])
    assert resident() - before < 8 << 20


def test_execution_releases_gil() -> None:
    size = 1024
    contents = program(
        [tensor([size, size]), tensor([size, size])], [("aten::mm", "out", [0, 0, 1, 1])] * 20, [0], [1]
    )
    method = load(contents)
    x = ones(size, size)
    running, done, count = threading.Event(), threading.Event(), 0

    def work() -> None:
        running.set()
        method.execute([x])
        done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # so that a thread keeps the GIL until it releases it
    try:
        thread = threading.Thread(target=work)
        thread.start()
        running.wait()
        while not done.is_set():
            count += 1
            time.sleep(0)  # releases the GIL to the worker, which keeps it unless the method releases it
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert count > 100


def test_threads_share_a_method() -> None:
    method = load(sum_program([512], plan=True))
    wrong: list[float] = []

    def work(number: float) -> None:
        x = number * ones(512)
        for _ in range(200):
            (result,) = method.execute([x, x])
            if not (result == 2 * number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- without torch, without output ----


def test_runtime_needs_only_numpy_and_prints_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sum.pte"
    path.write_bytes(sum_program([2]))
    script = f"""
import sys
sys.modules["torch"] = None  # importing it would fail
import numpy, torchette.runtime
from torchette.runtime import Runtime
method = Runtime.get().load_program({str(path)!r}).load_method("forward")
x = numpy.ones(2, "float32")
assert method.execute([x, x])[0].tolist() == [2, 2]
for bad in ([x], [x, 3], [x, x[:1]]):
    try:
        method.execute(bad)
    except ValueError as error:
        assert str(error)
try:
    Runtime.get().load_program(b"x" * 100)
except ValueError as error:
    assert "ET12" in str(error)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
