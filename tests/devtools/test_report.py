# SPDX-License-Identifier: BSD-3-Clause
# The data of reports on known programs, and the page: one small, self-contained file.

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.devtools.report_programs import SOURCE, encoder
from torchette.cli import main
from torchette.devtools import model_explorer
from torchette.devtools.inspect import describe
from torchette.devtools.limits import Limits, Store
from torchette.devtools.profile import Operation, Profile
from torchette.devtools.report import write_report
from torchette.devtools.report.contents import contents
from torchette.devtools.work import Work
from torchette.errors import FormatError, MissingPackageError, ModelNotFoundError
from torchette.exir import to_edge
from torchette.format import pte


def known(data: bytes, **more: Any) -> dict[str, Any]:
    return contents(pte.read(data), "encoder.pte", **more)


def edges(method: dict[str, Any]) -> list[tuple[int, int, int]]:
    numbers = method["edges"]
    return list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))


def test_edges_start_at_last_writers() -> None:
    """Values share memory: edges start at the last writer, and the residual stream bypasses each layer."""
    contents = known(encoder(2))
    (method,) = contents["methods"]
    ops = [contents["texts"][node["op"]].removeprefix("aten::") for node in method["nodes"]]
    joined = {(origin, node) for origin, node, _ in edges(method)}
    assert ops[0] == "x" and ops[1:5] == ["mm.out"] * 4
    assert {(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (4, 5), (5, 6), (3, 6), (6, 7)} <= joined
    assert {(0, 11), (10, 11), (11, 12), (11, 22), (22, 23)} <= joined  # residual additions, and the output
    assert len(joined) == 2 * 14 + 1 and ops[23].startswith("output")


def test_nodes_have_modules_lines_and_weights() -> None:
    contents = known(encoder(1))
    method, texts = contents["methods"][0], contents["texts"]
    query = method["nodes"][1]
    assert texts[query["module"]] == "layers.0.attention.query" and texts[query["type"]] == "Linear"
    name, line, function, _ = method["sources"][query["source"]]
    assert (texts[name], line, texts[function]) == ("encoder.py", 10, "forward")
    weights = [value for value in query["in"] if len(method["values"][value]) > 4]
    assert len(weights) == 1 and method["values"][weights[0]][1] == 64 * 64 * 4


def test_sizes_sum_to_the_file() -> None:
    data = encoder(3)
    rows = known(data)["sizes"]
    assert sum(row[3] for row in rows) == len(data)
    texts = known(data)["texts"]
    assert {texts[row[2]] for row in rows if row[0] == "weights"} >= {"layers.2.mlp.up", "layers.0.norm"}


def test_times_are_assigned_to_nodes() -> None:
    operations = [
        Operation("aten::mm.out", 0, None, "", [3.0, 1.0, 2.0], 3),
        Operation("Method::execute", None, None, "", [0.5] * 3, 3),
    ]
    method = known(encoder(1), times={"forward": operations})["methods"][0]
    assert (
        method["times"] == {1: 2.0} and method["rest"] == [["Method::execute", 0.5]] and method["runs"] == 3
    )


def test_profile_has_fractions_of_limits() -> None:
    """The values that `torchette profile` prints, for a call with 400 operations and 50 bytes in 2 seconds."""
    operation = Operation("aten::mm.out", 0, None, "", [3.0, 1.0, 2.0], 3, Work(400, 50))
    second_operation = Operation("aten::mm.out", 1, None, "", [1.0] * 3, 3, Work(None, 50))
    limits = Limits("A processor", "avx2", 2, 1000.0, (Store("L2", 64, 100.0), Store("memory", None, 50.0)))
    profile = Profile("", 3, [operation, second_operation], [], limits, nbytes=64)
    method = known(encoder(1), times={"forward": profile})["methods"][0]
    assert method["times"] == {1: 2.0, 2: 1.0} and method["runs"] == 3
    assert method["rates"] == {
        1: [200.0, 25.0, 0.2, 0.25, "memory"],
        2: [None, 50.0, None, 0.5, "memory"],
    }
    assert (method["processor"], method["store"]) == ("A processor", "L2")
    assert method["limits"].startswith("2 threads can do ")
    of_a_device = known(encoder(1), times={"forward": [operation]})["methods"][0]
    assert of_a_device["rates"] == {1: [200.0, 25.0, None, None, None]} and of_a_device["limits"] is None


def test_source_text_comes_only_from_source_folders(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "encoder.py").write_text(SOURCE)
    contents = known(encoder(1), source_folders=[tmp_path / "models"])
    assert contents["files"]["encoder.py"][12] == "hidden = self.query(x) <b>"
    assert known(encoder(1), source_folders=[tmp_path])["files"] == {}
    # an untrusted file cannot request files outside the folder, or files that are not Python
    (tmp_path / "secret.py").write_text("password = 1")
    (tmp_path / "models" / "key.pem").write_text("key")
    (tmp_path / "models" / "link.py").symlink_to(tmp_path / "secret.py")
    for name in ("../secret.py", str(tmp_path / "secret.py"), "key.pem", "link.py", "\0.py"):
        frames = pte.FrameList([pte.Frame(name, 1, "forward", "")])
        plan = pte.ExecutionPlan(
            name="forward",
            values=[pte.EValue(pte.Int(1))],
            chains=[pte.Chain(instructions=[pte.Instruction(pte.MoveCall(0, 0))], stacktrace=[frames])],
            non_const_buffer_sizes=[0],
        )
        data = bytes(pte.write(pte.Program(execution_plan=[plan])))
        assert known(data, source_folders=[tmp_path / "models"])["files"] == {}, name


def test_page_is_self_contained_and_small(tmp_path: Path) -> None:
    """5,000 nodes in less than 5 MB; no URLs and no external resources; names are escaped."""
    data = encoder(500)
    page = write_report(_write(tmp_path / "big.pte", data), tmp_path / "big.html")
    assert len(describe(data).methods[0].instructions) == 5_500
    assert page.stat().st_size < 5_000_000
    named = encoder(1, name="</script><script>alert(1)</script><!--")
    text = write_report(named, tmp_path / "x.html", name="<img src=x onerror=alert(1)>").read_text()
    assert not re.search(r"""(src|href)=["'](?!#)""", text.replace("<img src=x onerror", ""))
    assert "http" not in text.replace("http-equiv", "") and not re.search(r"@[a-z]+@", text)
    assert text.count("<script") == 2 and text.count("</script>") == 2 and "<img" not in text
    match = re.search(r'<script type="application/json" id="contents">(.*?)</script>', text, re.S)
    assert match and json.loads(match[1])["methods"][0]["name"].startswith("</script>")


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_invalid_files_raise_and_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = _write(tmp_path / "broken.pte", b"no program")
    with pytest.raises(FormatError):
        write_report(broken, tmp_path / "page.html")
    with pytest.raises(ModelNotFoundError):
        write_report(tmp_path / "nothing.pte", tmp_path / "page.html")
    model = str(_write(tmp_path / "net.pte", encoder(1)))
    page = str(tmp_path / "page.html")
    for words in (
        [str(broken), "-o", page],
        [model],
        [model, "-o", page, "--profile", "0"],
        [model, "-o", page, "--sources", "/none"],
    ):
        assert main(["report", *words]) == 2
        assert capsys.readouterr().err.startswith("torchette report: ")
    assert not Path(page).exists()


def test_times_of_another_machine(tmp_path: Path) -> None:
    from torchette.format import etdump

    def event(place: int, end: int) -> Any:
        return etdump.Event(
            profile_event=etdump.ProfileEvent(
                "x", chain_index=0, instruction_id=place, start_time=0, end_time=end
            )
        )

    model = _write(tmp_path / "net.pte", encoder(1))
    dump = _write(
        tmp_path / "device.etdp",
        etdump.dumps(etdump.ETDump(0, [etdump.RunData("Execute", events=[event(3, 700)])])),
    )
    page = tmp_path / "page.html"
    assert main(["report", str(model), "-o", str(page), "--etdump", str(dump)]) == 0
    match = re.search(r'id="contents">(.*?)</script>', page.read_text(), re.S)
    assert match and json.loads(match[1])["methods"][0]["times"] == {"4": 7e-7}
    other_dump = _write(
        tmp_path / "other.etdp",
        etdump.dumps(etdump.ETDump(0, [etdump.RunData("Execute", events=[event(99, 1)])])),
    )
    for words in (
        ["--etdump", str(other_dump)],
        ["--etdump", str(model)],
        ["--etdump", str(dump), "--profile", "1"],
    ):
        assert main(["report", str(model), "-o", str(tmp_path / "no.html"), *words]) == 2
    assert not (tmp_path / "no.html").exists()


def test_model_explorer_has_layers_and_edges(tmp_path: Path) -> None:
    model = _write(tmp_path / "net.pte", encoder(2))
    assert main(["report", str(model), "--model-explorer", str(tmp_path / "graph.json")]) == 0
    document = json.loads((tmp_path / "graph.json").read_text())
    (graph,) = document["graphs"]
    assert graph["id"] == "forward" and document["label"] == "net"
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert nodes["1"]["namespace"] == "layers/0/attention/query" and nodes["1"]["label"] == "aten::mm.out"
    assert graph["groupNodeAttributes"]["layers/0/attention/query"] == {"class": "Linear"}
    assert [edge["sourceNodeId"] for edge in nodes["4"]["incomingEdges"]] == ["1", "2"]
    for node in nodes.values():
        assert set(node) == {
            "id",
            "label",
            "namespace",
            "attrs",
            "incomingEdges",
            "inputsMetadata",
            "outputsMetadata",
        }
        assert all(edge["sourceNodeId"] in nodes for edge in node["incomingEdges"])
        assert all(isinstance(pair["value"], str) for pair in node["attrs"])


def test_xnnpack_delegates_show_their_nodes(tmp_path: Path) -> None:
    """Nodes, tensors and scales come from the payload; modules and lines from the call."""
    torch = pytest.importorskip("torch")
    import torchette
    from torchette.quantization.recipes import quantizer_of

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
            self.head = torch.nn.Linear(8 * 36, 4)

        def forward(self, x):
            return self.head(self.features(x).flatten(1)).cumsum(1)

    model = torchette.compile(
        Net().eval(), (torch.randn(1, 3, 8, 8),), backend="xnnpack", quantizer=quantizer_of("int8")
    )
    data = bytes(model)
    contents = known(data, placements=model.delegations)
    method, texts = contents["methods"][0], contents["texts"]
    assert not method["notes"] and sum(row[3] for row in contents["sizes"]) == len(data)
    parts = [node for node in method["nodes"] if node["kind"] == "part"]
    assert {"Conv2d", "FullyConnected"} <= {texts[node["op"]] for node in parts}
    modules = {texts[node["module"]] for node in parts if "module" in node}
    assert {"features.0", "head"} <= modules
    assert all("source" in node for node in parts if texts[node["op"]] == "Conv2d")
    schemes = {entry["scheme"]: entry for entry in method["quantized"]}
    assert schemes["per channel"]["count"] in (4, 8) and schemes["per channel"]["range"][0] > 0
    assert schemes["per tensor"]["zero_points"]
    (left,) = [row for row in method["placements"] if "cumsum" in texts[row[1]]]
    assert left[3] is None and left[4] and left[4][0][1]
    joined = {(origin, node) for origin, node, _ in edges(method)}
    kernel = next(i for i, node in enumerate(method["nodes"]) if texts[node["op"]] == "aten::cumsum.out")
    assert any(method["nodes"][origin]["kind"] == "part" for origin, node in joined if node == kernel)
    graph = model_explorer.collection(pte.read(data), "net")["graphs"][0]
    assert any(node["namespace"].startswith("XnnpackBackend 0/features") for node in graph["nodes"])


@pytest.fixture(scope="module")
def delegated() -> bytes:
    """A file with a quantized XNNPACK delegate."""
    torch = pytest.importorskip("torch")
    import torchette
    from torchette.quantization.recipes import quantizer_of

    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    return bytes(
        torchette.compile(net, (torch.randn(2, 8),), backend="xnnpack", quantizer=quantizer_of("int8"))
    )


@pytest.mark.safety
def test_damaged_files_yield_page_or_format_error(delegated: bytes) -> None:
    """Random bytes of the program and its delegate are changed; the result is still JSON."""
    random = np.random.default_rng(0)
    file = pte.read(delegated)
    blob = file.delegate(file.program.execution_plan[0].delegates[0])
    start = delegated.index(bytes(blob))
    opened = refused = 0
    for turn in range(400):
        data = bytearray(delegated)
        low, high = (start, start + len(blob)) if turn % 2 else (0, file.program_size)
        for at in random.integers(low, high, 1 + turn % 3):
            data[at] = random.integers(256)
        try:
            contents = known(bytes(data), source_folders=[])
        except FormatError:
            refused += 1
            continue
        json.dumps(contents, allow_nan=False)
        nodes, values = len(contents["methods"][0]["nodes"]), len(contents["methods"][0]["values"])
        for method in contents["methods"][:1]:
            assert all(0 <= a < nodes and 0 <= b < nodes for a, b, _ in edges(method))
            assert all(
                0 <= index < values for node in method["nodes"] for index in (*node["in"], *node["out"])
            )
            opened += not method["notes"]
    assert opened > 20 and refused > 20


def test_branches_and_loops_merge_writers() -> None:
    torch = pytest.importorskip("torch")
    import torchette

    class Choice(torch.nn.Module):
        def forward(self, x, flag):
            return torch.cond(flag.sum() > 0, lambda v: v.relu(), lambda v: v.tanh(), (x,)) * 2

    class Loop(torch.nn.Module):
        def forward(self, n, x):
            return torch.while_loop(lambda i, v: i < 5, lambda i, v: (i + 1, v.sin()), (n, x))[1]

    def joined(model: torch.nn.Module, *inputs: torch.Tensor) -> set[tuple[str, str]]:
        contents = known(bytes(torchette.compile(model.eval(), inputs)))
        method, texts = contents["methods"][0], contents["texts"]
        names = [texts[node["op"]].rpartition("::")[2].partition(".")[0] for node in method["nodes"]]
        return {(names[a], names[b]) for a, b, _ in edges(method)}

    pairs = joined(Choice(), torch.randn(2, 4), torch.ones(3))
    assert {("relu", "mul"), ("tanh", "mul"), ("x", "relu"), ("x", "tanh")} <= pairs
    assert ("relu", "tanh") not in pairs
    again = joined(Loop(), torch.tensor(0), torch.randn(2, 3))
    assert {("add", "lt"), ("clone", "sin"), ("sin", "output"), ("clone", "output")} <= again


def test_exported_programs_are_graphs_with_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchette.devtools.visualization import visualize, visualize_graph, visualize_with_clusters

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.layer(x))

    edge = to_edge(torch.export.export(Net(), (torch.ones(1, 2),)))
    path = tmp_path / "graph.json"
    visualize_with_clusters(
        edge.exported_program(),
        path,
        get_node_partition_name=lambda node: "part 0" if "relu" in node.name else None,
    )
    nodes = {node["id"]: node for node in json.loads(path.read_text())["graphs"][0]["nodes"]}
    linear, relu = nodes["aten_linear_default"], nodes["aten_relu_default"]
    assert (linear["label"], linear["namespace"]) == ("aten.linear.default", "layer")
    assert relu["namespace"] == "part 0"
    assert relu["incomingEdges"][0]["sourceNodeId"] == "aten_linear_default"
    assert {"key": "tensor", "value": "torch.float32[1, 2]"} in relu["attrs"]

    monkeypatch.setitem(sys.modules, "model_explorer", None)
    with pytest.raises(MissingPackageError, match="pip install ai-edge-model-explorer"):
        visualize(edge)
    opened: list[Any] = []
    config = SimpleNamespace(
        add_model_from_path=lambda path: opened.append(json.loads(Path(path).read_text())),
        set_reuse_server=lambda: opened.append("reused"),
    )
    package = SimpleNamespace(
        config=lambda: config, visualize_from_config=lambda config, **options: opened.append(options)
    )
    monkeypatch.setitem(sys.modules, "model_explorer", package)
    visualize(edge, port=8081)
    visualize_graph(edge.exported_program().graph_module, edge.exported_program(), reuse_server=False)
    first, reused, options, second, plain = opened
    assert first == second and reused == "reused" and len(first["graphs"][0]["nodes"]) == len(nodes)
    assert options == {"no_open_in_browser": False, "port": 8081} and plain == {"no_open_in_browser": False}
