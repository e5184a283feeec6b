# SPDX-License-Identifier: BSD-3-Clause
# In: a bundled program, and a command that runs executor_runner, possibly on another machine. Out: the differences
# between the outputs and those that the bundle expects. They are compared here, so that the device needs only the
# runner.
"""Run the cases of a bundled program through any command: `validate`.

The runner's options are appended to the command. The runner writes the outputs to its standard output as .npy files.
With `copy`, it reads the bundle from its standard input, so that nothing needs to be stored on the device.
"""

from __future__ import annotations

import io
import math
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchette.devtools.inspect import DTYPES
from torchette.errors import ExecutionError, FormatError
from torchette.files import missing_file
from torchette.format import bundled
from torchette.format.schema import Record
from torchette.units import counted

_NUMBERS = {
    "Int": ("int_val", np.int64),
    "Double": ("double_val", np.float64),
    "Bool": ("bool_val", np.bool_),
}
COLUMNS = ("method", "case", "output", "elements", "mismatches", "largest difference", "")


@dataclass(frozen=True)
class OutputResult:
    """Comparison of one output of a case; `output` is None if the case failed."""

    method: str
    case: int
    output: int | None
    elements: int
    mismatches: int
    largest_difference: float
    problem: str  # empty if the output matches

    @property
    def fits(self) -> bool:
        """Whether every element is within the tolerances."""
        return not self.problem

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as plain values; a difference that is not finite is a string."""
        fields = asdict(self) | {"fits": self.fits}
        if not math.isfinite(self.largest_difference):
            fields["largest_difference"] = str(self.largest_difference)
        return fields

    def row(self) -> tuple[Any, ...]:
        """Returns the cells for `COLUMNS`."""
        output = "" if self.output is None else str(self.output)
        difference = f"{self.largest_difference:.3g}"
        status = "fits" if self.fits else self.problem
        return self.method, self.case, output, self.elements, self.mismatches, difference, status


def validate(
    path: str | os.PathLike[str],
    command: Sequence[str],
    *,
    copy: bool = False,
    there: str | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    timeout: float = 300.0,
) -> list[OutputResult]:
    """Runs every case of a bundled program through a command.

    Args:
        path: the .bpte file.
        command: command that runs executor_runner, such as ``["ssh", "pi", "./executor_runner"]``.
        copy: send the bundle over the command's standard input.
        there: path of the file on the runner's machine, if it differs from `path`.
        rtol: relative tolerance.
        atol: absolute tolerance. An element matches if |output - expected| <= atol + rtol * |expected|.
        timeout: seconds for one case.

    Returns:
        A result for each output of each case; a single result for a case that failed.

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is not a bundled program.
        ExecutionError: the command cannot be started.
    """
    if not Path(path).is_file():
        raise missing_file(path)
    data = Path(path).read_bytes()
    record = bundled.read(data)
    results: list[OutputResult] = []
    for suite in record.method_test_suites or ():
        for index, case in enumerate(suite.test_cases or ()):
            options = ["--model_path", "-" if copy else there or os.path.abspath(path)]
            options += ["--bundleio", "--method_name", suite.method_name or "", "--testset_idx", str(index)]
            options += ["--output_file", "-"]
            expected = [value(stored) for stored in case.expected_outputs or ()]
            try:
                outputs = _run([*command, *options], data if copy else None, timeout)
            except _Failed as failure:
                results.append(OutputResult(suite.method_name, index, None, 0, 0, math.nan, str(failure)))
                continue
            results += _compared(suite.method_name, index, outputs, expected, rtol, atol)
    return results


class _Failed(Exception):
    """A case that produced no outputs; the message is the reason."""


def _run(command: list[str], data: bytes | None, timeout: float) -> list[np.ndarray]:
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False, input=data or b"")
    except OSError as error:
        raise ExecutionError(
            f"the command {command[0]!r} cannot be started: {error.strerror or error}",
            hints=["--on is the command prefix, such as 'ssh pi'; --runner is the path of the runner"],
        ) from None
    except subprocess.TimeoutExpired:
        raise _Failed(f"no result within {timeout:g} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise _Failed(f"exit code {done.returncode}: {lines[-1] if lines else 'no error message'}")
    try:
        return list(_arrays(io.BytesIO(done.stdout)))
    except (ValueError, EOFError, OSError):
        raise _Failed(
            "its standard output is not a list of .npy files: another program prints there, or the runner is too old"
        ) from None


def _arrays(stream: io.BytesIO) -> Iterator[np.ndarray]:
    """Yields consecutive arrays that `np.save` wrote. Raises ValueError, EOFError or OSError for other data."""
    size = len(stream.getvalue())
    while stream.tell() < size:
        yield np.load(stream, allow_pickle=False)


def _compared(
    method: str, case: int, outputs: list[np.ndarray], expected: list[np.ndarray], rtol: float, atol: float
) -> Iterator[OutputResult]:
    if not expected:
        yield OutputResult(method, case, None, 0, 0, math.nan, "" if outputs else "no outputs")
        return
    if len(outputs) != len(expected):
        problem = f"{counted(len(outputs), 'output')}, {len(expected)} expected"
        yield OutputResult(method, case, None, 0, 0, math.nan, problem)
        return
    for index, (output, reference) in enumerate(zip(outputs, expected, strict=True)):
        if output.dtype != reference.dtype or output.shape != reference.shape:
            problem = f"{output.dtype}{list(output.shape)}, expected {reference.dtype}{list(reference.shape)}"
            yield OutputResult(method, case, index, reference.size, reference.size, math.nan, problem)
            continue
        apart = ~np.isclose(
            output.astype(np.float64), reference.astype(np.float64), rtol, atol, equal_nan=True
        )
        largest = largest_difference(output, reference)
        count = int(apart.sum())
        yield OutputResult(method, case, index, reference.size, count, largest, "differs" if count else "")


def largest_difference(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the maximum absolute difference of arrays of one shape: 0 for two NaNs, infinite for one NaN."""
    left: np.ndarray = one.astype(np.float64)
    right: np.ndarray = other.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right)[(left != right) & ~(np.isnan(left) & np.isnan(right))]
    return float(np.nan_to_num(apart, nan=math.inf, posinf=math.inf).max(initial=0.0))


def argument(record: Record) -> Any:
    """Returns a value of the bundle as a method accepts it: an array or a scalar. Raises FormatError if damaged."""
    array = value(record)
    return array.item() if type(record.val).__name__ in _NUMBERS else array


def value(record: Record) -> np.ndarray:
    """Returns a value of the bundle as an array; a scalar has no dimensions. Raises FormatError if damaged."""
    stored = record.val
    if type(stored).__name__ in _NUMBERS:
        field, dtype = _NUMBERS[type(stored).__name__]
        return np.array(getattr(stored, field), dtype)
    if stored is None:
        raise FormatError("a value of the bundle is empty")
    sizes, order = list(stored.sizes or ()), list(stored.dim_order or range(len(stored.sizes or ())))
    name = DTYPES.get(stored.scalar_type.name, stored.scalar_type.name.lower())
    try:
        flat = np.frombuffer(stored.data or b"", np.dtype(name).newbyteorder("<"))
        if sorted(order) != list(range(len(sizes))):
            raise ValueError
        result: np.ndarray = flat.reshape([sizes[d] for d in order]).transpose(
            [order.index(d) for d in range(len(sizes))]
        )
        return result
    except (TypeError, ValueError):
        raise FormatError(
            f"a tensor of the bundle, {name}{sizes}, is damaged or of a dtype that numpy lacks"
        ) from None
