# SPDX-License-Identifier: BSD-3-Clause
# What a file says about a method besides its instructions: how inputs and outputs nest, and where in the model
# instructions come from.
"""Structures of inputs and outputs, and stack traces."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import Node

from torchette.exir.arguments import checked, node_arg
from torchette.exir.delegation.delegate import LoweredBackendModule, is_delegate_call
from torchette.exir.graph import calls, frames, module_of, user_frame
from torchette.exir.interface import ComplexTensor
from torchette.format import pte


def structure(spec: pytree.TreeSpec | None) -> str:
    """How inputs or outputs nest, in torch's own text; empty where that is not known, and values stay a flat list."""
    if spec is None:
        return ""
    try:
        version, record = json.loads(pytree.treespec_dumps(_with_plain_tuples(spec)))
    except NotImplementedError:  # a container registered without a name that a file could hold
        return _flat_structure(spec)
    _name_tuples(record, spec)
    return json.dumps([version, record])


def _flat_structure(spec: pytree.TreeSpec) -> str:
    """Text for a flat list of the leaves, which is needed only to say which of them are complex."""
    leaves = list(_leaves(spec))
    if all(leaf.is_leaf() for leaf in leaves):
        return ""
    return structure(leaves[0] if len(leaves) == 1 else pytree.TreeSpec(tuple, None, leaves))


def _leaves(spec: pytree.TreeSpec) -> Iterator[pytree.TreeSpec]:
    if spec.is_leaf() or spec.type is ComplexTensor:
        yield spec
    else:
        for child in spec.children():
            yield from _leaves(child)


def _is_named_tuple(spec: pytree.TreeSpec) -> bool:
    """Whether this is a namedtuple that torch has no name for."""
    return spec.type is collections.namedtuple and spec.context not in pytree.SUPPORTED_SERIALIZED_TYPES


def _lacks_text(spec: pytree.TreeSpec) -> bool:
    """Whether torch has no text for this: namedtuples and dataclasses without a name, and the result of torch.topk and the
    like."""
    if _is_named_tuple(spec):
        return True
    if dataclasses.is_dataclass(spec.type):
        text = pytree.SUPPORTED_SERIALIZED_TYPES.get(checked(spec.type, type))
        return text is None or text.serialized_type_name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND
    return spec.type in torch.return_types.all_return_types


def _with_plain_tuples(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    if spec.is_leaf():
        return spec
    if spec.type is ComplexTensor:
        return spec.children()[0]
    kind, context = (tuple, None) if _lacks_text(spec) else (spec.type, spec.context)
    return pytree.TreeSpec(kind, context, [_with_plain_tuples(child) for child in spec.children()])


def _name_tuples(record: dict[str, Any], spec: pytree.TreeSpec) -> None:
    if spec.type is ComplexTensor:
        record["complex"] = (
            True  # a leaf all the same: torch and ExecuTorch read no such entry, and see a real tensor
        )
        return
    if _is_named_tuple(spec):
        record["type"] = f"collections.namedtuple.{spec.context.__name__}"
        record["context"] = json.dumps(spec.context._fields)
    elif _lacks_text(spec):
        is_dataclass = dataclasses.is_dataclass(spec.type)
        record["type"] = f"{spec.type.__module__}.{spec.type.__qualname__}"
        record["context"] = json.dumps(spec.context if is_dataclass else spec.type.__match_args__)
    for child, child_spec in zip(record["children_spec"], spec.children(), strict=True):
        _name_tuples(child, child_spec)


def stack_trace(node: Node) -> Any:
    """All lines of a node's stack trace as a record, outermost first, as torch has recorded them."""
    return _origin(node, [pte.Frame(*frame) for frame in frames(node)])


def source_line(node: Node) -> Any:
    """The line of the user's model alone, as a record. Without the text of the line: equal records are stored once, and a
    text is there for each line."""
    return _origin(node, _line(node))


def _origin(node: Node, lines: list[Any]) -> Any:
    """Lines and the module that they belong to, which stands before them as a frame without a file: its path as the name,
    its class as the text. A delegate's nodes come first, each with its debug handle as the line of that frame."""
    parts = []
    if is_delegate_call(node):
        callee = getattr(node.graph.owning_module, str(node_arg(node).target), None)
        if isinstance(callee, LoweredBackendModule):
            parts = [it for it in calls(callee.original_module) if it.meta.get("debug_handle")]
    known = [frame for part in parts for frame in (_module(part, part.meta["debug_handle"]), *_line(part))]
    return pte.FrameList([*known, *([_module(node)] if known or module_of(node)[0] else []), *lines])


def _module(node: Node, handle: int = 0) -> Any:
    path, kind = module_of(node)
    return pte.Frame("", handle, path, kind)


def _line(node: Node) -> list[Any]:
    frame = user_frame(node)
    if frame is None:
        return []
    return [pte.Frame(_stored_name(frame.file, os.getcwd()), frame.line, frame.function, "")]


@functools.cache
def _stored_name(file: str, current: str) -> str:
    """A file's name without the folders that are this machine's own: below a package folder, the current folder or one that
    Python imports from, else its last two parts. Compiling in another checkout gives the same bytes."""
    path = Path(file)
    for folder in ("site-packages", "dist-packages"):
        if folder in path.parts:
            return "/".join(path.parts[path.parts.index(folder) + 1 :])
    folders = [folder for folder in map(Path, (current, *sys.path)) if path.is_relative_to(folder)]
    if folders and folders[0].parts[1:]:
        return path.relative_to(folders[0]).as_posix()
    return "/".join(path.parts[-2:])
