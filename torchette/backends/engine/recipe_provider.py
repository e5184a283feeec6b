# SPDX-License-Identifier: BSD-3-Clause
# The name of a precision comes in, a recipe for the CPU engine goes out. Importing this registers it.
"""Recipes for the CPU engine: ``ExportRecipe.get_recipe(CpuRecipeType.FP32)``."""

from __future__ import annotations

from collections.abc import Sequence

from torchette.backends.engine.partitioner import CpuPartitioner
from torchette.errors import InputError
from torchette.export.recipe import ExportRecipe, LoweringRecipe, RecipeType
from torchette.export.recipe_registry import BackendRecipeProvider, recipe_registry


class CpuRecipeType(RecipeType):
    """What weights and activations are stored as."""

    FP32 = "cpu_fp32"

    @classmethod
    def get_backend_name(cls) -> str:
        """As the provider's."""
        return "cpu"


class CpuRecipeProvider(BackendRecipeProvider):
    """Makes a recipe of each type."""

    @property
    def backend_name(self) -> str:
        """As the types'."""
        return "cpu"

    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """All types."""
        return list(CpuRecipeType)

    def create_recipe(self, recipe_type: RecipeType, **kwargs: object) -> ExportRecipe | None:
        """A recipe. InputError for an option: it has none."""
        if not isinstance(recipe_type, CpuRecipeType):
            return None
        if kwargs:
            raise InputError(f"the recipe {recipe_type.value} has no option {', '.join(sorted(kwargs))}")
        return ExportRecipe(name=recipe_type.value, lowering_recipe=LoweringRecipe([CpuPartitioner()]))


recipe_registry.register_backend_recipe_provider(CpuRecipeProvider())
