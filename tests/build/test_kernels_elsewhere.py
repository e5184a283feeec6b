# SPDX-License-Identifier: BSD-3-Clause
# The kernel tests on other machines: the same tests and samples of torch, with kernels in an emulator.
# The gate runs the calls of tests/kernels/samples.py on ARMv7; --full runs everything on each machine.

from __future__ import annotations

import functools
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from tests.build.images import emulated, named
from tests.building import ROOT
from tests.kernels import machine, parity, samples
from tests.kernels.machine import Machine
from torchette import targets
from torchette.runtime import _native, kernel_levels

MACHINES = ("aarch64-linux", "armv7-linux", "riscv64-linux")
SHARDS = 8
CommandOf = Callable[[str], list[str]]
Kinds = Callable[[str], Sequence[str]]


@pytest.fixture(scope="session")
def command_of(tmp_path_factory: pytest.TempPathFactory) -> CommandOf:
    """Returns the command that runs the kernels of a target, which are compiled once."""

    @functools.cache
    def command(name: str) -> list[str]:
        target = targets.find(name)
        emulated(target)
        return machine.build(target, named(target, "gcc"), tmp_path_factory.mktemp(name))

    return command


def called_by_tests(command: list[str], folder: Path, *arguments: str) -> set[str]:
    """Runs tests with the kernels of the command; returns the names of the kernels that they called."""
    called = folder / "called.txt"
    options = [
        "-p",
        "tests.kernels.machine",
        f"--kernels-of={shlex.join(command)}",
        f"--called-kernels={called}",
    ]
    options += ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
    run = [sys.executable, "-m", "pytest", *options, *arguments]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return set(called.read_text().split())


@pytest.mark.gate
def test_calls_on_a_32_bit_machine(command_of: CommandOf, tmp_path: Path) -> None:
    # A case of planar convolutions has more elements than a 32-bit size_t can represent.
    test = f"test_kernel_equals_its_pattern[planar_convolution-{kernel_levels()[0]}]"
    planar = f"tests/backends/engine/test_operators.py::{test}"
    called = called_by_tests(command_of("armv7-linux"), tmp_path, "tests/kernels/test_samples.py", planar)
    assert called >= {"cpu::planar_convolution.out", *samples.CALLS, *samples.SCALARS, *samples.OTHERS}


def called_by_samples(command: list[str], names: Iterable[str], kinds: Kinds, limit: int) -> set[str]:
    """Compares samples of torch's operators with eager; returns the names of the kernels that they called."""
    there = Machine(command)
    batch = [s for name in names for dtype in kinds(name) for s in parity.samples(name, dtype, limit)]
    try:
        tally = parity.hold_elsewhere([s for s in batch if not parity.is_excluded(s)], there)
    finally:
        there.close()
    assert not tally.failed, "\n".join(f"{sample}: {problem}" for sample, problem in tally.failed)
    assert len(tally.passed) > 0.7 * len(batch)
    return there.called


@pytest.mark.slow
@pytest.mark.parametrize("name", MACHINES)
def test_every_kernel_passes_its_tests_on(name: str, command_of: CommandOf, tmp_path: Path) -> None:
    command = command_of(name)
    tests = ["tests/kernels", "tests/backends/engine/test_operators.py", "-m", "not safety and not gate"]
    # test_parity.py compiles programs for this machine, test_isa.py starts processes on it.
    options = ["--ignore=tests/kernels/test_parity.py", "--ignore=tests/kernels/test_isa.py"]
    called = called_by_tests(command, tmp_path, *tests, *options)
    called |= called_by_samples(command, parity.operators(), parity.two_dtypes, 1)
    assert {name for name, _ in _native.operators()} - called == set()


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("name", MACHINES)
def test_samples_in_all_dtypes_pass_on(name: str, shard: int, command_of: CommandOf) -> None:
    names = list(parity.operators())[shard::SHARDS]
    called_by_samples(command_of(name), names, parity.dtypes, 3)
