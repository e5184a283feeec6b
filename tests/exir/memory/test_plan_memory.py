# SPDX-License-Identifier: BSD-3-Clause
# Small programs are lowered and planned. Lifetimes, locations and errors are compared with the expected ones.
from __future__ import annotations

import copy
import math

import pytest
import torch
from graphs import Function
from torch import nn

from torchette.errors import PlanError
from torchette.exir.memory import algorithms as memory_planning
from torchette.exir.memory.algorithms import (
    MemoryAlgoResult,
    MemoryPlanningAlgorithmSuite,
    SpecAllocResult,
    Verifier,
)
from torchette.exir.memory.plan_memory import (
    MemoryPlanningPass,
    assign_specs,
    specs_of,
    update_all_tensors_lifetime,
)
from torchette.exir.pipeline import build
from torchette.exir.tensor import TensorShapeDynamism, TensorSpec, upper_bound


def lower(module, *args, dynamic_shapes=None):
    """Returns a program of out variants without a memory plan."""
    if not isinstance(module, nn.Module):
        module = Function(module)
        dynamic_shapes = None if dynamic_shapes is None else (dynamic_shapes,)
    exported = torch.export.export(module.eval(), args, dynamic_shapes=dynamic_shapes)
    return build().until("exec").run(exported)


def nodes(program):
    return {node.name: node for node in program.graph.nodes}


def spec(program, name) -> TensorSpec:
    return nodes(program)[name].meta["spec"]


def sizes(program):
    return program.graph_module.meta["non_const_buffer_sizes"]


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.full((4,), 3.0))

    def forward(self, x):
        self.count.add_(x)
        return self.count * 2


def test_a_chain_needs_two_tensors_however_long_it_is():
    program = lower(lambda x: x.sin().cos().exp().neg().abs(), torch.randn(100))
    MemoryPlanningPass(overwrite_operands=False)(program)
    assert sizes(program) == [0, 2 * 400] == [0, *program.graph_module.meta["memory_bounds"][1:]]
    assert spec(program, "x" if "x" in nodes(program) else "args_0").lifetime == [0, 1]
    first = {
        name: node.meta["spec"].lifetime
        for name, node in nodes(program).items()
        if node.op == "call_function"
    }
    assert first["sin"] == [1, 2] and first["abs_1"] == [5, 6]


def test_inputs_live_from_the_start_and_outputs_to_the_end():
    program = lower(lambda x, y: (x.exp(), (x + 1).sin() * y), torch.randn(8), torch.randn(8))
    MemoryPlanningPass(overwrite_operands=False)(program)
    end = len(program.graph.nodes) - 1
    inputs = [
        node for node in program.graph.nodes if node.op == "placeholder" and not node.meta["spec"].const
    ]
    assert [node.meta["spec"].lifetime[0] for node in inputs] == [0, 0]
    outputs = program.graph.output_node().args[0]
    assert [node.meta["spec"].lifetime[1] for node in outputs] == [end, end]
    assert Verifier(program.graph_module).verify_storage_reuse() >= 1


def test_alias_shares_storage_and_extends_the_lifetime_of_its_source():
    program = lower(lambda x: (x.exp().view(2, 32).sin() + 1, x.cos()), torch.randn(64))
    MemoryPlanningPass(overwrite_operands=False)(program)
    view = next(node for node in program.graph.nodes if "alias" in node.meta)
    source = view.meta["alias"][0].meta["spec"]
    mine = view.meta["spec"]
    assert mine.root is source and (mine.mem_id, mine.mem_offset) == (source.mem_id, source.mem_offset)
    assert source.lifetime[1] == list(program.graph.nodes).index(nodes(program)["sin"])


def test_slice_is_inside_its_source():
    program = lower(lambda x: x.exp()[1].sin(), torch.randn(4, 16))
    MemoryPlanningPass()(program)
    part = next(node for node in program.graph.nodes if "alias" in node.meta)
    assert part.meta["alias"][1] == 64
    assert part.meta["spec"].mem_offset == part.meta["alias"][0].meta["spec"].mem_offset + 64


def test_state_is_always_live_and_updated_in_place():
    program = lower(Counter(), torch.randn(4))
    MemoryPlanningPass()(program)
    buffer = next(node for node in program.graph.nodes if node.target == "b_count").meta["spec"]
    assert buffer.lifetime == [0, len(program.graph.nodes) - 1] and not buffer.const
    update = next(node for node in program.graph.nodes if "in_place" in node.meta)
    assert update.meta["spec"] is buffer
    other_specs = {s for node in program.graph.nodes for s in specs_of(node) if s and not s.const} - {buffer}
    assert other_specs
    for other_spec in other_specs:
        assert not Verifier.storage_overlap(buffer, other_spec)


