# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file and the figures of an earlier one. Out: the figures that exceed their tolerance. Requires only numpy.
"""Fail if a .pte file has grown: in size, memory, share of time or error

With --save, writes the figures of this file to the file of --against, which is stored with the sources. Without --save,
compares the figures with that file, and prints growth with the modules, tensors and operators that grew. Errors come
from the file's receipt (torchette.compile(..., verify=True)), or from the cases of a bundled program.
The exit code is 1 if a figure exceeds its tolerance.

examples:
  torchette check net.pte --against last.json --save
  torchette check net.pte --against last.json
  torchette check net.pte --against last.json --file 2% --arena 0% --error 10%
  torchette check net.pte --against last.json --time 5%       also compare each operator's share of the time
  torchette check net.pte --against last.json --cases net.bpte
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from torchette.cli import CHECK_FAILED, DONE, UsageError, _method
from torchette.cli._console import note, print_json, print_values
from torchette.devtools import check
from torchette.errors import ModelNotFoundError
from torchette.units import byte_text


def _part(text: str) -> float:
    """``2%`` or ``0.02`` -> 0.02."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction such as 2%")
    return value


def arguments(parser: argparse.ArgumentParser) -> None:
    _method.arguments(parser)
    parser.add_argument(
        "--against", metavar="FILE.json", type=Path, required=True, help="the earlier figures"
    )
    parser.add_argument(
        "--save", action="store_true", help="write the figures to that file instead of comparing"
    )
    for kind, label in (
        ("file", "tolerance of the size of the file"),
        ("arena", "tolerance of the planned memory of each method"),
        ("error", "tolerance of the largest difference of each output"),
    ):
        default = check.TOLERANCES[kind]
        parser.add_argument(
            f"--{kind}",
            dest=f"allow_{kind}",
            type=_part,
            default=default,
            metavar="PART",
            help=f"{label} ({default:.0%}%)",
        )
    parser.add_argument(
        "--time",
        dest="allow_time",
        type=_part,
        metavar="PART",
        help="also measure time, with this tolerance of each operator's share (default: not measured)",
    )
    parser.add_argument("-n", type=int, default=20, metavar="RUNS", help="measured runs for --time (20)")
    parser.add_argument(
        "--cases", metavar="FILE.bpte", type=Path, help="a bundled program; its cases determine the errors"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    if options.n < 1:
        raise UsageError(f"-n must be at least 1, got {options.n}")
    now = check.measure(options.file, cases=options.cases, times=_times(options))
    if options.save:
        options.against.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
        note(f"wrote the figures of {options.file} to {options.against}")
        return DONE
    last = _last(options.against)
    allowed = {kind: getattr(options, f"allow_{kind}") for kind in check.TOLERANCES}
    tolerances = {kind: part for kind, part in allowed.items() if part is not None}
    growths = check.find_growth(last, now, tolerances)
    for name, option in (("time", "--time"), ("errors", "--cases, or a receipt")):
        if now[name] and not last.get(name):
            note(f"{options.against} contains no {name}: run with {option} and --save")
    if options.json:
        print_json({"grown": [growth.to_dict() for growth in growths], "now": now})
    elif growths:
        print("\n".join(map(str, growths)))
    else:
        print_values([("file", _change(last["file"], now["file"]))] + [
            (f"planned memory of {name}", _change(last["arenas"].get(name, arena)["bytes"], arena["bytes"]))
            for name, arena in now["arenas"].items()
        ])  # fmt: skip
    return CHECK_FAILED if growths else DONE


def _times(options: argparse.Namespace) -> dict[str, Any]:
    if options.allow_time is None:
        return {}
    from torchette.runtime import Runtime

    chosen = _method.choose(options)
    program = Runtime.get().load_program(chosen.path)
    return {chosen.info.name: check.shares(program, chosen.info, chosen.inputs, options.n, chosen.threads)}


def _last(path: Path) -> Any:
    if not path.is_file():
        raise ModelNotFoundError(
            f"the file {path} with the earlier figures does not exist", hints=["write them with --save"]
        )
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise UsageError(f"{path} is not JSON; write it with --save") from None


def _change(before: int, after: int) -> str:
    return (
        f"{byte_text(after)}, {after - before:+,} bytes"
        if after != before
        else f"{byte_text(after)}, unchanged"
    )
