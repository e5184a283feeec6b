# SPDX-License-Identifier: BSD-3-Clause
# The last stage: aliases, in-place updates of buffers, out variants.

import pytest
import torch
from graphs import Counter, called, lower, results
from torch import nn

import torchette
from torchette.errors import MissingOutVariantError
from torchette.exir import ops


def test_views_without_movement_are_aliases():
    def forward(x):
        y = x.exp()
        y = y.view(6).unsqueeze(0).permute(1, 0).reshape(2, 1, 3).transpose(0, 1)
        return y.squeeze(0) * 2

    program, report = lower(forward, (torch.randn(2, 3),))
    assert [name for name in called(program) if not name.endswith("@")] == ["exp.out", "mul.out"]
    assert "copies became aliases" in report.notes("eliminate_views")[-1]
    program, _ = lower(forward, (torch.randn(2, 3),), disable_passes={"eliminate_views"})
    assert not any(name.endswith("@") for name in called(program))


def test_split_with_sizes_that_the_input_determines() -> None:
    class Split(torch.nn.Module):
        def forward(self, x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
            rows = (x[:, 0] > 0).to(torch.float32).unsqueeze(1) + x
            parts = torch.sort(rows, 0)[0].split(counts.tolist())
            return torch.cat([part * index for index, part in enumerate(parts)])

    inputs = torch.randn(6, 3), torch.tensor([1, 3, 2])
    compiled = torchette.compile(Split().eval(), inputs)
    for counts in ([1, 3, 2], [0, 6, 0], [2, 2, 2]):
        inputs = inputs[0], torch.tensor(counts)
        torch.testing.assert_close(compiled(*inputs), Split()(*inputs))


def test_a_permutation_that_moves_is_a_copy():
    program, _ = lower(lambda x: x.exp().transpose(0, 1) * 2, (torch.randn(2, 3),))
    assert called(program) == ["exp.out", "permute_copy.out", "mul.out"]


def test_parts_along_the_outermost_dimension_are_aliases_with_offsets():
    def forward(x):
        a, b, c = x.exp().unbind(0)
        d, e = x.sin().split([1, 2])
        return a * b * c, d * e, x.cos()[1:] * 2, x.tan()[:, 1] * 2

    program, _ = lower(forward, (torch.randn(3, 4),))
    offsets = [n.meta["alias"][1] for n in program.graph.nodes if "alias" in n.meta]
    assert sorted(filter(None, offsets)) == [16, 16, 16, 32]
    assert "select_copy.int_out" in called(program)  # of the inner dimension


def test_inputs_outputs_and_constants_have_separate_storage():
    def forward(x):
        return x[1:] * 2, x.exp().view(6), x.view(6) * 2

    program, _ = lower(forward, (torch.randn(2, 3),))
    names = called(program)
    assert "slice_copy.Tensor_out" in names  # the middle of an input
    assert "view_copy.out" in names  # an output
    assert "view_copy.default@" in names  # all elements of an input


def test_dynamic_views_have_size_operands():
    n = torch.export.Dim("n", max=8)
    program, _ = lower(
        lambda x: x.exp().unsqueeze(1).reshape(-1, 6) * 2, (torch.randn(3, 6),), dynamic_shapes=({0: n},)
    )
    aliases = [node for node in program.graph.nodes if "alias" in node.meta]
    assert aliases and all(
        len([s for s in node.args[1] if s == -1 or isinstance(s, torch.fx.Node)]) <= 1 for node in aliases
    )


def test_dynamic_size_of_a_tensor_without_elements_is_not_inferred():
    n = torch.export.Dim("n", max=8)
    program, _ = lower(
        lambda x: x[:, :0].exp().unsqueeze(1) * 2, (torch.randn(3, 6),), dynamic_shapes=({0: n},)
    )
    assert not any(-1 in node.args[1] for node in program.graph.nodes if "alias" in node.meta)


def test_counter_writes_in_place():
    program, report = lower(Counter(), (torch.randn(4),))
    assert called(program) == ["add.out!", "mul.out"]
    assert report.notes("update_buffers_in_place") == ["1 buffers updated in place, 0 copied back"]


class Cache(nn.Module):
    def __init__(self, read_old=False, returns_new=False):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4, 2))
        self.read_old, self.returns_new = read_old, returns_new

    def forward(self, at, x):
        old = self.cache.clone() if self.read_old else None
        self.cache.index_copy_(0, at, x)
        result = self.cache.sum(0)
        if self.read_old:
            result = result + old.sum(0)
        return self.cache if self.returns_new else result


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, "index_put.out!"), ({"read_old": True}, "copy.out!"), ({"returns_new": True}, "copy.out!")],
    ids=["in_place", "read_old", "returns_new"],
)
def test_cache_is_updated_in_place_unless_the_old_value_is_needed(options, expected):
    inputs = (torch.tensor([2]), torch.ones(1, 2))
    program, _ = lower(Cache(**options), inputs)
    in_place = [name for name in called(program) if name.endswith("!")]
    assert in_place == [expected]
    torch.testing.assert_close(results(program, inputs)[0], Cache(**options)(*inputs))


