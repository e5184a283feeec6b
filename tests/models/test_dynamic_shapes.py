# SPDX-License-Identifier: BSD-3-Clause
# Models with dynamic shapes: ranges, data-dependent sizes, arithmetic on sizes, and memory that depends on them.

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import torchette
from tests.models import zoo
from tests.models.branching import Function
from tests.models.test_control_flow import assert_equal
from tests.sweep import sweep
from torchette.errors import InputError, TorchetteError
from torchette.exir import ExecutorchBackendConfig, to_edge
from torchette.exir.config import DynamicMemoryPlanningMode
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.runtime import Runtime


class OneInput(nn.Module):
    """A module with `function(x)` as its forward."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


MODES = pytest.mark.parametrize("mode", list(DynamicMemoryPlanningMode), ids=lambda mode: mode.name.lower())


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores = torch.softmax(self.linear(x) @ y.transpose(1, 2), -1)
        return torch.relu(scores @ y).reshape(x.shape[0] * x.shape[1], 6) + x.shape[1]


INSIDE = list(itertools.product((1, 2, 5, 7), (3, 4, 8, 16, 32)))
OUTSIDE = [
    (0, 3, "x", 0, "1 to 7"), (8, 3, "x", 0, "1 to 7"), (100, 32, "x", 0, "1 to 7"), (1, 0, "x", 1, "3 to 32"),
    (1, 2, "x", 1, "3 to 32"), (7, 33, "x", 1, "3 to 32"), (2, 1000, "x", 1, "3 to 32"),
]  # fmt: skip


@MODES
def test_sizes_inside_of_ranges_equal_eager_and_others_are_rejected(mode: Any) -> None:
    module = Mixer().eval()
    batch, length, second_length = (
        Dim("batch", min=1, max=7),
        Dim("length", min=3, max=32),
        Dim("other", min=2, max=9),
    )
    model = torchette.compile(
        module,
        (torch.randn(2, 5, 6), torch.randn(2, 4, 6)),
        dynamic_shapes=({0: batch, 1: length}, {0: batch, 1: second_length}),
        config=ExecutorchBackendConfig(dynamic_memory_planning_mode=mode),
    )
    assert len(INSIDE) == 20
    for n, m in INSIDE:
        args = torch.randn(n, m, 6), torch.randn(n, 2 + n, 6)
        assert_equal(model(*args), module(*args))
    for n, m, name, dim, expected in OUTSIDE:
        value = (n, m)[dim]
        with pytest.raises(
            InputError, match=rf"\({name}\).*size in dimension {dim} is {value}, expected {expected}"
        ):
            model(torch.randn(n, m, 6), torch.randn(max(1, min(n, 7)), 4, 6))
    for size, dim, expected in ((1, 1, "2 to 9"), (10, 1, "2 to 9"), (7, 2, "6")):
        shape = [2, 4, 6]
        shape[dim] = size
        with pytest.raises(
            InputError, match=rf"\(y\).*size in dimension {dim} is {size}, expected {expected}"
        ):
            model(torch.randn(2, 5, 6), torch.randn(shape))


class Paired(nn.Module):
    """Combines pairs of rows of x with the rows of y and of z, which has one more row."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return x.reshape(-1, 6).sum(1) + y + z[1:] * x.shape[0]


@MODES
def test_sizes_that_depend_on_each_other(mode: Any) -> None:
    n, module = Dim("n", min=2, max=9), Paired().eval()
    model = torchette.compile(
        module,
        (torch.randn(8, 3), torch.randn(4), torch.randn(5)),
        dynamic_shapes=({0: 2 * n}, {0: n}, {0: n + 1}),
        config=ExecutorchBackendConfig(dynamic_memory_planning_mode=mode),
    )

    def call(x: int, y: int, z: int) -> Any:
        args = torch.randn(x, 3), torch.randn(y), torch.randn(z)
        return model(*args), args

    for size in (4, 2, 9, 3):
        result, args = call(2 * size, size, size + 1)
        assert_equal(result, module(*args))
    for sizes, text in [
        ((7, 3, 4), r"input 0 \(x\): x.shape\[0\] must be 2\*y.shape\[0\]: 7 is not 6"),
        ((8, 3, 4), r"input 0 \(x\): x.shape\[0\] must be 2\*y.shape\[0\]: 8 is not 6"),
        ((6, 3, 3), r"input 2 \(z\): z.shape\[0\] must be y.shape\[0\] \+ 1: 3 is not 4"),
        ((20, 9, 10), r"\(x\).*size in dimension 0 is 20, expected 4 to 18"),
        ((6, 3, 11), r"\(z\).*size in dimension 0 is 11, expected 3 to 10"),
    ]:
        with pytest.raises(InputError, match=text):
            call(*sizes)
    result, args = call(6, 3, 4)  # a rejected call leaves the method unchanged
    assert_equal(result, module(*args))


