# SPDX-License-Identifier: BSD-3-Clause
# In: engine/options.def, the table of generation options that C++ includes. Out: its rows, and checked options.
"""Generation options: `OPTIONS`, `checked`. `python -m torchette.llm.options` prints their page."""

from __future__ import annotations

import ast
import json
import math
import numbers
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torchette.errors import InputError, did_you_mean

__all__ = ["OPTIONS", "Option", "as_json", "checked", "described", "find", "page", "rows"]

_F = TypeVar("_F", bound=Callable[..., Any])
_ROW = re.compile(
    r'^TORCHETTE_OPTION\((\w+), (\w+), (\w+), ([^,]+), (from|above), ([^,]+), ([^,]+),\s+"([^"]*)",\s+"([^"]*)"\)',
    re.M,
)
_DEFAULTS = {"true": True, "false": False, "{}": None}
_KINDS = {
    "Flag": "True or False",
    "Integer": "an integer",
    "Seed": "an integer",
    "Number": "a number",
    "Text": "a text",
    "Texts": "a text or a list of texts",
    "Schema": "a JSON schema: a dict, a boolean or a text",
    "Biases": "a mapping with a number for each token",
}


_ANNOTATIONS = {
    "Flag": "bool",
    "Integer": "int",
    "Seed": "int",
    "Number": "float",
    "Text": "str",
    "Texts": "str | Sequence[str]",
    "Schema": "Mapping[str, Any] | bool | str",
    "Biases": "Mapping[int, float]",
}


class Option(NamedTuple):
    """A row of options.def."""

    group: str
    """"sampling", "ending", "form", "context", "prompt" or "output"."""
    type: str
    """A key of the table of types in options.def, such as "Integer"."""
    name: str
    default: Any
    """None for texts and lists."""
    excludes_lowest: bool
    lowest: float
    highest: float
    aliases: tuple[str, ...]
    """Other spellings, in snake_case."""
    description: str

    @property
    def spellings(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)

    @property
    def is_sampling_number(self) -> bool:
        """Whether the option is numeric and affects sampling. generation_config.json may contain its default."""
        return self.group == "sampling" and self.type in ("Integer", "Number")

    @property
    def accepted_values(self) -> str:
        """The values that the option accepts, such as "a number above 0 and at most 1"."""
        kind = _KINDS[self.type]
        if self.type not in ("Integer", "Seed", "Number"):
            return kind
        if self.excludes_lowest:
            return f"{kind} above {self.lowest:.17g} and at most {self.highest:.17g}"
        return f"{kind} from {self.lowest:.17g} to {self.highest:.17g}"

    def checked(self, value: Any) -> Any:
        """Returns a value as a built-in Python type. Raises InputError if the option does not accept it."""
        if self.type == "Flag" and isinstance(value, bool):
            return value
        if self.type == "Text" and isinstance(value, str):
            return value
        if self.type == "Schema" and isinstance(value, (str, Mapping, bool)):
            return value
        if self.type == "Texts":
            texts = [value] if isinstance(value, str) else value
            if isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts):
                return list(texts)
        if self.type == "Biases" and isinstance(value, Mapping):
            return dict(self._biases(value))
        if self.type in ("Integer", "Seed", "Number") and _is_number(value, is_integer=self.type != "Number"):
            above = value > self.lowest if self.excludes_lowest else value >= self.lowest
            if above and value <= self.highest:
                return float(value) if self.type == "Number" else int(value)
        raise InputError(f"{self.name} must be {self.accepted_values}, got {value!r}")

    def _biases(self, value: Mapping[Any, Any]) -> Iterator[tuple[int, float]]:
        for token, bias in value.items():
            if not _is_number(token, is_integer=True) or token < 0:
                raise InputError(
                    f"the keys of {self.name} must be tokens, integers of at least 0, got {token!r}"
                )
            if not _is_number(bias) or not bias < math.inf:
                raise InputError(f"{self.name}[{token}] must be a number or -inf, got {bias!r}")
            yield int(token), float(bias)


def _is_number(value: object, is_integer: bool = False) -> bool:
    kind = numbers.Integral if is_integer else numbers.Real
    return isinstance(value, kind) and not isinstance(value, bool)


