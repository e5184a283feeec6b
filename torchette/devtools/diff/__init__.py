# SPDX-License-Identifier: BSD-3-Clause
# A model, a file, or both come in, and inputs; which operator departs first goes out. torch and the compiler are imported
# when it is asked.
"""Which operator of a file departs first, where in the model, and why.

>>> from torchette.devtools.diff import compare
>>> print(compare(model, "model.pte", inputs))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchette.capture import DynamicShapes

if TYPE_CHECKING:
    from torchette.devtools.diff.result import DiffResult
    from torchette.devtools.diff.walk import Device


def compare(
    model: object = None,
    file: str | Path | bytes | None = None,
    inputs: Sequence[Any] | None = None,
    *,
    method: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: DynamicShapes = None,
    backend: object = None,
    search: bool = True,
    stages: bool = True,
    data_files: Sequence[str | Path] = (),
    device: Device | None = None,
    seed: int = 0,
    progress: Callable[[str, str], None] = lambda stage, step: None,
) -> DiffResult:
    """Compares a file with torch, instruction by instruction, and with the model that it was made of.

    Every instruction runs on the runtime, and torch's operator runs on the very values that it has read: a fault is named
    where it arises. What rounding can do to an operator is measured, and is no fault. With a model, each instruction is also
    held against what this compiler makes of the model, and that against eager.

    Args:
        model: the module, an ExportedProgram of it, or what `torchette.compile` returned, which is then not compiled
            again; None compares the file with torch alone.
        file: a .pte file, its path or its bytes; by default what this compiler makes of the model.
        inputs: positional arguments of the model; by default those of an ExportedProgram, or random values with the shapes
            and dtypes in the file, dynamic dimensions at their maximum. Other ranges, zeros, infinities and the corners of
            dynamic shapes are tried besides, unless `search` is False.
        method: of the file; by default ``forward``, or the only one.
        kwargs: arguments of the model by name.
        dynamic_shapes, backend: as for `torchette.compile`; by default the bounds and the backends that the file names.
        stages: whether the compiler's stages are held against eager, too.
        data_files: .ptd files with weights of the file.
        device: what executes the file: by default the runtime in this process.
        seed: of random inputs.
        progress: called with (stage, step) before each execution.

    Raises:
        InputError: there is neither a model nor a file, a model without inputs and without a file, no such method, or the
            inputs do not fit.
        FormatError: the file is no program.
        RuntimeLoadError: this runtime cannot load it.
        CompileError: the model cannot be compiled.
    """
    from torchette.devtools.diff.comparison import Comparison

    comparison = Comparison(model, file, method, dynamic_shapes, backend, data_files, device, progress)
    return comparison.run(inputs, kwargs or {}, search, stages, seed)
