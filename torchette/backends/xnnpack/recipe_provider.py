# SPDX-License-Identifier: BSD-3-Clause
# In: the name of a precision. Out: its recipe. Importing this module registers the provider.
"""Recipes for XNNPACK, under ExecuTorch's names: ``ExportRecipe.get_recipe(XNNPackRecipeType.FP32)``."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence

import torch

from torchette.backends.xnnpack.configs import (
    get_xnnpack_edge_compile_config,
    get_xnnpack_executorch_backend_config,
)
from torchette.backends.xnnpack.partitioner import XnnpackPartitioner
from torchette.errors import InputError
from torchette.export.recipe import (
    AOQuantizationConfig,
    ExportRecipe,
    LoweringRecipe,
    QuantizationRecipe,
    RecipeType,
)
from torchette.export.recipe_registry import BackendRecipeProvider, recipe_registry
from torchette.packages import require

_log = logging.getLogger("torchette")


class XNNPackRecipeType(RecipeType):
    """The precision of weights and activations."""

    FP32 = "xnnpack_fp32"
    PT2E_INT8_DYNAMIC_PER_CHANNEL = "xnnpack_pt2e_int8_dynamic_per_channel"
    PT2E_INT8_STATIC_PER_CHANNEL = "xnnpack_pt2e_int8_static_per_channel"
    PT2E_INT8_STATIC_PER_TENSOR = "xnnpack_pt2e_int8_static_per_tensor"
    TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_CHANNEL = "xnnpack_torchao_int8da_int4w_per_channel"
    TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_TENSOR = "xnnpack_torchao_int8da_int4w_per_tensor"

    @classmethod
    def get_backend_name(cls) -> str:
        """Returns the name of the provider's backend."""
        return "xnnpack"


_PT2E = {
    XNNPackRecipeType.PT2E_INT8_DYNAMIC_PER_CHANNEL: {"is_per_channel": True, "is_dynamic": True},
    XNNPackRecipeType.PT2E_INT8_STATIC_PER_CHANNEL: {"is_per_channel": True},
    XNNPackRecipeType.PT2E_INT8_STATIC_PER_TENSOR: {},
}
_GROUPED = XNNPackRecipeType.TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_TENSOR


class XNNPACKRecipeProvider(BackendRecipeProvider):
    """Creates the recipe of each type."""

    @property
    def backend_name(self) -> str:
        """The name of the backend."""
        return "xnnpack"

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """Returns all types."""
        return list(XNNPackRecipeType)

    def create_recipe(self, recipe_type: RecipeType, **kwargs: object) -> ExportRecipe | None:
        """Returns a recipe. Logs a warning for each unknown option, which may be an option of another backend.

        Args:
            recipe_type: the precision.
            **kwargs: `group_size` (only for TORCHAO_INT8_DYNAMIC_ACT_INT4_WEIGHT_PER_TENSOR): the number of weights that share a
                scale, 32 by default.

        Returns:
            The recipe, or None if the type belongs to another backend.

        Raises:
            InputError: `group_size` is not a positive integer.
        """
        if not isinstance(recipe_type, XNNPackRecipeType):
            return None
        group_size = kwargs.pop("group_size", 32) if recipe_type is _GROUPED else None
        if group_size is not None and (not isinstance(group_size, int) or group_size < 1):
            raise InputError(f"group_size must be a positive integer, got {group_size!r}")
        if kwargs:
            _log.warning("the recipe %s has no option %s", recipe_type.value, ", ".join(sorted(kwargs)))
        return ExportRecipe(
            name=recipe_type.value,
            quantization_recipe=_quantization(recipe_type, group_size),
            lowering_recipe=LoweringRecipe(
                [XnnpackPartitioner()], edge_compile_config=get_xnnpack_edge_compile_config()
            ),
            executorch_backend_config=get_xnnpack_executorch_backend_config(),
        )


def _quantization(recipe_type: XNNPackRecipeType, group_size: int | None) -> QuantizationRecipe | None:
    if recipe_type is XNNPackRecipeType.FP32:
        return None
    if recipe_type in _PT2E:
        quantizers = importlib.import_module("torchette.backends.xnnpack.pt2e_quantizer")
        config = quantizers.get_symmetric_quantization_config(**_PT2E[recipe_type])
        return QuantizationRecipe([quantizers.XNNPACKQuantizer().set_global(config)])
    require("torchao.quantization", "a recipe for 4-bit weights")
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig
    from torchao.quantization.granularity import PerAxis, PerGroup

    granularity = PerAxis(0) if group_size is None else PerGroup(group_size)
    int4: torch.dtype = torch.int4  # type: ignore[attr-defined]
    config = Int8DynamicActivationIntxWeightConfig(weight_dtype=int4, weight_granularity=granularity)
    return QuantizationRecipe(ao_quantization_configs=[AOQuantizationConfig(config)])


recipe_registry.register_backend_recipe_provider(XNNPACKRecipeProvider())
