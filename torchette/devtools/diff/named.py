# SPDX-License-Identifier: BSD-3-Clause
# In: a file and its model. Out: node and module of each instruction, and intermediate values of delegates.
"""`Named`: the compiler's names for the instructions of a file."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchette import pytree
from torchette.devtools.diff.comparison import Comparison
from torchette.devtools.diff.model import align, module_path
from torchette.devtools.diff.taps import tappable, tapped
from torchette.devtools.inspect import InstructionInfo, MethodInfo, describe
from torchette.errors import TorchetteError
from torchette.exir.arguments import node_arg, owner
from torchette.exir.delegation.delegate import LoweredBackendModule, is_delegate_call
from torchette.exir.graph import user_frame
from torchette.model import argument_tree

if TYPE_CHECKING:
    from torchette.devtools.diff.walk import Step
    from torchette.runtime import MethodMeta


class Named:
    """The compiler's names for a file's instructions and delegates.

    Attributes:
        names: instruction -> name of its node, and path of its module.
        modules: instruction -> path of its module.
    """

    def __init__(
        self, model: object, inputs: Sequence[Any], file: str | Path, info: MethodInfo, meta: MethodMeta
    ) -> None:
        comparison = Comparison(model, file, info.name, None, None, (), None)
        flat = [torch.as_tensor(value) if hasattr(value, "__dlpack__") else value for value in inputs]
        args, kwargs = pytree.unflatten(argument_tree(meta), flat)
        self._program = comparison.compiled(args, kwargs, info).program
        theirs = next(each for each in describe(self._program.buffer).methods if each.name == "forward")
        nodes = self._program.nodes()
        pairs, _, _ = align(info, theirs)
        self._nodes = {ours: nodes[index] for ours, index in pairs.items()}
        self.modules = {index: module_path(node) for index, node in self._nodes.items()}
        self.names = {
            index: [node.name, *(each for each in [self.modules[index]] if each), *self._inside_names(node)]
            for index, node in self._nodes.items()
        }
        self._info = info

    def _lowered(self, node: torch.fx.Node) -> Any:
        return getattr(owner(node), str(node_arg(node).target))

    def _inside_names(self, node: torch.fx.Node) -> list[str]:
        """Returns the names of nodes and modules inside a delegate, by which the delegate can also be selected."""
        if not is_delegate_call(node):
            return []
        inside = tappable(self._lowered(node))
        return list(dict.fromkeys(name for each in inside for name in (each.name, module_path(each)) if name))

    def inside(
        self,
        method: MethodInfo,
        inputs: Sequence[Any],
        instructions: Sequence[InstructionInfo],
        patterns: Sequence[str],
    ) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yields (description, value) of the matching nodes inside the delegates among these instructions."""
        delegates = {
            instruction.index: instruction
            for instruction in instructions
            if instruction.index in self._nodes and is_delegate_call(self._nodes[instruction.index])
        }
        if not delegates:
            return
        for index, delegate_inputs in self._delegate_inputs(method, inputs, delegates).items():
            lowered = self._lowered(self._nodes[index])
            nodes = [
                each for each in tappable(lowered) if _is_wanted(each, index, delegates[index].op, patterns)
            ]
            values = _values(lowered, delegate_inputs, nodes)
            for node in nodes:
                if node not in values:
                    continue
                frame = user_frame(node)
                row = {
                    "instruction": index,
                    "output": 0,
                    "step": 0,
                    "operator": f"{delegates[index].op}: {str(node.target).removesuffix('.default')}",
                    "node": node.name,
                    "module": module_path(node),
                    "source": f"{Path(frame.file).name}:{frame.line}" if frame else "",
                }
                yield row, values[node]

    def _delegate_inputs(
        self, method: MethodInfo, inputs: Sequence[Any], delegates: dict[int, Any]
    ) -> dict[int, list[Any]]:
        """Returns the inputs of each delegate in this execution."""
        from torchette.devtools.diff.walk import Walk
        from torchette.format import pte

        file = pte.read(self._program.buffer)
        plan = next(each for each in file.program.execution_plan if each.name == "forward")
        del method
        walk = Walk(file, plan, next(each for each in describe(file).methods if each.name == "forward"))
        nodes = self._program.nodes()
        inputs_by_index: dict[int, list[Any]] = {}
        by_node = {self._nodes[index]: index for index in delegates}

        def follow(step: Step) -> None:
            index = by_node.get(nodes[step.info.index])
            if index is not None:
                count = len(step.reads) - len(step.values)
                inputs_by_index.setdefault(index, step.reads[:count])

        from torchette.runtime import Runtime

        device = Runtime.get().load_program(self._program.buffer).load_method("forward", tracing=True)
        walk.run(device, [torch.as_tensor(v) if hasattr(v, "__dlpack__") else v for v in inputs], "", follow)
        return inputs_by_index


def _values(
    lowered: LoweredBackendModule, inputs: list[Any], nodes: list[torch.fx.Node]
) -> dict[torch.fx.Node, Any]:
    try:
        return tapped(lowered, inputs, nodes)[1]
    except TorchetteError:  # the backend may not accept some of the values as outputs
        if len(nodes) < 2:
            return {}
    half = len(nodes) // 2
    return _values(lowered, inputs, nodes[:half]) | _values(lowered, inputs, nodes[half:])


def _is_wanted(node: torch.fx.Node, index: int, backend: str, patterns: Sequence[str]) -> bool:
    module = module_path(node)
    for pattern in patterns or ["*"]:
        if pattern in (str(index), backend) or module == pattern.removesuffix(".*"):
            return True
        if any(fnmatch.fnmatchcase(text, pattern) for text in (node.name, module, str(node.target), backend)):
            return True
    return False
