# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's verifiers, implemented with the rules of Torchette's dialects. In: a program or a graph module.
"""`EXIREdgeDialectVerifier` and `EXIRATenDialectVerifier`; `torchette.exir.verify(program, "edge")` is the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch._export.verifier import SpecViolationError, Verifier
from torch.export import ExportedProgram
from torch.fx import GraphModule

from torchette.errors import DialectError
from torchette.exir.dialects import verify, violations
from torchette.exir.graph import program_of

if TYPE_CHECKING:
    from torchette.exir.config import EdgeCompileConfig


def _check_tensor_args_matching_op_allowed_dtype(gm: GraphModule) -> None:
    """Checks only the dtype rules of Edge.

    Raises:
        SpecViolationError: if a call violates them.
    """
    mismatches = [violation for violation in violations(program_of(gm), "edge") if "dtype" in violation.code]
    if mismatches:
        raise SpecViolationError("\n".join(["operators with mismatched dtypes:", *map(str, mismatches)]))


def EXIREdgeDialectVerifier(
    edge_compile_config: EdgeCompileConfig | None = None,
    class_only: bool = False,
    core_aten_ops_exception_list: Sequence[Any] | None = None,
    preserve_ops: Sequence[Any] | None = None,
) -> Any:
    """Returns a verifier of the Edge dialect.

    Called with a program or a graph module, it raises torch's SpecViolationError. The cause of the error is a
    DialectError with all violations.

    Args:
        edge_compile_config: its preserved operators are accepted; without its ``_check_ir_validity``, nothing is
            checked.
        class_only: whether to return the class, which `ExportedProgram(verifiers=[...])` requires, instead of an
            instance.
        core_aten_ops_exception_list, preserve_ops: additional accepted operators.
    """
    return _verifier("edge", edge_compile_config, class_only, core_aten_ops_exception_list, preserve_ops)


def EXIRATenDialectVerifier(
    edge_compile_config: EdgeCompileConfig | None = None,
    class_only: bool = False,
    core_aten_ops_exception_list: Sequence[Any] | None = None,
    preserve_ops: Sequence[Any] | None = None,
) -> Any:
    """Returns a verifier of core ATen, with the arguments and errors of `EXIREdgeDialectVerifier`."""
    return _verifier("core_aten", edge_compile_config, class_only, core_aten_ops_exception_list, preserve_ops)


def _verifier(
    rules: str,
    config: EdgeCompileConfig | None,
    class_only: bool,
    exceptions: Sequence[Any] | None,
    preserved: Sequence[Any] | None,
) -> Any:
    allowed = [
        *(exceptions or getattr(config, "_core_aten_ops_exception_list", None) or ()),
        *(preserved or getattr(config, "preserve_ops", None) or ()),
    ]

    class DialectVerifier(Verifier):
        """The rules of one dialect."""

        dialect = "EDGE" if rules == "edge" else "OLD_EXIR_ATEN"

        def check_valid_op(self, op: object) -> None:
            """Accepts all operators, because `check_additional` checks them."""

        def check_additional(self, gm: GraphModule) -> None:
            """Checks all rules that concern a graph."""
            self(gm)

        def __call__(self, program: ExportedProgram | GraphModule) -> None:
            """Checks a program or a graph module."""
            if config is not None and not config._check_ir_validity:
                return
            exported = program if isinstance(program, ExportedProgram) else program_of(program)
            try:
                verify(exported, rules, allowed)
            except DialectError as error:
                raise SpecViolationError(str(error)) from error

    return DialectVerifier if class_only else DialectVerifier()
