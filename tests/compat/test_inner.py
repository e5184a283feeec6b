# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's internal names that third-party programs import, and passes over whole programs.

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult
from torchette.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.compat import inner
from torchette.errors import PassError
from torchette.exir import to_edge, to_edge_transform_and_lower
from torchette.exir.memory.plan_memory import assign_specs
from torchette.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult, ProxyValue
from torchette.exir.pass_manager import ExportedProgramPassManager, PassManager
from torchette.exir.tensor import TensorSpec

X = torch.ones(2, 4)


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


def edge(model: nn.Module | None = None) -> Any:
    return to_edge(torch.export.export(model or layers(), (X,)))


class Doubled(ExportedProgramPassBase):
    """A pass over a program, with access to its stored tensors."""

    num_calls = 0

    def call(self, program: ExportedProgram) -> ExportedProgramPassResult:
        for name, value in program.state_dict.items():
            program.state_dict[name] = nn.Parameter(value.detach() * 2)
        return ExportedProgramPassResult(program, True)

    def ensures(self, program: ExportedProgram) -> None:
        self.num_calls += 1


def relu_to_neg(module: GraphModule) -> PassResult:
    nodes = module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    for node in nodes:
        node.target = torch.ops.aten.neg.default
    return PassResult(module, bool(nodes))


def test_program_and_graph_passes_run_in_order() -> None:
    program, double = edge().exported_program(), Doubled()
    result = ExportedProgramPassManager([relu_to_neg, double], run_checks_after_each_pass=True)(program)
    assert isinstance(result, ExportedProgramPassResult) and result.modified and double.num_calls == 1
    first, _, last = layers()
    expected = nn.functional.linear(
        -nn.functional.linear(X, first.weight * 2, first.bias * 2), last.weight * 2, last.bias * 2
    )
    torch.testing.assert_close(result.exported_program.module()(X), expected)
    # also in `transform`
    assert (
        edge().transform([Doubled()]).exported_program().state_dict["0.weight"].sum()
        == first.weight.sum() * 2
    )


def test_nodes_that_call_a_method_are_found() -> None:
    def spoil(module: GraphModule) -> PassResult:
        with module.graph.inserting_before(module.graph.output_node()):
            module.graph.call_method("relu", (next(iter(module.graph.nodes)),))
        return PassResult(module, True)

    with pytest.raises(PassError, match="call_method"):
        PassManager([spoil], run_checks_after_each_pass=True)(edge().exported_program().graph_module)


def test_symbolic_sizes_are_not_specialized_by_passes() -> None:
    program = torch.export.export(layers(), (X,), dynamic_shapes=({0: torch.export.Dim("n", max=8)},))
    size = next(n.meta["val"] for n in program.graph.nodes if n.name == "input").shape[0]
    for function in (bool, int, range):
        with pytest.raises(PassError, match="known at run time"):
            function(ProxyValue(size, torch.fx.Graph().placeholder("x")))
    assert int(ProxyValue(3, torch.fx.Graph().placeholder("x"))) == 3


def test_pass_registry() -> None:
    inner.PassRegistry.register()(relu_to_neg)
    inner.PassRegistry.register_list("both", [relu_to_neg, Doubled()])
    assert inner.PassRegistry.get("relu_to_neg") == [relu_to_neg] and len(inner.PassRegistry.get("both")) == 2


def test_experimental_name_warns() -> None:
    @inner.experimental("it may go")
    def function() -> int:
        return 1

    with pytest.warns(inner.ExperimentalWarning, match="it may go"):
        assert function() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layers()


def test_fake_program_becomes_real() -> None:
    program = torch.export.export(layers(), (X,))
    fake = inner.get_fake_program(program)
    assert all(isinstance(value, torch._subclasses.FakeTensor) for value in fake.state_dict.values())
    inner.update_to_real_program(fake, program)
    torch.testing.assert_close(fake.module()(X), layers()(X))


