# SPDX-License-Identifier: BSD-3-Clause
# In: an argument for all methods of a program, or method name -> value. Out: method name -> value.
"""Resolves arguments by method: `by_method`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchette.errors import InputTypeError


def by_method(given: object, methods: Iterable[str] = ("forward",), what: str = "") -> dict[str, Any]:
    """Resolves an argument into the value of each method.

    Args:
        given: method name -> value; or one value that all methods share; or None.
        methods: the names of the methods that share one value.
        what: the name of the argument. With it, a mapping may name only `methods`; without it, any method.

    Returns:
        Method name -> value, as a new dict. Methods that have no value are absent.

    Raises:
        InputTypeError: if a mapping names a method that does not exist.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return dict.fromkeys(methods, given)
    known = sorted(methods)
    unknown = sorted(set(given).difference(known))
    if what and unknown:
        raise InputTypeError(
            f"{what} is given for {', '.join(map(str, unknown))}, which is not a method",
            hints=[f"methods: {', '.join(known)}"],
        )
    return dict(given)
