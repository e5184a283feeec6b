# SPDX-License-Identifier: BSD-3-Clause
# Weights are packed once, by the compiler. Loading copies no weights. Processes share the pages. Methods and programs share the bytes.

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import torchette
from torchette.backends.engine.pack import cut_last_panel, pack_linear, restore_last_panel, unpack_linear
from torchette.exir import ExecutorchBackendConfig
from torchette.format import ptd, pte

ROOT = Path(__file__).parents[3]


class Branches(nn.Module):
    """A linear layer, a convolution and a depthwise convolution. The outputs of each do not fill its last panel."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 250)
        self.convolution = nn.Conv2d(4, 30, 3)
        self.depthwise = nn.Conv2d(30, 30, 3, groups=30)

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x), self.depthwise(self.convolution(image))


# Bytes of its packed weights: full panels and a partial panel.
PACKED = [250 * 64 * 4, 30 * 9 * 4 * 4, (30 * 9 * 4 + 15) // 16 * 16]


@pytest.fixture(scope="module")
def branches() -> nn.Module:
    torch.manual_seed(0)
    return Branches().eval()


def inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 64), torch.randn(1, 4, 8 + rows, 8)


BIASES = [1008, 128, 128]  # each with the padding after it


def constants(program: bytes) -> list[int]:
    """Returns the sizes in bytes of the tensors in a program, with padding, the largest first."""
    file = pte.read(program)
    offsets = file.program.constant_segment.offsets if file.program.constant_segment else []
    sizes = [len(file.constant(index)) for index in range(1, len(offsets))]
    return sorted((-(-size // 16) * 16 for size in sizes), reverse=True)


def stored(path: Path) -> list[int]:
    """Returns the sizes in bytes of the tensors in a data file, the largest first. A tensor with several names counts once."""
    parts = {bytes(item.data) for item in ptd.read(path.read_bytes()).values()}
    return sorted((-(-len(part) // 16) * 16 for part in parts), reverse=True)


def test_file_contains_only_packed_weights(branches: nn.Module) -> None:
    model = torchette.compile(branches, inputs(1), backend="cpu")
    assert constants(bytes(model)) == PACKED + BIASES
    x, image = inputs(1)
    for ours, theirs in zip(model(x, image), branches(x, image), strict=True):
        torch.testing.assert_close(torch.as_tensor(ours), theirs, rtol=1e-4, atol=1e-5)


class Ends(nn.Module):
    """Layers with last panels of every width."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(depth, outputs, bias=outputs % 3 > 0) for outputs in _ENDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer(x) for layer in self.linear], 1)


_ENDS = (1, 2, 3, 5, 7, 8, 9, 14, 15, 16, 17, 23, 24, 31, 33, 40, 90)