def test_calls_in_branches_are_found() -> None:
    class Branch(nn.Module):
        def forward(self, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(flag, lambda x: x.sin(), lambda x: x.cos(), (x,))

    module = torch.export.export(Branch(), (torch.tensor(True), X)).graph_module
    assert inner.contains_any_call_fn_target_op(module, {torch.ops.aten.cos.default})
    assert not inner.contains_any_call_fn_target_op(module, {torch.ops.aten.tan.default})
    assert [node.name for node in inner.get_cond_nodes(module)] == ["cond"] and inner.get_while_nodes(
        module
    ) == []


def test_nodes_move_into_submodule() -> None:
    module = edge().exported_program().graph_module
    inputs = [torch.randn(node.meta["val"].shape) for node in module.graph.find_nodes(op="placeholder")]
    expected = module(*inputs)
    nodes = [node for node in module.graph.nodes if node.op == "call_function"][:2]
    part, call = inner.create_submodule_from_nodes(module, nodes, "part")
    module.recompile()
    assert call.op == "call_module" and call.target == "fused_part"
    assert len(part.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)) == 1
    torch.testing.assert_close(module(*inputs), expected)


def test_out_variants() -> None:
    assert inner.to_out_variant(torch.ops.aten.topk.default) == (
        torch.ops.aten.topk.values,
        ("values", "indices"),
    )
    assert inner.is_out_variant("aten::topk", "values") and not inner.is_out_variant("aten::topk", "")
    assert inner.is_inplace_variant("aten::add_", "Tensor") and not inner.is_inplace_variant(
        "aten::add", "Tensor"
    )


def test_specs_from_nodes() -> None:
    program = assign_specs(edge().exported_program())
    nodes, signature = program.graph.nodes, program.graph_signature

    def count(**options: bool) -> int:
        return len(list(inner.collect_specs_from_nodes(nodes, signature, **options)))

    assert count() == 4  # the input and three calls
    assert count(ignore_graph_input=True) == 3 and count(ignore_graph_output=True) == 3
    assert count(ignore_const=False) == 8


def test_tensors_share_memory_slots() -> None:
    def spec(size: int, first: int, last: int) -> TensorSpec:
        new_spec = TensorSpec(torch.uint8, [size])
        new_spec.lifetime = [first, last]
        return new_spec

    def plan(*specs: TensorSpec, overlapping: bool) -> tuple[list[int], int]:
        slots: list[inner.SharedObject] = []
        places = [inner.pick_shared_obj(slots, one, overlapping).idx for one in specs]
        return places, sum(slot.size for slot in slots)

    tensors = spec(256, 6, 7), spec(128, 0, 4), spec(128, 1, 1)
    assert plan(*tensors, overlapping=True) == ([0, 0, 0], 256)  # the last one is after the second
    assert plan(*tensors, overlapping=False) == ([0, 0, 1], 384)


