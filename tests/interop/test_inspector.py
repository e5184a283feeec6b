# SPDX-License-Identifier: BSD-3-Clause
# ETRecords and Inspectors of both projects read each other's records and dumps, and report the same values.

from __future__ import annotations

import copy
import operator
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import export

from torchette.devtools import Inspector, parse_etrecord
from torchette.errors import InputError
from torchette.runtime import Runtime

pytest.importorskip("executorch.devtools", reason="the peer is not installed")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 6)
        self.norm = torch.nn.LayerNorm(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.hardswish(self.norm(self.fc(x))).softmax(1)


X = torch.randn(2, 4)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from torchette.exir import to_edge

    folder = tmp_path_factory.mktemp("ours")
    program = to_edge(export(Net().eval(), (X,)), generate_etrecord=True).to_executorch()
    record = program.get_etrecord()
    record.update_representative_inputs([X])
    record.save(folder / "net.etrecord")
    loaded = Runtime.get().load_program(program.buffer, enable_etdump=True, debug_buffer_size=1 << 16)
    method = loaded.load_method("forward")
    for _ in range(3):
        method.execute([X])
    loaded.write_etdump_result_to_file(folder / "net.etdp", folder / "net.bin")
    return folder


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from executorch.devtools import generate_etrecord
    from executorch.exir import to_edge
    from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

    folder = tmp_path_factory.mktemp("theirs")
    exported = export(Net().eval(), (X,))
    edge = to_edge(exported)
    original = copy.deepcopy(edge)
    program = edge.to_executorch()
    generate_etrecord(str(folder / "net.etrecord"), original, program, exported_program=exported)
    module = _load_for_executorch_from_buffer(program.buffer, enable_etdump=True, debug_buffer_size=1 << 16)
    for _ in range(3):
        module.run_method("forward", [X])
    module.write_etdump_result_to_file(str(folder / "net.etdp"), str(folder / "net.bin"))
    return folder


def opened(kind: Any, folder: Path, **more: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(
            etdump_path=str(folder / "net.etdp"),
            etrecord=more.pop("etrecord", str(folder / "net.etrecord")),
            debug_buffer_path=str(folder / "net.bin"),
            **more,
        )


def test_peer_reads_torchette_record(ours: Path) -> None:
    from executorch.devtools import parse_etrecord as peer
    from executorch.devtools.inspector._inspector_utils import propagate_back_debug_handle

    record, mine = peer(str(ours / "net.etrecord")), parse_etrecord(ours / "net.etrecord")
    edge = record.edge_dialect_program
    calls = [n for n in edge.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    assert [n.meta["debug_handle"] for n in calls] == [node.debug_handle for node in mine.nodes()]
    torch.testing.assert_close(edge.module()(X), mine.edge_dialect_program.module()(X))
    # It finds the captured call of each Edge node, which is the one that Torchette's record names.
    captured = {node.name: node.debug_handle for node in mine.nodes("exported_program")}
    assert propagate_back_debug_handle(record.exported_program, record.export_graph_id, edge)
    modules = {
        n.name: n.meta.get("debug_handle") for n in record.exported_program.graph.nodes if n.name in captured
    }
    assert modules == captured and set(captured) == {"linear", "layer_norm", "hardswish", "softmax"}


def test_torchette_reads_peer_record(theirs: Path) -> None:
    record = parse_etrecord(theirs / "net.etrecord")
    assert record.graph_names() == ["exported_program", "edge_dialect_exported_program"]
    nodes = record.nodes()
    assert all(node.debug_handle and "test_inspector.py" in (node.stack_trace or "") for node in nodes)
    assert {node.module_path for node in nodes} == {"", "fc", "norm"}
    for program in (record.exported_program, record.edge_dialect_program):
        torch.testing.assert_close(program.module()(X), record.exported_program.module()(X))
    again = theirs / "again.etrecord"
    record.save(again)
    assert parse_etrecord(again).nodes() == nodes


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_both_inspectors_agree(side: str, request: pytest.FixtureRequest) -> None:
    from executorch.devtools import Inspector as Peer

    folder = request.getfixturevalue(side)
    mine, peer = opened(Inspector, folder), opened(Peer, folder)
    assert [block.name for block in mine.event_blocks] == [block.name for block in peer.event_blocks]
    for block, peer_block in zip(mine.event_blocks, peer.event_blocks, strict=True):
        for event, twin in zip(block.events, peer_block.events, strict=True):
            assert event.name == twin.name and bool(event.is_delegated_op) == bool(twin.is_delegated_op)
            assert (event.perf_data is None) == (twin.perf_data is None)
            if event.perf_data is not None:
                assert event.perf_data.raw == pytest.approx(twin.perf_data.raw)
                assert event.perf_data.p90 == pytest.approx(twin.perf_data.p90)
            assert [op.rpartition("::")[2] for op in event.op_types] == twin.op_types or (
                [op.split(".", 1)[1] for op in event.op_types]
                == [op.rpartition("aten.")[2] for op in twin.op_types]
            )
            # It appends an underscore to node names.
            assert list(event.stack_traces.values()) == list(twin.stack_traces.values())
            assert len(event.debug_data) == len(twin.debug_data)
            for value, peer_value in zip(event.debug_data, twin.debug_data, strict=True):
                assert torch.equal(value, peer_value)
    frame, other_frame = mine.to_dataframe(), peer.to_dataframe()
    assert list(frame.columns)[: len(other_frame.columns)] == list(other_frame.columns)
    assert mine.find_total_for_module("fc") == pytest.approx(peer.find_total_for_module("fc"))


def test_results_without_elements_are_read(tmp_path: Path) -> None:
    """ExecuTorch's portable batch norm has two of them; its dump stores offset -1 for them."""
    from executorch.devtools import Inspector as Peer
    from executorch.exir import to_edge
    from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer

    exported = export(torch.nn.BatchNorm2d(3).eval(), (torch.ones(1, 3, 2, 2),))
    buffer = to_edge(exported).to_executorch().buffer
    module = _load_for_executorch_from_buffer(buffer, enable_etdump=True, debug_buffer_size=1 << 12)
    module.run_method("forward", [torch.ones(1, 3, 2, 2)])
    module.write_etdump_result_to_file(str(tmp_path / "net.etdp"), str(tmp_path / "net.bin"))
    shapes = []
    for kind in (Inspector, Peer):
        (events,) = [
            b.events for b in opened(kind, tmp_path, etrecord=None).event_blocks if b.name == "Execute"
        ]
        shapes.append([[tuple(value.shape) for value in event.debug_data] for event in events])
    assert shapes[0] == shapes[1] and [(1, 3, 2, 2), (0,), (0,)] in shapes[0]


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_numeric_gaps_agree(side: str, request: pytest.FixtureRequest) -> None:
    from executorch.devtools import Inspector as Peer
    from executorch.devtools import parse_etrecord as peer_record

    folder = request.getfixturevalue(side)
    record, record_of_peer = (
        parse_etrecord(folder / "net.etrecord"),
        peer_record(str(folder / "net.etrecord")),
    )
    record.update_representative_inputs([X])
    record_of_peer.update_representative_inputs([X])
    mine = opened(Inspector, folder, etrecord=record).calculate_numeric_gap("L1")
    peer = opened(Peer, folder, etrecord=record_of_peer).calculate_numeric_gap("L1")
    assert all(max(each) < 1e-4 for each in mine["gap"])
    gaps = dict(zip(map(tuple, mine["aot_ops"]), mine["gap"], strict=True))
    compared = 0
    for ops, gap in zip(peer["aot_ops"], peer["gap"], strict=True):
        if tuple(ops) in gaps:
            assert gaps[tuple(ops)] == pytest.approx(gap, abs=1e-9)
            compared += 1
    assert compared >= 3 and len(mine) >= len(peer)


def test_record_of_other_program_raises(ours: Path, theirs: Path) -> None:
    """The same model, but other instructions."""
    with pytest.raises(InputError, match="does not match method 'forward'"):
        opened(Inspector, theirs, etrecord=str(ours / "net.etrecord"))


def test_peer_reads_delegated_records(tmp_path: Path) -> None:
    """Runs in a separate process, because only one delegate call operator can be registered under the name in the
    files.
    """
    from torchette.backends.xnnpack import XnnpackPartitioner
    from torchette.devtools import generate_etrecord
    from torchette.exir import to_edge_transform_and_lower

    exported = export(Net().eval(), (X,))
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    generate_etrecord(tmp_path / "record", edge, edge.to_executorch(), exported_program=exported)
    torch.save({"x": X, "y": exported.module()(X)}, tmp_path / "values")
    script = (
        "import sys, torch\n"
        "from executorch.devtools import parse_etrecord\n"
        "record, values = parse_etrecord(sys.argv[1]), torch.load(sys.argv[2])\n"
        "program = record.edge_dialect_program\n"
        "torch.testing.assert_close(program.module()(values['x']), values['y'])\n"
        "print(sorted(record._debug_handle_map['forward']['0']), type(program.graph_module.lowered_module_0).__module__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "record"), str(tmp_path / "values")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1, 2, 3, 4] executorch.exir.lowered_backend_module"
