# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's `executorch.export` in Torchette's namespace. In: a recipe and a model. Out: a finished export session.
"""`export(model, example_inputs, recipe)`, recipes, and the registry of recipes by backend."""

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