def test_unused_parameters_are_removed() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
            self.register_buffer("kept", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.used

    program = inner.remove_unused_parameters_pass(torch.export.export(Unused(), (X,)))
    assert set(program.state_dict) == {"used", "kept"} and program.module()(X).sum() == 16


def test_empty_tensors_are_not_concatenated() -> None:
    class Joined(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x.new_zeros(0, 4), x])

    program = torch.export.export(Joined(), (X,))
    module = inner.PruneEmptyTensorsPass()(program.graph_module).graph_module
    (cat,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    assert len(cat.args[0]) == 2


def test_tagged_constants_are_stored_in_data_file() -> None:
    program = assign_specs(edge().exported_program())
    assert inner.external_constants_pass(
        program.graph_module, lambda node: "w" if "weight" in node.name else None
    ).modified
    manager = edge().transform([lambda module: inner.external_constants_pass(assign(module))]).to_executorch()
    assert list(manager._tensor_data) == ["_default_external_constant"]


def assign(module: GraphModule) -> GraphModule:
    for node in module.graph.find_nodes(op="placeholder"):
        node.meta["spec"] = TensorSpec.from_tensor(node.meta["val"], const="weight" in node.name)
    return module


def test_delegated_weights_are_stored_in_tagged_files() -> None:
    captured = torch.export.export(layers(), (X,)).module()
    tags = {"0": "first", "2": None}
    inner.delegate_external_constants_pass_unlifted(
        captured, lambda node: tags[str(node.target).partition(".")[0]]
    )
    exported = torch.export.export(captured, (X,), strict=True)
    manager = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()
    assert list(manager._tensor_data) == ["first"]
    module = _load_for_executorch_from_buffer(manager.buffer, bytes(manager._tensor_data["first"]))
    torch.testing.assert_close(module.forward((X,))[0], layers()(X))


def test_pass_bound_to_program_edits_the_result() -> None:
    class Doubling:
        def __init__(self, program: ExportedProgram) -> None:
            self.exported_program = program

        def __call__(self, module: GraphModule) -> PassResult:
            assert module is self.exported_program.graph_module
            return PassResult(module, Doubled()(self.exported_program).modified)

    before = edge()
    double = Doubling(before.exported_program())
    after = before.transform([double]).exported_program()
    first = layers()[0].weight
    assert torch.equal(after.state_dict["0.weight"], first * 2)
    assert double.exported_program is before.exported_program() is not after
    assert torch.equal(before.exported_program().state_dict["0.weight"], first)


def test_patch_forward() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.count

        def get(self) -> torch.Tensor:
            return self.count.clone()

    model = Counter()
    before = model.forward
    with inner.patch_forward(model, model.get):
        exported = torch.export.export(model, ())
    assert torch.equal(exported.module()(), torch.zeros(1)) and model.forward == before


def test_schemas_and_out_arguments() -> None:
    known = inner.get_schema_for_operators(["torch.ops.aten.add.Tensor", "torch.ops.aten.no_such.default"])
    assert (
        list(known) == ["torch.ops.aten.add.Tensor"]
        and "Scalar alpha=1" in known["torch.ops.aten.add.Tensor"]
    )
    x = torch.ones(2)
    assert inner.extract_out_arguments(torch.ops.aten.abs.out._schema, {"out": x}) == ("out", x)
    two = inner.extract_out_arguments(torch.ops.aten.topk.values._schema, {"values": x, "indices": x})
    assert [name for name, _ in two] == ["values", "indices"]


def test_unsupported_dtypes_are_found() -> None:
    class Absolute(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.abs()

    program = edge(Absolute()).exported_program()
    validator = inner.EdgeOpArgValidator(program.graph_module)
    validator.run(X)
    assert validator.violating_ops == {}
    validator.run(X.to(torch.complex64))
    ((op, (dtypes, node)),) = validator.violating_ops.items()
    assert op == torch.ops.aten.abs.default and node.target == op
    assert dtypes == {"self": torch.complex64, "__ret_0": torch.float32}


def test_tensor_records() -> None:
    from torchette.exir.tensor import (
        get_scalar_type,
        make_allocation_info,
        make_tensor_value,
        num_bytes_from_shape_and_dtype,
        scalar_type_enum,
    )

    where = make_allocation_info(1, 2**33 + 5)
    assert (where.memory_id, where.memory_offset_low, where.memory_offset_high) == (1, 5, 2)
    with pytest.raises(ValueError, match="offset -1: both must be 0 or greater"):
        make_allocation_info(0, -1)
    record = make_tensor_value(3, where, TensorSpec.from_tensor(torch.ones(2, 5, dtype=torch.int16)))
    assert (record.sizes, record.dim_order, record.data_buffer_idx) == ([2, 5], [0, 1], 3)
    assert (
        get_scalar_type(record.scalar_type) is torch.int16
        and scalar_type_enum(torch.int16) == record.scalar_type
    )
    assert num_bytes_from_shape_and_dtype((2, 3, 4), torch.float16) == 48
