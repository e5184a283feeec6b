# SPDX-License-Identifier: BSD-3-Clause
# Calls a kernel with the arguments of an eager operator. The kernel is named after the out overload. Checks that the
# outputs are equal and that no byte outside of them is written.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchette.runtime import _native

GUARD = 64
TOLERANCE = {
    torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-9, 1e-10),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 2e-2),
}


def guarded(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns an output tensor with the geometry of `like`, and the larger buffer that contains it."""
    dtype = like.dtype
    buffer = torch.full((like.numel() + 2 * GUARD,), 99, dtype=torch.uint8).to(dtype)
    return buffer[GUARD : GUARD + like.numel()].as_strided(like.shape, like.stride(), GUARD), buffer


def run(
    name: str, *arguments: Any, like: Sequence[torch.Tensor], level: str | None = None, threads: int = 1
) -> list[torch.Tensor]:
    """Runs kernel `name` with outputs shaped like `like` and checks the bytes around them.

    Args:
        name: the qualified name of the kernel.
        arguments: the arguments of the kernel without its outputs.
        like: tensors with the shapes, strides and dtypes of the outputs.
        level: the instruction set level; the highest supported one if None.
        threads: the number of threads for the loops of the kernel.

    Returns:
        The outputs.
    """
    outputs, buffers = zip(*(guarded(t) for t in like), strict=True)
    sizes = _native.call_kernel(name, *arguments, *outputs, level=level, threads=threads)
    # The sizes of arguments that are written to precede the sizes of the results.
    for output, buffer, size in zip(outputs, buffers, sizes[-len(outputs) :], strict=True):
        assert tuple(size) == tuple(output.shape)
        edge = torch.full((GUARD,), 99, dtype=torch.uint8).to(output.dtype)
        assert torch.equal(buffer[:GUARD], edge), "wrote before the output"
        assert torch.equal(buffer[GUARD + output.numel() :], edge), "wrote after the output"
    return list(outputs)


def check(
    name: str, expected: torch.Tensor | Sequence[torch.Tensor], *arguments: Any, scale: float = 1.0
) -> list[torch.Tensor]:
    """Compares a kernel with `expected`, the result of eager for `arguments`. `scale` widens the tolerance."""
    expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    outputs = run(name, *arguments, like=expected)
    for output, reference in zip(outputs, expected, strict=True):
        rtol, atol = TOLERANCE.get(reference.dtype, (0, 0))
        # The absolute error of a sum grows with its largest term, even if the terms cancel.
        finite = reference[reference.isfinite()]
        if finite.numel() and atol:
            atol *= max(1.0, finite.abs().max().item())
        torch.testing.assert_close(output, reference, rtol=rtol * scale, atol=atol * scale, equal_nan=True)
    return outputs
