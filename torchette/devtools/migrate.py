# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file of any release, ours or ExecuTorch's. Out: the same program in the form that this release writes.
"""Brings a program file into the newest form; no model and no compiler is needed."""

from __future__ import annotations

from pathlib import Path

from torchette.files import replacing
from torchette.format import pte


def migrate(path: str | Path, output: str | Path | None = None) -> tuple[pte.Pte, list[str]]:
    """The program in the newest form, and what is of an older one, a line each; where there is nothing, as it was.

    Results stay the same, bit for bit. Raises what `torchette.format.pte.load_file` does.

    Args:
        output: a file to write it to, whole or not at all.
    """
    program, old = _newest(pte.load_file(path))
    if output is not None:
        with replacing(output) as opened:
            program.write_to(opened)
    return program, old


def _newest(file: pte.PteFile) -> tuple[pte.Pte, list[str]]:
    old, program = forms(file), file.program
    if not old:
        return pte.Pte((file.buffer,), len(file.buffer)), old
    inline = program.constant_buffer
    stored = len(inline) or len(program.constant_segment.offsets if program.constant_segment else ())
    tables = program.mutable_data_segments
    delegates = [delegate for plan in program.execution_plan for delegate in plan.delegates]
    blobs = [file.delegate(delegate) for delegate in delegates]
    for place, delegate in enumerate(delegates):
        delegate.processed.index = place
    named = file.named()
    written = pte.write(
        program,
        [b"", *(file.constant(index) for index in range(1, stored))],
        [b"", *(file.mutable(index) for index in range(1, len(tables[0].offsets)))] if tables else (),
        blobs,
        named,
        named_alignment=16 if named else 1,
    )
    return written, old


def forms(file: pte.PteFile) -> list[str]:
    """What a file has in an older form than this release writes."""
    program = file.program
    found = {
        "weights are inside the program, which a loader must read and copy; now they are a segment": any(
            len(buffer.storage) for buffer in program.constant_buffer
        ),
        "data of backends are inside the program; now they are segments": bool(program.backend_delegate_data),
        "there is no header that says where the program ends": not file.has_header,
    }
    return [form for form, is_old in found.items() if is_old]
