# SPDX-License-Identifier: BSD-3-Clause
# Loading a damaged file requests no large memory. The test changes integers, bits and words of small files, and an allocator records
# the largest single request of each load.

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import torchette
from tests.building import CC, ROOT, run
from tests.sweep import sweep

pytestmark = pytest.mark.safety

LIMIT = 1 << 28  # bytes; an intact file requests less than 1 MB
STORED = ROOT / "tests" / "runtime"
FEW, MANY = 100, 3_000  # mutants of bits and words per file

_LOAD = """
    import ctypes, random, sys
    from pathlib import Path
    from torchette.errors import TorchetteError
    from torchette.runtime import Runtime
    from tests.runtime.fields import field_positions

    largest = ctypes.CDLL(sys.argv[1])
    largest.largest_request.restype = ctypes.c_size_t
    contents = Path(sys.argv[2]).read_bytes()
    count, limit = int(sys.argv[3]), int(sys.argv[4])
    generator = random.Random(0)
    # the extended header has the size of the structure; the weights follow it
    structure = int.from_bytes(contents[16:24], "little") if contents[8:12] == b"eh00" else len(contents)
    words = [0, 0x7F, 0xFF, 0x10000, 0x1000000, 0x40000000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    # the sizes of tensors are among these fields
    offsets = [at for at, (kind, width, _) in field_positions(contents).items() if (kind, width) == ("n", 4)]
    edits = [(at, (1 << 28).to_bytes(4, "little")) for at in sorted(offsets)]
    for number in range(count):
        # every 16th mutant changes a weight or a payload
        at = generator.randrange(len(contents) if number % 16 == 0 else structure)
        if number % 2:
            edits.append((at, bytes([contents[at] ^ 1 << generator.randrange(8)])))
        else:
            edits.append((at // 4 * 4, generator.choice(words).to_bytes(4, "little")))
    loaded = 0
    for at, changed in edits:
        mutant = contents[:at] + changed + contents[at + len(changed) :]
        largest.reset_largest_request()
        try:
            program = Runtime.get().load_program(mutant)
            for name in sorted(program.method_names):
                program.load_method(name)
            loaded += 1
        except (TorchetteError, LookupError, MemoryError):
            pass
        requested = largest.largest_request()
        if requested > limit:
            print(f"mutant: {changed.hex()} at byte {at} requests {requested} bytes", file=sys.stderr)
    largest.reset_largest_request()
    ctypes.create_string_buffer(limit + 1)
    print(loaded, len(edits), largest.largest_request() > limit)
"""


class _Lstm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y, (hidden, cell) = self.lstm(x)
        return y, hidden, cell


class _Vit(torch.nn.Module):
    """Patches of an image, one attention layer, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 16, 4, stride=4)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.layer(tokens).mean(1))


def _compiled(module: torch.nn.Module, x: torch.Tensor, **options: object) -> bytes:
    torch.manual_seed(0)
    return bytes(torchette.compile(module.eval(), (x,), **options))


def _linear() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def _peer(module: torch.nn.Module, x: torch.Tensor, outputs_planned: bool = True) -> bytes:
    pytest.importorskip("executorch")
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass

    planning = MemoryPlanningPass(alloc_graph_output=outputs_planned)
    edge = to_edge(torch.export.export(module.eval(), (x,)))
    return edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).buffer


_DYNAMIC = ({0: torch.export.Dim("batch", max=64)},)
FILES: dict[str, Callable[[], bytes]] = {
    "linear": lambda: _compiled(_linear(), torch.randn(2, 8)),
    "linear-portable": lambda: _compiled(_linear(), torch.randn(2, 8), backend="portable"),
    "lstm": lambda: _compiled(_Lstm(), torch.randn(1, 3, 4)),
    "vit": lambda: _compiled(_Vit(), torch.randn(1, 3, 16, 16)),
    "dynamic": lambda: _compiled(_linear(), torch.randn(2, 8), dynamic_shapes=_DYNAMIC),
    "peer-linear": lambda: _peer(_linear(), torch.randn(2, 8)),
    "peer-linear-unplanned": lambda: _peer(_linear(), torch.randn(2, 8), outputs_planned=False),
    "peer-vit": lambda: _peer(_Vit(), torch.randn(1, 3, 16, 16)),
    **{
        path.stem: path.read_bytes
        for path in (
            STORED / "executorch_files" / "dynamic-1.2.0.pte",
            STORED / "executorch_files" / "state-1.3.1.pte",
        )
    },
}


@functools.cache
def _file(name: str) -> bytes:
    return FILES[name]()


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the path of the recording allocator, which needs the GNU C library."""
    if not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""):
        pytest.skip("no GNU C library; the recorder calls its allocator")
    path = tmp_path_factory.mktemp("recorder") / "largest_request.so"
    run(CC, "-O1", "-fPIC", "-shared", Path(__file__).with_name("largest_request.c"), "-ldl", "-o", path)
    return path


def _large_requests(recorder: Path, file: bytes, count: int, folder: Path) -> list[str]:
    path = folder / "model.pte"
    path.write_bytes(file)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_LOAD), recorder, path, str(count), str(LIMIT)],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(recorder)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    loaded, edits, is_recorded = done.stdout.split()
    assert is_recorded == "True", "the allocator did not record a large request"
    assert 0 < int(loaded) < int(edits), "no mutant was refused, or every mutant"
    return [line for line in done.stderr.splitlines() if line.startswith("mutant:")]


@pytest.mark.parametrize(
    ("name", "count"),
    sweep([(name, count) for name in FILES for count in (FEW, MANY)], *((name, FEW) for name in FILES)),
)
def test_no_damaged_file_requests_large_memory_at_load(
    recorder: Path, name: str, count: int, tmp_path: Path
) -> None:
    assert _large_requests(recorder, _file(name), count, tmp_path) == []
