# SPDX-License-Identifier: BSD-3-Clause
# In: the user's text for an input (a shape and dtype, or a file). Out: numpy arrays. Requires only numpy, so that
# `torchette run` works without torch.
"""Creates inputs for a model from text, from files, or at random."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from torchette.cli import UsageError
from torchette.devtools.random_inputs import random_array
from torchette.errors import did_you_mean
from torchette.schema import DTYPES

HELP = (
    "an input: a shape with an optional dtype (1x3x224x224, 1x16:int64, scalar:float32), "
    "or a file (.npy, or .npz with one array per input); repeat for several inputs"
)
SHORT = {dtype.short_name: dtype.torch_name for dtype in DTYPES if dtype.is_computed}


def from_texts(texts: Iterable[str], *, seed: int = 0) -> list[Any]:
    """Returns arrays for the user's texts, in order.

    Raises:
        UsageError: a text is neither a shape nor a readable file.
    """
    random = np.random.default_rng(seed)
    arrays: list[Any] = []
    for text in texts:
        if text.endswith((".npy", ".npz")):
            arrays += from_file(Path(text))
        else:
            arrays.append(random_array(*_spec(text), random))
    return arrays


def from_file(path: Path) -> list[np.ndarray]:
    """Returns the array of a ``.npy`` file, or the arrays of a ``.npz`` file in the order in which they were saved."""
    try:
        loaded: Any = np.load(path, allow_pickle=False)
    except (ValueError, EOFError):
        raise UsageError(f"{path} is not a .npy or .npz file that numpy can read") from None
    if isinstance(loaded, np.ndarray):
        return [loaded]
    with loaded:
        return [loaded[name] for name in loaded.files]


def _spec(text: str) -> tuple[tuple[int, ...], str]:
    match = re.fullmatch(r"(scalar|\d+(?:x\d+)*)(?::(\w+))?", text)
    if match is None:
        raise UsageError(f"{text!r} is neither a shape such as 1x3x224x224:float32 nor a .npy or .npz file")
    dtype = SHORT.get(match[2] or "f32", match[2] or "float32")
    if dtype not in SHORT.values():
        near = did_you_mean(dtype, SHORT.values())
        raise UsageError(f"{text!r}: no dtype {dtype!r}; dtypes: {', '.join(SHORT.values())}{near}")
    shape = () if match[1] == "scalar" else tuple(map(int, match[1].split("x")))
    return shape, dtype
