# SPDX-License-Identifier: BSD-3-Clause
# In: pairs of values, of a recorded graph and of the device. Out: a table with a distance for each pair.
"""`NumericalComparatorBase` and the three that are there: mean square error, sum of differences, signal to noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from torchette.devtools.inspector.comparison import mean_square, signal_to_noise
from torchette.devtools.inspector.table import Table
from torchette.devtools.inspector.values import as_float64
from torchette.errors import InputError, InputTypeError

__path__: list[str] = []  # in ExecuTorch this is a package; torchette.compat serves what is in it

DebugHandle = tuple[int, ...]
# (handles, the graph's value) -> (handles, the device's value)
IntermediateOutputMapping = dict[tuple[DebugHandle, Any], tuple[DebugHandle, Any]]


class NumericalComparatorBase(ABC):
    """A distance of your own: derive from it, and give it to `Inspector.calculate_numeric_gap`.

    Args:
        inspector: the one that asks; it sets itself if this is None.
    """

    def __init__(self, inspector: object = None) -> None:
        self._inspector = inspector

    @property
    def inspector(self) -> Any:
        """The Inspector that asks."""
        return self._inspector

    @inspector.setter
    def inspector(self, value: object) -> None:
        self._inspector = value

    def preprocessing(self, mapping: IntermediateOutputMapping) -> IntermediateOutputMapping:
        """What is to be compared, instead of the values as they are: in another layout, for example."""
        return mapping

    @abstractmethod
    def element_compare(self, a: object, b: object) -> float:
        """The distance of a graph's tensor or number and the device's."""

    def compare(
        self,
        mapping: IntermediateOutputMapping,
        aot_debug_handle_to_op_names: Mapping[DebugHandle, Sequence[str]],
        runtime_debug_handle_to_op_names: Mapping[DebugHandle, Sequence[str]],
    ) -> Table:
        """A row for each pair, in their order.

        Raises:
            InputTypeError, InputError: `preprocessing` returned something else than pairs, or values that cannot be compared.
        """
        rows = []
        for (aot_handles, aot), (handles, runtime) in _pairs(self.preprocessing(mapping)):
            if aot is not None and runtime is not None:
                rows.append(
                    {
                        "aot_debug_handle": aot_handles,
                        "aot_ops": _names(aot_handles, aot_debug_handle_to_op_names),
                        "aot_intermediate_output": aot,
                        "runtime_ops": _names(handles, runtime_debug_handle_to_op_names),
                        "runtime_debug_handle": handles,
                        "runtime_intermediate_output": runtime,
                        "gap": self._gaps(aot, runtime, handles),
                    }
                )
        return Table(rows)

    def _gaps(self, aot: object, runtime: object, handles: DebugHandle) -> list[float]:
        ours, theirs = (value if isinstance(value, Sequence) else None for value in (aot, runtime))
        if ours is None and theirs is None:
            return [self.element_compare(aot, runtime)]
        if ours is None or theirs is None or len(ours) != len(theirs):
            raise InputError(f"the values of debug handles {handles} are not as many on both sides")
        return [self.element_compare(*pair) for pair in zip(ours, theirs, strict=True)]


def _pairs(mapping: object) -> Iterator[Any]:
    if not isinstance(mapping, Mapping):
        raise InputTypeError(f"preprocessing() returned a {type(mapping).__name__}, not a dict of pairs")
    for pair in mapping.items():
        for side in pair:
            pair_of_two = isinstance(side, tuple) and len(side) == 2
            if (
                not pair_of_two
                or not isinstance(side[0], tuple)
                or not all(isinstance(h, int) for h in side[0])
            ):
                raise InputError(
                    f"preprocessing() returned {side!r:.200}",
                    hints=["(debug handles as a tuple of ints, value)"],
                )
        yield pair


def _names(handles: DebugHandle, names: Mapping[DebugHandle, Sequence[str]]) -> list[str]:
    wanted = set(handles)
    return [name for key, found in names.items() if wanted.issuperset(key) for name in found]


def _float64(value: object) -> np.ndarray:
    """NaN counts as 0: where both sides have it they are equal."""
    array = as_float64(value)
    return np.nan_to_num(array) if np.isnan(array).any() else array


def _both(a: object, b: object) -> tuple[np.ndarray, np.ndarray]:
    one, other = _float64(a), _float64(b)
    try:
        np.broadcast_shapes(one.shape, other.shape)
    except ValueError:
        raise InputError(
            f"values of sizes {list(one.shape)} and {list(other.shape)} cannot be compared"
        ) from None
    return one, other


class MSEComparator(NumericalComparatorBase):
    """The mean of the squares of the differences."""

    def element_compare(self, a: object, b: object) -> float:
        """The distance; 0 for equal values."""
        return float(mean_square(*_both(a, b)))


class L1Comparator(NumericalComparatorBase):
    """The sum of the absolute differences."""

    def element_compare(self, a: object, b: object) -> float:
        """The distance; 0 for equal values."""
        one, other = _both(a, b)
        return float(np.abs(one - other).sum())


class SNRComparator(NumericalComparatorBase):
    """The ratio of signal to noise in decibels."""

    def element_compare(self, a: object, b: object) -> float:
        """The ratio; the greater, the closer, infinite for equal values."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(signal_to_noise(*_both(a, b)))


def comparator(distance: object, inspector: object) -> NumericalComparatorBase:
    """The comparator of a name, or the user's own. Raises InputError, InputTypeError."""
    if isinstance(distance, NumericalComparatorBase):
        if distance.inspector is None:
            distance.inspector = inspector
        return distance
    known: dict[str, Any] = {"MSE": MSEComparator, "L1": L1Comparator, "SNR": SNRComparator}
    if not isinstance(distance, str):
        raise InputTypeError(
            f"distance: expected a name or a NumericalComparatorBase, not {type(distance).__name__}"
        )
    kind = known.get(distance.strip().upper())
    if kind is None:
        raise InputError(f"no distance {distance!r}", hints=[f"distances: {', '.join(known)}"])
    result: NumericalComparatorBase = kind(inspector)
    return result
