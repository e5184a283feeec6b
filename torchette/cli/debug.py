# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file, inputs, and a selection of instructions. Out: their results, as a table and as .npy files. Requires
# only numpy; with the model, the compiler provides the node and module of each instruction.
"""Show or store the results of the instructions of a .pte file

Instructions are selected by index (3, 3-9), operator ("aten::mm*"), line ("model.py:12") or module path ("layers.1.*").
Module paths and names of nodes come from the file, or from --model. With --model, values inside delegates are included:
each delegate is lowered again with its intermediate values as additional outputs, which works for any backend.

examples:
  torchette debug net.pte                                          # all values: shape, range, mean
  torchette debug net.pte --inputs x.npy --dump "layers.1.*"       # .npy files in the folder net.values
  torchette debug net.pte --select "aten::_softmax*" --json
  torchette debug net.pte --model model.py:Net --dump "encoder.*" -o values
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from torchette.cli import DONE, UsageError, _method
from torchette.cli import _source as source
from torchette.cli._console import note, print_json, print_table, statistics
from torchette.devtools import intermediates
from torchette.devtools.inspect import describe, source_line


def arguments(parser: argparse.ArgumentParser) -> None:
    _method.arguments(parser)
    parser.add_argument(
        "--select",
        action="append",
        metavar="PATTERN",
        default=[],
        help="only these instructions; may be repeated",
    )
    parser.add_argument(
        "--dump",
        action="append",
        metavar="PATTERN",
        default=[],
        help="like --select, and store each value as a .npy file",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="folder for the files (default: NAME.values)"
    )
    parser.add_argument("--model", metavar="MODEL", help=source.HELP)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    model_source = source.load(options.model) if options.model else None
    chosen = _method.choose(options, _example(model_source))
    method = _method.load(chosen, tracing=True)
    info = {each.name: each for each in describe(chosen.path).methods}[method.metadata.plan_name]
    inputs = [_contiguous(each) for each in chosen.inputs]
    known = None
    if model_source is not None:
        from torchette.devtools.diff.named import Named

        known = Named(model_source.model, inputs, chosen.path, info, method.metadata)
    instructions = intermediates.select(
        info, [*options.select, *options.dump], known.names if known else None
    )
    folder = None
    if options.dump:
        folder = options.output or chosen.path.with_suffix(".values")
        folder.mkdir(parents=True, exist_ok=True)
    elif options.output:
        raise UsageError("-o requires --dump, such as --dump 'layers.1.*'")
    rows: list[dict[str, Any]] = []

    def take(value: intermediates.Value) -> None:
        more = known.names.get(value.instruction, ()) if known else ()
        module = getattr(value.info, "module", "") or (
            known.modules.get(value.instruction, "") if known else ""
        )
        name = value.name or (str(value.part) if value.part is not None else "")
        row = {
            "instruction": value.instruction,
            "output": value.output,
            "step": value.step,
            "operator": f"{value.info.op}: {name}" if value.part is not None else value.info.op,
            "node": more[0] if more else "",
            "module": module,
            "source": source_line(value.info.source),
        }
        _enter(rows, row, value.value, folder)

    intermediates.intermediates(method, info, inputs, take, instructions)
    if known is not None:
        for row, value in known.inside(method, inputs, instructions, [*options.select, *options.dump]):
            _enter(rows, row, value, folder)
    if folder is not None:
        (folder / "values.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")
    if options.json:
        print_json(rows)
        return DONE
    columns = ["instruction", "operator", "module", "value", "min", "mean", "max", "nan/inf", "source"]
    if not any(row["module"] for row in rows):
        columns.remove("module")
    print_table(
        columns, [[row[name] for name in columns] for row in rows], title=f"{chosen.path}, {info.name}"
    )
    if folder is not None:
        note(f"{sum('file' in row for row in rows)} files in {folder}, described in values.json")
    return DONE


def _example(model_source: source.Source | None) -> list[Any] | None:
    """Returns the model's example inputs as a flat list; None if there is no model, or it has none."""
    if model_source is None:
        return None
    from torch.utils import _pytree as pytree

    inputs = model_source.inputs
    if inputs is None:
        inputs = getattr(model_source.model, "example_inputs", None)
    return None if inputs is None else pytree.tree_leaves(inputs)


def _contiguous(value: object) -> Any:
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value


def _enter(rows: list[dict[str, Any]], row: dict[str, Any], value: Any, folder: Path | None) -> None:
    """Adds the row of a value with its statistics, and stores the value."""
    if isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _enter(rows, row | {"output": row["output"] + number}, item, folder)
        return
    if hasattr(value, "numpy"):
        value = value.float().numpy() if "bfloat16" in str(value.dtype) else value.numpy()
    array = np.asarray(value)
    row["value"] = f"{array.dtype}{list(array.shape)}"
    row |= statistics(array)
    if folder is not None:
        plain = re.sub(r"[^\w.]+", "_", row["node"] or row["operator"])
        turn = sum(
            each["instruction"] == row["instruction"]
            and each["output"] == row["output"]
            and each["operator"] == row["operator"]
            for each in rows
        )
        name = (
            f"{row['instruction']:04}.{plain}"
            + (f".{row['output']}" if row["output"] else "")
            + (f".turn{turn}" if turn else "")
        )
        row["file"] = f"{name}.npy"
        np.save(folder / row["file"], array)
    rows.append(row)
