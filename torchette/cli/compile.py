# SPDX-License-Identifier: BSD-3-Clause
# In: the user's name for a model. Out: a .pte file, or the compiler's intermediate results.
"""Compile a PyTorch model to a .pte file

MODEL is FILE.py:NAME or MODULE:NAME, where NAME is a module, a class without constructor arguments, or a function that
returns a module (or a pair of module and example inputs); or an exported program, FILE.pt2. Inputs come from --inputs,
from that pair, or from an attribute example_inputs of the model or of its file.

examples:
  torchette compile model.py:Net --inputs 1x3x224x224
  torchette compile model.py:Net --inputs 1x16:int64 --inputs mask.npy -o net.pte
  torchette compile program.pt2 -o program.pte --check       compare with eager; exit code 1 if the outputs differ
  torchette compile --list                                   the stages and passes of the compiler
  torchette compile model.py:Net --until edge                print the graph after a stage
  torchette compile model.py:Net --dump graphs               one file with the graph after each pass
  torchette compile model.py:Net --disable fold_constants    without one optimization
  torchette compile model.py:Net --backend xnnpack --fallback    run by XNNPACK, or by portable kernels if it is missing
  torchette compile model.py:Net --dynamic 0:0=batch:1..32   dimension 0 of input 0 is from 1 to 32
  torchette compile model.py:Net --backend xnnpack --quantize int8 --calibration day.npz --calibration night.npz
  torchette compile model.py:Net --quantize int8 --calibration day.npz --max-drop 0.5%   layers that lose more stay in float32
  torchette compile model.py:Net --quantize int8 --calibration random    for size and speed only: the accuracy is meaningless
  torchette compile model.py:Net --quantize int8-dynamic                 needs no calibration
  torchette compile model.py:Net --data-file weights.ptd     store the weights in a separate file
  torchette compile model.py:Net --strip                     do not store source lines
  torchette compile model.py:Net --arena SRAM=64K --arena DRAM      hot tensors in 64 KB, the others elsewhere
  torchette compile model.py:Net --budget ram=64K --budget target=cortex-m4 --fit      tile image layers until the model fits
"""

from __future__ import annotations

import argparse
import copy
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchette.cli import CHECK_FAILED, DONE, UsageError
from torchette.cli import _inputs as inputs
from torchette.cli import _source as source
from torchette.cli._console import note, print_json, print_rows, print_table, print_values
from torchette.cli._parser import complete, output_argument
from torchette.errors import CompileError, did_you_mean, unknown_name
from torchette.files import check_target, missing_file
from torchette.progress import Progress
from torchette.quantization import RECIPES, SCHEMES, scheme_named, schemes_text
from torchette.units import byte_text

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

    from torchette._compile import CompiledModel
    from torchette.capture import DynamicShapes
    from torchette.quantization.table import QuantizationTable

# Tolerances of --check, for float32.
RELATIVE, ABSOLUTE = 1e-4, 1e-5

