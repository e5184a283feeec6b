# SPDX-License-Identifier: BSD-3-Clause
# One invalid graph per rule: each graph violates only this rule. The error names the node, the line of the model and a
# remedy. Verifiers accept valid programs at every stage.

import copy
import re
from pathlib import Path

import pytest
import torch
from graphs import ConvNet, Counter, Function, export, lower
from torch import nn
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec, TensorArgument

from torchette.errors import DialectError
from torchette.exir import dialects
from torchette.exir.dialects._ops import bind_pattern_to_op
from torchette.exir.dialects._refused import REFUSED
from torchette.exir.dialects.page import page as print_page
from torchette.exir.graph import copy_program, placeholders

aten = torch.ops.aten
X = torch.randn(2, 3)


def at(stage):
    """Returns a valid program at a stage, to be modified."""
    return copy_program(lower(Counter(), (torch.randn(4),), stage, check_passes=False)[0])


def call(program, target, args=(), kwargs=None, val=None):
    end = program.graph.output_node()
    with program.graph.inserting_before(end):
        node = program.graph.call_function(target, args, kwargs or {})
    if val is not None:
        node.meta["val"] = val
    return node


def first(program):
    return placeholders(program)[-1]


def broken_by(code):
    def register(function):
        BROKEN[code] = function
        return function

    return register


BROKEN = {}
KEPT = []  # libraries; their operators are removed when they are destroyed


@broken_by("not-an-operator")
def _(p=None):
    p = at("core")
    call(p, len, (first(p),), val=3)
    return p, "autograd_safe"


@broken_by("not-functional")
def _():
    p = at("core")
    call(p, aten.add_.Tensor, (first(p), first(p)), val=first(p).meta["val"])
    return p, "aten"


@broken_by("not-core")
def _():
    p = at("core")
    call(p, aten.silu.default, (first(p),), val=first(p).meta["val"])
    return p, "core_aten"


@broken_by("not-edge")
def _():
    p = at("edge")
    call(p, aten.view.default, (first(p), [4]), val=first(p).meta["val"])
    return p, "edge"


@broken_by("not-out-variant")
def _():
    p = at("exec")
    call(p, aten.sin.default, (first(p),), val=first(p).meta["val"])
    return p, "exec"


@broken_by("not-a-graph-call")
def _():
    p = at("core")
    with p.graph.inserting_before(p.graph.output_node()):
        p.graph.call_method("relu", (first(p),))
    return p, "core_aten"


@broken_by("bad-attribute")
def _():
    p = at("core")
    p.graph_module.number = 3
    with p.graph.inserting_before(p.graph.output_node()):
        p.graph.get_attr("number")
    return p, "aten"


@broken_by("bad-argument-type")
def _():
    p = at("core")
    node = call(p, aten.sin.default, (first(p),), val=first(p).meta["val"])
    node.args = (slice(0, 1),)
    return p, "core_aten"


@broken_by("bad-arguments")
def _():
    p = at("core")
    call(p, aten.add.Tensor, (first(p),), val=first(p).meta["val"])
    return p, "core_aten"


@broken_by("no-value")
def _():
    p = at("core")
    node = call(p, aten.sin.default, (first(p),))
    call(p, aten.cos.default, (node,), val=first(p).meta["val"])
    return p, "core_aten"


@broken_by("wrong-value")
def _():
    p = at("core")
    call(p, aten.topk.default, (first(p), 1), val=first(p).meta["val"])
    return p, "core_aten"


@broken_by("not-on-cpu")
def _():
    p = at("core")
    mode = first(p).meta["val"].fake_mode
    with mode:
        elsewhere = torch.empty(4, device="cuda")
    first(p).meta["val"] = elsewhere
    return p, "core_aten"


@broken_by("not-dense")
def _():
    p = at("core")
    first(p).meta["val"] = torch.randn(4).to_sparse()
    return p, "core_aten"


@broken_by("reshaped-in-place")
def _():
    return export(lambda x: x.t_() + 1, (torch.randn(4, 3),)), "autograd_safe"


@broken_by("resized-out")
def _():
    return export(lambda x, y: torch.neg(x, out=y[:0]), (torch.randn(4), torch.randn(2))), "autograd_safe"


@broken_by("other-memory")
def _():
    return export(lambda x: x.set_(x * 2) + 1, (torch.randn(4),)), "autograd_safe"


@broken_by("tensor-without-values")
def _():
    p = export(lambda x: x + torch.tensor([1.0, 2.0]), (torch.randn(2),))
    (name,) = p.constants
    p.constants[name] = torch.empty(2, device="meta")
    return p, "autograd_safe"


