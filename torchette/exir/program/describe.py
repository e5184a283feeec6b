# SPDX-License-Identifier: BSD-3-Clause
# In: programs and managers. Out: the text that both managers print.
"""The text of program managers, and the lookup of methods by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from torch.export import ExportedProgram

from torchette import notebook
from torchette.exir.graph import placeholders, shape_text


def method_named(items: Mapping[str, Any], name: str) -> Any:
    """Returns the item of a method. Raises KeyError, with the names of the methods, if there is no such method."""
    if name not in items:
        raise KeyError(f"no method {name!r}; methods: {', '.join(sorted(items))}")
    return items[name]


class _Manager(Protocol):
    @property
    def config_methods(self) -> Iterable[str]: ...


def describe(manager: _Manager, lines: list[str]) -> str:
    """Returns the text of a manager: its class, these lines, and its constant methods."""
    constants = [f"{name}: constant" for name in sorted(manager.config_methods)]
    return "\n  ".join([f"{type(manager).__name__}", *lines, *constants])


def html(manager: object) -> str:
    """Returns the same text as an HTML table for a notebook."""
    heading, *lines = repr(manager).split("\n  ")
    return notebook.tables([("", (), [(line,) for line in lines])], heading)


def signature_text(program: ExportedProgram) -> str:
    """Returns the shapes of a program's inputs and outputs, and the number of its calls."""
    signature = program.graph_signature
    values = {node.name: node.meta.get("val") for node in placeholders(program)}
    inputs = [shape_text(values.get(str(name), name)) for name in signature.user_inputs]
    by_name = {node.name: node.meta.get("val") for node in program.graph.nodes}
    results = [shape_text(by_name.get(str(name), name)) for name in signature.user_outputs]
    calls = sum(node.op == "call_function" and "alias" not in node.meta for node in program.graph.nodes)
    return f"({', '.join(inputs)}) -> ({', '.join(results)}), {calls} calls"