# Schemes that `torchette.compile` applies itself if all layers are quantized; they also accept a .pt2.
_GRAPH_SCHEMES = ("int8", "int8-dynamic")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help=source.HELP)
    output_argument(parser, "FILE", "the .pte to write (default: named after the model)")
    parser.add_argument("--inputs", action="append", metavar="INPUT", help=inputs.HELP)
    parser.add_argument("--seed", type=int, default=0, help="seed of generated inputs (default: 0)")
    _add_pass_options(parser)
    _add_backend_options(parser)
    _add_quantization_options(parser)
    _add_file_options(parser)
    parser.add_argument("--list", action="store_true", help="print the stages and passes, and exit")
    parser.add_argument("--until", metavar="STAGE", help="print the graph after this stage, and exit")
    parser.add_argument("--report", action="store_true", help="print a report of every pass")
    parser.add_argument(
        "--top",
        type=int,
        metavar="ROWS",
        default=12,
        help="rows in the table of --max-drop, largest error first (default: 12)",
    )
    parser.add_argument(
        "--report-page",
        metavar="FILE.html",
        type=Path,
        help="write the page of `torchette report`, with the reason for the placement of each call",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_pass_options(parser: argparse.ArgumentParser) -> None:
    """Adds options that check, print and disable passes."""
    parser.add_argument(
        "--check",
        action="store_true",
        help="run the result and compare it with eager, after --quantize with the quantized model",
    )
    parser.add_argument(
        "--check-passes", action="store_true", help="compare the graph before and after every pass"
    )
    parser.add_argument(
        "--disable",
        action="append",
        metavar="PASS",
        default=[],
        help="disable this optimization; --list lists them",
    )
    parser.add_argument(
        "--dump", metavar="DIR", type=Path, help="write the graph after every pass into this folder"
    )


def _add_backend_options(parser: argparse.ArgumentParser) -> None:
    """Adds options of backends and dynamic shapes."""
    parser.add_argument(
        "--backend",
        action="append",
        metavar="NAME",
        help="backend: auto (the default: cpu), cpu, portable, xnnpack or another; may be repeated, in order of preference",
    )
    parser.add_argument("--fallback", action="store_true", help="let the file also run without the backend")
    parser.add_argument(
        "--dynamic",
        action="append",
        metavar="INPUT:DIM=NAME[:MIN..MAX]",
        default=[],
        help="a dynamic dimension of the input at this position; dimensions with the same name have the same size",
    )


def _add_quantization_options(parser: argparse.ArgumentParser) -> None:
    """Adds options of schemes and calibration."""
    parser.epilog = schemes_text()
    scheme = parser.add_argument(
        "--quantize",
        metavar="SCHEME",
        help="quantize the model; the schemes are below",
    )
    complete(scheme, RECIPES)
    parser.add_argument(
        "--calibration",
        action="append",
        metavar="FILE",
        default=[],
        help="representative inputs, .npz with one array per input (or .npy for one input); may be repeated. int8 and --max-drop "
        "require them. `random` generates inputs, for estimates of size and speed: the accuracy of the file is meaningless",
    )
    parser.add_argument(
        "--max-drop",
        metavar="DROP",
        help="keep layers in float32 so that the score drops by at most this: 0.01 (absolute) or 0.5%% (of the float32 score). The "
        "score is the fraction of calibration inputs with the same class as float32, if the first output has 2 or more "
        "classes, else 1 - noise / signal",
    )
    parser.add_argument(
        "--resume",
        metavar="FILE",
        help="store the measurements of --max-drop in this file, and reuse those that it contains",
    )
    parser.add_argument(
        "--io",
        choices=("int8", "uint8"),
        help="dtype of quantized inputs and outputs, instead of floats; requires --quantize int8",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16", "auto"),
        default="float32",
        help="of linear layers, convolutions and attention: bfloat16 is about twice as fast on processors that have it; auto: in as many layers "
        "as --tolerance permits (default: float32)",
    )
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        type=float,
        help="for --precision auto: largest difference of an output from float32 on the example inputs, as a share of the largest "
        "absolute value of that output (default: 0.01)",
    )


def _add_file_options(parser: argparse.ArgumentParser) -> None:
    """Adds options of the stored file and the memories of the device."""
    parser.add_argument(
        "--data-file",
        metavar="FILE.ptd",
        type=Path,
        help="write the weights to this file in the folder of the .pte",
    )
    parser.add_argument(
        "--name-lines",
        action="store_true",
        default=True,
        help="store the source line of each instruction (default)",
    )
    parser.add_argument("--strip", dest="name_lines", action="store_false", help="do not store source lines")
    parser.add_argument(
        "--arena",
        action="append",
        metavar="NAME[=SIZE]",
        default=[],
        help="a memory of the device, fastest first; unlimited without a size",
    )
    parser.add_argument(
        "--budget",
        action="append",
        metavar="NAME=VALUE",
        default=[],
        help="limits of the device: ram=64K, flash=256K, target=cortex-m4; compiling fails if the model exceeds them",
    )
    parser.add_argument("--fit", action="store_true", help="transform the model so that it fits the budget")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare with eager on the inputs and on random ones, and store the result with hashes in the file",
    )


def run(options: argparse.Namespace) -> int:
    if options.quantize:
        options.quantize = scheme_named(options.quantize).name
    source.require_torch()
    if options.list:
        return _print_list(options)
    if options.model is None:
        raise UsageError("no model; pass FILE.py:NAME, MODULE:NAME or FILE.pt2")
    if options.until:
        return _print_until(options)
    return _compile(options)


def _edge(options: argparse.Namespace, progress: Progress | None = None) -> Any:
    from torchette.exir import EdgeCompileConfig

    return EdgeCompileConfig(
        disable_passes=options.disable,
        check_passes=options.check_passes,
        dump=options.dump,
        progress=progress,
    )


def _pipeline(options: argparse.Namespace) -> Any:
    """Returns the stages and passes for these options."""
    from torchette._compile import partitioners_of
    from torchette.exir import pipeline

    partitioners = [one for name in options.backend or ("auto",) for one in partitioners_of(name)]
    return pipeline.build(_edge(options), partitioners=partitioners)


