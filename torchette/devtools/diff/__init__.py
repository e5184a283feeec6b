# SPDX-License-Identifier: BSD-3-Clause
# In: a model, a file, or both, and inputs. Out: the first operator that departs. torch and the compiler are imported on
# the first call of `compare`.
"""Finds the first operator of a file that departs from torch or from the model, its source line, and the cause.

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
    """Compares a file with torch, instruction by instruction, and with the model that it was compiled from.

    Each instruction runs on the runtime. torch's operator runs on the same input values, so that a fault is reported
    where it occurs. The error that rounding can cause is measured for each operator and is not a fault. With a model,
    each instruction is also compared with this compiler's graph of the model, and that graph with eager.

    Args:
        model: the module, its ExportedProgram, or the result of `torchette.compile`, which is not compiled again. None
            compares the file only with torch.
        file: a .pte file as path or bytes; by default, the model is compiled.
        inputs: positional arguments of the model. By default those of an ExportedProgram, or random values with the
            shapes and dtypes in the file, with dynamic dimensions at their maximum.
        method: name of the file's method; by default ``forward``, or the only method.
        kwargs: keyword arguments of the model.
        dynamic_shapes: as for `torchette.compile`; by default the bounds in the file.
        backend: as for `torchette.compile`; by default the backends in the file.
        search: also compare other input ranges, zeros, infinities and the corners of dynamic shapes.
        stages: also compare the compiler's stages with eager.
        data_files: .ptd files with weights of the file.
        device: executes the file; by default the runtime in this process.
        seed: seed of random inputs.
        progress: function that is called with (stage, step) before each execution.

    Returns:
        The result; `DiffResult.first` is the first fault in execution order.

    Raises:
        InputError: neither a model nor a file is passed, a model is passed without inputs and file, the file has no
            such method, or the inputs do not match the method.
        FormatError: the file is not a program, or it is damaged.
        RuntimeLoadError: this runtime cannot load the file.
        CompileError: the model cannot be compiled.
    """
    from torchette.devtools.diff.comparison import Comparison

    comparison = Comparison(model, file, method, dynamic_shapes, backend, data_files, device, progress)
    return comparison.run(inputs, kwargs or {}, search, stages, seed)
