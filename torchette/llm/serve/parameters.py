# SPDX-License-Identifier: BSD-3-Clause
# The fields of a request that all endpoints have. Clients send null, and values such as -1, for a field that they do not set.
"""Options of the answers to a request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from torchette.llm.serve.limits import Limits
from torchette.llm.serve.refusal import Refusal, unsupported, wrong

_MAX_STOPS, _MAX_STOP_LENGTH, _MAX_BIASES, _MAX_LOGPROBS = 16, 1000, 1000, 20
_NAMES_OF_MAX_TOKENS = (
    "max_completion_tokens",
    "max_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "n_predict",
)
# Options that `Session.generate` checks.
_SAMPLING = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "top_k", "min_p", "repetition_penalty",
)  # fmt: skip
# Values that clients send for a field that they do not set. null is such a value of every field.
_UNSET: dict[str, tuple[Any, ...]] = {
    "model": ("",), "top_p": (0,), "seed": (-1,), "repetition_penalty": (0,), "stop": ("", []), "logprobs": (False,),
    "tools": ([],), "grammar": ("",), "logit_bias": ([],), **dict.fromkeys(_NAMES_OF_MAX_TOKENS, (-1,)),
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


def _is_one_of(value: object, others: tuple[Any, ...]) -> bool:
    """Whether a value is one of some JSON values. In Python, False == 0."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in others)


def is_integer(value: object, least: int, most: float) -> bool:
    """Whether a JSON value is an integer from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def flag(body: Mapping[str, Any], name: str) -> bool:
    """Returns a field that is true or false; false by default."""
    if not isinstance(value := body.get(name, False), bool):
        raise wrong(name, f"{name} is {json.dumps(value)[:100]}, it must be true or false")
    return value


def max_tokens(body: Mapping[str, Any], default: int, limits: Limits) -> int:
    """Returns the maximum number of tokens of an answer. The field has several names.

    Raises:
        Refusal: status 400: the value is not a positive integer, or two names have different values.
    """
    given = {name: body[name] for name in _NAMES_OF_MAX_TOKENS if name in body}
    for name, value in given.items():
        if not is_integer(value, 1, math.inf):
            raise wrong(name, f"{name} is {value!r}, it must be an integer from 1")
    if len(set(given.values())) > 1:
        raise wrong(
            list(given)[1], f"{' and '.join(given)} name one limit and differ: remove all but one of them"
        )
    return int(min(next(iter(given.values()), default), limits.answer_tokens))


def sampling_options(body: Mapping[str, Any], temperature: float) -> dict[str, Any]:
    """Returns the options of `Session.generate` that choose tokens and end answers.

    Args:
        body: the request without its unset fields.
        temperature: the default.

    Raises:
        Refusal: status 400: a value is malformed. `Session.generate` checks ranges.
    """
    options = {"temperature": temperature, **{name: body[name] for name in _SAMPLING if name in body}}
    if _is_one_of(options.get("top_k"), (-1,)):
        options["top_k"] = 0  # all tokens, as 0
    options["stop"] = _stops(body.get("stop", []))
    options["logit_bias"] = _biases(body.get("logit_bias", {}))
    return options


def _stops(stop: object) -> list[str]:
    stops: list[Any] = stop if isinstance(stop, list) else [stop]
    if len(stops) > _MAX_STOPS or not all(
        isinstance(one, str) and len(one) <= _MAX_STOP_LENGTH for one in stops
    ):
        raise wrong(
            "stop",
            f"stop must be a text, or a list of at most {_MAX_STOPS} texts, of at most {_MAX_STOP_LENGTH} characters",
        )
    return [one for one in stops if one]


def _biases(biases: Any) -> dict[int, float]:
    try:
        if len(biases) > _MAX_BIASES:
            raise wrong("logit_bias", f"logit_bias has more than {_MAX_BIASES} tokens")
        return {int(token): float(value) for token, value in biases.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise wrong(
            "logit_bias", "logit_bias must be an object with token ids as keys and numbers as values"
        ) from None


def num_logprobs(body: Mapping[str, Any], name: str) -> int:
    """Returns the number of most probable tokens to report, from field `name`."""
    if not is_integer(count := body.get(name, 0), 0, _MAX_LOGPROBS):
        raise wrong(name, f"{name} is {count!r}, it must be an integer from 0 to {_MAX_LOGPROBS}")
    return int(count)


def num_answers(body: Mapping[str, Any], num_prompts: int, limits: Limits) -> int:
    """Returns the number of answers to each prompt."""
    count, most = body.get("n", 1), limits.choices
    if not is_integer(count, 1, most) or not 1 <= count * num_prompts <= most:
        raise wrong("n", f"n is {count!r} for {num_prompts} prompts: a request has 1 to {most} answers")
    return int(count)


def parsed(data: bytes) -> dict[str, Any]:
    """Returns the set fields of a request's body.

    Raises:
        Refusal: status 400: the body is not a JSON object.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not valid JSON: {error}", name="invalid_json") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the body must be a JSON object", name="invalid_json")
    return without_unset(body)
