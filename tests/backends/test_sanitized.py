# SPDX-License-Identifier: BSD-3-Clause
# Changes payloads of every backend of the build tens of thousands of times, and runs the conformance suite, under AddressSanitizer
# and UndefinedBehaviorSanitizer. If the XNNPACK library was built, AddressSanitizer instruments it.
"""With any payload, a backend accesses only valid memory and frees all memory."""

from __future__ import annotations

import os
import struct
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import export

from tests.backends.test_xnnpack_kernels import program_of_graph
from tests.backends.vulkan.device import needs_device
from tests.backends.vulkan.networks import networks
from tests.building import built
from tests.kernels.sanitized import python
from tests.runtime.fields import Walk
from torchette.backends.null import NullPartitioner
from torchette.backends.vulkan import VulkanPartitioner
from torchette.backends.vulkan import payload as vulkan
from torchette.backends.xnnpack import (
    XnnpackPartitioner,
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torchette.backends.xnnpack.payload import SCHEMA, Payload
from torchette.errors import DelegationWarning
from torchette.exir import to_edge_transform_and_lower

MUTATIONS = int(os.environ.get("TORCHETTE_MUTATIONS", "5000"))

pytestmark = [pytest.mark.safety, pytest.mark.xdist_group("sanitized")]


class _Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(3, 4))

    def forward(self, x):
        return (x + x) * (x + self.weight)


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.MaxPool2d(2), nn.Conv2d(4, 3, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2),
    )  # fmt: skip


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.split, self.join = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        y = self.split(self.norm(x)).reshape(1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        q, k, v = y[0], y[1], y[2]
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return nn.functional.gelu(x + self.join(y.transpose(1, 2).reshape(1, 5, 8)))[:, 1:]


def _linear() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))


class _Others(nn.Module):
    """Operators without an integer kernel, or with a table of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.spread, self.mix = nn.ConvTranspose2d(2, 4, 3, 2), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        y = self.spread(x).relu()
        y = torch.cat([y * torch.sigmoid(self.mix(y)), nn.functional.hardtanh(y - self.mix(y))], 1)
        return nn.functional.pad(y, (1, 0, 2, 0)).mean((2, 3), keepdim=True) + y[:, :, :3]


def _pt2e(model: nn.Module, args: tuple, **how) -> torch.export.ExportedProgram:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True, **how))
    observed = prepare_pt2e(export(model.eval(), args).module(), quantizer)
    observed(*args)
    return export(convert_pt2e(observed), args)


def _four_bits(group: bool) -> torch.export.ExportedProgram:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerAxis, PerGroup

    model = _linear().eval()
    quantize_(model, Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32) if group else PerAxis(0)))
    return export(model, (torch.randn(3, 64),))


IMAGE, ROWS = (torch.ones(1, 2, 8, 9),), (torch.ones(3, 64),)
PROGRAMS: dict[str, Callable[[], torch.export.ExportedProgram]] = {
    "convolutions": lambda: export(_convolutions().eval(), IMAGE),
    "attention": lambda: export(_Attention().eval(), (torch.ones(1, 5, 8),)),
    "half": lambda: export(_convolutions().eval().half(), (IMAGE[0].half(),)),
    "static int8": lambda: _pt2e(_convolutions(), IMAGE),
    "other nodes in static int8": lambda: _pt2e(_Others(), IMAGE),
    "dynamic int8": lambda: _pt2e(_linear(), ROWS, is_dynamic=True),
    "4 bits": lambda: _four_bits(group=False),
    "4 bits in groups": lambda: _four_bits(group=True),
}


def _numbers(data: bytes) -> str:
    """Like tests/runtime/fields.py: the positions of the fields of XNNPACK and Vulkan graphs in a program."""
    lines = []
    for mark, schema in ((b"XH00", SCHEMA), (b"VH00", vulkan.SCHEMA)):
        at = data.find(mark)
        while at >= 0:
            start = at - 4
            (graph,) = struct.unpack_from("<I", data, start + 10)
            walk = Walk(schema, data)
            walk.table(schema.root, walk.offset(start + graph))
            for position, width in ((8, 2), (10, 4), (14, 4), (18, 4), (22, 8)):  # of the header
                walk.found[start + position] = ("n", width, 0)
            lines += [f"{kind} {p} {width} {to}\n" for p, (kind, width, to) in sorted(walk.found.items())]
            at = data.find(mark, at + 4)
    return "".join(lines)


def _mutate(program: torch.export.ExportedProgram, partitioner, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        edge = to_edge_transform_and_lower(program, partitioner=partitioner)
    assert not [item for item in edge.delegation().placements if item.backend is None]
    _mutate_program(edge.to_executorch().buffer, folder)


def _mutate_program(data: bytes, folder: Path) -> None:
    (folder / "program.pte").write_bytes(data)
    (folder / "fields").write_text(_numbers(data))
    tool = built("torchette_mutate_backends", tree="asan")
    command = [tool, folder / "program.pte", str(MUTATIONS), "7", folder / "fields"]
    # A failed allocation must be an error, not an abort.
    env = {**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1:max_allocation_size_mb=512"}
    env["TORCHETTE_LAST_MUTANT"] = str(folder / "last.pte")
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    print(done.stdout)


@pytest.mark.parametrize("name", PROGRAMS)
def test_mutated_xnnpack_payloads_are_safe(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    _mutate(PROGRAMS[name](), XnnpackPartitioner(), tmp_path)


def test_bias_of_two_dimensions_outlives_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel reads the bias through a view of one dimension. The tool's loader frees each block with its owner."""

    def graph(payload: Payload, inputs: list[int], outputs: list[int]) -> None:
        weight, bias = payload.constant(torch.randn(64, 32)), payload.constant(torch.randn(1, 64))
        layer = {"input1_id": inputs[0], "filter_id": weight, "bias_id": bias, "output_id": outputs[0]}
        payload.node("XNNFullyConnected", 0, **layer, flags=0)

    _mutate_program(program_of_graph(monkeypatch, graph, [(3, 32)], [(3, 64)]), tmp_path)


def test_mutated_null_payloads_are_safe(tmp_path: Path) -> None:
    _mutate(export(_Sum(), (torch.ones(3, 4),)), NullPartitioner(), tmp_path)


@needs_device
@pytest.mark.parametrize("name", ["vision", "words"])
def test_mutated_vulkan_payloads_are_safe(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSAN_OPTIONS", "detect_leaks=0")  # drivers leak memory
    _mutate(export(*networks()[name]), VulkanPartitioner(), tmp_path)


@pytest.mark.parametrize("name", ["vision", "words"])
def test_mutated_vulkan_payloads_are_safe_without_a_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VK_ICD_FILENAMES", str(tmp_path / "no_driver.json"))
    monkeypatch.setenv("LSAN_OPTIONS", "detect_leaks=0")  # Vulkan's loader leaks memory
    _mutate(export(*networks()[name]), VulkanPartitioner(), tmp_path)


def test_the_conformance_suite() -> None:
    # -s: otherwise pytest would capture the report of the sanitizer, which ends the process
    code = """
import pytest
sys.exit(pytest.main(["-q", "-s", "-p", "no:xdist", "tests/backends/test_conformance.py"]))
"""
    done = python(code, built("_native", tree="asan"))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
    assert " passed" in done.stdout
