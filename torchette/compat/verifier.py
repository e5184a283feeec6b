# SPDX-License-Identifier: BSD-3-Clause
# A program or graph comes in, by ExecuTorch's names of verifiers; the rules of the Edge dialect are held against it.
"""`EXIREdgeDialectVerifier`; `torchette.exir.verify(program, "edge")` is the same."""

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
    """The rule of Edge about dtypes alone. Raises SpecViolationError."""
    found = [violation for violation in violations(program_of(gm), "edge") if "dtype" in violation.code]
    if found:
        raise SpecViolationError("\n".join(["operators with mismatched dtypes:", *map(str, found)]))


def EXIREdgeDialectVerifier(
    edge_compile_config: EdgeCompileConfig | None = None,
    class_only: bool = False,
    core_aten_ops_exception_list: Sequence[Any] | None = None,
    preserve_ops: Sequence[Any] | None = None,
) -> Any:
    """What a program in the Edge dialect can be called with to be checked; it raises torch's SpecViolationError, whose cause
    is a DialectError with all violations.

    Args:
        edge_compile_config: an `EdgeCompileConfig`; without ``_check_ir_validity`` nothing is checked. Its operators to keep
            are accepted.
        class_only: the class and not an object of it, as `ExportedProgram(verifiers=[...])` wants it.
        core_aten_ops_exception_list, preserve_ops: operators that are accepted besides.
    """
    config = edge_compile_config
    allowed = [
        *(core_aten_ops_exception_list or getattr(config, "_core_aten_ops_exception_list", None) or ()),
        *(preserve_ops or getattr(config, "preserve_ops", None) or ()),
    ]

    class EdgeVerifier(Verifier):
        """The rules of the Edge dialect."""

        dialect = "EDGE"

        def check_valid_op(self, op: object) -> None:
            """Operators are checked with all the rest."""

        def check_additional(self, gm: GraphModule) -> None:
            """All rules that a graph alone can break."""
            self(gm)

        def __call__(self, program: ExportedProgram | GraphModule) -> None:
            """Check a program or a graph module."""
            if config is not None and not config._check_ir_validity:
                return
            whole = program if isinstance(program, ExportedProgram) else program_of(program)
            try:
                verify(whole, "edge", allowed)
            except DialectError as error:
                raise SpecViolationError(str(error)) from error

    return EdgeVerifier if class_only else EdgeVerifier()
