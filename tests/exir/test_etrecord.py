# SPDX-License-Identifier: BSD-3-Clause
# ETRecords: written by the compiler, read again, and rejected if damaged. tests/interop compares them with ExecuTorch's
# records.

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.export import export  # noqa: E402

from torchette.devtools import BundledProgram, ETRecord, generate_etrecord, parse_etrecord  # noqa: E402
from torchette.devtools.bundle import MethodTestCase, MethodTestSuite  # noqa: E402
from torchette.errors import (  # noqa: E402
    FormatError,
    InputError,
    InputTypeError,
    ModelNotFoundError,
    TorchetteError,
)
from torchette.exir import to_edge, to_edge_transform_and_lower  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.nn.functional.hardswish(self.linear(x))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


X = torch.randn(2, 4)


@pytest.fixture(scope="module")
def program():
    return to_edge(export(Net().eval(), (X,)), generate_etrecord=True).to_executorch()


@pytest.fixture(scope="module")
def contents(program) -> bytes:
    file = io.BytesIO()
    record = program.get_etrecord().copy()
    record.add_executorch_program(program)
    record.update_representative_inputs([X])
    record.save(file)
    return file.getvalue()


def test_every_instruction_maps_to_module_and_line(contents):
    record = parse_etrecord(io.BytesIO(contents))
    nodes = {}
    for node in record.nodes():
        nodes.setdefault(node.debug_handle, []).append(node)
    (operators,) = record.operators["forward"]
    instructions = record._debug_handle_map["forward"]
    assert sorted(map(int, instructions)) == list(range(len(operators)))
    operators_and_paths = [
        (op, {node.module_path for node in nodes[instructions[str(i)]]}) for i, op in enumerate(operators)
    ]
    assert operators_and_paths[0] == ("aten::linear.out", {"blocks.0.linear"})
    assert {path for _, (path,) in operators_and_paths} == {
        "blocks.0.linear",
        "blocks.0",
        "blocks.1.linear",
        "blocks.1",
    }
    for handle in instructions.values():
        assert all("test_etrecord.py" in node.stack_trace for node in nodes[handle])
    # The captured graph has the same debug handles: all nodes derived from a call have its handle.
    captured = {node.debug_handle: node.module_path for node in record.nodes("exported_program")}
    assert all(
        captured[handle] == node.module_path for handle, of_handle in nodes.items() for node in of_handle
    )
    assert len(captured) == 4 < len(record.nodes())


def test_a_record_survives_the_round_trip(program, contents, tmp_path):
    original, record = program.get_etrecord(), parse_etrecord(io.BytesIO(contents))
    for graph in ("exported_program", "edge_dialect_exported_program"):
        assert record.nodes(graph) == original.nodes(graph)
        assert torch.equal(record.program(graph).module()(X), original.program(graph).module()(X))
    assert torch.equal(record._representative_inputs[0], X)
    assert json.loads(json.dumps(original._debug_handle_map)) == record._debug_handle_map
    record.save(tmp_path / "again.etrecord")
    again = parse_etrecord(str(tmp_path / "again.etrecord"))
    assert again.to_dict() == record.to_dict() and again.nodes() == record.nodes()
    assert record.to_dict()["graphs"]["exported_program"] == 4 and "forward" in repr(record)


def test_recording_does_not_modify_the_program():
    exported = export(Net().eval(), (X,))
    to_edge(exported, generate_etrecord=True)
    assert not any("debug_handle" in node.meta for node in exported.graph.nodes)


def test_delegates_are_stored_with_their_origin(tmp_path):
    from torchette.backends.xnnpack import XnnpackPartitioner

    exported = export(Net().eval(), (X,))
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()], generate_etrecord=True)
    record = edge.to_executorch().get_etrecord()
    handles = record._debug_handle_map["forward"][0]
    assert set(handles) == {node.debug_handle for node in record.nodes()} and len(handles) == 4
    assert record._delegate_map["forward"][0]["name"] == "XnnpackBackend"
    generate_etrecord(tmp_path / "lowered", edge, edge.to_executorch(), {"twin": edge}, exported)
    lowered = parse_etrecord(tmp_path / "lowered")
    assert lowered.graph_names() == ["exported_program", "edge_dialect_exported_program", "twin/forward"]
    assert torch.allclose(lowered.edge_dialect_program.module()(X), exported.module()(X))
    assert torch.equal(lowered.program("twin").module()(X), lowered.edge_dialect_program.module()(X))


def test_bundled_programs_provide_inputs_and_outputs(program, tmp_path):
    case = MethodTestCase((X,), (torch.ones(2, 4),))
    bundle = BundledProgram(program, [MethodTestSuite("forward", [case])])
    generate_etrecord(tmp_path / "record", to_edge(export(Net().eval(), (X,))), bundle)
    record = parse_etrecord(tmp_path / "record")
    assert torch.equal(record._representative_inputs[0], X)
    assert torch.equal(record._reference_outputs["forward"][0][0], torch.ones(2, 4))
    without = BundledProgram(program, [MethodTestSuite("forward", [MethodTestCase((X,))])])
    with pytest.raises(InputError, match="no expected outputs"):
        generate_etrecord(tmp_path / "none", to_edge(export(Net().eval(), (X,))), without)
    assert not (tmp_path / "none").exists()