@MODES
def test_a_dimension_of_two_inputs_is_one(mode: Any) -> None:
    n, module = Dim("n", min=1, max=9), OneInput(lambda x: x[0].sum() + x[1]).eval()
    model = torchette.compile(
        module,
        ((torch.randn(3, 2), torch.randn(3)),),
        dynamic_shapes=(({0: n}, {0: n}),),
        config=ExecutorchBackendConfig(dynamic_memory_planning_mode=mode),
    )
    args = torch.randn(5, 2), torch.randn(5)
    assert_equal(model(args), module(args))
    with pytest.raises(InputError, match=r"x_1.shape\[0\] must be x_0.shape\[0\]: 1 is not 5"):
        model((torch.randn(5, 2), torch.randn(1)))  # eager would broadcast the single row


@MODES
def test_memory_depends_on_the_size(mode: Any) -> None:
    """For a range of 1 to 4096 rows, a call with 16 rows needs at most twice the memory of a model for 16 rows."""
    torch.manual_seed(0)
    layers = [nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 8)]
    module, x = nn.Sequential(*layers).eval(), torch.randn(16, 32)
    static = torchette.compile(module, (x,)).planned_bytes
    model = torchette.compile(
        module,
        (x,),
        dynamic_shapes=({0: Dim("n", min=1, max=4096)},),
        config=ExecutorchBackendConfig(dynamic_memory_planning_mode=mode),
    )
    assert_equal(model(x), module(x))
    num_bytes = model.planned_bytes + model.methods["forward"].load().dynamic_memory_peak
    if mode is DynamicMemoryPlanningMode.SYMBOLIC:
        assert num_bytes <= 2 * static
    else:
        assert num_bytes >= 4096 / 16 * static
    large = torch.randn(4096, 32)
    assert_equal(model(large), module(large))


@pytest.mark.parametrize("rows, is_planned", [(1 << 10, True), (1 << 19, False)])
def test_maximum_sizes_above_the_limit_are_not_planned(rows: int, is_planned: bool) -> None:
    """The planner is the same object for both methods: the method with fixed sizes stays planned."""
    module, x = OneInput(lambda x: (torch.sin(x) @ torch.ones(512, 512)).cos()).eval(), torch.randn(4, 512)
    programs = {
        "big": torch.export.export(module, (x,), dynamic_shapes=({0: Dim("n", max=rows)},)),
        "small": torch.export.export(module, (x,), dynamic_shapes=({0: Dim("n", max=8)},)),
    }
    program = to_edge(programs).to_executorch(
        ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass())
    )
    assert (program.planned_bytes("big")[0] > 512 * rows) == is_planned
    assert program.planned_bytes("small")[0] > 512 * 8
    method = Runtime.get().load_program(program.buffer).load_method("big")
    assert method is not None
    assert_equal(method.execute((x,))[0], module(x))


def test_bounds_above_the_largest_tensor_are_ignored() -> None:
    """The last size of the result is at most 2**40, and the first size has no maximum."""
    module = OneInput(lambda x: torch.sin(x).flatten(1) * 2)
    shapes = ({0: Dim("a"), 1: Dim("n", max=1 << 20), 2: Dim("m", max=1 << 20)},)
    model = torchette.compile(module, (torch.ones(3, 4, 5),), dynamic_shapes=shapes)
    x = torch.randn(2, 3, 6)
    assert_equal(model(x), module(x))


