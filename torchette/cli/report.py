# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: an HTML page about it, and its graph for other viewers.
"""Show a .pte file as one HTML page: graph, memory, time, sizes

The page is one file that any browser opens without a network. It shows the graph by modules, with the content of
delegates, planned memory over time, the bytes of the file by module, scales of quantized tensors, and the placement of
each node. With --profile, the program runs first, and the page shows the time of each operation. The page contains
source lines of the model if its Python files are found: in the current folder, on Python's import path, or in
--sources.

examples:
  torchette report net.pte -o report.html
  torchette report net.pte -o report.html --profile 50
  torchette report net.pte -o report.html --etdump device.etdp    # times of a run on a device
  torchette report net.pte -o report.html --sources ../models
  torchette report net.pte --model-explorer graph.json    # for Google's Model Explorer
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchette.cli import DONE, UsageError, _method
from torchette.cli._console import note
from torchette.cli._parser import output_argument
from torchette.files import missing_folder
from torchette.units import byte_text


def arguments(parser: argparse.ArgumentParser) -> None:
    _method.arguments(parser)
    output_argument(parser, "FILE.html", "the page to write")
    parser.add_argument(
        "--profile",
        type=int,
        metavar="RUNS",
        help="run the method this many times and show the time of each operation",
    )
    parser.add_argument(
        "--etdump",
        type=Path,
        metavar="FILE.etdp",
        help="show the times of an ETDump from another machine",
    )
    parser.add_argument(
        "--sources",
        action="append",
        type=Path,
        metavar="DIR",
        help="a folder with the model's Python files; may be repeated",
    )
    parser.add_argument(
        "--model-explorer", type=Path, metavar="FILE.json", help="write the graph for Google's Model Explorer"
    )


def run(options: argparse.Namespace) -> int:
    from torchette.devtools import model_explorer, profile
    from torchette.devtools.inspect import describe
    from torchette.devtools.report import write_report
    from torchette.devtools.report.contents import Times
    from torchette.format import pte

    if not options.output and not options.model_explorer:
        raise UsageError("no output; pass -o report.html or --model-explorer graph.json")
    if options.profile is not None and options.profile < 1:
        raise UsageError(f"--profile must be at least 1, got {options.profile}")
    for folder in options.sources or ():
        if not folder.is_dir():
            raise missing_folder(folder)
    file = pte.load_file(options.file)
    times: dict[str, Times] = {}
    if options.profile and options.etdump:
        raise UsageError("--profile and --etdump cannot be combined")
    if options.etdump:
        from torchette.format import etdump

        info = _method.named(describe(file).methods, options)
        times[info.name] = profile.operations(info, profile.events_of(etdump.load(options.etdump), info))
    if options.profile:
        chosen = _method.choose(options)
        method = _method.load(chosen, tracing=True)
        times[chosen.info.name] = profile.profile(
            method, chosen.info, chosen.inputs, options.profile, threads=chosen.threads
        )
    if options.output:
        path = write_report(
            file, options.output, name=options.file.name, times=times, source_folders=options.sources
        )
        note(f"{path}: {byte_text(path.stat().st_size)}")
    if options.model_explorer:
        model_explorer.write(file, options.model_explorer, name=options.file.stem, times=times)
        note(f"{options.model_explorer}: {byte_text(options.model_explorer.stat().st_size)}")
    return DONE
