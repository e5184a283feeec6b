# SPDX-License-Identifier: BSD-3-Clause
# The names of a server's models, and /v1/models.
"""`Models`: the models of a server by name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torchette.errors import InputError
from torchette.llm.serve.refusal import Refusal


class Models:
    """The models of a server by name.

    Args:
        contexts: the maximum number of tokens of each model's conversations; the first model is the default.
        aliases: further names of the default model; "*" for all names that no model has.

    Raises:
        InputError: an alias is the name of another model.
    """

    def __init__(self, contexts: Mapping[str, int], aliases: Sequence[str] = ()) -> None:
        self.default = next(iter(contexts))
        if conflicts := [alias for alias in aliases if alias in contexts and alias != self.default]:
            raise InputError(
                f"the alias {conflicts[0]!r} is the name of another model", hints=["use another alias"]
            )
        self._accepts_all = "*" in aliases
        self._created = int(time.time())
        self._names = {
            **{alias: self.default for alias in aliases if alias != "*"},
            **{name: name for name in contexts},
        }
        self._contexts = dict(contexts)

    def resolve(self, name: object) -> str:
        """Returns the model that a client names. Raises Refusal, status 404, if there is none."""
        model = self._names.get(name) if isinstance(name, str) else None
        if model is None and not (self._accepts_all and isinstance(name, str)):
            text = str(name)[:200]
            raise Refusal(
                404,
                f"unknown model {text!r}; models: {', '.join(map(repr, self._names))}; "
                f"start the server with --alias {text} to add this name to the default model",
                name="model_not_found",
                param="model",
            )
        return model or self.default

    def listed(self) -> dict[str, Any]:
        """Returns the response of /v1/models."""
        order = sorted(self._names, key=lambda name: name not in self._contexts)
        return {"object": "list", "data": [self.described(name) for name in order]}

    def described(self, name: str) -> dict[str, Any]:
        """Returns the response of /v1/models/{name}. Raises Refusal, status 404, if there is none."""
        context = self._contexts[self.resolve(name)]
        return {
            "id": name, "object": "model", "created": self._created, "owned_by": "torchette", "max_model_len": context,
        }  # fmt: skip