@broken_by("updated-constant")
def _():
    state = torch.zeros(2)
    return export(lambda x: state[0].add_(x) + 1, (torch.randn(()),)), "autograd_safe"


@broken_by("one-tensor-twice")
def _():
    x = torch.randn(4)
    return torch.export.export(Function(lambda x, y: x * 2 + y), (x, x)), "autograd_safe"


@broken_by("train-mode")
def _():
    p = at("core")
    val = first(p).meta["val"]
    call(p, aten.native_dropout.default, (first(p), 0.5, True), val=(val, val))
    return p, "core_aten"


@broken_by("number-for-tensor")
def _():
    p = at("edge")
    call(p, aten.minimum.default, (first(p), 2.0), val=first(p).meta["val"])
    return p, "edge"


@broken_by("scalar-overload")
def _():
    p = at("edge")
    # mul.Scalar is not in the core set, so that only this rule is violated; bitwise_and.Scalar is in the core set.
    call(p, aten.mul.Scalar, (first(p), 2.0), val=first(p).meta["val"])
    return p, "edge"


@broken_by("mixed-dtypes")
def _():
    p = at("edge")
    val = first(p).meta["val"]
    cast = call(p, aten._to_copy.default, (first(p),), {"dtype": torch.float64}, val=val.double())
    call(p, aten.mul.Tensor, (first(p), cast), val=val.double())
    return p, "edge"


@broken_by("memory-format")
def _():
    p = at("edge")
    call(p, aten.clone.default, (first(p),), {"memory_format": torch.channels_last}, val=first(p).meta["val"])
    return p, "edge"


@broken_by("not-natural-order")
def _():
    p = at("edge")
    val = first(p).meta["val"].new_empty(3, 2).t()
    call(p, aten.sin.default, (first(p),), val=val)
    return p, "edge"


@broken_by("unsupported-dtype")
def _():
    p = at("edge")
    call(p, aten.sin.default, (first(p),), val=first(p).meta["val"].to(torch.uint32))
    return p, "edge"


@broken_by("complex-tensor")
def _():
    p = at("edge")
    call(p, aten.sin.default, (first(p),), val=first(p).meta["val"].to(torch.complex128))
    return p, "edge"


@broken_by("dtype-not-allowed")
def _():
    p = at("edge")
    call(p, aten.bitwise_not.default, (first(p),), val=first(p).meta["val"])
    return p, "edge"


@broken_by("no-kernel-for-dtype")
def _():
    p = at("exec")
    val = first(p).meta["val"].to(torch.uint16)
    cast = call(p, aten._to_copy.out, (first(p),), val=val)
    call(p, aten.clone.out, (cast,), val=val).meta["functional"] = aten.clone.default
    return p, "exec"


@broken_by("not-its-pattern")
def _():
    library = torch.library.Library("broken_target", "FRAGMENT")
    KEPT.append(library)
    bind_pattern_to_op(library, "double(Tensor x) -> Tensor")(lambda x: aten.add.Tensor(x, x))
    p = at("edge")
    call(p, torch.ops.broken_target.double.default, (first(p),), val=first(p).meta["val"].double())
    return p, "backend"


@broken_by("rank-limit")
def _():
    p = at("edge")
    call(p, aten.sin.default, (first(p),), val=first(p).meta["val"].new_empty([1] * 17))
    return p, "edge"


@broken_by("bad-alias")
def _():
    p = at("exec")
    node = call(p, aten.view_copy.default, (first(p), [4]), val=first(p).meta["val"])
    node.meta["alias"] = (first(p), 4)
    return p, "exec"


@broken_by("bad-in-place")
def _():
    p = at("exec")
    node = call(p, aten.sin.out, (first(p),), val=first(p).meta["val"].new_empty(5))
    node.meta["in_place"] = (first(p), 0)
    return p, "exec"


@broken_by("view-without-alias")
def _():
    p = at("exec")
    call(p, aten.view_copy.default, (first(p), [4]), val=first(p).meta["val"])
    return p, "exec"


@broken_by("not-written-back")
def _():
    p = at("exec")
    for node in p.graph.nodes:
        node.meta.pop("in_place", None)
    return p, "exec"


@broken_by("broken-graph")
def _():
    p = at("core")
    nodes = [n for n in p.graph.nodes if n.op == "call_function"]
    nodes[-1].append(nodes[0])
    return p, "core_aten"


@broken_by("broken-inputs")
def _():
    p = at("core")
    p.graph_signature.input_specs[-1] = InputSpec(InputKind.USER_INPUT, TensorArgument("other"), None)
    return p, "core_aten"


@broken_by("missing-tensor")
def _():
    p = at("core")
    p.state_dict.clear()
    return p, "core_aten"


