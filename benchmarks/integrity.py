# SPDX-License-Identifier: BSD-3-Clause
# The cost of checking a file against its receipt: bytes per second of the hash, compared with reading and copying the same memory
# and with other hashes; and the cost of opening a program with a check of all bytes.
"""`./dev bench integrity`: gigabytes per second of processor time, the median of alternating rounds."""

from __future__ import annotations

import hashlib
import statistics
import time
import zlib
from collections.abc import Callable

import numpy as np
import torch

import torchette
from torchette import receipt
from torchette.cli._console import print_table
from torchette.runtime import Runtime, xxh64

ROUNDS = 9


def main(_: list[str]) -> int:
    side = 4096
    model = torchette.compile(torch.nn.Linear(side, side, bias=False).eval(), (torch.ones(1, side),))
    program = receipt.sign(bytes(model))
    memory = np.frombuffer(program, np.uint8)[: len(program) // 8 * 8].view(np.uint64)
    copy = np.empty_like(memory)
    load = Runtime.get().load_program
    work: dict[str, Callable[[], object]] = {
        "read the memory once (a sum)": memory.sum,
        "copy it": lambda: np.copyto(copy, memory),
        "XXH64, ours": lambda: xxh64(program),
        'load_program(..., verification="integrity")': lambda: load(program, verification="integrity"),
        "CRC-32 of zlib": lambda: zlib.crc32(program),
        "SHA-256": lambda: hashlib.sha256(program).digest(),
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(ROUNDS):
        for name, call in work.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    speeds = {name: len(program) / statistics.median(seconds) / 1e9 for name, seconds in times.items()}
    read = speeds["read the memory once (a sum)"]
    rows = [(name, f"{speed:.2f}", f"{speed / read:.2f}") for name, speed in speeds.items()]
    title = f"{len(program):,} bytes, {len(receipt.read(program).parts)} parts"
    print_table(("", "GB/s", "of reading"), rows, title=title)
    return 0
