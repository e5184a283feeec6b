# SPDX-License-Identifier: BSD-3-Clause
# Generated C++ returns the interpreter's results bit for bit, for models of every kind, and uses only static memory.

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchette
from tests.building import CXX, run
from tests.codegen.built import Unit, assert_same, needs_compiler
from tests.extension.test_parallel import Towers
from tests.models import artifacts, branching, zoo
from tests.sweep import sweep
from torchette.build import kernels
from torchette.cli import main
from torchette.codegen import codegen
from torchette.codegen.unit import unit
from torchette.errors import UnsupportedError
from torchette.exir.config import DynamicMemoryPlanningMode, ExecutorchBackendConfig
from torchette.format import pte
from torchette.runtime import operator_names

pytestmark = [needs_compiler, pytest.mark.usefixtures("portable_plan")]


def saved(model: Any, inputs: Any, folder: Path, **more: Any) -> Path:
    path = folder / "net.pte"
    torchette.compile(model, inputs, **more).save(path)
    return path


def arrays(inputs: Any) -> list[Any]:
    return [item.numpy() if isinstance(item, torch.Tensor) else item for item in inputs]


@pytest.mark.parametrize("name", sweep(["digits", "keyword_spotting"], "digits"))
def test_reference_models(name: str, tmp_path: Path) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(artifacts.our_file(name))
    unit = Unit(path)
    inputs = arrays(artifacts.args(name))
    assert_same(unit, [("forward", inputs), ("forward", [-x for x in inputs])])


@pytest.mark.slow
def test_mobilenet_v2(tmp_path: Path) -> None:
    module, _ = zoo.build("mobilenet_v2")
    x = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    assert_same(Unit(saved(module, (x,), tmp_path)), [("forward", arrays((x,)))])


class Integers(torch.nn.Module):
    """Integers, booleans, and conversions between them."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        large = (x > 3) & (y != 0)
        return x * y + 2, large, torch.where(large, x, y), (x // 3).to(torch.int32), x.sum(0)


def test_integers_and_bools(tmp_path: Path) -> None:
    x, y = torch.arange(12).reshape(3, 4), torch.arange(-4, 8).reshape(3, 4)
    unit = Unit(saved(Integers(), (x, y), tmp_path))
    assert_same(unit, [("forward", arrays((x, y))), ("forward", arrays((y, x)))])


@pytest.mark.parametrize(
    "name",
    sweep(("cond", "while", "nested_cond", "nested_map", "scan"), "cond", "while"),
)
def test_control_flow(name: str, tmp_path: Path) -> None:
    module, every = branching.build(name)
    unit = Unit(saved(module, every[0], tmp_path))
    text = (unit.folder / "net.cpp").read_text()
    assert ("if (" in text or "for (;;)" in text) and "goto" not in text
    assert_same(unit, [("forward", arrays(inputs)) for inputs in every])


class Chain(torch.nn.Module):
    """Operators that become loops without kernels: operands of one shape, and scalars."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.nn.functional.relu6(x * 2.5 + y).sigmoid() - y / 3
        return z, z > x, (z.double() * 2).tanh(), torch.maximum(x, y)


def test_elementwise_operators_are_loops(tmp_path: Path) -> None:
    x = torch.linspace(-3, 4, 24).reshape(2, 3, 4)
    y = torch.where(x > 0, torch.nan, -0.0)
    unit = Unit(saved(Chain(), (x, y), tmp_path))
    text = (unit.folder / "net.cpp").read_text()
    assert len(re.findall(r"^  loop_", text, re.M)) >= 8
    assert_same(unit, [("forward", arrays((x, y))), ("forward", arrays((-x, x)))])


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.tensor([2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total * 2


def test_state_stays_until_reset(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 10.0])
    unit = Unit(saved(Counter(), (x,), tmp_path))
    once = ("forward", arrays((x,)))
    assert_same(unit, [once, once, ("forward", None), once])


class Pooled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return torch.cat([y, y.mean(0, keepdim=True).expand(x.shape[0], 4) + x.shape[0]], 1)


def test_sizes_within_bounds_are_arguments(tmp_path: Path) -> None:
    size = torch.export.Dim("size", min=2, max=9)
    inputs, mode = (torch.randn(3, 4),), DynamicMemoryPlanningMode.UPPER_BOUND
    more = {
        "dynamic_shapes": ({0: size},),
        "config": ExecutorchBackendConfig(dynamic_memory_planning_mode=mode),
    }
    unit = Unit(saved(Pooled().eval(), inputs, tmp_path, **more))
    random = np.random.default_rng(0)
    assert_same(
        unit, [("forward", [random.standard_normal((n, 4)).astype(np.float32)]) for n in (2, 9, 3, 3, 8)]
    )
    for n in (1, 10):
        assert unit.error("forward", [np.zeros((n, 4), np.float32)]) == 0x12


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2).sum(1) + y


def test_sizes_that_depend_on_each_other_are_compared(tmp_path: Path) -> None:
    n = torch.export.Dim("n", min=2, max=9)
    inputs, mode = (torch.randn(6), torch.randn(3)), DynamicMemoryPlanningMode.UPPER_BOUND
    more = {
        "dynamic_shapes": ({0: 2 * n}, {0: n}),
        "config": ExecutorchBackendConfig(dynamic_memory_planning_mode=mode),
    }
    unit = Unit(saved(Doubled().eval(), inputs, tmp_path, **more))
    assert_same(unit, [("forward", [np.ones(2 * n, np.float32), np.ones(n, np.float32)]) for n in (2, 9, 3)])
    for x in (5, 7, 8):
        assert unit.error("forward", [np.ones(x, np.float32), np.ones(3, np.float32)]) == 0x12


