# SPDX-License-Identifier: BSD-3-Clause
# In: an nn.Module and example inputs. Out: a model that runs on the real runtime. torch.export, to_edge, to_executorch
# and the runtime do the work; this module combines them and explains their failures.
"""`torchette.compile`: compiles a module to a model that can be called and saved."""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torchette import receipt
from torchette.capture import DynamicShapes, as_train_mode, capture, pt2e
from torchette.capture.calibration import RANDOM_REMARK, Call, calls_of, check_calibration, check_calls, draw
from torchette.device import Device
from torchette.errors import (
    CompileError,
    DelegationWarning,
    DialectError,
    InputError,
    InputTypeError,
    MissingKernelError,
    MissingKernelWarning,
    kernel_hints,
)
from torchette.exir.check import evaluate, user_results
from torchette.exir.config import (
    DefaultMemoryPlanningPass,
    DynamicMemoryPlanningMode,
    EdgeCompileConfig,
    ExecutorchBackendConfig,
)
from torchette.exir.delegation.delegate import partitioner_named
from torchette.exir.delegation.explain import Delegation
from torchette.exir.graph import calls
from torchette.exir.interface import specs_of
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.exir.ops import is_operator, kernel_name
from torchette.exir.passes.quantize_io import check_io_dtype, quantize_io
from torchette.exir.pipeline import Report, build
from torchette.exir.program import ExecutorchProgramManager, check_constant_methods, transform_and_lower
from torchette.exir.program.edge import partitioners_by_method
from torchette.fit import fit
from torchette.methods import by_method
from torchette.model import Model
from torchette.runtime import kernel_level

# The fastest backend on every processor that needs no third-party library: the CPU engine.
AUTO = "cpu"

_ROUNDED_SNR = 40  # decibels of an output whose values may round to either of two steps

# Argument of older versions -> its replacement.
_MOVED = {
    "target": "backend=",
    "quantize": "quantizer=, and calibration= for the inputs to observe",
    "partitioner": "backend=",
    "preserve_ops": "edge=EdgeCompileConfig(preserve_ops=[...])",
    "disable_passes": "edge=EdgeCompileConfig(disable_passes=[...])",
    "check_passes": "edge=EdgeCompileConfig(check_passes=True)",
    "train_mode": "edge=EdgeCompileConfig(train_mode=True)",
    "progress": "edge=EdgeCompileConfig(progress=...)",
    "dump": "edge=EdgeCompileConfig(dump=...)",
    "passes": "config=ExecutorchBackendConfig(passes=[...])",
    "portable_fallback": "config=ExecutorchBackendConfig(portable_fallback=True)",
    "parallel": "config=ExecutorchBackendConfig(parallel=...)",
    "dynamic_memory_planning_mode": "config=ExecutorchBackendConfig(dynamic_memory_planning_mode=...)",
    "plan_inputs_and_outputs": "config=ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass())",
    "arenas": "device=Device(arenas={...})",
    "budget": "device=Device(ram=..., flash=..., target=...)",
    "fit": "device=Device(ram=..., fit=True)",
}


