# SPDX-License-Identifier: BSD-3-Clause
# In: the arguments of `compare`. Runs the walk through the file, the comparison with the model, and the stages from
# eager to the device.
"""`Comparison`: implements `compare`."""

from __future__ import annotations

import copy
import inspect
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.export import ExportedProgram

from torchette import _compile
from torchette import pytree as pytree_of_file
from torchette.capture import DynamicShapes
from torchette.devtools.diff.inputs import searched
from torchette.devtools.diff.judge import EQUAL, NoReference, Numbers, Verdict, judge, measure
from torchette.devtools.diff.model import ModelSide, module_path
from torchette.devtools.diff.result import DiffResult, Fault, StageRow
from torchette.devtools.diff.taps import first_departing
from torchette.devtools.diff.walk import Walk, checked_inputs
from torchette.devtools.inspect import MethodInfo, ValueInfo, describe
from torchette.devtools.random_inputs import input_texts, random_inputs
from torchette.errors import InputError, PassError, TorchetteError
from torchette.exir import EdgeCompileConfig, pipeline
from torchette.exir.arguments import node_arg
from torchette.exir.check import evaluate, user_results
from torchette.exir.delegation.delegate import LoweredBackendModule, is_delegate_call
from torchette.exir.graph import user_frame
from torchette.format import ptd, pte
from torchette.model import argument_tree
from torchette.runtime import Runtime
from torchette.schema import NO_BOUND

if TYPE_CHECKING:
    from torchette.devtools.diff.walk import Device
    from torchette.runtime import Program

# Factor for the rounding error of a whole model, which amplifies the errors of its operators.
_MODEL_GROWTH = 64.0

# Decibels. A lower signal-to-noise ratio cannot be caused by rounding.
_MIN_SNR = 40.0

# Backend id in a file -> backend that the compiler lowers to.
_FOLDERS = {"XnnpackBackend": "xnnpack", "NullBackend": "null"}


