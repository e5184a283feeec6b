# SPDX-License-Identifier: BSD-3-Clause
# In: a model, a .pte file or both, and inputs. Out: the first operator that departs from torch. Imports torch in `run`.
"""Find the first operator of a .pte file that departs from torch

Each instruction runs on this machine's runtime, or with --on on another machine (`executor_runner --etdump_path`).
torch's operator runs on the same input values, so that a fault is reported where it occurs: kernel, backend, compiler
pass, weight, layout, memory plan or quantization parameter. With MODEL (as for `torchette compile`), each instruction
is also compared with the compiler's graph of the model, and that graph with eager. Inputs come from the model or
--inputs; in addition, other ranges, zeros, infinities and the corners of dynamic shapes are compared. Rounding errors
are not faults. The exit code is 1 if an operator departs.

examples:
  torchette diff net.pte                               # compare the kernels of this machine with torch
  torchette diff model.py:Net net.pte                  # also compare the file with its model
  torchette diff model.py:Net net.pte --inputs photo.npy --no-search
  torchette diff model.py:Net --backend xnnpack        # without a file: compile the model first
  torchette diff model.py:Net net.pte --aten           # run on torch's kernels: checks only the file and its memory plan
  torchette diff net.pte --on "ssh pi" --copy          # the kernels of another machine
  torchette diff net.pte --on qemu-aarch64 --runner made/arm/bin/executor_runner
  torchette diff model.py:Net net.pte --sign           # if nothing departs, store a receipt in the file
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
        help="backend to lower to, if the file's backend is not known",
    )
    parser.add_argument(
        "--data-file",
        action="append",
        default=[],
        type=Path,
        metavar="FILE.ptd",
        help="weights of the file; may be repeated",
    )
    parser.add_argument(
        "--no-search", dest="search", action="store_false", help="compare only on the given inputs"
    )
    parser.add_argument(
        "--aten",
        action="store_true",
        help="run the file on torch's kernels, which excludes faults of kernels",
    )
    _remote.arguments(parser, "the program")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print a row for each stage and each operator"
    )
    parser.add_argument(
        "--top", type=int, metavar="ROWS", help="print the operators with the largest differences"
    )
    parser.add_argument("--sign", action="store_true", help="store a receipt in the file, if nothing departs")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    torch = source.require_torch()
    from torchette.devtools.diff import compare

    model_text, file = _what(options.what)
    if options.on and file is None:
        raise UsageError("--on requires a file: pass MODEL.pte")
    if options.aten and (options.on or file is None):
        raise UsageError("--aten runs MODEL.pte in this process: pass MODEL.pte, and omit --on")
    if options.sign and file is None:
        raise UsageError("--sign requires a file: pass MODEL.pte")
    model, example = None, None
    if model_text is not None:
        model_source = source.load(model_text)
        model, example = model_source.model, model_source.inputs
        if options.inputs or (file is None and isinstance(model, torch.nn.Module)):
            example = source.tensors(model_source, options.inputs, seed=options.seed)
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
        raise UsageError("--on cannot be combined with --data-file: the weights must be in the program")
    names = [method.name for method in describe(file).methods]
    method = options.method or ("forward" if "forward" in names or len(names) != 1 else names[0])
    if options.aten:
        program = runtime.Runtime.get(aten=True).load_program(file, data_files=options.data_file)
        return program.load_method(method, tracing=True)
    command = _remote.command(options)
    return Remote(file.read_bytes(), method, command, copy=options.copy, timeout=options.timeout)


def _sign(file: Path | None, result: DiffResult, options: argparse.Namespace) -> None:
    """Adds the comparison to the receipt of the file; other entries are kept. Replaces the file atomically."""
    from torchette import receipt

    assert file is not None
    is_random = result.random_inputs or any(
        not text.endswith((".npy", ".npz")) for text in options.inputs or ()
    )
    known = receipt.read(file)
    facts = {**(known.facts if known else {}), **result.receipt_entries(options.seed if is_random else None)}
    part = file.with_name(file.name + ".part")
    part.write_bytes(receipt.sign(file.read_bytes(), facts, options.data_file))
    part.replace(file)
    note(f"stored a receipt of this comparison in {file}")


def _what(words: list[str]) -> tuple[str | None, Path | None]:
    files = [word for word in words if word.endswith(".pte")]
    models = [word for word in words if not word.endswith(".pte")]
    if len(files) > 1 or len(models) > 1:
        raise UsageError("expected at most one MODEL and one file; `torchette pte-diff` compares two files")
    return models[0] if models else None, Path(files[0]) if files else None


def _print(result: DiffResult, options: argparse.Namespace) -> None:
    """Prints the verdict, then the requested rows."""
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
