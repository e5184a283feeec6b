# SPDX-License-Identifier: BSD-3-Clause
# In: an exported program. Out: JSON for Google's Model Explorer, with the fields from
# torchette/devtools/model_explorer.py; or a page of Model Explorer.
"""The names of ExecuTorch's module devtools.visualization."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from torchette.exir.delegation.partition import TAG
from torchette.exir.program import EdgeProgramManager, ExecutorchProgramManager
from torchette.packages import require

_Program: TypeAlias = ExportedProgram | EdgeProgramManager | ExecutorchProgramManager | GraphModule


def visualize(
    exported_program: _Program, reuse_server: bool = True, no_open_in_browser: bool = False, **kwargs: object
) -> None:
    """Opens the graph of a program in Model Explorer. The call blocks while the server runs.

    Args:
        exported_program: an ExportedProgram, or the manager of an Edge or finished program; a manager's method
            "forward" is shown.
        reuse_server: whether to use a running server instead of a new one.
        no_open_in_browser: whether to start the server only.
        **kwargs: further arguments of `model_explorer.visualize_from_config`.

    Raises:
        MissingPackageError: if ai-edge-model-explorer is not installed.
    """
    visualize_with_clusters(
        exported_program, None, no_open_in_browser, reuse_server, _no_group, _no_group, **kwargs
    )


def visualize_graph(
    graph_module: GraphModule,
    exported_program: ExportedProgram | None = None,
    reuse_server: bool = True,
    no_open_in_browser: bool = False,
    **kwargs: object,
) -> None:
    """Opens a GraphModule in Model Explorer.

    `exported_program`, the program of the graph, is ignored. See `visualize` for the other arguments and errors.
    """
    del exported_program
    visualize(graph_module, reuse_server, no_open_in_browser, **kwargs)


def _no_group(node: Node) -> str | None:
    return None


def _delegation_tag(node: Node) -> str | None:
    tag: str | None = node.meta.get(TAG)
    return tag


def _cluster(node: Node) -> str | None:
    name: str | None = node.meta.get("cluster")
    return name


def visualize_with_clusters(
    exported_program: _Program,
    json_file_name: str | os.PathLike[str] | None = None,
    no_open_in_browser: bool = False,
    reuse_server: bool = False,
    get_node_partition_name: Callable[[Node], str | None] = _delegation_tag,
    get_node_qdq_cluster_name: Callable[[Node], str | None] = _cluster,
    **kwargs: object,
) -> None:
    """Shows the nodes of a program in nested layers: partitions, and clusters of quantized operators within them.

    Args:
        exported_program: see `visualize`.
        json_file_name: writes the graph to this file for Model Explorer instead of opening it; does not require the
            package.
        no_open_in_browser, reuse_server: see `visualize`.
        get_node_partition_name, get_node_qdq_cluster_name: return the layer of a node, or None. The defaults are
            ``meta["delegation_tag"]`` and ``meta["cluster"]``. Nodes without both are in the layers of their modules.

    Raises:
        MissingPackageError: if ai-edge-model-explorer is not installed and `json_file_name` is None.
    """
    managers = (EdgeProgramManager, ExecutorchProgramManager)
    program = (
        exported_program.exported_program() if isinstance(exported_program, managers) else exported_program
    )
    nodes = [
        _fx_node(node, get_node_partition_name(node), get_node_qdq_cluster_name(node))
        for node in program.graph.nodes
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


def _fx_node(node: Node, partition: str | None, cluster: str | None) -> dict[str, Any]:
    """Converts a node of a torch.fx.Graph to Model Explorer's JSON."""
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
