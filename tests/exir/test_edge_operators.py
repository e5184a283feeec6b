# SPDX-License-Identifier: BSD-3-Clause
# Edge operators: torch's operators with dtypes, in the programs that users see, under both names.

import copy
import pickle

import pytest
import torch
from graphs import ConvNet, export
from torch import nn
from torch.fx.subgraph_rewriter import replace_pattern

import torchette
from torchette.errors import DialectError, MissingOutVariantError
from torchette.exir import EdgeCompileConfig, ExecutorchBackendConfig, dialects, to_edge
from torchette.exir.dialects._ops import EdgeOpOverload
from torchette.exir.dialects._ops import ops as exir_ops
from torchette.exir.pass_base import ExportPass

aten = torch.ops.aten
edge = exir_ops.edge.aten
X = torch.randn(2, 3)


def edge_program(function, *args):
    return to_edge(export(function, args))


def targets(program):
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def test_every_operator_of_an_edge_program_is_an_edge_operator():
    manager = to_edge(export(ConvNet(), (torch.randn(2, 3, 8, 8),)))
    program = manager.exported_program()
    assert len(targets(program)) == 5 and all(isinstance(t, EdgeOpOverload) for t in targets(program))
    assert all(t._schema.dtype_constraint for t in targets(program))
    dialects.verify(program, "edge")
    transformed = manager.transform([lambda module: None]).exported_program()
    assert all(isinstance(t, EdgeOpOverload) for t in targets(transformed))
    # Emitted programs call out variants, also in branches of control flow.
    assert not any(isinstance(t, EdgeOpOverload) for t in targets(manager.to_executorch().exported_program()))
    branches = edge_program(
        lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), X
    ).exported_program()
    inner = [n.target for m in (branches.graph_module.true_graph_0, branches.graph_module.false_graph_0)
             for n in m.graph.nodes if n.op == "call_function"]  # fmt: skip
    assert inner == [edge.sin.default, edge.cos.default] and all(isinstance(t, EdgeOpOverload) for t in inner)


def test_there_is_one_object_per_overload_and_it_equals_torchs():
    op = edge.add.Tensor
    assert (
        op is exir_ops.edge.aten.add.Tensor is targets(edge_program(lambda x: x + x, X).exported_program())[0]
    )
    assert op == aten.add.Tensor and aten.add.Tensor == op and hash(op) == hash(aten.add.Tensor)
    assert op in {aten.add.Tensor} and aten.add.Tensor in {op: 1} and op in (aten.add.Tensor,)
    assert op != aten.add.Scalar and op != edge.add.Scalar and op != edge.sub.Tensor
    assert pickle.loads(pickle.dumps(op)) is op and copy.deepcopy(op) is op
    assert str(op) == "aten.add.Tensor" and "EdgeOpOverload" in repr(op)
    assert isinstance(exir_ops.aten.add.Tensor, torch._ops.OpOverload)
    with pytest.raises(AttributeError):
        _ = edge.add.Nonsense


def test_edge_operators_run_eagerly_and_know_their_out_variants():
    assert torch.equal(edge.add.Tensor(X, X, alpha=2), X * 3)
    assert torch.equal(edge.add(X, X), X * 2)
    assert edge.add.Tensor.to_out_variant() is aten.add.out
    order = exir_ops.edge.dim_order_ops._to_dim_order_copy.default
    assert order(X, dtype=torch.float64).dtype == torch.float64
    with pytest.raises(MissingOutVariantError):
        edge.sym_is_contiguous.default.to_out_variant()


def test_schemas_report_dtypes():
    schema = edge.bitwise_and.Tensor._schema
    supported = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    constraint = schema.dtype_constraint
    assert (
        supported <= constraint["self"] == constraint["__ret_0"] and torch.float32 not in constraint["self"]
    )
    assert schema.arguments[0].allowed_types == constraint["self"] and schema.arguments[0].name == "self"
    assert schema.returns[0].allowed_types == constraint["__ret_0"]
    assert constraint.validate({"self": torch.int8, "other": torch.int8, "__ret_0": torch.int8})
    assert not constraint.validate({"self": torch.int8, "other": torch.int8, "__ret_0": torch.int64})
    assert not constraint.validate({"nobody": torch.int8})
    assert "self" in constraint and "alpha" not in edge.add.Tensor._schema.dtype_constraint
    assert edge.lt.Tensor._schema.dtype_constraint["__ret_0"] == {torch.bool}
    assert str(schema) == str(aten.bitwise_and.Tensor._schema) and schema == aten.bitwise_and.Tensor._schema


