# SPDX-License-Identifier: BSD-3-Clause
# In: a program, and rules that select nodes. Out: the program with the values of these nodes as additional outputs, and
# a table that compares their values in torch and in the runtime.
"""The names of ExecuTorch's devtools.intermediate_output_tap.

The additional outputs are complete tensors: `strip_taps_` has no effect, and `compare_aot_runtime_dataframe` computes
the statistics of both sides.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument
from torch.fx import Node
from torch.utils import _pytree as pytree

from torchette.devtools.inspect import pandas
from torchette.exir.graph import calls, copy_program
from torchette.exir.program import to_edge_transform_and_lower
from torchette.runtime import Runtime

NodeSelector: TypeAlias = Callable[[Node], bool]


@dataclass(frozen=True)
class StatReducer:
    """The statistics of a tensor in a table.

    Attributes:
        name: the name of the reducer.
        fields: the names of its statistics; empty for the complete tensor.
        eager: a function from a tensor to its statistics, a tensor of one dimension.
    """

    name: str
    fields: tuple[str, ...]
    eager: Callable[[torch.Tensor], torch.Tensor]


def _statistics(tensor: torch.Tensor) -> torch.Tensor:
    x = tensor.detach().float().flatten()
    size = x.abs()
    near_top = size.sort().values[math.ceil(0.99 * (x.numel() - 1))]
    return torch.stack(
        [
            x.min(), x.max(), x.mean(), size.max(), size.mean(), x.std(unbiased=False), x.square().mean().sqrt(), size.sum(),
            x.square().sum().sqrt(), x.isnan().sum(), x.isinf().sum(), (x == 0).sum(), near_top,
        ]
    )  # fmt: skip


FULL_TENSOR = StatReducer("FULL_TENSOR", (), lambda tensor: tensor)
STATS = StatReducer(
    "STATS",
    ("min", "max", "mean", "abs_max", "abs_mean", "std", "rms", "l1_norm", "l2_norm", "nan_count", "inf_count", "zero_count", "p99_abs"),
    _statistics,
)  # fmt: skip
_REDUCERS = {reducer.name: reducer for reducer in (FULL_TENSOR, STATS)}

TapRule: TypeAlias = tuple[NodeSelector, "str | StatReducer"]


def get_reducer(name_or_reducer: str | StatReducer) -> StatReducer:
    """Returns a reducer by its name.

    Raises:
        ValueError: if there is none.
    """
    if isinstance(name_or_reducer, StatReducer):
        return name_or_reducer
    if name_or_reducer not in _REDUCERS:
        raise ValueError(f"there is no reducer {name_or_reducer!r}; reducers: {', '.join(_REDUCERS)}")
    return _REDUCERS[name_or_reducer]


@dataclass(frozen=True)
class TapSpec:
    """A value that a program returns as an additional output.

    Attributes:
        node_name, op_target: the node and its operator.
        output_index: the index among the flat outputs.
        reducer_name, fields: the statistics in a table.
        stack_trace, module_path, module_class: the origin in the model; None if unknown.
        reducer: the reducer of this name.
    """

    node_name: str
    op_target: str
    output_index: int
    reducer_name: str
    fields: tuple[str, ...]
    stack_trace: str | None = None
    module_path: str | None = None
    module_class: str | None = None
    reducer: StatReducer | None = None


# ---- selectors ----


def select_all_call_function(exclude: tuple[str, ...] = ("getitem",)) -> NodeSelector:
    """Selects all calls except those of functions named in `exclude`."""
    return lambda node: node.op == "call_function" and getattr(node.target, "__name__", "") not in exclude


def select_by_op_type(*op_targets: str) -> NodeSelector:
    """Selects calls of operators by a suffix of the name: ``linear.default`` or ``aten.linear.default``."""
    return lambda node: node.op == "call_function" and str(node.target).endswith(op_targets)


def _modules(node: Node) -> list[tuple[str, str]]:
    """Returns the path and class name of each module that contains a node, the outermost first."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    return [
        (path, (kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]) for path, kind in stack
    ]


def _select_in_module(predicate: Callable[[tuple[str, str]], bool], output_only: bool) -> NodeSelector:
    def selects(node: Node) -> bool:
        for module in filter(predicate, _modules(node) if node.op == "call_function" else ()):
            if not output_only or not any(module in _modules(user) for user in node.users):
                return True
        return False

    return selects


def select_by_module_path(*patterns: str, output_only: bool = True) -> NodeSelector:
    """Selects calls by shell patterns of the module path; with `output_only`, only the outputs of the module."""
    return _select_in_module(
        lambda module: any(fnmatch.fnmatchcase(module[0], pattern) for pattern in patterns), output_only
    )


def select_by_module_class(*class_names: str, output_only: bool = True) -> NodeSelector:
    """Selects calls by the class of their module; with `output_only`, only the outputs of the module."""
    return _select_in_module(lambda module: module[1] in class_names, output_only)


def select_any(*selectors: NodeSelector) -> NodeSelector:
    """Selects the nodes that at least one selector selects."""
    return lambda node: any(selects(node) for selects in selectors)


def select_all(*selectors: NodeSelector) -> NodeSelector:
    """Selects the nodes that all selectors select."""
    return lambda node: all(selects(node) for selects in selectors)


def select_not(selector: NodeSelector) -> NodeSelector:
    """Selects the nodes that the selector does not select."""
    return lambda node: not selector(node)


# ---- taps ----


