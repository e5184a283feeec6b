# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file, or an exported program. Out: JSON that Google's Model Explorer opens: a graph for each method, with modules
# as layers.
"""Graphs for Model Explorer. Its fields: label and graphs of a collection; id, nodes and groupNodeAttributes of a graph; id,
label, namespace ("a/b/c"), attrs, incomingEdges, inputsMetadata and outputsMetadata of a node."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchette.devtools.profile import milliseconds
from torchette.devtools.report.contents import Times, contents
from torchette.format import pte
from torchette.packages import require


def write(
    source: str | os.PathLike[str] | pte.PteFile,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    times: Mapping[str, Times] | None = None,
) -> Path:
    """Writes the graphs of a program as one JSON file.

    Args:
        source: the path of a .pte file, or a file that has been read.
        path: the JSON file; a file of that name is replaced.
        name: what the collection is called; by default the file's name.
        times: by method, its profile or operations (`torchette.devtools.report.write_report`).

    Raises:
        FormatError, ModelNotFoundError: there is no such program.
    """
    file = source if isinstance(source, pte.PteFile) else pte.load_file(Path(source))
    if name is None:
        name = "program" if isinstance(source, pte.PteFile) else Path(source).name
    target = Path(path)
    target.write_text(json.dumps(collection(file, name, times), allow_nan=False), encoding="utf-8")
    return target


def collection(file: pte.PteFile, name: str, times: Mapping[str, Times] | None = None) -> dict[str, Any]:
    """The graph collection as Model Explorer's JSON has it."""
    known = contents(file, name, times=times, source_folders=())
    graphs = [_graph(method, known["texts"]) for method in known["methods"]]
    for graph in graphs:
        graph["collectionLabel"] = name
    return {"label": name, "graphs": graphs}


