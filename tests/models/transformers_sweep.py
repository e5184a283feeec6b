# SPDX-License-Identifier: BSD-3-Clause
# Compiles a tiny model of each architecture of transformers, runs it, and compares it with eager. Each architecture has its
# own process with a time limit. --page writes benchmarks/transformers.md.
"""`./dev sweep`: every architecture of transformers, tiny, with random weights: captured, compiled, run, compared with eager."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "benchmarks" / "transformers.md"
SECONDS = 300  # limit of one architecture, wall time
MAX_CPU = 60.0  # seconds of lowering
MAX_MEMORY = 4.0  # planned bytes divided by the bytes of the weights
UNSTABLE = 1e-2  # distance of eager from float64, relative: rounding selects other elements, so nothing can be compared
SMALL = 1 << 20  # bytes: smaller plans are not compared with the weights


@dataclass
class Result:
    """The result of one architecture.

    Attributes:
        name: the model type in transformers.
        stage: "equal"; "unstable" if eager itself depends on rounding; or the stage that failed: "build", "eager", "export", "compile", "run", "compare", "time".
        why: the first line of the error.
        difference: the largest difference from eager, relative to the largest value.
        export: CPU seconds of `torch.export.export`.
        lower: CPU seconds of `torchette.compile` on the exported program.
        planned: planned bytes.
        weights: bytes of the parameters.
    """

    name: str
    stage: str
    why: str = ""
    difference: float | None = None
    export: float = 0.0
    lower: float = 0.0
    planned: int = 0
    weights: int = 0

    def is_good(self) -> bool:
        """Returns whether nothing of ours failed: the architecture equals eager within the limits, or is not captured."""
        return self.stage in ("build", "eager", "export", "unstable") or (
            self.stage == "equal" and not self.faults()
        )

    def faults(self) -> list[str]:
        """Describes the exceeded limits of an architecture that equals eager."""
        faults = []
        if self.lower > MAX_CPU:
            faults.append(f"{self.lower:.0f} s of lowering")
        if self.planned > max(SMALL, MAX_MEMORY * self.weights):
            faults.append(f"planned memory is {self.planned / self.weights:.1f} of the weights")
        return faults


def measure(kind: str, backend: str) -> Result:
    """Measures one architecture in this process."""
    import warnings

    import torch

    import torchette
    from tests.models import tiny
    from tests.models.architectures import TOLERANCE, difference_of

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    result = Result(kind, "build")
    try:
        model, inputs = tiny.build(kind)
        result.weights = sum(p.numel() * p.element_size() for p in model.parameters())
        result.stage = "eager"
        module = tiny.Positional(model, inputs)
        args = module.args(inputs)
        with torch.no_grad():
            expected = module(*args)
        if not all(bool(output.double().isfinite().all()) for output in expected):
            raise ValueError("a result of eager is not finite")
        result.stage = "export"
        begin = time.process_time()
        program = torch.export.export(module, args, strict=False)
        result.export = time.process_time() - begin
        result.stage, begin = "compile", time.process_time()
        compiled = torchette.compile(program, backend=backend)
        result.lower = time.process_time() - begin
        result.planned = compiled.planned_bytes
        result.stage = "run"
        outputs = compiled(*args)
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        result.stage = "compare"
        result.difference = max(map(difference_of, outputs, expected), default=0.0)
        if not result.difference <= TOLERANCE:
            try:
                exact = tiny.exact(module, args)
            except Exception as error:  # an operator has no float64
                raise ValueError(f"{result.difference:.1e} from eager; no float64: {error}") from error
            ours, eagers = (max(map(difference_of, results, exact)) for results in (outputs, expected))
            if not ours <= 2 * eagers:  # also if ours is NaN
                raise ValueError(f"{ours:.1e} from float64, eager {eagers:.1e}")
            if eagers > UNSTABLE:
                result.why = f"eager is {eagers:.1e} from float64, ours {ours:.1e}"
        result.stage = "unstable" if result.why else "equal"
    except NotImplementedError as error:
        result.why = str(error).strip().split("\n", 1)[0][:240]
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        result.why = f"{type(error).__name__}: {text[0]}"[:240]
    return result


def _send(pipe: Any, kind: str, backend: str) -> None:
    pipe.send(measure(kind, backend))


def _child(kind: str, backend: str) -> Result:
    """Measures an architecture in another process, which is killed after `SECONDS`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "tests.models.tiny", "transformers.modeling_utils", "torchette"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, kind, backend), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS):
            return Result(kind, "time", f"more than {SECONDS} s")
        result: Result = receiver.recv()
        return result
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


def summary(results: Sequence[Result]) -> str:
    """Returns one line with the counts by stage."""
    counts = Counter(result.stage for result in results)
    captured = [result for result in results if result.stage not in ("build", "eager", "export", "unstable")]
    share = counts["equal"] / max(1, len(captured))
    return (
        f"{len(results)} architectures: {', '.join(f'{stage} {count}' for stage, count in counts.most_common())};"
        f" {share:.1%} of the {len(captured)} that torch.export captures equal eager"
    )


def page(results: Sequence[Result]) -> str:
    """Returns the text of benchmarks/transformers.md."""
    import transformers

    equal = ", ".join(f"`{result.name}`" for result in results if result.stage == "equal")
    return "\n".join(
        [
            "# Architectures of transformers",
            "",
            f"`./dev sweep --page` builds a tiny model of each architecture of transformers {transformers.__version__} with random weights,",
            "captures it with `torch.export`, compiles it for the CPU engine, runs it, and compares it with eager.",
            "",
            f"{summary(results)}.",
            "",
            table(results),
            "",
            "Stages: build and eager: no tiny configuration or inputs are known; export: `torch.export` cannot capture it; unstable:",
            f"eager in float32 is more than {UNSTABLE:g} from float64, since rounding selects other elements; the others",
            f"are ours. limit: more than {MAX_CPU:.0f} s of lowering, or planned memory above {MAX_MEMORY:.0f} times the weights.",
            "",
            f"Equal: {equal}",
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev sweep", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="ARCHITECTURE", help="model types of transformers (default: all)"
    )
    parser.add_argument("--page", action="store_true", help="write the results to benchmarks/transformers.md")
    parser.add_argument("--backend", default="cpu", help="the backend of torchette.compile (default: cpu)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes (default: number of processors)"
    )
    options = parser.parse_args(arguments)
    from tests.models import tiny

    names = options.names or tiny.names()
    results: list[Result] = []

    def run(kind: str) -> Result:
        return _child(kind, options.backend)

    with ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(run, names):
            results.append(result)
            more: Any = f"{result.difference:.1e}" if result.difference is not None else result.why
            print(
                f"{len(results)}/{len(names)} {result.name}: {result.stage} {more} {result.lower:.1f} s",
                flush=True,
            )
    print(table(results))
    print(summary(results))
    if options.page:
        PAGE.write_text(page(results), encoding="utf-8")
    return 0 if all(map(Result.is_good, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
