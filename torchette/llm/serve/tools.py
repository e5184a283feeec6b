# SPDX-License-Identifier: BSD-3-Clause
# The functions that a request offers to the model, and the choice among them.
"""`Tools`: the tools of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torchette.errors import InputError
from torchette.llm.messages import functions
from torchette.llm.serve.refusal import unsupported, wrong


class Tools(NamedTuple):
    """The tools of a request."""

    offered: list[Any]
    """Functions that the chat template shows to the model."""
    choice: Any
    """OpenAI's tool_choice: "auto", "none", "required" or {"type": "function", "function": {"name": ...}}."""
    parameters: Mapping[str, Any]
    """JSON schemas of the functions that the answer may call, by name."""
    max_calls: int | None
    """The maximum number of calls in an answer."""

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a call."""
        return self.choice not in ("auto", "none")


def tools_of(body: Mapping[str, Any]) -> Tools:
    """Returns the tools of a request in the form of chat completions.

    Raises:
        Refusal: status 400: a tool or the choice is malformed or not supported.
    """
    tools, choice = body.get("tools", []), body.get("tool_choice", "auto")
    parallel = body.get("parallel_tool_calls", True)
    if not isinstance(parallel, bool):
        raise wrong("parallel_tool_calls", f"parallel_tool_calls must be true or false, got {parallel!r}")
    if not isinstance(tools, list):
        raise wrong("tools", "tools must be a list")
    for index, tool in enumerate(tools):
        _check_tool(f"tools[{index}]", tool, tools[:index])
    tools, choice = _allowed(tools, choice)
    if not tools and choice not in ("auto", "none"):
        raise wrong("tool_choice", "tool_choice asks for a call, and the request has no tools")
    known = functions(tools) if tools and choice != "none" else {}
    return Tools(tools, choice, known, None if parallel else 1)


def _check_tool(where: str, tool: object, before: list[Any]) -> None:
    """Raises Refusal with the reason if a tool is not a function that a model can call."""
    if not isinstance(tool, dict):
        raise wrong(where, f"{where} must be an object with type and function")
    kind, function = tool.get("type"), tool.get("function")
    if kind != "function":
        raise unsupported(
            where, f"{where} is of type {kind!r}: this server supports tools of type 'function' only"
        )
    if not isinstance(function, dict) or not isinstance(name := function.get("name"), str):
        raise wrong(where, f"{where}.function must be an object with a name")
    if any(tool["function"]["name"] == name for tool in before):
        raise wrong(where, f"{where}.function.name: a tool before it has the name {name!r}, too")
    if not isinstance(function.get("parameters"), (dict, type(None))):
        raise wrong(where, f"{where}.function.parameters must be a JSON schema: an object")
    if not isinstance(function.get("strict"), (bool, type(None))):
        raise wrong(where, f"{where}.function.strict must be true or false")
    try:
        functions([tool])
    except InputError as error:
        raise wrong(
            where, f"{where}.function.name is {name[:100]!r} ({len(name)} characters): {error.message}"
        ) from None


def _allowed(tools: list[Any], choice: object) -> tuple[list[Any], Any]:
    """The tools and the choice without "allowed_tools", which names some of the tools."""
    if not isinstance(choice, dict):
        if choice not in ("auto", "none", "required"):
            raise wrong(
                "tool_choice", f"tool_choice must be auto, none, required or an object, got {choice!r}"
            )
        return tools, choice
    known = {tool["function"]["name"]: tool for tool in tools}
    kind = choice.get("type", "function")
    if kind == "function":
        return tools, {"type": "function", "function": {"name": _named("tool_choice", choice, known)}}
    if kind != "allowed_tools":
        raise unsupported("tool_choice", f"tool_choice is of type {kind!r}; types: function, allowed_tools")
    allowed = choice.get("allowed_tools", choice)
    mode = allowed.get("mode", "auto") if isinstance(allowed, dict) else None
    listed = allowed.get("tools") if isinstance(allowed, dict) else None
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise wrong(
            "tool_choice", "tool_choice.allowed_tools needs a mode, auto or required, and a list of tools"
        )
    names = [_named(f"tool_choice.allowed_tools.tools[{i}]", one, known) for i, one in enumerate(listed)]
    return [tool for name, tool in known.items() if name in names], mode


def _named(where: str, choice: object, known: Mapping[str, Any]) -> str:
    """The name of a tool: {"type": "function", "function": {"name": ...}}, or flat as in the Responses API."""
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in known:
        there = f"the tools are {', '.join(known)}" if known else "the request has no tools"
        raise wrong("tool_choice", f"{where} names the tool {name!r}: {there}")
    return name
