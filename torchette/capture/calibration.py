# SPDX-License-Identifier: BSD-3-Clause
# In: the example inputs, or the inputs for calibration that the user passed. Out: the calls that calibrate a quantized
# model, and their description. Random inputs support only estimates of size and speed.
"""Calibration inputs: the user's inputs, the example inputs, or random inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torchette.errors import InputError, InputTypeError

# The value of `calibration` that selects random inputs, and the remark about such a model.
RANDOM = "random"
RANDOM_REMARK = "random inputs, for estimates of size and speed: the accuracy is meaningless"

_RANDOM_CALLS = 8

Call = tuple[tuple[Any, ...], dict[str, Any]]


def as_arguments(inputs: object) -> Call:
    """Returns (args, kwargs) from a tuple of arguments, a dict of named arguments, or a single argument."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs), {}) if isinstance(inputs, (tuple, list)) else ((inputs,), {})


def calls_of(calibration: Iterable[Any] | str | None, example: Call) -> tuple[list[Call], str]:
    """Returns the calls that calibrate a method, and a description of them.

    Args:
        calibration: tuples of arguments, dicts of named arguments or single tensors; "random"; or None, for the example
            inputs.
        example: the example inputs of the method.

    Raises:
        InputTypeError: `calibration` is another string.
    """
    if calibration is None:
        return [example], "the example inputs"
    check_calibration(calibration)
    if calibration == RANDOM:
        return random_calls(example), RANDOM_REMARK
    calls = [as_arguments(inputs) for inputs in calibration]
    return calls, f"{len(calls)} input{'s' * (len(calls) != 1)}"


def check_calibration(calibration: object) -> None:
    """Raises InputTypeError for a string other than "random"."""
    if isinstance(calibration, str) and calibration != RANDOM:
        raise InputTypeError(
            f"calibration must be a list of inputs or 'random', got {calibration!r}",
            hints=["calibration=[(x,), ...]", "calibration='random'"],
        )


def check_calls(program: ExportedProgram, calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> None:
    """Checks that a captured program accepts the inputs.

    Raises:
        InputTypeError: an argument has another structure, kind or dtype than in the example inputs.
        InputError: a tensor has another shape than the program accepts.
    """
    nodes = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    names = [str(name) for name in program.graph_signature.user_inputs]
    expected = program.call_spec.in_spec
    keywords = list(expected.child(1).context) if expected is not None else []
    for index, (args, kwargs) in enumerate(calls):
        ordered = {key: kwargs[key] for key in keywords if key in kwargs} | dict(kwargs)
        if expected is not None and len(args) < expected.child(0).num_children:
            # An argument that the example gives by position may be given by name.
            by_name = [name for name in names[len(args) : expected.child(0).num_children] if name in ordered]
            args = (*args, *(ordered.pop(name) for name in by_name))
        leaves, structure = pytree.tree_flatten((tuple(args), ordered))
        if expected is not None and structure != expected:
            raise InputTypeError(
                f"calibration input {index} has other arguments than the example inputs: "
                f"{len(args)} positional, keywords {sorted(kwargs)}, {len(leaves)} values, expected "
                f"{expected.child(0).num_children} positional, keywords {sorted(keywords)}, "
                f"{expected.num_leaves} values",
                hints=["calibration=[(x,), ...], with a tuple of all arguments for each call"],
            )
        for name, value in zip(names, leaves, strict=True):
            _check_value(f"calibration input {index}: {name}", value, nodes.get(name), program)


def _check_value(label: str, value: object, expected: object, program: ExportedProgram) -> None:
    if not isinstance(expected, torch.Tensor):
        return
    if not isinstance(value, torch.Tensor):
        raise InputTypeError(
            f"{label} is of type {type(value).__name__}, expected a tensor", hints=["torch.as_tensor(value)"]
        )
    if value.dtype != expected.dtype:
        raise InputTypeError(f"{label} has dtype {value.dtype}, expected {expected.dtype}")
    ranges = program.range_constraints
    bounds = [
        (size, size)
        if isinstance(size, int)
        else (ranges[size.node.expr].lower, ranges[size.node.expr].upper)
        if size.node.expr in ranges
        else (0, torch.inf)
        for size in expected.shape
    ]
    if value.dim() != len(bounds) or not all(
        low <= size <= high for size, (low, high) in zip(value.shape, bounds, strict=True)
    ):
        sizes = ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in bounds)
        raise InputError(
            f"{label} has shape {tuple(value.shape)}, expected ({sizes})",
            hints=["all calibration inputs have the shapes of the example inputs", "or pass dynamic_shapes"],
        )


def random_calls(example: Call) -> list[Call]:
    """Returns random inputs with the shapes, dtypes and ranges of the example inputs. Every call returns the same
    inputs."""
    return [draw(example, seed)[1] for seed in range(_RANDOM_CALLS)]


def draw(inputs: object, seed: int) -> tuple[list[list[float]], Any]:
    """Returns the range of each tensor, and inputs of the same structure with uniform values in these ranges. A range
    of equal floats is widened by 1 on both sides."""
    generator = torch.Generator().manual_seed(seed)
    ranges: list[list[float]] = []

    def drawn(value: object) -> Any:
        if not isinstance(value, torch.Tensor) or value.is_complex() or not value.numel():
            return value
        values = value.to(torch.float64)
        values = values[values.isfinite()]
        low, high = (values.min().item(), values.max().item()) if len(values) else (0.0, 0.0)
        if value.is_floating_point():
            low, high = (low - 1, high + 1) if low == high else (low, high)
            sample = torch.rand(value.shape, generator=generator, dtype=torch.float64) * (high - low) + low
        else:
            sample = torch.randint(int(low), int(high) + 1, value.shape, generator=generator)
        ranges.append([low, high])
        return sample.to(value.dtype)

    return ranges, pytree.tree_map(drawn, inputs)
