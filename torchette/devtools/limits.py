# SPDX-License-Identifier: BSD-3-Clause
# In: this processor. Out: its arithmetic and memory throughput, measured once and stored in the user's cache folder.
"""Roofline of the processor: `limits`. `torchette profile` compares operators with it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchette import runtime
from torchette.cache import cache_folder
from torchette.files import replacing
from torchette.runtime import native

# Seconds for which each rate is measured, and minimum seconds of one round. Rounds are short so that other processes
# interrupt only some of them.
_SECONDS, _ROUND = 0.1, 0.0005
# Default bytes of an L2 cache if the system reports none, and maximum bytes of the buffer that measures main memory.
_L2, _MAX_BYTES = 256 << 10, 512 << 20


@dataclass(frozen=True)
class Store:
    """A cache or the main memory.

    Attributes:
        name: L2, L3 or memory.
        nbytes: capacity for all threads together; None for the main memory.
        rate: read throughput of all threads together, in bytes per second.
    """

    name: str
    nbytes: int | None
    rate: float


@dataclass(frozen=True)
class Limits:
    """Throughput of a processor with a given number of threads.

    Attributes:
        processor: its name.
        level: instruction set level, as returned by `torchette.runtime.kernel_level`.
        threads: number of concurrent threads.
        arithmetic: float32 operations per second; a multiply-add counts as two.
        stores: caches and memory, nearest first.
    """

    processor: str
    level: str
    threads: int
    arithmetic: float
    stores: tuple[Store, ...]

    def store_of(self, nbytes: int) -> Store:
        """Returns the nearest store with a capacity of at least `nbytes`."""
        return next(store for store in self.stores if store.nbytes is None or nbytes <= store.nbytes)

    def __str__(self) -> str:
        rates = [f"{store.rate / 1e9:.3g} from {store.name}" for store in self.stores]
        return f"{self.arithmetic / 1e9:.3g} GFLOP/s of float32; GB/s: {', '.join(rates)}"

    def sentence(self) -> str:
        """Returns the limits with the number of threads that reach them."""
        return f"{self.threads} thread{'s' * (self.threads > 1)} can do {self}"


def limits(threads: int = 1, *, again: bool = False) -> Limits:
    """Returns the limits of this processor, for the instruction set level that the kernels use.

    The first call measures for about half a second and stores the result in the user's cache folder. If the folder is
    not writable, each call measures.

    Args:
        threads: number of threads.
        again: measure again even if a stored result exists.

    Raises:
        NativeModuleError: the runtime is not built.
    """
    version = sys.modules["torchette"].__version__
    key = f"{cpu_name()}, {runtime.kernel_level()}, {threads} threads, torchette {version}"
    path = cache_folder() / "limits.json"
    known = _read(path)
    result = None if again else _limits(known.get(key))
    if result is None:
        result = _measure(threads)
        _write(path, {**_read(path), key: dataclasses.asdict(result)})
    return result


def _limits(record: Any) -> Limits | None:
    """Returns a stored result; None if the record is not valid."""
    try:
        stores = tuple(Store(**store) for store in record["stores"])
        result = Limits(**{**record, "stores": stores})
        sound = (
            result.arithmetic > 0 and all(store.rate > 0 for store in stores) and stores[-1].nbytes is None
        )
        return result if sound else None
    except (TypeError, KeyError, IndexError):
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return contents if isinstance(contents, dict) else {}


def _write(path: Path, known: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:  # other processes may read
            file.write(json.dumps(known, indent=1).encode())
    except OSError:
        return


# ---- measuring ----


_Done = tuple[int, float, float]  # amount of work, start time, end time


def _measure(threads: int) -> Limits:
    module = native.module()
    near = (_cache_bytes(2) or _L2) * threads
    far = _cache_bytes(3) or 0
    size = min(max(4 * far, 8 * near, 64 << 20), _MAX_BYTES)
    data: Any = np.ones(size // 4, np.float32)
    with ThreadPoolExecutor(threads) as pool:

        def rate(work: Callable[[int, int], _Done], shared: bool = False) -> float:
            """Returns the maximum rate of all threads together; each thread runs `work(thread, rounds)`.

            If the threads share the resource, the time is from the first start to the last end. Otherwise each thread
            is timed separately, so that other processes disturb the result less.
            """
            least = 4 * _ROUND if shared else _ROUND
            rounds, best, end = 1, 0.0, time.perf_counter() + _SECONDS
            while not best or time.perf_counter() < end:
                done = list(pool.map(work, range(threads), [rounds] * threads))
                if min(timing[2] - timing[1] for timing in done) < least:
                    rounds *= 2
                    continue
                rates = [count / (last - first) for count, first, last in done]
                elapsed = max(timing[2] for timing in done) - min(timing[1] for timing in done)
                together = sum(timing[0] for timing in done) / elapsed
                best = max(best, *rates, together if shared else sum(rates))
            return best

        def reading(nbytes: int, shared: bool = False) -> float:
            """Measures reads of `nbytes` bytes, split over the threads."""
            parts = np.array_split(data[: nbytes // 4], threads)
            return rate(lambda thread, rounds: module.read(parts[thread], rounds), shared)

        pieces = itertools.cycle(np.array_split(data, size // (1 << 20)))

        def passing(_: int, rounds: int) -> _Done:
            """Reads the whole buffer in pieces that the threads share; the buffer is larger than every cache."""
            done = [module.read(next(pieces), 1) for _ in range(rounds)]
            return sum(timing[0] for timing in done), done[0][1], done[-1][2]

        arithmetic = 2 * rate(lambda _, rounds: module.multiply_adds(rounds << 10))
        stores = [Store("L2", near, reading(near // 2))]
        if far > 2 * near:
            stores.append(Store("L3", far, reading(far // 2, shared=True)))
        stores.append(Store("memory", None, rate(passing, shared=True)))
    return Limits(cpu_name(), runtime.kernel_level(), threads, arithmetic, tuple(stores))


def _cache_bytes(level: int) -> int | None:
    """Returns the bytes of a processor cache (per core if it is private); None if the system reports none."""
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        facts = [
            (folder / name).read_text().strip()
            for name in ("level", "type", "size")
            if (folder / name).exists()
        ]
        if (
            facts[:2] in ([str(level), "Unified"], [str(level), "Data"])
            and facts[-1].removesuffix("K").isdigit()
        ):
            return int(facts[-1].removesuffix("K")) << 10
    return _sysctl(f"hw.perflevel0.l{level}cachesize") or _sysctl(f"hw.l{level}cachesize")


def _sysctl(name: str) -> int | None:
    if platform.system() != "Darwin":
        return None
    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return int(done.stdout) if done.stdout.strip().isdigit() else None


# ---- which processor ----


def cpu_name() -> str:
    """Returns the name of the processor, such as ``AMD EPYC 9B45``."""
    return cpu_facts().get("model name") or platform.processor() or platform.machine()


@functools.cache
def cpu_facts() -> dict[str, str]:
    """Returns the fields that Linux reports for the first processor; empty on other systems."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