class ByEdge(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        return super().call_operator(edge.sub.Tensor if op == edge.add.Tensor else op, args, kwargs, meta)


class ByTorch(ExportPass):
    def call_operator(self, op, args, kwargs, meta):
        op = {aten.add.Tensor: aten.sub.Tensor}.get(op, op)
        return super().call_operator(op, args, kwargs, meta)


def by_identity(graph_module):
    for node in graph_module.graph.nodes:
        if node.target is edge.add.Tensor:
            node.target = edge.sub.Tensor


def by_lookup(graph_module):
    for node in graph_module.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        node.target = aten.sub.Tensor


@pytest.mark.parametrize(
    "run",
    [ByEdge(), ByTorch(), by_identity, by_lookup],
    ids=lambda r: getattr(r, "__name__", type(r).__name__),
)
def test_passes_may_name_operators_either_way(run):
    manager = edge_program(lambda x: x + x, X)
    changed = manager.transform([run])
    assert targets(changed.exported_program()) == [edge.sub.Tensor]
    assert targets(changed.exported_program())[0] is edge.sub.Tensor
    assert set(changed.to_executorch().operators()) == {"aten::sub.out"}
    late = manager.to_executorch(ExecutorchBackendConfig(passes=[run]))
    assert set(late.operators()) == {"aten::sub.out"}


def test_edge_programs_run_and_can_be_saved_and_exported_again(tmp_path):
    module = ConvNet().eval()
    x = torch.randn(2, 3, 8, 8)
    program = to_edge(export(module, (x,))).exported_program()
    torch.testing.assert_close(program.module()(x), module(x))
    torch.export.save(program, tmp_path / "edge.pt2")
    loaded = torch.export.load(tmp_path / "edge.pt2")
    dialects.verify(loaded, "edge")
    again = to_edge(loaded)
    assert targets(again.exported_program()) == targets(program)
    assert targets(program.run_decompositions({})) == targets(program)
    assert all(isinstance(t, EdgeOpOverload) for t in targets(copy.deepcopy(program)))


def test_preserved_operators_may_be_named_either_way():
    config = EdgeCompileConfig(preserve_ops=[edge.silu.default])
    program = to_edge(export(nn.SiLU(), (X,)), compile_config=config).exported_program()
    assert targets(program) == [aten.silu.default]


def violation(program):
    with pytest.raises(DialectError) as caught:
        dialects.verify(program, "edge")
    return caught.value


def test_scalar_and_dtype_errors_name_operator_argument_and_supported_dtypes():
    def forward(x, y):
        return torch.minimum(x, x), y.bitwise_not()

    program = edge_program(forward, X, X.int()).exported_program()
    minimum, bits = [n for n in program.graph.nodes if n.op == "call_function"]
    minimum.args = (minimum.args[0], 2.0)
    bits.args = (minimum.args[0],)
    error = violation(program)
    assert [v.code for v in error.violations] == ["number-for-tensor", "dtype-not-allowed"]
    number, dtype = (str(v) for v in error.violations)
    assert "argument other of aten.minimum.default is the scalar 2.0" in number
    assert (
        "aten.bitwise_not.default: argument self is float32; supported: bool, uint8, int8, int16, int32, int64"
        in dtype
    )
    assert f"{__file__}:" in number and "y.bitwise_not()" in dtype


def test_unsupported_dtype_combinations_are_rejected():
    program = edge_program(lambda x: x.sum(0), X).exported_program()
    (node,) = [n for n in program.graph.nodes if n.op == "call_function"]
    node.target, node.args = edge.index_select.default, (node.args[0], 0, node.args[0])
    error = violation(program)
    assert error.code == "dtype-not-allowed" and "argument index is float32; supported: int32, int64" in str(
        error
    )
    program = edge_program(lambda x, y: x @ y, X, X.t().contiguous()).exported_program()
    placeholder = next(n for n in program.graph.nodes if n.op == "placeholder")
    placeholder.meta["val"] = placeholder.meta["val"].double()
    error = violation(program)
    assert "argument self is float64, argument mat2 is float32" in str(error) and "not supported" in str(
        error
    )
    assert "argument self float64, argument mat2 float64" in str(error)


def test_dtype_without_kernel_is_rejected_ahead_of_time_with_the_line():
    def forward(x):
        y = x.clone()  # the line
        return y, y.view(3, 2)

    manager = edge_program(forward, X.to(torch.uint16))
    with pytest.raises(DialectError) as caught:
        manager.to_executorch()
    assert caught.value.code == "no-kernel-for-dtype"
    assert f"{__file__}:" in str(caught.value) and "# the line" in str(caught.value)
    assert "aten.clone.out supports these dtypes: argument self is uint16; supported: bool, uint8" in str(
        caught.value
    )


class Kept(nn.Module):
    """State of a dtype, which is written and read."""

    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("state", torch.zeros(3, dtype=dtype))

    def forward(self, x):
        self.state.copy_(x)
        return self.state[1:], x


class Viewed(nn.Module):
    def forward(self, x):
        return x, x.view(3, 1), x.clone()


class Chosen(nn.Module):
    def forward(self, x):
        return torch.cond(x[0] > 0, lambda x: x.clone(), lambda x: x.flip(0), (x,))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.bfloat16, torch.int16], ids=str)
@pytest.mark.parametrize("kind", [Kept, Viewed, Chosen])
def test_dtype_is_rejected_ahead_of_time_or_runs(kind, dtype):
    module = kind(dtype) if kind is Kept else kind()
    x = torch.tensor([1, 0, 3]).to(dtype)
    try:
        model = torchette.compile(module, (x.clone(),))
    except DialectError as error:
        assert error.code in ("no-kernel-for-dtype", "dtype-not-allowed") and dtype is torch.uint16
        return
    results, expected = model(x.clone()), module(x.clone())
    several = isinstance(expected, tuple)
    for result, reference in zip(
        results if several else [results], expected if several else [expected], strict=True
    ):
        torch.testing.assert_close(torch.as_tensor(result), reference, rtol=0, atol=0)


def test_torch_tools_accept_edge_programs():
    def forward(x, y):
        return (x + y).relu()

    module = edge_program(forward, X, X.clone()).exported_program().graph_module
    assert all(n.normalized_arguments(module) for n in module.graph.nodes if n.op == "call_function")
    assert "torch.ops.aten.add.Tensor" in module.print_readable(print_output=False)
    patterns = (
        lambda x, y: edge.relu.default(edge.add.Tensor(x, y)),
        lambda x, y: aten.relu.default(aten.add.Tensor(x, y)),
    )
    for pattern in patterns:
        assert len(replace_pattern(copy.deepcopy(module), pattern, lambda x, y: edge.sub.Tensor(x, y))) == 1
