# SPDX-License-Identifier: BSD-3-Clause
# Writes tests/runtime/torchette_files, the files of this release: python -m tests.runtime.write_torchette_files
# Run it once per release, before the tag. Never write the files of earlier releases again.
"""Stores the files of this release with their inputs and the results of eager mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export.experimental import _export_forward_backward

import torchette
from torchette.devtools import bundle
from torchette.exir import ExecutorchBackendConfig, to_edge

FOLDER = Path(__file__).parent / "torchette_files"


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 5),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(dim=-1)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(x)
        return self.count * 2


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(16, 32), nn.LayerNorm(32), nn.Linear(32, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(tokens))
        return self.out(nn.functional.scaled_dot_product_attention(x, x, x))


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(x), labels)


def record(values: Any) -> list[dict[str, Any]]:
    return [{"dtype": str(v.dtype).removeprefix("torch."), "value": v.tolist()} for v in values]


def main() -> None:
    """Writes all files."""
    torch.manual_seed(0)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "expected.json"
    expected = json.loads(path.read_text()) if path.exists() else {}

    def store(name: str, program: Any, inputs: tuple, *calls: torch.Tensor) -> None:
        stem = f"{name}-{torchette.__version__}"
        program.save(FOLDER / f"{stem}.pte")
        expected[stem] = {"inputs": record(inputs), "outputs": [record([result]) for result in calls]}

    image, pixels = Image().eval(), (torch.rand(1, 3, 4, 4),)
    with torch.no_grad():
        for backend in ("portable", "cpu", "xnnpack"):
            store(
                f"image_{backend}", torchette.compile(image, pixels, backend=backend), pixels, image(*pixels)
            )
        text, tokens = Text().eval(), (torch.arange(6)[None] % 16,)
        for backend in ("portable", "cpu"):
            store(f"text_{backend}", torchette.compile(text, tokens, backend=backend), tokens, text(*tokens))
        one = (torch.ones(2),)
        store("state", torchette.compile(Counter(), one), one, torch.full((2,), 4.0), torch.full((2,), 6.0))
    layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    rows = (torch.rand(2, 64),)
    for recipe in ("int8", "8da4w", "int4-weight-only"):
        quantized, _ = torchette.quantize(layers, [rows[0]], recipe)
        store(f"layers_{recipe}", torchette.compile(quantized, rows), rows, quantized(*rows).detach())
    loss, batch = Loss(), (torch.rand(4, 2), torch.tensor([0, 1, 2, 0]))
    joint = to_edge(_export_forward_backward(torch.export.export(loss, batch)))
    program = joint.to_executorch(ExecutorchBackendConfig(external_mutable_weights=True))
    store("training", program, batch, loss(*batch).detach())
    program.write_tensor_data_to_file(FOLDER)
    (FOLDER / "_default_external_constant.ptd").rename(FOLDER / f"training-{torchette.__version__}.ptd")
    suite = bundle.MethodTestSuite("forward", [bundle.MethodTestCase(pixels, (image(*pixels).detach(),))])
    file = bundle.BundledProgram(
        (FOLDER / f"image_portable-{torchette.__version__}.pte").read_bytes(), [suite]
    )
    (FOLDER / f"image-{torchette.__version__}.bpte").write_bytes(file.serialize())
    path.write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
