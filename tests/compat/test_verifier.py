# SPDX-License-Identifier: BSD-3-Clause
# The rules of the Edge dialect, by the name of ExecuTorch's verifier.

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._export.verifier import SpecViolationError
from torchette.exir.verification.verifier import (
    EXIREdgeDialectVerifier,
    _check_tensor_args_matching_op_allowed_dtype,
)

from torchette.errors import DialectError
from torchette.exir import EdgeCompileConfig, to_edge


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.vector_norm(x) + nn.functional.silu(x)


EXPORTED = torch.export.export(Net(), (torch.ones(3),))


def test_edge_program_passes_and_aten_program_fails() -> None:
    edge = to_edge(EXPORTED).exported_program()
    for verifier in (EXIREdgeDialectVerifier(), EXIREdgeDialectVerifier(class_only=True)()):
        verifier(edge)
        verifier(edge.graph_module)
        with pytest.raises(SpecViolationError, match="silu") as error:
            verifier(EXPORTED.graph_module)
        assert isinstance(error.value.__cause__, DialectError)


def test_configuration_exceptions() -> None:
    EXIREdgeDialectVerifier(EdgeCompileConfig(_check_ir_validity=False))(EXPORTED)
    preserved = [torch.ops.aten.silu.default, torch.ops.aten.linalg_vector_norm.default]
    for options in (
        {"preserve_ops": preserved},
        {"edge_compile_config": EdgeCompileConfig(preserve_ops=preserved)},
    ):
        EXIREdgeDialectVerifier(**options)(EXPORTED)
    with pytest.raises(SpecViolationError):
        EXIREdgeDialectVerifier(preserve_ops=preserved[1:])(EXPORTED)


def test_dtype_rule_alone() -> None:
    program = to_edge(EXPORTED).exported_program()
    _check_tensor_args_matching_op_allowed_dtype(program.graph_module)
    _check_tensor_args_matching_op_allowed_dtype(EXPORTED.graph_module)  # silu violates another rule
    add = next(node for node in program.graph.nodes if "add" in str(node.target))
    source = add.all_input_nodes[0]
    source.meta["val"] = source.meta["val"].to(torch.int64)
    with pytest.raises(SpecViolationError, match="mismatched dtypes"):
        _check_tensor_args_matching_op_allowed_dtype(program.graph_module)


def test_passes_raise_named_errors() -> None:
    from torchette.exir.error import ExportError, ExportErrorType, InternalError, internal_assert

    from torchette.errors import TorchetteError

    with pytest.raises(TorchetteError, match=r"NOT_SUPPORTED.*: no such thing"):
        raise ExportError(ExportErrorType.NOT_SUPPORTED, "no such thing")
    internal_assert(True, "fine")
    with pytest.raises(InternalError, match="odd"):
        internal_assert(False, "odd")
