# SPDX-License-Identifier: BSD-3-Clause
# Lowering does not modify its input: graphs, metadata, stored tensors, and torch's data about sizes. A program can be
# lowered again to the same file.

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from graphs import Function
from torch import nn
from torch._higher_order_ops import scan
from torch._higher_order_ops import while_loop as loop
from torch._higher_order_ops.map import map as each
from torch.export import Dim, ExportedProgram, export
from torch.fx import GraphModule

import torchette
from tests.sweep import sweep
from torchette.backends.xnnpack.partitioner import XnnpackPartitioner
from torchette.errors import DelegationWarning
from torchette.exir import ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from torchette.exir.copy_shape_env import copy_shape_env
from torchette.exir.graph import copy_program, fake_mode


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.add_(x[0])
        return self.linear(x) * self.state


def positive(x: torch.Tensor) -> torch.Tensor:
    return x[torch.nonzero(x[:, 0] > 0).squeeze(1)]


def first_rows(x: torch.Tensor) -> torch.Tensor:
    count = x[0, 0].abs().int().item()
    torch._check(count < 4)
    return torch.relu(x)[:count] * 2


def asserted(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(x.sum() > -1000, "too small")
    return x * 2


def counted(x: torch.Tensor) -> Any:
    return loop(lambda i, x: i < 3, lambda i, x: (i + 1, torch.relu(x) - 1), (0, x))


def choice(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: positive(x).sum(0), lambda x: x.sum(0), (x,))


MODELS = {
    "state": Stateful(),
    "found": Function(lambda x: torch.relu(positive(x)) * 2),
    "found in a branch": Function(choice),
    "selected": Function(lambda x: torch.masked_select(x[:1], x > 0) * 2),
    "repeated": Function(lambda x: torch.repeat_interleave(x, x[:, 0].abs().int(), dim=0)),
    "read": Function(first_rows),
    "asserted": Function(asserted),
    "in place": Function(lambda x: x.add_(1) * 2),
    "while_loop": Function(counted),
    "scan": Function(lambda x: scan(lambda c, x: (c + x, c * x), torch.zeros(4), x)),
    "map": Function(lambda x: each(lambda x: torch.sigmoid(x) * 2, x)),
    "spectrum": Function(lambda x: torch.fft.rfft(x).abs()),
}


def lowered(program: ExportedProgram, how: str) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        if how == "portable":
            return to_edge(program).to_executorch().buffer
        if how == "XNNPACK":
            edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
            return edge.to_executorch().buffer
        compiled = torchette.compile(
            program, backend="xnnpack", config=ExecutorchBackendConfig(portable_fallback=True)
        )
        return compiled.program.buffer


def state_of(program: ExportedProgram) -> list[Any]:
    """Returns the whole state of a program as text."""
    state: list[Any] = [repr(program.graph_signature), repr(program.range_constraints)]
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            state += [str(module.graph), sorted(map(str, module.meta))]
            state += [(n.name, key, repr(n.meta[key])) for n in module.graph.nodes for key in sorted(n.meta)]
    for store in (program.state_dict, program.constants):
        state += [
            (name, id(value), value._version, value.detach().tolist())
            for name, value in store.items()
            if isinstance(value, torch.Tensor)
        ]
    (env,) = {
        n.meta["val"].fake_mode.shape_env
        for n in program.graph.nodes
        if hasattr(n.meta.get("val"), "fake_mode")
    }
    for name in (
        "var_to_range",
        "replacements",
        "unbacked_renamings",
        "size_like",
        "axioms",
        "guards",
        "deferred_runtime_asserts",
    ):
        state.append((name, repr(getattr(env, name))))
    return [*state, ("pending", list(env.pending_fresh_unbacked_symbols))]  # fmt: skip


@pytest.mark.parametrize("dynamic", sweep([False, True], True), ids=["fixed", "dynamic"])
@pytest.mark.parametrize("kind", MODELS)
def test_lowering_twice_yields_equal_bytes_and_keeps_the_program(kind: str, dynamic: bool) -> None:
    shapes = ({0: Dim("n", min=2, max=9)},) if dynamic else None
    if dynamic and not isinstance(MODELS[kind], Stateful):
        shapes = (shapes,)
    with torch.no_grad():
        program = export(MODELS[kind].eval(), (torch.randn(6, 4),), dynamic_shapes=shapes)
    before = state_of(program)
    for how in ("portable", "XNNPACK", "with fallback") if kind == "state" else ("portable", "XNNPACK"):
        first = lowered(program, how)
        assert state_of(program) == before
        assert lowered(program, how) == first


def test_lowering_a_manager_twice_yields_equal_bytes() -> None:
    with torch.no_grad():
        program = export(MODELS["read"].eval(), (torch.randn(6, 4),))
    edge = to_edge(program)
    before = state_of(edge.exported_program())
    assert edge.to_executorch().buffer == edge.to_executorch().buffer
    assert state_of(edge.exported_program()) == before


def test_original_stays_unchanged_if_detach_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter of transformers replaces Tensor.detach by the identity while it lowers a program."""
    with torch.no_grad():
        program = export(nn.Linear(4, 4), (torch.randn(6, 4),), dynamic_shapes=({0: Dim("n", min=2, max=9)},))
    mode = fake_mode(program)
    monkeypatch.setattr(torch.Tensor, "detach", lambda tensor: tensor)
    moved = copy_shape_env(copy_program(program))
    values = [node.meta["val"] for node in program.graph.nodes if "val" in node.meta]
    assert all(value.fake_mode is mode for value in values) and fake_mode(moved) is not mode


def test_size_that_the_capture_fixed_is_static() -> None:
    """A loop over a size of an input, such as the recurrence of Mamba, fixes the size."""
    module = Function(lambda x: sum(x[:, i] * i for i in range(x.shape[1])))
    program = export(module, (torch.randn(6, 4),), dynamic_shapes=(({0: Dim.AUTO, 1: Dim.AUTO},),))
    moved = copy_shape_env(copy_program(program))
    (x,) = (node for node in moved.graph.nodes if node.op == "placeholder")
    assert isinstance(x.meta["val"].shape[0], torch.SymInt) and type(x.meta["val"].shape[1]) is int


def test_assertion_on_a_dtype_needs_no_copy() -> None:
    class Cast(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.float64)

    program = export(Cast(), (torch.randn(6, 4),))
    assert any("_assert_tensor_metadata" in str(node.target) for node in program.graph.nodes)
    assert fake_mode(copy_shape_env(copy_program(program))) is fake_mode(program)
