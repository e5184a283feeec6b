# SPDX-License-Identifier: BSD-3-Clause
# In: a model, the name of a recipe and names of layers. Out: the model with those layers quantized by torchao: with
# PT2E if activations have scales in the graph, with `quantize_` if only weights are quantized ahead of time.
"""Implements the recipes of `torchette.quantize`: `layers_of` and `apply`."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrize

from torchette.capture import pt2e
from torchette.exir.graph import calls
from torchette.packages import quietly
from torchette.quantization import scheme_named

# The name that represents the quantized operators between layers: additions, multiplications, averages, concatenations.
BETWEEN = ""
_WITH_FILTERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding)
_GROUP = 32  # inputs that share a scale of 4-bit weights

Call = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """The implementation of a scheme.

    Attributes:
        bits: bits of a weight.
        make: returns a PT2E quantizer, a configuration for `quantize_`, or the dtype of stored floating-point weights.
        in_graph: whether PT2E quantizes the captured graph.
        group: the number of inputs of a layer must be a multiple of it.
        tables: whether embedding tables are also quantized.
        eight: for 4-bit recipes, returns the 8-bit configuration for layers that need more precision.
    """

    bits: int
    make: Callable[[], Any]
    in_graph: bool = False
    group: int = 1
    tables: bool = False
    eight: Callable[[], Any] | None = None

    @property
    def levels(self) -> tuple[int, ...]:
        """The supported bits of a layer's weights in ascending order; 16 means bfloat16."""
        return (self.bits, *((8,) if self.eight else ()), *((16,) if self.bits < 16 else ()))


def recipe_named(name: str) -> Recipe:
    """Returns the recipe of a scheme's name or alias.

    Raises:
        InputError: if there is no such scheme.
    """
    return _RECIPES[scheme_named(name).name]


def quantizer_of(name: str) -> Any:
    """Returns torchao's quantizer for all operators of the recipe "int8" or "int8-dynamic"."""
    from torchette.backends.xnnpack import pt2e_quantizer

    dynamic = name == "int8-dynamic"
    config = pt2e_quantizer.get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    quantizer = pt2e_quantizer.XNNPACKQuantizer().set_global(config)
    for pattern in quantizer.SUPPORTED_PATTERNS if dynamic else ():
        if pattern.name.startswith(
            "conv"
        ):  # only XNNPACK supports them; the CPU engine would compute in floats
            for operator in pattern.op_overloads:
                quantizer.set_operator_type(operator, None)
    return quantizer


def layers_of(recipe: Recipe, model: nn.Module, program: ExportedProgram | None) -> dict[str, str]:
    """Returns name -> kind, such as "Linear", of the layers that a recipe supports, in execution order.

    Args:
        recipe: the recipe.
        model: the model.
        program: the captured model, required by PT2E recipes.
    """
    if not recipe.in_graph:
        named = model.named_parameters(remove_duplicate=False)
        uses = Counter(id(parameter) for _, parameter in named)

        def fits(part: nn.Module) -> bool:
            if recipe.bits == 16 and isinstance(part, _WITH_FILTERS):
                return getattr(part, "max_norm", None) is None
            if isinstance(part, nn.Linear):
                return (
                    not isinstance(part, NonDynamicallyQuantizableLinear)
                    and part.in_features % recipe.group == 0
                )
            if not recipe.tables or not isinstance(part, nn.Embedding) or part.max_norm is not None:
                return False
            # A tied embedding would be stored twice.
            return part.embedding_dim % recipe.group == 0 and uses[id(part.weight)] == 1

        return {name: type(part).__name__ for name, part in model.named_modules() if fits(part)}
    assert program is not None
    quantizer = recipe.make()
    layers, other_operators = _operators(quantizer)
    type_names: dict[str, str] = {}
    between: dict[str, None] = {}
    for node in program.graph.nodes:  # the functions of control flow stay in floats
        name = _module_name(node) if node.target in layers else BETWEEN
        if name:
            type_names[name] = type(_part(model, name)).__name__
        elif node.target in layers | other_operators:
            between[str(node.target).split(".")[1]] = None
    return type_names | ({BETWEEN: ", ".join(between)} if between else {})