def test_view_with_a_larger_maximum_than_its_base_is_loaded() -> None:
    """The maximum sizes of the view are those of different inputs: 256 groups, and 7 rows in a group."""
    module = OneInput(lambda x: torch.sin(x).reshape(x.shape[0] // 4, -1, 8) * 2)
    shapes = ({0: Dim.AUTO(min=4, max=1024)},)
    program = torch.export.export(module, (torch.ones(12, 8),), dynamic_shapes=shapes)
    method = Runtime.get().load_program(to_edge(program).to_executorch().buffer).load_method("forward")
    assert method is not None
    for rows in (8, 12, 1024):
        x = torch.randn(rows, 8)
        assert_equal(method.execute((x,))[0], module(x))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc says what is resident")
@MODES
def test_resident_memory_depends_on_the_size(mode: Any, tmp_path: Path) -> None:
    """For a range of 1 to 4096 rows, a call with 16 rows grows the process at most twice as much as a model for 16 rows.
    If the maximum sizes are planned, the unused memory is not touched; state of fixed size is still zero-initialized."""

    class Counting(OneInput):
        def __init__(self, function: Callable[[Tensor], Any]) -> None:
            super().__init__(function)
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Tensor) -> Any:
            self.count.add_(1)
            return super().forward(x) + self.count

    module = Counting(lambda x: (torch.sin(x) * torch.cos(x).exp()).relu().sum(1))
    x = torch.ones(16, 1 << 15)
    script = """
import sys
import numpy
from torchette.runtime import Runtime

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

x = numpy.ones((16, 1 << 15), numpy.float32)
before = resident()
method = Runtime.get().load_program(sys.argv[1]).load_method("forward")
(first,) = method.execute((x,))
(second,) = method.execute((x,))
assert (second - first == 1).all()
print(resident() - before)
"""
    grown = []
    for shapes in (None, ({0: Dim("n", min=1, max=4096)},)):
        path = tmp_path / f"{len(grown)}.pte"
        exported = torch.export.export(module.eval(), (x,), dynamic_shapes=shapes)
        config = ExecutorchBackendConfig(dynamic_memory_planning_mode=mode)
        to_edge(exported).to_executorch(config).save(path)
        done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        grown.append(int(done.stdout))
    static, dynamic = grown
    assert x.nbytes <= static and dynamic <= 2 * static


def test_loop_memory_does_not_depend_on_iterations() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def function(linear: Any, x: Tensor, turns: Tensor) -> Tensor:
        return while_loop(
            lambda i, x: i < turns, lambda i, x: (i + 1, (linear(x).sin() @ x.t() @ x).tanh()), (turns * 0, x)
        )[1]

    module, peaks = Function(function).eval(), []
    for turns in (1, 200):
        args = torch.randn(5, 3), torch.tensor(turns)
        model = torchette.compile(module, args, dynamic_shapes={"x": {0: Dim("n", min=2, max=64)}, "y": None})
        assert_equal(model(*args), module(*args))
        peaks.append(model.methods["forward"].load().dynamic_memory_peak)
    assert peaks[0] == peaks[1] > 0


def test_a_dimension_without_a_bound() -> None:
    module = OneInput(lambda x: (x.sin().reshape(-1, 2) * x.shape[0]).relu().sum(0)).eval()
    model = torchette.compile(module, (torch.randn(3, 4),), dynamic_shapes=({0: Dim("n", min=2)},))
    for n in (2, 3, 1000, 70_000, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(model(x), module(x), rtol=1e-3, atol=1e-3)
    with pytest.raises(InputError, match="dimension 0 is 1, expected 2 or more"):
        model(torch.randn(1, 4))
    unbounded = OneInput(lambda x: (x.neg(), x.view(-1))).eval()
    model = torchette.compile(unbounded, (torch.randn(3, 4),), dynamic_shapes=({0: Dim("n", min=1)},))
    for n in (5, 1, 300):
        x = torch.randn(n, 4)
        assert_equal(model(x), unbounded(x))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nonzero(x),
        lambda x: torch.masked_select(x, x > 0),
        lambda x: x[x > 0] * 2 + 1,
        lambda x: torch.nonzero(x > 0).sum(0),
        lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    ],
    ids=["nonzero", "masked_select", "boolean_index", "computed_on", "unique_consecutive"],
)
def test_sizes_that_follow_from_data(function: Callable, dynamic: bool) -> None:
    module = OneInput(function).eval()
    x = torch.tensor([[1.0, 0, 2], [0, 0, 3]])
    shapes = ({0: Dim("n", min=1)},) if dynamic else None
    model = torchette.compile(module, (x,), dynamic_shapes=shapes)
    samples = [x, torch.zeros_like(x), torch.ones_like(x)]
    if dynamic:
        samples += [torch.eye(50, 3), torch.ones(400, 3), torch.zeros(1, 3)]
    for sample in samples:
        assert_equal(model(sample), module(sample))


