# SPDX-License-Identifier: BSD-3-Clause
# In: the signature of a method in a file. Out: random inputs with its shapes and dtypes. Requires only numpy.
"""Random inputs for a method: `random_inputs`, `random_array`, `input_texts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchette.devtools.inspect import MethodInfo, ValueInfo
from torchette.errors import InputError
from torchette.packages import require
from torchette.schema import NO_BOUND

# The size of a dimension without an upper bound, if its lower bound is not larger.
_UNBOUNDED_SIZE = 16

# Values of symbolic scalars.
_NUMBERS = {"int": 1, "double": 1.0, "bool": True}


def random_inputs(info: MethodInfo, seed: int = 0) -> list[Any]:
    """Returns a random value for each input of a method, as `Method.execute` accepts them.

    Dynamic dimensions have their maximum size, or 16 if there is no maximum. Scalars that were fixed at export have the
    value in the file; symbolic scalars are 1.

    Args:
        info: description of the method, from `describe`.
        seed: seed of the random values.

    Raises:
        InputError: an input has a type for which no random value can be generated.
        MissingPackageError: an input is bfloat16, and torch is not installed.
    """
    random = np.random.default_rng(seed)
    return [_random_value(info, info.values[port.index], port.name, random) for port in info.inputs]


def random_array(shape: Sequence[int], dtype: str, random: np.random.Generator) -> Any:
    """Returns normal noise for floats, and 0 or 1 for integers and booleans, which are valid indices in nearly all
    models.

    The result is a numpy array; for bfloat16, which numpy does not have, it is a torch tensor.
    """
    if dtype == "bfloat16":
        torch = require("torch", "a bfloat16 input")
        return torch.from_numpy(random.standard_normal(tuple(shape))).to(torch.bfloat16)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return random.standard_normal(tuple(shape)).astype(kind)
    return random.integers(0, 2, tuple(shape)).astype(kind)


def input_texts(info: MethodInfo, values: Sequence[Any]) -> list[str]:
    """Returns the name, dtype and shape of each input, or its name and value: ``x float32[1, 4]``, ``n 1``."""
    return [
        f"{port.name} {tensor.dtype}{list(value.shape)}" if tensor is not None else f"{port.name} {value}"
        for port, value in zip(info.inputs, values, strict=True)
        for tensor in [info.values[port.index].tensor]
    ]


def _random_value(info: MethodInfo, value: ValueInfo, name: str, random: np.random.Generator) -> Any:
    if value.tensor is None:
        if value.kind in (*_NUMBERS, "string", "null"):
            return _NUMBERS.get(value.kind, value.value) if info.reads(value.index) else value.value
        raise InputError(f"cannot generate a random value for input {name}: its type is {value.kind}")
    sizes = [
        max(least, _UNBOUNDED_SIZE) if most == NO_BOUND else size
        for size, (least, most) in zip(value.tensor.sizes, value.tensor.bounds, strict=True)
    ]
    try:
        return random_array(sizes, value.tensor.dtype, random)
    except TypeError:
        raise InputError(
            f"cannot generate a random value for input {name}: numpy has no dtype {value.tensor.dtype}"
        ) from None