def rows(text: str) -> tuple[Option, ...]:
    """Returns the rows of a table's text, in its order. Raises ValueError if a row has another form."""
    options = []
    for group, kind, name, default, bound, lowest, highest, aliases, description in _ROW.findall(text):
        value = _DEFAULTS[default] if default in _DEFAULTS else ast.literal_eval(default.rstrip("f"))
        limits = (bound == "above", float(lowest), float(highest))
        options.append(Option(group, kind, name, value, *limits, tuple(aliases.split()), description))
    if len(options) != len(re.findall(r"^TORCHETTE_OPTION\(", text, re.M)):
        raise ValueError("options.def has a row that torchette/llm/options.py cannot read")
    return tuple(options)


OPTIONS = rows((Path(__file__).parent / "engine" / "options.def").read_text(encoding="utf-8"))
"""The options of an answer, in the order of the table."""
_BY_NAME = {spelling: option for option in OPTIONS for spelling in option.spellings}


def find(name: str) -> Option:
    """Returns the option with a name or an alias, written as max_tokens, maxTokens or max-tokens.

    Raises:
        InputError: there is no such option.
    """
    snake = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name).replace("-", "_")
    if snake not in _BY_NAME:
        names = ", ".join(option.name for option in OPTIONS)
        raise InputError(
            f"unknown generation option {name!r}{did_you_mean(snake, _BY_NAME)}",
            hints=[f"options: {names}"],
        )
    return _BY_NAME[snake]


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns generation options by their names in options.def, with values of built-in Python types.

    Args:
        options: values by names or aliases. None leaves an option at its default.

    Raises:
        InputError: a name is unknown, two names set the same option, or an option does not accept its value.
    """
    result: dict[str, Any] = {}
    spellings: dict[str, str] = {}
    for name, value in options.items():
        option = find(name)
        if value is None:
            continue
        if option.name in result:
            raise InputError(f"{spellings[option.name]} and {name} are the same option; set one of them")
        result[option.name], spellings[option.name] = option.checked(value), name
    return result


def as_json(options: Mapping[str, Any]) -> str:
    """Returns options of `checked` as the JSON object that the engine reads (config_json.h)."""
    biases = options.get("logit_bias")
    if biases is not None:  # JSON has no -Infinity; -1e300 becomes -infinity as a float of C++
        finite = {str(token): max(bias, -1e300) for token, bias in biases.items()}
        options = {**options, "logit_bias": finite}
    return json.dumps(options)


def described(*groups: str) -> Callable[[_F], _F]:
    """Returns a decorator for a function that accepts options of some groups as its last parameter, ``**options``.

    The signature of the function gets a keyword parameter for each option, and the line ``{options}`` of its docstring
    a line for each option. The default of each parameter is None: the option of the model.
    """
    import inspect

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        lines = []
        for option in OPTIONS:
            if option.group in groups:
                kind = f"{_ANNOTATIONS[option.type]} | None"
                keyword = inspect.Parameter.KEYWORD_ONLY
                parameters.append(inspect.Parameter(option.name, keyword, default=None, annotation=kind))
                limits = (
                    f" ({option.accepted_values})" if option.type in ("Integer", "Seed", "Number") else ""
                )
                lines.append(f"{option.name}: {option.description}{limits}.")
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        if function.__doc__ is not None:
            function.__doc__ = re.sub(
                r"^( *)\{options\}$",
                lambda line: "\n".join(line[1] + one for one in lines),
                function.__doc__,
                flags=re.M,
            )
        return function

    return decorate


_TITLES = {
    "sampling": "Sampling",
    "ending": "End of an answer",
    "form": "Form of an answer",
    "context": "Context",
    "prompt": "Prompt",
    "output": "Output",
}


def page() -> str:
    """Returns the options as a page in Markdown."""
    lines = ["# Generation options", ""]
    lines += [
        "The names of C++, C, JSON and Python. JavaScript and Java spell them in camelCase, programs as flags.",
        "",
    ]
    for group, title in _TITLES.items():
        lines += [
            f"## {title}",
            "",
            "| option | aliases | default | values | meaning |",
            "|---|---|---|---|---|",
        ]
        for option in OPTIONS:
            if option.group == group:
                aliases = ", ".join(f"`{alias}`" for alias in option.aliases)
                default = "none" if option.default is None else f"`{json.dumps(option.default)}`"
                cells = (f"`{option.name}`", aliases, default, option.accepted_values, option.description)
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