@broken_by("broken-outputs")
def _():
    p = at("core")
    p.graph_signature.output_specs.append(OutputSpec(OutputKind.USER_OUTPUT, TensorArgument("nothing"), None))
    return p, "core_aten"


@broken_by("unknown-buffer")
def _():
    p = at("core")
    spec = p.graph_signature.output_specs[0]
    p.graph_signature.output_specs[0] = OutputSpec(spec.kind, spec.arg, "ghost")
    return p, "core_aten"


def documented_codes():
    codes = set()
    for dialect in dialects.DIALECTS.values():
        codes |= {
            dialect.refusal[0],
            *(c.code for c in dialect.checks),
            *(c.code for c in dialect.program_checks),
        }
    return codes


def test_every_rule_has_a_broken_graph():
    assert set(BROKEN) == documented_codes() and len(BROKEN) >= 25


@pytest.mark.parametrize("code", BROKEN)
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_invalid_graph_violates_only_its_rule(code):
    program, dialect = BROKEN[code]()
    violations = dialects.violations(program, dialect)
    assert [v.code for v in violations] == [code], "\n\n".join(map(str, violations))
    with pytest.raises(DialectError) as caught:
        dialects.verify(program, dialect)
    assert caught.value.code == code and caught.value.hints and violations[0].remedy in str(caught.value)


def test_all_violations_at_once_with_context_and_place():
    def forward(x):
        y = x.sin()
        y = torch.nn.functional.silu(y)  # the first
        y = y.cos()
        return torch.nn.functional.silu(y)  # the second

    program = export(forward, (X,)).run_decompositions({})
    with pytest.raises(DialectError) as caught:
        dialects.verify(program, "CORE_ATEN")
    error = caught.value
    assert [v.code for v in error.violations] == ["not-core", "not-core"]
    text = str(error)
    assert text.startswith("2 violations of the core_aten dialect")
    lines = [int(n) for n in re.findall(re.escape(__file__) + r":(\d+)", text)]
    source = Path(__file__).read_text().splitlines()
    assert [source[n - 1].rsplit("# ", 1)[1] for n in dict.fromkeys(lines)] == ["the first", "the second"]
    block = str(error.violations[0]).splitlines()
    assert len([line for line in block if " = " in line or "return" in line]) == 5 + (" = " in block[1])
    assert sum(line.startswith("  > ") for line in block) == 1


def test_allowed_operators_cause_no_violation():
    program = export(nn.SiLU(), (X,)).run_decompositions({})
    dialects.verify(program, "core_aten", allow=[aten.silu.default])
    with pytest.raises(DialectError, match="there is no dialect"):
        dialects.verify(program, "machine_code")


def test_each_stage_satisfies_its_dialect():
    for module, args in ((ConvNet(), (torch.randn(2, 3, 8, 8),)), (nn.LSTM(4, 4), (torch.randn(3, 1, 4),))):
        exported = export(module, args)
        dialects.verify(exported, "autograd_safe")
        dialects.verify(exported.run_decompositions(), "core_aten")
        for stage, dialect in (("edge", "edge"), ("optimize", "edge"), ("exec", "exec")):
            program, _ = lower(module, args, stage, check_passes=False)
            dialects.verify(program, dialect)
            program.graph.lint()


def test_training_capture_is_autograd_safe_with_the_gradients_of_eager():
    module = ConvNet().train()
    reference = copy.deepcopy(module)
    x = torch.randn(4, 3, 8, 8)
    exported = torch.export.export(module, (x,))
    dialects.verify(exported, "autograd_safe")
    captured = exported.module()
    torch.testing.assert_close(captured(x), reference(x))
    captured(x).square().sum().backward()
    reference(x).square().sum().backward()
    expected = dict(reference.named_parameters())
    parameters = dict(captured.named_parameters())
    assert parameters.keys() == expected.keys() and len(parameters) == 5
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.grad, expected[name].grad, msg=name)
    # Two passes updated the running statistics of both.
    buffers = dict(captured.named_buffers())
    assert buffers["norm.num_batches_tracked"] == 2
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(buffers[name], buffer, msg=name)


def test_page_of_dialects_is_printed_from_the_code():
    """The page that `./dev docs` writes contains every dialect, the code of every rule, and every operator."""
    page = print_page()
    for dialect in dialects.DIALECTS.values():
        assert f"## {dialect.name}\n\n{dialect.sentence}\n" in page
        for code in (
            dialect.refusal[0],
            *(check.code for check in (*dialect.checks, *dialect.program_checks)),
        ):
            assert f'| <a id="{code}"></a>`{code}` |' in page
    for name in (*dialects.core_operators(), *dialects.edge_extras(), *REFUSED):
        assert f"`{name}`" in page