class Swap(nn.Module):
    """Swaps two buffers and returns an old value."""

    def __init__(self):
        super().__init__()
        self.register_buffer("a", torch.zeros(2))
        self.register_buffer("b", torch.ones(2))

    def forward(self, x):
        a, b = self.a.clone(), self.b.clone()
        self.a.copy_(b)
        self.b.copy_(a)
        return x + 1, b


def test_old_values_are_kept_before_they_are_overwritten():
    program, _ = lower(Swap(), (torch.randn(2),))
    order = [(n.name, n) for n in program.graph.nodes if n.op == "call_function"]
    first_write = min(i for i, (_, n) in enumerate(order) if "in_place" in n.meta)
    written = {n.meta["in_place"][0] for _, n in order if "in_place" in n.meta}
    for index, (_, node) in enumerate(order):
        reads_old = any(source in written for source in node.all_input_nodes)
        assert not reads_old or index < first_write or "in_place" in node.meta
    # The written values are copies, never the other buffer itself.
    for _, node in order:
        if "in_place" in node.meta:
            assert node.args[1] not in written


def test_all_missing_out_variants_are_reported_at_once():
    library = torch.library.Library("torchette_test_exec", "DEF")
    for name in ("one", "two"):
        # No out variant can be declared for a tensor together with a list.
        library.define(f"{name}(Tensor x) -> (Tensor, Tensor[])")
        library.impl(name, lambda x: (x + 1, [x + 2]), "CompositeExplicitAutograd")

    def forward(x):
        return torch.ops.torchette_test_exec.two(torch.ops.torchette_test_exec.one(x)[0])[0]

    with pytest.raises(MissingOutVariantError) as caught:
        lower(forward, (torch.randn(2),))
    assert caught.value.operators == ("torchette_test_exec.one", "torchette_test_exec.two")
    assert all(__file__ in place for place in caught.value.where)
    assert "library.define" in str(caught.value)


def test_every_call_writes_to_its_out_argument():
    program, _ = lower(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.randn(1, 3, 8),))
    for node in program.graph.nodes:
        if node.op == "call_function" and ops.is_operator(node.target):
            assert ops.is_out_variant(node.target) or "alias" in node.meta


def test_calls_that_need_no_instruction_are_marked():
    def forward(x, n):
        torch._check(n.item() <= 3)
        return torch.empty(0), x[: n.item()] * 2

    program, _ = lower(forward, (torch.randn(4), torch.tensor(2)))
    marked = {
        getattr(node.target, "__name__", "")
        for node in program.graph.nodes
        if node.meta.get("no_instruction")
    }
    assert {"empty.out", "le"} <= marked
    assert all(
        user.target is ops.assert_scalar
        for node in program.graph.nodes
        if node.meta.get("no_instruction") and node.target is not torch.ops.aten.empty.out
        for user in node.users
    )


def test_relations_of_input_sizes_are_recorded():
    n = torch.export.Dim("n", max=8)
    program, _ = lower(lambda x, y: x + y, (torch.randn(3), torch.randn(3)), dynamic_shapes=({0: n}, {0: n}))
    ((relation,), places) = program.graph_module.meta["size_relations"]
    assert "args_1.shape[0] must be args_0.shape[0]" in relation.text and places
