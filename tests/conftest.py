# SPDX-License-Identifier: BSD-3-Clause
# Applies to every test: seeds, garbage collection, and a header that says whether torch is the pinned version.

from __future__ import annotations

import gc
import importlib.metadata
import os
import sys
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

pytest_plugins = ["tests.distribution"]
PINNED_TORCH = "2.13.0"
# What `torchette build` compiles in tests is kept with the checkout.
os.environ.setdefault("TORCHETTE_CACHE", str(Path(__file__).resolve().parents[1] / ".torchette" / "cache"))
# As in ./dev: ccache requires it for sources with a precompiled header.
os.environ.setdefault("CCACHE_SLOPPINESS", "pch_defines,time_macros")
# torch collects garbage after each graph that it traces in bytecode, 40 ms with the modules of all tests.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")
# Kotlin's compiler is a short program, for which the second compiler of the JVM only costs time.
os.environ.setdefault("JAVA_OPTS", "-Xmx256M -XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
# Puts the cmake and ninja that `./dev setup` installed first in PATH.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


@pytest.fixture(scope="module")
def portable_plan() -> Iterator[None]:
    """For tests that expect one instruction per torch operator: "auto" means "portable" while they run. tests/backends/engine
    tests the engine."""
    from torchette import _compile

    before, _compile.AUTO = _compile.AUTO, "portable"
    yield
    _compile.AUTO = before


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The seed of random inputs and weights is the test's name, so that a failure is reproducible when the test runs alone."""
    if (torch := sys.modules.get("torch")) and hasattr(torch, "default_generator"):
        # torch.manual_seed also formats a traceback for each absent kind of GPU, 1.6 ms per test
        torch.manual_seed = torch.default_generator.manual_seed
        if guards := sys.modules.get("torch._dynamo.guards"):
            # flushes the processor's caches to measure a latency that only logs contain, 14 ms per traced graph
            guards.profile_guard_manager = lambda *_: 0.0
        torch.manual_seed(zlib.crc32(item.nodeid.encode()))


_DIRECTORIES = pytest.StashKey[dict[Path, pytest.Collector]]()


@pytest.hookimpl(wrapper=True)
def pytest_collect_directory(
    path: Path, parent: pytest.Collector
) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
    """Creates one node per folder. With paths such as `tests/cli/test_a.py tests/test_b.py tests/cli/test_c.py` pytest 9.1
    collects tests/ again for the second path, and its new node of tests/cli lacks the fixtures of tests/cli/conftest.py."""
    directory = yield
    return (
        None if directory is None else parent.stash.setdefault(_DIRECTORIES, {}).setdefault(path, directory)
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects garbage less often. Repeated traversals of the imported modules cost 7 of the 18 processor seconds that the
    collection of all tests needs, and 11% of tests/backends/engine/test_patterns.py."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(500_000, 10, 10)
        gc.enable()


def pytest_report_header() -> str:
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "torch: not installed; run ./dev setup"
    if torch.partition("+")[0] != PINNED_TORCH:
        return f"torch: {torch}, NOT the pinned {PINNED_TORCH} that the tests are written for; ./dev setup makes a .venv"
    return f"torch: {torch}"


# --- `./dev test --durations`: processor seconds of every test, with those of the programs that it started ----------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-seconds", metavar="FILE", help="print and store what every test costs in processor seconds"
    )


class CpuSeconds:
    """Returns processor seconds without waiting, which do not depend on the number of workers or the load."""

    def __init__(self, path: Path) -> None:
        self.path, self.costs = path, dict[str, float]()
        self.last = self.now()

    @staticmethod
    def now() -> float:
        return sum(os.times()[:4])  # of this process and of its children that have ended

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = self.now()
        report.cpu, self.last = now - self.last, now  # also sent by a worker of pytest-xdist
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.costs[report.nodeid] = self.costs.get(report.nodeid, 0) + report.cpu

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.costs:
            return
        files = dict[str, list[float]]()
        for test, cost in self.costs.items():
            files.setdefault(test.partition("::")[0], []).append(cost)
        write = terminalreporter.write_line
        terminalreporter.section("processor seconds, with those of programs that tests start")
        for test, cost in sorted(self.costs.items(), key=lambda item: -item[1])[:25]:
            write(f"{cost:8.1f}  {test}")
        write("")
        for file, each in sorted(files.items(), key=lambda item: -sum(item[1])):
            write(f"{sum(each):8.1f}  {len(each):4} tests, the slowest {max(each):5.1f}  {file}")
        write(
            f"{sum(self.costs.values()):8.1f}  {len(self.costs):4} tests in all; each is listed in {self.path}"
        )
        lines = [
            f"{cost:.2f}\t{test}\n" for test, cost in sorted(self.costs.items(), key=lambda item: -item[1])
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(lines), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--cpu-seconds"):
        config.pluginmanager.register(CpuSeconds(Path(path)))
