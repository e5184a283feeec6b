# SPDX-License-Identifier: BSD-3-Clause
# In: the kernel table of this build, and (where torch is there) torch's list of core operators. Out: what can run.
"""The kernels of this build, and what they cover of Core ATen

Without torch: the kernel table. With torch, --dialect core lists the Core ATen operators and how this build runs
each: by a kernel, as an alias that costs nothing, by another overload's kernel, or not at all (exit code 1 with
--coverage if there are such).

examples:
  torchette ops
  torchette ops add conv                only names that contain one of these
  torchette ops --dialect core          Core ATen, and how each operator is run
  torchette ops --coverage              only what is missing, and a count
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from torchette.cli import CHECK_FAILED, DONE
from torchette.cli import _source as source
from torchette.cli._console import note, print_json, print_table


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="show only names that contain one of these")
    parser.add_argument(
        "--dialect", choices=["core"], help="list a dialect's operators instead of the kernels"
    )
    parser.add_argument(
        "--coverage", action="store_true", help="list the Core ATen operators that are missing"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    from torchette.runtime import operator_names

    def wanted(name: str) -> bool:
        return not options.names or any(part in name for part in options.names)

    if options.dialect is None and not options.coverage:
        kernels = [{"kernel": name} for name in sorted(operator_names()) if wanted(name)]
        _print(kernels, options.json, f"{len(kernels)} kernels")
        return DONE
    source.require_torch()
    rows = [row for row in coverage(operator_names()) if wanted(row["operator"])]
    missing = [row for row in rows if not row["runs as"]]
    covered = f"{len(rows) - len(missing)} of {len(rows)} Core ATen operators run in this build"
    _print(missing if options.coverage else rows, options.json, covered)
    return CHECK_FAILED if options.coverage and missing else DONE


def _print(rows: list[dict[str, str]], as_json: bool, summary: str) -> None:
    if as_json:
        print_json(rows)
        return
    if rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    note(summary)


def coverage(kernels: set[str]) -> Iterator[dict[str, str]]:
    """For each Core ATen operator what runs it: a kernel's name, "alias", or nothing."""
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
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        yield {"operator": name, "runs as": kernel_of(op)}
