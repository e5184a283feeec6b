# SPDX-License-Identifier: BSD-3-Clause
# Compiles a tiny model of each architecture of transformers, runs it, and compares it with eager. Each architecture has its
# own process with a time limit. --page writes a section of benchmarks/transformers.md.
"""`./dev sweep`: every architecture of transformers, tiny, with random weights: captured, compiled, run, compared with eager."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.export import ExportedProgram

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "benchmarks" / "transformers.md"
SECONDS = 300  # limit of one architecture, wall time
MAX_CPU = 60.0  # seconds of lowering
MAX_MEMORY = 4.0  # planned bytes divided by the bytes of the weights, unless eager holds more than the plan
UNSTABLE = 1e-2  # distance of eager from float64, relative: rounding selects other elements, so nothing can be compared
MAX_PLANNED = 1 << 30  # bytes planned for the maximum sizes of the exporter, 1024 for most dimensions
SMALL = 1 << 20  # bytes: smaller plans are not compared with the weights
# Model classes that the tests of transformers' exporters skip for ExecuTorch, as of August 2026.
SKIPPED = Path(__file__).with_name("skipped_classes.txt").read_text(encoding="utf-8").split()
# Batch and tokens of the second call of a program with dynamic sizes. The first ones whose changed sizes are dynamic count.
SECOND_SIZES = ((3, 9), (2, 9), (3, 12))


@dataclass(frozen=True)
class Route:
    """How a model becomes a program.

    Attributes:
        backend: the backend of `torchette.compile`; the exporter always uses XNNPACK.
        exporter: whether ExecutorchExporter of transformers captures and lowers the model, with all sizes dynamic.
        dynamic: whether `torch.export` captures the sizes that depend on the batch and the tokens as dynamic.
        skipped: whether the models are those of `SKIPPED`.
    """

    backend: str = "cpu"
    exporter: bool = False
    dynamic: bool = False
    skipped: bool = False

    def title(self) -> str:
        """Returns the heading of the section of the page."""
        if self.skipped:
            return "classes that transformers does not test with ExecuTorch"
        if self.exporter:
            return "ExecutorchExporter of transformers"
        return f"{self.backend}, dynamic sizes" if self.dynamic else self.backend


@dataclass
class Result:
    """The result of one architecture.

    Attributes:
        name: the model type in transformers.
        stage: "equal"; "unstable" if eager itself depends on rounding; or the stage that failed: "build", "eager", "export", "compile", "run", "compare", "time".
        why: the first line of the error.
        difference: the largest difference from eager, relative to the largest value.
        export: CPU seconds of `torch.export.export`.
        lower: CPU seconds of `torchette.compile` on the exported program, or of the exporter after the export.
        planned: planned bytes.
        weights: bytes of the parameters.
        eager: the peak of the bytes that eager allocates in a call; 0 if the weights already explain `planned`.
        sizes: batch and tokens of the second call; empty if there is none.
        has_maximum_sizes: whether the planned bytes are those of the maximum sizes.
    """

    name: str
    stage: str
    why: str = ""
    difference: float | None = None
    export: float = 0.0
    lower: float = 0.0
    planned: int = 0
    weights: int = 0
    eager: int = 0
    sizes: tuple[int, ...] = ()
    has_maximum_sizes: bool = False

    def is_good(self) -> bool:
        """Returns whether nothing of ours failed: the architecture equals eager within the limits, or is not captured."""
        return self.stage in ("build", "eager", "export", "unstable") or (
            self.stage == "equal" and not self.faults()
        )

    def plans_more_than_weights(self) -> bool:
        """Returns whether planned memory exceeds the limit relative to the weights."""
        return self.planned > max(SMALL, MAX_MEMORY * self.weights)

    def faults(self) -> list[str]:
        """Describes the exceeded limits of an architecture that equals eager."""
        faults = []
        if self.lower > MAX_CPU:
            faults.append(f"{self.lower:.0f} s of lowering")
        if self.has_maximum_sizes:
            if self.planned > MAX_PLANNED:
                faults.append(f"{self.planned / 1e9:.1f} GB of planned memory")
        elif self.plans_more_than_weights() and self.planned > self.eager:
            faults.append(f"planned memory is {self.memory()}")
        return faults

    def memory(self) -> str:
        """Returns planned memory relative to the weights and to eager."""
        ratios = [f"{self.planned / max(1, self.weights):.1f} of the weights"]
        return ", ".join([*ratios, *([f"{self.planned / self.eager:.2f} of eager"] if self.eager else [])])


Run = Callable[[dict[str, Any]], "list[Tensor]"]


def _compiled(
    module: Any,
    inputs: dict[str, Any],
    other: list[dict[str, Any]],
    expected: list[Tensor],
    route: Route,
    result: Result,
    captured: Callable[[], None],
) -> Run:
    """Captures and compiles a module. Returns a function from the arguments of a call to its results.

    Raises:
        ValueError: the captured program, run by torch, differs from `expected`.
    """
    import torch

    import torchette

    args, begin = module.args(inputs), time.process_time()
    shapes = None
    if route.dynamic:
        changed = [zip(args, *(module.args(each) for each in other), strict=True)]
        shapes = (
            tuple(
                {
                    dim: torch.export.Dim.AUTO
                    for dim in range(given[0].dim())
                    if len({each.shape[dim] for each in given}) > 1
                }
                for given in changed[0]
            ),
        )
    program = torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
    result.export = time.process_time() - begin
    captured()
    if route.dynamic:
        _choose_sizes(program, [args, *map(module.args, other)], result, required=True)
    with torch.no_grad():
        _check_captured(program.module()(*args), expected)
    result.stage, begin = "compile", time.process_time()
    compiled = torchette.compile(program, backend=route.backend)
    result.lower, result.planned = time.process_time() - begin, compiled.planned_bytes

    def run(inputs: dict[str, Any]) -> list[Tensor]:
        outputs = compiled(*module.args(inputs))
        return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)

    return run


def _check_captured(outputs: Sequence[Tensor], expected: list[Tensor]) -> None:
    """Checks the results of a captured program, run by torch.

    Raises:
        ValueError: they differ from `expected`.
    """
    from tests.models.architectures import TOLERANCE, difference_of

    difference = max(map(difference_of, outputs, expected), default=0.0)
    if difference > TOLERANCE:
        raise ValueError(f"the captured program, run by torch, is {difference:.1e} from eager")


def _exported(
    module: Any,
    inputs: dict[str, Any],
    other: list[dict[str, Any]],
    expected: list[Tensor],
    result: Result,
    captured: Callable[[], None],
) -> Run:
    """Exports a model with the exporter of transformers, as `_compiled` does."""
    from unittest import mock

    import torch
    from torch.utils import _pytree as pytree
    from transformers.exporters.exporter_executorch import ExecutorchConfig, ExecutorchExporter
    from transformers.exporters.utils import precompute_export_inputs

    from tests.models import tiny

    capture = torch.export.export
    given = dict(inputs)
    precompute_export_inputs(module.model, given)  # the exporter does this in its copy
    begin = 0.0

    def timed(*args: Any, **kwargs: Any) -> ExportedProgram:
        nonlocal begin
        start = time.process_time()
        program = capture(*args, **kwargs)
        result.export = time.process_time() - start
        captured()
        with torch.no_grad():
            _check_captured(tiny.tensors(program.module()(**given)), expected)
        begin, result.stage = time.process_time(), "compile"
        return program

    with mock.patch("torch.export.export", timed):
        exported = ExecutorchExporter().export(
            module.model, dict(inputs), ExecutorchConfig(backend="xnnpack", dynamic=True)
        )
    result.lower = time.process_time() - begin
    result.planned, result.has_maximum_sizes = exported.program.planned_bytes()[0], True
    for each in (inputs, *other):
        precompute_export_inputs(module.model, each)
    leaves = [pytree.tree_leaves([each[name] for name in inputs]) for each in (inputs, *other)]
    fixed = [[leaf for leaf in each if not isinstance(leaf, torch.Tensor)] for each in leaves]
    calls = [
        tuple(leaf for leaf in each if isinstance(leaf, torch.Tensor)) if constants == fixed[0] else None
        for each, constants in zip(leaves, fixed, strict=True)
    ]
    _choose_sizes(exported.program.exported_program(), calls, result, required=False)
    return lambda inputs: tiny.tensors(exported(**inputs))


def _choose_sizes(
    program: ExportedProgram, calls: Sequence[tuple[Tensor, ...] | None], result: Result, *, required: bool
) -> None:
    """Sets the sizes of the second call: those that a program accepts, according to its symbolic sizes and their ranges.

    `calls` are the tensors of the first call and of each possible second call; None if its other arguments differ.

    Raises:
        ValueError: there are none, and the route requires them.
    """
    import torch

    nodes = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    values = [nodes.get(str(name)) for name in program.graph_signature.user_inputs]
    accepted = [value.shape for value in values if isinstance(value, torch.Tensor)]
    first, *others = calls
    for sizes, args in zip(SECOND_SIZES, others, strict=True):
        if first is None or args is None:
            continue
        pairs = [
            (given, now, then)
            for shape, before, after in zip(accepted, first, args, strict=False)
            for given, now, then in zip(shape, before.shape, after.shape, strict=True)
        ]
        changes = any(now != then for _, now, then in pairs)
        ranges = program.range_constraints
        if changes and all(now == then or _accepts(given, then, ranges) for given, now, then in pairs):
            result.sizes = sizes
            return
    if required:
        raise ValueError("torch.export captures the batch and the tokens as fixed sizes")


def _accepts(size: int | torch.SymInt, given: int, ranges: dict[Any, Any]) -> bool:
    """Returns whether a size is symbolic, not fixed by the capture, and has a range that contains `given`."""
    if isinstance(size, int) or size.node.expr.is_number:
        return False
    bounds = ranges.get(size.node.expr)
    return bounds is None or bool(bounds.lower <= given <= bounds.upper)


def _compare(
    module: Any, args: tuple[Tensor, ...], outputs: list[Tensor], expected: list[Tensor], result: Result
) -> None:
    """Compares the results with eager, or both with float64 if their difference exceeds the tolerance.

    Raises:
        ValueError: the results are further from float64 than those of eager.
    """
    import copy

    import torch

    from tests.models import tiny
    from tests.models.architectures import TOLERANCE, difference_of

    if len(outputs) != len(expected):
        raise ValueError(f"{len(outputs)} results, eager has {len(expected)}")
    difference = max(map(difference_of, outputs, expected), default=0.0)
    result.difference = max(difference, result.difference or 0.0)
    if difference <= TOLERANCE:
        return
    with torch.no_grad(), tiny.reversed_ties():
        if max(map(difference_of, module(*args), expected)) > UNSTABLE:
            result.why = "eager depends on the order of equal scores in topk"
            return
    try:
        exact = tiny.exact(copy.deepcopy(module), args)
    except Exception as error:  # an operator has no float64
        raise ValueError(f"{difference:.1e} from eager; no float64: {error}") from error
    ours, eagers = (max(map(difference_of, results, exact)) for results in (outputs, expected))
    if not ours <= 2 * eagers:  # also if ours is NaN
        raise ValueError(f"{ours:.1e} from float64, eager {eagers:.1e}")
    if eagers > UNSTABLE:
        result.why = f"eager is {eagers:.1e} from float64, ours {ours:.1e}"


def measure(kind: str, route: Route = Route(), captured: Callable[[], None] = lambda: None) -> Result:
    """Measures one architecture in this process. Calls `captured` when torch.export has captured it."""
    import warnings

    import torch

    from tests.models import tiny

    if route.exporter:
        from torchette.compat import alias_executorch

        alias_executorch()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    result = Result(kind, "build")
    try:
        model, inputs = tiny.build(kind)
        if getattr(model.config, "return_loss", False):
            model.config.return_loss = False  # the exporter refuses losses
        result.weights = sum(p.numel() * p.element_size() for p in model.parameters())
        result.stage = "eager"
        module = tiny.Positional(model, inputs)
        expected = _eager(module, inputs)
        has_second = route.exporter or route.dynamic
        other = (
            [tiny.inputs(model, model.config.model_type, *sizes) for sizes in SECOND_SIZES]
            if has_second
            else []
        )
        result.stage = "export"
        run = (
            _exported(module, inputs, other, expected, result, captured)
            if route.exporter
            else _compiled(module, inputs, other, expected, route, result, captured)
        )
        result.stage = "run"
        outputs = run(inputs)
        result.stage = "compare"
        _compare(module, module.args(inputs), outputs, expected, result)
        if result.sizes:
            inputs = other[SECOND_SIZES.index(result.sizes)]
            if route.exporter:  # torch.export keeps the values of the first call
                module.set_constants(inputs)
            expected, result.stage = _eager(module, inputs), "run"
            outputs, result.stage = run(inputs), "compare"
            _compare(module, module.args(inputs), outputs, expected, result)
        result.stage = "unstable" if result.why else "equal"
        if result.plans_more_than_weights():
            result.eager = _peak(module, module.args(inputs))
    except NotImplementedError as error:
        result.why = str(error).strip().split("\n", 1)[0][:240]
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        result.why = f"{type(error).__name__}: {text[0]}"[:240]
    return result


def _eager(module: nn.Module, inputs: dict[str, Any]) -> list[Tensor]:
    import torch

    with torch.no_grad():
        expected: list[Tensor] = module(*module.args(inputs))
        again: list[Tensor] = module(*module.args(inputs))
    if not all(bool(output.double().isfinite().all()) for output in expected):
        raise ValueError("a result of eager is not finite")
    if max((float(output.double().abs().max()) for output in expected if output.numel()), default=1.0) < 1e-6:
        raise ValueError("the results of eager vanish")
    if any(not torch.equal(first, second) for first, second in zip(expected, again, strict=True)):
        raise ValueError("eager is random, or keeps state")
    return expected


def _peak(module: nn.Module, args: tuple[Any, ...]) -> int:
    """Returns the peak of the bytes that a call in eager allocates.

    Results and temporary memory of operators count; weights and arguments do not.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        module(*args)
    events = [each for each in profiled.profiler.kineto_results.events() if each.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events), default=0)


