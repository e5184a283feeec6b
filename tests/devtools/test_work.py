# SPDX-License-Identifier: BSD-3-Clause
# The cost of instructions: operations are compared with torch's count, bytes with manual counts.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import torchette
from torchette.devtools.inspect import MethodInfo, describe
from torchette.devtools.work import FORMULAS, Work, work

torch.manual_seed(0)

# Operators that torch does not count.
CHEAP = ("layer_norm", "rms_norm", "group_norm", "pool", "rotary", "chain", "softmax", "add", "mul")


class Image(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 24, 3, stride=2, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(24, 24, 3, groups=24),
            torch.nn.Conv2d(24, 20, 1, groups=2),
            torch.nn.Flatten(),
            torch.nn.Linear(720, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Tokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [part.view(1, 12, 4, 8).transpose(1, 2) for part in self.qkv(x).split(32, -1)]
        return torch.nn.functional.scaled_dot_product_attention(*parts)


UP = torch.nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2)


def _works(
    model: torch.nn.Module, x: torch.Tensor, backend: str, sizes: Mapping[int, Any] | None = None
) -> list[tuple[str, Work]]:
    method = describe(bytes(torchette.compile(model.eval(), (x,), backend=backend))).methods[0]
    return _of(method, sizes)


class Merged(torch.nn.Module):
    """Convolutions that write to their part of a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.left = torch.nn.Conv2d(16, 20, 3, padding=1)
        self.right = torch.nn.Conv2d(20, 20, 3, padding=1, groups=20)
        self.last = torch.nn.Conv2d(40, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = self.left(x)
        return self.last(torch.cat((part, self.right(part)), 1))


def _of(method: MethodInfo, sizes: Mapping[int, Any] | None = None) -> list[tuple[str, Work]]:
    rows = [(instruction.op, work(method, instruction, sizes)) for instruction in method.instructions]
    return [(op, instruction) for op, instruction in rows if instruction is not None]


@pytest.mark.parametrize(
    ("model", "shape", "backend"),
    [
        *((Image(), (1, 3, 16, 16), backend) for backend in ("portable", "cpu")),
        *((Tokens(), (1, 12, 32), backend) for backend in ("portable", "cpu")),
        *((Merged(), (1, 16, 9, 9), backend) for backend in ("portable", "cpu")),
        *((UP, (1, 6, 5, 5), backend) for backend in ("portable", "cpu")),
    ],
)
def test_operations_match_torch_count(model: torch.nn.Module, shape: tuple[int, ...], backend: str) -> None:
    x = torch.randn(shape)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        model(x)
    rows = _works(model, x, backend)
    assert sum(
        row_work.operations or 0 for op, row_work in rows if not any(word in op for word in CHEAP)
    ) == (counted.get_total_flops()), rows


def test_bytes_are_weights_inputs_and_results() -> None:
    ((op, linear_work),) = _works(torch.nn.Linear(32, 16), torch.randn(4, 32), "cpu")
    assert op == "cpu::linear.out"
    assert linear_work == Work(2 * 4 * 32 * 16, 4 * (32 * 16 + 16 + 4 * 32 + 4 * 16))


def test_embedding_reads_only_looked_up_rows() -> None:
    work_by_operator = dict(_works(torch.nn.Embedding(1000, 8), torch.arange(3), "portable"))
    (lookup,) = [
        operator_work for op, operator_work in work_by_operator.items() if op.startswith("aten::embedding")
    ]
    assert lookup == Work(None, 2 * 3 * 8 * 4 + 3 * 8)


def test_causal_attention_counts_unmasked_half() -> None:
    class Causal(Tokens):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = [part.view(1, 12, 4, 8).transpose(1, 2) for part in self.qkv(x).split(32, -1)]
            return torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)

    work_by_operator = dict(_works(Causal(), torch.randn(1, 12, 32), "cpu"))
    assert work_by_operator["cpu::attention.out"].operations == 2 * 4 * (12 * 13 // 2) * 16


@pytest.mark.parametrize(("kind", "gates"), [(torch.nn.LSTM, 4), (torch.nn.GRU, 3)])
def test_recurrent_layer_counts_two_matmuls_per_step(kind: type, gates: int) -> None:
    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = kind(6, 20, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)[0]

    work_by_operator = dict(_works(Steps(), torch.randn(2, 7, 6), "cpu"))
    assert (
        work_by_operator[f"cpu::{kind.__name__.lower()}.out"].operations == 2 * gates * 20 * (6 + 20) * 2 * 7
    )


def test_chain_counts_each_instruction_per_element() -> None:
    class Chain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.randn(4, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.exp(x) + 1) * self.scale - x

    rows = _works(Chain(), torch.randn(5, 3), "cpu")
    # operands with fewer elements form a separate chain
    assert [(op, row_work.operations) for op, row_work in rows] == [
        ("cpu::chain.out", 2 * 15),
        ("cpu::chain.out", 2 * 60),
    ]


def test_integer_operations_are_not_counted() -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x

    for x, operations in ((torch.ones(3, 5), 15), (torch.ones(3, 5, dtype=torch.int64), 0)):
        assert [row_work.operations for _, row_work in _works(Sum(), x, "portable")] == [operations]


def test_resize_counts_source_pixels() -> None:
    up = torch.nn.Upsample(scale_factor=2.0, mode="bilinear")
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 1), up, torch.nn.Conv2d(8, 8, 1))
    work_by_operator = dict(_works(model, torch.randn(1, 3, 4, 4), "cpu"))
    assert work_by_operator["cpu::resize.out"].operations == 2 * 4 * (8 * 8 * 8)


def test_dynamic_shape_requires_sizes() -> None:
    model = torchette.compile(
        torch.nn.Linear(8, 4).eval(),
        (torch.randn(3, 8),),
        dynamic_shapes=({0: torch.export.Dim("n", max=64)},),
    )
    method = describe(bytes(model)).methods[0]
    assert _of(method) == []
    sizes = {method.inputs[0].index: (5, 8), method.outputs[0].index: (5, 4)}
    ((_, linear_work),) = _of(method, sizes)
    assert linear_work == Work(2 * 5 * 8 * 4, 4 * (8 * 4 + 4 + 5 * 8 + 5 * 4))


def test_formulas_refer_to_existing_operators() -> None:
    from torchette import runtime

    assert set(FORMULAS) <= {name.partition(".")[0] for name in runtime.operator_names()}
