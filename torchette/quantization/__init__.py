# SPDX-License-Identifier: BSD-3-Clause
# The scheme names of `torchette.quantize`, `torchette compile --quantize`, `torchette.llm.export` and
# `torchette llm compile --quantize` are defined in this table.
"""Quantization: the schemes and their names; `torchette.quantize` applies them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from torchette.errors import InputError, unknown_name


class Scheme(NamedTuple):
    """A quantization scheme.

    Attributes:
        name: the name in tables, files and messages.
        aliases: names with the same meaning: those of ExecuTorch, torchao and optimum, and older names of Torchette.
        text: the dtypes of weights and activations; a dtype that is not named is float32.
        is_static: whether scales of activations are observed on calibration inputs.
        for_llm: whether `torchette.llm.export` supports the scheme.
    """

    name: str
    aliases: tuple[str, ...]
    text: str
    is_static: bool = False
    for_llm: bool = False

    @property
    def names(self) -> str:
        """Returns the name and the aliases as one text."""
        return f"{self.name} ({', '.join(self.aliases)})" if self.aliases else self.name


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            "int8", ("int8-static",), "8-bit weights, 8-bit activations; needs --calibration", is_static=True
        ),
        Scheme("int8-dynamic", ("8da8w", "int8dq"), "8-bit weights, 8-bit dynamic activations", for_llm=True),
        Scheme("8da4w", (), "4-bit weights (groups of 32), 8-bit dynamic activations", for_llm=True),
        Scheme("int8-weight-only", ("8w", "int8wo"), "8-bit weights", for_llm=True),
        Scheme("int4-weight-only", ("4w", "int4wo", "int4"), "4-bit weights (groups of 32)", for_llm=True),
        Scheme("bfloat16", ("bf16",), "weights in bfloat16"),
        Scheme("float16", ("fp16",), "weights in float16"),
    )
}
# The names that `torchette.quantize` and `torchette compile --quantize` accept, and those of language models.
RECIPES = tuple(SCHEMES)
LLM_SCHEMES = tuple(name for name, scheme in SCHEMES.items() if scheme.for_llm)


def scheme_named(name: str, among: Collection[str] = RECIPES) -> Scheme:
    """Returns the scheme of this name or alias.

    Args:
        name: a name or an alias.
        among: the names of the supported schemes.

    Raises:
        InputError: if there is no such scheme, or if it is not in `among`.
    """
    supported = [SCHEMES[one] for one in among]
    scheme = next((one for one in SCHEMES.values() if name in (one.name, *one.aliases)), None)
    if scheme in supported:
        return scheme
    hints = [f"one of: {', '.join(one.names for one in supported)}"]
    if name == "int8":  # for language models, older versions used this name for weight-only quantization
        raise InputError(
            "the scheme 'int8' is ambiguous for a language model: choose one of two schemes",
            hints=[
                "int8-weight-only: 8-bit weights, float32 activations (the meaning of int8 in older versions)",
                "int8-dynamic: 8-bit weights, 8-bit activations with scales from each input",
            ],
        )
    if scheme is not None:
        raise InputError(f"language models do not support the scheme {scheme.name!r}", hints=hints)
    names = [name for one in supported for name in (one.name, *one.aliases)]
    raise InputError(unknown_name("quantization scheme", name, names), hints=hints)


def schemes_text(among: Collection[str] = RECIPES) -> str:
    """Formats the schemes and their aliases for a command's help."""
    rows = [f"  {SCHEMES[name].names}\n    {SCHEMES[name].text}" for name in among]
    return "\n".join(["schemes of --quantize (and their aliases):", *rows])
