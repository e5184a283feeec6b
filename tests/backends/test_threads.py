# SPDX-License-Identifier: BSD-3-Clause
"""Methods of one program on a backend, in several threads at once, under the thread sanitizer."""

from __future__ import annotations

import subprocess
import warnings
from pathlib import Path

import pytest
import torch
from torch.export import export

from tests.building import BUILD, CXX, ROOT
from torchette.backends.null import NullPartitioner
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.exir import to_edge_transform_and_lower

XNNPACK = ROOT / ".torchette/xnnpack"

pytestmark = pytest.mark.slow


class _Sum(torch.nn.Module):
    def forward(self, x):
        return (x + x) * x


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("threads") / "threads_test"
    sources = [p for p in (ROOT / "torchette/runtime").glob("*.cpp") if p.stem != "platform_minimal"]
    sources += [ROOT / f"torchette/extension/{name}.cpp" for name in ("file_data_loader", "open_file")]
    sources += [ROOT / "torchette/backends/null/runtime.cpp", ROOT / "tests/backends/threads_test.cpp"]
    options = ["-I", ROOT, "-I", BUILD / "generated"]
    if (XNNPACK / "build/libXNNPACK.a").exists():
        # The library itself is not instrumented: what is watched is how we share its memory.
        sources += (ROOT / "torchette/backends/xnnpack").glob("*.cpp")
        options += [
            "-DWITH_XNNPACK",
            *(
                f"-I{XNNPACK}/src/{name}"
                for name in ("xnnpack/include", "xnnpack/src", "pthreadpool/include")
            ),
        ]
        for name in (
            "libXNNPACK",
            "libmicrokernels-prod",
            "pthreadpool/libpthreadpool",
            "cpuinfo/libcpuinfo",
        ):
            sources.append(XNNPACK / f"build/{name}.a")
    command = [
        CXX,
        "-std=c++17",
        "-O1",
        "-g1",
        "-fsanitize=thread",
        *options,
        *sources,
        "-lpthread",
        "-o",
        built,
    ]
    made = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if made.returncode and "tsan" in made.stderr:
        pytest.skip("the compiler has no thread sanitizer")
    assert made.returncode == 0, made.stderr[-4000:]
    return built


@pytest.mark.parametrize("partitioner", [NullPartitioner, XnnpackPartitioner])
def test_nothing_races(partitioner, program: Path, tmp_path: Path) -> None:
    if partitioner is XnnpackPartitioner:
        if not (XNNPACK / "build/libXNNPACK.a").exists():
            pytest.skip("this build has no XNNPACK: ./dev xnnpack")
        model, x = (
            # large enough to be packed by several threads
            torch.nn.Sequential(
                torch.nn.Linear(8, 2048),
                torch.nn.ReLU(),
                torch.nn.Linear(2048, 2048),
                torch.nn.Linear(2048, 4),
            ),
            torch.ones(3, 8),
        )
    else:
        model, x = _Sum(), torch.ones(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        edge = to_edge_transform_and_lower(export(model.eval(), (x,)), partitioner=partitioner())
    edge.to_executorch().save(tmp_path / "program.pte")
    done = subprocess.run([program, tmp_path / "program.pte"], capture_output=True, text=True)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    assert done.returncode == 0 and done.stdout == "0 failures\n", done.stdout + done.stderr[-6000:]
