# SPDX-License-Identifier: BSD-3-Clause
# In: a bundled program, and a command that runs executor_runner on the device. Out: the comparison of its outputs.
"""Run a bundled program on a device through any command

The outputs are compared on this machine. --on is the prefix of the command that runs executor_runner. The runner writes
the outputs to its standard output; with --copy it reads the bundle from standard input, so that nothing is stored on
the device. The exit code is 1 if an output differs or a case fails.

examples:
  torchette validate net.bpte                                              on this machine
  torchette validate net.bpte --on "ssh pi" --copy
  torchette validate net.bpte --on qemu-aarch64 --runner build/arm/executor_runner
  torchette validate net.bpte --on "adb shell" --runner /data/local/tmp/executor_runner --there /data/local/tmp/net.bpte
  torchette validate net.bpte --rtol 1e-2 --atol 1e-3 --json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchette.cli import CHECK_FAILED, DONE, UsageError, _remote
from torchette.cli._console import print_json, print_table
from torchette.devtools.validate import COLUMNS, validate


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="MODEL.bpte", type=Path, help="a bundled program")
    _remote.arguments(parser, "the bundle")
    parser.add_argument(
        "--there", metavar="PATH", help="path of the bundle on the device (default: the path on this machine)"
    )
    parser.add_argument("--rtol", type=float, default=1e-4, help="relative tolerance (1e-4)")
    parser.add_argument("--atol", type=float, default=1e-5, help="absolute tolerance (1e-5)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    if options.copy and options.there:
        raise UsageError("--there cannot be combined with --copy, which stores no file on the device")
    results = validate(
        options.file,
        _remote.command(options),
        copy=options.copy,
        there=options.there,
        rtol=options.rtol,
        atol=options.atol,
        timeout=options.timeout,
    )
    if not results:
        raise UsageError(f"{options.file} has no cases")
    fits = all(result.fits for result in results)
    if options.json:
        print_json({"fits": fits, "outputs": [result.to_dict() for result in results]})
    else:
        title = f"{options.file}{f' on {options.on}' if options.on else ''}"
        print_table(COLUMNS, [result.row() for result in results], title=title)
    return DONE if fits else CHECK_FAILED
