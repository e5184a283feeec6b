# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file of any version of Torchette or ExecuTorch. Out: the same program in the current form.
"""Converts a program file to the current form, without the model and the compiler."""

from __future__ import annotations

import contextlib
from pathlib import Path

from torchette.errors import FormatError, NativeModuleError
from torchette.files import replacing
from torchette.format import pte
from torchette.runtime.verification import load_faults


def migrate(path: str | Path, output: str | Path | None = None) -> tuple[pte.Pte, list[str]]:
    """Converts a program to the current form. Its results stay bitwise equal.

    Args:
        path: the .pte file.
        output: file to write the program to, atomically.

    Returns:
        The program, and one line for each outdated form that it had. A program without any is unchanged.

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is damaged, or one of its methods does not load.
    """
    program, old = _newest(pte.load_file(path))
    with contextlib.suppress(NativeModuleError):
        for fault in load_faults(program.chunks[0], len(program)):
            raise FormatError(f"{path}: method {fault.method!r} does not load: {fault.reason}")
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
    """Returns a line for each form in the file that is older than the current one."""
    program = file.program
    found = {
        "weights were inside the program, which a loader must read and copy; now they are a segment": any(
            len(buffer.storage) for buffer in program.constant_buffer
        ),
        "payloads of delegates were inside the program; now they are segments": bool(
            program.backend_delegate_data
        ),
        "there was no header with the size of the program": not file.has_header,
    }
    return [form for form, is_old in found.items() if is_old]
