# SPDX-License-Identifier: BSD-3-Clause
# In: a program. Out: its planned memory over time as a Chrome trace, for chrome://tracing and Perfetto.
"""Planned memory as a trace: `generate_memory_trace` has ExecuTorch's name and arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchette.devtools.device_memory import Tenant, tenants
from torchette.devtools.inspect import MethodInfo, describe
from torchette.errors import InputError


def generate_memory_trace(
    executorch_program_manager: object,
    chrome_trace_filename: str | Path,
    enable_memory_offsets: bool = False,
    method_name: str = "forward",
) -> None:
    """Writes the planned memory of a method over time as a Chrome trace.

    Args:
        executorch_program_manager: result of `to_executorch`; or a .pte file as path or bytes.
        chrome_trace_filename: the JSON file to write. One microsecond is one instruction; a process is a memory id.
        enable_memory_offsets: use the memory offset as the row. Otherwise the number of rows is minimal.
        method_name: name of the method.

    Raises:
        InputError: the program has no such method.
        FormatError: the program cannot be read.
        OSError: the file cannot be written.
    """
    source: Any = getattr(executorch_program_manager, "buffer", executorch_program_manager)
    methods = {method.name: method for method in describe(source).methods}
    if method_name not in methods:
        raise InputError(
            f"the program has no method {method_name!r}", hints=[f"methods: {', '.join(methods)}"]
        )
    events = trace_events(methods[method_name], enable_memory_offsets)
    Path(chrome_trace_filename).write_text(json.dumps({"traceEvents": events}, indent=1))


def trace_events(method: MethodInfo, by_offset: bool = False) -> list[dict[str, Any]]:
    """Returns the trace events: a slice for each tensor, and a counter of the live bytes."""
    events: list[dict[str, Any]] = []
    everyone = tenants(method)
    for buffer in method.planned_buffers:
        here = [tenant for tenant in everyone if tenant.memory_id == buffer.id]
        about = {"name": f"planned {buffer.id}: {buffer.nbytes:,} bytes"}
        events.append({"name": "process_name", "ph": "M", "pid": buffer.id, "args": about})
        for tenant, row in zip(here, _rows(here, by_offset), strict=True):
            events.append(
                {
                    "name": f"%{tenant.value} {tenant.text}",
                    "cat": "memory",
                    "ph": "X",
                    "ts": tenant.first,
                    "dur": tenant.last + 1 - tenant.first,
                    "pid": buffer.id,
                    "tid": row,
                    "args": {"bytes": tenant.nbytes, "offset": tenant.offset, "made by": tenant.maker},
                }
            )
        for time in range(len(method.instructions) + 1):
            live = _covered(tenant for tenant in here if tenant.first <= time <= tenant.last)
            events.append(
                {"name": "live bytes", "ph": "C", "ts": time, "pid": buffer.id, "args": {"bytes": live}}
            )
    return events


def _rows(here: list[Tenant], by_offset: bool) -> list[int]:
    """Returns a row for each tensor: its offset, or the first row that is free, so that no two overlap in time."""
    if by_offset:
        return [tenant.offset for tenant in here]
    ends: list[int] = []
    rows = []
    for tenant in here:
        row = next((row for row, end in enumerate(ends) if end < tenant.first), len(ends))
        ends[row:] = [tenant.last, *ends[row + 1 :]]
        rows.append(row)
    return rows


def _covered(living: Iterable[Any]) -> int:
    """Returns the number of bytes that at least one tensor uses; shared bytes count once."""
    total = end = 0
    for start, stop in sorted((tenant.offset, tenant.offset + tenant.nbytes) for tenant in living):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total
