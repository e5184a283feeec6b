# SPDX-License-Identifier: BSD-3-Clause
# In: a module and example inputs. Out: the ExportedProgram of torch.export. If torch.export rejects the model, the
# error names the problem in the user's terms, the source line, and a remedy.
"""`capture`: torch.export for inference, with errors that name a remedy."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import re
import sysconfig
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._functorch.predispatch import _unwrap_for_grad
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torchette.capture.checks import Checks
from torchette.capture.minima import Minima
from torchette.capture.recurrent import Recurrent
from torchette.capture.rewrites import Rewrites
from torchette.errors import DialectError, ExportError, InputTypeError, TorchetteError, TrainModeError
from torchette.exir.passes.check_quantization import refuse_unfinished
from torchette.packages import warn_of_untested_torch

# The forms that `torch.export.export` accepts.
DynamicShapes = dict[str, Any] | tuple[Any, ...] | list[Any] | None


def capture(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: DynamicShapes,
    name: str,
    train_mode: bool = False,
    strict: bool = False,
) -> ExportedProgram:
    """Captures a module's computation as a graph.

    Args:
        module: in eval mode, unless `train_mode` is set.
        args, kwargs, dynamic_shapes: see `torchette.compile`.
        name: the name of the method, for messages.
        train_mode: accept modules in training mode.
        strict: see `torch.export.export`.

    Raises:
        InputTypeError: an argument has an unsupported type.
        QuantizationError: the module is prepared for quantization but not converted, or was not calibrated.
        TrainModeError: the module, or a submodule, is in training mode.
        ExportError: `torch.export` rejects the module.
    """
    warn_of_untested_torch()
    if not isinstance(module, torch.nn.Module):
        raise InputTypeError(
            f"expected a torch.nn.Module or an ExportedProgram, got {type(module).__name__}",
            hints=["for a function f, wrap it: class F(torch.nn.Module): def forward(self, x): return f(x)"],
        )
    if not isinstance(args, (tuple, list)):
        raise InputTypeError(
            "args must be a tuple of the module's positional arguments, "
            f"got a {'tensor' if isinstance(args, torch.Tensor) else type(args).__name__}",
            where=_definition(module),
            hints=["torchette.compile(module, (x,))", "pass keyword arguments as a dict: kwargs={'x': x}"],
        )
    refuse_unfinished(module)
    if not train_mode:
        _refuse_train_mode(module)
    arguments = tuple(args), dict(kwargs or {})
    try:
        try:
            return _export(module, *arguments, dynamic_shapes, strict)
        except (RuntimeError, ValueError) as error:
            if not _register_caches(module, str(error)):
                raise
            return _export(module, *arguments, dynamic_shapes, strict)
    except TorchetteError:
        raise
    except Exception as error:
        raise _export_error(error, module, name, dynamic_shapes is not None) from error


def _export(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: DynamicShapes,
    strict: bool,
) -> ExportedProgram:
    with (
        warnings.catch_warnings(),
        _without_log(),
        torch.no_grad(),
        Rewrites(),
        Recurrent(),
        Minima(),
        Checks() as checks,
    ):
        warnings.simplefilter("ignore")
        args, kwargs = _distinct((args, kwargs))
        program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=strict)
    _refuse_lost_inputs(program)
    checks.annotate(program)
    return program


def _register_caches(module: torch.nn.Module, text: str) -> bool:
    """Registers the cache classes of transformers with torch's pytree if an error names one of them.

    Returns:
        Whether the class was not registered before, so that another export may succeed.
    """
    unknown = re.search(r"(?:Found|Unsupported input type) <class '(transformers\.[\w.]+)'>", text)
    if unknown is None:
        return False
    try:
        from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model
    except ImportError:  # an old version of transformers
        return False
    for part in module.modules():
        if isinstance(part, importlib.import_module("transformers").PreTrainedModel):
            register_cache_pytrees_for_model(part)
    names = (f"{node.__module__}.{node.__qualname__}" for node in pytree.SUPPORTED_NODES)
    return unknown[1] in names


@contextmanager
def _without_log() -> Iterator[None]:
    """Suppresses torch's log of errors that it also raises, and its print of the graph, unless TORCHETTE_TRACEBACK is
    set."""
    log, module = logging.getLogger("torch"), vars(importlib.import_module("torch.export._trace"))
    level = log.level
    if not os.environ.get("TORCHETTE_TRACEBACK"):
        log.setLevel(logging.CRITICAL)
        module["print"] = lambda *_, **__: None  # shadows the built-in function only in this module
    try:
        yield
    finally:
        log.setLevel(level)
        module.pop("print", None)


def _refuse_lost_inputs(program: ExportedProgram) -> None:
    """Rejects torch.func.grad and similar functions: torch.export converts the tensors to differentiate to
    constants."""
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule) and part.graph.find_nodes(
            op="call_function", target=_unwrap_for_grad
        ):
            raise RuntimeError("the tensor to differentiate became a constant: it does not require grad")


def _distinct(inputs: object) -> Any:
    """Copies repeated tensors in the inputs, because torch treats one object that is passed twice as one input."""
    visited_ids: set[int] = set()

    def distinct(value: object) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        is_repeated = id(value) in visited_ids
        visited_ids.add(id(value))
        return value.clone() if is_repeated else value

    return pytree.tree_map(distinct, inputs)


# ---- training mode ----


def _refuse_train_mode(module: torch.nn.Module) -> None:
    modules = [
        f"{path or '(the module itself)'}: {type(part).__name__}"
        for path, part in module.named_modules()
        if part.training and _depends_on_mode(part)
    ]
    if modules:
        raise _train_mode(
            f"{len(modules)} of its modules behave differently in training mode",
            [*modules, *_definition(module)],
        )


def _depends_on_mode(part: torch.nn.Module) -> bool:
    nn = torch.nn
    if isinstance(part, (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)):
        return bool(part.track_running_stats)
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    if isinstance(part, (nn.RNNBase, nn.MultiheadAttention)):
        return part.dropout > 0
    return isinstance(part, nn.RReLU)


def _train_mode(reason: str, where: Sequence[str]) -> TrainModeError:
    return TrainModeError(
        f"the model is in training mode: {reason}, so its results would differ from inference",
        where=where,
        hints=[
            "call model.eval() before compiling",
            "if intended, as for Monte Carlo dropout: torchette.compile(..., edge=EdgeCompileConfig(train_mode=True))",
        ],
    )


def as_train_mode(error: DialectError) -> TrainModeError | None:
    """Returns the error for training behaviour that only the graph shows, such as dropout called as a function."""
    if not error.violations or any(violation.code != "train-mode" for violation in error.violations):
        return None
    places = list(dict.fromkeys(violation.place for violation in error.violations))
    return _train_mode(f"{len(places)} of its lines draw random values or update statistics", places)


# ---- failures of torch.export ----


class _Diagnosis(NamedTuple):
    """The explanation of a failure of torch.export. The first entry whose pattern matches `Type: text` is used."""

    pattern: str
    reason: str
    hints: tuple[str, ...]


_DIAGNOSES = (
    _Diagnosis(
        r"DynamicOutputShapeException",
        "the shape of a result depends on the values of a tensor, and has no upper bound",
        ("keep a fixed shape and a mask: torch.where(mask, x, 0) instead of x[mask]",),
    ),
    _Diagnosis(
        r"data-dependent|GuardOnDataDependentSymNode|PendingUnbackedSymbolNotFound",
        "control flow depends on the values of a tensor, which are known only at run time",
        (
            "for a choice between two computations: torch.cond(condition, if_true, if_false, (x,))",
            "for a choice between two values: torch.where(condition, a, b)",
            "for a value with a known range: torch._check(n <= 128) after n = x.item()",
            "for a condition that the device should check: torch._assert_async(condition, 'error message')",
        ),
    ),
    _Diagnosis(
        r"Unsupported input type",
        "an example input is not a tensor, a scalar, or a container of these",
        (
            "for a numpy array: torch.from_numpy(array)",
            "for a dataclass: torch.export.register_dataclass(TheClass), once, before compiling",
        ),
    ),
    _Diagnosis(
        r"quantized nyi|NestedInt|NestedTensor",
        "an example input is a quantized or nested tensor, but the runtime supports only plain dense tensors",
        ("for a quantized tensor: x.dequantize()", "for a nested tensor: torch.nested.to_padded_tensor(x, 0.0)"),
    ),
    _Diagnosis(
        r"in output, which is not a known type",
        "forward returns a value that is not a tensor, a scalar, or a container of these",
        (
            "return tensors, scalars, or tuples, lists or dicts of them",
            "for a dataclass: torch.export.register_dataclass(TheClass), once, before compiling",
        ),
    ),
    _Diagnosis(
        r"Constraints violated|ConstraintViolationError|dynamic_shapes|dynamic shape",
        "the model does not allow these dynamic shapes",
        (
            'give each dynamic dimension a range that the model supports: Dim("n", min=2, max=128), or keep it static',
            "list every argument of forward in dynamic_shapes, with None for static shapes",
        ),
    ),
    _Diagnosis(
        r"data of a tensor is assigned to|fake tensor in the exported program constant|mutating `.data`",
        "a tensor is assigned other memory (x.data = ...), which a graph cannot express",
        ("write to the tensor: x.copy_(value) instead of x.data = value",),
    ),
    _Diagnosis(
        r"no fake impl registered",
        "a custom operator does not declare the shape of its result",
        ("@operator.register_fake\ndef _(x):\n    return torch.empty_like(x)",),
    ),
    _Diagnosis(
        r"'_OpNamespace' .* has no attribute",
        "the model calls an operator that is not registered",
        (
            "import the module that registers it before compiling",
            "register a Python function as an operator with torch.library.custom_op",
        ),
    ),
    _Diagnosis(
        r"same device|cuda devices|CUDA|FakeTensorDeviceMismatch",
        "a part of the model or of its inputs is not on the CPU",
        ("move both before compiling: module.cpu(), x.cpu()", "do not name a device in forward: use zeros_like(x), x.new_zeros(...)"),
    ),
    _Diagnosis(
        r"ScriptModule",
        "it is a TorchScript module without Python code",
        ("compile the nn.Module that it was scripted from",),
    ),
    _Diagnosis(
        r"(?i)numpy|tolist|data pointer|data_ptr",
        "a tensor leaves PyTorch (numpy, tolist, data_ptr)",
        ("use torch operators instead of numpy functions", "register a Python function as an operator with torch.library.custom_op"),
    ),
    _Diagnosis(
        r"higher order operator|in torch\.cond|call_function (cond|while_loop|scan|map)|TorchRuntimeError",
        "a branch or body of its control flow cannot be captured",
        ("branches must return new tensors with equal shapes and dtypes, and must not return or modify their inputs",),
    ),
    _Diagnosis(
        r"Unsupported|(?i:graph break)",
        "a graph cannot contain a Python construct of the model",
        (
            "move prints, I/O and calls of other libraries out of forward",
            "register a Python function as an operator with torch.library.custom_op",
        ),
    ),
    _Diagnosis(
        r"TypeError: .*(positional argument|unexpected keyword|missing a required argument)",
        "the example inputs do not match the signature of forward",
        ("args is a tuple of positional arguments, kwargs a dict",),
    ),
    _Diagnosis(
        r"does not require grad|requires_grad",
        "it requires gradients, which are not recorded",
        ("implement the derivative explicitly: torch.func.grad and torch.autograd.grad cannot be captured",),
    ),
)  # fmt: skip
_UNKNOWN = _Diagnosis(
    "",
    "tracing it with the example inputs failed",
    (
        "call module(*args, **kwargs): if this also fails, the cause is in the model or the inputs",
        "torch.export.draft_export(module, args, kwargs) lists the problems",
    ),
)


def _export_error(error: Exception, module: torch.nn.Module, name: str, dynamic: bool) -> ExportError:
    text, kind = str(error), type(error).__name__
    where = _user_lines(error)
    diagnosis = next((known for known in _DIAGNOSES if re.search(known.pattern, f"{kind}: {text}")), None)
    if diagnosis is None:
        # A failure outside the model's lines is caused by the description of the dynamic shapes, if there is one.
        shapes = next(known for known in _DIAGNOSES if "dynamic_shapes" in known.pattern)
        diagnosis = shapes if dynamic and not where else _UNKNOWN
    diagnosis = _scripted(error, module) or diagnosis
    message, torchs_hints = _message_and_hints(error)
    if dynamic and isinstance(module, torch.fx.GraphModule) and "specialized it" in message:
        torchs_hints = [
            "the module is a captured graph with constant sizes: pass dynamic_shapes also to torchette.quantize, "
            "or to the export that captured it"
        ]
    method = "" if name == "forward" else f" (method {name!r})"
    return ExportError(
        f"torch.export cannot capture the model{method}: {diagnosis.reason}\n{kind}: {message}",
        where=where or _definition(module),
        hints=[*torchs_hints, *diagnosis.hints],
    )


def _scripted(error: Exception, module: torch.nn.Module) -> _Diagnosis | None:
    """Returns the diagnosis for a scripted submodule: torch passes the module to its forward twice."""
    called = re.search(r"(\w+)\.forward\(\) takes \d+ positional arguments? but \d+ were given", str(error))
    parts = {
        path: part.original_name
        for path, part in module.named_modules()
        if isinstance(part, torch.jit.ScriptModule) and path
    }
    path = next((path for path, name in parts.items() if called and called[1] == name), None)
    if path is None:
        return None
    return _Diagnosis(
        "",
        f"its submodule {path!r} ({parts[path]}) is scripted by torch.jit.script and has no Python code",
        (
            f"use the Python module that {path!r} was scripted from",
            "if it was loaded from a file: build the Python module and call load_state_dict(scripted.state_dict())",
        ),
    )


def _message_and_hints(error: Exception) -> tuple[str, list[str]]:
    """Returns torch's message as one line, and torch's suggestions."""
    text = str(error).partition("\nThe error above occurred when calling torch.export")[0]
    hints = []
    if "Suggested fixes" in text:
        text, _, fixes = text.partition("Suggested fixes:")
        hints.append(f"torch suggests: {'; '.join(fixes.split(chr(10))).strip('; ')}")
    if constant := re.search(r"specialized it to be a constant \(([01])\)", text):
        hints = [
            f"give example inputs whose dynamic dimensions have at least 2 elements (this one has {constant[1]}): "
            "torch.export makes a size of 0 or 1 a constant"
        ]
    explained = re.search(r"Explanation: (.*)", text)
    if explained:
        hints += [hint for hint in re.findall(r"Hint: (.*)", text) if hint.startswith("Replace")]
        return explained[1].partition(" Found in <")[0], hints
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    if "Constraints violated" in first:
        first = " ".join(
            [first.partition(" For more information")[0], *(line for line in lines if line.startswith("- "))]
        )
    return first, hints


_LIBRARY_FOLDERS = tuple(
    str(Path(path).resolve())
    for path in (sysconfig.get_path("stdlib"), Path(torch.__file__).parent, Path(__file__).parents[1])
)


def _user_lines(error: BaseException) -> list[str]:
    """Returns the user's source lines in the traceback of an error, innermost first."""
    lines = []
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = str(Path(frame.filename).resolve())
        library = path.startswith(_LIBRARY_FOLDERS) and "site-packages" not in path.removeprefix(
            _LIBRARY_FOLDERS[0]
        )
        if (
            library
            or path.startswith(_LIBRARY_FOLDERS[1:])
            or frame.filename.startswith("<")
            or "/sympy/" in path
        ):
            continue
        lines.append(f"{frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}")
    return list(dict.fromkeys(lines))[:3]


def _definition(module: torch.nn.Module) -> list[str]:
    """Returns the source line of the module's forward, for an error without a line in it."""
    try:
        forward = inspect.unwrap(type(module).forward)
        lines, start = inspect.getsourcelines(forward)
        path = inspect.getsourcefile(forward)
    except (
        OSError,
        TypeError,
        AttributeError,
    ):  # defined in an interpreter or at run time, or TorchScript
        return []
    if str(path).startswith(_LIBRARY_FOLDERS[1]):
        return []  # a layer of torch
    offset = next((i for i, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)
    return [f"{path}:{start + offset}, in {forward.__name__}: {lines[offset].strip()}"]