def test_methods_share_weights(tmp_path: Path) -> None:
    linear, x = torch.nn.Linear(8, 8).eval(), torch.randn(1, 8)
    methods = {"run": (linear, (x,)), "twice": (torch.nn.Sequential(linear, linear).eval(), (x,))}
    path = tmp_path / "net.pte"
    torchette.compile(methods).save(path)
    unit = Unit(path)
    assert_same(unit, [("run", arrays((x,))), ("twice", arrays((x,)))])
    assert f"WEIGHTS_BYTES {8 * 8 * 4 + 8 * 4}\n" in (unit.folder / "net.h").read_text()


class Times(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> tuple[torch.Tensor, int]:
        return x * n, n * 2


def test_scalars_are_arguments(tmp_path: Path) -> None:
    path = saved(Times(), (torch.ones(3), 5), tmp_path, dynamic_shapes=(None, torch.export.Dim.DYNAMIC))
    unit = Unit(path)
    x = np.array([1.0, 2.0, 3.0], np.float32)
    assert_same(unit, [("forward", [x, 5]), ("forward", [x, -7])])


def test_no_heap_and_nothing_before_main(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    codegen(saved(torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),), tmp_path), folder)
    for source in folder.glob("*.cpp"):
        flags = ("-std=c++17", "-Os", "-fno-exceptions", "-fno-rtti")
        run(CXX, *flags, "-c", source, "-o", tmp_path / "object.o")
        symbols = run("nm", "-C", tmp_path / "object.o").stdout
        assert not re.search(r" U (malloc|free|operator (new|delete)|__cxa|typeinfo)", symbols), source
        assert ".init_array" not in run("objdump", "-h", tmp_path / "object.o").stdout, source
        # Constants are in read-only sections, and no symbol has a name of the runtime.
        assert not re.search(r" [TDBR] torchette::", symbols), source
    header = folder / "net.h"
    run("cc", "-std=c99", "-pedantic", "-Wall", "-Werror", "-x", "c", "-fsyntax-only", header)


def test_every_kernel_has_its_function() -> None:
    library = set(kernels.library())
    ours = {name.partition("::")[0] for name in library}  # other tests of the process register other kernels
    assert {name for name in operator_names() if name.partition("::")[0] in ours} == library


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


class Found(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.nonzero() + 1


def test_portable_plan_is_used_without_a_backend(tmp_path: Path) -> None:
    more = {"backend": "null", "config": ExecutorchBackendConfig(portable_fallback=True)}
    unit = Unit(saved(Twice(), (torch.ones(2),), tmp_path, **more))
    (result,) = unit.call("forward", np.array([1.5, -2.0], np.float32))
    assert result.tolist() == [3.0, -4.0]


def test_several_chains_run_in_sequence(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 24, 24)
    path = saved(Towers().eval(), (x,), tmp_path, config=ExecutorchBackendConfig(parallel=2))
    assert len(pte.load_file(path).program.execution_plan[0].chains) > 1
    assert_same(Unit(path), [("forward", arrays((x,)))])


@pytest.mark.parametrize("kind", ["damaged", "missing", "backend", "unbounded"])
def test_rejected_programs_write_no_files(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.pte"
    status, message = 2, ""
    if kind == "damaged":
        data = bytearray(artifacts.our_file("digits"))
        data[40:400] = bytes(360)
        path.write_bytes(data)
        message = "net.pte"
    elif kind == "missing":
        message = "there is no file"
    elif kind == "backend":
        saved(Twice(), (torch.ones(2),), tmp_path, backend="null")
        status, message = 1, "for the backend NullBackend"
    else:
        saved(Found(), (torch.ones(3),), tmp_path)
        status, message = 1, "a size that is known only at run time"
    assert main(["codegen", str(path), "-o", str(tmp_path / "made")]) == status
    assert message.lower() in capsys.readouterr().err.lower()
    assert not (tmp_path / "made").exists()


def test_external_weights_are_rejected(tmp_path: Path) -> None:
    path = saved(torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),), tmp_path)
    file = pte.load_file(path)
    (plan,) = file.program.execution_plan
    weight = next(value.val for value in plan.values if getattr(value.val, "data_buffer_idx", 0))
    weight.data_buffer_idx = 0
    weight.extra_tensor_info = pte.ExtraTensorInfo(
        fully_qualified_name="weight", location=pte.TensorDataLocation.EXTERNAL
    )
    with pytest.raises(UnsupportedError, match="the data of weight is in another file"):
        unit(file, "net", None, "")


def test_negative_scratch_memory_is_rejected(tmp_path: Path) -> None:
    path = saved(torch.nn.ReLU(), (torch.ones(2),), tmp_path)
    assert main(["codegen", str(path), "-o", str(tmp_path / "made"), "--temp", "-1"]) == 2


def test_files_are_replaced_and_others_stay(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    mine = {folder / "mine.cpp", folder / "net_mine.cpp"}
    for own_file in mine:
        own_file.write_text("// mine\n")
    larger = saved(torch.nn.Conv2d(1, 2, 3), (torch.ones(1, 1, 4, 4),), tmp_path)
    assert folder / "net_conv.cpp" in codegen(larger, folder)
    path = saved(torch.nn.ReLU(), (torch.ones(2),), tmp_path)
    first = codegen(path, folder)
    assert codegen(path, folder) == first
    assert all(own_file.read_text() == "// mine\n" for own_file in mine)
    assert {p for p in folder.rglob("*") if p.is_file()} == {*first, *mine}
