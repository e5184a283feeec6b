# SPDX-License-Identifier: BSD-3-Clause
"""The ahead-of-time interface of backends: calls, arguments and checks."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch.export import export
from torch.fx.passes.operator_support import OperatorSupportBase

from torchette.backends.xnnpack.partitioner import XnnpackPartitioner
from torchette.compat.partitioners import (
    AllNodePartitioner,
    DelegateMappingBuilder,
    generate_pattern_op_partitions,
    get_delegates,
)
from torchette.devtools.inspect import describe
from torchette.errors import DelegationError, DelegationWarning, InputTypeError
from torchette.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    to_edge,
    to_edge_transform_and_lower,
)
from torchette.exir.delegation.delegate import (
    UNKNOWN_SIZE,
    BackendDetails,
    CompileSpec,
    DelegationSpec,
    LoweredBackendModule,
    Partitioner,
    PartitionResult,
    PreprocessResult,
    as_one_call,
    executorch_call_delegate,
    reject,
    rejection_reason,
    tag_constant_data,
    tag_mutated_buffer,
    to_backend,
)
from torchette.exir.delegation.named_data import NamedDataStore
from torchette.exir.graph import calls
from torchette.format import ptd, pte


class ListingBackend(BackendDetails):
    """A backend with the names of the operators as its bytes."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        names = [str(node.target).removeprefix("aten.") for node in calls(edge_program)]
        if "sin.default" in names:
            raise RuntimeError("no sine here")
        store = NamedDataStore()
        for key, tensor in {**edge_program.state_dict, **edge_program.constants}.items():
            store.add_named_data(key, tensor, 64)
        return PreprocessResult(
            " ".join(names).encode(), data_store_output=store.get_named_data_store_output()
        )


class Choose(Partitioner):
    """Selects operators with names that start with one of the words."""

    def __init__(self, *words: str, keep: tuple = (), tag_state: bool = False) -> None:
        super().__init__()
        self.words, self.keep, self.tag_state = words, keep, tag_state

    def partition(self, exported_program):
        for node in calls(exported_program):
            if str(node.target).removeprefix("aten.").startswith(self.words):
                node.meta["delegation_tag"] = "mine"
            else:
                reject(node, f"not one of {self.words}")
        tag_constant_data(exported_program)
        if self.tag_state:
            tag_mutated_buffer(exported_program)
        spec = DelegationSpec("ListingBackend", [CompileSpec("level", b"\x03")])
        return PartitionResult(exported_program, {"mine": spec})

    def ops_to_not_decompose(self, ep):
        return list(self.keep), None


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = torch.nn.Parameter(torch.randn(4))

    def forward(self, x, y):
        total = x + y
        scaled = total * self.scale
        wave = torch.sin(scaled)
        return self.linear(wave + total), scaled


ARGS = (torch.randn(2, 4), torch.randn(2, 4))


