# SPDX-License-Identifier: BSD-3-Clause
# In: concatenations of the channels of convolutions, channels last. Out: convolutions that write to the memory of the
# concatenation, so that their results are not copied.
"""Lets convolutions write their part of a concatenation of channels."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.exir.arguments import checked, node_arg, nodes_arg
from torchette.exir.graph import call, calls, note, replace

aten = torch.ops.aten
cpu = torch.ops.cpu

# Convolution -> index of its residual.
_RESIDUAL: dict[Any, int] = {cpu.convolution.default: 3, cpu.depthwise.default: 3}


class _Buffer(NamedTuple):
    """The memory of a concatenation.

    `concatenations` are in the order of the graph, each of them a prefix of the next one. `parts` are those of the last
    concatenation with the channel at which they begin.
    """

    concatenations: list[Node]
    parts: dict[Node, int]
    channels: int

    def is_written(self, part: Node) -> bool:
        """Returns whether the convolution that computes a part can write it, because its other readers support it."""
        readers = [user for user in part.users if user not in self.concatenations]
        return _is_free(part) and all(map(_reads_parts, readers))


def fuse_concatenations(program: ExportedProgram) -> ExportedProgram:
    """Lets convolutions write their part of a concatenation of channels."""
    written = 0
    merged = [node for node in calls(program, aten.cat.default) if _is_candidate(node)]
    for family in _families(merged):
        order = {node: index for index, node in enumerate(family[-1].graph.nodes)}
        written += _Writer(_buffer(family), order).run(program)
    if written:
        note(program, f"{written} convolutions write to their part of a concatenation")
    return program


def _is_candidate(node: Node) -> bool:
    """Returns whether a call concatenates channels of static float32 images that are all different values. Excludes
    results of a graph, because the caller may provide their memory."""
    parts, val = nodes_arg(node), node.meta["val"]
    dim = node.args[1] if len(node.args) > 1 else 0
    return (
        not any(user.op == "output" for user in node.users)
        and len(parts) > 1
        and len(set(parts)) == len(parts)
        and val.dtype is torch.float32
        and val.dim() >= 3
        and isinstance(dim, int)
        and dim % val.dim() == val.dim() - 1
        and all(isinstance(size, int) for part in (node, *parts) for size in part.meta["val"].shape)
        and all(part.meta["val"].dtype is torch.float32 for part in parts)
    )


def _families(concatenations: list[Node]) -> list[list[Node]]:
    """Groups concatenations of which each is a prefix of the next one, as in a DenseNet."""
    families: list[list[Node]] = []
    for node in concatenations:
        parts = nodes_arg(node)
        for family in families:
            prefix = nodes_arg(family[-1])
            extends = len(parts) > len(prefix) and parts[: len(prefix)] == prefix
            if extends and all(map(_reads_parts, family[-1].users)):
                family.append(node)
                break
        else:
            families.append([node])
    return families


def _buffer(family: list[Node]) -> _Buffer:
    parts: dict[Node, int] = {}
    channels = 0
    for part in nodes_arg(family[-1]):
        parts[part] = channels
        channels += part.meta["val"].shape[-1]
    return _Buffer(family, parts, channels)


def _is_free(node: Node) -> bool:
    index = _RESIDUAL.get(node.target)
    return index is not None and node.args[index] is None


def _reads_parts(node: Node) -> bool:
    """Returns whether an operator can read a part of the channels of its input."""
    return node.target is cpu.depthwise.default and node.args[3] is None


class _Writer:
    """Replaces the concatenations of a buffer, and the convolutions that write to it and read from it."""

    def __init__(self, buffer: _Buffer, order: dict[Node, int]) -> None:
        self._buffer = buffer
        # The channel at which each value begins that is in the buffer as a whole.
        self._sources = dict.fromkeys(buffer.concatenations[:-1], 0)
        self._sources |= {part: first for part, first in buffer.parts.items() if buffer.is_written(part)}
        readers = {user for source in self._sources for user in source.users if _reads_parts(user)}
        self._steps = sorted({*self._sources, *readers, buffer.concatenations[-1]}, key=order.__getitem__)
        self._stored: set[Node] = set()
        self._into: Node | None = None

    def run(self, program: ExportedProgram) -> int:
        """Returns the number of parts that are written in place, 0 if the first part would have to be copied."""
        if not any(part in self._sources for part in nodes_arg(self._buffer.concatenations[0])):
            return 0
        *_, last = self._buffer.concatenations
        for node in self._steps:
            if node in self._buffer.parts and node in self._sources:
                self._write(node)
            elif node in self._buffer.concatenations:
                for part in nodes_arg(node):
                    self._copy(part, node)
            else:
                self._read(program, node)
        assert self._into is not None
        last.args = ((), *last.args[1:])  # its operands keep their origins
        replace(program, last, self._into)
        for node in reversed(self._steps):
            if not node._erased and not node.users:
                node.graph.erase_node(node)
        return sum(part in self._sources for part in self._buffer.parts)

    def _write(self, node: Node) -> None:
        """Lets a convolution write its part."""
        x, weight, bias, _, *options = node.args
        first, channels = self._buffer.parts[node], self._buffer.channels
        if node.target is cpu.convolution.default:
            args = (self._into, x, weight, bias, *options, first, channels)
            self._append(node, cpu.convolution_into.default, args)
        else:
            source = self._sources.get(checked(x, Node))
            image = checked(x, Node) if source is None else None
            self._append(
                node, cpu.depthwise_into.default, self._part(node, image, source or 0, first, channels)
            )
        self._stored.add(node)

    def _part(
        self, node: Node, image: Node | None, source: int, first: int, channels: int
    ) -> tuple[Any, ...]:
        """Returns the arguments of `cpu::depthwise_into` for a call of `cpu::depthwise`."""
        x, weight, bias, _, *where, activation = node.args
        count = checked(x, Node).meta["val"].shape[-1]
        into = None if image is self._into else self._into
        return (into, image, weight, bias, *where, count, source, activation, first, channels)

    def _read(self, program: ExportedProgram, node: Node) -> None:
        """Lets a depthwise convolution read its input from the buffer."""
        count = node.meta["val"].shape[-1]
        args = self._part(node, self._into, self._sources[node_arg(node)], 0, count)
        replacement = call(node, cpu.depthwise_into.default, args, val=node.meta["val"], like=node)
        replace(program, node, replacement)

    def _copy(self, part: Node, before: Node) -> None:
        """Copies a part to the buffer if it is not stored."""
        if part in self._stored:
            return
        first = self._buffer.parts[part]
        last = first + part.meta["val"].shape[-1]
        dim = before.meta["val"].dim() - 1
        self._append(before, aten.slice_scatter.default, (self._into, part, dim, first, last))
        self._stored.add(part)

    def _append(self, before: Node, target: torch._ops.OpOverload, args: tuple[Any, ...]) -> None:
        """Inserts a call with the buffer as its result."""
        val = self._buffer.concatenations[-1].meta["val"]
        self._into = call(before, target, args, val=val, like=before)