def tap_intermediate_outputs_(
    ep: ExportedProgram,
    rules: Sequence[TapRule] | TapRule | None = None,
    *,
    max_taps: int | None = None,
    error_on_empty: bool = True,
) -> tuple[ExportedProgram, list[TapSpec]]:
    """Adds intermediate values to the outputs of a program, in place.

    Args:
        ep: the program.
        rules: pairs of a selector and a reducer, or one pair. For each node, the first matching rule applies. The
            default is STATS for all calls.
        max_taps: maximum number of values.
        error_on_empty: whether to raise an error if no node is selected.

    Returns:
        The program, and the taps in the order of the graph.

    Raises:
        ValueError: if no node is selected, or if a reducer does not exist.
    """
    rule_list = [(select_all_call_function(), STATS)] if rules is None else rules
    pairs: list[Any] = (
        [rule_list] if isinstance(rule_list, tuple) and callable(rule_list[0]) else list(rule_list)
    )
    end = ep.graph.output_node()
    outputs: list[Any] = pytree.tree_leaves(end.args[0])
    specs: list[TapSpec] = []
    for node in calls(ep):
        reducer = next((reducer for selects, reducer in pairs if selects(node)), None)
        full = max_taps is not None and len(specs) >= max_taps
        if reducer is None or full or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        before = sum(spec.kind is OutputKind.USER_OUTPUT for spec in ep.graph_signature.output_specs)
        specs.append(_tap(node, before, get_reducer(reducer)))
        outputs.append(node)
        ep.graph_signature.output_specs.append(
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None)
        )
    if not specs and error_on_empty:
        raise ValueError(
            "no rule selects a node: see the names in the program's graph, or pass error_on_empty=False"
        )
    end.args = (tuple(outputs),)
    signature = ep.module_call_graph[0].signature
    if signature is not None:
        count = sum(spec.kind is OutputKind.USER_OUTPUT for spec in ep.graph_signature.output_specs)
        signature.out_spec = pytree.tree_structure((0,) * count)
        signature.outputs = [
            spec.arg for spec in ep.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT
        ]
    ep.graph_module.recompile()
    return ep, specs


def _tap(node: Node, index: int, reducer: StatReducer) -> TapSpec:
    modules = _modules(node)
    path, kind = modules[-1] if modules else (None, None)
    trace = node.meta.get("stack_trace")
    return TapSpec(
        node.name, str(node.target), index, reducer.name, reducer.fields, trace, path, kind, reducer
    )


def strip_taps_(edge_manager: object) -> None:
    """Does nothing, because the taps of `tap_intermediate_outputs_` are ordinary outputs."""


def tap_compare(
    model: torch.nn.Module,
    example_inputs: tuple[Any, ...],
    partitioner: list[Any] | None = None,
    *,
    rules: Sequence[TapRule] | TapRule | None = None,
    error_on_empty: bool = True,
) -> tuple[Any, list[TapSpec]]:
    """Compares intermediate values of a model in torch and in the runtime.

    Args:
        model: a module in eval mode.
        example_inputs: positional arguments of the model.
        partitioner: partitioners for `to_edge_transform_and_lower`.
        rules, error_on_empty: see `tap_intermediate_outputs_`.

    Returns:
        The DataFrame of `compare_aot_runtime_dataframe`, and the taps.

    Raises:
        MissingPackageError: if pandas is not installed.
    """
    program, specs = tap_intermediate_outputs_(
        copy_program(torch.export.export(model, example_inputs)), rules, error_on_empty=error_on_empty
    )
    expected = pytree.tree_leaves(program.module()(*example_inputs))
    lowered = to_edge_transform_and_lower(program, partitioner=partitioner or []).to_executorch()
    method = Runtime.get().load_program(lowered.buffer).load_method("forward")
    return compare_aot_runtime_dataframe(
        specs, expected, method.execute(pytree.tree_leaves(example_inputs))
    ), specs


def compare_aot_runtime_dataframe(
    specs: Iterable[TapSpec], aot_flat: Sequence[Any], rt_flat: Sequence[Any]
) -> Any:
    """Compares taps in a table with one row for each tap.

    The columns contain the location and the statistics of the tap's reducer on both sides. For complete tensors, they
    contain the signal-to-noise ratio in dB and the element counts.

    Args:
        specs: the taps.
        aot_flat, rt_flat: the flat outputs of torch and of the runtime.

    Returns:
        A pandas.DataFrame.

    Raises:
        MissingPackageError: if pandas is not installed.
    """
    columns = ("node_name", "module_path", "module_class", "op_target", "reducer_name", "output_index")
    rows = []
    for spec in specs:
        row = {name: getattr(spec, name) for name in columns}
        sides = [torch.as_tensor(flat[spec.output_index]) for flat in (aot_flat, rt_flat)]
        reducer = spec.reducer or get_reducer(spec.reducer_name)
        if reducer.fields:
            numbers = [reducer.eager(side).tolist() for side in sides]
            for name, *both in zip(reducer.fields, *numbers):
                row |= dict(zip((f"aot_{name}", f"rt_{name}"), both))
        else:
            row["sqnr_db"] = _signal_to_noise(*sides)
            row |= {f"{side}_numel": tensor.numel() for side, tensor in zip(("aot", "rt"), sides)}
        rows.append(row)
    return pandas().DataFrame(rows)


def _signal_to_noise(signal: torch.Tensor, reference: torch.Tensor) -> float:
    signal, noise = signal.double(), signal.double() - reference.double()
    if not noise.count_nonzero():
        return math.inf
    return 10 * math.log10(signal.square().sum().item() / noise.square().sum().item())
