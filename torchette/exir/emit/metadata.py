# SPDX-License-Identifier: BSD-3-Clause
# The metadata of a method in the file: the structure of inputs and outputs, and the origin of each instruction in the
# model.
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
    """Returns the structure of inputs or outputs in torch's text format; empty if it is unknown or a flat list."""
    if spec is None:
        return ""
    try:
        version, record = json.loads(pytree.treespec_dumps(_with_plain_tuples(spec)))
    except NotImplementedError:  # a container that is registered without a serializable name
        return _flat_structure(spec)
    _name_tuples(record, spec)
    return json.dumps([version, record])


def _flat_structure(spec: pytree.TreeSpec) -> str:
    """Returns the structure of a flat list of the leaves, or an empty text if no leaf is complex."""
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
    """Returns whether this is a namedtuple without a registered name."""
    return spec.type is collections.namedtuple and spec.context not in pytree.SUPPORTED_SERIALIZED_TYPES


def _lacks_text(spec: pytree.TreeSpec) -> bool:
    """Returns whether torch cannot serialize this type: unregistered namedtuples and dataclasses, and results such as
    that of torch.topk."""
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
        record["complex"] = True  # still a leaf: torch and ExecuTorch ignore this entry and see a real tensor
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


# The frames of delegates that instructions of the program have already listed.
DelegateFrames = dict[LoweredBackendModule, list[Any]]


def stack_trace(node: Node, listed: DelegateFrames) -> Any:
    """Returns the stack trace of a node as a record, outermost frame first."""
    return _origin(node, [pte.Frame(*frame) for frame in frames(node)], listed)


def source_line(node: Node, listed: DelegateFrames) -> Any:
    """Returns the source line of the user's model as a record. The text of the line is omitted, because equal records
    are stored once and the text makes records differ."""
    return _origin(node, _line(node), listed)


def _origin(node: Node, lines: list[Any], listed: DelegateFrames) -> Any:
    """Returns frames, preceded by a frame without a file that names their module: its path is the function, its class
    the text. The nodes of a delegate come first; the line of each module frame is the debug handle."""
    known: list[Any] = []
    if is_delegate_call(node):
        callee = getattr(node.graph.owning_module, str(node_arg(node).target), None)
        if isinstance(callee, LoweredBackendModule):
            # Several instructions belong to a delegate, which may have thousands of nodes.
            if callee not in listed:
                listed[callee] = _delegate_frames(callee)
            known = listed[callee]
    return pte.FrameList([*known, *([_module(node)] if known or module_of(node)[0] else []), *lines])


def _delegate_frames(callee: LoweredBackendModule) -> list[Any]:
    parts = [node for node in calls(callee.original_module) if node.meta.get("debug_handle")]
    return [frame for part in parts for frame in (_module(part, part.meta["debug_handle"]), *_line(part))]


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
    """Returns a file name without machine-specific folders: relative to a package folder, to the current folder or to a
    folder of sys.path, or the last two parts. Other checkouts then produce the same bytes."""
    path = Path(file)
    for folder in ("site-packages", "dist-packages"):
        if folder in path.parts:
            return "/".join(path.parts[path.parts.index(folder) + 1 :])
    folders = [folder for folder in map(Path, (current, *sys.path)) if path.is_relative_to(folder)]
    if folders and folders[0].parts[1:]:
        return path.relative_to(folders[0]).as_posix()
    return "/".join(path.parts[-2:])