class _SingleCall(nn.Module):
    """A single call of a graph as a module; all arguments except the first one are stored."""

    def __init__(
        self, target: Callable[..., Any], other_args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._target, self._kwargs, self._other_args = target, dict(kwargs), list(other_args)
        for place, value in enumerate(other_args):
            if isinstance(value, torch.Tensor):
                self.register_buffer(f"given{place}", value.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tensors = dict(self.named_buffers())
        other_args = [tensors.get(f"given{place}", value) for place, value in enumerate(self._other_args)]
        result: torch.Tensor = self._target(x, *other_args, **self._kwargs)
        return result

    def extra_repr(self) -> str:
        return str(
            [self._target, *(tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in self._other_args)]
        )


class _Recorder(torch.fx.Interpreter):
    """Runs a graph and records the arguments of calls with the given names."""

    def __init__(self, module: torch.nn.Module, names: Collection[str]) -> None:
        super().__init__(module)
        self._names = names
        self.found: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.name in self._names:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self.found[n.name] = n.target, args, kwargs
        return super().run_node(n)


def calls_alone(
    recipe: Recipe, program: ExportedProgram, names: Collection[str], call_args: Call
) -> dict[str, list[tuple[nn.Module, torch.Tensor]]]:
    """Returns, for functional layers of a PT2E recipe, each call as a module and its input on the calibration input."""
    layers, _ = _operators(recipe.make())
    of = {
        node.name: name
        for node in calls(program)
        if node.target in layers and (name := _module_name(node)) in names
    }
    if not of:
        return {}
    recorder = _Recorder(_to_run(program), of)
    leaves = torch.utils._pytree.tree_leaves((call_args[0], dict(call_args[1])))
    recorder.run(*leaves)
    calls_by_layer: dict[str, list[tuple[nn.Module, torch.Tensor]]] = {}
    for call, (target, (x, *other_args), kwargs) in recorder.found.items():
        calls_by_layer.setdefault(of[call], []).append(
            (_SingleCall(target, tuple(other_args), kwargs).eval(), x.detach().clone())
        )
    return calls_by_layer


def _to_run(program: ExportedProgram) -> Any:
    """Returns the program as a module that does not modify the model's buffers."""
    module = program.module()
    return copy.deepcopy(module) if program.graph_signature.buffers_to_mutate else module


class Wide(NamedTuple):
    """Results that 8 bits cannot represent, because outliers are far larger than typical values.

    The values are the number of quantization steps of a typical value.
    """

    layers: dict[str, float]
    sums: dict[str, float]  # by node name; includes layers that are not modules


NOTHING_WIDE = Wide({}, {})


class _Ranges(torch.fx.Interpreter):
    """Runs a graph and accumulates the ranges and typical magnitudes of some results."""

    def __init__(self, module: torch.nn.Module, names: Collection[str]) -> None:
        super().__init__(module)
        self._names = names
        self._found: dict[str, list[float]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if (
            n.name in self._names
            and isinstance(result, torch.Tensor)
            and result.is_floating_point()
            and result.numel()
        ):
            sizes = result.detach().float().abs().flatten()
            most = sizes.kthvalue(math.ceil(_TYPICAL_SHARE * sizes.numel())).values
            typical = sizes[sizes <= most].square().mean().item()
            low, high, total, count = self._found.get(n.name, [0.0, 0.0, 0.0, 0.0])
            low, high = min(low, result.min().item()), max(high, result.max().item())
            self._found[n.name] = [low, high, total + typical, count + 1]
        return result

    def steps(self, name: str) -> float:
        """Returns the root mean square of the typical values of a result, in 8-bit quantization steps."""
        low, high, total, count = self._found.get(name, [0.0, 0.0, 0.0, 1.0])
        return math.sqrt(total / count) * 255 / (high - low) if high > low else math.inf


def wide_results(recipe: Recipe, program: ExportedProgram | None, calibration: Sequence[Call]) -> Wide:
    """Finds results of layers and additions that lose most of their information in 8-bit quantization.

    The typical values of a result are all except the largest 1 %. A result is wide if their root mean square is less
    than 2 quantization steps. A norm that follows would amplify the rounding error.
    """
    if not recipe.in_graph or recipe.make().global_config.input_activation.is_dynamic:
        return NOTHING_WIDE
    assert program is not None
    layers, other_operators = _operators(recipe.make())
    module = _to_run(program)
    ends = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in layers | other_operators:
            end = node
            while len(end.users) == 1 and (user := next(iter(end.users))).target in _CLAMPS:
                end = user
            ends[node] = end
    ranges = _Ranges(module, {end.name for end in ends.values()})
    for args, kwargs in calibration:
        ranges.run(*torch.utils._pytree.tree_leaves((args, dict(kwargs))))
    result, wide = Wide({}, {}), set()
    for node, end in ends.items():
        steps = ranges.steps(end.name)
        if steps < _MIN_STEPS:
            wide.add(end)
        elif node.target in layers or not wide.intersection(map(_behind_moves, node.all_input_nodes)):
            continue
        name = _module_name(node) if node.target in layers else ""
        where, known_as = (result.layers, name) if name else (result.sums, node.name)
        where[known_as] = min(steps, where.get(known_as, math.inf))
    return result


_TYPICAL_SHARE, _MIN_STEPS = 0.99, 2.0
_CLAMPS = {
    torch.ops.aten.relu.default, torch.ops.aten.relu_.default, torch.ops.aten.hardtanh.default,
    torch.ops.aten.hardtanh_.default,
}  # fmt: skip


def _behind_moves(node: torch.fx.Node) -> torch.fx.Node:
    """Skips operators that only move elements or have no effect in inference."""
    while node.op == "call_function" and node.target in _KEEPING and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


_KEEPING = {
    torch.ops.aten.dropout.default, torch.ops.aten.view.default, torch.ops.aten.reshape.default,
    torch.ops.aten.transpose.int, torch.ops.aten.permute.default, torch.ops.aten.flatten.using_ints,
    torch.ops.aten.contiguous.default,
}  # fmt: skip


def apply(
    recipe: Recipe,
    model: nn.Module,
    program: ExportedProgram | None,
    layers: Collection[str],
    chosen: Mapping[str, int],
    calibration: Sequence[Call],
    wide: Wide = NOTHING_WIDE,
) -> nn.Module:
    """Quantizes the chosen layers. The given model does not change.

    Args:
        layers: the names that `layers_of` returned.
        chosen: name -> bits, one of `recipe.levels`; 16-bit weights are bfloat16.
        wide: results that stay in floats: linear layers keep integer weights and return floats; other layers and
            additions are not quantized.
    """
    if recipe.bits == 16:
        changed = copy.deepcopy(model)
        for name in chosen:
            parametrize.register_parametrization(
                _part(changed, name), "weight", _RoundedWeight(recipe.make())
            )
        return changed
    if not recipe.in_graph:
        from torchao.quantization import quantize_

        changed = copy.deepcopy(model)
        for bits in recipe.levels:
            make = recipe.make if bits == recipe.bits or recipe.eight is None else recipe.eight
            names = {name for name, layer_bits in chosen.items() if layer_bits == bits}
            if bits < 16:
                with quietly():
                    quantize_(changed, make(), lambda part, name, names=names: name in names)
                continue
            for name in names:
                parametrize.register_parametrization(
                    _part(changed, name), "weight", _RoundedWeight(torch.bfloat16)
                )
        return changed
    assert program is not None
    quantizer = recipe.make()
    config = quantizer.global_config
    # the most deeply nested module name has priority
    for name in sorted(filter(None, layers), key=lambda name: -name.count(".")):
        quantizer.set_module_name(name, config if chosen.get(name, 16) < 16 else None)
    retained = {name: steps for name, steps in wide.layers.items() if chosen.get(name, 16) < 16}
    _leave_in_floats(quantizer, program, Wide(retained, wide.sums))
    layer_operators, other_operators = _operators(quantizer)
    if BETWEEN not in chosen:
        for operator in layer_operators | other_operators:
            quantizer.set_operator_type(operator, None)
    if min(chosen.values(), default=16) == 16:  # a model that is itself a layer has no module name to exclude
        quantizer.set_global(None)
    changed = pt2e.quantize(program.module(), [quantizer], calibration)
    _round_weights(changed, layer_operators, {name for name, bits in chosen.items() if bits == 16})
    return changed


def _leave_in_floats(quantizer: Any, program: ExportedProgram, wide: Wide) -> None:
    linear = {_module_name(node) for node in calls(program, torch.ops.aten.linear.default)}
    config = quantizer.global_config
    for name in wide.layers:  # linear layers keep integer weights with float results
        quantizer.set_module_name(name, replace(config, output_activation=None) if name in linear else None)
    if wide.sums:
        quantizer.set_filter_function(lambda node: node.name not in wide.sums)


def quantizer_for(name: str, program: ExportedProgram, calibration: Sequence[Call]) -> tuple[Any, Wide]:
    """Returns `quantizer_of(name)`, changed so that wide results stay in floats, and these results."""
    quantizer, wide = quantizer_of(name), wide_results(recipe_named(name), program, calibration)
    _leave_in_floats(quantizer, program, wide)
    return quantizer, wide


def _round_weights(graph: GraphModule, layers: set[Any], names: Collection[str]) -> None:
    """Rounds the weights of these layers to bfloat16."""
    for node in graph.graph.nodes if names else ():
        if node.target in layers and _module_name(node) in names:
            weight = node.args[1]
            with graph.graph.inserting_before(node):
                stored = graph.graph.call_function(torch.ops.aten.to.dtype, (weight, torch.bfloat16))
                read = graph.graph.call_function(torch.ops.aten.to.dtype, (stored, torch.float32))
            node.replace_input_with(weight, read)
    graph.recompile()


class _RoundedWeight(nn.Module):
    """Rounds a weight to its stored dtype.

    The parameter keeps full precision, so that a batch norm is folded before rounding.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.to(self.dtype).float()


def _operators(quantizer: Any) -> tuple[set[Any], set[Any]]:
    """Returns the operators of layers, and the other operators, that the quantizer annotates."""
    dynamic = quantizer.global_config.input_activation.is_dynamic
    layers: set[Any] = set()
    other_operators: set[Any] = set()
    for pattern in quantizer.SUPPORTED_PATTERNS:
        if not dynamic or (pattern.is_dynamic and pattern.name.startswith("linear")):
            (layers if pattern.name.startswith(("conv", "linear")) else other_operators).update(
                pattern.op_overloads
            )
    return layers, other_operators


def _module_name(node: torch.fx.Node) -> str:
    """Returns the name of the innermost module of a call, in the quantizer's notation."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return stack[-1][0].removeprefix("L['self'].") if stack else ""


def _part(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.partition("@")[0])  # a@1: the second call of a


def _weights(bits: int) -> Any:
    from torchao.quantization import IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerAxis, PerGroup

    return (
        IntxWeightOnlyConfig(torch.int8, PerAxis(0))
        if bits == 8
        else IntxWeightOnlyConfig(torch.int4, PerGroup(_GROUP))  # type: ignore[attr-defined]
    )


def _dynamic(bits: int) -> Any:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig
    from torchao.quantization.granularity import PerAxis, PerGroup

    return (
        Int8DynamicActivationIntxWeightConfig(torch.int8, PerAxis(0))
        if bits == 8
        else Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(_GROUP))  # type: ignore[attr-defined]
    )


_RECIPES = {
    "int8": Recipe(8, lambda: quantizer_of("int8"), in_graph=True),
    "int8-dynamic": Recipe(8, lambda: quantizer_of("int8-dynamic"), in_graph=True),
    "8da4w": Recipe(4, lambda: _dynamic(4), group=_GROUP, eight=lambda: _dynamic(8)),
    "int8-weight-only": Recipe(8, lambda: _weights(8), tables=True),
    "int4-weight-only": Recipe(4, lambda: _weights(4), group=_GROUP, tables=True, eight=lambda: _weights(8)),
    "bfloat16": Recipe(16, lambda: torch.bfloat16),
    "float16": Recipe(16, lambda: torch.float16),
}