def test_unplanned_state_has_no_location():
    program = lower(Counter(), torch.randn(4))
    MemoryPlanningPass(alloc_mutable_buffers=False)(program)
    assert next(n for n in program.graph.nodes if n.target == "b_count").meta["spec"].mem_offset is None


def test_memory_ids_set_by_the_user_are_planned_separately():
    class Pools(MemoryPlanningPass):
        def run(self, graph_module, graph_signature=None):
            for node in graph_module.graph.nodes:
                if node.op == "placeholder":
                    node.meta["spec"].mem_id = 3
                elif node.target is torch.ops.aten.exp.out:
                    node.meta["spec"].mem_id = 1
            return super().run(graph_module, graph_signature)

    program = lower(lambda x: x.exp().sin().cos(), torch.randn(100))
    Pools()(program)
    assert spec(program, "exp").mem_id == 1
    assert next(n for n in program.graph.nodes if n.op == "placeholder").meta["spec"].mem_id == 3
    assert sizes(program) == [0, 800, 0, 400]


def test_dynamic_dimensions_get_memory_for_their_upper_bound():
    program = lower(
        lambda x: x.exp().sin(),
        torch.randn(3, 8),
        dynamic_shapes=({0: torch.export.Dim("n", min=2, max=20)},),
    )
    MemoryPlanningPass()(program)
    exp_spec = spec(program, "exp")
    assert exp_spec.shape == [20, 8] and exp_spec.shape_dynamism is TensorShapeDynamism.DYNAMIC_BOUND
    assert sizes(program) == [0, 2 * 20 * 8 * 4]


@pytest.mark.parametrize("planned_input", [True, False])
@pytest.mark.parametrize("planned_output", [True, False])
def test_inputs_and_outputs_are_planned_or_not(planned_input, planned_output):
    program = lower(lambda x: x.view(8, 2).exp().sin(), torch.randn(4, 4))
    MemoryPlanningPass(alloc_graph_input=planned_input, alloc_graph_output=planned_output)(program)
    source = next(n for n in program.graph.nodes if n.op == "placeholder").meta["spec"]
    assert (source.mem_offset is not None) == planned_input
    assert (spec(program, "sin").mem_offset is not None) == planned_output
    view = next(node for node in program.graph.nodes if "alias" in node.meta).meta["spec"]
    assert view.root is source and (view.mem_offset is not None) == planned_input
    assert spec(program, "exp").mem_offset is not None


def test_alias_in_memory_of_the_caller_becomes_a_copy():
    program = lower(lambda x: (x.exp().sin(),), torch.randn(16))
    last = nodes(program)["sin"]
    last.meta["alias"] = (nodes(program)["exp"], 0)
    MemoryPlanningPass()(program)
    assert last.meta["spec"].base is nodes(program)["exp"].meta["spec"]
    MemoryPlanningPass(alloc_graph_output=False)(program)
    assert last.meta["spec"].base is None and last.meta["spec"].mem_offset is None
    assert nodes(program)["exp"].meta["spec"].mem_offset is not None


def test_a_part_of_a_constant_becomes_a_copy():
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(4, 16))

        def forward(self, x):
            return x + self.table

    program = lower(Part(), torch.randn(4, 16))
    add = nodes(program)["add"]
    table = next(node for node in program.graph.nodes if node.target == "p_table")
    for offset, shared in ((0, True), (64, False)):
        add.meta["alias"] = (table, offset)
        MemoryPlanningPass()(program)
        assert (add.meta["spec"].base is not None) == shared


def shares(program, name, other):
    return spec(program, name).root is spec(program, other).root


def test_pointwise_results_overwrite_operands_after_their_last_use():
    def forward(x, w):
        hidden = x @ w
        return (hidden.relu() * 2 + hidden.shape[0]).view(-1).sin().sum()

    program = lower(forward, torch.randn(8, 2), torch.randn(2, 8))
    MemoryPlanningPass(overwrite_operands=False)(program)
    assert sizes(program) == [0, 2 * 256]
    MemoryPlanningPass()(program)
    for name in ("relu", "mul", "add", "sin"):
        assert shares(program, name, "mm")
    assert sizes(program) == [0, 2 * 64 + 256]


