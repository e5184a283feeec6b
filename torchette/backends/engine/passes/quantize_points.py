# SPDX-License-Identifier: BSD-3-Clause
# In: `cpu::quantize` and `cpu::dequantize` next to calls that only move elements. Out: the same calls on the other side
# of the moves. Float patterns such as attention match moves of floats; at run time, moves of 8-bit integers are faster.
"""Chooses the points in a graph at which values are quantized and dequantized."""

from __future__ import annotations

import operator
from typing import TypeGuard

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import Argument

from torchette.exir.arguments import node_arg
from torchette.exir.graph import REORDERINGS, call, calls, note, replace

aten = torch.ops.aten
cpu = torch.ops.cpu

# Operators with one tensor operand that move elements and do not compute.
MOVES = REORDERINGS - {operator.getitem} | {aten.slice_copy.Tensor, aten.select_copy.int}


def is_move(node: object) -> TypeGuard[Node]:
    """Whether a node is a call that only moves the elements of its operand."""
    return (
        isinstance(node, Node)
        and node.op == "call_function"
        and node.target in MOVES
        and isinstance(node.args[0], Node)
        and isinstance(node.meta["val"], torch.Tensor)
    )


def lift_dequantize(program: ExportedProgram, node: Argument) -> None:
    """Moves a dequantize before the moves that lead to `node`, through moves and multiplications by factors."""
    while is_move(node) or (isinstance(node, Node) and node.target in (aten.mul.Tensor, aten.div.Tensor)):
        node = node.args[0]
    while isinstance(node, Node) and node.target is cpu.dequantize.default and is_move(node.args[0]):
        node = _before_move(program, node)


def lower_quantize(program: ExportedProgram, node: Node) -> None:
    """Moves a quantize behind the moves that follow it, if `node` has no other users."""
    while len(node.users) == 1 and (quantize := next(iter(node.users))).target is cpu.quantize.default:
        if len(quantize.users) != 1 or not is_move(move := next(iter(quantize.users))):
            return
        node = _repeat_move(move, node)
        replace(program, move, _repeat_call(quantize, node, move))
        quantize.graph.erase_node(quantize)


def settle_quantize(program: ExportedProgram) -> ExportedProgram:
    """Moves elements as integers if only moves precede a quantize or follow a dequantize."""
    moved = sum(_move_down(program, node) for node in list(calls(program, cpu.dequantize.default)))
    for node in reversed(list(calls(program, cpu.quantize.default))):
        while is_move(move := node_arg(node)) and len(move.users) == 1:
            node = _before_move(program, node)
            moved += 1
    if moved:
        note(program, f"{moved} calls that only move elements process integers")
    return program


def _move_down(program: ExportedProgram, node: Node) -> int:
    """Moves a dequantize behind its users if all of them are moves. Returns the number of moved calls."""
    users = list(node.users)
    if not all(is_move(user) for user in users):
        return 0
    moved = len(users)
    for user in users:
        again = _repeat_call(node, _repeat_move(user, node_arg(node)), user)
        replace(program, user, again)
        moved += _move_down(program, again)
    return moved


def _before_move(program: ExportedProgram, node: Node) -> Node:
    """Applies the quantize or dequantize to the operand of the move instead of its result. Returns the new call."""
    move = node_arg(node)
    again = _repeat_call(node, node_arg(move), node)
    replace(program, node, _repeat_move(move, again, before=node))
    return again


def _repeat_call(node: Node, x: Node, before: Node) -> Node:
    val = x.meta["val"].to(node.meta["val"].dtype)
    return call(before, node.target, (x, *node.args[1:]), dict(node.kwargs), val=val, like=node)


def _repeat_move(move: Node, x: Node, before: Node | None = None) -> Node:
    val = move.meta["val"].to(x.meta["val"].dtype)
    return call(before or move, move.target, (x, *move.args[1:]), dict(move.kwargs), val=val, like=move)
