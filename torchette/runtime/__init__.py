# SPDX-License-Identifier: BSD-3-Clause
# The Python interface of the C++ runtime. It needs numpy and the native module and never imports torch. It accepts torch
# tensors and then returns torch tensors.
"""Load and execute .pte programs.

>>> from torchette.runtime import Runtime
>>> program = Runtime.get().load_program("model.pte")
>>> method = program.load_method("forward")
>>> outputs = method.execute([numpy.ones((1, 3), "float32")])

Methods keep their program alive, and the caller owns the outputs. The runtime prints nothing: its messages are in the
exceptions and in ``logging.getLogger("torchette")``.
"""

from __future__ import annotations

import logging

from torchette.runtime.backend_registry import BackendRegistry
from torchette.runtime.kernels import call_kernel, kernel_level, kernel_levels, scratch_bytes
from torchette.runtime.method import Method
from torchette.runtime.method_meta import MethodMeta
from torchette.runtime.operator_registry import (
    OperatorRegistry,
    load_kernels,
    operator_names,
    operator_signatures,
)
from torchette.runtime.program import Program
from torchette.runtime.runtime import Runtime
from torchette.runtime.tensor_info import Quantization, TensorInfo
from torchette.runtime.tracing import Event, Intermediate
from torchette.runtime.verification import Verification, xxh64

__all__ = [
    "BackendRegistry",
    "Event",
    "Intermediate",
    "Method",
    "MethodMeta",
    "OperatorRegistry",
    "Program",
    "Quantization",
    "Runtime",
    "TensorInfo",
    "Verification",
    "call_kernel",
    "kernel_level",
    "kernel_levels",
    "load_kernels",
    "operator_names",
    "operator_signatures",
    "scratch_bytes",
    "xxh64",
]

# Without a handler, Python prints the messages.
logging.getLogger("torchette").addHandler(logging.NullHandler())
