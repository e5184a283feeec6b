# SPDX-License-Identifier: BSD-3-Clause
# All exceptions that Torchette raises on purpose. This module imports nothing, because the compiler, the file formats,
# the runtime and the command line depend on it.
"""The exception tree.

    TorchetteError                                  error
    |- CompileError                                 compile-failed       ahead of time
    |  |- ExportError (RuntimeError)                export-failed        torch.export rejected the model
    |  |  `- TrainModeError (ValueError)            train-mode           the model is not in eval mode
    |  |- QuantizationError (ValueError)            bad-quantization     the model's quantization is not finished
    |  |- DialectError (ValueError)                 dialect-violation    a graph violates the rules of its dialect
    |  |- PassError (RuntimeError)                  pass-failed          a pass raised an error or changed the result
    |  |- MissingOutVariantError (LookupError)      missing-out-variant  an operator has no out overload
    |  |- MissingKernelError (LookupError)          missing-kernel       the runtime has no such kernel
    |  |- DelegationError (ValueError)              delegation-failed    a partition cannot be delegated
    |  |- PlanError (RuntimeError)                  plan-failed          memory cannot be planned
    |  |- EmitError (RuntimeError)                  emit-failed          the file format cannot represent a graph
    |  `- UnsupportedError (NotImplementedError)    unsupported          known, but not implemented
    |- BuildError (RuntimeError)                    build-failed         a compiler or linker failed
    |  |- TargetError (ValueError)                  no-such-target       there is no target with this name
    |  `- MissingCompilerError (FileNotFoundError)  no-compiler          there is no compiler for the target
    |- MissingPackageError (ImportError)            missing-package      a required package is not installed
    |- FormatError (ValueError)                     bad-file             a file is invalid or damaged
    |- ModelNotFoundError (FileNotFoundError)       no-such-file         a file or a folder does not exist
    |- InputError (ValueError)                      bad-input            a value does not match the method
    |  `- InputTypeError (TypeError)                bad-input-type       a value is of the wrong type
    |- UsageError (ValueError)                      bad-usage            an invalid command line
    |- RuntimeLoadError (RuntimeError)              load-failed          the runtime rejected a program
    |  `- NativeModuleError (ImportError)           no-native-module     the compiled runtime is missing
    `- ExecutionError (RuntimeError)                execution-failed     a method failed while it ran

Each error is also an instance of the built-in exception in brackets, so that ``except ValueError`` works.
``error.code`` is stable and intended for programs. ``error.where`` lists locations (the user's file and line first),
and ``error.hints`` lists remedies. The text contains them in this order: message, locations, remedies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class TorchetteError(Exception):
    """The base class of all exceptions that Torchette raises on purpose.

    Args:
        message: the problem, in the user's terms; the first line must be sufficient to understand it.
        where: locations, the most useful first, such as ``model.py:12, in forward: y = x.unfold(...)``.
        hints: remedies, one concrete action each; may contain several lines of code.
        code: a stable kebab-case name; default: that of the class.

    Example:
        >>> try:
        ...     torchette.load("missing.pte")
        ... except torchette.TorchetteError as error:
        ...     print(error.code)
        no-such-file
    """

    code: str = "error"

    def __init__(
        self, message: str, *, where: Iterable[str] = (), hints: Iterable[str] = (), code: str | None = None
    ) -> None:
        self.message = message
        self.where = (where,) if isinstance(where, str) else tuple(where)
        self.hints = (hints,) if isinstance(hints, str) else tuple(hints)
        if code is not None:
            self.code = code
        super().__init__(message)

    @property
    def page(self) -> str:
        """The section of the documentation that describes the code."""
        return f"docs/errors.md#{self.code}"

    def __str__(self) -> str:
        lines = [self.message]
        lines += [_indented("  at ", place) for place in self.where]
        if self.hints:
            lines.append("Try:")
            lines += [_indented("  - ", hint) for hint in self.hints]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.where, self.hints, self.code)


def _indented(lead: str, text: str) -> str:
    return lead + text.replace("\n", "\n" + " " * len(lead))


def _rebuild(
    kind: type, message: str, where: tuple[Any, ...], hints: tuple[Any, ...], code: str
) -> TorchetteError:
    result: TorchetteError = kind(message, where=where, hints=hints, code=code)
    return result


def not_copyable(subject: str, remedy: str) -> InputTypeError:
    """Returns the error for pickling or copying an object of the runtime."""
    return InputTypeError(
        f"{subject} cannot be pickled or copied: its memory belongs to this process", hints=[remedy]
    )


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Returns ``; did you mean NAME?`` with the most similar known name, or nothing if no name is similar."""
    import difflib  # imported only after an error

    names = {str(one).lower(): str(one) for one in known}
    near = difflib.get_close_matches(str(name).lower(), names, 1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def unknown_name(kind: str, name: object, known: Iterable[object]) -> str:
    """Returns the message for a name that is not one of the known names of its kind."""
    return f"there is no {kind} {name!r}{did_you_mean(name, known)}"


class CompileError(TorchetteError):
    """An error of the compiler, between the module and the file."""

    code = "compile-failed"


class ExportError(CompileError, RuntimeError):
    """``torch.export`` cannot capture the model."""

    code = "export-failed"


class TrainModeError(ExportError, ValueError):
    """A part of the model is in training mode."""

    code = "train-mode"


class QuantizationError(CompileError, ValueError):
    """The model's quantization is unfinished, unsupported, or not within the limits.

    In the last case, ``.table`` contains the measurements of `torchette.quantize`.
    """

    code = "bad-quantization"
    table: object = None


class DialectError(CompileError, ValueError):
    """A graph violates the rules of its dialect; ``.violations`` lists all violations."""

    code = "dialect-violation"
    violations: tuple[Any, ...] = ()

    @property
    def page(self) -> str:
        """The section about dialects, if the code is that of a rule."""
        return f"docs/errors.md#{DialectError.code}" if self.violations else super().page

    def __str__(self) -> str:
        # Each violation already contains its location and its remedy.
        return self.message if self.violations else super().__str__()


class PassError(CompileError, RuntimeError):
    """A pass raised an error, produced an invalid graph, or changed the model's result; ``.pass_name`` names it."""

    code = "pass-failed"
    pass_name: str | None = None


class MissingOutVariantError(CompileError, LookupError):
    """Operators without an out overload; ``.operators`` lists them."""

    code = "missing-out-variant"
    operators: tuple[str, ...] = ()


class MissingKernelError(CompileError, LookupError):
    """Operators without a kernel in the runtime; ``.operators`` lists them."""

    code = "missing-kernel"
    operators: tuple[str, ...] = ()


class MissingKernelWarning(UserWarning):
    """A finished program needs kernels that this runtime lacks; the target's runtime may have them."""

    code = "kernel-not-here"


def kernel_hints(operators: Iterable[str], *, in_aten: bool = False) -> list[str]:
    """Returns the remedies for missing kernels, by the namespace of the operators."""
    operators = list(operators)
    theirs = [name for name in operators if name.partition("::")[0] not in ("aten", "dim_order_ops")]
    hints = []
    if len(theirs) < len(operators) and not in_aten:
        hints.append("run it on torch's own kernels: Runtime.get(aten=True), `torchette run --aten`")
    if theirs:
        hints += [
            f"for {', '.join(theirs)}: torchette.load_library('libmine.so') loads operators with their kernels; "
            "`torchette custom build` builds such a library",
        ]
    return [
        *hints,
        "rewrite those lines with other operators; `torchette ops` lists the supported operators",
        "write the kernels: docs/custom-kernels.md",
    ]


class DelegationError(CompileError, ValueError):
    """A partition cannot be delegated: unknown backend, contradictory tags, or a failed preprocess."""

    code = "delegation-failed"


class DelegationWarning(UserWarning):
    """Expensive calls run on the portable kernels although a backend was requested."""

    code = "left-behind"


class ZeroRangeWarning(UserWarning):
    """The calibration inputs cover almost nothing of a value's range; the value will be quantized to zeros."""

    code = "zero-range"


class UntestedTorchWarning(UserWarning):
    """The installed release of torch is not among the tested releases."""

    code = "untested-torch"


class PlanError(CompileError, RuntimeError):
    """Memory cannot be planned, or a plan has overlapping values."""

    code = "plan-failed"


class EmitError(CompileError, RuntimeError):
    """A graph contains something that the file format cannot represent."""

    code = "emit-failed"


class UnsupportedError(CompileError, NotImplementedError):
    """A feature that is known but not implemented."""

    code = "unsupported"


class BuildError(TorchetteError, RuntimeError):
    """A compiler or linker that `torchette build` called failed."""

    code = "build-failed"


class TargetError(BuildError, ValueError):
    """There is no target with this name, or it lacks something that a model requires."""

    code = "no-such-target"


class MissingCompilerError(BuildError, FileNotFoundError):
    """There is no compiler for the target on this machine."""

    code = "no-compiler"


class MissingPackageError(TorchetteError, ImportError):
    """An optional package is not installed, or its import fails."""

    code = "missing-package"


class FormatError(TorchetteError, ValueError):
    """A file is invalid: wrong magic, truncated, or an index out of bounds."""

    code = "bad-file"


class ModelNotFoundError(TorchetteError, FileNotFoundError):
    """A file or folder does not exist. `torchette.files` creates these errors."""

    code = "no-such-file"


class InputError(TorchetteError, ValueError):
    """An input does not match the compiled method: count, dtype, rank, shape, or dim order."""

    code = "bad-input"


class InputTypeError(InputError, TypeError):
    """An input has a type that the method does not accept."""

    code = "bad-input-type"


class UsageError(TorchetteError, ValueError):
    """A command line has an unknown, missing or contradictory argument."""

    code = "bad-usage"


class RuntimeLoadError(TorchetteError, RuntimeError):
    """The runtime rejected a program or a method while loading it."""

    code = "load-failed"


class NativeModuleError(RuntimeLoadError, ImportError):
    """The compiled part of ``torchette.runtime`` is missing or was built for another Python."""

    code = "no-native-module"


class ExecutionError(TorchetteError, RuntimeError):
    """A method failed while it ran."""

    code = "execution-failed"
