# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's legacy profile: blocks of timed events. In: events of traced methods. Out: the bytes of a dump, which
# torchette/compat/profile_blocks.py reads.
"""Profile blocks, recorded by methods that `torchette.extension.portable_lib` loads.

A dump is a sequence of blocks. The records of a block are little-endian and aligned to 8 bytes:

    header      name (32 bytes), version, capacity and count of events, of allocators, and of allocations
    events      name (32 bytes), chain (int32, -1 outside of instructions), instruction (uint32), begin, end (uint64)
    allocators  name (32 bytes), identifier (uint64)
    allocations allocator, bytes (uint32)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from torchette.runtime import Event

ET_PROF_VER = 1
CHAIN_IDX_NO_CHAIN = -1

HEADER, EVENT = struct.Struct("<32s7I4x"), struct.Struct("<32siI2Q")
ALLOCATOR, ALLOCATION = struct.Struct("<32sQ"), struct.Struct("<2I")

_blocks: list[tuple[str, list[Event]]] = []  # of this process; nothing is recorded before the first block


def create_profile_block(name: str) -> None:
    """Begins a block. If the current block is empty, the new block replaces it."""
    if _blocks and not _blocks[-1][1]:
        _blocks.pop()
    _blocks.append((name, []))


def reset_profile_results() -> None:
    """Removes all events, and all blocks except the current one."""
    del _blocks[:-1]
    for _, events in _blocks:
        events.clear()


def is_recording() -> bool:
    """Whether there is a block that methods record into."""
    return bool(_blocks)


def record(events: Sequence[Event]) -> None:
    """Adds the events of a traced method to the current block, if there is one."""
    if _blocks:
        _blocks[-1][1].extend(events)


def dump_profile_results() -> bytes:
    """Returns all blocks as bytes: empty if `create_profile_block` was not called. Times are nanoseconds."""
    parts = []
    for name, events in _blocks:
        counts = (len(events), len(events), 0, 0, 0, 0)
        parts.append(HEADER.pack(name.encode()[:32], ET_PROF_VER, *counts))
        for event in events:
            chain = CHAIN_IDX_NO_CHAIN if event.chain is None else event.chain
            instruction = event.instruction or 0
            parts.append(EVENT.pack(_event_name(event), chain, instruction, event.begin, event.end))
    return b"".join(parts)


def _event_name(event: Event) -> bytes:
    """Returns the name that ExecuTorch's tools expect: a kernel has a prefix and no namespace."""
    name = event.name
    if event.name == "DELEGATE_CALL":
        name = "delegate_execute"
    elif "::" in name and event.instruction is not None and not event.in_delegate:
        name = f"native_call_{name.partition('::')[2]}"
    return name.encode()[:32]
