# SPDX-License-Identifier: BSD-3-Clause
# In: a serialized program. Out: nothing, or an error for a method that no runtime loads.
"""`check_load`: a program that was serialized must load."""

from __future__ import annotations

from torchette.errors import CompileError, NativeModuleError
from torchette.exir.emit import EmitterOutput
from torchette.exir.graph import place, shape_text
from torchette.format import pte
from torchette.runtime.load_check import LoadFault, load_faults


def check_load(file: pte.Pte, output: EmitterOutput) -> None:
    """Checks that the runtime loads every method of a file. Does nothing if the runtime is not built.

    The weights are not read or copied. Missing kernels and backends are no errors, because the device may have them.

    Args:
        file: the serialized program.
        output: the output of the emitter, which maps records to nodes.

    Raises:
        CompileError: code "does-not-load": a method does not load. Names the operator and the line of the model.
    """
    try:
        faults = load_faults(file.chunks[0], file.nbytes)
    except NativeModuleError:
        return
    if not faults:
        return
    first = faults[0]
    subject = f"method {first.method!r}" if first.method else "the program"
    raise CompileError(
        f"{subject} does not load: {first.reason}",
        where=[location for fault in faults if (location := _location(fault, output))],
        hints=_hints(first),
        code="does-not-load",
    )


def _hints(fault: LoadFault) -> list[str]:
    if "too large" in fault.reason:
        return ["use smaller tensors, or a smaller maximum of a dynamic dimension: Dim('n', max=1024)"]
    return [
        "edge=EdgeCompileConfig(check_passes=True) checks the graph after each pass",
        "remove custom passes, partitioners and memory planning passes, one at a time",
    ]


def _location(fault: LoadFault, output: EmitterOutput) -> str:
    """Returns the operator of a fault and its line in the model; empty if they are unknown."""
    node = None
    if fault.instruction is not None:
        nodes = output.nodes.get(fault.method, [])
        node = nodes[fault.instruction] if fault.instruction < len(nodes) else None
    elif fault.value is not None:
        for candidate, values in output.values.get(fault.method, {}).items():
            if fault.value in (values if isinstance(values, tuple) else (values,)):
                node = candidate
                break
    if node is None:
        return ""
    what = str(node.target) if node.op == "call_function" else f"{node.op} {node.name}"
    return f"{what}, {shape_text(node.meta.get('val'))}: {place(node)}"