class Comparison:
    """One comparison of a file, with or without its model; see `torchette.devtools.diff.compare` for the arguments."""

    def __init__(
        self,
        model: Any,
        file: str | Path | bytes | None,
        method: str | None,
        dynamic_shapes: DynamicShapes,
        backend: Any,
        data_files: Sequence[str | Path],
        device: Device | None,
        progress: Callable[[str, str], None] = lambda stage, step: None,
    ) -> None:
        if model is None and file is None:
            raise InputError("no model and no file to compare", hints=["pass a model, a file or both"])
        self._reference: _compile.CompiledModel | None = None
        if isinstance(model, _compile.CompiledModel):
            file, self._reference = bytes(model) if file is None else file, model
            model = model._captured[method or model.default or "forward"]
        self._model, self._given_method = model, method
        self._dynamic_shapes, self._backend = dynamic_shapes, backend
        self._data_files, self._device, self._progress = list(data_files), device, progress
        self._given_file = file
        self._name = "the given inputs"

    def run(
        self,
        inputs: Sequence[Any] | None,
        kwargs: Mapping[str, Any],
        search: bool,
        stages: bool = True,
        seed: int = 0,
    ) -> DiffResult:
        """Compares on these inputs, or on random inputs if they are None, and with `search` on further inputs."""
        args, kwargs = self._arguments(inputs, kwargs)
        compiled = self.compiled(args, kwargs) if self._given_file is None else None
        file = self._file(compiled)
        method = self._method_of(file)
        info = next(each for each in describe(file).methods if each.name == method)
        plan = next(each for each in file.program.execution_plan if each.name == method)
        walk = Walk(file, plan, info, self._external())
        meta = self._program(file).metadata(method)
        random: list[str] = []
        if args is None:
            flat = [torch.as_tensor(v) if hasattr(v, "__dlpack__") else v for v in random_inputs(info, seed)]
            random = input_texts(info, flat)
            args, kwargs = pytree_of_file.unflatten(argument_tree(meta), flat)
            self._name = "random inputs"
        else:
            flat = pytree.tree_leaves((tuple(args), dict(kwargs)))
        side = None
        if self._reference is not None:
            side = ModelSide(self._reference.program, method, walk)
            self._captured = self._model
        elif self._model is not None:
            if compiled is None:
                compiled = self.compiled(args, kwargs, info)
            side = ModelSide(compiled.program, "forward", walk)
            self._captured = compiled._captured["forward"]
        device = self._device or self._program(file).load_method(method, tracing=True)
        flat = checked_inputs(info, flat)
        result = DiffResult(method, walk.faults, walk.rows, random_inputs=random)
        self._progress("compare", self._name)
        outputs = self._one(walk, side, device, flat, self._name, result)
        if side is not None and stages:
            self._stages(side, flat, outputs, result)
        if search:
            for name, values in searched(meta, flat):
                self._progress("compare", name)
                self._one(walk, side, device, values, name, result)
        if side is not None:
            self._look_into_delegates(side, walk, flat)
        walk.faults.sort(key=lambda fault: (fault.instruction is None, fault.instruction or 0))
        return result

    # ---- the sides of the comparison ----

    def _arguments(
        self, inputs: Sequence[Any] | None, kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any] | None, Mapping[str, Any]]:
        """Returns the passed arguments or those of an exported program; None for random inputs from the file."""
        if inputs is not None:
            if isinstance(inputs, Tensor):
                raise InputError(
                    "inputs must be a tuple of the model's arguments, got a tensor",
                    hints=["compare(model, inputs=(x,))"],
                )
            return tuple(torch.as_tensor(v) if hasattr(v, "__dlpack__") else v for v in inputs), kwargs
        if isinstance(self._model, ExportedProgram) and self._model.example_inputs is not None and not kwargs:
            args, kwargs = self._model.example_inputs
            return args, kwargs
        if kwargs:
            return (), kwargs
        if self._given_file is None:
            raise InputError("a model without a file requires inputs", hints=["compare(model, file, (x,))"])
        return None, kwargs

    def compiled(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any],
        file: MethodInfo | None = None,
    ) -> _compile.CompiledModel:
        """Compiles the model for the backends of the file's method, with the dynamic shapes of its signature.

        Without a method, uses the default backend.
        """
        default = _compile.AUTO if file is None else _lowered_to(file)
        if file is not None and self._dynamic_shapes is None and isinstance(self._model, torch.nn.Module):
            self._dynamic_shapes = _dynamic_shapes(self._model, file, tuple(args or ()), dict(kwargs))
        return self._compile(tuple(args or ()), kwargs, self._backend or default)

    def _file(self, compiled: _compile.CompiledModel | None) -> pte.PteFile:
        if isinstance(self._given_file, (str, Path)):
            return pte.load_file(self._given_file)
        data: Any = self._given_file if compiled is None else bytes(compiled)
        return pte.read(data)

    def _compile(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], backend: Any, **edge: Any
    ) -> _compile.CompiledModel:
        self._lowered_to = backend
        return _compile.compile(
            self._model,
            args,
            dict(kwargs) or None,
            self._dynamic_shapes,
            backend=backend,
            edge=EdgeCompileConfig(**edge),
        )

    def _method_of(self, file: pte.PteFile) -> str:
        names = [plan.name for plan in file.program.execution_plan if not plan.name.endswith(pte.PORTABLE)]
        default = "forward" if "forward" in names or len(names) != 1 else names[0]
        name = self._given_method or default
        if name not in names:
            raise InputError(
                f"the file has no method {name!r}; methods: {', '.join(sorted(names)) or 'none'}"
            )
        return name

    def _program(self, file: pte.PteFile) -> Program:
        source = self._given_file if isinstance(self._given_file, (str, Path)) else bytes(file.buffer)
        return Runtime.get().load_program(source, data_files=self._data_files)

    def _external(self) -> dict[str, Any]:
        tensors: dict[str, Any] = {}
        for path in self._data_files:
            with open(path, "rb") as opened:
                data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            tensors = {**{name: each.data for name, each in ptd.read(data).items()}, **tensors}
        return tensors

    # ---- one execution ----

    def _one(
        self,
        walk: Walk,
        side: ModelSide | None,
        device: Device,
        flat: list[Any],
        name: str,
        result: DiffResult,
    ) -> list[Any] | None:
        before = len(walk.faults)
        if side is not None:
            side.start(flat)
        try:
            outputs = walk.run(device, flat, name, side.follow if side is not None else None)
        except TorchetteError as error:  # the method does not accept this shape or value
            if name == self._name:
                raise
            result.inputs[name] = f"not accepted: {error.message}"
            return None
        if outputs is None and name != self._name:
            reason = walk.faults[-1].reason
            if side is None or not self._model_runs(side, flat):
                del walk.faults[before:]
                result.inputs[name] = f"not accepted: {reason}"
                return None
        result.inputs[name] = "compared" if outputs is not None else "failed"
        if side is not None:
            side.finish(outputs)
        return outputs

    @staticmethod
    def _model_runs(side: ModelSide, flat: list[Any]) -> bool:
        try:
            _flat_results(side.program, flat)
        except Exception:  # the model fails on these inputs as well
            return False
        return True

    # ---- the stages ----

    def _stages(
        self, side: ModelSide, flat: list[Any], outputs: list[Any] | None, result: DiffResult
    ) -> None:
        """Compares each stage with eager: torch.export, core, Edge, planned, and the file."""
        captured = self._captured
        eager, eager_values = self._eager(captured, flat)
        expected = eager(eager_values)
        if outputs is not None:
            result.outputs = [_output(a, b) for a, b in zip(_tensors(outputs), expected, strict=False)]
        planned = side.program
        stages: list[tuple[str, Callable[[], list[Any]]]] = [("ATen", lambda: _flat_results(captured, flat))]
        stages += [
            (name, lambda name=name: _flat_results(pipeline.build().until(name).run(captured), flat))  # type: ignore[misc]
            for name in ("core", "edge")
        ]
        stages.append(("planned", lambda: _flat_results(planned, flat)))
        if outputs is not None:
            stages.append(("file on device", lambda: _tensors(outputs)))
        for name, values in stages:
            try:
                actual = values()
            except Exception:  # torch cannot evaluate this stage; skip it
                continue
            result.stages.append(StageRow(name, self._name, _worst(actual, expected)))
            if name not in ("ATen", "planned"):
                continue
            try:
                verdict = judge(actual, eager, eager_values, _MODEL_GROWTH)
            except NoReference:
                continue
            if verdict.departs:
                self._add_stage_fault(name, verdict, flat, side, result)
                return

    def _eager(
        self, captured: ExportedProgram, flat: list[Any]
    ) -> tuple[Callable[[list[Any]], list[Any]], list[Any]]:
        """Returns the eager model as a function of inputs and weights, and these values. Both are perturbed."""
        module = self._model if isinstance(self._model, torch.nn.Module) else captured.module()
        weights: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
        weights |= {name: value for name, value in module.named_buffers() if value.is_floating_point()}
        spec = captured.call_spec.in_spec

        def run(values: list[Any]) -> list[Any]:
            inputs = [v.clone() if isinstance(v, Tensor) else v for v in values[: len(flat)]]
            args, kwargs = pytree.tree_unflatten(inputs, spec)
            state = {name: v.detach().clone() for name, v in zip(weights, values[len(flat) :], strict=True)}
            with torch.no_grad():
                outputs = torch.func.functional_call(copy.deepcopy(module), state, args, kwargs)
            leaves = pytree.tree_leaves(outputs)
            return [torch.view_as_real(v) if isinstance(v, Tensor) and v.is_complex() else v for v in leaves]

        return run, [*flat, *(value.detach() for value in weights.values())]

    def _add_stage_fault(
        self, stage: str, verdict: Verdict, flat: list[Any], side: ModelSide, result: DiffResult
    ) -> None:
        if stage == "ATen":
            fault = Fault("export", "torch.export", None, "", verdict.reason, self._name, verdict.numbers)
        else:
            pass_fault = self._pass_at_fault(verdict, flat, side)
            if pass_fault is None:
                return
            fault = pass_fault
        result.faults.append(fault)

    def _pass_at_fault(self, verdict: Verdict, flat: list[Any], side: ModelSide) -> Fault | None:
        """Returns the fault of the pass that changed the results. Compiles again with a comparison after each pass.

        Returns None if no pass changed them and the results are close: then the rounding of many operators adds up.
        """
        args, kwargs = pytree.tree_unflatten(list(flat), side.program.call_spec.in_spec)
        if self._reference is not None:
            self._lowered_to = self._backend or _lowered_to(side.info)
        fault = Fault("pass", "", None, "", verdict.reason, self._name, verdict.numbers)
        try:
            self._compile(args, kwargs, self._lowered_to, check_passes=True)
        except PassError as error:
            where = error.where[0] if error.where else ""
            row = next(
                (row for row in side.rows if row.node and f"differ is {row.node}" in error.message), None
            )
            return replace(
                fault,
                operator=row.operator if row else f"pass {error.pass_name}",
                instruction=row.instruction if row else None,
                source=row.source if row else where,
                reason=error.message,
            )
        return fault if verdict.numbers.snr < _MIN_SNR else None

    # ---- delegates ----

    def _look_into_delegates(self, side: ModelSide, walk: Walk, flat: list[Any]) -> None:
        """Replaces faults of delegates by faults of the operator inside that departs."""
        for number, fault in enumerate(walk.faults):
            node = (
                side.node(fault.instruction)
                if fault.instruction is not None and fault.kind == "backend"
                else None
            )
            if node is None or not is_delegate_call(node):
                continue
            lowered = getattr(side.program.graph_module, str(node_arg(node).target))
            inputs = side.departing_inputs.get(fault.instruction)  # type: ignore[arg-type]
            if not isinstance(lowered, LoweredBackendModule) or inputs is None:
                continue
            inside = first_departing(lowered, inputs)
            if inside is None:
                continue
            frame = user_frame(inside.node)
            name = str(inside.node.target).removesuffix(".default")
            walk.faults[number] = replace(
                fault,
                operator=f"{fault.operator}: {name}",
                source=f"{Path(frame.file).name}:{frame.line}" if frame else fault.source,
                reason=inside.verdict.reason,
                numbers=inside.verdict.numbers,
                module=module_path(inside.node),
                node=inside.node.name,
            )


