# SPDX-License-Identifier: BSD-3-Clause
# In: pairs of values, of a recorded graph and of the device. Out: a table with a distance for each pair.
"""`NumericalComparatorBase` and its implementations: mean squared error, L1 distance, signal-to-noise ratio."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from torchette.devtools.inspector.comparison import mean_square, signal_to_noise
from torchette.devtools.inspector.table import Table
from torchette.devtools.inspector.values import as_float64
from torchette.errors import InputError, InputTypeError

__path__: list[str] = []  # in ExecuTorch this is a package; torchette.compat provides its modules

DebugHandle = tuple[int, ...]
# (handles, the graph's value) -> (handles, the device's value)
IntermediateOutputMapping = dict[tuple[DebugHandle, Any], tuple[DebugHandle, Any]]


class NumericalComparatorBase(ABC):
    """Base class of distances for `Inspector.calculate_numeric_gap`.

    Args:
        inspector: the calling Inspector; it is set on use if it is None.
    """

    def __init__(self, inspector: object = None) -> None:
        self._inspector = inspector

    @property
    def inspector(self) -> Any:
        """The calling Inspector."""
        return self._inspector

    @inspector.setter
    def inspector(self, value: object) -> None:
        self._inspector = value

    def preprocessing(self, mapping: IntermediateOutputMapping) -> IntermediateOutputMapping:
        """Returns the pairs to compare, for example in another layout. By default returns `mapping`."""
        return mapping

    @abstractmethod
    def element_compare(self, a: object, b: object) -> float:
        """Returns the distance between a value of the graph and a value of the device: tensors or scalars."""

    def compare(
        self,
        mapping: IntermediateOutputMapping,
        aot_debug_handle_to_op_names: Mapping[DebugHandle, Sequence[str]],
        runtime_debug_handle_to_op_names: Mapping[DebugHandle, Sequence[str]],
    ) -> Table:
        """Returns a table with a row for each pair, in order.

        Raises:
            InputTypeError: `preprocessing` did not return a dict.
            InputError: `preprocessing` returned an invalid pair, or values cannot be compared.
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
            raise InputError(f"the values of debug handles {handles} differ in count or type")
        return [self.element_compare(*pair) for pair in zip(ours, theirs, strict=True)]


def _pairs(mapping: object) -> Iterator[Any]:
    if not isinstance(mapping, Mapping):
        raise InputTypeError(f"preprocessing() returned {type(mapping).__name__}, expected a dict of pairs")
    for pair in mapping.items():
        for side in pair:
            pair_of_two = isinstance(side, tuple) and len(side) == 2
            if (
                not pair_of_two
                or not isinstance(side[0], tuple)
                or not all(isinstance(h, int) for h in side[0])
            ):
                raise InputError(
                    f"preprocessing() returned an invalid side of a pair: {side!r:.200}",
                    hints=["expected (debug handles as a tuple of ints, value)"],
                )
        yield pair


def _names(handles: DebugHandle, names: Mapping[DebugHandle, Sequence[str]]) -> list[str]:
    handle_set = set(handles)
    return [name for key, node_names in names.items() if handle_set.issuperset(key) for name in node_names]


def _float64(value: object) -> np.ndarray:
    """Returns a float64 array with NaN replaced by 0, so that NaN equals NaN."""
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
    """Mean squared error."""

    def element_compare(self, a: object, b: object) -> float:
        """Returns the distance; 0 for equal values."""
        return float(mean_square(*_both(a, b)))


class L1Comparator(NumericalComparatorBase):
    """Sum of the absolute differences."""

    def element_compare(self, a: object, b: object) -> float:
        """Returns the distance; 0 for equal values."""
        one, other = _both(a, b)
        return float(np.abs(one - other).sum())


class SNRComparator(NumericalComparatorBase):
    """Signal-to-noise ratio in decibels."""

    def element_compare(self, a: object, b: object) -> float:
        """Returns the ratio: larger is closer, infinite for equal values."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(signal_to_noise(*_both(a, b)))


def comparator(distance: object, inspector: object) -> NumericalComparatorBase:
    """Returns the comparator with a name, or the user's comparator.

    Raises:
        InputTypeError: `distance` is neither a name nor a comparator.
        InputError: the name is unknown.
    """
    if isinstance(distance, NumericalComparatorBase):
        if distance.inspector is None:
            distance.inspector = inspector
        return distance
    known: dict[str, Any] = {"MSE": MSEComparator, "L1": L1Comparator, "SNR": SNRComparator}
    if not isinstance(distance, str):
        raise InputTypeError(
            f"distance: expected a name or a NumericalComparatorBase, got {type(distance).__name__}"
        )
    kind = known.get(distance.strip().upper())
    if kind is None:
        raise InputError(f"unknown distance {distance!r}", hints=[f"distances: {', '.join(known)}"])
    result: NumericalComparatorBase = kind(inspector)
    return result
