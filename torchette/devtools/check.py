# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file, and the measurements of an earlier file. Out: the figures that exceed their tolerance, with details.
"""Budgets for continuous integration: `measure` measures a file, `find_growth` compares two measurements.

>>> last = json.loads(Path("last.json").read_text())
>>> for growth in find_growth(last, measure("net.pte")):
...     print(growth)
the file grew from 1,204 to 2,228 bytes ...
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torchette.devtools import device_memory, profile, size, validate
from torchette.devtools.inspect import MethodInfo, describe, source_line
from torchette.errors import FormatError, InputError
from torchette.format import bundled, pte, receipt
from torchette.runtime import Program, Runtime

FORMAT = 1  # version of the dictionary that `measure` returns

# Default tolerance of each kind of figure.
TOLERANCES = {
    "file": 0.0,  # relative to the earlier size
    "arena": 0.0,  # relative to the earlier size
    "time": 0.05,  # absolute: added to the operator's earlier share of the total time
    "error": 0.1,  # relative to the earlier maximum difference
}
_ERROR_TOLERANCE = 1e-6  # absolute tolerance of an error, in addition to the relative one
_MAX_DETAILS = 5  # maximum number of details per growth


@dataclass(frozen=True)
class Growth:
    """A figure that exceeds its tolerance."""

    kind: str  # file, arena, time, error
    name: str  # the file, a method's planned memory, an operator, or an output
    before: float
    after: float
    allowed: float
    where: list[tuple[str, float, float]] = field(
        default_factory=list
    )  # name, before, after; largest growth first

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        unit = " bytes" if self.kind in ("file", "arena") else " of the time" if self.kind == "time" else ""
        lines = [
            f"{self.name} grew from {_number(self.before)} to {_number(self.after)}{unit}, "
            f"{_number(self.allowed)} is allowed"
        ]
        lines += [f"  {name}: {_number(before)} -> {_number(after)}" for name, before, after in self.where]
        return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.3g}"


def measure(
    source: str | Path,
    *,
    cases: str | Path | None = None,
    times: Mapping[str, Mapping[str, float]] | None = None,
) -> dict[str, Any]:
    """Measures a .pte file.

    Args:
        source: path of a .pte file.
        cases: path of a .bpte file. The methods run on its cases to measure the errors. By default, the errors come
            from the receipt in the file.
        times: result of `shares` for each method, by method name.

    Returns:
        A dictionary that can be written as JSON, for `find_growth`.

    Raises:
        ModelNotFoundError: a file does not exist.
        FormatError: a file is damaged.
        InputError: `cases` contains cases of a method that the program does not have.
        ExecutionError: a method fails; only with `cases`.
    """
    file = pte.load_file(source)
    file_sizes = size.sizes(file)
    methods = describe(file).methods
    return {
        "format": FORMAT,
        "file": file_sizes.nbytes,
        "sizes": {key: file_sizes.by(key) for key in ("part", "tensor", "module", "operator", "delegate")},
        "arenas": {method.name: _arena(method) for method in methods},
        "time": {name: dict(share) for name, share in (times or {}).items()},
        "errors": _errors_of_cases(source, cases) if cases else _errors_of(receipt.provenance(file)),
    }


def _arena(method: MethodInfo) -> dict[str, Any]:
    """Returns the size of a method's planned memory, and the live tensors at its peak."""
    tenants = device_memory.tenants(method)
    instants = {tenant.first for tenant in tenants}

    def alive(time: int) -> list[device_memory.Tenant]:
        return [tenant for tenant in tenants if tenant.first <= time <= tenant.last]

    peak = max(instants, key=lambda time: sum(tenant.nbytes for tenant in alive(time)), default=0)
    there: Counter[str] = Counter()
    for tenant in alive(peak):
        line = ""
        if tenant.maker not in ("input", "state") and tenant.first < len(method.instructions):
            line = source_line(method.instructions[tenant.first].source)
        there[f"{tenant.maker} {tenant.text}" + (f" ({line})" if line else "")] += tenant.nbytes
    return {"bytes": sum(buffer.nbytes for buffer in method.planned_buffers), "at the peak": dict(there)}


def _errors_of(known: Mapping[str, Any] | None) -> dict[str, float]:
    """Returns the maximum difference of each output over all cases in a receipt."""
    errors: dict[str, float] = {}
    try:
        for case in (known or {}).get("compared", ()):
            for output in case["outputs"]:
                name = f"{case['method']}, output {output['output']}"
                errors[name] = max(errors.get(name, 0.0), float(output["max_abs"]))
    except (TypeError, KeyError, AttributeError, ValueError):
        return {}  # a receipt that another tool wrote
    return errors


