# SPDX-License-Identifier: BSD-3-Clause
# In: this processor. Out: how fast it can compute and read, which is measured once and kept in the user's cache folder.
"""What a processor can do: `limits`, which `torchette profile` holds the operators of a model against."""

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

# Seconds that each of the rates is measured for, and that one round of it takes at least: so short that other processes leave
# some of them alone.
_SECONDS, _ROUND = 0.1, 0.0005
# Bytes of an L2 cache where the system does not say, and the most that are read to see the main memory's speed.
_L2, _MOST = 256 << 10, 512 << 20


@dataclass(frozen=True)
class Store:
    """A cache or the main memory.

    Attributes:
        name: L2, L3 or memory.
        nbytes: what it holds, of all threads together; None for the main memory.
        rate: bytes a second that the threads together read from it.
    """

    name: str
    nbytes: int | None
    rate: float


@dataclass(frozen=True)
class Limits:
    """What a processor can do with some threads.

    Attributes:
        processor: its name.
        level: of its instruction sets, as `torchette.runtime.kernel_level` says.
        threads: how many work at once.
        arithmetic: float32 operations a second; a multiply-add is two.
        stores: from the nearest to the farthest.
    """

    processor: str
    level: str
    threads: int
    arithmetic: float
    stores: tuple[Store, ...]

    def store_of(self, nbytes: int) -> Store:
        """The nearest store that holds so many bytes."""
        return next(it for it in self.stores if it.nbytes is None or nbytes <= it.nbytes)

    def __str__(self) -> str:
        rates = [f"{it.rate / 1e9:.3g} from {it.name}" for it in self.stores]
        return f"{self.arithmetic / 1e9:.3g} GFLOP/s of float32; GB/s: {', '.join(rates)}"

    def sentence(self) -> str:
        """The limits with the number of threads that reach them."""
        return f"{self.threads} thread{'s' * (self.threads > 1)} can do {self}"


def limits(threads: int = 1, *, again: bool = False) -> Limits:
    """What this processor can do, at the level of instruction sets that the kernels use.

    The first call of a user, or of a version of Torchette, measures that in half a second; `again` does so at any time. A
    cache folder that cannot be written is left alone.

    Raises:
        NativeModuleError: the runtime is not built.
    """
    version = sys.modules["torchette"].__version__
    key = f"{cpu_name()}, {runtime.kernel_level()}, {threads} threads, torchette {version}"
    path = cache_folder() / "limits.json"
    known = _read(path)
    found = None if again else _limits(known.get(key))
    if found is None:
        found = _measure(threads)
        _write(path, {**_read(path), key: dataclasses.asdict(found)})
    return found


def _limits(record: Any) -> Limits | None:
    """What was stored; None where it is something else."""
    try:
        stores = tuple(Store(**it) for it in record["stores"])
        found = Limits(**{**record, "stores": stores})
        sound = found.arithmetic > 0 and all(it.rate > 0 for it in stores) and stores[-1].nbytes is None
        return found if sound else None
    except (TypeError, KeyError, IndexError):
        return None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, known: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:  # other processes may read
            file.write(json.dumps(known, indent=1).encode())
    except OSError:
        return


# ---- measuring ----


_Done = tuple[int, float, float]  # how much, when it began, when it ended


def _measure(threads: int) -> Limits:
    module = native.module()
    near = (_cache_bytes(2) or _L2) * threads
    far = _cache_bytes(3) or 0
    size = min(max(4 * far, 8 * near, 64 << 20), _MOST)
    data: Any = np.ones(size // 4, np.float32)
    with ThreadPoolExecutor(threads) as pool:

        def rate(work: Callable[[int, int], _Done], shared: bool = False) -> float:
            """The best rate of all threads, each of which does `work(thread, rounds)`. What they share is timed from the first
            start to the last end; else each has its own time, so that a busy machine disturbs less."""
            least = 4 * _ROUND if shared else _ROUND
            rounds, best, end = 1, 0.0, time.perf_counter() + _SECONDS
            while not best or time.perf_counter() < end:
                done = list(pool.map(work, range(threads), [rounds] * threads))
                if min(it[2] - it[1] for it in done) < least:
                    rounds *= 2
                    continue
                own = [count / (last - first) for count, first, last in done]
                whole = max(it[2] for it in done) - min(it[1] for it in done)
                together = sum(it[0] for it in done) / whole
                best = max(best, *own, together if shared else sum(own))
            return best

        def reading(nbytes: int, shared: bool = False) -> float:
            """Each thread reads its part of so many bytes."""
            parts = np.array_split(data[: nbytes // 4], threads)
            return rate(lambda thread, rounds: module.read(parts[thread], rounds), shared)

        pieces = itertools.cycle(np.array_split(data, size // (1 << 20)))

        def passing(_: int, rounds: int) -> _Done:
            """What no cache holds any more: the threads go through the whole together, piece by piece."""
            done = [module.read(next(pieces), 1) for _ in range(rounds)]
            return sum(it[0] for it in done), done[0][1], done[-1][2]

        arithmetic = 2 * rate(lambda _, rounds: module.multiply_adds(rounds << 10))
        stores = [Store("L2", near, reading(near // 2))]
        if far > 2 * near:
            stores.append(Store("L3", far, reading(far // 2, shared=True)))
        stores.append(Store("memory", None, rate(passing, shared=True)))
    return Limits(cpu_name(), runtime.kernel_level(), threads, arithmetic, tuple(stores))


def _cache_bytes(level: int) -> int | None:
    """Bytes of a cache of the processor, of one core's if each has its own; None where the system does not say."""
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
    """The processor's own name, such as ``AMD EPYC 9B45``."""
    return cpu_facts().get("model name") or platform.processor() or platform.machine()


@functools.cache
def cpu_facts() -> dict[str, str]:
    """What Linux says of the first processor, by name."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0].splitlines()
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
