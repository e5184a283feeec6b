# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's `executorch.export` under our root: a recipe and a model come in, a session that has run goes out.
"""`export(model, example_inputs, recipe)`, recipes, and the registry of the backends that have some."""

from __future__ import annotations

from torchette.export.export import ExportSession, export
from torchette.export.recipe import (
    AOQuantizationConfig,
    ExportRecipe,
    LoweringRecipe,
    Mode,
    QuantizationRecipe,
    RecipeType,
)
from torchette.export.recipe_registry import BackendRecipeProvider, recipe_registry
from torchette.export.types import StageType

__all__ = [
    "AOQuantizationConfig",
    "BackendRecipeProvider",
    "ExportRecipe",
    "ExportSession",
    "LoweringRecipe",
    "Mode",
    "QuantizationRecipe",
    "RecipeType",
    "StageType",
    "export",
    "recipe_registry",
]
