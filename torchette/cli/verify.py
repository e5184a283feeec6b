# SPDX-License-Identifier: BSD-3-Clause
# In: an exported program, or a model to export, and a dialect; or a compiled model with a receipt. Out: every violation
# of the dialect's rules; or every part of the file that was changed.
"""Check an exported program against a dialect, or a .pte file against its receipt

A .pt2 is checked unchanged. A model in a .py file is exported first; --lower runs the compiler up to the dialect
before checking. All violations are listed. For a .pte file, the hashes in its receipt are compared with the bytes of
the file and of its data files, and changed parts are listed. The exit code is 1 if there is a violation or a change.

examples:
  torchette verify program.pt2 --dialect aten
  torchette verify model.py:Net --dialect edge --lower
  torchette verify program.pt2 --dialect core_aten --json
  torchette verify net.pte
  torchette verify net.pte --data-file weights.ptd
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from torchette import receipt
from torchette.cli import CHECK_FAILED, DONE, UsageError
from torchette.cli import _inputs as inputs
from torchette.cli import _source as source
from torchette.cli._console import note, print_json, print_values
from torchette.errors import FormatError
from torchette.format import pte


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=f"{source.HELP}; or a .pte file with a receipt")
    parser.add_argument(
        "--dialect",
        default="edge",
        help="aten, autograd_safe, core_aten, edge, backend or exec (default: edge)",
    )
    parser.add_argument("--inputs", action="append", metavar="INPUT", help=inputs.HELP)
    parser.add_argument("--lower", action="store_true", help="compile up to the dialect, then check")
    parser.add_argument(
        "--data-file",
        action="append",
        default=[],
        metavar="FILE.ptd",
        type=Path,
        help="with a .pte file: its weights",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    if options.model.endswith(".pte"):
        return _verify_receipt(options)
    if options.data_file:
        raise UsageError("--data-file requires a .pte file")
    program = source.exported(options.model, options.inputs)
    from torchette.exir import dialects, pipeline

    try:
        dialect = dialects.get(options.dialect)
    except (KeyError, ValueError) as error:
        raise UsageError(str(error)) from None
    if options.lower:
        compiler = pipeline.build()
        stages = [stage.name for stage in compiler.stages if stage.dialect is dialect]
        if not stages:
            names = dict.fromkeys(stage.dialect.name for stage in compiler.stages)
            raise UsageError(
                f"no stage of the compiler ends in {dialect}; dialects with a stage: {', '.join(names)}"
            )
        program = replace(compiler.until(stages[0]), options=pipeline.Options(verify=False)).run(program)
    violations = dialects.violations(program, dialect)
    if options.json:
        rows = [{"code": v.code, "message": v.message, "place": v.place, "try": v.remedy} for v in violations]
        print_json({"dialect": dialect.name, "violations": rows})
    else:
        for violation in violations:
            print(f"{violation}\n")
        calls = sum(node.op == "call_function" for node in program.graph.nodes)
        note(f"{calls} calls, violations of the {dialect} dialect: {len(violations)}")
    return CHECK_FAILED if violations else DONE


def _verify_receipt(options: argparse.Namespace) -> int:
    if options.inputs or options.lower:
        raise UsageError("--inputs and --lower require a model, not a .pte file")
    try:
        damages = receipt.verify(options.model, options.data_file)
    except FormatError as error:
        if error.code != "damaged":
            raise
        damages = [receipt.Damage(options.model, 0, 0, [error.message])]
    known = receipt.provenance(pte.load_file(options.model)) or {}
    if options.json:
        print_json(
            {"whole": not damages, "damage": [damage.to_dict() for damage in damages], "receipt": known}
        )
    else:
        for damage in damages:
            print(damage)
        if not damages:
            print(f"{options.model} matches its receipt")
            print_values(receipt.rows(known))
    return CHECK_FAILED if damages else DONE
