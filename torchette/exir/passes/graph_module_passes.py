# SPDX-License-Identifier: BSD-3-Clause
# A bare graph module comes in, as users of ExecuTorch hand it to passes; a PassResult goes out. The work is done by the
# passes of the pipeline. Names are ExecuTorch's (executorch.exir.passes).
"""Passes over graph modules, by the names under which other code imports them.

>>> edge.transform([RemoveNoopPass(), CSEPass()])
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from torchette.exir import ops
from torchette.exir.dialects._ops import to_edge_operators, to_torch_operators
from torchette.exir.graph import calls, drop_unused_constants, program_of, recompile
from torchette.exir.memory.plan_memory import assign_missing_specs, assign_specs
from torchette.exir.pass_base import ExportPass
from torchette.exir.passes.fold_constants import fold_constants
from torchette.exir.passes.merge_common_subexpressions import merge_common_subexpressions
from torchette.exir.passes.number_calls import number_calls
from torchette.exir.passes.promote_types import promote_types
from torchette.exir.passes.remove_dead_code import remove_dead_code
from torchette.exir.passes.remove_noops import remove_noops
from torchette.exir.passes.scalars_to_tensors import scalars_to_tensors
from torchette.exir.tensor import TensorSpec, determine_tensor_dynanism, eval_shape_upper_bound


def run_on(module: GraphModule, *passes: Callable[[ExportedProgram], ExportedProgram]) -> PassResult:
    """Run passes of the pipeline on a graph module, which is edited in place. New constants become attributes of it."""
    before = _graphs(module)
    edge = any(type(node.target).__name__ == "EdgeOpOverload" for node in module.graph.nodes)
    program = to_torch_operators(program_of(module))
    for run in passes:
        program = run(program)
    if edge:
        to_edge_operators(program)
    made = [node for node in module.graph.nodes if node.name in program.constants]
    for node in made:
        module.register_buffer(node.name, program.constants[node.name])
        with module.graph.inserting_before(node):
            attribute = module.graph.get_attr(node.name)
        attribute.meta = node.meta
        node.replace_all_uses_with(attribute)
        module.graph.erase_node(node)
    recompile(module)
    return PassResult(module, _graphs(module) != before)


def _graphs(module: GraphModule) -> list[str]:
    """The text of a graph and of its branches."""
    return [str(part.graph) for part in module.modules() if isinstance(part, GraphModule)]


def _pass(name: str, run: Callable[[ExportedProgram], ExportedProgram]) -> type[PassBase]:
    def call(self: object, graph_module: GraphModule) -> PassResult:
        return run_on(graph_module, run)

    return type(name, (PassBase,), {"call": call, "__doc__": run.__doc__, "__module__": __name__})


RemoveNoopPass = _pass("RemoveNoopPass", remove_noops)
RemoveToCopyPass = _pass("RemoveToCopyPass", remove_noops)
CSEPass = _pass("CSEPass", merge_common_subexpressions)
ScalarToTensorPass = _pass("ScalarToTensorPass", scalars_to_tensors)
RemoveMixedTypeOperators = _pass("RemoveMixedTypeOperators", promote_types)
DebugHandleGeneratorPass = _pass("DebugHandleGeneratorPass", number_calls)


def dead_code_elimination_pass(graph_module: GraphModule) -> PassResult:
    """Erase pure calls without users."""
    return run_on(graph_module, remove_dead_code)


def generate_missing_debug_handles(exported_program: ExportedProgram) -> None:
    """Every call without a debug handle gets the next one, from 1."""
    number_calls(exported_program)


def _without_assertions(program: ExportedProgram) -> ExportedProgram:
    """Erase all assertions."""
    for node in list(calls(program, *ops.ASSERTIONS)):
        node.graph.erase_node(node)
    return remove_dead_code(program)


RemoveGraphAssertsPass = _pass("RemoveGraphAssertsPass", _without_assertions)


class SpecPropPass(PassBase):
    """Give every node that yields a tensor a `TensorSpec` as ``meta["spec"]``, at the upper bounds of its sizes."""

    def call(self, graph_module: GraphModule) -> PassResult:
        """Without a signature: no tensor counts as a constant."""
        for node in graph_module.graph.nodes:
            node.meta.pop("spec", None)
        assign_missing_specs(graph_module, None)
        return PassResult(graph_module, True)

    def update_placeholder_tensor_specs(
        self, exported_program: ExportedProgram, graph_module: GraphModule
    ) -> None:
        """Parameters, buffers and constants become constant, but for buffers that the program updates."""
        if graph_module is exported_program.graph_module:
            assign_specs(exported_program)


def is_mutable_buffer(node: Node, graph_signature: ExportGraphSignature | None = None) -> bool:
    """Whether a placeholder is a buffer that the program updates."""
    if graph_signature is None or node.op != "placeholder":
        return False
    name = graph_signature.inputs_to_buffers.get(str(node.target))
    return name is not None and name in graph_signature.buffers_to_mutate.values()


# What takes the place of Python's functions of numbers before a program is emitted: nothing, the emitter does it.
SYM_OPS = {function: function for function in ops.SYMBOLIC_FUNCTIONS}
VIEW_OP = torch.ops.aten.view.default


def is_view_copy(node: Node) -> bool:
    """Whether a node gives the same elements another shape."""
    return node.op == "call_function" and node.target == torch.ops.aten.view_copy.default


def view_spec(base: TensorSpec, shape: Sequence[Any]) -> TensorSpec:
    """The spec of a tensor that has the bytes of another one, in another shape."""
    spec = TensorSpec(base.dtype, eval_shape_upper_bound(shape), const=base.const)
    spec.shape_dynamism = determine_tensor_dynanism(shape)
    spec.base = base
    return spec


class ConstraintBasedSymShapeEvalPass(SpecPropPass):
    """Give every spec the greatest sizes that the program's constraints allow. `SpecPropPass` does it at once."""