def _lowered_to(file: MethodInfo) -> list[str] | str:
    """Returns the backends that a method uses, as names for the compiler.

    Raises:
        InputError: the compiler does not know how to lower to one of the backends.
    """
    names = list(dict.fromkeys(each.backend for each in file.delegates))
    unknown = [name for name in names if name not in _FOLDERS]
    if unknown:
        raise InputError(
            f"the compiler does not know how to lower to {', '.join(unknown)}, which the file uses",
            hints=["compare(..., backend=MyPartitioner())"],
        )
    engine = any(each.op.startswith("cpu::") for each in file.instructions)
    return [*(_FOLDERS[name] for name in names), *(["cpu"] if engine else [])] or "portable"


def _flat_results(program: ExportedProgram, flat: Sequence[Any]) -> list[Any]:
    args, kwargs = pytree.tree_unflatten(list(flat), program.call_spec.in_spec)
    return pytree.tree_leaves(user_results(program, evaluate(program, args, kwargs)))


def _tensors(values: Sequence[Any]) -> list[Any]:
    return [torch.as_tensor(value) if hasattr(value, "__dlpack__") else value for value in values]


def _worst(actual: Sequence[Any], expected: Sequence[Any]) -> Numbers:
    worst = EQUAL
    for ours, theirs in zip(actual, expected, strict=False):
        worst = worst.worse(_output(ours, theirs) or EQUAL)
    return worst


