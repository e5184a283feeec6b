# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's path (executorch.export.recipe_registry) of names that are defined next to the recipes.
"""`BackendRecipeProvider`, and the registry of the backends that have recipes."""

from __future__ import annotations

from torchette.export.recipe import BackendRecipeProvider, RecipeRegistry, recipe_registry

__all__ = ["BackendRecipeProvider", "RecipeRegistry", "recipe_registry"]