def test_incomplete_record_raises(program, tmp_path):
    record = ETRecord()
    with pytest.raises(InputError, match="no Edge program"):
        record.save(tmp_path / "record")
    edge = to_edge(export(Net().eval(), (X,)))
    record.add_edge_dialect_program(edge)
    with pytest.raises(InputError, match="no finished program"):
        record.save(tmp_path / "record")
    record.add_executorch_program(program)
    for add, value in (
        (record.add_edge_dialect_program, edge),
        (record.add_executorch_program, program),
    ):
        with pytest.raises(InputError, match="already"):
            add(value)
    with pytest.raises(InputTypeError, match="ExportedProgram"):
        ETRecord().add_exported_program(Net())
    with pytest.raises(InputTypeError, match="has no debug handle map"):
        ETRecord().add_executorch_program(b"bytes")
    with pytest.raises(InputError, match="invalid graph name"):
        record.add_extra_export_modules({"my_debug_handle_map": edge})
    with pytest.raises(InputError, match="no graph 'other'"):
        record.nodes("other")
    with pytest.raises(InputError, match="no ETRecord"):
        edge.to_executorch().get_etrecord()
    assert not (tmp_path / "record").exists()


def test_file_that_is_not_a_record_raises(tmp_path):
    with pytest.raises(ModelNotFoundError, match="none"):
        parse_etrecord(tmp_path / "none")
    with pytest.raises(FormatError, match="folder"):
        parse_etrecord(tmp_path)
    (tmp_path / "bad").write_bytes(b"\0" * 64)
    with pytest.raises(FormatError, match="not an ETRecord") as caught:
        parse_etrecord(tmp_path / "bad")
    assert str(tmp_path / "bad") in str(caught.value) and caught.value.hints
    with zipfile.ZipFile(tmp_path / "bad", "w") as archive:
        archive.writestr("model.txt", "hello")
    with pytest.raises(FormatError, match="no member ETRECORD_V0"):
        parse_etrecord(tmp_path / "bad")


def _changed(contents: bytes, **members: bytes) -> io.BytesIO:
    """Returns the file with replaced members. A double underscore in a keyword represents a slash in the name."""
    replaced = {name.replace("__", "/"): content for name, content in members.items()}
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(contents)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, replaced.get(name, old.read(name)))
    return file


def test_error_names_the_damaged_member(contents):
    for name, content in {
        "debug_handle_map": b"{",
        "delegate_map": b"[1]",
        "export_graph_id": b'"x"',
    }.items():
        with pytest.raises(FormatError, match=name):
            parse_etrecord(_changed(contents, **{name: content}))
    record = parse_etrecord(_changed(contents, edge_dialect_exported_program__forward=b'{"graph_module": 3}'))
    with pytest.raises(FormatError, match="stored graph"):
        record.nodes()
    with pytest.raises(FormatError, match="stored program"):
        record.edge_dialect_program  # noqa: B018
    record = parse_etrecord(_changed(contents, representative_inputs=b"\x80\x02cos\nsystem\nq\0."))
    with pytest.raises(FormatError, match="representative_inputs"):
        record._representative_inputs  # noqa: B018


def test_reading_a_record_executes_no_code(contents, tmp_path):
    """A pickle may name any function, which torch.export's reader would call."""
    mark = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (Path.touch, (mark,))

    file = io.BytesIO()
    torch.save({"blocks.0.linear.weight": Evil()}, file)
    evil = parse_etrecord(
        _changed(contents, edge_dialect_exported_program__forward_state_dict=file.getvalue())
    )
    with pytest.raises(FormatError):
        evil.edge_dialect_program  # noqa: B018
    assert not mark.exists()


def test_mutated_records_raise_only_torchette_errors(contents):
    dice = random.Random(0)
    refused = 0
    for _ in range(150):
        mutated = bytearray(contents)
        for _ in range(dice.choice((1, 1, 2, 8))):
            mutated[dice.randrange(len(mutated))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        if dice.random() < 0.3:
            del mutated[dice.randrange(len(mutated)) :]
        try:
            parse_etrecord(io.BytesIO(mutated)).nodes()
        except TorchetteError:
            refused += 1
    assert refused > 25, "the mutations do not reach what is checked"


def test_mutated_programs_raise_only_torchette_errors(contents):
    dice = random.Random(0)
    with zipfile.ZipFile(io.BytesIO(contents)) as archive:
        graph = archive.read("edge_dialect_exported_program/forward")
    refused = 0
    for _ in range(12):
        mutated = bytearray(graph)
        for _ in range(dice.choice((1, 2, 8))):
            mutated[dice.randrange(len(mutated))] = dice.choice(b'{}[]",:019ntf')
        try:
            record = parse_etrecord(_changed(contents, edge_dialect_exported_program__forward=bytes(mutated)))
            record.nodes()
            record.edge_dialect_program  # noqa: B018
        except TorchetteError:
            refused += 1
    assert refused > 4


def test_reading_needs_no_torch(contents, tmp_path):
    (tmp_path / "record").write_bytes(contents)
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from torchette.devtools import parse_etrecord\n"
        "record = parse_etrecord(sys.argv[1])\n"
        "print(len(record.nodes()), record)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "record")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("12 ETRecord("), done.stderr
