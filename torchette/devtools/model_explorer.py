# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: JSON for Google's Model Explorer: a graph for each method, with modules as layers.
"""Graphs for Model Explorer. Fields: label and graphs of a collection; id, nodes and groupNodeAttributes of a graph;
id, label, namespace ("a/b/c"), attrs, incomingEdges, inputsMetadata and outputsMetadata of a node."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchette.devtools.profile import milliseconds
from torchette.devtools.report.contents import Times, contents
from torchette.format import pte


def write(
    source: str | os.PathLike[str] | pte.PteFile,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    times: Mapping[str, Times] | None = None,
) -> Path:
    """Writes the graphs of a program as one JSON file.

    Args:
        source: path of a .pte file, or a file that was already read.
        path: the JSON file; an existing file is replaced.
        name: label of the collection; by default the name of the file.
        times: profile or operations by method (`torchette.devtools.report.write_report`).

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is damaged.
    """
    file = source if isinstance(source, pte.PteFile) else pte.load_file(Path(source))
    if name is None:
        name = "program" if isinstance(source, pte.PteFile) else Path(source).name
    target = Path(path)
    target.write_text(json.dumps(collection(file, name, times), allow_nan=False), encoding="utf-8")
    return target


def collection(file: pte.PteFile, name: str, times: Mapping[str, Times] | None = None) -> dict[str, Any]:
    """Returns the graph collection in Model Explorer's JSON form."""
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
    """Returns the attributes of a node as keys and values."""
    pairs = []
    if "at" in record:
        pairs.append(("instruction", str(record["at"])))
    if index in method.get("times", {}):
        pairs.append(("time", milliseconds(method["times"][index])))
    if "source" in record:
        name, line, function, _ = method["sources"][record["source"]]
        pairs.append(("source", f"{texts[name]}:{line}, in {texts[function]}"))
    if "settings" in record:
        pairs.append(("settings", texts[record["settings"]]))
    return pairs


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
