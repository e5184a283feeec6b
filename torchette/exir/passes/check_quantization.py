# SPDX-License-Identifier: BSD-3-Clause
# In: a graph that PT2E may have quantized. Out: the same graph, or an error if it contains observers or was converted
# before its observers saw values. torchao converts such observers to scale 1, and the model then returns values near 0.
"""Checks that quantization is complete: the model was calibrated, then converted."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from torchette.errors import QuantizationError, ZeroRangeWarning
from torchette.exir.arguments import node_arg, number_arg
from torchette.exir.graph import calls, constants, module_of, place, user_frame

# PT2E's names for the modules that it adds, and the metadata of the calls that replace them.
_OBSERVER = re.compile(r"(?:^|\.)(activation_post_process_\d+)(?:\.|$)")
_CONVERSION = "replace_observer_with_quantize_dequantize_node"
_ROLE = re.compile(r"quantized_decomposed\.(de)?quantize_per_(tensor|channel)\.default")

# Operators that compute new values. If such a result fills an integer range exactly, as [-128, 127], its quantization
# parameters are suspect.
_COMPUTES = frozenset(
    {
        "linear", "convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
        "matmul", "mm", "bmm", "addmm", "baddbmm", "sigmoid", "tanh", "softmax", "gelu", "silu", "elu", "hardswish",
        "hardsigmoid", "layer_norm", "group_norm", "batch_norm", "native_layer_norm", "native_group_norm", "add", "sub", "mul",
    }
)  # fmt: skip


def check_quantization(program: ExportedProgram) -> ExportedProgram:
    """Reject a graph that is prepared but not converted, or was converted without calibration. Warn about values that
    were zero in all observations."""
    observers = _observers(spec.target or "" for spec in program.graph_signature.input_specs)
    if observers:
        raise _not_converted(observers, ())
    stored = constants(program)
    _check(list(calls(program)), stored)
    zero = [node for node in calls(program) if _is_converted(node) and _has_zero_range(node, stored)]
    if zero:
        warnings.warn(ZeroRangeWarning(_zero_range_text(zero)), stacklevel=2)
    return program


def refuse_unfinished(module: torch.nn.Module) -> None:
    """Checks a module before it is captured, and the graphs in it that PT2E converted. Raises QuantizationError."""
    observers = _observers(name for name, _ in module.named_modules())
    if observers:
        raise _not_converted(observers, _source_lines(_observed(module, lambda observer: True)))
    for part in module.modules():
        if isinstance(part, GraphModule):
            values = {
                node: attrgetter(str(node.target))(part) for node in part.graph.find_nodes(op="get_attr")
            }
            stored = {node: value for node, value in values.items() if isinstance(value, torch.Tensor)}
            _check(list(part.graph.nodes), stored)


def refuse_unobserved(module: torch.nn.Module) -> None:
    """Rejects a prepared graph with an observer that saw no value, or infinity. Raises QuantizationError."""
    unobserved = _observed(module, _has_no_observations)
    if unobserved:
        raise _not_calibrated(unobserved)
    infinite = _observed(module, lambda observer: not all(map(_is_finite, _range(observer))))
    if infinite:
        raise _not_finite(infinite)


# ---- observers ----


def _observers(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(match[1] for name in names if (match := _OBSERVER.search(name))))


def _observed(module: torch.nn.Module, which: Callable[[torch.nn.Module], bool]) -> list[Node]:
    """Returns the calls of the observers of a prepared graph, and of the graphs in it."""
    return [
        node
        for part in module.modules()
        if isinstance(part, GraphModule)
        for node in part.graph.find_nodes(op="call_module", sort=True)
        if _OBSERVER.search(str(node.target)) and which(part.get_submodule(str(node.target)))
    ]


def _has_no_observations(observer: object) -> bool:
    if getattr(observer, "is_dynamic", False) or isinstance(
        getattr(observer, "scale", None), torch.nn.Parameter
    ):
        return False  # ranges that are computed at run time, or learned
    if not _range(observer):
        return getattr(observer, "block_size", ()) is None  # an observer of blocks
    min_value, max_value = _range(observer)
    return bool((min_value > max_value).any()) if min_value.numel() else True


def _range(observer: object) -> tuple[torch.Tensor, ...]:
    """Returns the (minimum, maximum) that was observed; empty if the observer does not record them, or not yet."""
    observer = getattr(observer, "activation_post_process", observer)
    min_value, max_value = getattr(observer, "min_val", None), getattr(observer, "max_val", None)
    is_dynamic = getattr(observer, "is_dynamic", False)
    if is_dynamic or not isinstance(min_value, torch.Tensor) or not isinstance(max_value, torch.Tensor):
        return ()
    return min_value, max_value


def _is_finite(value: torch.Tensor) -> bool:
    return bool(value.isfinite().all())


# ---- converted observers ----


def _check(graph: Sequence[Node], stored: Mapping[Node, torch.Tensor]) -> None:
    nodes = [node for node in graph if _ROLE.fullmatch(str(node.target))]
    unobserved = {node for node in nodes if _is_default(node, stored)}
    if any(_shares_one_scale(node, stored) for node in unobserved):
        raise _not_calibrated([node for node in nodes if node in unobserved])
    # Calls that were written by hand may use any scale.
    nodes = [node for node in nodes if _is_converted(node)]
    infinite = [node for node in nodes if not all(map(math.isfinite, _scales(node, stored)))]
    if infinite:
        raise _not_finite(infinite)
    unobserved.intersection_update(nodes)
    # A scale of 1 can be correct. A single impossible one proves that nothing was observed.
    if any(_is_impossible(node, unobserved, stored) for node in unobserved):
        raise _not_calibrated([node for node in nodes if node in unobserved])


def _is_converted(node: Node) -> bool:
    """Returns whether a call replaced an observer. torch records the history of the node."""
    history: Any = node.meta.get("from_node")
    while history:
        if history[-1].pass_name == _CONVERSION:
            return True
        history = history[-1].from_node
    return False


def _scales(node: Node, stored: Mapping[Node, torch.Tensor]) -> list[float]:
    scale = node.args[1]
    if not isinstance(scale, Node):
        return [float(number_arg(node, 1))]
    return stored[scale].double().flatten().tolist() if scale in stored else []


# The scales that observers choose for values that are all zero: 0, and the minimum of torch's and XNNPACK's observers.
_ZERO_SCALES = (0.0, torch.finfo(torch.float32).eps, 2.0**-12)


def _has_zero_range(node: Node, stored: Mapping[Node, torch.Tensor]) -> bool:
    """Returns whether the observed range of a computed value has a scale of 0 or the minimum scale of an observer
    (torch's default, or that of XNNPACKQuantizer). Stored zeros, such as those of a pruned layer, are exact."""
    if not str(node.target).startswith("quantized_decomposed.quantize_per") or node.args[0] in stored:
        return False
    scales = _scales(node, stored)
    return bool(scales) and all(
        any(math.isclose(scale, zero_scale, rel_tol=1e-6) for zero_scale in _ZERO_SCALES) for scale in scales
    )


def _is_default(node: Node, stored: Mapping[Node, torch.Tensor]) -> bool:
    """Returns whether scale and zero point are those of an observer that saw no value."""
    zero = node.args[2]
    zeros = stored[zero].flatten().tolist() if isinstance(zero, Node) and zero in stored else [zero]
    return _scales(node, stored) == [1.0] and zeros == [0]


def _shares_one_scale(node: Node, stored: Mapping[Node, torch.Tensor]) -> bool:
    """Returns whether several channels share one scale."""
    source: Any = node.args[0]
    value = stored.get(source, source.meta.get("val"))
    return isinstance(node.args[1], Node) and value is not None and value.shape[node.args[3]] != 1


def _is_impossible(node: Node, unobserved: set[Node], stored: Mapping[Node, torch.Tensor]) -> bool:
    source: Any = node.args[0]
    low, high = (number_arg(node, len(node.args) - place) for place in (3, 2))
    if source in stored:  # the observed maximum must reach an end of the integer range
        values = stored[source]
        reaches = values >= high - 1
        if low < 0:
            reaches = reaches | (values <= low + 1)
        return values.numel() > 0 and not bool(reaches.any())
    return ".quantize" in str(node.target) and _is_computed(node, unobserved, stored)


def _is_computed(start: Node, unobserved: set[Node], stored: Mapping[Node, torch.Tensor]) -> bool:
    """Returns whether a value, and all values with its range, are results of computing operators and of no input."""
    computes, visited, waiting = False, {start}, [start]
    while waiting:
        node = waiting.pop()
        for source in node.all_input_nodes:
            if (
                source in stored
                or source in visited
                or isinstance(source.meta.get("val"), (torch.SymInt, torch.SymFloat))
            ):
                continue
            if _computes(source, stored):
                computes = True
            elif source.op != "call_function" or (
                _ROLE.fullmatch(str(source.target)) and source not in unobserved
            ):
                return False
            else:
                visited.add(source)
                waiting.append(source)
        following = [
            user for user in node.users
            if user not in visited and user.op == "call_function" and not _computes(user, stored)
            and (user in unobserved or not _ROLE.fullmatch(str(user.target)))
        ]  # fmt: skip
        visited.update(following)
        waiting += following
    return computes


def _computes(node: Node, stored: Mapping[Node, torch.Tensor]) -> bool:
    schema = getattr(node.target, "_schema", None)
    name = "" if schema is None else schema.name.removeprefix("aten::").lstrip("_")
    if name in (
        "add",
        "sub",
        "mul",
    ):  # a scalar operand shifts or scales a range, but does not compute a new one
        return sum(isinstance(arg, Node) and arg not in stored for arg in node.args[:2]) > 1
    return name in _COMPUTES


# ---- errors ----


def _source_lines(nodes: Sequence[Node]) -> list[str]:
    """Returns the source lines of the values, or the lines that use them for stored values."""
    unique: dict[str, None] = {}
    for node in nodes:
        source: Any = node.args[0]
        near = [source] if source.op == "call_function" else []
        near += [node, *node.users, *(user for part in node.users for user in part.users)]
        unique |= dict.fromkeys([place(each) for each in near if user_frame(each)][:1])
    lines = list(unique)
    return [*lines[:5], *([f"{len(lines) - 5} more lines"] if len(lines) > 5 else [])]


def _not_converted(observers: Sequence[str], where: Sequence[str]) -> QuantizationError:
    return QuantizationError(
        f"the model is prepared for quantization but not converted: {', '.join(observers[:3])}"
        f"{' and others' if len(observers) > 3 else ''} are still present",
        where=where,
        hints=["run it on representative inputs, then: model = convert_pt2e(prepared)", _BOTH],
        code="not-converted",
    )


def _not_calibrated(nodes: Sequence[Node]) -> QuantizationError:
    return QuantizationError(
        "the model was quantized without calibration: the observers at these lines saw no value, and their scale is 1",
        where=_source_lines(nodes),
        hints=[
            "run the prepared model on representative inputs before convert_pt2e: prepared(*args)",
            "choose inputs that reach all layers; an empty tensor contains nothing to observe",
            _BOTH,
        ],
        code="not-calibrated",
    )


def _zero_range_text(nodes: Sequence[Node]) -> str:
    names = ", ".join(dict.fromkeys(_layer(node) for node in nodes[:5]))
    more = f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
    lines = "".join(f"\n  at {line}" for line in _source_lines(nodes))
    return (
        f"the ranges of {names}{more} on the calibration inputs are zero or smaller than the observer resolves: "
        f"their scale is 0 or the observer's minimum, and larger values saturate{lines}\n"
        "Try:\n  - calibrate with representative inputs\n"
        "  - keep these layers in float"
    )


def _layer(node: Node) -> str:
    """Returns the name of the node that is quantized, and the path of its module."""
    source = node_arg(node)
    path = module_of(source)[0].removeprefix("L['self'].").removeprefix("L['self']")
    return f"{source.name} ({path})" if path else source.name


def _not_finite(nodes: Sequence[Node]) -> QuantizationError:
    return QuantizationError(
        "the model cannot be quantized with infinite ranges: the observers at these lines saw a value that is not "
        "finite",
        where=_source_lines(nodes),
        hints=["calibrate without infinite values and NaN, and check the weights for them"],
        code="infinite-range",
    )


_BOTH = "torchette.compile(model, args, quantizer=quantizer, calibration=[args, ...]) performs all steps"
