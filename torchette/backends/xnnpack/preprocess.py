# SPDX-License-Identifier: BSD-3-Clause
# A program of operators that XNNPACK has comes in, a payload goes out. See payload.py for its form, operators.py for
# what each operator becomes.
"""What the XNNPACK backend makes of a program."""

from __future__ import annotations

import operator

from torch.export import ExportedProgram

from torchette.backends.xnnpack.operators import Lowering, why_not
from torchette.exir.delegate import BackendDetails, CompileSpec, PreprocessResult
from torchette.exir.graph import calls, constants, outputs, placeholders


class XnnpackBackend(BackendDetails):
    """Float32 networks on Google's XNNPACK library. The payload is ExecuTorch's: either runtime runs it."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """The payload of a program; its weights are named data.

        Raises:
            ValueError: a node that the library cannot run, or an option that this backend does not have.
        """
        if compile_specs:
            raise ValueError(f"the XNNPACK backend has no option {compile_specs[0].key!r}")
        stored = dict(constants(edge_program))
        inputs = [node for node in placeholders(edge_program) if node not in stored]
        results = outputs(edge_program)
        lowering = Lowering(len(inputs) + len(results), stored)
        for argument, node in enumerate(inputs):
            lowering.add_input(node, argument)
        for argument, node in enumerate(results, len(inputs)):
            lowering.add_output(node, argument)
        for node in calls(edge_program):
            if node.target is operator.getitem:
                continue
            reason = why_not(node, stored)
            if reason is not None:
                raise ValueError(f"{node.target}: {reason}")
            lowering.lower(node)
        return PreprocessResult(
            lowering.finish(), data_store_output=lowering.payload.store.get_named_data_store_output()
        )
