# SPDX-License-Identifier: BSD-3-Clause
# Reads and packs the stored tensors of a program. A weight that several operators use is packed and stored once.
"""`Weights`: the constants of a program and their packed forms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.passes.narrow import widened_from
from torchette.exir import control_flow
from torchette.exir.arguments import owner
from torchette.exir.graph import add_constant, call, constants

Pack = Callable[[torch.Tensor], torch.Tensor]


class Weights:
    """The constants of a program, for passes that read and pack them.

    A placeholder of a branch or loop body is a constant if its operand is one. `packed` and `add` return a node of the
    same graph as their argument.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._stored = constants(program)
        # Placeholder -> the parameter or buffer name in the user's model.
        self._names = {
            spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target
        }
        self._packed: dict[tuple[Node, Hashable], Node] = {}
        # Branch -> the call that runs it; placeholder of a branch -> the placeholder of the program.
        self._callers = control_flow.owners(program.graph_module)
        self._roots: dict[Node, Node] = {}
        for branch in self._callers:
            for inside in control_flow.inputs(branch):
                root = control_flow.origin(inside, self._callers)
                if root is not None and root in self._stored:
                    self._pass(root, inside)

    def _pass(self, root: Node, inside: Node) -> None:
        """Records that a placeholder of a branch has the value of a constant."""
        self._stored[inside], self._roots[inside] = self._stored[root], root

    def visible(self, stored: Node, like: Node) -> Node:
        """Returns the node of a placeholder of the program in the graph of `like`, and passes it there if necessary."""
        node = control_flow.pass_to_branch(stored, owner(like), self._callers)
        if node is not stored:
            self._pass(stored, node)
        return node

    def get(self, value: object) -> torch.Tensor | None:
        """Returns the stored float32 tensor of a node, or None if the value is not a stored float32 tensor."""
        tensor = self._stored.get(value) if isinstance(value, Node) else None
        return tensor if tensor is not None and tensor.dtype == torch.float32 else None

    def weight(self, value: object) -> torch.Tensor | None:
        """Returns the stored tensor of a node, or the stored 16-bit tensor if the node widens one to float32."""
        source = widened_from(value)
        return self.get(value) if source is None else self._stored.get(source)

    def widened(self, value: Node, before: Node) -> Node:
        """Returns `value` as float32, converted before `before` if its dtype is bfloat16 or float16."""
        if value.meta["val"].dtype is torch.float32:
            return value
        val = value.meta["val"].float()
        return call(
            before, torch.ops.aten._to_copy.default, (value,), {"dtype": torch.float32}, val=val, like=before
        )

    def why_not(self, value: object, name: str = "weight") -> str | None:
        """Returns the reason why `get` returns no tensor for a value, or None."""
        tensor = self.any(value)
        if tensor is None:
            return f"its {name} is not a stored constant"
        return (
            None if tensor.dtype == torch.float32 else f"its {name} is {tensor.dtype}".replace("torch.", "")
        )

    def any(self, value: object) -> torch.Tensor | None:
        """Returns the stored tensor of a node, of any dtype, or None."""
        return self._stored.get(value) if isinstance(value, Node) else None

    def number(self, value: object) -> float | None:
        """Returns the value of a scalar argument: a Python number, or a stored tensor of one element.

        Otherwise None.
        """
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        tensor = self._stored.get(value) if isinstance(value, Node) else None
        if tensor is None or tensor.numel() != 1 or tensor.is_complex():
            return None
        return float(tensor.item())

    def packed(self, node: Node, how: Hashable, pack: Pack) -> Node:
        """Returns the placeholder of the packed tensor.

        The key `how` identifies the packing among those of one tensor.
        """
        source = widened_from(node) or node
        root = self._roots.get(source, source)
        key = root, how
        if key not in self._packed:
            known_as = f"{self._names.get(root.name, root.name)}_packed"
            self._packed[key] = self.add(
                f"{root.name}_packed", pack(self._stored[root].detach()), root, known_as
            )
        return self.visible(self._packed[key], node)

    def packings(self) -> Iterator[tuple[Node, Hashable, Node]]:
        """Yields (stored tensor, `how`, packed tensor) for all packed tensors, as placeholders of the program."""
        for (node, how), packed in self._packed.items():
            yield node, how, packed

    def add(self, name: str, tensor: torch.Tensor, like: Node, stored_as: str | None = None) -> Node:
        """Stores a new tensor and returns its placeholder in the graph of `like`."""
        tensor = tensor.contiguous()
        node = add_constant(self._program, name, tensor, like, stored_as)
        self._stored[node] = tensor
        return self.visible(node, like)