@MODES
def test_nonzero_with_any_number_of_hits(mode: Any) -> None:
    module = OneInput(lambda x: (torch.nonzero(x), x[x > 0].cumsum(0))).eval()
    model = torchette.compile(
        module, (torch.ones(3, 4),), config=ExecutorchBackendConfig(dynamic_memory_planning_mode=mode)
    )
    for hits in range(13):
        x = torch.zeros(12)
        x[torch.randperm(12, generator=torch.Generator().manual_seed(hits))[:hits]] = 1.5
        assert_equal(model(x.reshape(3, 4)), module(x.reshape(3, 4)))


@MODES
def test_mask_that_broadcasts_its_input(mode: Any) -> None:
    """torch.export asserts that the number of hits does not exceed the number of elements, but a mask may broadcast them."""
    module = OneInput(lambda x: torch.masked_select(x, (x > 0) | torch.ones(5, 1, 1, dtype=torch.bool)) + 1)
    model = torchette.compile(
        module.eval(), (torch.ones(3, 4),), config=ExecutorchBackendConfig(dynamic_memory_planning_mode=mode)
    )
    x = torch.randn(3, 4)
    assert_equal(model(x), module(x))


@pytest.mark.parametrize("backend", ["cpu", "xnnpack"])
def test_indices_of_one_mask_are_computed_once(backend: str) -> None:
    # XNNPACK decomposes hardswish in a second trace, which must find the symbols of the first one.
    model = Function(lambda _, x, mask: nn.functional.hardswish(x[:, mask]).sum(1) - (x * x)[:, mask].sum(1))
    mask = torch.tensor([True, False, True, True, False])
    compiled = torchette.compile(model, (torch.randn(3, 5), mask), backend=backend)
    executed = compiled.program.exported_program().graph
    assert sum("nonzero" in str(node.target) for node in executed.nodes) == 1
    for other in (mask, ~mask, torch.ones(5, dtype=torch.bool), torch.zeros(5, dtype=torch.bool)):
        x = torch.randn(3, 5)
        torch.testing.assert_close(compiled(x, other), model(x, other))


def test_scalars_computed_from_sizes() -> None:
    def function(x: Tensor) -> Any:
        n, m = x.shape
        return (
            n + m, n - m, n * m, n // 3, n % 3, -n, n**2, n / m, n == m, n != m, n < m, n <= m, n > m, n >= m,
            torch.sym_max(n, m), torch.sym_min(n, m), torch.sym_not(n < m), torch.sym_float(n), x.numel(),
            torch.sym_ite(n > m, n, m), torch.sym_int(n / 2), torch.sym_sum((n, m, n)), x.sum(),
        )  # fmt: skip

    module = OneInput(function).eval()
    shapes = ({0: Dim("n", min=2, max=64), 1: Dim("m", min=2, max=64)},)
    model = torchette.compile(module, (torch.ones(5, 3),), dynamic_shapes=shapes)
    for n, m in ((5, 3), (3, 5), (64, 2), (7, 8)):
        x = torch.ones(n, m)
        assert_equal(model(x), module(x))


def test_scalar_read_from_a_tensor() -> None:
    def function(x: Tensor) -> Tensor:
        length = x.sum().item()
        torch._check(length >= 0)
        torch._check(length <= 10)
        return torch.full((length,), 2.0)

    module = OneInput(function).eval()
    model = torchette.compile(module, (torch.tensor([1, 2]),))
    for values in ([1, 2], [0, 0], [4, 6]):
        assert_equal(model(torch.tensor(values)), module(torch.tensor(values)))


def test_scalar_output() -> None:
    module = OneInput(lambda x: x.shape[0] + 1).eval()
    model = torchette.compile(module, (torch.ones(3, 4),), dynamic_shapes=({0: Dim("n", max=9)},))
    assert model(torch.ones(7, 4)) == 8


def test_strings_and_none_are_inputs() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, mode: str, scale: Tensor | None) -> Tensor:
            y = x + 1 if mode == "plus" else x
            return y if scale is None else y * scale

    model = torchette.compile(Model().eval(), (torch.ones(2), "plus", None))
    assert_equal(model(torch.ones(2), "plus", None), torch.full((2,), 2.0))
    with pytest.raises(InputError):
        model(torch.ones(2), "minus", None)


