# SPDX-License-Identifier: BSD-3-Clause
# The stored tensors of a program, read and packed. A weight that several operators use is packed and stored once.
"""`Weights`: what is constant in a program, and its packed forms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.engine.passes.narrow import widened_from
from torchette.exir.graph import add_constant, call, constants

Pack = Callable[[torch.Tensor], torch.Tensor]


class Weights:
    """The constants of a program while a pass packs them."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        self._stored = constants(program)
        # Placeholder -> the name in the user's model.
        self._names = {
            spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target
        }
        self._packed: dict[tuple[Node, Hashable], Node] = {}

    def get(self, value: object) -> torch.Tensor | None:
        """The stored float32 tensor that a node stands for; None for anything else."""
        tensor = self._stored.get(value) if isinstance(value, Node) else None
        return tensor if tensor is not None and tensor.dtype == torch.float32 else None

    def weight(self, value: object) -> torch.Tensor | None:
        """The same, and the stored tensor of 16 bits where a float32 value is made of it."""
        source = widened_from(value)
        return self.get(value) if source is None else self._stored.get(source)

    def widened(self, value: Node, before: Node) -> Node:
        """A stored tensor as float32."""
        if value.meta["val"].dtype is torch.float32:
            return value
        val = value.meta["val"].float()
        return call(
            before, torch.ops.aten._to_copy.default, (value,), {"dtype": torch.float32}, val=val, like=before
        )

    def why_not(self, value: object, name: str = "weight") -> str | None:
        """Why `get` has no tensor for a value."""
        tensor = self.any(value)
        if tensor is None:
            return f"its {name} is no stored constant"
        return (
            None if tensor.dtype == torch.float32 else f"its {name} is {tensor.dtype}".replace("torch.", "")
        )

    def any(self, value: object) -> torch.Tensor | None:
        """The same, of any dtype."""
        return self._stored.get(value) if isinstance(value, Node) else None

    def number(self, value: object) -> float | None:
        """The number that an argument is: itself, or a stored tensor of one element."""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        tensor = self._stored.get(value) if isinstance(value, Node) else None
        if tensor is None or tensor.numel() != 1 or tensor.is_complex():
            return None
        return float(tensor.item())

    def packed(self, node: Node, how: Hashable, pack: Pack) -> Node:
        """The placeholder of `pack` of a stored tensor; `how` tells packings of one tensor apart."""
        key = node, how
        if key not in self._packed:
            tensor = pack(self._stored[widened_from(node) or node].detach())
            known_as = f"{self._names.get(node.name, node.name)}_packed"
            self._packed[key] = self.add(f"{node.name}_packed", tensor, node, known_as)
        return self._packed[key]

    def packings(self) -> Iterator[tuple[Node, Hashable, Node]]:
        """What was packed so far: the stored tensor, `how`, and its packed form."""
        for (node, how), packed in self._packed.items():
            yield node, how, packed

    def add(self, name: str, tensor: torch.Tensor, like: Node, stored_as: str | None = None) -> Node:
        """Stores a new tensor."""
        tensor = tensor.contiguous()
        node = add_constant(self._program, name, tensor, like, stored_as)
        self._stored[node] = tensor
        return node