def _print_list(options: argparse.Namespace) -> int:
    """Prints the stages and passes, and the passes that --disable accepts."""
    from torchette.exir import pipeline

    stages = _pipeline(options)
    shown = {pipeline.pass_name(run) for stage in stages.stages for run in stage.passes}
    print(stages)
    print(f"\n--disable PASS accepts: {', '.join(sorted(shown & pipeline.optional_passes()))}")
    return DONE


def _print_until(options: argparse.Namespace) -> int:
    from torchette.exir import pipeline

    stages = _pipeline(options)
    names = [stage.name for stage in stages.stages]
    if options.until not in names:
        raise UsageError(
            f"--until: {unknown_name('stage', options.until, names)}",
            hints=[f"stages: {', '.join(names)}"],
        )
    program = source.exported(options.model, options.inputs, seed=options.seed)
    print(pipeline.text(stages.until(options.until).run(program)), end="")
    return DONE


def _compile(options: argparse.Namespace) -> int:
    import torchette

    if options.io and options.check:
        raise UsageError(
            "--check compares floats and cannot be combined with --io; --verify compares with the quantized model"
        )
    if options.precision != "float32" and (options.check or options.verify):
        raise UsageError(
            "--check and --verify expect float32's results and cannot be combined with --precision; the file contains the measured "
            "error"
        )
    _check_calibration(options)
    path = options.output or Path(f"{_stem(options.model)}.pte")
    config, device = _config(options, path), _device(options)
    _pipeline(options)  # raises for unknown backends and passes
    if options.report_page:
        check_target(options.report_page)
    model_source = source.load(options.model)
    example = source.tensors(model_source, options.inputs, seed=options.seed)
    dynamic_shapes = _dynamic_shapes(options.dynamic, model_source.model, example)
    start = time.perf_counter()
    module, table = model_source.model, None
    quantizing: dict[str, Any] = {}
    if _is_graph_scheme(options):
        module, quantizing = _prepare_quantization(options, model_source.model, example, dynamic_shapes)
    elif not options.quantize:
        quantizing = {"calibration": _calibration(options)}
    else:
        module, table = _quantize_layers(options, model_source.model, example, dynamic_shapes)
    with Progress() as progress:
        model = torchette.compile(
            module,
            example,
            dynamic_shapes=dynamic_shapes,
            backend=options.backend or "auto",
            **quantizing,
            io=options.io,
            precision=options.precision,
            tolerance=options.tolerance,
            edge=_edge(options, progress),
            config=config,
            device=device,
            verify=options.verify,
        )
    model.save(path)
    if options.report_page:
        from torchette.devtools.report import write_report

        write_report(path, options.report_page, placements=model.delegations)
    result = {
        "file": str(path),
        "bytes": path.stat().st_size,
        "planned_bytes": model.planned_bytes,
        "lower_bound_bytes": model.lower_bound_bytes,
        "arenas": {name: model.arenas(name) for name in model.program.methods} if options.arena else {},
        "seconds": round(time.perf_counter() - start, 3),
    }
    if table is not None:
        result["quantization"] = table.to_dict()
    if remark := _accuracy_remark(options):
        result["calibration"] = remark
    equal = True
    if options.check:
        result["compared_with"] = "the quantized model" if options.quantize else "eager"
        equal, result["largest_difference"] = _compare(
            model, None if options.quantize else model_source.model, example
        )
    if options.json:
        print_json(result)
    else:
        if table is not None:
            _print_quantization(table, options.top)
        _print(result, model.report() if options.report else None)
    if not equal and not options.quantize:
        note(
            f"the compiled model differs from eager by more than {RELATIVE:g} of the value plus {ABSOLUTE:g}"
        )
    return DONE if equal else CHECK_FAILED


def _print_quantization(table: QuantizationTable, top: int) -> None:
    """Prints the verdict, the first rows of the measurements, and the remarks."""
    print(table.verdict, end="\n\n")
    models, layers = table.tables()
    print_table(models.columns, models.rows, title=models.title)
    print()
    print_rows(layers.columns, layers.rows, top, title=layers.title)
    print()
    for remark in table.remarks:
        print(remark, end="\n\n")