@pytest.mark.parametrize(
    ("forward", "result", "operand"),
    [
        (lambda x, w: x.exp(), "exp", "args_0"),  # an input, which the next call may read
        (lambda x, w: ((y := x @ w).exp(), y.sin() + y), "exp", "mm"),  # read later
        (lambda x, w: ((y := x @ w).exp(), y.view(-1).sum()), "exp", "mm"),  # read later through an alias
        (lambda x, w: (x @ w)[0] + x, "add", "mm"),  # broadcast
        (lambda x, w: (x @ w) > 0, "gt", "mm"),  # another dtype
        (lambda x, w: (x @ w).softmax(0).exp(), "_softmax", "mm"),  # not pointwise
    ],
)
def test_operands_that_are_needed_are_not_overwritten(forward, result, operand):
    program = lower(forward, torch.randn(8, 8), torch.randn(8, 8))
    MemoryPlanningPass()(program)
    assert not shares(program, result, operand)


def test_results_that_the_caller_owns_overwrite_nothing():
    program = lower(lambda x, w: (x @ w).exp(), torch.randn(8, 8), torch.randn(8, 8))
    MemoryPlanningPass()(program)
    assert shares(program, "exp", "mm")
    MemoryPlanningPass(alloc_graph_output=False)(program)
    assert not shares(program, "exp", "mm") and spec(program, "exp").mem_offset is None
    # Planning the same specs with other options removes the previous decisions.
    MemoryPlanningPass(overwrite_operands=False).run(program.graph_module, program.graph_signature)
    assert not shares(program, "exp", "mm")


def test_operands_in_another_memory_are_not_overwritten():
    program = assign_specs(lower(lambda x, w: (x @ w).exp(), torch.randn(8, 8), torch.randn(8, 8)))
    spec(program, "exp").mem_id = 2
    MemoryPlanningPass().run(program.graph_module, program.graph_signature)
    assert not shares(program, "exp", "mm") and sizes(program)[2] == 256


def first_fit(alignment, specs, graph_module, graph_signature, extra_padding):
    """A user's algorithm that sets the locations in the specs and returns the sizes."""
    placed, top = [], 0
    for each in specs:
        each.mem_id, at = 1, 0
        for other in sorted(placed, key=lambda s: s.mem_offset):
            end = other.mem_offset + other.allocated_memory
            if Verifier.lifetime_overlap(each, other) and other.mem_offset - each.allocated_memory < at < end:
                at = end
        each.mem_offset = at
        placed.append(each)
        top = max(top, at + each.allocated_memory)
    return [0, top]


def everything_at_zero(alignment, specs, graph_module, graph_signature, extra_padding):
    """A user's algorithm that returns an invalid plan."""
    specs = list(specs)
    return MemoryAlgoResult({s: SpecAllocResult(1, 0, 0) for s in specs}, [0, max(s.nbytes() for s in specs)])


def test_a_users_algorithm_is_used_and_its_result_checked():
    program = lower(lambda x, y: x.exp().sin() + y.cos(), torch.randn(64), torch.randn(64))
    MemoryPlanningPass(first_fit)(program)
    assert sizes(program)[1] >= program.graph_module.meta["memory_bounds"][1]
    with pytest.raises(PlanError, match="share bytes") as caught:
        MemoryPlanningPass(everything_at_zero)(program)
    named = [name for name in nodes(program) if f"{name} (live" in str(caught.value)]
    assert len(named) == 2
    MemoryPlanningPass(everything_at_zero, allow_lifetime_and_storage_overlap=True)(program)
    assert sizes(program) == [0, 256]


def test_a_users_algorithm_must_place_everything_inside_its_buffers():
    def nowhere(alignment, specs, graph_module, graph_signature, extra_padding):
        return [0, 0]

    def outside(alignment, specs, graph_module, graph_signature, extra_padding):
        return MemoryAlgoResult({s: SpecAllocResult(1, i, 1024 * i) for i, s in enumerate(specs)}, [0, 1024])

    def crooked(alignment, specs, graph_module, graph_signature, extra_padding):
        return MemoryAlgoResult({s: SpecAllocResult(1, i, 1000 * i) for i, s in enumerate(specs)}, [0, 9000])

    program = lower(lambda x: x.exp().sin(), torch.randn(64))
    for algorithm, message in (
        (nowhere, "did not place"),
        (outside, "exceeds its buffer"),
        (crooked, "multiple of 16"),
    ):
        with pytest.raises(PlanError, match=message):
            MemoryPlanningPass(algorithm)(copy.deepcopy(program))


def test_suite_applies_the_smallest_result():
    program = lower(lambda x: x.exp().sin().cos().tanh(), torch.randn(64))
    MemoryPlanningPass(MemoryPlanningAlgorithmSuite([memory_planning.naive]), overwrite_operands=False)(
        program
    )
    assert sizes(program) == [0, 5 * 256]
    MemoryPlanningPass(
        MemoryPlanningAlgorithmSuite([memory_planning.naive, memory_planning.greedy]),
        overwrite_operands=False,
    )(program)
    assert sizes(program) == [0, 2 * 256]


