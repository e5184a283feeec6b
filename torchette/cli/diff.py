# SPDX-License-Identifier: BSD-3-Clause
# In: a model, a .pte file or both, and inputs. Out: which operator departs first from torch. Imports torch when it runs.
"""Find the operator of a .pte file that departs from torch first

Each instruction runs on this machine's runtime, or where --on leads (`executor_runner --etdump_path` there), and torch's operator on the very values that it has read, so that a fault
is named where it arises: kernel, backend, compiler pass, weight, layout, memory plan or quantization parameter. With
MODEL (as for `torchette compile`) each instruction is also held against what the compiler makes of the model, and that
against eager. Inputs are those of the model or of --inputs; others are tried besides: other ranges, zeros, infinities, the
corners of dynamic shapes. What rounding can explain is no fault. The exit code is 1 if anything departs.

examples:
  torchette diff net.pte                               # the kernels of this machine, against torch
  torchette diff model.py:Net net.pte                  # and the file against its model
  torchette diff model.py:Net net.pte --inputs photo.npy --no-search
  torchette diff model.py:Net --backend xnnpack        # without a file: what the compiler makes now
  torchette diff model.py:Net net.pte --aten           # on torch's kernels: the file and its plan alone
  torchette diff net.pte --on "ssh pi" --copy          # the kernels of another machine
  torchette diff net.pte --on qemu-aarch64 --runner made/arm/bin/executor_runner
  torchette diff model.py:Net net.pte --sign           # if nothing departs, say so in the file
  torchette diff model.py:Net net.pte --json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchette.cli import CHECK_FAILED, DONE, UsageError, _method, _remote
from torchette.cli import _inputs as inputs
from torchette.cli import _source as source
from torchette.cli._console import note, print_json, print_rows, print_table
from torchette.progress import Progress

if TYPE_CHECKING:
    from torchette.devtools.diff.result import DiffResult


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="+", metavar="MODEL | MODEL.pte", help="a model, its file, or both in this order"
    )
    parser.add_argument("--method", help="the method of the file (default: forward, or the only one)")
    parser.add_argument("--inputs", action="append", metavar="INPUT", help=inputs.HELP)
    parser.add_argument("--seed", type=int, default=0, help="seed of generated inputs (default: 0)")
    parser.add_argument(
        "--backend",
        action="append",
        metavar="NAME",
        help="what the file is lowered to, if its name does not say",
    )
    parser.add_argument(
        "--data-file",
        action="append",
        default=[],
        type=Path,
        metavar="FILE.ptd",
        help="weights beside the file; repeat",
    )
    parser.add_argument(
        "--no-search", dest="search", action="store_false", help="only the inputs that are given"
    )
    parser.add_argument(
        "--aten", action="store_true", help="run the file on torch's kernels, which are no fault then"
    )
    _remote.arguments(parser, "the program")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print a row for each stage and each operator"
    )
    parser.add_argument(
        "--top", type=int, metavar="ROWS", help="print the rows of the operators furthest off"
    )
    parser.add_argument("--sign", action="store_true", help="store a receipt in the file, if nothing departs")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    torch = source.require_torch()
    from torchette.devtools.diff import compare

    model_text, file = _what(options.what)
    if options.on and file is None:
        raise UsageError("--on: which file shall run there? Name MODEL.pte")
    if options.aten and (options.on or file is None):
        raise UsageError("--aten runs MODEL.pte in this process: name it, and leave --on out")
    if options.sign and file is None:
        raise UsageError("--sign: which file? Name MODEL.pte")
    model, example = None, None
    if model_text is not None:
        found = source.load(model_text)
        model, example = found.model, found.inputs
        if options.inputs or (file is None and isinstance(model, torch.nn.Module)):
            example = source.tensors(found, options.inputs, seed=options.seed)
    elif options.inputs:
        example = tuple(inputs.from_texts(options.inputs, seed=options.seed))
    with Progress() as progress:
        result = compare(
            model,
            file,
            example,
            method=options.method,
            backend=options.backend,
            search=options.search,
            data_files=options.data_file,
            device=_device(file, options) if options.on or options.aten else None,
            seed=options.seed,
            progress=progress,
        )
    if result.random_inputs:
        _method.note_random(file, result.random_inputs)
    if options.json:
        print_json(result.to_dict())
    else:
        _print(result, options)
    if options.sign and result.equal:
        _sign(file, result, options)
    return DONE if result.equal else CHECK_FAILED


def _device(file: Path | None, options: argparse.Namespace) -> Any:
    from torchette import runtime
    from torchette.devtools.diff.remote import Remote
    from torchette.devtools.inspect import describe

    assert file is not None
    if options.data_file and options.on:
        raise UsageError("--on does not go with --data-file: the program goes there with its weights inside")
    names = [method.name for method in describe(file).methods]
    method = options.method or ("forward" if "forward" in names or len(names) != 1 else names[0])
    if options.aten:
        program = runtime.Runtime.get(aten=True).load_program(file, data_files=options.data_file)
        return program.load_method(method, tracing=True)
    command = _remote.command(options)
    return Remote(file.read_bytes(), method, command, copy=options.copy, timeout=options.timeout)


def _sign(file: Path | None, result: DiffResult, options: argparse.Namespace) -> None:
    """Stores what was compared in the file, which is replaced at once and whole; what its receipt said before stays."""
    from torchette import receipt

    assert file is not None
    is_random = result.random_inputs or any(
        not text.endswith((".npy", ".npz")) for text in options.inputs or ()
    )
    known = receipt.read(file)
    facts = {**(known.facts if known else {}), **result.facts(options.seed if is_random else None)}
    part = file.with_name(file.name + ".part")
    part.write_bytes(receipt.sign(file.read_bytes(), facts, options.data_file))
    part.replace(file)
    note(f"{file} has a receipt of this comparison")


def _what(words: list[str]) -> tuple[str | None, Path | None]:
    files = [word for word in words if word.endswith(".pte")]
    models = [word for word in words if not word.endswith(".pte")]
    if len(files) > 1 or len(models) > 1:
        raise UsageError("there is one MODEL and one file; `torchette pte-diff` compares two files")
    return models[0] if models else None, Path(files[0]) if files else None


def _print(result: DiffResult, options: argparse.Namespace) -> None:
    """The verdict; then the rows that are asked for."""
    print(result.summary())
    for name, text in result.inputs.items():
        if text != "compared":
            print(f"not compared on {name}: {text}")
    if options.top is not None:
        result.operators.sort(key=lambda row: (row.verdict != "departs", row.numbers.snr))
    elif not options.verbose:
        note("-v prints a row for each stage and each instruction")
        return
    *stages, operators = result.tables()
    for table in stages:
        print()
        print_table(table.columns, table.rows, title=table.title)
    print()
    print_rows(operators.columns, operators.rows, options.top, title=operators.title)
