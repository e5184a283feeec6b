# SPDX-License-Identifier: BSD-3-Clause
# The fields of a request that all endpoints have. Clients send null, and values such as -1, for a field that they do not set.
"""Options of the answers to a request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from torchette.errors import InputError
from torchette.llm.options import OPTIONS, Option, find
from torchette.llm.serve.limits import Limits
from torchette.llm.serve.refusal import Refusal, unsupported, wrong

_MAX_STOPS, _MAX_STOP_LENGTH, _MAX_BIASES, _MAX_LOGPROBS = 16, 1000, 1000, 20
_MAX_TOKENS = find("max_new_tokens")
# The options that a request sets with their names in options.def.
_OPTIONS = tuple(
    option for option in OPTIONS if option.group in ("sampling", "ending") and option != _MAX_TOKENS
)
# Values that clients send for an option that they do not set. null is such a value of every field.
_UNSET_OPTIONS: dict[str, tuple[Any, ...]] = {
    "top_p": (0,), "seed": (-1,), "repetition_penalty": (0,), "stop": ("", []), "logit_bias": ([],), "max_new_tokens": (-1,),
}  # fmt: skip
_UNSET: dict[str, tuple[Any, ...]] = {
    "model": ("",), "logprobs": (False,), "tools": ([],), "grammar": ("",),
    **{spelling: values for name, values in _UNSET_OPTIONS.items() for spelling in find(name).spellings},
}  # fmt: skip
# Fields that would change the answer and are not implemented, with the values that change nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,), "suffix": ("",), "echo": (False,), "functions": ([],), "function_call": ("none", "auto"),
    "audio": (), "modalities": (["text"],), "prediction": (), "web_search_options": (),
}  # fmt: skip


def without_unset(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a request that are set."""
    return {
        name: value for name, value in body.items() if not _is_one_of(value, (None, *_UNSET.get(name, ())))
    }


def check_supported(body: Mapping[str, Any], fields: Mapping[str, tuple[Any, ...]] = _UNSUPPORTED) -> None:
    """Raises Refusal if a field would change the answer and is not implemented."""
    for name, neutral in fields.items():
        if name in body and not _is_one_of(body[name], neutral):
            raise unsupported(name, f"{name} is not supported: remove it from the request")


def _is_one_of(value: object, allowed: tuple[Any, ...]) -> bool:
    """Whether a value is one of some JSON values. In Python, False == 0."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def is_integer(value: object, least: int, most: float) -> bool:
    """Whether a JSON value is an integer from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Returns a field that is true or false; false by default."""
    if not isinstance(value := body.get(name, False), bool):
        raise wrong(name, f"{name} must be true or false, got {json.dumps(value)[:100]}")
    return value


def max_tokens(body: Mapping[str, Any], default: int, limits: Limits) -> int:
    """Returns the maximum number of tokens of an answer. The field has several names.

    Raises:
        Refusal: status 400: the value is not a positive integer, or two names have different values.
    """
    field = _given(body, _MAX_TOKENS)
    if field is None:
        return min(default, limits.answer_tokens)
    name, value = field
    if not is_integer(value, 1, math.inf):
        raise wrong(name, f"{name} must be an integer of at least 1, got {value!r}")
    return int(min(value, limits.answer_tokens))


def _given(body: Mapping[str, Any], option: Option) -> tuple[str, Any] | None:
    """Returns the field of a request that sets an option, and its value. Raises Refusal if two fields differ."""
    fields = [(name, body[name]) for name in option.spellings if name in body]
    for name, value in fields[1:]:
        if not _is_one_of(value, (fields[0][1],)):
            raise wrong(name, f"{fields[0][0]} and {name} are the same option and differ: remove one of them")
    return fields[0] if fields else None


def sampling_options(body: Mapping[str, Any], temperature: float) -> dict[str, Any]:
    """Returns the options of `Session.generate` that choose tokens and end answers.

    Args:
        body: the request without its unset fields.
        temperature: the default.

    Raises:
        Refusal: status 400: a value is malformed or out of range.
    """
    options: dict[str, Any] = {"temperature": temperature}
    for option in _OPTIONS:
        if (field := _given(body, option)) and (value := _value(option, *field)) != []:
            options[option.name] = value
    return options


def _value(option: Option, name: str, value: object) -> Any:
    """Returns the value of an option in the form of `Session.generate`."""
    if option.name == "top_k" and _is_one_of(value, (-1,)):
        return 0  # all tokens, as 0
    try:
        if option.type == "Texts":
            return _stops(name, value)
        return option.checked(_biases(name, value) if option.type == "Biases" else value)
    except InputError as error:
        raise wrong(name, error.message if option.name == name else f"{name}: {error.message}") from None


def _stops(name: str, stop: object) -> list[str]:
    stops: list[Any] = stop if isinstance(stop, list) else [stop]
    if len(stops) > _MAX_STOPS or not all(
        isinstance(one, str) and len(one) <= _MAX_STOP_LENGTH for one in stops
    ):
        raise wrong(
            name,
            f"{name} must be a text, or a list of at most {_MAX_STOPS} texts, of at most {_MAX_STOP_LENGTH} characters",
        )
    return [one for one in stops if one]


def _biases(name: str, biases: Any) -> dict[int, float]:
    try:
        if len(biases) > _MAX_BIASES:
            raise wrong(name, f"{name} has more than {_MAX_BIASES} tokens")
        return {int(token): float(value) for token, value in biases.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise wrong(name, f"{name} must be an object with token ids as keys and biases as values") from None


def num_logprobs(body: Mapping[str, Any], name: str) -> int:
    """Returns the number of most probable tokens to report, from field `name`."""
    if not is_integer(count := body.get(name, 0), 0, _MAX_LOGPROBS):
        raise wrong(name, f"{name} must be an integer from 0 to {_MAX_LOGPROBS}, got {count!r}")
    return int(count)


def num_answers(body: Mapping[str, Any], num_prompts: int, limits: Limits) -> int:
    """Returns the number of answers to each prompt."""
    count, most = body.get("n", 1), limits.choices
    if not is_integer(count, 1, most) or not 1 <= count * num_prompts <= most:
        raise wrong("n", f"n is {count!r} for {num_prompts} prompts: a request has 1 to {most} answers")
    return int(count)


def parsed(data: bytes, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the set fields of a request's body.

    Args:
        defaults: values, by the names in options.def, of the options that the request does not set.

    Raises:
        Refusal: status 400: the body is not a JSON object.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not valid JSON: {error}", name="invalid_json") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the body must be a JSON object", name="invalid_json")
    fields = without_unset(body)
    unnamed = [name for name in defaults if not any(one in fields for one in find(name).spellings)]
    return {**fields, **{name: defaults[name] for name in unnamed}}
