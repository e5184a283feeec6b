# SPDX-License-Identifier: BSD-3-Clause
# Writes the figures of the pages as docs/pictures/NAME.svg and NAME-dark.svg. Plans are compiled, errors and times are measured,
# and texts are printed by the command line at that moment. quantization requires torchao and scikit-learn.
"""python docs/site/figures.py [--check] [NAME ...]"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pipeline
import terminal
import torch

import torchette
from torchette.devtools import arena_picture, drawing
from torchette.devtools.device_memory import bills, tenants
from torchette.devtools.inspect import describe
from torchette.devtools.profile import profile, trace_events
from torchette.runtime import Runtime

FOLDER = Path(__file__).resolve().parents[1] / "pictures"
MAX_BYTES = 60_000  # bytes of a figure
RUNS, COLUMNS = 20, 4  # executions, of which the trace shows the last one; columns of its legend

Draw = Callable[[str], str]  # theme, "light" or "dark" -> SVG


class UNet(torch.nn.Module):
    """A segmentation network: skip connections keep the tensors of the first half alive until the second half."""

    def __init__(self, width: int = 8, levels: int = 3) -> None:
        super().__init__()
        sizes = [width << level for level in range(levels)]
        self.down = torch.nn.ModuleList(layer(*pair) for pair in zip([3, *sizes], sizes))
        self.bottom = layer(sizes[-1], sizes[-1])
        self.up = torch.nn.ModuleList(layer(2 * size, max(size // 2, width)) for size in reversed(sizes))
        self.head = torch.nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the logits [N, 2, H, W] of images [N, 3, H, W]."""
        skipped = []
        for down in self.down:
            x = down(x)
            skipped.append(x)
            x = torch.nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up in self.up:
            x = torch.nn.functional.interpolate(x, scale_factor=2.0)
            x = up(torch.cat([x, skipped.pop()], 1))
        return self.head(x)


def layer(inputs: int, outputs: int) -> torch.nn.Module:
    """Returns a convolution and a ReLU."""
    return torch.nn.Sequential(torch.nn.Conv2d(inputs, outputs, 3, padding=1), torch.nn.ReLU())


def compiled_unet() -> tuple[bytes, torch.Tensor]:
    """Returns the network's file, and an image."""
    image = torch.ones(1, 3, 64, 64)
    return bytes(torchette.compile(UNet().eval(), (image,))), image


# ---- a memory plan ----


def memory_plan() -> Draw:
    """Compiles the network and draws its plan, as `torchette memory unet.pte --svg` does."""
    data, _ = compiled_unet()
    (method,), (bill,) = describe(data).methods, bills(data)
    memories = [("planned memory", tenants(method), bill.planned[0])]
    steps = len(method.instructions)
    return lambda theme: arena_picture.svg(
        "The plan of a U-Net", memories, steps, theme=theme, width=760, height=300
    )


# ---- error and size of quantized models ----


class Measured(NamedTuple):
    """A compiled model: its scheme, empty for one of the models that a search measured; bytes; SQNR in decibels."""

    scheme: str
    size: float
    sqnr: float


def quantization() -> Draw:
    """Measures each scheme on a trained network, and the models between float32 and 8da4w that a search compiles."""
    from tests.models import trained
    from torchette.quantization import SCHEMES

    network = trained.train("digits_transformer")
    calibration = [call[0] for call in network.observed]
    points = []
    for scheme in SCHEMES:
        points += measured(network.module, calibration, scheme)
    _, table = torchette.quantize(network.module, calibration, "8da4w", max_drop=0.0)
    points += [Measured("", 1e6 * point.megabytes, point.sqnr) for point in table.points[1:-1]]
    return lambda theme: scatter(points, theme)


def measured(module: torch.nn.Module, calibration: Sequence[torch.Tensor], scheme: str) -> list[Measured]:
    """Quantizes all layers with a scheme, and returns the last row of the table of models."""
    _, table = torchette.quantize(module, calibration, scheme)
    return [Measured(scheme, 1e6 * table.points[-1].megabytes, table.points[-1].sqnr)]


