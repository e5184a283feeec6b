# SPDX-License-Identifier: BSD-3-Clause
# Each optional pass of the engine can be disabled by name. The program then computes the same results without the operator that the
# pass creates. The report records the pass if and only if it ran.

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchette
from tests.exir.graphs import Function
from torchette.backends.engine import CpuPartitioner
from torchette.errors import PassError
from torchette.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from torchette.exir.graph import constants
from torchette.exir.pipeline import OPTIONAL, build, optional_passes, pass_name

Built = tuple[nn.Module, tuple[Tensor, ...]]


class Rotary(nn.Module):
    """x cos + rotate_half(x) sin, tokens before heads."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin


class Parts(nn.Module):
    """A linear layer with an output that is read in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.layer(x).chunk(2, -1)
        return gate.sigmoid() * up


class Integers(nn.Module):
    """A linear layer with stored 8-bit weights and a scale for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("values", torch.randint(-127, 128, (40, 64), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(40, 1) * 0.02 + 1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.values.float() * self.scales)


class Quantized(nn.Module):
    """An integer convolution with a result that is permuted before it is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).permute(0, 3, 1, 2)


def int8(module: nn.Module, x: Tensor, dynamic: bool = False) -> Built:
    """Returns a module that PT2E has converted."""
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config

    config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    prepared = pt2e.prepare_pt2e(
        torch.export.export(module.eval(), (x,)).module(), XNNPACKQuantizer().set_global(config)
    )
    with torch.no_grad():
        prepared(x)
    return pt2e.convert_pt2e(prepared), (x,)


def of(module: nn.Module | Callable[..., Tensor], *args: Tensor) -> Built:
    return (module if isinstance(module, nn.Module) else Function(module)).eval(), args


def images(*between: nn.Module) -> Built:
    return of(nn.Sequential(nn.Conv2d(8, 8, 3), *between, nn.Conv2d(8, 8, 3)), torch.randn(1, 8, 16, 16))


def attention() -> Built:
    heads = [torch.randn(2, 4, 5, 8) for _ in range(3)]
    return of(F.scaled_dot_product_attention, *heads)


def half(*layers: nn.Module, shape: tuple[int, ...] = (3, 16)) -> Built:
    return of(nn.Sequential(*layers).half(), torch.randn(shape).half())


def branches() -> Built:
    """Convolutions with results that are concatenated."""
    left, right = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 32, 3, padding=1)
    merged = Function(lambda x: torch.cat((left(x), right(x)), 1))
    return of(nn.Sequential(nn.Conv2d(8, 16, 3), merged, nn.Conv2d(48, 8, 3)), torch.randn(1, 8, 16, 16))


def given_bias() -> Built:
    """A convolution that the engine refuses, since its bias is an input."""
    filters = torch.randn(64, 4, 9).half()
    return of(lambda x, bias: F.conv1d(x, filters, bias), torch.randn(1, 4, 9).half(), torch.randn(64).half())


# Pass -> a model, a key of the counter of `compiled`, and the counts with the pass and without it.
CASES: dict[str, tuple[Callable[[], Built], str, int, int]] = {
    "compute_in_float32": (lambda: half(nn.Linear(16, 16)), "cpu::linear", 1, 0),
    "fold_around_weights": (lambda: half(nn.Linear(16, 16)), "stored float16", 0, 1),
    "fuse_concatenations": (branches, "aten::cat", 0, 1),
    "fuse_epilogues": (lambda: of(nn.Sequential(nn.Linear(16, 16), nn.ReLU()), torch.randn(3, 16)), "aten::relu", 0, 1),
    "move_permutes": (images, "aten::permute_copy", 2, 4),
    "place_attention": (attention, "cpu::attention", 1, 0),
    "place_chains": (lambda: of(lambda x: (x.exp() + 1).sin(), torch.randn(64)), "cpu::chain", 1, 0),
    "place_convolutions": (images, "cpu::convolution", 2, 0),
    "place_dynamic_linears": (lambda: int8(nn.Sequential(nn.Linear(64, 64)), torch.randn(3, 64), True), "cpu::dynamic_linear", 1, 0),
    "place_images": (lambda: images(nn.MaxPool2d(2)), "cpu::max_pool", 1, 0),
    "place_integers": (lambda: int8(Quantized(), torch.randn(1, 8, 9, 9)), "cpu::quantized_convolution", 1, 0),
    "place_linears": (lambda: of(nn.Linear(16, 16), torch.randn(3, 16)), "cpu::linear", 1, 0),
    "place_norms": (lambda: of(nn.LayerNorm(16), torch.randn(3, 16)), "cpu::layer_norm", 1, 0),
    "place_recurrent": (lambda: of(nn.GRU(8, 8), torch.randn(4, 1, 8)), "cpu::gru", 1, 0),
    "place_rotary": (lambda: of(Rotary(), torch.randn(1, 5, 4, 8), torch.randn(1, 5, 1, 8), torch.randn(1, 5, 1, 8)), "cpu::rotary", 1, 0),
    "place_weight_only": (lambda: of(Integers(), torch.randn(3, 64)), "cpu::weight_only_linear", 1, 0),
    "settle_quantize": (lambda: int8(Quantized(), torch.randn(1, 8, 9, 9)), "aten::permute_copy float32", 0, 1),
    "split_linears": (lambda: of(Parts(), torch.randn(3, 16)), "cpu::linear", 2, 1),
    "store_widened": (given_bias, "aten::_to_copy", 3, 4),
}  # fmt: skip


