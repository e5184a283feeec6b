# SPDX-License-Identifier: BSD-3-Clause
# From a model to the table: ExecuTorch's devtools tutorial with another import root, faults that the numeric gap must
# find, and parts of a backend with modules and lines of the model.

from __future__ import annotations

import copy
import io
import math
import pprint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("portable_plan")

torch = pytest.importorskip("torch")

from torch.export import export  # noqa: E402
from torchette.devtools.bundled_program.config import MethodTestCase, MethodTestSuite  # noqa: E402
from torchette.devtools.bundled_program.serialize import (  # noqa: E402
    serialize_from_bundled_program_to_flatbuffer,
)
from torchette.exir.backend.backend_details import BackendDetails, PreprocessResult  # noqa: E402
from torchette.exir.backend.utils import DelegateMappingBuilder  # noqa: E402
from torchette.extension.pybindings.portable_lib import (  # noqa: E402
    _load_bundled_program_from_buffer,
    _load_for_executorch_from_bundled_program,
)

from torchette._compile import partitioners_of  # noqa: E402
from torchette.devtools import BundledProgram, Inspector, generate_etrecord, parse_etrecord  # noqa: E402
from torchette.devtools.inspector import Table, numeric_gap  # noqa: E402
from torchette.devtools.inspector.numerical_comparator import NumericalComparatorBase  # noqa: E402
from torchette.errors import InputError, InputTypeError  # noqa: E402
from torchette.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower  # noqa: E402
from torchette.format import etdump  # noqa: E402
from torchette.runtime import Runtime  # noqa: E402


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 4, 3)
        self.fc1 = torch.nn.Linear(4 * 6 * 6, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        a, b = self.norm(self.fc1(torch.flatten(x, 1))).chunk(2, 1)
        return torch.nn.functional.hardswish(a) + b


X = torch.randn(1, 1, 14, 14)


def test_the_devtools_tutorial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Net().eval()
    aten_model = export(model, (X,))
    edge = to_edge(aten_model, compile_config=EdgeCompileConfig(_check_ir_validity=True))
    edge_copy = copy.deepcopy(edge)
    program = edge.to_executorch()

    inputs = [torch.randn_like(X) for _ in range(2)]
    cases = [MethodTestCase(inputs=(each,), expected_outputs=model(each)) for each in inputs]
    bundled = BundledProgram(program, [MethodTestSuite(method_name="forward", test_cases=cases)])
    generate_etrecord(str(tmp_path / "etrecord.bin"), edge_copy, bundled, exported_program=aten_model)
    (tmp_path / "bundled_program.bp").write_bytes(serialize_from_bundled_program_to_flatbuffer(bundled))

    bundle = _load_bundled_program_from_buffer((tmp_path / "bundled_program.bp").read_bytes())
    module = _load_for_executorch_from_bundled_program(bundle, enable_etdump=True, debug_buffer_size=1 << 20)
    for index in range(2):
        module.verify_result_with_bundled_expected_output(bundle, "forward", index, 1e-3, 1e-4)
    module.write_etdump_result_to_file(str(tmp_path / "etdump.etdp"), str(tmp_path / "debug.bin"))

    inspector = Inspector(
        etdump_path=str(tmp_path / "etdump.etdp"),
        etrecord=str(tmp_path / "etrecord.bin"),
        debug_buffer_path=str(tmp_path / "debug.bin"),
    )
    with open(tmp_path / "table.txt", "w") as file:
        inspector.print_data_tabular(file)
    text = (tmp_path / "table.txt").read_text()
    assert "aten.convolution.default" in text and "conv1" in text and "test_inspector.py" in text
    execute = [block for block in inspector.event_blocks if block.name == "Execute"]
    assert [block.bundled_input_index for block in execute] == [0, 1]
    for block, case in zip(execute, cases, strict=True):
        torch.testing.assert_close(block.run_output[0], block.reference_output[0], rtol=1e-3, atol=1e-4)
        assert torch.equal(block.reference_output[0], case.expected_outputs[0])
        kernels = [event for event in block.events if event.instruction is not None]
        slowest = max(kernels, key=lambda event: event.perf_data.p50)
        pprint.pp(slowest.stack_traces)
        for event in kernels:
            assert event.source.startswith("test_inspector.py:") and event.op_types, event
        assert {event.module for event in kernels} == {"", "conv1", "fc1", "norm"}
    assert "test_inspector.py" in capsys.readouterr().out
    total, conv = inspector.find_total_for_module("L__self"), inspector.find_total_for_module("conv1")
    assert 0 < conv < total
    gap = inspector.calculate_numeric_gap("MSE")
    assert next(iter(gap["aot_ops"])) == ["conv2d"] and next(iter(gap["module"])) == "conv1"
    program_of = inspector.get_exported_program()
    torch.testing.assert_close(program_of.module()(X), model(X), rtol=1e-3, atol=1e-4)
    with pytest.raises(InputError, match="no graph"):
        inspector.get_exported_program("nothing")


# ---- numeric gap ----

VIEWS = ("flatten", "chunk")  # of contiguous memory: no kernel runs


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program, its record, and a dump of it."""
    folder = tmp_path_factory.mktemp("ran")
    program = to_edge(export(Net().eval(), (X,)), generate_etrecord=True).to_executorch()
    program.save(folder / "net.pte")
    record = program.get_etrecord()
    record.update_representative_inputs([X])
    record.save(folder / "net.etrecord")
    loaded = Runtime.get().load_program(folder / "net.pte", enable_etdump=True, debug_buffer_size=1 << 20)
    loaded.load_method("forward").execute([X])
    loaded.write_etdump_result_to_file(folder / "net.etdp", folder / "net.bin")
    return folder


def opened(folder: Path, **changed: Any) -> Inspector:
    options = {"etrecord": folder / "net.etrecord", "debug_buffer_path": folder / "net.bin", **changed}
    return Inspector(etdump_path=folder / "net.etdp", **options)


@pytest.mark.parametrize("graph", [None, "exported_program", "edge_dialect_exported_program"])
def test_every_kernel_is_compared_with_its_call(ran: Path, graph: str | None) -> None:
    inspector = opened(ran)
    gap = inspector.calculate_numeric_gap("L1", reference_graph=graph)
    kernels = [event.name for event in inspector.event_blocks[1].events if event.instruction is not None]
    names = [name for (name,) in gap["runtime_ops"]]
    # if several kernels compute one captured call, the last one has its value
    assert names and set(names) <= set(kernels) and names[0] == "aten::convolution.out"
    assert all(max(each) < 1e-3 for each in gap["gap"])
    assert all(source.startswith("test_inspector.py:") for source in gap["source"])
    assert all("test_inspector.py" in trace for traces in gap["stacktraces"] for trace in traces.values())
    if graph != "edge_dialect_exported_program":
        captured = [node.name for node in parse_etrecord(ran / "net.etrecord").nodes("exported_program")]
        assert [op for ops in gap["aot_ops"] for op in ops] == [n for n in captured if n not in VIEWS]


def test_wrong_value_is_found_at_its_instruction(ran: Path) -> None:
    """Simulates a faulty kernel: the value of one instruction in the dump is changed, and only its row departs."""
    buffer = bytearray((ran / "net.bin").read_bytes())
    (_, run) = etdump.load(ran / "net.etdp").run_data
    logged = [event.debug_event for event in run.events if event.debug_event is not None]
    victim = next(event for event in logged if event.name == "aten::linear.out")
    at = victim.debug_entry.tensor.offset
    buffer[at : at + 4] = np.float32(77).tobytes()
    gap = opened(ran, debug_buffer_path=None, debug_buffer=buffer).calculate_numeric_gap("MSE")
    apart = [index for index, each in enumerate(gap["gap"]) if max(each) > 1e-3]
    assert [gap["aot_ops"][index] for index in apart] == [["linear"]] and gap["module"][apart[0]] == "fc1"
    clean = opened(ran).calculate_numeric_gap("snr")
    assert min(min(each) for each in clean["gap"]) > 60


class Folded(torch.nn.Module):
    """A batch norm that is folded into its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = (
            torch.nn.Conv2d(3, 8, 3),
            torch.nn.BatchNorm2d(8),
            torch.nn.Linear(8, 4),
        )
        self.norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
        self.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Attention(torch.nn.Module):
    """Attention, which is decomposed into several calls."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.view(2, 6, 4, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return self.out(attended.transpose(1, 2).reshape(2, 6, 16))


def logged(folder: Path, module: torch.nn.Module, x: torch.Tensor, backend: str) -> Any:
    """The record of a run with values; the dump and its buffer are net.etdp and net.bin in the folder."""
    partitioner = partitioners_of(backend)
    edge = to_edge_transform_and_lower(
        export(module.eval(), (x,)), partitioner=partitioner, generate_etrecord=True
    )
    program = edge.to_executorch()
    record = program.get_etrecord()
    record.update_representative_inputs([x])
    loaded = Runtime.get().load_program(program.buffer, enable_etdump=True, debug_buffer_size=1 << 20)
    loaded.load_method("forward").execute([x])
    loaded.write_etdump_result_to_file(folder / "net.etdp", folder / "net.bin")
    return record


@pytest.mark.parametrize("graph", [None, "edge_dialect_exported_program"])
@pytest.mark.parametrize("backend", ["portable", "cpu", "xnnpack"])
@pytest.mark.parametrize("kind", [Folded, Attention])
def test_correct_programs_have_no_gap(
    kind: type[torch.nn.Module], backend: str, graph: str | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8) if kind is Folded else torch.randn(2, 6, 16)
    record = logged(tmp_path, kind(), x, backend)
    gap = opened(tmp_path, etrecord=record).calculate_numeric_gap("MSE", reference_graph=graph)
    reasons = list(gap["not_comparable"])
    compared = [max(each) for each, why in zip(gap["gap"], reasons, strict=True) if not why]
    assert compared and max(compared) < 1e-9
    assert all(math.isnan(each[0]) == bool(why) for each, why in zip(gap["gap"], reasons, strict=True))
    assert any(reasons) == (backend == "cpu"), "the engine computes channels last, and parts of layers"
    if kind is Folded and graph is None:
        first = (
            (["relu"], "") if backend == "xnnpack" else (["batch_norm"], "norm")
        )  # the layer applies the relu
        assert (next(iter(gap["aot_ops"])), next(iter(gap["module"]))) == first


@pytest.mark.parametrize("kind, wrong", [(Folded, "batch_norm"), (Attention, "scaled_dot_product_attention")])
def test_wrong_value_of_a_folded_or_decomposed_call_is_found(
    kind: type[torch.nn.Module], wrong: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8) if kind is Folded else torch.randn(2, 6, 16)
    record = logged(tmp_path, kind(), x, "portable")
    buffer = bytearray((tmp_path / "net.bin").read_bytes())
    (_, run) = etdump.load(tmp_path / "net.etdp").run_data
    name = "aten::convolution.out" if kind is Folded else "aten::bmm.out"
    victims = [
        event.debug_event
        for event in run.events
        if event.debug_event is not None and event.debug_event.name == name
    ]
    at = victims[-1].debug_entry.tensor.offset
    buffer[at : at + 4] = np.float32(77).tobytes()
    gap = opened(
        tmp_path, etrecord=record, debug_buffer_path=None, debug_buffer=buffer
    ).calculate_numeric_gap("MSE")
    apart = [ops for ops, each in zip(gap["aot_ops"], gap["gap"], strict=True) if max(each) > 1e-3]
    assert apart == [[wrong]]


@pytest.mark.parametrize(
    "sizes, other_sizes, same",
    [
        ((8, 6, 4), (2, 4, 6, 4), True), ((1, 3, 1), (3,), True), ((), (1,), True), ((0, 3), (0, 3), True),
        ((1, 6, 6, 8), (1, 8, 6, 6), False), ((6, 4, 4), (4, 6, 4), False), ((3, 4), (3, 5), False),
    ],
)  # fmt: skip
def test_values_correspond_if_one_is_a_view_of_the_other(
    sizes: tuple[int, ...], other_sizes: tuple[int, ...], same: bool
) -> None:
    assert numeric_gap._is_view(sizes, other_sizes) is same is numeric_gap._is_view(other_sizes, sizes)


def test_custom_distances(ran: Path) -> None:
    class Greatest(NumericalComparatorBase):
        def preprocessing(self, mapping: Any) -> Any:
            assert self.inspector is not None
            return {(handle, value): theirs for (handle, value), theirs in mapping.items()}

        def element_compare(self, a: Any, b: Any) -> float:
            return float((a - b).abs().max())

    assert all(max(each) < 1e-4 for each in opened(ran).calculate_numeric_gap(Greatest())["gap"])

    class Wrong(Greatest):
        def preprocessing(self, mapping: Any) -> Any:
            return {"a": "b"}

    with pytest.raises(InputError, match="preprocessing"):
        opened(ran).calculate_numeric_gap(Wrong())
    with pytest.raises(InputError, match="'PSNR'"):
        opened(ran).calculate_numeric_gap("PSNR")
    with pytest.raises(InputTypeError, match="distance"):
        opened(ran).calculate_numeric_gap(3)


def test_the_gap_without_pandas(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    gap = opened(ran).calculate_numeric_gap("MSE")
    assert isinstance(gap, Table) and "fc1" in str(gap) and len(gap.to_dict()["gap"]) == len(gap)


def test_numeric_gap_requirements(ran: Path) -> None:
    record = parse_etrecord(ran / "net.etrecord")
    record.update_representative_inputs([X, X])
    with pytest.raises(InputError, match="requires 1 input, but the record has 2"):
        opened(ran, etrecord=record).calculate_numeric_gap("MSE")
    record.update_representative_inputs(None)
    with pytest.raises(InputError, match="no representative inputs"):
        opened(ran, etrecord=record).calculate_numeric_gap("MSE")
    with pytest.warns(UserWarning, match="debug buffer"):
        blind = opened(ran, debug_buffer_path=None)
    with pytest.raises(InputError, match="none of the logged values"):
        blind.calculate_numeric_gap("MSE")


# ---- from the .pte file only, and from another file ----


def test_pte_file_provides_lines_and_modules(tmp_path: Path) -> None:
    import torchette

    torchette.compile(Net().eval(), (X,)).save(tmp_path / "net.pte")
    loaded = Runtime.get().load_program(tmp_path / "net.pte", enable_etdump=True)
    loaded.load_method("forward").execute([X])
    loaded.write_etdump_result_to_file(tmp_path / "net.etdp")
    inspector = Inspector(etdump_path=tmp_path / "net.etdp", program=tmp_path / "net.pte")
    kernels = [event for event in inspector.event_blocks[1].events if event.instruction is not None]
    assert kernels and all("test_inspector.py:" in event.source for event in kernels)
    assert kernels[0].op_types == ["aten::convolution.out"] and kernels[0].module == "conv1"
    assert inspector.find_total_for_module("conv1") > 0
    torchette.compile(torch.nn.Softmax(1), (torch.ones(2, 3),)).save(tmp_path / "other.pte")
    with pytest.raises(InputError, match="does not match method 'forward' of this file") as caught:
        Inspector(etdump_path=tmp_path / "net.etdp", program=tmp_path / "other.pte")
    assert caught.value.code == "other-program"


def test_record_of_another_program_raises(ran: Path) -> None:
    other_program = to_edge(export(torch.nn.ReLU(), (X,)), generate_etrecord=True).to_executorch()
    with pytest.raises(InputError, match="does not match method 'forward' of this record"):
        opened(ran, etrecord=other_program.get_etrecord())


# ---- delegates ----


class InspectedBackend(BackendDetails):
    """Accepts all nodes, and names the parts of its program a0, a1, ..."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        builder = DelegateMappingBuilder()
        nodes = [node for node in edge_program.graph.nodes if node.op == "call_function"]
        for index, node in enumerate(nodes):
            builder.insert_delegate_mapping_entry(nodes=node, identifier=f"a{index}")
        return PreprocessResult(b"program", debug_handle_map=builder.get_delegate_mapping())


def test_backend_parts_have_modules_and_lines(tmp_path: Path) -> None:
    from torchette.exir.backend.canonical_partitioners.all_node_partitioner import AllNodePartitioner

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.act = torch.nn.ReLU()

        def forward(self, x):
            return self.act(x) * x

    edge = to_edge_transform_and_lower(
        export(Two(), (torch.ones(2),)),
        partitioner=[AllNodePartitioner("InspectedBackend", [])],
        generate_etrecord=True,
    )
    record = edge.to_executorch().get_etrecord()
    record.save(tmp_path / "record")
    events = [
        etdump.Event(profile_event=etdump.ProfileEvent("", 0, 0, -1, name, b"", 0, 10))
        for name in ("a0", "a1")
    ]
    dump = etdump.dumps(etdump.ETDump(0, [etdump.RunData("Execute", -1, [], events)]))
    for etrecord in (record, parse_etrecord(tmp_path / "record")):
        first, second = Inspector(etdump_data=dump, etrecord=etrecord).event_blocks[0].events
        assert (first.name, first.module, first.op_types) == ("a0", "act", ["aten.relu.default"])
        assert (second.op_types, second.delegate_backend_name) == (["aten.mul.Tensor"], "InspectedBackend")
        assert first.source.startswith("activation.py") or first.source.startswith("test_inspector.py:")


def test_xnnpack_parts_have_modules_and_lines(tmp_path: Path) -> None:
    inspector = opened(tmp_path, etrecord=logged(tmp_path, Net(), X, "xnnpack"))
    parts = [event for event in inspector.event_blocks[-1].events if event.is_delegated_op]
    assert {event.module for event in parts} >= {"conv1", "fc1"}
    assert all(event.delegate_backend_name == "XnnpackBackend" and event.part_name for event in parts)
    gap = inspector.calculate_numeric_gap("MSE")
    assert list(gap["aot_ops"])[-1] == ["add"] and all(max(each) < 1e-6 for each in gap["gap"])
    out = io.StringIO()
    inspector.save_data_to_tsv(out)
    assert "XnnpackBackend" in out.getvalue()
