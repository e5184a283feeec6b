# SPDX-License-Identifier: BSD-3-Clause
# In: an ETDump, and the record or the file of the program that ran. Out: a table of events. Requires only numpy.
"""Show the content of an ETDump: times of operations, and their source lines

The options are those of ExecuTorch's inspector. An ETRecord provides the operators, the module and the source line of
each event; the .pte file only provides the line. A dump of another program is an error.

examples:
  torchette inspector --etdump_path net.etdp
  torchette inspector --etdump_path net.etdp --etrecord_path net.etrecord --tsv_path net.tsv
  torchette inspector --etdump_path net.etdp --program net.pte --target_time_scale us
"""

from __future__ import annotations

import argparse
import sys
import warnings

from torchette import cli
from torchette.cli import DONE
from torchette.cli._console import note, print_json
from torchette.devtools.inspector import Inspector, TimeScale, compare_results

_SCALES = [scale.value for scale in TimeScale]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--etdump_path", required=True, metavar="FILE", help="the dump (.etdp)")
    parser.add_argument("--etrecord_path", metavar="FILE", help="the record of the program that ran")
    parser.add_argument("--program", metavar="FILE", help="the .pte file that ran, if there is no record")
    parser.add_argument("--method", help="the method that ran (default: the method that matches the dump)")
    parser.add_argument("--debug_buffer_path", metavar="FILE", help="file with the logged values")
    parser.add_argument(
        "--source_time_scale", choices=_SCALES, default="ns", help="unit of the device's clock"
    )
    parser.add_argument("--target_time_scale", choices=_SCALES, default="ms", help="unit of the table")
    parser.add_argument("--tsv_path", metavar="FILE", help="also write the table as tab-separated values")
    parser.add_argument(
        "--compare_results",
        action="store_true",
        help="compare outputs with the reference outputs of the record",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")


def run(options: argparse.Namespace) -> int:
    with warnings.catch_warnings(record=True) as caught:
        inspector = Inspector(
            etdump_path=options.etdump_path,
            etrecord=options.etrecord_path,
            debug_buffer_path=options.debug_buffer_path,
            source_time_scale=TimeScale(options.source_time_scale),
            target_time_scale=TimeScale(options.target_time_scale),
            program=options.program,
            method=options.method,
        )
    for warning in caught:
        note(str(warning.message))
    if options.json:
        print_json([row for row in inspector.table() if row.pop("debug_data") is not None])
    else:
        inspector.print_data_tabular()
    if options.tsv_path:
        inspector.save_data_to_tsv(options.tsv_path)
    if options.compare_results:
        compared = [block for block in inspector.event_blocks if block.reference_output and block.run_output]
        if not compared:
            raise cli.UsageError(
                "there are no outputs to compare: this requires a record with reference outputs, and a dump of a bundled"
                " case with its debug buffer"
            )
        for block in compared:
            compare_results(block.reference_output or [], block.run_output or [])
    return DONE


def main() -> int:
    """Runs the verb as a separate program, under ExecuTorch's module path."""
    return cli.main(["inspector", *sys.argv[1:]])