def compiled(module: nn.Module, args: tuple[Tensor, ...], *disabled: str) -> tuple[Counter[str], Any]:
    """Returns a counter and the report of the compiled program. The counter has the calls of each operator, the results of each dtype,
    and the stored tensors of each dtype. Compares the results with eager."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about calls that now run on portable kernels
        model = torchette.compile(
            module, args, backend="cpu", edge=EdgeCompileConfig(disable_passes=disabled, check_passes=False)
        )
        tolerance = 2e-2 if args[0].dtype is torch.float16 else 1e-4
        results, expected = model(*args), module(*args)
        torch.testing.assert_close(results, expected, rtol=tolerance, atol=tolerance)
    program = model.program.exported_program()
    counts = Counter(f"stored {tensor.dtype}".replace("torch.", "") for tensor in constants(program).values())
    for node in program.graph.nodes:
        if hasattr(node.target, "_schema"):
            counts[name := node.target._schema.name] += 1
            if isinstance(value := node.meta["val"], Tensor):
                counts[f"{name} {value.dtype}".replace("torch.", "")] += 1
    return counts, model.report()


@pytest.mark.parametrize("name", sorted(CASES))
def test_disabled_pass_leaves_its_operator_out(name: str) -> None:
    built, operator, count_with, count_without = CASES[name]
    torch.manual_seed(0)
    module, args = built()
    counts, report = compiled(module, args)
    assert counts[operator] == count_with and report.notes(name)
    counts, report = compiled(module, args, name)
    assert counts[operator] == count_without and name not in {record.name for record in report.records}


def test_each_pass_of_the_engine_is_optional_or_makes_programs_valid() -> None:
    engine = CpuPartitioner()
    names = {pass_name(run) for run in (*engine.capture_passes(), *engine.target_passes())}
    assert set(CASES) == engine.optional_passes == names - OPTIONAL - {"spell_out_quantization"}
    assert optional_passes() == OPTIONAL | engine.optional_passes


def test_all_optional_passes_are_disabled_together() -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU()).eval()
    counts, _ = compiled(module, (torch.randn(3, 16),), *optional_passes())
    assert not [name for name in counts if name.startswith("cpu::")]


def test_each_interface_disables_passes() -> None:
    module, args = of(nn.LayerNorm(16), torch.randn(3, 16))
    exported = torch.export.export(module, args)
    edge, backend = (
        EdgeCompileConfig(disable_passes=["place_norms"]),
        ExecutorchBackendConfig(disable_passes=["place_norms"]),
    )
    for manager, config in (
        (to_edge(exported, compile_config=edge).to_backend(CpuPartitioner()), None),
        (to_edge_transform_and_lower(exported, partitioner=[CpuPartitioner()], compile_config=edge), None),
        (to_edge_transform_and_lower(exported, partitioner=[CpuPartitioner()]), backend),
    ):
        program = manager.to_executorch(config)
        assert "place_norms" not in {record.name for record in program.report().records}
        assert "aten::native_layer_norm.out" in program.operators()


class OwnTarget(CpuPartitioner):
    """A partitioner with an optional pass that the compiler does not know."""

    optional_passes = frozenset({"count_calls"})

    def target_passes(self) -> Any:
        def count_calls(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
            return program

        return (count_calls,)


def test_partitioner_names_its_optional_passes() -> None:
    stages = build(EdgeCompileConfig(disable_passes=["count_calls"]), partitioners=[OwnTarget()]).stages
    assert "count_calls" not in {pass_name(run) for stage in stages for run in stage.passes}
    stages = build(partitioners=[OwnTarget()]).stages
    assert "count_calls" in {pass_name(run) for stage in stages for run in stage.passes}


@pytest.mark.parametrize(
    "name, says",
    [
        ("place_norm", "did you mean place_norms?"),
        ("spell_out_quantization", "cannot disable spell_out_quantization"),
    ],
)
def test_names_of_required_and_misspelt_passes_are_refused(name: str, says: str) -> None:
    with pytest.raises(PassError, match=re.escape(says)) as caught:
        build(EdgeCompileConfig(disable_passes=[name]))
    assert caught.value.code == "unknown-pass" and "place_attention" in caught.value.hints[0]
