# SPDX-License-Identifier: BSD-3-Clause
# Models with control flow, compiled and run by the runtime, with inputs for every branch.

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop_stack_output
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.while_loop import while_loop

import torchette
from tests.models import branching
from tests.sweep import sweep
from torchette.errors import MissingKernelError, UnsupportedError
from torchette.exir import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.exir.memory.plan_memory import MemoryPlanningPass


def assert_equal(actual: Any, expected: Any) -> None:
    """Asserts equal structures, close tensors and equal scalars."""
    ours, theirs = torch.utils._pytree.tree_leaves(actual), torch.utils._pytree.tree_leaves(expected)
    assert len(ours) == len(theirs)
    for mine, right in zip(ours, theirs, strict=True):
        if isinstance(right, Tensor):
            torch.testing.assert_close(torch.as_tensor(mine), right, rtol=1e-4, atol=1e-5)
        else:
            assert mine == right


@pytest.mark.parametrize("planned", sweep([False, True], True), ids=["lent", "planned"])
@pytest.mark.parametrize("name", branching.CASES | branching.UNBOUNDED)
def test_every_branch_equals_eager(name: str, planned: bool) -> None:
    module, inputs = branching.build(name)
    model = torchette.compile(
        module,
        inputs[0],
        edge=EdgeCompileConfig(check_passes=not planned),
        config=ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass()) if planned else None,
    )
    for args in (*inputs, *reversed(inputs)):
        assert_equal(model(*args), module(*args))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (lambda linear, x: linear(x), "reads a tensor of the module"),
        (lambda linear, x: x + torch.rand_like(x), "random numbers"),
    ],
    ids=["weights", "random"],
)
def test_unsupported_stacking_loops_are_rejected(body: Any, problem: str) -> None:
    module = branching.Function(
        lambda linear, x: while_loop_stack_output(
            lambda x: x.sum() < 20, lambda x: (body(linear, x),), (x,), ()
        )
    ).eval()
    with pytest.raises(UnsupportedError, match=problem):
        torchette.compile(module, (branching.X,))


@pytest.mark.parametrize("seed", sweep(range(8), 0, 1, 2))
def test_random_nests_equal_eager(seed: int) -> None:
    module = branching.random_model(seed)
    numbers = torch.Generator().manual_seed(seed)
    samples = [torch.randn(6, 6, generator=numbers) * scale for scale in (1, 0.3, 3)]
    model = torchette.compile(module, (samples[0],))
    for sample in (*samples, *(-sample for sample in samples)):
        assert_equal(model(sample), module(sample))


def test_branches_share_memory() -> None:
    module, inputs = branching.build("different_needs")
    planned = torchette.compile(module, inputs[0]).planned_bytes
    x = inputs[0][0]

    def wide(x: Tensor) -> Tensor:
        return (x.repeat(8, 8).sin() @ x.repeat(8, 8).cos().t()).sum(1)[:4] + x[:, 0]

    alone = torchette.compile(branching.Function(lambda linear, x: wide(x)).eval(), (x,)).planned_bytes
    both = branching.Function(
        lambda linear, x: torch.cond(x.sum() > 0, wide, lambda x: wide(x.neg()), (x,))
    ).eval()
    assert planned <= alone + 64  # the condition
    assert torchette.compile(both, (x,)).planned_bytes <= alone + 64 + x.nbytes


class GreedyDecoder(nn.Module):
    """Selects 100 tokens in one while_loop, each from the previous token and a cache of the previous ones."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50)
        self.register_buffer("places", torch.arange(steps))

    def forward(self, token: Tensor) -> Tensor:
        steps = self.places.shape[0]

        def body(i: Tensor, token: Tensor, cache: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
            here = (self.places == i).unsqueeze(1)
            cache = torch.where(here, self.mix(self.embedding(token)), cache)
            attended = torch.softmax(cache @ cache.t(), -1) @ cache
            following = self.head((attended * here).sum(0)).argmax()
            return i + 1, following, cache, torch.where(here[:, 0], following, tokens)

        start = (
            torch.tensor(0),
            token.clone(),
            torch.zeros(steps, 16),
            torch.zeros(steps, dtype=torch.int64),
        )
        return while_loop(lambda i, token, cache, tokens: i < steps, body, start)[3]


def test_decoder_memory_does_not_depend_on_step_count() -> None:
    torch.manual_seed(0)
    module = GreedyDecoder(100).eval()
    token = torch.tensor(3)
    model = torchette.compile(module, (token,))
    expected = module(token)
    assert_equal(model(token), expected)
    assert len(expected.unique()) > 1
    (plan,) = model.program.executorch_program.execution_plan
    calls = [type(i.instr_args).__name__ for i in plan.chains[0].instructions]
    assert len(calls) < 60 and calls.count("JumpFalseCall") == 2
    # Memory of a single step: the cache, its matmul with itself (twice), and smaller values.
    assert model.planned_bytes < 100 * 16 * 4 * 5 + 100 * 100 * 4 * 2


def test_a_missing_kernel_in_a_branch_is_refused_when_compiling() -> None:
    library = torch.library.Library("branch_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.define("twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    torch.library.impl(library, "twice", "CompositeExplicitAutograd")(lambda x: x * 2)
    torch.library.register_fake("branch_test::twice", lambda x: torch.empty_like(x), lib=library)

    def model(linear: Any, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.ops.branch_test.twice, lambda x: x + 1, (x,))

    with pytest.raises(MissingKernelError, match=r"branch_test::twice\.out"):
        torchette.compile(branching.Function(model).eval(), (torch.ones(3),))


def test_slices_of_a_size_that_follows_from_the_inputs() -> None:
    model = branching.Function(
        lambda linear, rows: map_rows(lambda row: torch.cat([row, row * 2, row[:1]]), rows)
    ).eval()
    columns = torch.export.Dim("columns", min=2, max=8)
    compiled = torchette.compile(model, (torch.randn(3, 4),), dynamic_shapes={"x": {1: columns}})
    for size in (2, 5, 8):
        x = torch.randn(3, size)
        assert_equal(compiled(x), model(x))
