# SPDX-License-Identifier: BSD-3-Clause
# In: a graph module, as users of ExecuTorch pass it. Out: a PassResult. The passes of the pipeline implement these
# passes. Names are ExecuTorch's (executorch.exir.passes).
"""Passes over graph modules, under the names that existing code imports.

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
    """Runs passes of the pipeline on a graph module in place. New constants become attributes of the module."""
    before = _graphs(module)
    edge = any(type(node.target).__name__ == "EdgeOpOverload" for node in module.graph.nodes)
    program = to_torch_operators(program_of(module))
    for run in passes:
        program = run(program)
    if edge:
        to_edge_operators(program)
    constants = [node for node in module.graph.nodes if node.name in program.constants]
    for node in constants:
        module.register_buffer(node.name, program.constants[node.name])
        with module.graph.inserting_before(node):
            attribute = module.graph.get_attr(node.name)
        attribute.meta = node.meta
        node.replace_all_uses_with(attribute)
        module.graph.erase_node(node)
    recompile(module)
    return PassResult(module, _graphs(module) != before)


def _graphs(module: GraphModule) -> list[str]:
    """Returns the text of a graph and of its branches."""
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
    """Erases pure calls without users."""
    return run_on(graph_module, remove_dead_code)


def generate_missing_debug_handles(exported_program: ExportedProgram) -> None:
    """Assigns debug handles, from 1, to calls without one."""
    number_calls(exported_program)


def _without_assertions(program: ExportedProgram) -> ExportedProgram:
    """Erases all assertions."""
    for node in list(calls(program, *ops.ASSERTIONS)):
        node.graph.erase_node(node)
    return remove_dead_code(program)


RemoveGraphAssertsPass = _pass("RemoveGraphAssertsPass", _without_assertions)


class SpecPropPass(PassBase):
    """Sets `meta["spec"]` of every node that yields a tensor to a `TensorSpec` with the upper bounds of its sizes."""

    def call(self, graph_module: GraphModule) -> PassResult:
        """Sets the specs without a signature: no tensor is a constant."""
        for node in graph_module.graph.nodes:
            node.meta.pop("spec", None)
        assign_missing_specs(graph_module, None)
        return PassResult(graph_module, True)

    def update_placeholder_tensor_specs(
        self, exported_program: ExportedProgram, graph_module: GraphModule
    ) -> None:
        """Marks the specs of parameters, buffers and constants as constant, except for buffers that the program
        updates."""
        if graph_module is exported_program.graph_module:
            assign_specs(exported_program)


def is_mutable_buffer(node: Node, graph_signature: ExportGraphSignature | None = None) -> bool:
    """Returns whether a placeholder is a buffer that the program updates."""
    if graph_signature is None or node.op != "placeholder":
        return False
    name = graph_signature.inputs_to_buffers.get(str(node.target))
    return name is not None and name in graph_signature.buffers_to_mutate.values()


# Replacements of Python functions on scalars before emission. They are identical, because the emitter replaces them.
SYM_OPS = {function: function for function in ops.SYMBOLIC_FUNCTIONS}
VIEW_OP = torch.ops.aten.view.default


def is_view_copy(node: Node) -> bool:
    """Returns whether a node changes only the shape of its operand."""
    return node.op == "call_function" and node.target == torch.ops.aten.view_copy.default


def view_spec(base: TensorSpec, shape: Sequence[Any]) -> TensorSpec:
    """Returns the spec of a tensor that shares the storage of another one with another shape."""
    spec = TensorSpec(base.dtype, eval_shape_upper_bound(shape), const=base.const)
    spec.shape_dynamism = determine_tensor_dynanism(shape)
    spec.base = base
    return spec


class ConstraintBasedSymShapeEvalPass(SpecPropPass):
    """Sets the sizes of every spec to the maximum that the program's constraints allow, as `SpecPropPass` does."""


class HintBasedSymShapeEvalPass(PassBase):
    """Sets the sizes of every spec to the example sizes of the capture, as if no dimension were dynamic."""

    def call(self, graph_module: GraphModule) -> PassResult:
        """Edits the specs. A size without an example does not change."""
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
    """Changes nothing, because the file always stores the initial values of mutable buffers.

    Args:
        patterns: names of the buffers whose initial values ExecuTorch stores; ignored.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        super().__init__()
        self.patterns = list(patterns)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Returns the graph unchanged."""
        return PassResult(graph_module, False)


class QuantFusionPass(PassBase):
    """Changes nothing, because the pipeline always fuses quantization. The arguments are ExecuTorch's."""

    def __init__(self, _fix_node_meta_val: bool = False, node_value_dict: object = None) -> None:
        del _fix_node_meta_val, node_value_dict

    def call(self, graph_module: GraphModule) -> PassResult:
        """Returns the graph unchanged."""
        return PassResult(graph_module, False)


class DebugPass(PassBase):
    """Prints the graph.

    Args:
        msg: printed on a line before the graph.
        enable_debug_pass: whether to print.
        show_src, show_all_frames: print the source line of the model below each call; print the whole stack.
        path: a file that receives the text in place of the console.
        show_spec: print the spec of each node.
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
        del show_full_path  # the path is always complete
        self.msg, self.enabled, self.path, self.show_spec = msg, enable_debug_pass, path, show_spec
        self.lines = 0 if not show_src else sys.maxsize if show_all_frames else 2

    def call(self, graph_module: GraphModule) -> PassResult:
        """Prints the graph and returns it unchanged."""
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
    """Replaces values that depend only on stored tensors by stored tensors. Edits and returns the program.

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