def _send(pipe: Any, kind: str, route: Route) -> None:
    pipe.send(measure(kind, route, captured=lambda: pipe.send(None)))


def _child(kind: str, route: Route) -> Result:
    """Measures an architecture in another process, which is killed after `SECONDS`."""
    from tests.models import tiny  # noqa: F401  # the process gets Python's path, which this import extends

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "tests.models.tiny", "transformers.modeling_utils", "torchette"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, kind, route), daemon=True)
    process.start()
    sender.close()
    try:
        end, is_captured = time.monotonic() + SECONDS, False
        while receiver.poll(max(0.0, end - time.monotonic())):
            result: Result | None = receiver.recv()
            if result is not None:
                return result
            is_captured = True
        if is_captured:
            return Result(kind, "time", f"more than {SECONDS} s")
        return Result(kind, "export", f"torch.export needs more than {SECONDS} s")
    except EOFError:
        process.join()
        return Result(kind, "crash", f"exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def table(results: Sequence[Result]) -> str:
    """Returns a line for each architecture that fails or exceeds a limit."""
    lines = ["| architecture | stage | reason |", "|---|---|---|"]
    for result in results:
        if result.stage != "equal":
            lines.append(f"| `{result.name}` | {result.stage} | {result.why.replace('|', '/')} |")
        elif faults := result.faults():
            lines.append(f"| `{result.name}` | limit | {'; '.join(faults)} |")
    return "\n".join(lines)


def explained(results: Sequence[Result]) -> str:
    """Returns a sentence on plans that exceed the limit relative to the weights, but not eager."""
    names = [
        f"`{result.name}` ({result.memory()})"
        for result in results
        if result.stage == "equal" and result.plans_more_than_weights() and result.planned <= result.eager
    ]
    return f"Planned memory is above {MAX_MEMORY:g} times the weights, but at most the peak of eager: {', '.join(names) or 'none'}."


def summary(results: Sequence[Result]) -> str:
    """Returns one line with the counts by stage."""
    counts = Counter(result.stage for result in results)
    captured = [result for result in results if result.stage not in ("build", "eager", "export", "unstable")]
    share = counts["equal"] / max(1, len(captured))
    twice = sum(result.stage == "equal" and bool(result.sizes) for result in results)
    return (
        f"{len(results)} model types: {', '.join(f'{stage} {count}' for stage, count in counts.most_common())};"
        f" {share:.1%} of the {len(captured)} that torch.export captures equal eager"
        + (f"; {twice} also equal it at a second batch or sequence size" if twice else "")
    )


HEAD = f"""# Architectures of transformers

`./dev sweep --page` builds a tiny model of each architecture with random weights, captures it, compiles it, runs it, and compares
it with eager. Each section is one route: the CPU engine, `--dynamic`, `--exporter`, `--skipped`, `--backend xnnpack` (on our
kernels), `--backend vulkan` (on a device in software).

Stages: build: no tiny model, with the reason; eager: nothing to compare, because eager fails, or its results vanish, are not finite
or are random; export: it cannot be captured, or the captured program, run by torch, differs from eager; unstable: eager in float32
is more than {UNSTABLE:g} from float64, because rounding selects other elements, or the order of equal scores decides; the others are
ours. limit: more than {MAX_CPU:.0f} s of lowering, or planned memory above {MAX_MEMORY:.0f} times the weights and above the peak of the bytes that
eager allocates; with the exporter, above {MAX_PLANNED >> 30} GiB for the maximum sizes.
"""


def page(results: Sequence[Result], route: Route = Route(), before: str = "") -> str:
    """Returns the text of benchmarks/transformers.md: `before` with a new section for a route."""
    import transformers

    _, *sections = before.split("\n## ")
    by_title = {section.split("\n", 1)[0]: section.split("\n", 1)[1].strip() for section in sections}
    equal = ", ".join(f"`{result.name}`" for result in results if result.stage == "equal")
    by_title[route.title()] = (
        f"transformers {transformers.__version__}. {summary(results)}.\n\n{table(results)}\n\n{explained(results)}\n\nEqual: {equal}"
    )
    return "\n".join([HEAD, *(f"## {title}\n\n{text}\n" for title, text in sorted(by_title.items()))])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev sweep", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="ARCHITECTURE",
        help="model types or classes of transformers (default: all types)",
    )
    parser.add_argument("--page", action="store_true", help="write the results to benchmarks/transformers.md")
    parser.add_argument("--backend", default="cpu", help="the backend of torchette.compile (default: cpu)")
    parser.add_argument(
        "--exporter", action="store_true", help="lower with ExecutorchExporter of transformers, dynamic sizes"
    )
    parser.add_argument("--dynamic", action="store_true", help="capture batch and tokens as dynamic sizes")
    parser.add_argument(
        "--skipped",
        action="store_true",
        help="--exporter on the model classes that the tests of transformers skip for ExecuTorch",
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes (default: number of processors)"
    )
    options = parser.parse_args(arguments)
    from tests.models import tiny

    route = Route(options.backend, options.exporter or options.skipped, options.dynamic, options.skipped)
    names = options.names or (SKIPPED if options.skipped else tiny.names())
    results: list[Result] = []

    def run(kind: str) -> Result:
        return _child(kind, route)

    with ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(run, names):
            results.append(result)
            more: Any = f"{result.difference:.1e}" if result.difference is not None else ""
            print(
                f"{len(results)}/{len(names)} {result.name}: {result.stage} {more} {result.why} {result.lower:.1f} s",
                *result.sizes,
                flush=True,
            )
    print(table(results))
    print(explained(results))
    print(summary(results))
    if options.page:
        before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        PAGE.write_text(page(results, route, before), encoding="utf-8")
    return 0 if all(map(Result.is_good, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
