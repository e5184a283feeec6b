# SPDX-License-Identifier: BSD-3-Clause
# The name of a recipe comes in, the backend that has it makes it. Names are ExecuTorch's (executorch.export).
"""`BackendRecipeProvider`, and the registry of the backends that have recipes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torchette.errors import InputError
from torchette.export.recipe import ExportRecipe, RecipeType


class BackendRecipeProvider(ABC):
    """A backend's recipes; one of it is registered when the backend's module of recipes is imported."""

    @property
    @abstractmethod
    def backend_name(self) -> str:
        """What its `RecipeType` names."""

    @abstractmethod
    def get_supported_recipes(self) -> Sequence[RecipeType]:
        """All that it has."""

    @abstractmethod
    def create_recipe(self, recipe_type: RecipeType, **kwargs: Any) -> ExportRecipe | None:
        """One of them; None where it is of another backend."""

    def supports_recipe(self, recipe_type: RecipeType) -> bool:
        """Whether it has that one."""
        return recipe_type in self.get_supported_recipes()


class RecipeRegistry:
    """The providers, by name."""

    def __init__(self) -> None:
        self._providers: dict[str, BackendRecipeProvider] = {}

    def register_backend_recipe_provider(self, provider: BackendRecipeProvider) -> None:
        """Adds one, or puts it in the place of the one of that name."""
        self._providers[provider.backend_name] = provider

    def create_recipe(self, recipe_type: RecipeType, backend: str, **kwargs: Any) -> ExportRecipe | None:
        """That recipe; None where the backend has it not. InputError where nobody knows the backend."""
        return self._provider(backend).create_recipe(recipe_type, **kwargs)

    def get_supported_recipes(self, backend: str) -> Sequence[RecipeType]:
        """What a backend has. InputError where nobody knows it."""
        return self._provider(backend).get_supported_recipes()

    def list_backends(self) -> list[str]:
        """Their names."""
        return list(self._providers)

    def _provider(self, backend: str) -> BackendRecipeProvider:
        if backend not in self._providers:
            raise InputError(
                f"there are no recipes for the backend {backend}",
                hints=[
                    f"backends with recipes: {', '.join(self._providers) or 'none'}",
                    "import its recipes",
                ],
            )
        return self._providers[backend]


recipe_registry = RecipeRegistry()