def _output(ours: object, theirs: object) -> Numbers | None:
    """Returns the difference of an output; None if the outputs are not tensors of one shape."""
    if not isinstance(ours, Tensor) or not isinstance(theirs, Tensor):
        return None
    ours = torch.view_as_real(ours.resolve_conj()) if ours.is_complex() else ours
    return measure(ours, theirs) if ours.shape == theirs.shape else None


def _dynamic_shapes(
    model: torch.nn.Module, file: MethodInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> DynamicShapes:
    """Returns the dynamic shapes of a method's inputs in the form of `torch.export.export`; None if all are static."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if len(leaves) != len(file.inputs):
        return None
    hints = [_dynamic_shape(file, file.values[port.index]) for port in file.inputs]
    if not any(hints):
        return None
    of_args, of_kwargs = pytree.tree_unflatten(hints, spec)
    if not kwargs:
        shapes: DynamicShapes = of_args
        return shapes
    return dict(inspect.signature(model.forward).bind(*of_args, **of_kwargs).arguments)


def _dynamic_shape(file: MethodInfo, value: ValueInfo) -> Any:
    """Returns the dynamic shape of an input; None if it is static."""
    if value.tensor is None:
        return torch.export.Dim.AUTO if value.kind == "int" and file.reads(value.index) else None
    dims = {
        dim: torch.export.Dim.AUTO(min=least, max=None if most == NO_BOUND else most)
        for dim, (least, most) in enumerate(value.tensor.bounds)
        if least != most and value.tensor.ranges
    }
    return dims or None
