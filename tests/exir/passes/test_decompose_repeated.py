# SPDX-License-Identifier: BSD-3-Clause
# Equal calls are traced once, and the graph equals the graph that torch traces as a whole.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.nn import functional as F

from torchette.exir.graph import calls
from torchette.exir.passes.decompose_repeated import decompose_calls, decompose_repeated
from torchette.exir.passes.decompose_to_core import decompose_to_core

X = torch.randn(2, 6, 16)


class Layer(nn.Module):
    """Attention with a causal mask, and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).view(2, 6, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(F.gelu(y.transpose(1, 2).reshape(x.shape)))


class Frozen(nn.Module):
    """Layers without gradients, which torch.export captures as calls of graphs."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.layers(x)
        return self.layers(y)


def layers(count: int) -> nn.Module:
    return nn.Sequential(*(Layer() for _ in range(count))).eval()


class Trace:
    """Decomposes with torch, and counts the calls that torch traces."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, program: ExportedProgram) -> ExportedProgram:
        self.calls += sum(1 for _ in calls(program))
        return program.run_decompositions()


def described(program: ExportedProgram, with_locations: bool = True) -> list[Any]:
    """Returns the nodes without their names, and the signature."""
    names = {node: index for index, node in enumerate(program.graph.nodes)}
    nodes: list[Any] = []
    for node in program.graph.nodes:
        args = torch.fx.node.map_arg((node.args, node.kwargs), lambda arg: f"%{names[arg]}")
        val = node.meta.get("val")
        layout = (val.dtype, val.shape, val.stride()) if isinstance(val, Tensor) else None
        nodes.append((node.op, node.target if node.op == "call_function" else "", str(args), layout))
        if with_locations:
            nodes.append((node.meta.get("stack_trace"), list(node.meta.get("nn_module_stack", ()))))
    specs = program.graph_signature
    return [*nodes, [(spec.kind, spec.target) for spec in (*specs.input_specs, *specs.output_specs)]]


def test_the_graph_equals_the_graph_of_a_whole_trace() -> None:
    program = export(layers(6), (X,))
    result = decompose_repeated(program, Trace())
    assert result is not None
    assert described(result) == described(program.run_decompositions())
    torch.testing.assert_close(result.module()(X), program.module()(X))


def test_calls_without_gradients_keep_their_location() -> None:
    """torch gives them the location of the whole block."""
    program = export(Frozen(layers(3)), (X,))
    result = decompose_repeated(program, Trace())
    assert result is not None
    assert described(result, False) == described(program.run_decompositions(), False)
    assert all(
        "self.out(F.gelu(" in node.meta["stack_trace"] for node in calls(result, torch.ops.aten.gelu.default)
    )
    torch.testing.assert_close(result.module()(X), program.module()(X))


def test_torch_traces_equal_calls_once() -> None:
    """The count does not depend on the depth of the model."""
    counts = []
    for depth in (4, 8):
        decompose_repeated(export(layers(depth), (X,)), trace := Trace())
        counts.append(trace.calls)
    assert 0 < counts[0] == counts[1]


def test_torch_traces_the_selection_of_a_time_step_once() -> None:
    class Steps(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

        def forward(self, x: Tensor) -> Tensor:
            state = x[:, 0]
            for step in range(1, self.count):
                state = state.tanh() + x.select(1, step) - x[:, -step]
            return state

    counts = []
    for count in (3, 5):
        program = export(Steps(count), (X,))
        result = decompose_repeated(program, trace := Trace())
        assert result is not None
        assert described(result) == described(program.run_decompositions())
        torch.testing.assert_close(result.module()(X), program.module()(X))
        counts.append(trace.calls)
    assert counts[0] == counts[1]


def test_calls_with_different_scalars_are_different() -> None:
    class Powers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for exponent in (2, 2.0, 3, 2, 2.0, 3, 2, 2.0, 3):
                x = (x + exponent).clamp(-2, exponent)
            return x

    program = export(Powers(), (X,))
    result = decompose_repeated(program, Trace())
    assert result is not None
    assert described(result) == described(program.run_decompositions())


class Updating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(6)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return self.layers(x)


class Conjugates(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(6):
            x = torch.fft.fft(x).conj().imag
        return x


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).relu_()


DEPENDENT: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "a buffer that changes": (Updating, {}),
    "an update in place": (InPlace, {}),
    "complex values": (Conjugates, {}),
    "batch statistics": (lambda: nn.Sequential(*(nn.BatchNorm1d(6) for _ in range(9))).train(), {}),
    "a dynamic size": (
        lambda: nn.Sequential(*(nn.Linear(16, 16) for _ in range(9))),
        {"dynamic_shapes": ({0: Dim("batch")},)},
    ),
    "distinct calls": (lambda: nn.Sequential(nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 3)), {}),
}


@pytest.mark.parametrize("name", DEPENDENT)
def test_torch_traces_other_programs_as_a_whole(name: str) -> None:
    make, options = DEPENDENT[name]
    program = export(make(), (X,), **options)
    trace = Trace()
    assert decompose_repeated(program, trace) is None
    assert trace.calls == 0
    decompose_to_core(program)


def test_an_error_of_torch_is_reported_for_the_whole_program() -> None:
    def fail(program: ExportedProgram) -> ExportedProgram:
        raise RuntimeError("a decomposition failed")

    assert decompose_repeated(export(layers(6), (X,)), fail) is None


class Products(nn.Module):
    """Two equal matmuls and a third one, an operator with several results, and layers that are core ATen."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(x @ self.weight) @ self.weight
        values, order = torch.sort(y @ y.mT, stable=True)
        first, second = torch.chunk(torch.sin(y), 2, -1)
        return values.sum(-1) + order.sum(-1) + (first * second).sum(-1)


def test_calls_of_some_operators_are_decomposed_alone_with_dynamic_sizes() -> None:
    kept = (torch.ops.aten.matmul.default, torch.ops.aten.split.Tensor)
    program = export(Products(), (X,), dynamic_shapes=({0: Dim("n", max=9), 1: Dim("m", max=9)},))
    program = decompose_to_core(program, kept)
    assert len(list(calls(program, *kept))) == 4
    num_sizes = len(list(calls(program, torch.ops.aten.sym_size.int)))
    trace, expected = Trace(), [program.module()(x) for x in (X, torch.randn(1, 3, 16))]
    assert decompose_calls(program, kept, trace)
    assert trace.calls == 5 and not list(calls(program, *kept))  # two matmuls, split, and its two results
    assert len(list(calls(program, torch.ops.aten.sym_size.int))) <= num_sizes + 2
    program.graph_module.recompile()
    torch.testing.assert_close(program.module()(X), expected[0])


def test_remaining_calls_of_a_branch_are_traced_with_the_program() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x @ x + 1, (x[:, :, :6],))

    kept = (torch.ops.aten.matmul.default,)
    program = decompose_to_core(export(Branch(), (X,)), kept)
    assert list(calls(program, *kept)) and not decompose_calls(program, kept, Trace())
    assert not list(calls(decompose_to_core(program, remaining=kept), *kept))