def test_verifier_rejects_live_tensors_that_share_bytes():
    program = lower(lambda x, y: x.exp() + y, torch.randn(64), torch.randn(64))
    MemoryPlanningPass(memory_planning.naive)(program)
    verifier = Verifier(program.graph_module)
    assert verifier.verify_storage_reuse() == 0
    first, second = (n.meta["spec"] for n in list(program.graph.nodes)[:2])
    second.mem_offset = first.mem_offset + 16
    with pytest.raises(PlanError, match="share bytes"):
        verifier.verify_storage_reuse()
    assert verifier.verify_storage_reuse(allow_lifetime_and_storage_overlap=True) >= 1


def test_methods_share_their_state():
    class Read(Counter):
        def forward(self, x):
            return self.count + x

    write, read = lower(Counter(), torch.randn(4)), lower(Read(), torch.randn(4))
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    planning(write)
    planning(read)
    planning.run_multimethod()
    places = []
    for program in (write, read):
        state_spec = next(n for n in program.graph.nodes if n.target == "b_count").meta["spec"]
        assert not state_spec.const
        places.append((state_spec.mem_id, state_spec.mem_offset))
        assert sizes(program)[2] == 16
    assert places == [(2, 0), (2, 0)]
    with pytest.raises(ValueError, match="share_mutable_buffers"):
        MemoryPlanningPass(alloc_mutable_buffers=False, share_mutable_buffers=True)


def test_offsets_keep_to_the_alignment():
    program = lower(lambda x: (x.exp(), x.sin(), x.cos()), torch.randn(3))
    MemoryPlanningPass(alignment=64)(program)
    specs = {s for node in program.graph.nodes for s in specs_of(node)}
    assert {s.mem_offset % 64 for s in specs} == {0} and all(s.allocated_memory == 64 for s in specs)


def test_unused_results_have_separate_storage():
    program = lower(lambda x: torch.max_pool2d(x, 2).exp(), torch.randn(1, 1, 8, 8))
    MemoryPlanningPass()(program)
    pool = next(node for node in program.graph.nodes if len(specs_of(node)) == 2)
    values, indices = specs_of(pool)
    assert indices.lifetime[0] == indices.lifetime[1] and not Verifier.storage_overlap(values, indices)


def test_planning_twice_yields_equal_locations():
    program = lower(lambda x: (x.exp() + 1).view(4, 16).sin(), torch.randn(64))

    def places():
        MemoryPlanningPass()(program)
        return [(s.mem_id, s.mem_offset) for node in program.graph.nodes for s in specs_of(node)]

    assert places() == places()


def test_lifetimes_can_be_computed_separately():
    program = assign_specs(lower(lambda x: x.exp().sin(), torch.randn(64)))
    owners = update_all_tensors_lifetime(program.graph_module, program.graph_signature)
    assert [each.lifetime for each in owners] == [[0, 1], [1, 2], [2, 3]]
    assert all(each.mem_offset is None for each in owners)


def test_specs_of_layouts():
    channels_last = torch.randn(1, 3, 4, 5).to(memory_format=torch.channels_last)
    tensor_spec = TensorSpec.from_tensor(channels_last)
    assert tensor_spec.dim_order == (0, 2, 3, 1) and tensor_spec.stride == channels_last.stride()
    assert TensorSpec.from_tensor(torch.randn(4, 5).t()).stride == (4, 1)
    assert TensorSpec.from_tensor(
        torch.randn(4, 1, 5, 5).to(memory_format=torch.channels_last)
    ).dim_order == (0, 1, 2, 3)
    assert TensorSpec.from_tensor(torch.randn(3, 1).expand(3, 4)).stride == (4, 1)
    assert TensorSpec.from_tensor(torch.tensor(1.0)).nbytes() == 4
    assert TensorSpec.from_tensor(torch.zeros(2, 0)).allocated_memory == 0
    assert "float32" in repr(tensor_spec) and "dim_order" in repr(tensor_spec)


def test_view_with_a_larger_maximum_has_room_for_its_base():
    """The view has n // 4 rows and n // (n // 4) groups, whose maximum values are those of different n."""
    rows = torch.export.Dim.DYNAMIC(min=2, max=64)
    program = lower(lambda x: x.relu().view(-1, 12).neg(), torch.randn(8, 3), dynamic_shapes=({0: rows},))
    sizes = map(upper_bound, nodes(program)["view"].meta["val"].shape)
    assert math.prod(size or 0 for size in sizes) > 64 * 3
    spec = nodes(assign_specs(program))["view"].meta["spec"]
    assert spec.base is not None and spec.nbytes() == spec.base.nbytes() == 64 * 3 * 4
    assert spec.is_upper_bound_tensor
