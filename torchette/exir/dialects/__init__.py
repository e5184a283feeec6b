# SPDX-License-Identifier: BSD-3-Clause
# The dialects of the compiler as data: the call targets that each accepts, and the checks that its nodes must pass. In:
# an ExportedProgram. Out: all violations, with source lines and remedies.
"""AUTOGRAD_SAFE, ATEN, CORE_ATEN, EDGE, BACKEND and EXEC, and `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from torchette.errors import DialectError, unknown_name
from torchette.exir import ops
from torchette.exir.dialects import accepted, node_checks, program_checks
from torchette.exir.dialects._refused import REFUSED
from torchette.exir.dialects.accepted import ALIASES, core_operators, edge_extras
from torchette.exir.dialects.node_checks import COMMON, DTYPES, MAX_RANK, MIXED
from torchette.exir.dialects.program_checks import PROGRAM_CHECKS
from torchette.exir.dialects.rules import Check, Dialect, ProgramCheck, Violation
from torchette.exir.graph import graph_modules
from torchette.units import counted

__all__ = [
    "ALIASES", "ATEN", "AUTOGRAD_SAFE", "BACKEND", "COMMON", "CORE_ATEN", "DIALECTS", "DTYPES", "EDGE", "EXEC", "MAX_RANK",
    "MIXED", "PROGRAM_CHECKS", "Check", "Dialect", "ProgramCheck", "Violation", "core_operators", "edge_extras", "get", "verify",
    "violations",
]  # fmt: skip

AUTOGRAD_SAFE = Dialect(
    "autograd_safe",
    "Output of torch.export: registered operators before decomposition, differentiable; in-place updates allowed.",
    accepted.captured,
    (
        "not-an-operator",
        "is not a registered operator",
        "register it with torch.library.custom_op, or rewrite it",
    ),
    (
        *COMMON,
        node_checks.RESHAPED_IN_PLACE,
        node_checks.RESIZED_OUT,
        node_checks.OTHER_MEMORY,
        node_checks.SMALL_FLOATS,
    ),
    (
        *PROGRAM_CHECKS,
        program_checks.WITHOUT_VALUES,
        program_checks.UPDATED_CONSTANT,
        program_checks.ONE_TENSOR_TWICE,
    ),
)
ATEN = Dialect(
    "aten",
    "Functional operators only: ATen, higher-order and registered custom operators; views are allowed.",
    accepted.functional,
    (
        "not-functional",
        "is not a functional operator",
        "run exported_program.run_decompositions({}) to make updates functional; register Python functions "
        "with torch.library.custom_op",
    ),
    COMMON,
    PROGRAM_CHECKS,
)
CORE_ATEN = Dialect(
    "core_aten",
    "The operators of aten, restricted to torch's core set of ATen operators.",
    accepted.core,
    (
        "not-core",
        "is not in the core ATen set and has no decomposition",
        "rewrite that line with other operators, or keep the operator with EdgeCompileConfig(preserve_ops=[...]) if "
        "the runtime has a kernel for it",
    ),
    (*COMMON, node_checks.TRAIN_MODE),
    PROGRAM_CHECKS,
)
EDGE = Dialect(
    "edge",
    "The operators of core_aten, with copies instead of views, tensors instead of scalars, one dtype per operator, "
    "dense memory.",
    accepted.edge,
    (
        "not-edge",
        "is not an operator of the Edge dialect",
        "rewrite that line with other operators, or keep the operator with EdgeCompileConfig(preserve_ops=[...])",
    ),
    (*COMMON, *node_checks.EDGE),
    PROGRAM_CHECKS,
)
BACKEND = Dialect(
    "backend",
    "The operators of edge, and operators of a target, each of which replaces a pattern of Edge operators.",
    accepted.edge,
    EDGE.refusal,
    (*EDGE.checks, node_checks.NOT_ITS_PATTERN),
    PROGRAM_CHECKS,
)
EXEC = Dialect(
    "exec",
    "Out variants only, which write to planned memory; aliases and buffer updates are marked.",
    accepted.executable,
    (
        "not-out-variant",
        "is not an out variant",
        "run to_out_variants after the pass that added it",
    ),
    (*COMMON, *node_checks.EXEC),
    (*PROGRAM_CHECKS, program_checks.NOT_WRITTEN_BACK),
)

DIALECTS: dict[str, Dialect] = {d.name: d for d in (AUTOGRAD_SAFE, ATEN, CORE_ATEN, EDGE, BACKEND, EXEC)}


def violations(
    program: ExportedProgram, dialect: Dialect | str, allow: Sequence[Any] = ()
) -> list[Violation]:
    """Returns all violations of a dialect by a program, in graph order. `allow` contains additional accepted
    targets."""
    dialect = get(dialect)
    result: list[Violation] = []
    refused = dialect.refusal
    for module in graph_modules(program):
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target not in allow and not dialect.accepts(node.target):
                reason = f": {_reason(node)}" if _reason(node) else ""
                result.append(
                    Violation(
                        refused[0], f"{accepted.target_text(node)} {refused[1]}{reason}", refused[2], node
                    )
                )
            for check in dialect.checks:
                message = check.run(node)
                if message is not None:
                    result.append(Violation(check.code, message, check.remedy, node))
    for program_check in dialect.program_checks:
        result += [
            Violation(program_check.code, message, program_check.remedy, node)
            for node, message in program_check.run(program)
        ]
    return result


def verify(program: ExportedProgram, dialect: Dialect | str, allow: Sequence[Any] = ()) -> None:
    """Checks a program against a dialect.

    Args:
        program: the program to check.
        dialect: one of `DIALECTS`, or its name in upper or lower case.
        allow: additional call targets to accept.

    Raises:
        DialectError: the program has violations. The text and `.violations` contain all of them.

    Example:
        >>> verify(edge.exported_program(), "edge")
    """
    dialect = get(dialect)
    problems = violations(program, dialect, allow)
    if not problems:
        return
    codes = list(dict.fromkeys(v.code for v in problems))
    count = counted(len(problems), "violation")
    error = DialectError(
        f"{count} of the {dialect.name} dialect ({', '.join(codes)}):\n\n" + "\n\n".join(map(str, problems)),
        where=list(dict.fromkeys(v.place for v in problems)),
        hints=list(dict.fromkeys(v.remedy for v in problems)),
        code=codes[0] if len(codes) == 1 else None,
    )
    error.violations = tuple(problems)
    raise error


def get(dialect: Dialect | str) -> Dialect:
    """Returns a dialect by its name, such as `core_aten` or `CORE_ATEN`."""
    if isinstance(dialect, Dialect):
        return dialect
    try:
        return DIALECTS[dialect.lower()]
    except KeyError:
        raise DialectError(
            unknown_name("dialect", dialect, DIALECTS),
            hints=[f"dialects: {', '.join(DIALECTS)}"],
            code="no-such-dialect",
        ) from None


def _reason(node: Node) -> str:
    """Returns the reason why an operator is rejected, or an empty string."""
    return REFUSED.get(accepted.operator_name(node.target), "") if ops.is_operator(node.target) else ""
