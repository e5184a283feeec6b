# SPDX-License-Identifier: BSD-3-Clause
# Recurrent layers over long sequences in all forms, compiled as loops and compared with eager mode.

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import torchette
from torchette.backends.xnnpack.partitioner import XnnpackPartitioner
from torchette.errors import DelegationWarning
from torchette.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower
from torchette.exir.graph import calls
from torchette.exir.passes.steps_to_scan import LONG
from torchette.runtime import Runtime

pytestmark = pytest.mark.usefixtures("portable_plan")

FORMS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "lstm of all": (nn.LSTM, {"num_layers": 3, "bidirectional": True, "batch_first": True, "proj_size": 3}),
    "lstm without biases": (nn.LSTM, {"bias": False, "num_layers": 2}),
    "lstm projected without biases": (nn.LSTM, {"bias": False, "proj_size": 2, "bidirectional": True}),
    "lstm with dropout": (nn.LSTM, {"num_layers": 2, "dropout": 0.5}),
    "gru": (nn.GRU, {}),
    "gru of all": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    "gru without biases": (nn.GRU, {"bias": False, "bidirectional": True}),
    "rnn": (nn.RNN, {"num_layers": 2, "bidirectional": True}),
    "rnn with relu": (nn.RNN, {"nonlinearity": "relu", "batch_first": True, "bias": False}),
}
STEPS = LONG + 7


class Layer(nn.Module):
    def __init__(self, kind: type[nn.Module], options: dict[str, Any]) -> None:
        super().__init__()
        self.layer = kind(4, 6, **options)

    def forward(self, x: torch.Tensor, *state: torch.Tensor) -> Any:
        initial = state if len(state) == 2 else state[0] if state else None
        return self.layer(x, initial)


def inputs(form: str, steps: int = STEPS, batch: int = 2) -> tuple[torch.Tensor, ...]:
    kind, options = FORMS[form]
    x = torch.randn(batch, steps, 4) if options.get("batch_first") else torch.randn(steps, batch, 4)
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    state = [torch.randn(rows, batch, options.get("proj_size") or 6)]
    return (x, *state, torch.randn(rows, batch, 6)) if kind is nn.LSTM else (x, *state)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_equals_eager(form: str) -> None:
    model, args = Layer(*FORMS[form]).eval(), inputs(form)
    compiled = torchette.compile(model, args)
    assert len(compiled.report().records) and compiled.report().notes("decompose_to_core")
    for again in (args, inputs(form)):
        with torch.no_grad():
            torch.testing.assert_close(compiled(*again), model(*again), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = Layer(*FORMS["lstm of all"]).eval().to(dtype)
    args = tuple(x.to(dtype) for x in inputs("lstm of all"))
    close = {"rtol": 1e-2, "atol": 2e-3} if dtype is torch.float16 else {"rtol": 1e-9, "atol": 1e-9}
    with torch.no_grad():
        torch.testing.assert_close(torchette.compile(model, args)(*args), model(*args), **close)


def test_dynamic_batch_and_missing_state() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.GRU(4, 6), nn.LSTM(6, 3, batch_first=True)

        def forward(self, x: torch.Tensor) -> Any:
            y, last = self.first(x)
            return self.second(y.transpose(0, 1)), last

    model = Pair().eval()
    compiled = torchette.compile(
        model, (torch.randn(STEPS, 3, 4),), dynamic_shapes=({1: Dim("batch", min=2, max=9)},)
    )
    for batch in (2, 3, 9):
        x = torch.randn(STEPS, batch, 4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)


def test_in_a_branch() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # Small weights, because a recurrence with larger ones amplifies rounding differences at every step.
            self.weights = nn.ParameterList([torch.randn(4, 4) / 8, torch.randn(4, 4) / 8])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def recurrent(x: torch.Tensor) -> torch.Tensor:
                state = torch.zeros(1, x.shape[1], 4)
                return torch.rnn_tanh(x, state, list(self.weights), False, 1, 0.0, False, False, False)[0]

            return torch.cond(x.sum() > 0, recurrent, lambda x: x * 2, (x,))

    model, x = Chooses().eval(), torch.rand(STEPS, 2, 4)
    compiled = torchette.compile(model, (x,))
    for value in (x, -x):
        with torch.no_grad():
            torch.testing.assert_close(compiled(value), model(value), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["lstm", "gru"])
def test_instruction_count_does_not_depend_on_the_length(form: str) -> None:
    nodes, sizes = [], []
    for steps in (LONG + 1, 6 * LONG):
        with torch.no_grad():
            program = export(Layer(*FORMS[form]).eval(), inputs(form, steps))
        edge = to_edge(program)
        nodes.append(len(list(calls(edge.exported_program()))))
        sizes.append(len(edge.to_executorch().buffer))
    assert nodes[0] == nodes[1]
    assert abs(sizes[0] - sizes[1]) < 256


def test_short_and_preserved_layers_are_not_loops() -> None:
    def kinds(steps: int, **config: Any) -> set[str]:
        with torch.no_grad():
            program = export(Layer(*FORMS["gru"]).eval(), inputs("gru", steps))
        edge = to_edge(program, compile_config=EdgeCompileConfig(**config))
        return {str(node.target) for node in calls(edge.exported_program())}

    assert "scan" in kinds(LONG + 1)
    assert "scan" not in kinds(LONG)
    preserved = kinds(LONG + 1, preserve_ops=[torch.ops.aten.gru.input])
    assert "scan" not in preserved and "aten.gru.input" in preserved


def test_backend_runs_its_operators_of_each_step() -> None:
    model, args = Layer(*FORMS["lstm of all"]).eval(), inputs("lstm of all")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        program = export(model, args)
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    placements = edge.delegation().placements
    assert {p.backend for p in placements if "linear" in p.op} == {"XnnpackBackend"}
    assert edge.to_executorch().buffer
    with torch.no_grad():
        torch.testing.assert_close(
            edge.exported_program().module()(*args), model(*args), rtol=1e-5, atol=1e-6
        )
    if Runtime.get().backend_registry.is_available("XnnpackBackend"):
        compiled = torchette.compile(program, backend=XnnpackPartitioner())
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), model(*args), rtol=1e-4, atol=1e-5)
