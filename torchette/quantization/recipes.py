# SPDX-License-Identifier: BSD-3-Clause
# A model, the name of a recipe and names of layers come in; the model with those layers on integers goes out. torchao does
# the work: its PT2E where activations have a scale in the graph, its `quantize_` where the weights alone decide.
"""What the recipes of `torchette.quantize` do: `layers_of` and `apply`."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from torchette.errors import InputError
from torchette.exir.graph import calls
from torchette.quantization import RECIPES, pt2e

# The name, among those of layers, of what is quantized between them: sums, products, averages, joins.
BETWEEN = ""
_GROUP = 32  # inputs that have one scale, where weights have 4 bits

Call = tuple[tuple, Mapping[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """A scheme.

    Attributes:
        bits: of a weight.
        make: a quantizer for PT2E, or a configuration for `quantize_`.
        in_graph: whether PT2E does it.
        group: the number of a layer's inputs must be a multiple of it.
        tables: whether it takes tables of embeddings, too.
    """

    bits: int
    make: Callable[[], Any]
    in_graph: bool = False
    group: int = 1
    tables: bool = False


def recipe_named(name: str) -> Recipe:
    """Raises InputError: there is none of that name."""
    if name not in _RECIPES:
        raise InputError(f"there is no recipe {name!r}", hints=[f"one of: {', '.join(RECIPES)}"])
    return _RECIPES[name]


def quantizer_of(name: str) -> Any:
    """A quantizer of torchao's for all that the recipe "int8" or "int8-dynamic" fits."""
    from torchette.backends.xnnpack import pt2e_quantizer

    config = pt2e_quantizer.get_symmetric_quantization_config(
        is_per_channel=True, is_dynamic=name == "int8-dynamic"
    )
    return pt2e_quantizer.XNNPACKQuantizer().set_global(config)


def layers_of(recipe: Recipe, model: nn.Module, program: ExportedProgram | None) -> dict[str, str]:
    """Name -> kind, such as "Linear", of the layers that a recipe fits, in the order in which they run.

    `program` is the captured model, which recipes of PT2E need.
    """
    if not recipe.in_graph:
        named = model.named_parameters(remove_duplicate=False)
        uses = Counter(id(parameter) for _, parameter in named)

        def fits(part: nn.Module) -> bool:
            if isinstance(part, nn.Linear):
                return (
                    not isinstance(part, NonDynamicallyQuantizableLinear)
                    and part.in_features % recipe.group == 0
                )
            if not recipe.tables or not isinstance(part, nn.Embedding) or part.max_norm is not None:
                return False
            # A table that is a layer's weight, too, would be stored twice.
            return part.embedding_dim % recipe.group == 0 and uses[id(part.weight)] == 1

        return {name: type(part).__name__ for name, part in model.named_modules() if fits(part)}
    assert program is not None
    quantizer = recipe.make()
    layers, others = _operators(quantizer)
    found: dict[str, str] = {}
    between: dict[str, None] = {}
    for node in calls(program):
        name = _module_name(node) if node.target in layers else BETWEEN
        if name:
            found[name] = type(_part(model, name)).__name__
        elif node.target in layers | others:
            between[str(node.target).split(".")[1]] = None
    return found | ({BETWEEN: ", ".join(between)} if between else {})


def apply(
    recipe: Recipe,
    model: nn.Module,
    program: ExportedProgram | None,
    layers: Collection[str],
    chosen: Collection[str],
    calibration: Sequence[Call],
) -> nn.Module:
    """The model with the chosen ones of its layers, which `layers_of` gave, on integers. The given one stays as it is."""
    if not recipe.in_graph:
        from torchao.quantization import quantize_

        changed = copy.deepcopy(model)
        quantize_(changed, recipe.make(), lambda part, name: name in chosen)
        return changed
    assert program is not None
    quantizer = recipe.make()
    config = quantizer.global_config
    # the innermost module that is named counts
    for name in sorted(filter(None, layers), key=lambda name: -name.count(".")):
        quantizer.set_module_name(name, config if name in chosen else None)
    if BETWEEN not in chosen:
        layer_operators, others = _operators(quantizer)
        for operator in layer_operators | others:
            quantizer.set_operator_type(operator, None)
    return pt2e.quantize(program.module(), [quantizer], calibration)


def _operators(quantizer: Any) -> tuple[set[Any], set[Any]]:
    """Those of layers, and the others, that the quantizer looks for."""
    dynamic = quantizer.global_config.input_activation.is_dynamic
    layers: set[Any] = set()
    others: set[Any] = set()
    for pattern in quantizer.SUPPORTED_PATTERNS:
        if pattern.is_dynamic or not dynamic:
            (layers if pattern.name.startswith(("conv", "linear")) else others).update(pattern.op_overloads)
    return layers, others


def _module_name(node: torch.fx.Node) -> str:
    """Of the innermost module that a call stands in, as the quantizer knows it."""
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
        else IntxWeightOnlyConfig(torch.int4, PerGroup(_GROUP))
    )


def _four_bits() -> Any:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig
    from torchao.quantization.granularity import PerGroup

    return Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(_GROUP))


_RECIPES = {
    "int8": Recipe(8, lambda: quantizer_of("int8"), in_graph=True),
    "int8-dynamic": Recipe(8, lambda: quantizer_of("int8-dynamic"), in_graph=True),
    "8da4w": Recipe(4, _four_bits, group=_GROUP),
    "int8-weight-only": Recipe(8, lambda: _weights(8), tables=True),
    "int4-weight-only": Recipe(4, lambda: _weights(4), group=_GROUP, tables=True),
}
