# SPDX-License-Identifier: BSD-3-Clause
# A tensor in the signature of a method: shape, dtype, layout, quantization.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torchette.schema import DTYPES

# Names of the element types, by number.
_DTYPES = tuple(dtype.torch_name for dtype in DTYPES)


class Quantization(NamedTuple):
    """Affine quantization: real = (q - zero_point) * scale.

    Example:
        >>> scale, zero_point, axis = Quantization(0.5, 3)
        >>> (5 - zero_point) * scale
        1.0
    """

    scale: float
    zero_point: int
    axis: int | None = None
    """The channel axis; None if all elements have one scale."""


class TensorInfo:
    """A tensor in the signature of a method. `MethodMeta` returns it.

    Example:
        >>> info = Runtime.get().load_program("model.pte").metadata("forward").input_tensor_meta(0)
        >>> info.sizes(), info.dtype_name, info.nbytes()
        ((1, 4), 'float32', 16)
    """

    def __init__(self, signature: Any, constant: Callable[[str], Any] = lambda key: None) -> None:
        self._constant = constant  # returns the value of a quantization key of an input or output, None if the file has none
        self._sizes: tuple[int, ...] = signature.sizes
        self._dtype: int = signature.dtype
        self._planned: bool = signature.is_memory_planned
        self._nbytes: int = signature.nbytes
        self.name: str = signature.name
        self.is_dynamic: bool = signature.is_dynamic
        self.ranges: tuple[tuple[int, int], ...] = signature.ranges
        """For an input of dynamic shape: the minimum and the maximum size of each dimension; 2^31 - 1 if unbounded."""
        self.dim_order: tuple[int, ...] = signature.dim_order
        """Dimensions from the outermost to the innermost in memory."""

    def sizes(self) -> tuple[int, ...]:
        """Returns the shape; upper bounds if `is_dynamic`."""
        return self._sizes

    def dtype(self) -> int:
        """Returns the code of the element type in torch; `dtype_name` has its name."""
        return self._dtype

    @property
    def dtype_name(self) -> str:
        """The element type as torch and numpy name it, such as ``float32``."""
        return _DTYPES[self._dtype] if self._dtype < len(_DTYPES) else f"dtype {self._dtype}"

    @property
    def quant(self) -> Quantization | None:
        """The quantization of an input or output; None if it is not quantized."""
        scale, zero_point = self._constant("scale"), self._constant("zp")
        return None if scale is None or zero_point is None else Quantization(scale, zero_point)

    @property
    def quant_range(self) -> tuple[int, int] | None:
        """The minimum and the maximum quantized value; None if the tensor is not quantized."""
        minimum, maximum = self._constant("quant_min"), self._constant("quant_max")
        return None if minimum is None or maximum is None else (minimum, maximum)

    def is_memory_planned(self) -> bool:
        """Returns whether the tensor is in the planned memory of the method; otherwise it is in memory of the caller."""
        return self._planned

    def nbytes(self) -> int:
        """Returns the size in bytes of the maximum shape."""
        return self._nbytes

    def __repr__(self) -> str:
        bound = " at most" if self.is_dynamic else ""
        return f"{self.dtype_name}[{', '.join(map(str, self._sizes))}]{bound}"