def test_inputs_that_the_model_writes_to() -> None:
    def function(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    model = torchette.compile(OneInput(function).eval(), (torch.ones(3),))
    x = torch.tensor([1.0, 2, 3])
    assert_equal(model(x), torch.tensor([3.0, 5, 7]))
    assert_equal(x, torch.tensor([2.0, 4, 6]))


@pytest.mark.parametrize(
    "mode",
    sweep(DynamicMemoryPlanningMode, DynamicMemoryPlanningMode.UPPER_BOUND),
    ids=lambda mode: mode.name.lower(),
)
def test_gpt2_with_any_length(mode: Any) -> None:
    zoo.declare_torchvision_operators()
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=100, n_positions=64, n_embd=32, n_layer=2, n_head=4, use_cache=False
    )
    torch.manual_seed(0)
    gpt2 = transformers.GPT2LMHeadModel(config).eval()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gpt2 = gpt2

        def forward(self, tokens: Tensor) -> Tensor:
            return self.gpt2(tokens).logits

    module = Logits().eval()
    model = torchette.compile(
        module,
        (torch.randint(0, 100, (1, 7)),),
        dynamic_shapes=({1: Dim("length", min=2, max=64)},),
        config=ExecutorchBackendConfig(dynamic_memory_planning_mode=mode),
    )
    for length in (7, 2, 64, 33):
        tokens = torch.randint(0, 100, (1, length))
        with torch.no_grad():
            assert_equal(model(tokens), module(tokens))


def test_lists_are_returned_as_lists() -> None:
    from torchette.format import pte

    program = to_edge(torch.export.export(OneInput(lambda x: x + 1).eval(), (torch.ones(2),))).to_executorch(
        ExecutorchBackendConfig()
    )
    (plan,) = program.executorch_program.execution_plan
    (output,) = plan.outputs
    numbers = [len(plan.values) + i for i in range(2)]
    plan.values += [pte.EValue(pte.Int(3)), pte.EValue(pte.Int(4))]
    lists = [pte.TensorList([output, output]), pte.IntList(numbers), pte.DoubleList([0.5]), pte.BoolList([])]
    plan.outputs = [len(plan.values) + i for i in range(len(lists))]
    plan.values += [pte.EValue(record) for record in lists]
    file = bytes(pte.write(program.executorch_program, program._output.constants))
    method = Runtime.get().load_program(file).load_method("forward")
    tensors, integers, doubles, bools = method.execute((torch.ones(2),))
    assert_equal(tensors, [torch.full((2,), 2.0)] * 2)
    assert (integers, doubles, bools) == ([3, 4], [0.5], [])


@pytest.mark.parametrize("backend", ["xnnpack", "vulkan"])
def test_delegate_reads_a_reshaped_input_of_dynamic_size(backend: str) -> None:
    """The runtime knows the memory of a reshaped input only at run time."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(1, 8, 16)
    compiled = torchette.compile(
        model, (x,), backend=backend, dynamic_shapes={"src": {1: Dim("n", min=2, max=32)}}
    )
    for values in (x, torch.randn(1, 19, 16)):
        torch.testing.assert_close(compiled(values), model(values), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::torchette.errors.DelegationWarning")
@pytest.mark.parametrize("backend", ["cpu", "portable", "xnnpack"])
def test_bounds_that_together_exceed_the_element_limit(backend: str) -> None:
    """Each bound is useful by itself; their product with the channels exceeds 2^31 elements."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 2, 1), nn.AdaptiveAvgPool2d(1)
    )
    shapes = {"input": {2: Dim("h", min=8, max=8192), 3: Dim("w", min=8, max=8192)}}
    compiled = torchette.compile(model, (torch.randn(1, 3, 16, 16),), backend=backend, dynamic_shapes=shapes)
    for size in ((16, 16), (40, 9)):
        x = torch.randn(1, 3, *size)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_static_tensor_above_the_element_limit_is_refused() -> None:
    model = OneInput(lambda x: (x.expand(50_000, 50_000) + 1).sum())
    with pytest.raises(
        TorchetteError, match="a tensor of 50000 x 50000 elements: the runtime supports at most"
    ):
        torchette.compile(model, (torch.randn(1),))


@pytest.mark.parametrize(("scale", "offset", "smallest"), [(32, 0, 32), (1, 3, 4)])
def test_derived_size_starts_at_the_minimum_of_its_root(scale: int, offset: int, smallest: int) -> None:
    size = scale * Dim("n", min=1, max=8) if scale > 1 else Dim("n", min=1, max=8) + offset
    model = nn.Conv1d(2, 3, 3, padding=1)
    compiled = torchette.compile(
        model, (torch.randn(1, 2, 2 * scale + offset),), dynamic_shapes={"input": {2: size}}
    )
    x = torch.randn(1, 2, smallest)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=f"expected {smallest} to {8 * scale + offset}"):
        compiled(torch.randn(1, 2, smallest - 1))