def _print(result: dict[str, Any], report: object) -> None:
    if report is not None:
        print(report, end="\n\n")
    planned, bound = result["planned_bytes"], result["lower_bound_bytes"]
    rows = [
        ("file", f"{result['file']}, {byte_text(result['bytes'])}"),
        ("planned memory", f"{planned:,} bytes (lower bound: {bound:,})"),
        *(
            (f"  {arena}", f"{size:,} bytes (memory {number} of {method})")
            for method, arenas in result["arenas"].items()
            for number, (arena, size) in enumerate(arenas.items(), 1)
        ),
        ("compiled in", f"{result['seconds']:.2f} s"),
    ]
    if "calibration" in result:
        rows.append(("calibration", result["calibration"]))
    if "largest_difference" in result:
        rows.append(
            ("largest difference", f"{result['largest_difference']:.2g} from {result['compared_with']}")
        )
    print_values(rows)


def _compare(
    model: CompiledModel, original: torch.nn.Module | ExportedProgram | None, example: tuple[Any, ...]
) -> tuple[bool, float]:
    """Returns whether the compiled model equals the original, and the largest difference of an element. None selects the
    quantized model that was compiled, because rounding makes the original differ."""
    import torch
    from torch.utils import _pytree

    if original is None:
        try:
            return True, model.verify(RELATIVE, ABSOLUTE)
        except CompileError as error:
            note(str(error))
            return False, float("inf")
    eager = copy.deepcopy(original) if isinstance(original, torch.nn.Module) else original.module()
    with torch.inference_mode():
        expected = _pytree.tree_leaves(eager(*copy.deepcopy(example)))
    actual = _pytree.tree_leaves(model(*example))
    equal, largest = len(expected) == len(actual), 0.0
    for want, have in zip(expected, actual):
        if not isinstance(want, torch.Tensor):
            equal &= want == have
            continue
        have = torch.as_tensor(have)
        if want.shape != have.shape or want.dtype != have.dtype:
            return False, float("inf")
        equal &= torch.allclose(have, want, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
        if want.numel():
            largest = max(largest, (have.double() - want.double()).abs().max().item())
    return equal, largest


def _config(options: argparse.Namespace, path: Path) -> Any:
    from torchette.exir import ExecutorchBackendConfig

    weights = options.data_file
    if weights is not None and (weights.suffix != ".ptd" or weights.parent not in (Path("."), path.parent)):
        raise UsageError(f"--data-file {weights}: expected a .ptd file in the folder of {path}")
    return ExecutorchBackendConfig(
        portable_fallback=options.fallback,
        source_lines=options.name_lines,
        external_constants=False if weights is None else lambda node: weights.stem,
    )


def _device(options: argparse.Namespace) -> Any:
    """Converts ``--arena SRAM=64K --arena DRAM --budget ram=64K --fit`` to a `Device`."""
    import torchette

    arenas = {
        name: size if equals else None for name, equals, size in (a.partition("=") for a in options.arena)
    }
    budget = {}
    for text in options.budget:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--budget {text}: the value is missing, such as --budget ram=64K")
        if name not in ("ram", "flash", "target"):
            near = did_you_mean(name, ("ram", "flash", "target"))
            raise UsageError(f"--budget {text}: unknown limit {name!r}; expected ram, flash or target{near}")
        budget[name] = value
    return torchette.Device(**budget, arenas=arenas, fit=options.fit)


def _is_graph_scheme(options: argparse.Namespace) -> bool:
    """Whether the whole model is quantized in its graph, without a choice of layers."""
    return options.max_drop is None and options.quantize in _GRAPH_SCHEMES


def _prepare_quantization(
    options: argparse.Namespace,
    model: torch.nn.Module | ExportedProgram,
    example: tuple[Any, ...],
    dynamic_shapes: DynamicShapes,
) -> tuple[Any, dict[str, Any]]:
    """Returns the captured model, and the arguments of `torchette.compile` that quantize it."""
    from torchette.capture import capture
    from torchette.capture.calibration import RANDOM, calls_of
    from torchette.quantization.recipes import quantizer_for
    from torchette.quantization.table import wide_remark

    torch = source.require_torch()
    program: Any = model
    if isinstance(model, torch.nn.Module):
        program = capture(model, example, {}, dynamic_shapes, "forward")
    calibration = RANDOM if _is_random(options) else _calibration(options)
    calls, _ = calls_of(calibration, program.example_inputs or (example, {}))
    with torch.no_grad():
        quantizer, wide = quantizer_for(options.quantize, program, calls)
    if wide.layers or wide.sums:
        note(wide_remark({**wide.layers, **wide.sums}))
    return program, {"quantizer": quantizer, "calibration": calibration}


def _quantize_layers(
    options: argparse.Namespace, model: object, example: tuple[Any, ...], dynamic_shapes: DynamicShapes
) -> tuple[Any, Any]:
    """Returns the model with quantized layers, and the table of `torchette.quantize`."""
    import torch

    import torchette

    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"--max-drop and --quantize {options.quantize} require a model in a .py file, got {options.model}"
        )
    return torchette.quantize(
        model,
        _calibration(options) or [example],
        options.quantize,
        max_drop=options.max_drop,
        resume=options.resume,
        dynamic_shapes=dynamic_shapes,
        backend=options.backend or "auto",
    )


