# SPDX-License-Identifier: BSD-3-Clause
# Writes the files of this folder with the installed executorch package: pip install --no-deps --target DIR executorch==RELEASE;
# PYTHONPATH=DIR FLATC_EXECUTABLE=DIR/executorch/data/bin/flatc python write.py RELEASE OUT.
# Releases 1.0.0 to 1.5.0 ran with torch 2.13. A release without a file writes the same bytes as the release before it.
# expected.json has the inputs and the results of eager mode. layers_external is the model `layers` with its weights in a data
# file; layers_bundled is `layers` with its test case in a bundled program.

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.b(self.norm(torch.relu(self.a(x)))), -1)


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 3, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.max_pool2d(nn.functional.hardtanh(self.conv(x)), 2)
        return nn.functional.adaptive_avg_pool2d(y, 1).flatten(1)


class Dynamic(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = torch.cat([x, y]) * 2
        return z.reshape(-1), z.sum(0), z.permute(1, 0) + x.shape[0]


class State(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "total", torch.zeros(3)
        )  # by default, these releases store no other initial value

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(x)
        return self.total * 2


class Lists(nn.Module):
    def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
        a, b = x.split([1, 2])
        y = x[i, :]
        return torch.stack([a[0], b[1]]), y, torch.where(y > 3, y, -y), x.argmax(1), i // 2


class Branch(nn.Module):
    def forward(self, flag: Tensor, x: Tensor) -> Tensor:
        return torch.cond(flag, lambda x: x + 1, lambda x: x * 2, (x,))


class Loop(nn.Module):
    def forward(self, xs: Tensor, y: Tensor) -> Tensor:
        from torch._higher_order_ops.map import map as torch_map

        return torch_map(lambda x, y: x * y + 1, xs, y)


def numbers(*sizes: int) -> Tensor:
    count = int(torch.tensor(sizes).prod())
    return (torch.arange(count) % 7 - 3).float().reshape(sizes)


rows = {0: torch.export.Dim("rows", max=4)}
MODELS: dict[str, tuple[nn.Module, tuple[Tensor, ...], Any]] = {
    "layers": (Layers(), (numbers(2, 4),), None),
    "image": (Image(), (numbers(1, 2, 8, 8),), None),
    "dynamic": (Dynamic(), (numbers(3, 2), numbers(3, 2)), (rows, rows)),
    "state": (State(), (numbers(3),), None),
    "lists": (Lists(), (numbers(3, 4), torch.tensor([2, 0, 1, 2])), None),
    "branch": (Branch(), (torch.tensor(True), numbers(2, 3)), None),
    "loop": (Loop(), (numbers(3, 2), numbers(2)), None),
}


def record(tensors: Any) -> list[dict[str, Any]]:
    tensors = tensors if isinstance(tensors, tuple) else (tensors,)
    return [{"dtype": str(t.dtype).removeprefix("torch."), "value": t.tolist()} for t in tensors]


def main(release: str, out: Path) -> None:
    from executorch.exir import EdgeCompileConfig, to_edge

    expected = {}
    for name, (model, args, shapes) in MODELS.items():
        program = torch.export.export(model.eval(), args, dynamic_shapes=shapes, strict=True)
        edge = to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False))
        (out / f"{name}-{release}.pte").write_bytes(edge.to_executorch().buffer)
        with torch.no_grad():
            results = [record(model(*args)) for _ in range(2)]
        expected[name] = {"inputs": record(args), "outputs": results}
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    write_other_formats(release, out)


def write_other_formats(release: str, out: Path) -> None:
    from executorch.devtools.bundled_program import config, core
    from executorch.devtools.bundled_program.serialize import serialize_from_bundled_program_to_flatbuffer
    from executorch.exir import ExecutorchBackendConfig, to_edge

    model, args, _ = MODELS["layers"]
    edge = to_edge(torch.export.export(model.eval(), args, strict=True))
    program = edge.to_executorch(ExecutorchBackendConfig(external_constants=True))
    (out / f"layers_external-{release}.pte").write_bytes(program.buffer)
    program.write_tensor_data_to_file(str(out))
    (data,) = out.glob("_default*.ptd")
    data.rename(out / f"layers_external-{release}.ptd")
    with torch.no_grad():
        case = config.MethodTestCase(inputs=list(args), expected_outputs=[model(*args)])
    edge = to_edge(torch.export.export(model.eval(), args, strict=True))
    bundle = core.BundledProgram(edge.to_executorch(), [config.MethodTestSuite("forward", [case])])
    (out / f"layers_bundled-{release}.bpte").write_bytes(serialize_from_bundled_program_to_flatbuffer(bundle))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
