# SPDX-License-Identifier: BSD-3-Clause
# C++, Python and `torchette inspect --json` report the same metadata of a file.

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import torchette
from tests.models import artifacts
from tests.models.artifacts import each_model
from torchette import cli
from torchette.exir import ExecutorchBackendConfig
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.runtime import MethodMeta, Runtime

BUILD = Path(__file__).parents[2] / "build" / "dev"
# The runtime's dtype codes, and its tags by the kinds of `inspect`.
DTYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "bool": 11,
}  # fmt: skip
TAGS = {"null": 0, "tensor": 1, "string": 2, "double": 3, "int": 4, "bool": 5}

pytestmark = pytest.mark.skipif(
    shutil.which("cmake") is None or not (BUILD / "CMakeCache.txt").exists(),
    reason="not built by ./dev setup",
)


@pytest.fixture(scope="module")
def print_meta() -> Path:
    """Builds the C++ program, at most once per test process and in one process at a time."""
    import fcntl

    with open(BUILD / "print_meta.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["cmake", "--build", BUILD, "--target", "torchette_print_meta"]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    return BUILD / "torchette_print_meta"


def port(
    kind, tag, dtype=None, sizes=(), dim_order=(), nbytes=0, planned=False, dynamic=False, name=""
) -> str:
    if dtype is None:
        return f"{kind} tag={tag}"
    numbers = (f"{'' if not part else ','.join(map(str, part)) + ','}" for part in (sizes, dim_order))
    return (
        f"{kind} tag={tag} dtype={dtype} sizes={next(numbers)} dim_order={next(numbers)} nbytes={nbytes} "
        f"planned={int(planned)} dynamic={int(dynamic)} name={name}"
    )


def of_python(meta: MethodMeta) -> list[str]:
    lines = [f"method {meta.name()}"]
    for kind_of_port, count, text, tensor_meta in (
        ("input", meta.num_inputs(), meta.input_text, meta.input_tensor_meta),
        ("output", meta.num_outputs(), meta.output_text, meta.output_tensor_meta),
    ):
        for i in range(count):
            try:
                t = tensor_meta(i)
            except TypeError:
                kind = {"None": "null", "float": "double", "str": "string"}.get(text(i), text(i))
                lines.append(port(kind_of_port, TAGS[kind]))
                continue
            details = (
                t.dtype(),
                t.sizes(),
                t.dim_order,
                t.nbytes(),
                t.is_memory_planned(),
                t.is_dynamic,
                t.name,
            )
            lines.append(port(kind_of_port, TAGS["tensor"], *details))
    lines += [f"planned {size}" for size in meta.planned_sizes]
    lines += [f"backend {name}" for name in meta.backend_names]
    return [*lines, f"instructions {meta.num_instructions}"]


def of_inspect(method: dict) -> list[str]:
    lines = [f"method {method['name']}"]
    for kind_of_port in ("input", "output"):
        for each in method[f"{kind_of_port}s"]:
            value = method["values"][each["index"]]
            t = value["tensor"]
            if t is None:
                lines.append(port(kind_of_port, TAGS[value["kind"]]))
                continue
            planned, dynamic = t["memory_id"] is not None, t["dynamism"] != "static"
            details = (t["sizes"], t["dim_order"], t["nbytes"], planned, dynamic, t["name"] or "")
            lines.append(port(kind_of_port, TAGS["tensor"], DTYPES[t["dtype"]], *details))
    lines += [f"planned {buffer['nbytes']}" for buffer in method["planned_buffers"]]
    lines += [f"backend {delegate['backend']}" for delegate in method["delegates"]]
    return [*lines, f"instructions {len(method['instructions'])}"]


def assert_all_tell_the_same(file: Path, print_meta: Path, capsys: pytest.CaptureFixture) -> list[str]:
    lines_of_cpp = subprocess.run(
        [print_meta, file], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    program = Runtime.get().load_program(file)
    names = [line.removeprefix("method ") for line in lines_of_cpp if line.startswith("method ")]
    assert set(names) == program.method_names
    assert [line for name in names for line in of_python(program.metadata(name))] == lines_of_cpp
    assert cli.main(["inspect", str(file), "--json"]) == 0
    inspected = json.loads(capsys.readouterr().out)
    assert [line for method in inspected["methods"] for line in of_inspect(method)] == lines_of_cpp
    return lines_of_cpp


@each_model
def test_of_the_reference_models(name, print_meta, tmp_path, capsys) -> None:
    artifacts.compiled(name).save(tmp_path / "model.pte")
    lines = assert_all_tell_the_same(tmp_path / "model.pte", print_meta, capsys)
    assert sum(line.startswith("input") for line in lines) == len(artifacts.args(name))


class Everything(nn.Module):
    """A dynamic input with another dim order, a scalar, structures, state, and a scalar output."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, images, scale: float, *, mask):
        self.calls.add_(1)
        return {
            "scaled": images["left"] * scale,
            "parts": (mask.to(torch.int32), 7, None),
            "calls": self.calls * 1,
        }


def test_of_dynamic_shapes_numbers_structures_and_several_methods(print_meta, tmp_path, capsys) -> None:
    n = torch.export.Dim("n", min=1, max=5)
    everything = torch.export.export(
        Everything().eval(),
        ({"left": torch.ones(2, 3)}, 2.0),
        {"mask": torch.ones(3) > 0},
        dynamic_shapes={"images": {"left": {0: n}}, "scale": None, "mask": None},
    )
    model = torchette.compile(
        {"everything": everything, "relu": (nn.ReLU().eval(), (torch.ones(1, 2, 3, 4),))},
        constant_methods={"version": 3},
        config=ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass()),
    )
    model.save(tmp_path / "model.pte")
    lines = assert_all_tell_the_same(tmp_path / "model.pte", print_meta, capsys)
    text = "\n".join(lines)
    assert "sizes=5,3, dim_order=0,1, nbytes=60 planned=1 dynamic=1" in text
    assert "dtype=11" in text and f"output tag={TAGS['int']}" in text and "method version" in text
