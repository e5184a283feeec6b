# SPDX-License-Identifier: BSD-3-Clause
# In: the kernel table of this build, and torch's list of core operators, if torch is installed. Out: the supported
# operators.
"""The kernels of this build, and their coverage of Core ATen

Without torch: the kernel table. With torch, --dialect core lists the Core ATen operators and how this build runs
each: by a kernel, as an alias without cost, by another overload's kernel, or not at all. --coverage compares the
operators with eager: the number of samples of torch's tests, and the number with equal results, by dtype (exit code 1
if a Core ATen operator cannot be run).

examples:
  torchette ops
  torchette ops add conv                only names that contain one of these
  torchette ops --dialect core          Core ATen, and how each operator is run
  torchette ops --coverage              the support matrix, by dtype
  torchette ops --coverage --markdown   the same as a Markdown page
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchette import schema
from torchette.cli import CHECK_FAILED, DONE
from torchette.cli import _source as source
from torchette.cli._console import note, print_json, print_table

# Columns of the table, most used first.
_COLUMNS = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_SHORT = {dtype.torch_name: dtype.short_name for dtype in schema.DTYPES}
DTYPES = {name: _SHORT[name] for name in _COLUMNS}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="show only names that contain one of these")
    parser.add_argument(
        "--dialect", choices=["core"], help="list a dialect's operators instead of the kernels"
    )
    parser.add_argument("--coverage", action="store_true", help="compare operators with eager, by dtype")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--markdown", action="store_true", help="with --coverage: print a Markdown page")


def run(options: argparse.Namespace) -> int:
    from torchette.runtime import operator_names

    def is_requested(name: str) -> bool:
        return not options.names or any(part in name for part in options.names)

    if options.dialect is None and not options.coverage:
        kernels = [{"kernel": name} for name in sorted(operator_names()) if is_requested(name)]
        _print(kernels, options.json, f"{len(kernels)} kernels")
        return DONE
    source.require_torch()
    rows = [row for row in coverage(operator_names()) if is_requested(row["operator"])]
    covered = _covered(rows)
    if not options.coverage:
        _print(rows, options.json, covered)
        return DONE
    parity = stored()
    samples = {name: row for name, row in parity["operators"].items() if is_requested(name)}
    if options.markdown:
        print(page(rows, parity), end="")
    elif options.json:
        core = [{**row, "calls": parity["kernels"].get(row["runs as"], {})} for row in rows]
        excluded = parity["excluded"]
        print_json(
            {"core": core, "samples": samples, "excluded": excluded, "summary": [covered, _sampled(samples)]}
        )
    else:
        print_table(
            ["core operator", "runs as", *DTYPES.values()], list(_core_table(rows, parity["kernels"]))
        )
        print()
        print_table(["torch's samples of", *DTYPES.values()], list(_sample_table(samples)))
        note(covered)
        note(_sampled(samples))
    return DONE if all(row["runs as"] for row in rows) else CHECK_FAILED


def stored(path: Path | None = None) -> dict[str, Any]:
    """Returns the stored result of the parity tests.

    The result maps operator and dtype to samples [passed, tried], kernel and dtype to calls, and reasons to exclusions.
    A row of the file contains a word for each of `DTYPES`, and the names to which the row applies.
    """
    from torchette.build.sources import PACKAGE  # unpacks the sources in an installation

    held = json.loads((path or PACKAGE / "kernels" / "parity.json").read_text())

    def counted(word: str) -> list[int]:
        passed, _, tried = word.partition("/")
        return [int(passed), int(tried or passed)]

    rows = {
        title: {
            name: {
                dtype: counted(word) for dtype, word in zip(DTYPES, row.split(), strict=True) if word != "-"
            }
            for row, names in held[title].items()
            for name in names.split()
        }
        for title in ("operators", "kernels")
    }
    calls = {
        name: {dtype: count for dtype, (count, _) in row.items()} for name, row in rows["kernels"].items()
    }
    return {**rows, "kernels": calls, "excluded": held["excluded"]}


def _print(rows: list[dict[str, str]], as_json: bool, summary: str) -> None:
    if as_json:
        print_json(rows)
        return
    if rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    note(summary)


def _covered(rows: list[dict[str, str]]) -> str:
    return f"{sum(bool(row['runs as']) for row in rows)} of {len(rows)} Core ATen operators run in this build"


def _sampled(samples: dict[str, dict[str, list[int]]]) -> str:
    passed, tried = (sum(counts[i] for row in samples.values() for counts in row.values()) for i in (0, 1))
    complete = sum(all(passed == tried for passed, tried in row.values()) for row in samples.values())
    return (
        f"{passed} of {tried} samples of torch's operators match eager; "
        f"{complete} of {len(samples)} operators match in all samples"
    )


def _core_table(rows: list[dict[str, str]], kernels: dict[str, dict[str, int]]) -> Iterator[list[str]]:
    for row in rows:
        calls = kernels.get(row["runs as"], {})
        yield [row["operator"], row["runs as"] or "-", *(str(calls.get(dtype, "")) for dtype in DTYPES)]


def _sample_table(samples: dict[str, dict[str, list[int]]]) -> Iterator[list[str]]:
    for name, row in samples.items():
        counts = (row.get(dtype, [0, 0]) for dtype in DTYPES)
        yield [
            name,
            *(
                "" if not tried else str(tried) if passed == tried else f"{passed}/{tried}"
                for passed, tried in counts
            ),
        ]


def page(rows: list[dict[str, str]], parity: dict[str, Any]) -> str:
    """Returns the Markdown page of the kernel table and of the parity tests; `./dev docs` writes it."""

    def table(columns: list[str], lines: Iterator[list[str]], mark: Callable[[str], str]) -> list[str]:
        head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        return head + [f"| {' | '.join([mark(line[0]), *line[1:]])} |" for line in lines]

    return "\n".join(
        [
            "# Operators",
            "",
            "The supported operators, compared with eager. `torchette ops --coverage --markdown` prints this page.",
            "",
            f"{_covered(rows)}. {_sampled(parity['operators'])}: they are exported, compiled, run by the runtime and",
            "compared with `torch.testing.assert_close`; if only rounding differs, by the distance from the exact",
            "result. `python -m tests.kernels.parity --out torchette/kernels/parity.json` repeats the measurement.",
            "",
            "## Core ATen",
            "",
            "The kernel of each operator, and the number of its calls by the samples, by the dtype of its first tensor.",
            "",
            *table(
                ["operator", "runs as", *DTYPES.values()], _core_table(rows, parity["kernels"]), "`{}`".format
            ),
            "",
            "## Torch's samples of its operators",
            "",
            "The number of samples of torch's operator database that match eager / the number of samples.",
            "",
            *table(["operator", *DTYPES.values()], _sample_table(parity["operators"]), "`{}`".format),
            "",
            "## Exclusions",
            "",
            "These count as tried and not as passed. `name:dtype` is one dtype, `name#3` one sample.",
            "",
            *(
                f"* {reason}: {', '.join(f'`{name}`' for name in names)}"
                for reason, names in parity["excluded"].items()
            ),
            "",
        ]
    )


def coverage(kernels: set[str]) -> Iterator[dict[str, str]]:
    """Yields each Core ATen operator and its implementation: a kernel's name, "alias", or ""."""
    import torch

    from torchette.exir import dialects, ops

    def kernel_of(op: torch._ops.OpOverload) -> str:
        for candidate in (op, ops.copying(op), ops.tensor_overload(op)):
            variant = candidate and (ops.out_variant(candidate) or candidate)
            name = ".".join(filter(None, ops.kernel_name(variant))) if variant else ""
            if name in kernels:
                return name
        return "alias" if (ops.copying(op) or op) in dialects.ALIASES else ""

    for name in dialects.core_operators():
        namespace, _, suffix = name.partition("::")
        packet, _, overload = suffix.partition(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        yield {"operator": name, "runs as": kernel_of(op)}