def _errors_of_cases(source: str | Path, cases: str | Path) -> dict[str, float]:
    program = Runtime.get().load_program(Path(source))
    record = bundled.read(Path(cases).read_bytes())
    errors: dict[str, float] = {}
    for suite in record.method_test_suites or ():
        if suite.method_name not in program.method_names:
            raise InputError(
                f"{source} has no method {suite.method_name!r}, but {cases} contains cases for it"
            )
        method = program.load_method(suite.method_name)
        for case in suite.test_cases or ():
            method.reset()
            outputs = method.execute(
                [validate.argument(record) for record in case.inputs or ()], real_view=True
            )
            expected = [validate.value(record) for record in case.expected_outputs or ()]
            for index, (output, expected_output) in enumerate(zip(outputs, expected, strict=False)):
                name = f"{suite.method_name}, output {index}"
                errors[name] = max(errors.get(name, 0.0), _difference(np.asarray(output), expected_output))
    return errors


def _difference(output: np.ndarray, expected: np.ndarray) -> float:
    return validate.largest_difference(output, expected) if output.shape == expected.shape else math.inf


def shares(
    program: Program, method: MethodInfo, inputs: Sequence[Any], runs: int, threads: int | None = None
) -> dict[str, float]:
    """Measures each operator's share of a method's time.

    Args:
        program: the loaded program.
        method: description of the method.
        inputs: inputs of `Method.execute`.
        runs: number of measured runs, after one run that is not measured.
        threads: as for `Program.load_method`.

    Returns:
        The share by operator name: the median times of the operator's instructions, divided by the sum over all
        operators.

    Raises:
        ValueError: `runs` is less than 1.
    """
    loaded = program.load_method(method.name, threads=threads, tracing=True)
    if runs < 1:
        raise ValueError(f"runs must be at least 1, got {runs}")
    loaded.execute(inputs)
    loaded.take_events()
    for _ in range(runs):
        loaded.execute(inputs)
    spent: dict[str, float] = defaultdict(float)
    for operation in profile.operations(method, loaded.take_events()):
        spent[operation.name] += float(np.median(operation.times))
    total = sum(spent.values())
    return {name: time / total if total else 0.0 for name, time in spent.items()}


def find_growth(
    last: Mapping[str, Any], now: Mapping[str, Any], tolerances: Mapping[str, float] | None = None
) -> list[Growth]:
    """Returns the figures that grew beyond their tolerance.

    A figure that only one side contains, such as a time, is not compared.

    Args:
        last: the earlier result of `measure`.
        now: the current result of `measure`.
        tolerances: replacements for entries of `TOLERANCES`.

    Raises:
        FormatError: `last` is not a result of `measure`, or another version wrote it.
    """
    allow = {**TOLERANCES, **(tolerances or {})}
    try:
        if last["format"] != FORMAT:
            raise FormatError(f"the figures have format {last['format']!r}, expected {FORMAT}")
        return [
            *_file_growth(last, now, allow["file"]),
            *_arena_growth(last["arenas"], now["arenas"], allow["arena"]),
            *_time_growth(last["time"], now["time"], allow["time"]),
            *_error_growth(last["errors"], now["errors"], allow["error"]),
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"the file does not contain figures of `torchette check`: {error!r}",
            hints=["write them with --save"],
        ) from None


def _file_growth(last: Mapping[str, Any], now: Mapping[str, Any], tolerance: float) -> list[Growth]:
    allowed = math.floor(last["file"] * (1 + tolerance))
    if now["file"] <= allowed:
        return []
    where = [
        (f"{key} {name}", before, after)
        for key in ("part", "module", "operator", "tensor", "delegate")
        for name, before, after in _where(last["sizes"][key], now["sizes"][key])
        if key == "part" or not name.startswith("(")
    ]
    return [Growth("file", "the file", last["file"], now["file"], allowed, where)]


def _arena_growth(last: Mapping[str, Any], now: Mapping[str, Any], tolerance: float) -> list[Growth]:
    growths = []
    for method in last.keys() & now.keys():
        before, after = last[method]["bytes"], now[method]["bytes"]
        allowed = math.floor(before * (1 + tolerance))
        if after > allowed:
            where = _where(last[method]["at the peak"], now[method]["at the peak"])
            growths.append(Growth("arena", f"planned memory of {method}", before, after, allowed, where))
    return growths


def _time_growth(last: Mapping[str, Any], now: Mapping[str, Any], tolerance: float) -> list[Growth]:
    return [
        Growth("time", f"{method}: the share of {name}", last[method].get(name, 0.0), share, allowed)
        for method in last.keys() & now.keys()
        for name, share in now[method].items()
        if share > (allowed := last[method].get(name, 0.0) + tolerance)
    ]


def _error_growth(last: Mapping[str, Any], now: Mapping[str, Any], tolerance: float) -> list[Growth]:
    return [
        Growth("error", f"the error of {name}", last[name], now[name], allowed)
        for name in last.keys() & now.keys()
        if now[name] > (allowed := last[name] * (1 + tolerance) + _ERROR_TOLERANCE)
    ]


def _where(last: Mapping[str, float], now: Mapping[str, float]) -> list[tuple[str, float, float]]:
    increases = [(name, last.get(name, 0), after) for name, after in now.items() if after > last.get(name, 0)]
    return sorted(increases, key=lambda row: row[1] - row[2])[:_MAX_DETAILS]
