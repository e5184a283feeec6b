# SPDX-License-Identifier: BSD-3-Clause
# What goes wrong, in the user's terms: every exception that Torchette raises on purpose. Imports nothing, because
# the compiler, the file formats, the runtime and the command line all stand on it.
"""The exception tree.

    TorchetteError                                  error
    |- CompileError                                 compile-failed       ahead of time
    |  |- ExportError (RuntimeError)                export-failed        torch.export refused the model
    |  |  `- TrainModeError (ValueError)            train-mode           the model is not in eval mode
    |  |- QuantizationError (ValueError)            bad-quantization     the model's quantization is not finished
    |  |- DialectError (ValueError)                 dialect-violation    a graph breaks its dialect's rules
    |  |- PassError (RuntimeError)                  pass-failed          a pass raised, or changed the result
    |  |- MissingOutVariantError (LookupError)      missing-out-variant  an operator has no out overload
    |  |- MissingKernelError (LookupError)          missing-kernel       the runtime has no such kernel
    |  |- DelegationError (ValueError)              delegation-failed    a part cannot be given to a backend
    |  |- PlanError (RuntimeError)                  plan-failed          memory cannot be planned
    |  |- EmitError (RuntimeError)                  emit-failed          a graph has no form in the file
    |  `- UnsupportedError (NotImplementedError)    unsupported          understood, but not built yet
    |- BuildError (RuntimeError)                    build-failed         a compiler or linker refused a source
    |  |- TargetError (ValueError)                  no-such-target       nothing is built for a target of that name
    |  `- MissingCompilerError (FileNotFoundError)  no-compiler          there is no compiler for the target
    |- MissingPackageError (ImportError)            missing-package      a package that this needs is not installed
    |- FormatError (ValueError)                     bad-file             a file is not what it says it is
    |- ModelNotFoundError (FileNotFoundError)       no-such-file         a file or a folder does not exist
    |- InputError (ValueError)                      bad-input            a value does not fit the method
    |  `- InputTypeError (TypeError)                bad-input-type       a value is of the wrong type
    |- UsageError (ValueError)                      bad-usage            a command line that cannot be carried out
    |- RuntimeLoadError (RuntimeError)              load-failed          the runtime refused a program
    |  `- NativeModuleError (ImportError)           no-native-module     the compiled runtime is not there
    `- ExecutionError (RuntimeError)                execution-failed     a method failed while it ran

Each is also the built-in in brackets, so ``except ValueError`` works as anyone would expect. ``error.code`` is stable
and fit for programs, ``error.where`` lists places (the user's file and line first), ``error.hints`` what to try. The
text has them in this order: what is wrong, where, what to try.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class TorchetteError(Exception):
    """The root of everything that Torchette raises on purpose.

    Args:
        message: what is wrong, in the user's terms; its first line must be enough to understand the fault.
        where: places, the most useful first, such as ``model.py:12, in forward: y = x.unfold(...)``.
        hints: what to try, one concrete remedy each; may hold several lines of code.
        code: a stable kebab-case name; by default the class's.
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
        """The section of the documentation about the code."""
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


def not_copyable(what: str, remedy: str) -> InputTypeError:
    """Returns the error for an object of the runtime that someone pickles or copies."""
    return InputTypeError(
        f"{what} cannot be pickled or copied: its memory belongs to this process", hints=[remedy]
    )


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Returns ``; did you mean NAME?`` with the most similar known name, or nothing if no name is similar."""
    import difflib  # only after an error

    names = {str(one).lower(): str(one) for one in known}
    near = difflib.get_close_matches(str(name).lower(), names, 1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def unknown_name(kind: str, name: object, known: Iterable[object]) -> str:
    """Returns the message for a name that is not one of the known names of its kind."""
    return f"there is no {kind} {name!r}{did_you_mean(name, known)}"


class CompileError(TorchetteError):
    """Something ahead of time: between the module and the bytes."""

    code = "compile-failed"


class ExportError(CompileError, RuntimeError):
    """``torch.export`` could not capture the model."""

    code = "export-failed"


class TrainModeError(ExportError, ValueError):
    """The model, or a part of it, is in training mode."""

    code = "train-mode"


class QuantizationError(CompileError, ValueError):
    """The model's quantization is not finished, of a kind that the compiler has not, or not within the limits; then
    ``.table`` has what `torchette.quantize` measured."""

    code = "bad-quantization"
    table: object = None


class DialectError(CompileError, ValueError):
    """A graph breaks the rules of its dialect; ``.violations`` holds every one of them."""

    code = "dialect-violation"
    violations: tuple[Any, ...] = ()

    @property
    def page(self) -> str:
        """The section about dialects, if the code is the code of a rule."""
        return f"docs/errors.md#{DialectError.code}" if self.violations else super().page

    def __str__(self) -> str:
        # Each violation has its place and its remedy beside it already.
        return self.message if self.violations else super().__str__()


class PassError(CompileError, RuntimeError):
    """A pass raised, left a broken graph, or changed the model's result; ``.pass_name`` names it."""

    code = "pass-failed"
    pass_name: str | None = None


