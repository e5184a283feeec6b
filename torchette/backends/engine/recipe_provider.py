# SPDX-License-Identifier: BSD-3-Clause
# In: a recipe type. Out: an export recipe for the CPU engine. Importing this module registers the provider.
"""Recipes for the CPU engine: ``ExportRecipe.get_recipe(CpuRecipeType.FP32)``."""

from __future__ import annotations

from collections.abc import Sequence

from torchette.backends.engine.partitioner import CpuPartitioner
from torchette.errors import InputError
from torchette.export.recipe import ExportRecipe, LoweringRecipe, RecipeType
from torchette.export.recipe_registry import BackendRecipeProvider, recipe_registry


class CpuRecipeType(RecipeType):
    """The recipes of the CPU engine, by the dtype of weights and activations."""

    FP32 = "cpu_fp32"

    @classmethod
    def get_backend_name(cls) -> str:
        """Returns the name of the backend, "cpu"."""
        return "cpu"


class CpuRecipeProvider(BackendRecipeProvider):
    """Creates the recipes of `CpuRecipeType`."""

    @property
    def backend_name(self) -> str:
        """The name of the backend, "cpu"."""
        return "cpu"

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """Returns all values of `CpuRecipeType`."""
        return list(CpuRecipeType)

    def create_recipe(self, recipe_type: RecipeType, **kwargs: object) -> ExportRecipe | None:
        """Returns the recipe, or None if `recipe_type` belongs to another provider.

        Args:
            recipe_type: a value of `CpuRecipeType`.
            **kwargs: not accepted; the recipes have no options.

        Raises:
            InputError: if an option is given.
        """
        if not isinstance(recipe_type, CpuRecipeType):
            return None
        if kwargs:
            raise InputError(f"the recipe {recipe_type.value} has no option {', '.join(sorted(kwargs))}")
        return ExportRecipe(name=recipe_type.value, lowering_recipe=LoweringRecipe([CpuPartitioner()]))


recipe_registry.register_backend_recipe_provider(CpuRecipeProvider())
