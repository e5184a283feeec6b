# SPDX-License-Identifier: BSD-3-Clause
"""ExecuTorch's legacy profile: recorded by portable_lib, and read from a dump in the form of ExecuTorch's runtime."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torchette.profiler.parse_profiler_results import (  # noqa: E402
    TimeScale,
    deserialize_profile_results,
    mem_profile_table,
    profile_aggregate_framework_tax,
    profile_framework_tax_table,
    profile_table,
)

import torchette  # noqa: E402
from torchette.devtools import profile_blocks  # noqa: E402
from torchette.errors import FormatError  # noqa: E402
from torchette.extension import portable_lib  # noqa: E402

KERNELS = ["native_call_add.out", "native_call_mul.out"]


class Affine(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 2) * x


@pytest.fixture
def model() -> Iterator[bytes]:
    profile_blocks._blocks.clear()  # blocks of other tests in this process
    yield bytes(torchette.compile(Affine(), (torch.ones(2, 2),), backend="portable"))
    profile_blocks._blocks.clear()


def test_no_events_before_first_block(model: bytes) -> None:
    portable_lib._load_for_executorch_from_buffer(model).forward([torch.ones(2, 2)])
    portable_lib._reset_profile_results()
    assert portable_lib._dump_profile_results() == b""


def test_blocks_have_the_events_of_their_executions(model: bytes) -> None:
    portable_lib._create_profile_block("empty")
    portable_lib._create_profile_block("first")
    module = portable_lib._load_for_executorch_from_buffer(model)
    module.forward([torch.ones(2, 2)])
    for _ in range(2):
        portable_lib._create_profile_block("again")
        module.plan_execute("forward")
    events, memory = deserialize_profile_results(portable_lib._dump_profile_results())
    assert list(events) == list(memory) == ["first", "again"]
    names = [event.name for event in events["again"]]
    assert sorted(name for name in names if name in KERNELS) == KERNELS and "Method::execute" in names
    assert all(
        len(event.duration) == len(event.ts) == 2 and min(event.duration) >= 0 for event in events["again"]
    )
    tax = profile_aggregate_framework_tax(events)["again"]
    assert len(tax.framework_tax) == 2 and all(share <= 100 for share in tax.framework_tax)
    text = "\n".join(map(str, (*profile_table(events), *profile_framework_tax_table({"again": tax}))))
    assert all(
        word in text for word in (*KERNELS, "Iteration 1", "Model execution time", "Framework tax (%)")
    )
    portable_lib._reset_profile_results()
    assert deserialize_profile_results(portable_lib._dump_profile_results()) == ({"again": []}, {"again": []})


def test_a_method_of_a_program_is_recorded(model: bytes) -> None:
    portable_lib._create_profile_block("method")
    portable_lib._load_program_from_buffer(model).load_method("forward")([torch.ones(2, 2)])
    events, _ = deserialize_profile_results(portable_lib._dump_profile_results())
    assert {event.name for event in events["method"]} >= set(KERNELS)


def _sample(name: bytes = b"default", version: int = 1) -> bytes:
    """Two of four events, one of two allocators and two of three allocations, as in ExecuTorch's fixed-size buffer."""
    data = struct.pack("<32s7I4x", name, version, 4, 2, 2, 1, 3, 2)
    data += struct.pack("<32siIQQ", b"Method::execute", -1, 0, 1_000_000, 5_000_000)
    data += struct.pack("<32siIQQ", b"native_call_add.out", 0, 3, 2_000_000, 3_000_000) + bytes(2 * 56)
    data += struct.pack("<32sQ", b"planned", 7) + bytes(40)
    return data + struct.pack("<4I", 7, 100, 7, 20) + bytes(8)


def test_dump_of_executorch_runtime_is_read() -> None:
    events, memory = deserialize_profile_results(_sample() + _sample())
    method_event, add = events["default"]
    assert (method_event.ts, method_event.duration, method_event.chain_idx) == ([1.0, 1.0], [4.0, 4.0], -1)
    assert (add.name, add.instruction_idx, add.duration) == ("native_call_add.out", 3, [1.0, 1.0])
    assert profile_aggregate_framework_tax(events)["default"].framework_tax == [75.0, 75.0]
    assert "120" in str(mem_profile_table(memory)[0]) and "planned" in str(mem_profile_table(memory)[0])
    cycles, _ = deserialize_profile_results(_sample(), TimeScale.CPU_CYCLES)
    assert cycles["default"][0].duration == [4_000_000]


@pytest.mark.parametrize(
    ("data", "text"),
    [(_sample()[:-100], "damaged"), (_sample(version=2), "version 2"), (_sample()[:10], "damaged")],
)
def test_damaged_dump_raises(data: bytes, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        deserialize_profile_results(data)


def test_repetitions_with_different_events_raise() -> None:
    different = _sample().replace(b"native_call_add", b"native_call_sub")
    with pytest.raises(FormatError, match="different events"):
        deserialize_profile_results(_sample() + different)


def test_the_command_reads_a_stored_sample(tmp_path: Path) -> None:
    (tmp_path / "dump.bin").write_bytes(_sample())
    command = [sys.executable, "-m", "torchette.profiler.profiler_results_cli"]
    command += ["--prof_results_bin", tmp_path / "dump.bin", "--chrome_json_path", tmp_path / "trace.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "native_call_add.out" in done.stdout and "planned" in done.stdout
    (method_event, _) = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert (method_event["name"], method_event["ts"], method_event["dur"]) == (
        "default:Method::execute",
        1000,
        4000,
    )
