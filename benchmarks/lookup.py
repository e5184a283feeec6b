# SPDX-License-Identifier: BSD-3-Clause
# The time of a method's load for kernel look-ups. Each operator of a file is looked up once, independent of its number of calls.
# Measures a program with a thousand calls and, for comparison, every kernel of the table.
"""Usage: ``python -m benchmarks.lookup``, after ``./dev setup``."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import torch
from torch import nn

import torchette
from torchette import runtime

BUILD = Path(__file__).resolve().parents[1] / "build" / "dev"
CALLS = 1000


class Thousand(nn.Module):
    """A thousand calls of different operators on one tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = itertools.cycle(
            [
                torch.sin, torch.cos, torch.tanh, torch.sigmoid, torch.relu, torch.exp, torch.abs, torch.neg, torch.floor,
                torch.ceil, torch.round, torch.sqrt, torch.rsqrt, torch.atan, torch.erf, torch.sign, torch.trunc,
                torch.expm1, torch.log1p, torch.reciprocal, nn.functional.gelu, nn.functional.elu,
                nn.functional.leaky_relu, nn.functional.hardtanh, lambda x: x + 1, lambda x: x * 2, lambda x: x - 3,
                lambda x: x / 4, lambda x: x @ x, lambda x: x.softmax(-1), lambda x: x.cumsum(0), lambda x: x.flip(0),
                lambda x: x.amax(0, keepdim=True) + x, lambda x: torch.maximum(x, x.t()), lambda x: torch.where(x > 0, x, 1.0),
            ]
        )  # fmt: skip
        for step in itertools.islice(steps, CALLS):
            x = step(x)
        return x


def names_of(module: nn.Module, args: tuple) -> tuple[int, list[str]]:
    """Returns the number of instructions of the program, and the operators that its file names."""
    program = torchette.compile(module.eval(), args).program
    plan = program.executorch_program.execution_plan[0]
    count = sum(len(chain.instructions) for chain in plan.chains)
    return count, [".".join(filter(None, (op.name, op.overload))) for op in plan.operators]


def measure(names: list[str]) -> str:
    done = subprocess.run(
        [BUILD / "torchette_lookup"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    subprocess.run(
        ["cmake", "--build", BUILD, "--target", "torchette_lookup"], check=True, stdout=subprocess.DEVNULL
    )
    instructions, names = names_of(Thousand(), (torch.rand(4, 4),))
    print(f"a program of {instructions} instructions: {measure(names)}")
    print(f"every kernel of the table: {measure(sorted(runtime.operator_names()))}")