def _graph(method: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    records, values = method["nodes"], method["values"]
    edges: dict[int, list[tuple[int, int]]] = {}
    numbers = method["edges"]
    for origin, node, value in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        edges.setdefault(node, []).append((origin, value))
    opened = {record["parent"] for record in records if "parent" in record}
    groups: dict[str, dict[str, str]] = {}
    nodes = []
    for index, record in enumerate(records):
        path = [part for part in texts[record["module"]].split(".") if part] if "module" in record else []
        if "parent" in record:
            outer = records[record["parent"]]
            base = texts[outer["module"]].split(".") if "module" in outer else []
            name = f"{texts[outer['op']]} {outer['delegate']}"
            path = [*base, name, *path[len(base) :]]
        if "type" in record and path:
            groups.setdefault("/".join(path), {"class": texts[record["type"]]})
        if index in opened:
            base = [part for part in path if part]
            groups["/".join([*base, f"{texts[record['op']]} {record['delegate']}"])] = dict(
                _pairs(method, record, index, texts)
            )
            continue
        nodes.append(
            {
                "id": str(index),
                "label": texts[record["op"]],
                "namespace": "/".join(path),
                "attrs": [{"key": key, "value": text} for key, text in _pairs(method, record, index, texts)],
                "incomingEdges": [
                    {
                        "sourceNodeId": str(origin),
                        "sourceNodeOutputId": _port(records[origin]["out"], value),
                        "targetNodeInputId": _port(record["in"], value),
                    }
                    for origin, value in edges.get(index, ())
                    if origin not in opened
                ],
                "inputsMetadata": [_tensor(i, value, values, texts) for i, value in enumerate(record["in"])],
                "outputsMetadata": [
                    _tensor(i, value, values, texts) for i, value in enumerate(record["out"])
                ],
            }
        )
    return {"id": method["name"], "nodes": nodes, "groupNodeAttributes": groups}


def _pairs(
    method: dict[str, Any], record: dict[str, Any], index: int, texts: Sequence[str]
) -> list[tuple[str, str]]:
    """What is said about a node."""
    found = []
    if "at" in record:
        found.append(("instruction", str(record["at"])))
    if index in method.get("times", {}):
        found.append(("time", milliseconds(method["times"][index])))
    if "source" in record:
        name, line, function, _ = method["sources"][record["source"]]
        found.append(("source", f"{texts[name]}:{line}, in {texts[function]}"))
    if "settings" in record:
        found.append(("settings", texts[record["settings"]]))
    return found


def _port(values: Sequence[int], value: int) -> str:
    return str(values.index(value) if value in values else 0)


def _tensor(number: int, value: int, values: Sequence[Any], texts: Sequence[str]) -> dict[str, Any]:
    row = values[value]
    attributes = [{"key": "tensor", "value": texts[row[0]]}]
    if len(row) > 1:
        attributes += [{"key": "place", "value": texts[row[2]]}, {"key": "bytes", "value": str(row[1])}]
        if texts[row[3]]:
            attributes.append({"key": "name", "value": texts[row[3]]})
    return {"id": str(number), "attrs": attributes}


# ---- graphs of exported programs, by the names of ExecuTorch's devtools.visualization ----


def visualize(
    exported_program: Any, reuse_server: bool = True, no_open_in_browser: bool = False, **kwargs: Any
) -> None:
    """Opens the graph of a program in Model Explorer; its server blocks.

    Args:
        exported_program: an ExportedProgram, or the manager of an Edge or a finished program, whose method forward it shows.
        reuse_server: use a server that runs already instead of a new one.
        no_open_in_browser: only start the server.
        kwargs: further arguments of `model_explorer.visualize_from_config`.

    Raises:
        MissingPackageError: the package ai-edge-model-explorer is not installed.
    """
    visualize_with_clusters(
        exported_program, None, no_open_in_browser, reuse_server, _no_group, _no_group, **kwargs
    )


def visualize_graph(
    graph_module: Any,
    exported_program: Any = None,
    reuse_server: bool = True,
    no_open_in_browser: bool = False,
    **kwargs: Any,
) -> None:
    """Opens a GraphModule in Model Explorer. `exported_program`, the program that it belongs to, is ignored. Further arguments
    and errors as for `visualize`."""
    del exported_program
    visualize(graph_module, reuse_server, no_open_in_browser, **kwargs)


def _no_group(node: Any) -> str | None:
    return None


def _delegation_tag(node: Any) -> str | None:
    tag: str | None = node.meta.get("delegation_tag")
    return tag


def _cluster(node: Any) -> str | None:
    name: str | None = node.meta.get("cluster")
    return name


def visualize_with_clusters(
    exported_program: Any,
    json_file_name: str | os.PathLike[str] | None = None,
    no_open_in_browser: bool = False,
    reuse_server: bool = False,
    get_node_partition_name: Callable[[Any], str | None] = _delegation_tag,
    get_node_qdq_cluster_name: Callable[[Any], str | None] = _cluster,
    **kwargs: Any,
) -> None:
    """Shows a program with its nodes in layers: partitions, and clusters of quantized operators inside of them.

    Args:
        exported_program: as for `visualize`.
        json_file_name: write the graph to this file for Model Explorer, instead of opening it; the package is not needed.
        get_node_partition_name, get_node_qdq_cluster_name: the layer of a node, or None; by default its
            ``meta["delegation_tag"]`` and ``meta["cluster"]``. A node in neither is in the layers of its modules.

    Raises:
        MissingPackageError: there is no `json_file_name`, and the package ai-edge-model-explorer is not installed.
    """
    found = getattr(exported_program, "exported_program", exported_program)
    graph = (found() if callable(found) and not hasattr(found, "graph") else found).graph
    nodes = [
        _fx_node(node, get_node_partition_name(node), get_node_qdq_cluster_name(node)) for node in graph.nodes
    ]
    text = json.dumps({"label": "program", "graphs": [{"id": "forward", "nodes": nodes}]})
    if json_file_name is not None:
        Path(json_file_name).write_text(text, encoding="utf-8")
        return
    package = require(
        "model_explorer",
        "an open graph",
        ["visualize_with_clusters(program, 'graph.json') writes a file without it"],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.json"
        path.write_text(text, encoding="utf-8")
        config = package.config()
        config.add_model_from_path(str(path))
        if reuse_server:
            config.set_reuse_server()
        package.visualize_from_config(config, no_open_in_browser=no_open_in_browser, **kwargs)


def _fx_node(node: Any, partition: str | None, cluster: str | None) -> dict[str, Any]:
    """A node of a torch.fx.Graph as Model Explorer's JSON has it."""
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
    layers = [name for name in (partition, cluster) if name] or (modules[-1].split(".") if modules else [])
    values = node.meta.get("val")
    values = values if isinstance(values, (tuple, list)) else [values]
    tensors = [f"{value.dtype}{list(value.shape)}" for value in values if hasattr(value, "dtype")]
    attributes = {"name": node.name, "op": node.op, "tensor": ", ".join(tensors)}
    attributes |= {"source": str(node.meta.get("stack_trace") or "").strip().rpartition("\n")[2]}
    attributes |= {f"argument {at}": str(value) for at, value in enumerate(node.args)}
    return {
        "id": node.name,
        "label": str(node.target) if node.op == "call_function" else node.op,
        "namespace": "/".join(layers),
        "attrs": [{"key": key, "value": value} for key, value in attributes.items() if value],
        "incomingEdges": [
            {"sourceNodeId": source.name, "sourceNodeOutputId": "0", "targetNodeInputId": str(at)}
            for at, source in enumerate(node.all_input_nodes)
        ],
        "outputsMetadata": [
            {"id": str(at), "attrs": [{"key": "tensor", "value": tensor}]}
            for at, tensor in enumerate(tensors)
        ],
    }
