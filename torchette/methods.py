# SPDX-License-Identifier: BSD-3-Clause
# In: an argument for all methods of a program, or method name -> value. Out: method name -> value.
"""Resolves arguments by method: `by_method`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torchette.errors import InputTypeError


def by_method(
    value: object, methods: Iterable[str] = ("forward",), argument_name: str = ""
) -> dict[str, Any]:
    """Resolves an argument into the value of each method.

    Args:
        value: method name -> value; or one value that all methods share; or None.
        methods: the names of the methods that share one value.
        argument_name: the name of the argument. With it, a mapping may name only `methods`; without it, any method.

    Returns:
        Method name -> value, as a new dict. Methods that have no value are absent.

    Raises:
        InputTypeError: if a mapping names a method that does not exist.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return dict.fromkeys(methods, value)
    known = sorted(methods)
    unknown = sorted(set(value).difference(known))
    if argument_name and unknown:
        raise InputTypeError(
            f"{argument_name} is given for {', '.join(map(str, unknown))}, which is not a method",
            hints=[f"methods: {', '.join(known)}"],
        )
    return dict(value)