def _is_random(options: argparse.Namespace) -> bool:
    """Whether the user asked for random calibration inputs."""
    return "random" in options.calibration


def _check_calibration(options: argparse.Namespace) -> None:
    """Raises UsageError if a scheme or a limit requires representative inputs and there are none."""
    if options.max_drop is not None and not options.quantize:
        raise UsageError("--max-drop requires --quantize")
    if _is_random(options) and len(options.calibration) > 1:
        raise UsageError("--calibration random cannot be combined with files")
    if options.max_drop is not None and (_is_random(options) or not options.calibration):
        raise UsageError(
            "--max-drop measures the accuracy and requires representative inputs",
            hints=["--calibration FILE.npz, repeated for each sample"],
        )
    if options.quantize and SCHEMES[options.quantize].is_static and not options.calibration:
        raise UsageError(
            f"--quantize {options.quantize} requires representative inputs to observe their ranges",
            hints=[
                "--calibration FILE.npz, repeated for each sample; a few dozen samples are often enough",
                "--quantize int8-dynamic, or another scheme without calibration",
                "--calibration random, for estimates of size and speed: the accuracy of the file is meaningless",
            ],
        )


def _accuracy_remark(options: argparse.Namespace) -> str | None:
    """Returns a remark on the accuracy if the model was quantized without representative inputs; otherwise None."""
    if not options.quantize or (options.calibration and not _is_random(options)):
        return None
    if SCHEMES[options.quantize].is_static:
        from torchette.capture.calibration import RANDOM_REMARK

        return RANDOM_REMARK
    return (
        None
        if options.quantize in _GRAPH_SCHEMES
        else "the errors in the table are measured on the example inputs"
    )


def _calibration(options: argparse.Namespace) -> Any:
    """Returns a tuple of tensors for each file; None without files."""
    torch = source.require_torch()
    if _is_random(options):
        return None
    for file in options.calibration:
        if not Path(file).is_file():
            raise missing_file(file)
    files = map(Path, options.calibration)
    return [tuple(map(torch.from_numpy, inputs.from_file(file))) for file in files] or None


_DYNAMIC = re.compile(r"(\d+):(\d+)=(\w+)(?::(\d+)\.\.(\d+))?")


def _dynamic_shapes(texts: list[str], model: object, example: tuple[Any, ...]) -> Any:
    """Converts ``["0:0=batch:1..32"]`` to the form of `torch.export.export`."""
    torch = source.require_torch()
    if not texts:
        return None
    if not isinstance(model, torch.nn.Module):
        raise UsageError("--dynamic: the dynamic shapes of an exported program are fixed")
    dims: dict[str, Any] = {}
    shapes: list[dict[int, Any]] = [{} for _ in example]
    for text in texts:
        match = _DYNAMIC.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--dynamic {text}: expected INPUT:DIM=NAME or INPUT:DIM=NAME:MIN..MAX, such as 0:0=batch:1..32"
            )
        number, dim, name = int(match[1]), int(match[2]), match[3]
        if number >= len(example) or dim >= getattr(example[number], "ndim", 0):
            raise UsageError(f"--dynamic {text}: the model has no dimension {dim} of input {number}")
        if name not in dims:
            least, most = (None, None) if match[4] is None else (int(match[4]), int(match[5]))
            if least is not None and most is not None and least > most:
                raise UsageError(f"--dynamic {text}: {least} is more than {most}")
            dims[name] = torch.export.Dim(name, min=least, max=most)
        shapes[number][dim] = dims[name]
    return tuple(shapes)


def _stem(model: str) -> str:
    """Returns the base name of the output: ``nets/model.py:Net`` -> ``net``, ``program.pt2`` -> ``program``."""
    if model.endswith(".pt2"):
        return Path(model).stem
    return model.rpartition(":")[2].rpartition(".")[2].lower()
