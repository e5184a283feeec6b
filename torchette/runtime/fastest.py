# SPDX-License-Identifier: BSD-3-Clause
# Measures the two plans of a method, for Program.load_fastest().

from __future__ import annotations

import hashlib
import math
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any

from torchette.errors import ExecutionError, InputError
from torchette.runtime import native
from torchette.runtime.kernels import kernel_levels
from torchette.runtime.method import Method
from torchette.runtime.method_meta import MethodMeta


def example_inputs(meta: MethodMeta) -> list[Any]:
    """Returns an array of the maximum shape for each input."""
    import numpy

    arrays = []
    for index in range(meta.num_inputs()):
        try:
            info = meta.input_tensor_meta(index)
        except TypeError:
            raise InputError(
                f"input {index} of method {meta.name()!r} is {meta.input_text(index)}: there is no default example for it",
                hints=["load_fastest(name, inputs) with typical inputs"],
            ) from None
        count, dtype = math.prod(info.sizes()), info.dtype_name
        if "float" in dtype:
            values = numpy.linspace(-1, 1, count).astype("float32" if dtype == "bfloat16" else dtype)
        else:
            values = numpy.zeros(count, dtype)
        arrays.append(values.reshape(info.sizes()))
    return arrays


def measure_times(
    methods: dict[bytes, Method], inputs: Sequence[Any], seconds: float, clock: Callable[[], float]
) -> dict[bytes, float]:
    """Returns the minimum time of each method. The methods run in turn until `seconds` have passed."""
    best = dict.fromkeys(methods, math.inf)
    start = clock()
    while True:
        for plan, method in methods.items():
            before = clock()
            method.execute(inputs)
            best[plan] = min(best[plan], clock() - before)
        if clock() - start >= seconds:
            return best


def machine_key(plans: Sequence[MethodMeta]) -> bytes:
    """A hash of the signatures of the plans and of the machine. A choice between plans is valid as long as it is the same."""
    signatures = [(meta, meta.planned_sizes, meta.num_instructions, meta.backend_names) for meta in plans]
    machine = (platform.machine(), os.cpu_count(), kernel_levels(), sorted(native.module().backends()))
    text = repr((signatures, machine))
    return hashlib.sha256(text.encode()).hexdigest().encode()


def compare(expected: Sequence[Any], actual: Sequence[Any], tolerance: float) -> None:
    """Raises ExecutionError if an output differs by more than `tolerance` times its largest element."""
    import numpy

    def plain(value: object) -> Any:  # numpy has no bfloat16
        return numpy.asarray(value.double() if hasattr(value, "double") else value, "float64")

    for index, (expected_output, output) in enumerate(zip(expected, actual, strict=True)):
        if expected_output is None or isinstance(expected_output, str):
            continue
        expected_output, output = plain(expected_output), plain(output)
        limit = tolerance * numpy.abs(expected_output[numpy.isfinite(expected_output)]).max(initial=0)
        if expected_output.shape != output.shape or not numpy.allclose(
            output, expected_output, rtol=0, atol=limit, equal_nan=True
        ):
            raise ExecutionError(f"output {index} of the backends differs from that of the portable kernels")
