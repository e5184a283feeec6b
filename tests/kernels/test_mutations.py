# SPDX-License-Identifier: BSD-3-Clause
# Small models that use most kernels, compiled by both compilers, mutated thousands of times and run under sanitizers.
# No mutated file may cause a kernel to access memory outside of its tensors.

from __future__ import annotations

import os
import subprocess
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchette
from tests.building import built
from tests.exir.graphs import Function
from tests.extension.test_data_files import compiled_by_executorch, with_moved_weights
from tests.runtime.fields import fields

FILES = Path(__file__).parents[1] / "runtime" / "executorch_files"
MUTATIONS = int(os.environ.get("TORCHETTE_MUTATIONS", "5000"))

pytestmark = [pytest.mark.safety, pytest.mark.xdist_group("sanitized")]


def images(x: Tensor, w: Tensor, d: Tensor, t: Tensor) -> Tensor:
    x = F.relu6(F.conv2d(x, w, stride=2, padding=1))
    x = F.conv2d(x, d, padding=1, groups=x.shape[1])
    x = F.batch_norm(x, x.mean((0, 2, 3)), torch.ones(4) + x.var((0, 2, 3)), training=False)
    x = F.max_pool2d(x, 2) + F.avg_pool2d(x, 2)
    x = F.hardswish(F.conv_transpose2d(x, t, stride=2))
    return F.pad(F.adaptive_avg_pool2d(x, 1), (1, 2, 0, 1), value=0.5)


def attention(x: Tensor, w: Tensor, mask: Tensor) -> Tensor:
    y = F.layer_norm(x, (8,))
    q, k, v = F.linear(y, w).view(1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    y = x + y.transpose(1, 2).reshape(1, 5, 8)
    return torch.cat([F.gelu(y), F.silu(y), torch.tanh(y)], -1)[:, 1:, ::2].contiguous()


def indices(table: Tensor, i: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    e = F.embedding(i, table)
    x = x.index_put((i,), torch.ones(4, 3))
    return (
        e,
        x.gather(0, i.unsqueeze(1)),
        x.index_select(1, i[:2]),
        x[i, 1],
        x.scatter_add(0, i.unsqueeze(1), x),
    )


def numbers(a: Tensor, b: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    c = torch.where(a > b, a, b * 2).clamp(-1, 1) / 3
    return (
        c.sum(1), c.amax(0), c.argmax(1), c.var(1), c.cumsum(0), a.pow(2).rsqrt(), (n % 3).float(), n // 2 + n,
        c.any(1), torch.stack([a, b]).flip(0).repeat(1, 2, 1), c.split([1, 2])[1], torch.softmax(c, -1), a.exp().log(),
        torch.full_like(n, 3), n.to(torch.uint8), torch.topk(a, 2)[0],
    )  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(3, 4, batch_first=True)
        self.register_buffer("state", torch.full((1, 1, 4), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y, state = self.cell(x, self.state)
        self.state.copy_(state)
        return y


MODELS: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    "images": (
        Function(images),
        (torch.ones(1, 3, 9, 8), torch.ones(4, 3, 3, 3), torch.ones(4, 1, 3, 3), torch.ones(4, 2, 2, 2)),
    ),
    "attention": (Function(attention), (torch.ones(1, 5, 8), torch.ones(24, 8), torch.ones(5, 5) > 0)),
    "indices": (Function(indices), (torch.ones(6, 3), torch.tensor([0, 1, 2, 0]), torch.ones(4, 3))),
    "numbers": (
        Function(numbers),
        (torch.ones(3, 4), torch.zeros(3, 4), torch.arange(12).reshape(3, 4)),
    ),
    "recurrent": (Recurrent().requires_grad_(False), (torch.ones(1, 2, 3),)),
}


@pytest.fixture(scope="module")
def mutate() -> Path:
    return built("torchette_mutate_models", tree="asan")


@pytest.mark.parametrize("compiler", ["torchette", "executorch"])
@pytest.mark.parametrize("name", MODELS)
def test_kernels_stay_inside_of_their_tensors(name: str, compiler: str, mutate: Path, tmp_path: Path) -> None:
    exir = pytest.importorskip(f"{compiler}.exir")
    module, args = MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module.eval(), args)
        contents = exir.to_edge(program).to_executorch().buffer
    run_mutations(mutate, contents, tmp_path)


def perception(convolution: nn.Module, depthwise: nn.Module, split: nn.Module, x: Tensor) -> Tensor:
    y = F.max_pool2d(F.hardswish(convolution(x)), 2)
    y = (y + depthwise(y)).flatten(2).transpose(1, 2)
    q, k, v = split(F.layer_norm(y, (20,))).chunk(3, -1)
    return y + F.scaled_dot_product_attention(q, k, v, is_causal=True) * F.gelu(q)


def test_the_engine_stays_inside_of_its_panels(mutate: Path, tmp_path: Path) -> None:
    first = nn.Sequential(nn.Conv2d(3, 20, 3), nn.Conv2d(20, 20, 1))
    layers = nn.ModuleList([first, nn.Conv2d(20, 20, 3, padding=1, groups=20), nn.Linear(20, 60)])
    module = Function(lambda x: perception(*layers, x))
    module.layers = layers.requires_grad_(False)
    program = torchette.compile(module.eval(), (torch.ones(1, 3, 8, 9),), backend="cpu")
    operators = {
        name.removeprefix("cpu::") for name in program.program.operators() if name.startswith("cpu::")
    }
    expected = {
        "planar_convolution.out",
        "convolution.out",
        "depthwise.out",
        "linear.out",
        "max_pool.out",
        "attention.out",
        "layer_norm.out",
    }
    assert expected <= operators
    run_mutations(mutate, bytes(program), tmp_path)


@pytest.mark.parametrize("path", sorted(FILES.glob("*.pte")), ids=lambda path: path.stem)
def test_files_of_earlier_releases(path: Path, mutate: Path, tmp_path: Path) -> None:
    data = [file for file in [path.with_suffix(".ptd")] if file.exists()]
    run_mutations(mutate, path.read_bytes(), tmp_path, *data)


@pytest.mark.parametrize("compiler", ["torchette", "executorch"])
def test_data_files_and_the_programs_that_use_them(compiler: str, mutate: Path, tmp_path: Path) -> None:
    write = (
        with_moved_weights
        if compiler == "torchette"
        else partial(compiled_by_executorch, external_constants=True)
    )
    program, data = write(tmp_path)
    run_mutations(mutate, data.read_bytes(), tmp_path, program)
    run_mutations(mutate, program.read_bytes(), tmp_path, data)


def run_mutations(mutate: Path, contents: bytes, folder: Path, *more_args: Path) -> None:
    file, places = folder / "mutated", folder / "fields"
    file.write_bytes(contents)
    places.write_text(fields(contents))
    done = subprocess.run(
        [mutate, file, str(MUTATIONS), "11", places, *more_args], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