def _lowered(model: torch.nn.Module, args: tuple, partitioner, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        return to_edge_transform_and_lower(export(model.eval(), args), partitioner=partitioner, **how)


def _close(got, expected) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_parts_become_calls_and_the_program_computes_the_same(tmp_path) -> None:
    model = Model()
    edge = _lowered(model, ARGS, Choose("add", "mul"))
    program = edge.exported_program()
    assert len(get_delegates(program.graph)) == 2
    assert "scale" not in program.state_dict, "a weight that only the delegate reads moves to the delegate"
    assert "linear.weight" in program.state_dict
    _close(program.module()(*ARGS), model(*ARGS))
    finished = edge.to_executorch()
    (tmp_path / "m.pte").write_bytes(finished.buffer)
    method = describe(tmp_path / "m.pte").methods[0]
    assert [item.backend for item in method.delegates] == ["ListingBackend"] * 2
    (first, second) = [item for item in method.instructions if item.kind == "delegate"]
    assert [len(item.inputs) for item in (first, second)] == [2, 2]
    assert {at: entry["name"] for at, entry in finished.delegate_map["forward"].items()} == {
        first.index: "ListingBackend",
        second.index: "ListingBackend",
    }


def test_a_whole_program_becomes_a_module_that_can_be_exported_again() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    edge = to_edge(export(model, ARGS[:1]))
    lowered = to_backend("ListingBackend", edge.exported_program(), [CompileSpec("a", b"b")])
    assert isinstance(lowered, LoweredBackendModule)
    assert lowered.processed_bytes == b"linear.default relu.default"
    torch.testing.assert_close(lowered(ARGS[0]), model(ARGS[0]))

    class Composite(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lowered = lowered

        def forward(self, x):
            return self.lowered(x) * 2

    for strict in (True, False):
        again = to_edge(export(Composite(), ARGS[:1], strict=strict))
        assert len(list(calls(again.exported_program(), executorch_call_delegate))) == 1
    (call,) = calls(again.exported_program(), executorch_call_delegate)
    assert call.meta["val"][0].shape == (2, 4)
    torch.testing.assert_close(again.exported_program().module()(ARGS[0]), Composite()(ARGS[0]))
    assert b"linear.default relu.default" in again.to_executorch().buffer
    assert b"linear.default relu.default" in lowered.buffer()
    (plan,) = lowered.program(emit_stacktrace=True).execution_plan
    assert [one.id for one in plan.delegates] == ["ListingBackend"]
    assert plan.chains[0].stacktrace


class _LaterFirst(torch.nn.Module):
    def forward(self, x):
        y = x + 1
        return y * 2, y


class _InputAndTwice(torch.nn.Module):
    def forward(self, x):
        y = x + 1
        return x, y, y * 2, y


@pytest.mark.parametrize("model", [_LaterFirst(), _InputAndTwice()], ids=["order", "input, twice"])
def test_results_of_a_whole_program_keep_their_order(model: torch.nn.Module) -> None:
    x = torch.arange(3.0)
    lowered = to_backend("ListingBackend", to_edge(export(model, (x,))).exported_program(), [])
    program = as_one_call(lowered)
    _close(program.module()(x), model(x))


def test_several_partitioners_run_in_order() -> None:
    edge = _lowered(Model(), ARGS, [Choose("mul"), Choose("add", "mul")])
    names = [module.processed_bytes for module in edge.exported_program().graph_module.children()]
    assert b"mul.Tensor" in names
    assert b"add.Tensor" in names


def test_methods_share_named_data_and_equal_blobs(tmp_path) -> None:
    model = torch.nn.Linear(4, 4).eval()
    programs = {name: export(model, ARGS[:1]) for name in ("one", "two")}
    edge = to_edge_transform_and_lower(programs, partitioner=AllNodePartitioner("ListingBackend", []))
    (tmp_path / "m.pte").write_bytes(edge.to_executorch().buffer)
    file = pte.load_file(tmp_path / "m.pte")
    assert set(file.named()) == {"weight", "bias"}
    places = [plan.delegates[0].processed.index for plan in file.program.execution_plan]
    assert places[0] == places[1]


def test_weight_that_is_also_named_data_is_stored_once() -> None:
    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(256, 256)

        def forward(self, x):
            return self.linear(x)

    edge = _lowered(Shared(), (torch.randn(1, 256),), AllNodePartitioner("ListingBackend", []))
    plain = edge.to_executorch().buffer
    both = edge.to_executorch(ExecutorchBackendConfig(portable_fallback=True)).buffer
    assert len(both) < 1.03 * len(plain)
    file = pte.read(both)
    assert {plan.name for plan in file.program.execution_plan} == {"forward", "forward@portable"}
    weight = edge.exported_program().graph_module.lowered_module_0.original_module.state_dict["linear.weight"]
    assert bytes(file.named()["linear.weight"]) == weight.detach().numpy().tobytes()


class KeepingBackend(BackendDetails):
    """Stores its weights as named data: one-dimensional ones in a data file, others aligned in the program file."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        store = NamedDataStore()
        for key, tensor in edge_program.state_dict.items():
            store.add_named_data(key, tensor, 512, "biases" if tensor.dim() == 1 else None)
        return PreprocessResult(b"x", data_store_output=store.get_named_data_store_output())


def test_named_data_is_aligned_and_stored_in_data_files(tmp_path) -> None:
    model = torch.nn.Linear(4, 4)
    edge = _lowered(model, ARGS[:1], AllNodePartitioner("KeepingBackend", []))
    for fallback in (False, True):
        finished = edge.to_executorch(ExecutorchBackendConfig(portable_fallback=fallback))
        weight = model.weight.detach().numpy().tobytes()
        assert bytes(pte.read(finished.buffer).named()["weight"]) == weight
        assert any(
            finished.buffer[at : at + len(weight)] == weight for at in range(0, len(finished.buffer), 512)
        )
    finished.write_tensor_data_to_file(tmp_path)
    (file,) = tmp_path.iterdir()
    assert file.name == "biases.ptd"
    assert bytes(ptd.read(file.read_bytes())["bias"].data) == model.bias.detach().numpy().tobytes()


def test_state_moves_only_with_all_its_readers() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x):
            self.count.add_(x)
            return self.count * 2

    edge = _lowered(Counter(), (torch.ones(2),), Choose("add", "mul", tag_state=True))
    program = edge.exported_program()
    assert not program.graph_signature.buffers_to_mutate
    (module,) = program.graph_module.children()
    assert list(module.original_module.graph_signature.buffers_to_mutate.values()) == ["count"]
    undelegated = _lowered(Counter(), (torch.ones(2),), Choose("add", "mul")).exported_program()
    assert list(undelegated.graph_signature.buffers_to_mutate.values()) == ["count"]


class HoldingBackend(BackendDetails):
    """A backend with a program as its bytes. Another backend runs a part of this program."""

    @staticmethod
    def preprocess(edge_program, compile_specs):
        inner = to_backend(edge_program, Choose("mul"))
        return PreprocessResult(EdgeProgramManager(inner).to_executorch().buffer)


def _ids(module: torch.nn.Module) -> list[str]:
    return [child.backend_id for child in module.children() if isinstance(child, LoweredBackendModule)]


def test_delegates_may_contain_delegates() -> None:
    model = Model()
    edge = _lowered(model, ARGS, AllNodePartitioner("HoldingBackend", []))
    (outer,) = edge.exported_program().graph_module.children()
    (inner,) = pte.read(outer.processed_bytes).program.execution_plan[0].delegates
    assert inner.id == "ListingBackend"
    # The same with two partitioners in sequence: the next partitioner sees a delegate as a call.
    twice = _lowered(
        model, ARGS, [Choose("mul"), AllNodePartitioner("HoldingBackend", [])]
    ).exported_program()
    assert _ids(twice.graph_module) == ["HoldingBackend"]
    (outer,) = twice.graph_module.children()
    assert _ids(outer.original_module.graph_module) == ["ListingBackend"]
    _close(twice.module()(*ARGS), model(*ARGS))


def test_branch_runs_in_the_delegate_of_its_call() -> None:
    class Branches(torch.nn.Module):
        def forward(self, x, y):
            return torch.cond(x.sum() > 0, lambda x, y: x * y, lambda x, y: x + y, (x, y)) + 1

    program = _lowered(Branches(), ARGS, AllNodePartitioner("HoldingBackend", [])).exported_program()
    assert _ids(program.graph_module) == ["HoldingBackend"]
    assert len(list(program.graph_module.children())) == 1, "the branches belong to the part"
    for x in (ARGS[0].abs(), -ARGS[0].abs()):
        _close(program.module()(x, ARGS[1])[None], Branches()(x, ARGS[1])[None])


def test_operators_are_preserved_on_request() -> None:
    class Norm(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.hardswish(x) + torch.nn.functional.leaky_relu(x)

    op = torch.ops.aten.rms_norm.default
    model = torch.nn.Sequential(torch.nn.RMSNorm(4)).eval()
    program = _lowered(model, ARGS[:1], Choose("rms_norm", keep=(op,))).exported_program()
    (module,) = program.graph_module.children()
    assert module.processed_bytes == b"rms_norm.default"
    refused = _lowered(model, ARGS[:1], Choose("relu", keep=(op,)))
    assert not list(calls(refused.exported_program(), op)), "no backend accepted it, so it is decomposed"
    torch.testing.assert_close(refused.exported_program().module()(ARGS[0]), (model(ARGS[0])))
    refused.to_executorch()


def test_report_lists_backends_and_reasons() -> None:
    model = Model()
    with pytest.warns(DelegationWarning, match="aten.linear"):
        edge = to_edge_transform_and_lower(export(model.eval(), ARGS), partitioner=Choose("add", "mul"))
    report = edge.delegation()
    by_op = {item.op: item for item in report.placements}
    assert by_op["aten.mul.Tensor"].backend == "ListingBackend"
    assert by_op["aten.linear.default"].reasons == {"Choose": ("not one of ('add', 'mul')",)}
    assert by_op["aten.linear.default"].macs == 2 * 4 * 4
    assert sum(item.share for item in report.placements) == pytest.approx(1)
    assert "test_delegate.py" in str(report)
    with pytest.raises(DelegationError) as error:
        config = EdgeCompileConfig(strict=True)
        to_edge_transform_and_lower(
            export(model.eval(), ARGS), partitioner=Choose("add"), compile_config=config
        )
    assert error.value.code == "not-delegated"
    assert any("self.linear" in line for line in error.value.where)


def test_invalid_partitions_raise() -> None:
    program = to_edge(export(Model().eval(), ARGS)).exported_program()
    with pytest.raises(DelegationError, match="NoSuchBackend") as error:
        to_backend("NoSuchBackend", program, [])
    assert error.value.code == "unknown-backend"
    assert "ListingBackend" in str(error.value)
    with pytest.raises(DelegationError, match="no sine here") as error:
        to_backend(program, AllNodePartitioner("ListingBackend", []))
    assert error.value.code == "preprocess-failed"
    assert any("torch.sin" in line for line in error.value.where)

    class Forgets(Choose):
        def partition(self, exported_program):
            result = super().partition(exported_program)
            result.partition_tags.clear()
            return result

    with pytest.raises(DelegationError, match="'mine'") as error:
        to_backend(program, Forgets("add"))
    assert error.value.code == "bad-partition"
    with pytest.raises(InputTypeError, match="Partitioner"):
        to_edge_transform_and_lower(export(Model().eval(), ARGS), partitioner=Choose)
    with pytest.raises(InputTypeError, match="decode"):
        to_edge_transform_and_lower(export(Model().eval(), ARGS), partitioner={"decode": Choose("add")})
    store = NamedDataStore()
    store.add_named_data("k", b"1")
    with pytest.raises(DelegationError, match="'k'"):
        store.add_named_data("k", b"2")
    with pytest.raises(TypeError, match="cannot be derived"):
        type("Nested", (ListingBackend,), {})


def test_given_program_is_not_modified() -> None:
    edge = to_edge(export(Model().eval(), ARGS))
    before = str(edge.exported_program())
    edge.to_backend(Choose("add", "mul"))
    assert str(edge.exported_program()) == before


def test_work_is_linear_in_the_graph_size() -> None:
    class Chain(torch.nn.Module):
        def __init__(self, length: int) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.randn(2) for _ in range(length))

        def forward(self, x):
            for weight in self.weights:
                x = torch.tanh(x * weight)
            return x

    def work(length: int) -> int:
        """Returns the number of calls of Torchette functions while `length` delegates are created."""
        program = to_edge(export(Chain(length), (torch.randn(2),))).exported_program()
        count = 0

        def counts(frame, event, argument) -> None:
            nonlocal count
            count += event == "call" and "torchette" in frame.f_code.co_filename

        sys.setprofile(counts)
        try:
            lowered = to_backend(program, Choose("mul"))
        finally:
            sys.setprofile(None)
        assert len(get_delegates(lowered.graph)) == length
        return count

    assert work(160) < 2.2 * work(80)


def test_patterns_find_their_nodes() -> None:
    program = to_edge(export(Model().eval(), ARGS)).exported_program()

    class Pattern(torch.nn.Module):
        def forward(self, a, b):
            return torch.sin(a) + b

    pattern = to_edge(export(Pattern(), ARGS)).exported_program().graph
    (group,) = generate_pattern_op_partitions(program.graph_module, patterns=[pattern])
    assert [node.name for node in group.nodes] == ["aten_sin_default", "aten_add_tensor_1"]


def test_debug_handles_are_collected() -> None:
    builder = DelegateMappingBuilder(generated_identifiers=True)
    assert [
        builder.insert_delegate_mapping_entry(handles=[3, None, 1]),
        builder.insert_delegate_mapping_entry(handles=7),
    ] == [0, 1]
    assert builder.get_delegate_mapping() == {0: (1, 3), 1: (7,)}
    with pytest.raises(ValueError, match="identifier"):
        builder.insert_delegate_mapping_entry(handles=1, identifier="mine")
    with pytest.raises(ValueError, match="debug handle"):
        builder.insert_delegate_mapping_entry(handles=[None])


# ---- sizes that are unknown ahead of time ----


def _found(x):
    """Returns the rows with a positive first element."""
    return x[torch.nonzero(x[:, 0] > 0).squeeze(1)]


def _first(x):
    count = x[0, 0].abs().int().item()
    torch._check(count < 4)
    return torch.relu(x)[:count] * 2


class _Calls(torch.nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.linear, self.function = torch.nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self, x)


UNKNOWN = {
    "linear": lambda self, x: self.linear(_found(x)) + self.linear(x).sum(),
    "pointwise": lambda self, x: torch.relu(_found(x) * 2),
    "cat": lambda self, x: torch.cat([_found(x), x]) * 2,
    "softmax": lambda self, x: torch.softmax(_found(x), -1),
    "matmul": lambda self, x: torch.matmul(_found(x), x.t()),
    "mean": lambda self, x: _found(x).sum(0, keepdim=True),
    "view": lambda self, x: torch.relu(_found(x)).reshape(-1, 2, 2) + 1,
    "slice": lambda self, x: _first(x),
    "arange": lambda self, x: self.linear(x) * torch.arange(x[0, 0].abs().int().item()).sum(),
    "norm": lambda self, x: torch.nn.functional.layer_norm(_found(x), (4,)),
}


class _Sized(Partitioner):
    """Checks whether the result of each node is empty. `careless` partitioners do not handle unknown sizes."""

    def __init__(self, careless: bool) -> None:
        super().__init__()
        self.careless = careless

    def _reason(self, node):
        if 0 in getattr(node.meta.get("val"), "shape", ()):
            return "an empty tensor"
        known = ("aten.mul.Tensor", "aten.add.Tensor", "aten.linear.default")
        return None if str(node.target) in known else "another operator"

    def partition(self, exported_program):
        for node in calls(exported_program):
            reason = (
                self._reason(node) if self.careless else rejection_reason(lambda: self._reason(node))  # noqa: B023
            )
            if reason is None:
                node.meta["delegation_tag"] = "mine"
            else:
                reject(node, reason)
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, {"mine": DelegationSpec("ListingBackend", [])})


@pytest.mark.parametrize("kind", UNKNOWN)
def test_node_with_unknown_size_runs_on_kernels(kind: str) -> None:
    model, x = _Calls(UNKNOWN[kind]).eval(), torch.randn(6, 4)
    careful, careless = _Sized(careless=False), _Sized(careless=True)
    for partitioner in (XnnpackPartitioner(), XnnpackPartitioner(per_op_mode=True), careful, careless):
        edge = _lowered_quietly(export(model, (x,)), partitioner)
        assert edge.to_executorch().buffer
        placements = edge.delegation().placements
        if partitioner is careless:
            assert all(place.backend is None for place in placements)
            assert any(UNKNOWN_SIZE in text for p in placements for text in sum(p.reasons.values(), ()))
        torch.testing.assert_close(edge.exported_program().module()(x), model(x))


def test_report_names_the_node_with_unknown_size() -> None:
    model, x = _Calls(UNKNOWN["linear"]).eval(), torch.randn(6, 4)
    placements = _lowered_quietly(export(model, (x,)), XnnpackPartitioner()).delegation().placements
    linear = [p for p in placements if "linear" in p.op]
    assert {p.backend for p in linear} == {None, "XnnpackBackend"}
    (left,) = [p for p in linear if p.backend is None]
    assert left.reasons == {"XnnpackPartitioner": (UNKNOWN_SIZE,)}


def _lowered_quietly(program, partitioner):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        return to_edge_transform_and_lower(program, partitioner=partitioner)


def test_operator_support_may_depend_on_sizes() -> None:
    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules, node):
            return str(node.target) == "aten.mul.Tensor" and 0 not in node.meta["val"].shape

    def forward(self, x):
        return _found(x) * 2, x * 3

    graph = to_edge(export(_Calls(forward), (torch.randn(6, 4),))).exported_program().graph_module
    (partition,) = generate_pattern_op_partitions(graph, op_support=Support())
    assert [tuple(node.meta["val"].shape) for node in partition.nodes] == [(6, 4)]