def scatter(points: Sequence[Measured], theme: str) -> str:
    """Draws bytes of the file on the x axis and the SQNR on the y axis."""
    width, height, left, top = 640, 300, 60, 52
    step = 10.0 ** math.floor(math.log10(max(point.size for point in points) / 2))
    right = step * math.ceil(1.05 * max(point.size for point in points) / step)
    upper = 10.0 * math.ceil(1.02 * max(point.sqnr for point in points) / 10)
    elements = [
        drawing.text(left, 20, "Error and size of a quantized transformer", "title"),
        drawing.text(left, 40, "SQNR of the outputs in dB: higher is more exact", "quiet"),
        drawing.rectangle(left, top, width, height),
    ]
    for share in range(int(right // step) + 1):
        x = left + width * share * step / right
        elements += [drawing.tick(x, top, x, top + height)] if 0 < x - left < width else []
        elements.append(
            drawing.text(round(x, 1), top + height + 18, f"{share * step / 1e3:g}", "quiet small middle")
        )
    for decibels in range(0, int(upper) + 1, 20):
        y = top + height * (1 - decibels / upper)
        elements += [drawing.tick(left, y, left + width, y)] if decibels else []
        elements.append(drawing.text(left - 8, round(y + 4, 1), f"{decibels}", "quiet small end"))
    elements.append(drawing.text(left + width, top + height + 36, "KB of the .pte file", "quiet end"))
    smaller = "small: some layers with more than 4 bits"
    elements.append(drawing.text(left + width - 10, top + height - 12, smaller, "quiet small end"))
    lowest: dict[int, float] = {}
    for point in sorted(points, key=lambda point: (bool(point.scheme), -point.sqnr)):
        x, y = left + width * point.size / right, top + height * (1 - point.sqnr / upper)
        about = (
            f"{point.scheme or 'some layers with more bits'}: {point.size:,.0f} bytes, {point.sqnr:.1f} dB"
        )
        elements.append(
            drawing.circle(x, y, 5 if point.scheme else 3, "dot" if point.scheme else "dot faint", about)
        )
        if point.scheme:
            line = y + 4
            column = int(x // 60)
            if column in lowest:  # below the label of a point at nearly the same position
                line = max(line, lowest[column] + 14)
            lowest[column] = line
            elements.append(drawing.text(round(x + 9, 1), round(line, 1), point.scheme))
    faint = ".faint { fill-opacity: .55 }"
    return drawing.document(
        "Error and size of a quantized transformer",
        left + width + 20,
        top + height + 46,
        elements,
        theme=theme,
        style=faint,
    )


# ---- a trace ----


def trace() -> Draw:
    """Profiles the network on one thread and draws the last execution, with the events of `torchette profile --trace`."""
    data, image = compiled_unet()
    plan = describe(data).methods[0]
    method = Runtime.get().load_program(data).load_method("forward", tracing=True, threads=1)
    result = profile(method, plan, [image], RUNS, threads=1)
    events = trace_events(plan, result.events)
    last = max(event["args"]["execution"] for event in events)
    chosen = [event for event in events if event["args"]["execution"] == last]
    return lambda theme: timeline("One execution of a U-Net", chosen, theme)


def timeline(title: str, events: Sequence[dict[str, Any]], theme: str) -> str:
    """Draws the events of a Chrome trace: time to the right, enclosed events below those that enclose them."""
    width, left, top, row = 740, 16, 60, 34
    start = min(event["ts"] for event in events)
    scale = width / (max(event["ts"] + event["dur"] for event in events) - start)
    colours: dict[str, str] = {}
    totals: dict[str, float] = {}
    boxes, ends, depth = [], [], 0
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        while ends and event["ts"] + event["dur"] > ends[-1]:
            ends.pop()
        name = event["name"]
        if ends:
            totals[name] = totals.get(name, 0) + event["dur"]
        kind = colours.setdefault(name, drawing.series(len(colours))) if ends else "mark"
        x, w = left + (event["ts"] - start) * scale, event["dur"] * scale
        y = top + row * len(ends)
        ends.append(event["ts"] + event["dur"])
        depth = max(depth, len(ends))
        boxes.append(drawing.rectangle(x, y, w, row - 4, kind, f"{name}: {event['dur']:.1f} µs"))
        if label := drawing.fitting(short(name), w - 4):
            boxes.append(drawing.text(round(x + w / 2, 1), y + 19, label, "small middle"))
    bottom = top + row * depth
    elements = [drawing.text(left, 24, title, "title")]
    for microseconds in marks(width / scale):
        x = left + microseconds * scale
        elements.append(drawing.tick(x, top - 8, x, bottom))
        elements.append(drawing.text(round(x + 3, 1), top - 8, f"{microseconds:g} µs", "quiet small"))
    legend = []
    for index, (name, total) in enumerate(totals.items()):
        x, y = left + index % COLUMNS * width / COLUMNS, bottom + 8 + index // COLUMNS * 20
        legend.append(drawing.rectangle(x, y, 12, 12, colours[name]))
        legend.append(drawing.text(round(x + 18, 1), y + 10, f"{short(name)} {total:.0f} µs", "quiet small"))
    height = bottom + 12 + 20 * math.ceil(len(totals) / COLUMNS)
    return drawing.document(title, left + width + 16, height, [*elements, *boxes, *legend], theme=theme)


def short(name: str) -> str:
    """Returns an operator's name without its namespace and overload."""
    return name.rpartition("::")[2].partition(".")[0]


def marks(length: float) -> list[float]:
    """Returns about eight round values from 0 to `length`."""
    step = 10.0 ** math.floor(math.log10(length / 8))
    step *= next(factor for factor in (1, 2, 5, 10) if length / (factor * step) <= 10)
    return [step * index for index in range(int(length / step) + 1)]


# ---- the files ----

# Name -> a function that compiles, measures or records, and returns the drawing.
FIGURES: dict[str, Callable[[], Draw]] = {
    "pipeline": lambda: pipeline.picture,
    "memory-plan": memory_plan,
    "quantization": quantization,
    "trace": trace,
    "chat": terminal.chat,
}


def main(arguments: Sequence[str]) -> int:
    """Writes the figures; with --check compares them instead and returns 1 if one differs."""
    names = [name for name in arguments if name != "--check"] or list(FIGURES)
    if unknown := sorted(set(names) - set(FIGURES)):
        sys.exit(f"unknown figures: {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    differs = False
    for name in names:
        draw = FIGURES[name]()
        for theme in drawing.THEMES:
            path = FOLDER / f"{name}{'' if theme == 'light' else f'-{theme}'}.svg"
            text = draw(theme)
            if "--check" in arguments:
                differs |= path.read_text(encoding="utf-8") != text
                continue
            path.write_text(text, encoding="utf-8")
            assert path.stat().st_size < MAX_BYTES, f"{path}: {path.stat().st_size} bytes"
            print(path, path.stat().st_size)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