class CompiledModel(Model):
    """A compiled model, with the results of the compiler in addition to the interface of `Model`.

    Attributes:
        program: the `ExecutorchProgramManager` with graphs, memory plan and records of the file.
        delegations: method name -> the backends of its calls, with reasons.
        calibration: method name -> a description of its calibration inputs; empty without a quantizer.

    Example:
        >>> model = torchette.compile(model, (x,))
        >>> model.planned_bytes >= model.lower_bound_bytes
        True
    """

    def __init__(
        self,
        program: ExecutorchProgramManager,
        captured: Mapping[str, ExportedProgram] | None = None,
        delegations: Mapping[str, Delegation] | None = None,
    ) -> None:
        self._data_files: list[Path] = []  # files with weights that are stored outside of the program
        if program.has_tensor_data:
            folder = tempfile.mkdtemp(prefix="torchette-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            program.write_tensor_data_to_file(folder)
            self._data_files = sorted(Path(folder).iterdir())
        super().__init__(program.buffer, data_files=self._data_files)
        self.program = program
        self._captured = dict(captured or {})
        self.delegations = dict(delegations or {})
        self.calibration: dict[str, str] = {}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the .pte file and, into the same folder, the files of external weights (`external_constants`).

        Args:
            path: the .pte file.

        Returns:
            The path of the .pte file.
        """
        self.program.write_tensor_data_to_file(Path(path).parent)
        return super().save(path)

    def verify(self, rtol: float = 1e-4, atol: float = 1e-5) -> float:
        """Runs every method on its example inputs, and compares the outputs with those of the captured program.

        An output of a quantized program may also have a signal-to-noise ratio of 40 dB or more, because a value between two
        quantization steps may round to either.

        Args:
            rtol, atol: tolerances, see `torch.allclose`.

        Returns:
            The largest absolute difference between two elements.

        Raises:
            CompileError: code "results-differ": an output is not within the tolerances. The message names it.
        """
        largest = 0.0
        for name, captured in self._captured.items():
            if captured.example_inputs is None:
                continue
            args, kwargs = captured.example_inputs
            for index, (theirs, ours) in self._outputs(name, args, kwargs).items():
                wide = torch.complex128 if theirs.is_complex() else torch.float64
                difference = (ours.to(wide) - theirs.to(wide)).abs().max().item() if theirs.numel() else 0.0
                largest = max(largest, difference)
                if not _agree(theirs, ours, rtol, atol, _is_quantized(captured)):
                    raise _differ(name, index, difference, "the example inputs")
        return largest

    def sign(
        self,
        seeds: Sequence[int] = range(3),
        rtol: float = 1e-4,
        atol: float = 1e-5,
        facts: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Adds a receipt to the file, see `torchette.receipt`: hashes of its bytes, versions, and measured errors.

        The errors are the differences from the captured program's outputs, on the example inputs and on random inputs.
        An output must be within the tolerances, or have a signal-to-noise ratio of 40 dB or more, which allows for rounded
        weights. Afterwards, `save` and `bytes` return the signed file; `program` remains unsigned.

        Args:
            seeds: seeds of the random inputs.
            rtol, atol: tolerances, see `torch.allclose`.
            facts: additional entries of the receipt, which must be JSON values.

        Returns:
            All entries of the receipt.

        Raises:
            CompileError: code "results-differ": an output is outside of the tolerances. The message names it and the
                inputs.
        """
        compared: list[dict[str, Any]] = []
        exceptions: list[str] = []
        for name, captured in self._captured.items():
            if captured.example_inputs is None:
                exceptions.append(f"method {name}: not run, because it has no example inputs")
                continue
            if drawn := _draws(captured):
                exceptions.append(f"method {name}: not compared, because {drawn} draws random values")
                continue
            args, kwargs = captured.example_inputs
            for seed in (None, *seeds):
                ranges, given = ([], (args, kwargs)) if seed is None else draw((args, kwargs), seed)
                errors = []
                for index, (theirs, ours) in self._outputs(name, *given).items():
                    found = _error(theirs, ours)
                    if not _agree(theirs, ours, rtol, atol, True):
                        what = "the example inputs" if seed is None else f"inputs of seed {seed}"
                        raise _differ(name, index, found["max_abs"], what)
                    errors.append({"output": index, **found})
                inputs = {"example": True} if seed is None else {"seed": seed, "ranges": ranges}
                compared.append({"method": name, "inputs": inputs, "outputs": errors})
        facts = {
            **(facts or {}),
            "compared": compared,
            "tolerances": {"rtol": rtol, "atol": atol, "or_snr_db": _ROUNDED_SNR},
            "exceptions": exceptions,
            "kernels": kernel_level(),
        }
        signed = receipt.sign(bytes(self), facts, self._data_files)
        Model.__init__(self, signed, self.default, self._data_files)
        return facts

    def _outputs(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Returns output index -> (output of the captured program, output of the compiled method), for tensors."""
        captured, method = self._captured[name], self.methods[name]
        expected = pytree.tree_leaves(user_results(captured, evaluate(captured, args, kwargs)))
        method.reset()
        given = pytree.tree_leaves(method(*args, **kwargs))
        method.reset()
        pairs = enumerate(zip(expected, given, strict=True))
        return {i: (a, torch.as_tensor(b)) for i, (a, b) in pairs if isinstance(a, torch.Tensor)}

    @property
    def planned_bytes(self) -> int:
        """Bytes of planned memory of the method that requires the most."""
        return max(self.program.planned_bytes(name)[0] for name in self.program.methods)

    @property
    def lower_bound_bytes(self) -> int:
        """A lower bound of the bytes of any memory plan, for the method with the largest plan."""
        return max(self.program.planned_bytes(name) for name in self.program.methods)[1]

    def arenas(self, method_name: str = "forward") -> dict[str, int]:
        """Returns arena name -> the bytes that a method requires of it. Empty if no arenas were given.

        Args:
            method_name: the name of the method.

        Raises:
            KeyError: there is no such method; the message lists the methods.
        """
        meta = self.program.exported_program(method_name).graph_module.meta
        return dict(zip(meta.get("arenas", ()), meta["non_const_buffer_sizes"][1:], strict=False))

    def report(self, method_name: str = "forward") -> Report:
        """Returns the changes of each pass, the patterns that became target operators, and the calls that stayed
        portable.

        The report prints as tables.

        Args:
            method_name: the name of the method.

        Raises:
            KeyError: there is no such method; the message lists the methods.
        """
        return replace(self.program.report(method_name), calibration=self.calibration.get(method_name))


def compile(
    module: torch.nn.Module | ExportedProgram | Mapping[str, Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: DynamicShapes = None,
    *,
    backend: object = "auto",
    quantizer: object = None,
    calibration: Iterable[Any] | Mapping[str, Iterable[Any]] | str | None = None,
    io: str | None = None,
    constant_methods: Mapping[str, Any] | None = None,
    edge: EdgeCompileConfig | None = None,
    config: ExecutorchBackendConfig | None = None,
    device: Device | None = None,
    precision: str = "float32",
    tolerance: float | None = None,
    verify: bool = False,
    **moved: object,
) -> CompiledModel:
    """Compiles a PyTorch model for the runtime.

    Args:
        module: a module in eval mode; or an exported program; or, for several methods, method name -> ExportedProgram
            or (module, args), (module, args, kwargs) or (module, args, kwargs, dynamic_shapes). The first two become
            the method "forward". The module is not modified.
        args, kwargs: example inputs. Their dtypes, ranks and static dimensions are fixed.
        dynamic_shapes: see `torch.export.export`. A range, such as `Dim("n", min=2, max=128)`, is checked when inputs
            are set.
        backend: the backend of the model. "auto", the default, is "cpu": the CPU engine, which runs fused kernels on
            packed weights on every processor. "portable": kernels without the engine, in a file that ExecuTorch also
            runs. "xnnpack" or another folder of `torchette.backends`; a `Partitioner`; a list of backends in order of
            priority; or method name -> backends. Kernels run the calls that no backend supports.
        quantizer: a quantizer of torchao (`torchao.quantization.pt2e.quantizer.Quantizer`), or a list of them. The
            model is calibrated on `calibration` and converted. `torchette.quantize` chooses both the quantizer and the
            layers. With `backend="portable"`, a quantized model is correct but not faster: it computes in floats.
        calibration: the calibration inputs: tuples of arguments, dicts of named arguments or single tensors; or, for
            several methods, method name -> inputs. The default is the example inputs, which must then be typical
            inputs: the scales of a static quantizer cover only the observed values. "random": inputs drawn like the
                example inputs, for
            estimates of size and speed; the file then records that its accuracy is meaningless.
            `CompiledModel.report()` describes the calibration.
        io: "int8" or "uint8": the program accepts and returns integers instead of floats. Requires a model that is
            quantized with fixed scales. The scales and zero points are in the tensors of `MethodMeta` (`quant`), and in
            the file as constant methods such as ``forward_input0_scale``.
        constant_methods: method name -> value that the method returns.
        edge: options of the conversion to Edge: operators to preserve, disabled optimizations, checks, training mode,
            progress; see `EdgeCompileConfig`.
        config: options after Edge: custom passes, a portable fallback, memory planning, parallel branches, external
            weights; see `ExecutorchBackendConfig`. By default, inputs and outputs use the caller's memory, and tensors
            of dynamic shape use memory of their actual size.
        device: the memories and limits of the target machine; see `Device`.
        precision: of linear layers, convolutions and attention on the CPU engine. "bfloat16": weights are stored as bfloat16; processors
            with instructions for bfloat16 also round the inputs and add products in float32, others compute in float32
            with these weights, so results differ between processors. "auto": bfloat16 in as many layers as `tolerance`
            permits on the example inputs. The number of layers and the error are in the file, as the constant method
            ``forward_precision``.
        tolerance: for "auto": the largest difference of an output from float32, divided by the largest absolute value of
            that output. The default is 0.01.
        verify: whether to run the compiled model on the example inputs and on random inputs, to compare it with the
            captured program, and to store the result in the file with hashes of all bytes; see `CompiledModel.sign`.
        moved: none are accepted. A removed argument raises an error with its replacement.

    Returns:
        A model that accepts and returns the same values as the module, run by the real runtime.

    Raises:
        TrainModeError: if a part of the module is in training mode, without `EdgeCompileConfig(train_mode=True)`.
        ExportError: if `torch.export` cannot capture the module; names the line of the model and a remedy.
        DialectError: if an operator is not part of the compiler's dialects; lists all of them.
        DelegationError: if a backend does not exist or cannot compile a partition.
        MissingKernelError: if the runtime lacks kernels; lists all of them with the lines that need them.
        PlanError: if the tensors exceed the arenas or the device; names the missing bytes and the remedies.
        CompileError: code "does-not-load": the runtime refuses a method of the file; code "results-differ": with `verify`,
            an output differs.
        InputTypeError: if `module` is of another type, if `args` are set for several methods, or if an argument was removed.
        InputError: if `calibration` has no `quantizer` or names another method, if both arenas and a memory planning
            pass are given, if `io` is another dtype, if `precision` is unknown, used without the CPU engine or with
            `verify`, or if `tolerance` is not positive or is given without `precision="auto"`.
        QuantizationError: code "not-quantized": with `io`, an input is used, or an output is computed, in floats.

    Example:
        >>> path = torchette.compile(model, (torch.ones(1, 4),)).save("model.pte")
    """
    _refuse_moved(moved)
    edge, config, device = (
        edge or EdgeCompileConfig(),
        config or ExecutorchBackendConfig(),
        device or Device(),
    )
    methods = _methods(module, args, kwargs, dynamic_shapes)
    config = _with_device_memory(device, config)
    partitioners = partitioners_by_method(_partitioners(backend, methods), methods)
    if tolerance is not None and precision != "auto":
        raise InputError(
            f"tolerance requires precision='auto', but precision is {precision!r}", hints=['precision="auto"']
        )
    if precision != "float32":
        if verify:
            raise InputError(
                "verify expects float32's results and cannot be combined with precision",
                hints=["the file contains the measured error: model.methods['forward_precision']()"],
            )
        partitioners = _with_precision(methods, partitioners, precision, tolerance)
    _check_choices(methods, partitioners, quantizer, calibration, io, constant_methods, edge, config)
    programs, observed = _captured(methods, quantizer, calibration, edge)
    added: dict[str, Any] = {
        f"{name}_calibration": RANDOM_REMARK for name, (_, what) in observed.items() if what == RANDOM_REMARK
    }
    if io is not None:
        programs, scales = _quantized_io(programs, io)
        added |= scales
    check_constant_methods(constant_methods, added)
    constant_methods = {**(constant_methods or {}), **added}
    program, placed = _lowered(
        programs, partitioners, constant_methods, edge, config, device, backend != "auto"
    )
    model = CompiledModel(program, programs, placed)
    model.calibration = {name: what for name, (_, what) in observed.items()}
    if verify:
        model.sign(facts=_quantization_entries(quantizer, observed))
    return model


def _refuse_moved(moved: Mapping[str, Any]) -> None:
    """Raises for a keyword argument that `compile` does not have or no longer has."""
    for name in moved:
        if name not in _MOVED:
            raise TypeError(f"compile() got an unexpected keyword argument {name!r}")
        raise InputTypeError(f"compile() no longer has the argument {name!r}", hints=[_MOVED[name]])


def _check_choices(
    methods: Mapping[str, tuple[Any, ...]],
    partitioners: Mapping[str, Sequence[Any]],
    quantizer: object,
    calibration: object,
    io: str | None,
    constant_methods: Mapping[str, Any] | None,
    edge: EdgeCompileConfig,
    config: ExecutorchBackendConfig,
) -> None:
    """Checks the arguments of `compile` before the export, which may take minutes."""
    if quantizer is not None:
        pt2e.check_quantizers(quantizer if isinstance(quantizer, (list, tuple)) else [quantizer])
    elif calibration is not None:
        raise InputError(
            "calibration is given without a quantizer", hints=["quantizer=XNNPACKQuantizer()..."]
        )
    for given in by_method(calibration, methods, "calibration").values():
        check_calibration(given)
    if io is not None:
        check_io_dtype(io)
    check_constant_methods(constant_methods, methods)
    for name in methods:
        build(edge, config, method=name, partitioners=partitioners)


def _captured(
    methods: Mapping[str, tuple[Any, ...]], quantizer: Any, calibration: Any, edge: EdgeCompileConfig
) -> tuple[dict[str, ExportedProgram], dict[str, tuple[int, str]]]:
    """Captures the methods, and quantizes them if a quantizer is given.

    Returns:
        Method name -> captured program, and method name -> (number of calibration inputs, their description).
    """
    programs = {name: _export(name, given, edge) for name, given in methods.items()}
    if quantizer is None:
        return programs, {}
    if calibration is not None and not isinstance(calibration, (Mapping, str)):
        calibration = list(calibration)  # an iterator can be read only once
    given = by_method(calibration, programs, "calibration")
    quantized: dict[str, ExportedProgram] = {}
    observed: dict[str, tuple[int, str]] = {}
    for name, program in programs.items():
        if program.example_inputs is None:
            raise InputError(
                f"method {name!r} has no example inputs to capture it with",
                hints=["export it with example inputs"],
            )
        calls, what = calls_of(given.get(name), program.example_inputs)
        check_calls(program, calls)
        quantized[name] = _quantized(name, program, quantizer, calls, methods[name], edge)
        observed[name] = len(calls), what
    return quantized, observed


def _quantized_io(
    programs: Mapping[str, ExportedProgram], io: str
) -> tuple[dict[str, ExportedProgram], dict[str, Any]]:
    """Returns programs that accept and return integers, and constant methods that return their scales."""
    found: dict[str, ExportedProgram] = {}
    scales: dict[str, Any] = {}
    for name, program in programs.items():
        found[name], own = quantize_io(program, io, name)
        scales |= own
    return found, scales


def _lowered(
    programs: Mapping[str, ExportedProgram],
    partitioners: Mapping[str, list[Any]],
    constant_methods: Mapping[str, Any] | None,
    edge: EdgeCompileConfig,
    config: ExecutorchBackendConfig,
    device: Device,
    warns_of_delegation: bool,
) -> tuple[ExecutorchProgramManager, dict[str, Delegation]]:
    """Returns the finished program, and method name -> the backends of its calls."""
    try:
        lowered = transform_and_lower(programs, None, partitioners, constant_methods, edge, False, False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MissingKernelWarning)  # `_check_kernels` raises an error instead
            if not warns_of_delegation:  # without a chosen backend, the reasons are only in `report()`
                warnings.simplefilter("ignore", DelegationWarning)
            program = fit(lowered, config, device)
        _check_kernels(program)
    except DialectError as error:
        raise as_train_mode(error) or error from None
    return program, {name: program.report(name).delegation or lowered.delegation(name) for name in programs}


def _quantization_entries(quantizer: object, observed: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    """Returns the entries of a receipt about quantization; empty without a quantizer."""
    if quantizer is None:
        return {}
    given = quantizer if isinstance(quantizer, (list, tuple)) else [quantizer]
    return {
        "quantizers": [type(one).__name__ for one in given],
        "calibration_samples": {name: count for name, (count, _) in observed.items()},
        "calibration": {name: what for name, (_, what) in observed.items()},
    }


def _differ(method: str, output: int, difference: float, inputs: str) -> CompileError:
    return CompileError(
        f"method {method!r}: output {output} differs by up to {difference:.3g} from the output of the captured program, on {inputs}",
        hints=["edge=EdgeCompileConfig(check_passes=True) names a pass that changes the result"],
        code="results-differ",
    )


def _error(theirs: torch.Tensor, ours: torch.Tensor) -> dict[str, Any]:
    """Returns the error statistics of an output.

    The largest difference and the signal-to-noise ratio in decibels (None without noise or without signal) include the
    elements that are finite in both tensors. The other elements are counted if they differ.
    """
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    theirs, ours = theirs.to(wide), ours.to(wide)
    finite = theirs.isfinite() & ours.isfinite()
    same = (theirs == ours) | (theirs.isnan() & ours.isnan())
    signal, noise = theirs[finite].abs(), (ours[finite] - theirs[finite]).abs()
    power, lost = signal.square().sum().item(), noise.square().sum().item()
    return {
        "max_abs": noise.max().item() if noise.numel() else 0.0,
        "snr_db": round(10 * math.log10(power / lost), 2) if power and lost else None,
        "elements": theirs.numel(),
        "not_finite_mismatches": int((~finite & ~same).sum()),
    }


def _agree(theirs: torch.Tensor, ours: torch.Tensor, rtol: float, atol: float, rounded: bool) -> bool:
    """Returns whether an output is within the tolerances, or if `rounded` has a signal-to-noise ratio of 40 dB or more."""
    if torch.allclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True):
        return True
    error = _error(theirs, ours)
    return rounded and not error["not_finite_mismatches"] and (error["snr_db"] or 0) >= _ROUNDED_SNR


def _is_quantized(program: ExportedProgram) -> bool:
    return any(re.search(r"^(quantized_decomposed|torchao)\.", str(node.target)) for node in calls(program))


def _draws(program: ExportedProgram) -> str:
    """Returns the first operator with random results, or an empty string."""
    for node in calls(program):
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            return str(node.target)
    return ""


def _with_device_memory(device: Device, config: ExecutorchBackendConfig) -> ExecutorchBackendConfig:
    """Completes the options for memory from the device."""
    planner, mode = config.memory_planning_pass, config.dynamic_memory_planning_mode
    if type(planner) is not DefaultMemoryPlanningPass:
        if device.arenas:
            raise InputError(
                "the device's arenas and a memory planning pass are both given",
                hints=["MemoryPlanningPass(arenas={...}), without Device(arenas=...)"],
            )
        return config
    planner = MemoryPlanningPass(
        alloc_graph_input=False, alloc_graph_output=False, arenas=device.arenas or None
    )
    if mode is None:
        limited = bool(device.arenas) or device.ram is not None
        mode = DynamicMemoryPlanningMode.UPPER_BOUND if limited else DynamicMemoryPlanningMode.SYMBOLIC
    return replace(config, memory_planning_pass=planner, dynamic_memory_planning_mode=mode)


def _partitioners(backend: object, methods: Iterable[str]) -> dict[str, list[Any]]:
    """Returns method name -> partitioners."""
    if isinstance(backend, Mapping):
        given = by_method(backend, methods, "backend")
        return {name: _partitioners(one, [name])[name] for name, one in given.items()}
    names = list(backend) if isinstance(backend, (list, tuple)) else [backend]
    return {method: [one for name in names for one in partitioners_of(name)] for method in methods}


def _with_precision(
    methods: Iterable[str], partitioners: Mapping[str, list[Any]], precision: str, tolerance: float | None
) -> dict[str, list[Any]]:
    """Returns the partitioners with the CPU engine at this precision."""
    from torchette.backends.engine.partitioner import CpuPartitioner
    from torchette.backends.engine.passes.pairs import TOLERANCE

    engine = CpuPartitioner(precision, TOLERANCE if tolerance is None else tolerance)
    for name in methods:
        if not any(type(one) is CpuPartitioner for one in partitioners.get(name, ())):
            raise InputError(
                f"precision={precision!r} requires the CPU engine, but method {name!r} has another backend",
                hints=['backend="cpu"'],
            )
    return {
        name: [engine if type(one) is CpuPartitioner else one for one in given]
        for name, given in partitioners.items()
    }


def check_backend(backend: object) -> None:
    """Checks a `backend` argument.

    Raises:
        DelegationError: if the backend does not exist.
        InputTypeError: if the argument has another type.
    """
    methods = list(backend) if isinstance(backend, Mapping) else ["forward"]
    partitioners_by_method(_partitioners(backend, methods), methods)


def partitioners_of(backend: object) -> list[Any]:
    """Returns the partitioners of a name or a partitioner; "portable" has none."""
    if not isinstance(backend, str):
        return [backend]
    name = AUTO if backend == "auto" else backend
    return [] if name == "portable" else [partitioner_named(name)]


def _methods(
    module: object, args: object, kwargs: object, dynamic_shapes: DynamicShapes
) -> dict[str, tuple[Any, ...]]:
    if not isinstance(module, Mapping):
        return {"forward": (module, args, kwargs, dynamic_shapes)}
    if args or kwargs or dynamic_shapes:
        raise InputTypeError(
            "with several methods, each method requires its own example inputs",
            hints=['torchette.compile({"encode": (encoder, (x,)), "decode": (decoder, (y,))})'],
        )
    methods = {}
    for name, given in module.items():
        given = given if isinstance(given, (tuple, list)) else (given,)
        methods[name] = (*given, *((), None, None)[len(given) - 1 :])
    return methods


def _export(name: str, given: tuple[Any, ...], edge: EdgeCompileConfig) -> ExportedProgram:
    module, args, kwargs, dynamic_shapes = given
    if isinstance(module, ExportedProgram):
        return module
    if edge.progress is not None:
        edge.progress("export", "torch.export")
    return capture(module, args, kwargs, dynamic_shapes, name, edge.train_mode)


def _quantized(
    name: str,
    program: ExportedProgram,
    quantizer: Any,
    calibration: Sequence[Call],
    given: tuple[Any, ...],
    edge: EdgeCompileConfig,
) -> ExportedProgram:
    if edge.progress is not None:
        edge.progress("quantize", "observe")
    args, kwargs = program.example_inputs
    graph = pt2e.quantize(
        program.module(),
        list(quantizer) if isinstance(quantizer, (list, tuple)) else [quantizer],
        calibration,
    )
    return capture(graph, args, kwargs, given[3], name)


# ---- kernels ----


def _check_kernels(program: ExecutorchProgramManager) -> None:
    missing = program.missing_kernels()
    if not missing:
        return
    error = MissingKernelError(
        f"the runtime has no kernel for {len(missing)} of the operators that the model needs: {', '.join(missing)}",
        where=[f"{name}{_operands(program, name)}: {line}" for name, line in missing.items()],
        hints=[
            *kernel_hints(missing),
            "if the device has the kernels and this machine does not: torchette.exir.to_edge(...).to_executorch() "
            "compiles with a warning",
        ],
    )
    error.operators = tuple(missing)
    raise error


def _operands(program: ExecutorchProgramManager, operator: str) -> str:
    """Formats the operands of an operator's calls, such as ` of (float32 0 1, int64 0)`: dtype and dim order of each
    tensor.
    """
    found: dict[str, None] = {}
    for method in program.methods:
        for node in calls(program.exported_program(method)):
            if is_operator(node.target) and ".".join(filter(None, kernel_name(node.target))) == operator:
                specs = [
                    spec for source in node.all_input_nodes for spec in specs_of(source) if spec is not None
                ]
                found[
                    ", ".join(f"{str(s.dtype)[6:]} {' '.join(map(str, s.dim_order))}".strip() for s in specs)
                ] = None
    return "".join(f" of ({given})" for given in found)