class MissingOutVariantError(CompileError, LookupError):
    """Operators without an out overload; ``.operators`` lists all of them."""

    code = "missing-out-variant"
    operators: tuple[str, ...] = ()


class MissingKernelError(CompileError, LookupError):
    """Operators that the runtime has no kernel for; ``.operators`` lists all of them."""

    code = "missing-kernel"
    operators: tuple[str, ...] = ()


class MissingKernelWarning(UserWarning):
    """A finished program needs kernels that this runtime lacks; the one that it is for may have them."""

    code = "kernel-not-here"


def kernel_hints(operators: Iterable[str], *, in_aten: bool = False) -> list[str]:
    """What to try where kernels are missing, by who would have them."""
    operators = list(operators)
    theirs = [name for name in operators if name.partition("::")[0] not in ("aten", "dim_order_ops")]
    hints = []
    if len(theirs) < len(operators) and not in_aten:
        hints.append("run it on torch's own kernels: Runtime.get(aten=True), `torchette run --aten`")
    if theirs:
        hints += [
            f"for {', '.join(theirs)}: torchette.load_library('libmine.so') brings operators with their kernels; "
            "`torchette custom build` makes such a library",
        ]
    return [
        *hints,
        "rewrite those lines with other operators; `torchette ops` lists what there is",
        "write the kernels: docs/custom-kernels.md",
    ]


class DelegationError(CompileError, ValueError):
    """A part of the program cannot be given to a backend: unknown name, contradicting tags, a failed preprocess."""

    code = "delegation-failed"


class DelegationWarning(UserWarning):
    """Something expensive stays on the portable kernels although a backend was asked for."""

    code = "left-behind"


class ZeroRangeWarning(UserWarning):
    """The inputs of a calibration show next to nothing of the range of a value, which is quantized to zeros in use."""

    code = "zero-range"


class UntestedTorchWarning(UserWarning):
    """The tests of Torchette did not run with the installed release of torch."""

    code = "untested-torch"


class PlanError(CompileError, RuntimeError):
    """Memory cannot be planned, or a plan overlaps."""

    code = "plan-failed"


class EmitError(CompileError, RuntimeError):
    """A graph holds something that the file format has no form for."""

    code = "emit-failed"


class UnsupportedError(CompileError, NotImplementedError):
    """A feature that is understood and named, but not there yet."""

    code = "unsupported"


class BuildError(TorchetteError, RuntimeError):
    """What `torchette build` asked a compiler or linker for failed."""

    code = "build-failed"


class TargetError(BuildError, ValueError):
    """There is no target of that name, or it lacks what a model needs."""

    code = "no-such-target"


class MissingCompilerError(BuildError, FileNotFoundError):
    """There is no compiler for the target on this machine."""

    code = "no-compiler"


class MissingPackageError(TorchetteError, ImportError):
    """An optional package is not installed, or its import fails."""

    code = "missing-package"


class FormatError(TorchetteError, ValueError):
    """A file is not what it says it is: wrong magic, cut short, an index out of bounds."""

    code = "bad-file"


class ModelNotFoundError(TorchetteError, FileNotFoundError):
    """There is no file or folder at the given path. `torchette.files` makes these errors."""

    code = "no-such-file"


class InputError(TorchetteError, ValueError):
    """An input does not fit what the method was compiled for: number, dtype, rank, shape, dim order."""

    code = "bad-input"


class InputTypeError(InputError, TypeError):
    """An input is of a type that the method cannot take at all."""

    code = "bad-input-type"


class UsageError(TorchetteError, ValueError):
    """A command line has an unknown or a missing argument, or arguments that contradict each other."""

    code = "bad-usage"


class RuntimeLoadError(TorchetteError, RuntimeError):
    """The runtime refused to load a program or a method."""

    code = "load-failed"


class NativeModuleError(RuntimeLoadError, ImportError):
    """The compiled part of ``torchette.runtime`` is missing or does not fit this Python."""

    code = "no-native-module"


class ExecutionError(TorchetteError, RuntimeError):
    """A method failed while it ran."""

    code = "execution-failed"
