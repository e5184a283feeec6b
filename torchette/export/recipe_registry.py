# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's module path (executorch.export.recipe_registry) for names that `recipe.py` defines.
"""`BackendRecipeProvider`, and the registry of recipes by backend."""

from __future__ import annotations

from torchette.export.recipe import BackendRecipeProvider, RecipeRegistry, recipe_registry

__all__ = ["BackendRecipeProvider", "RecipeRegistry", "recipe_registry"]
