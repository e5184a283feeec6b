# SPDX-License-Identifier: BSD-3-Clause
# In: an exported program, or a model to export, and a dialect. Out: every violation of the dialect's rules.
"""Check an exported program against a dialect; every violation at once

A .pt2 is checked as it is. A model in a .py file is exported first; --lower runs the compiler up to the dialect
before checking. Exit code 1 if there are violations.

examples:
  torchette verify program.pt2 --dialect aten
  torchette verify model.py:Net --dialect edge --lower
  torchette verify program.pt2 --dialect core_aten --json
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from torchette.cli import CHECK_FAILED, DONE, UsageError
from torchette.cli import _inputs as inputs
from torchette.cli import _source as source
from torchette.cli._console import note, print_json


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=source.HELP)
    parser.add_argument(
        "--dialect",
        default="edge",
        help="aten, autograd_safe, core_aten, edge, backend or exec (default: edge)",
    )
    parser.add_argument("--inputs", action="append", metavar="INPUT", help=inputs.HELP)
    parser.add_argument("--lower", action="store_true", help="compile up to the dialect, then check")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    program = source.exported(options.model, options.inputs)
    from torchette.exir import dialects, pipeline

    try:
        dialect = dialects.get(options.dialect)
    except (KeyError, ValueError) as error:
        raise UsageError(str(error)) from None
    if options.lower:
        whole = pipeline.build()
        stages = [stage.name for stage in whole.stages if stage.dialect is dialect]
        if not stages:
            names = dict.fromkeys(stage.dialect.name for stage in whole.stages)
            raise UsageError(f"no stage of the compiler ends in {dialect}; these do: {', '.join(names)}")
        program = replace(whole.until(stages[0]), options=pipeline.Options(verify=False)).run(program)
    found = dialects.violations(program, dialect)
    if options.json:
        rows = [{"code": v.code, "message": v.message, "place": v.place, "try": v.remedy} for v in found]
        print_json({"dialect": dialect.name, "violations": rows})
    else:
        for violation in found:
            print(f"{violation}\n")
        calls = sum(node.op == "call_function" for node in program.graph.nodes)
        note(f"{calls} calls, violations of the {dialect} dialect: {len(found)}")
    return CHECK_FAILED if found else DONE