# Accumulates the depth in parts of at most 384. Reads rows near the end of a panel from a copy.
@pytest.mark.parametrize("depth", [1, 2, 14, 386, 1000])
def test_partial_panels_of_linear_layers(depth: int) -> None:
    torch.manual_seed(depth)
    module = Ends(depth).eval()
    for rows in (1, 5, 13):
        x = torch.randn(rows, depth)
        ours = torchette.compile(module, (x,), backend="cpu")(x)
        torch.testing.assert_close(torch.as_tensor(ours), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outputs", [3, 8, 17, 24, 40])
def test_partial_panels_of_convolutions(outputs: int) -> None:
    torch.manual_seed(outputs)
    module = nn.Sequential(
        nn.Conv2d(3, outputs, 3, stride=2),
        nn.Conv2d(outputs, outputs, 3, padding=1, groups=outputs),
        nn.ReLU6(),
        nn.Conv2d(outputs, 2 * outputs, 1),
        nn.Conv2d(2 * outputs, 2 * outputs, 3, groups=2),
        nn.Hardswish(),
    ).eval()
    x = torch.randn(2, 3, 21, 21)
    model = torchette.compile(module, (x,), backend="cpu")
    torch.testing.assert_close(torch.as_tensor(model(x)), module(x), rtol=1e-4, atol=1e-5)
    assert model.nbytes < 1.02 * sum(weight.nbytes for weight in module.parameters()) + 4096


def test_panels_and_their_reverse() -> None:
    for outputs in _ENDS:
        weight = torch.randn(outputs, 7)
        packed = pack_linear(weight)
        cut = cut_last_panel(packed, outputs)
        assert cut.numel() == weight.numel()
        assert torch.equal(restore_last_panel(cut, 3), packed)
        assert torch.equal(unpack_linear(packed, outputs), weight)


class Tied(nn.Module):
    """A language model with a tied embedding."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, 48)
        self.norm = nn.RMSNorm(48, eps=1e-6)
        self.head = nn.Linear(48, words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(tokens)))


@pytest.mark.parametrize("words", [64, 99])
def test_tied_weight_is_stored_once(words: int) -> None:
    torch.manual_seed(words)
    module, tokens = Tied(words).eval(), torch.tensor([[0, 15, 16, words - 1, 3]])
    model = torchette.compile(module, (tokens,), backend="cpu")
    assert constants(bytes(model))[0] == words * 48 * 4 and sum(constants(bytes(model))[1:]) < 1000
    torch.testing.assert_close(torch.as_tensor(model(tokens)), module(tokens), rtol=1e-4, atol=1e-5)
    for wrong in (words, -1):
        with pytest.raises(torchette.TorchetteError, match=f"index {wrong} is out of range for {words} rows"):
            model(torch.full((1, 5), wrong))


def test_methods_share_packed_weights(branches: nn.Module) -> None:
    one = torchette.compile(branches, inputs(1), backend="cpu")
    both = torchette.compile(
        {"prefill": (branches, inputs(7)), "decode": (branches, inputs(1))}, backend="cpu"
    )
    assert constants(bytes(both)) == constants(bytes(one))
    for name, rows in (("prefill", 7), ("decode", 1)):
        x, image = inputs(rows)
        ours = both.methods[name](x, image)[0]
        torch.testing.assert_close(torch.as_tensor(ours), branches.linear(x), rtol=1e-4, atol=1e-5)


def test_packed_weights_in_a_data_file(branches: nn.Module, tmp_path: Path) -> None:
    """Two methods of a program and another program find the same bytes, which the file stores once."""
    config = ExecutorchBackendConfig(external_constants=True)
    both = torchette.compile(
        {"prefill": (branches, inputs(7)), "decode": (branches, inputs(1))}, backend="cpu", config=config
    )
    both.save(tmp_path / "both.pte")
    (data,) = tmp_path.glob("*.ptd")
    before = data.read_bytes()
    assert stored(data) == PACKED + BIASES
    assert constants((tmp_path / "both.pte").read_bytes()) == []
    single = torchette.compile(branches, inputs(3), backend="cpu", config=config)
    single.save(tmp_path / "single.pte")
    assert data.read_bytes() == before, "another program of the same model stores other bytes"
    x, image = inputs(3)
    ours = torchette.load(tmp_path / "single.pte", data_files=[data])(x, image)
    torch.testing.assert_close(torch.as_tensor(ours[0]), branches.linear(x), rtol=1e-4, atol=1e-5)


def test_quantized_weights_are_shared(tmp_path: Path) -> None:
    """8-bit weights, and 4-bit weights in groups: stored once for two methods, and in a data file that another program reads."""
    configs = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval()
    types = (torch.int8, configs.PerAxis(0)), (torch.int4, configs.PerGroup(32))
    for layer, (dtype, granularity) in zip((module[0], module[2]), types, strict=True):
        config = configs.IntxWeightOnlyConfig(weight_dtype=dtype, granularity=granularity)
        configs.quantize_(layer, config)
    x = {"prefill": torch.randn(7, 64), "decode": torch.randn(1, 64)}
    methods = {name: (module, (rows,)) for name, rows in x.items()}
    one, both = torchette.compile(module, (x["decode"],)), torchette.compile(methods)
    assert constants(bytes(both)) == constants(bytes(one))
    assert sum(constants(bytes(one))) < 64 * 96 + 96 * 32 // 2 + 4 * (96 + 96 + 32 * 3 + 32) + 512
    config = ExecutorchBackendConfig(external_constants=True)
    torchette.compile(methods, config=config).save(tmp_path / "both.pte")
    (data,) = tmp_path.glob("*.ptd")
    before = data.read_bytes()
    torchette.compile(module, (x["decode"],), config=config).save(tmp_path / "one.pte")
    assert data.read_bytes() == before, "another program of the same model stores other bytes"
    loaded = torchette.load(tmp_path / "one.pte", data_files=[data])
    torch.testing.assert_close(
        torch.as_tensor(loaded(x["decode"])), module(x["decode"]), rtol=1e-4, atol=1e-5
    )


LARGE = 2048

MEASURE = """
import sys
import numpy as np
from torchette.runtime import Runtime

def resident() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def of_file() -> tuple[int, int]:
    mapped = own = 0
    inside = False
    for line in open("/proc/self/smaps"):
        key, value = line.split()[:2]
        if "-" in key:
            inside = line.rstrip().endswith(sys.argv[1])
        elif inside:
            mapped += int(value) * 1024 if key == "Rss:" else 0
            own += int(value) * 1024 if key in ("Private_Dirty:", "Anonymous:") else 0
    return mapped, own

before = resident()
method = Runtime.get().load_program(sys.argv[1]).load_method("forward")
print(*of_file(), flush=True)
method.execute([np.ones((1, int(sys.argv[2])), np.float32)])
print(*of_file(), resident() - before, flush=True)
sys.stdin.read()
"""


def test_loading_copies_nothing_and_processes_share_the_pages(tmp_path: Path) -> None:
    path = tmp_path / "large.pte"
    torchette.compile(
        nn.Linear(LARGE, LARGE, bias=False).eval(), (torch.ones(1, LARGE),), backend="cpu"
    ).save(path)
    weights = LARGE * LARGE * 4
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MEASURE, str(path), str(LARGE)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            loaded, own = map(int, process.stdout.readline().split())
            mapped, private, grown = map(int, process.stdout.readline().split())
            assert loaded < weights / 4 and own == 0, "loading brings the weights into memory"
            # All weights were read in the pages of the file. None was copied to private memory of the process.
            assert mapped >= weights and private == 0
            assert grown < 1.5 * weights
        # Both processes map the same physical pages of the file.
        for process in processes:
            assert _shared_clean(process.pid, path) >= weights
    finally:
        for process in processes:
            process.communicate()
    assert all(process.returncode == 0 for process in processes)


def _shared_clean(pid: int, path: Path) -> int:
    """Returns the bytes of a file that both a process and another process have mapped."""
    total, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Shared_Clean:"):
            total += int(line.split()[1]) * 1024
    return total
