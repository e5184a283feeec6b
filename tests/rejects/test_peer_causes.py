# SPDX-License-Identifier: BSD-3-Clause
# Causes of crashes of ExecuTorch 1.5.0, also with verification: one test per cause. Each test edits one field of a file of Torchette
# and of ExecuTorch. The message names the error, and the process continues.

from __future__ import annotations

import io
import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import torchette
from tests.building import built, run
from tests.runtime.fields import FieldEditor
from torchette.errors import ExecutionError, FormatError, RuntimeLoadError, TorchetteError
from torchette.format import pte
from torchette.runtime import Runtime, Verification

FLAG, X = np.array(True), np.arange(6, dtype=np.float32).reshape(2, 3)


class Branch(nn.Module):
    def forward(self, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([x, x]) + 1
        return torch.cond(flag, lambda x: x + 1, lambda x: x * 2, (x,))


@pytest.fixture(scope="module", params=["torchette", "executorch"])
def file(request: pytest.FixtureRequest) -> bytes:
    exir = pytest.importorskip(f"{request.param}.exir")
    args = (torch.tensor(True), torch.from_numpy(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(Branch().eval(), args)
        return bytes(exir.to_edge(exported).to_executorch().buffer)


PLAN = ("execution_plan", 0)


def plan_of(file: bytes) -> Any:
    return pte.read(file).program.execution_plan[0]


def instruction(file: bytes, kind: str) -> tuple[int, Any]:
    """Returns index and record of the first instruction of a kind that has all fields in the file; a zero is not stored."""
    calls = [item.instr_args for item in plan_of(file).chains[0].instructions]
    return next(
        (i, call)
        for i, call in enumerate(calls)
        if type(call).__name__ == kind and getattr(call, "op_index", 1) != 0
    )


def arguments(number: int) -> tuple[str | int, ...]:
    return (*PLAN, "chains", 0, "instructions", number, "instr_args")


def value(file: bytes, kind: str) -> int:
    return next(i for i, item in enumerate(plan_of(file).values) if type(item.val).__name__ == kind)


def refused(file: bytes, broken: bytes, error: type[TorchetteError], words: str) -> str:
    """Returns the message. Checks that the intact file runs afterwards."""
    assert broken != file
    with pytest.raises(error, match=words) as caught:
        Runtime.get().load_program(broken).load_method("forward")
    assert_runs(file)
    return str(caught.value)


def assert_runs(file: bytes) -> None:
    (y,) = Runtime.get().load_program(file).load_method("forward").execute([FLAG, X])
    np.testing.assert_array_equal(y, np.concatenate([X, X]) + 2)


def test_argument_of_wrong_type_is_refused(file: bytes) -> None:
    number, _ = instruction(file, "KernelCall")
    broken = FieldEditor(file).set(value(file, "Int"), *arguments(number), "args", 0)
    refused(file, broken, FormatError, r"value \d+ as an argument of \w+::\w+\.\w+ has kind \d+, expected \(")


@pytest.mark.parametrize("index", [99, 2**31 - 1, -1])
def test_operator_index_out_of_range_is_refused(file: bytes, index: int) -> None:
    number, _ = instruction(file, "KernelCall")
    broken = FieldEditor(file).set(index, *arguments(number), "op_index")
    refused(file, broken, FormatError, rf"operator {index} does not exist, operators: \d+")


@pytest.mark.parametrize("index", [1000, 2**31 - 1, -1])
def test_value_index_out_of_range_is_refused(file: bytes, index: int) -> None:
    number, _ = instruction(file, "KernelCall")
    broken = FieldEditor(file).set(index, *arguments(number), "args", 0)
    refused(file, broken, FormatError, rf"value {index} does not exist, values: \d+")
    for port in ("inputs", "outputs"):
        broken = FieldEditor(file).set(index, *PLAN, port, 0)
        with pytest.raises(TorchetteError, match=rf"value {index} "):
            Runtime.get().load_program(broken).load_method("forward")
    list_index = value(file, "TensorList")
    broken = FieldEditor(file).set(index, *PLAN, "values", list_index, "val", "items", 0)
    refused(file, broken, FormatError, rf"list {list_index} refers to a missing value")


@pytest.mark.parametrize("field", ["name", "overload"])
def test_operator_without_name_is_refused(file: bytes, field: str) -> None:
    read = pte.read(file)
    setattr(read.program.execution_plan[0].operators[0], field, None)
    offsets = read.program.constant_segment.offsets
    constants = [b"", *(bytes(read.constant(i)) for i in range(1, len(offsets)))]
    refused(file, bytes(pte.write(read.program, constants)), RuntimeLoadError, "there is no kernel for ")


def test_method_without_name_is_refused(file: bytes) -> None:
    broken = FieldEditor(file).remove(*PLAN, "name")
    refused(file, broken, TorchetteError, "has no method 'forward'|is outside")


def test_invalid_utf8_in_message_is_replaced(file: bytes) -> None:
    broken = FieldEditor(file).overwrite_string(b"\xff\xfe\xc0\x80", *PLAN, "operators", 0, "name")
    text = refused(file, broken, RuntimeLoadError, "there is no kernel for ")
    assert "\ufffd" in text and text.encode()
    broken = FieldEditor(file).overwrite_string(b"\xff\xfe", *PLAN, "name")
    assert "\ufffd" in refused(file, broken, RuntimeLoadError, "has no method 'forward'")


@pytest.mark.parametrize("size", [2**30, 2**40, 2**63 - 1, -1])
def test_giant_planned_buffer_is_refused(file: bytes, size: int, tmp_path: Path) -> None:
    """It is compared with the sizes of its tensors. No memory is allocated before that."""
    broken = FieldEditor(file).set(size, *PLAN, "non_const_buffer_sizes", 1)
    words = (
        "has a negative size"
        if size < 0
        else rf"has {size} bytes, its tensors occupy \d+: the file is damaged"
    )
    refused(file, broken, FormatError, f"planned buffer 0 {words}")
    path = tmp_path / "broken.pte"
    path.write_bytes(broken)
    text = run(built("executor_runner"), "--model_path", path, status=1).stderr
    assert re.search(words, text) and "InvalidProgram" in text


def test_planned_buffer_exceeds_tensors_by_at_most_one_page(file: bytes) -> None:
    size = plan_of(file).non_const_buffer_sizes[1]
    assert_runs(FieldEditor(file).set(size + 4096, *PLAN, "non_const_buffer_sizes", 1))
    broken = FieldEditor(file).set(size + 8192, *PLAN, "non_const_buffer_sizes", 1)
    refused(file, broken, FormatError, "planned buffer 0 has")


def test_giant_tensor_is_refused(file: bytes) -> None:
    first = value(file, "Tensor")
    plan = plan_of(file)
    tensor = next(i for i, v in enumerate(plan.values) if isinstance(v.val, pte.Tensor) and v.val.sizes)
    broken = FieldEditor(file).set(2**31 - 1, *PLAN, "values", tensor, "val", "sizes", 0)
    assert first <= tensor
    with pytest.raises((TorchetteError, MemoryError)):
        Runtime.get().load_program(broken).load_method("forward")
    assert_runs(file)


@pytest.mark.parametrize("target", [1000, 2**31 - 1, -1])
def test_jump_out_of_range_is_refused(file: bytes, target: int) -> None:
    number, _ = instruction(file, "JumpFalseCall")
    broken = FieldEditor(file).set(target, *arguments(number), "destination_instruction")
    refused(file, broken, FormatError, rf"a jump leads to instruction {target} of \d+")


def test_endless_loop_is_cancelled(file: bytes) -> None:
    number, _ = instruction(file, "JumpFalseCall")
    broken = FieldEditor(file).set(number, *arguments(number), "destination_instruction")
    method = Runtime.get().load_program(broken).load_method("forward")
    timer = threading.Timer(0.2, method.cancel)
    timer.start()
    with pytest.raises(ExecutionError, match=r"cancelled|ended"):
        method.execute([~FLAG, X])
    timer.join()
    assert_runs(file)


# ---- all ways to open a file verify it ----

EDITS: dict[str, Callable[[bytes], bytes]] = {
    "operator": lambda f: FieldEditor(f).set(99, *arguments(instruction(f, "KernelCall")[0]), "op_index"),
    "value": lambda f: FieldEditor(f).set(1000, *arguments(instruction(f, "KernelCall")[0]), "args", 0),
    "jump": lambda f: FieldEditor(f).set(
        1000, *arguments(instruction(f, "JumpFalseCall")[0]), "destination_instruction"
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_all_loading_paths_verify(file: bytes, edit: str, tmp_path: Path) -> None:
    """Each way to open a file, at each level of verification, refuses it with the same message."""
    broken = EDITS[edit](file)
    path = tmp_path / "broken.pte"
    path.write_bytes(broken)
    messages = set()
    for verification in (Verification.Minimal, Verification.InternalConsistency):
        for source in (broken, bytearray(broken), memoryview(broken), path, str(path), io.BytesIO(broken)):
            program = Runtime.get().load_program(source, verification=verification)
            with pytest.raises(FormatError) as caught:
                program.load_method("forward")
            messages.add(str(caught.value).partition(": ")[2])
    with pytest.raises(FormatError) as caught:
        torchette.load(path)(torch.from_numpy(np.asarray(FLAG)), torch.from_numpy(X))
    assert len(messages) == 1
    text = run(built("executor_runner"), "--model_path", path, status=1).stderr
    assert "InvalidProgram" in text