class HintBasedSymShapeEvalPass(PassBase):
    """Give every spec the sizes of the example that the model was captured with, as if no dimension varied."""

    def call(self, graph_module: GraphModule) -> PassResult:
        """A size without an example stays as it is."""
        for node in graph_module.graph.nodes:
            spec, value = node.meta.get("spec"), node.meta.get("val")
            pairs = (
                zip(spec, value)
                if isinstance(spec, (tuple, list)) and isinstance(value, (tuple, list))
                else [(spec, value)]
            )
            for one, tensor in pairs:
                if isinstance(one, TensorSpec) and isinstance(tensor, torch.Tensor):
                    one.shape = [
                        int(size.node.hint)
                        if isinstance(size, torch.SymInt) and size.node.has_hint()
                        else old
                        for size, old in zip(tensor.shape, one.shape)
                    ]
        return PassResult(graph_module, True)


class InitializedMutableBufferPass(ExportPass):
    """Changes nothing: buffers that a method updates start with the model's values, all of them.

    Args:
        patterns: names of the buffers that ExecuTorch is to store; here the file has them in any case.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        super().__init__()
        self.patterns = list(patterns)

    def call(self, graph_module: GraphModule) -> PassResult:
        """The graph as it is."""
        return PassResult(graph_module, False)


class QuantFusionPass(PassBase):
    """Changes nothing: quantization is fused on the way to the file in any case. The arguments are ExecuTorch's."""

    def __init__(self, _fix_node_meta_val: bool = False, node_value_dict: object = None) -> None:
        del _fix_node_meta_val, node_value_dict

    def call(self, graph_module: GraphModule) -> PassResult:
        """The graph as it is."""
        return PassResult(graph_module, False)


class DebugPass(PassBase):
    """Print the graph.

    Args:
        msg: a line before it.
        enable_debug_pass: whether to print at all.
        show_src, show_all_frames: the line of the model below each call; all lines of its stack.
        path: a file that gets the text, instead of the console.
        show_spec: each node's spec.
    """

    def __init__(
        self,
        msg: str = "",
        enable_debug_pass: bool = True,
        show_src: bool = False,
        show_full_path: bool = True,
        show_all_frames: bool = False,
        path: str | None = None,
        show_spec: bool = False,
    ) -> None:
        del show_full_path  # it always is
        self.msg, self.enabled, self.path, self.show_spec = msg, enable_debug_pass, path, show_spec
        self.lines = 0 if not show_src else sys.maxsize if show_all_frames else 2

    def call(self, graph_module: GraphModule) -> PassResult:
        """Print it; the graph stays as it is."""
        lines = [self.msg] if self.msg else []
        for node in graph_module.graph.nodes:
            lines.append(str(node.format_node() or f"return {node.args[0]}"))
            if self.show_spec and "spec" in node.meta:
                lines.append(f"    {node.meta['spec']!r}")
            stack = (node.meta.get("stack_trace") or "").splitlines()
            lines += (
                [f"    {line.strip()}" for line in stack if line.strip()][-self.lines :] if self.lines else []
            )
        text = "\n".join(lines)
        if self.enabled and self.path is not None:
            Path(self.path).write_text(text + "\n", encoding="utf-8")
        elif self.enabled:
            print(text)
        return PassResult(graph_module, False)


def constant_prop_pass(
    exported_program: ExportedProgram, custom_skip_targets: Collection[Any] | None = None, **_: object
) -> ExportedProgram:
    """Replace all that follows from stored tensors alone by stored tensors; edits and returns the program.

    Args:
        custom_skip_targets: operators whose results are not stored.
    """
    edge = any(type(node.target).__name__ == "EdgeOpOverload" for node in calls(exported_program))
    program = fold_constants(
        to_torch_operators(exported_program), sys.maxsize, skip=frozenset(custom_skip_targets or ())
    )
    remove_dead_code(program)
    drop_unused_constants(program)
    program = to_edge_operators(program) if edge else program
    recompile(program.graph_module)
    return program
