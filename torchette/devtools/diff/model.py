# SPDX-License-Identifier: BSD-3-Clause
# In: the compiler's graph of a model, and the executed instructions of a file. Each instruction is compared with its
# node in the graph, on the values that the file computed, so that a wrong weight, argument, layout, memory plan or
# rewrite is reported at its instruction.
"""`ModelSide`: the expected result of each instruction of a file, according to a model."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Interpreter, Node

from torchette.devtools.diff.judge import EQUAL, NoReference, Verdict, growth_of, judge
from torchette.devtools.diff.operators import is_comparable
from torchette.devtools.diff.result import Fault
from torchette.devtools.diff.walk import Step, Walk, arguments_of
from torchette.devtools.inspect import InstructionInfo, MethodInfo, describe, source_line
from torchette.exir import control_flow, ops
from torchette.exir.arguments import checked, node_arg
from torchette.exir.check import _Evaluator
from torchette.exir.delegation.delegate import is_delegate_call
from torchette.exir.graph import placeholders, tensor_of, user_frame
from torchette.exir.interface import GraphInterface
from torchette.exir.program import ExecutorchProgramManager
from torchette.format import pte
from torchette.format.schema import Record

# Factor by which the error of several consecutive operators can exceed one rounding.
_CHAIN_GROWTH = 64.0

_QUANTIZED = ("quantize", "dequantize")
# Constants with these words in their names are scales and zero points.
_PARAMETERS = ("quantize", "scale", "zero_point")


class ModelSide:
    """A compiled model, and the `Walk` through a file of the same model, which another compiler may have written."""

    def __init__(self, manager: ExecutorchProgramManager, method: str, walk: Walk) -> None:
        self.manager, self._walk = manager, walk
        self.program = manager.exported_program(method)
        self._nodes = manager.nodes(method)
        self._values = manager.values(method)
        self._file = pte.read(manager.buffer)
        self._plan = next(plan for plan in self._file.program.execution_plan if plan.name == method)
        self.info = next(info for info in describe(self._file).methods if info.name == method)
        self.walk_of_model = Walk(self._file, self._plan, self.info)
        self._memory = self.walk_of_model.memory
        self._pairs, self.extra, self.missing = align(walk.method, self.info)
        # the model's instruction -> the file's instruction
        self._theirs = {theirs: ours for ours, theirs in self._pairs.items()}
        self._value_map = self._map_values()
        self._model_value = {ours: theirs for theirs, ours in self._value_map.items()}
        self._check_weights = self._same_model()
        self.departing_inputs: dict[int, list[Any]] = {}  # by instruction, for delegates that depart
        self._interface = GraphInterface.of(self.program.graph_module, self.program.graph_signature)
        self._constant_nodes = self._interface.constants
        self._names = {
            self._values[node]: name for node, name in self._constant_nodes.items() if node in self._values
        }
        main = [node for node in self.program.graph.nodes if node.op in ("call_function", "get_attr")]
        self._main = {node: number for number, node in enumerate(main)}
        self._order = main
        self._instructions: dict[Node, list[int]] = {}
        for index, node in enumerate(self._nodes):
            self._instructions.setdefault(node, []).append(index)
        self.rows = walk.rows
        for row in walk.rows:
            called = self.node(row.instruction)
            if called is not None:
                row.node, row.module = called.name, module_path(called)
                row.source = row.source or _line(called)

    # ---- correspondence of nodes and instructions ----

    def node(self, instruction: int) -> Node | None:
        """Returns the node that corresponds to an instruction of the file; None if the model has none."""
        theirs = self._pairs.get(instruction)
        return None if theirs is None else self._nodes[theirs]

    def _map_values(self) -> dict[int, int]:
        """Maps the model's values to the file's values, through the instructions that use both."""
        value_map: dict[int, int] = {}
        for ours, theirs in self._pairs.items():
            mine, model_record = self._walk.records[ours], self.walk_of_model.records[theirs]
            args, model_args = arguments_of(mine), arguments_of(model_record)
            if len(args) == len(model_args):
                for a, b in zip(args, model_args, strict=True):
                    value_map.setdefault(b, a)
        value_map.update(zip(self._plan.inputs, self._walk.plan.inputs, strict=False))
        return value_map

    def _same_model(self) -> bool:
        """Whether at least half of the constants equal the model's bitwise; then each other constant is a fault."""
        same = different = 0
        for ours, theirs in self._pairs.items():
            for a, b in self._constants(ours, theirs):
                equal = _same_bits(self._walk.memory.constant(a), self._memory.constant(b))
                same, different = same + equal, different + (not equal)
        return same >= different

    def _constants(self, ours: int, theirs: int) -> list[tuple[int, int]]:
        """Returns pairs of the stored tensors that an instruction of the file reads, and those of the model."""
        args, model_args = (
            arguments_of(self._walk.records[ours]),
            arguments_of(self.walk_of_model.records[theirs]),
        )
        file, model = self._walk.memory, self._memory
        pairs = [
            (x, y)
            for a, b in zip(args, model_args, strict=False)
            if a >= 0 and b >= 0
            for x, y in zip(file.members(a), model.members(b), strict=False)
        ]
        return [(x, y) for x, y in pairs if file.is_constant(x) and model.is_constant(y)]

    # ---- one execution ----

    def start(self, inputs: Sequence[Any]) -> None:
        """Starts an execution on these inputs."""
        self._env: dict[Node, Any] = {}
        self._evaluator = _Evaluator(self.program.graph_module, garbage_collect_values=False)
        self._evaluator.env = self._env
        remaining = iter(inputs)
        for node, spec in zip(
            placeholders(self.program), self.program.graph_signature.input_specs, strict=True
        ):
            stored = tensor_of(self.program, spec)
            if stored is None and spec.target is not None and spec.target in self.program.constants:
                stored = self.program.constants[spec.target]
            value = stored.detach() if stored is not None else next(remaining, None)
            value = torch.as_tensor(value) if hasattr(value, "__dlpack__") else value
            if isinstance(value, Tensor) and node not in self._constant_nodes:
                value = value.clone()  # the graph may write to it
            self._env[node] = value
        self._done = 0
        self._reference: set[Node] = set()  # nodes that the file did not compute
        # file value -> the instruction that wrote it, if the model has no such instruction
        self._extra_writes: dict[int, int] = {}

    def follow(self, step: Step) -> None:
        """Processes the next instruction of the file."""
        index = step.info.index
        node = self.node(index)
        if node is None:
            for value in step.written:
                for member in self._walk.memory.members(value):
                    self._extra_writes[member] = index
            return
        for value in step.written:
            self._extra_writes.pop(value, None)
        if node not in self._main or len(self._instructions[node]) != 1:
            return
        self._advance(self._main[node])
        if self._done > self._main[node]:
            return  # the instruction is out of order
        self._check(step, node)
        self._done = self._main[node] + 1

    def finish(self, outputs: Sequence[Any] | None) -> None:
        """Ends an execution: compares the outputs, which reveals missing instructions at the end."""
        if outputs is None:
            return
        self._advance(len(self._order))
        results = [value for value in self._interface.outputs if isinstance(value, Node)]
        for number, (node, output) in enumerate(zip(results, _tensors(outputs), strict=False)):
            expected = self._env.get(node)
            if (
                not isinstance(expected, Tensor)
                or not isinstance(output, Tensor)
                or not is_comparable(node.target)
            ):
                continue
            verdict = judge([output], lambda values: list(values), [expected], _CHAIN_GROWTH)
            if not verdict.departs:
                continue
            text = f"output {number} {verdict.reason}"
            extra = self._extra_writes.get(self._walk.plan.outputs[number])
            if extra is not None:
                row = self._walk.rows[extra]
                self._walk.add(
                    Fault("pass", row.operator, extra, row.source, text, self._walk.name, verdict.numbers)
                )
            elif node in self._reference:
                self._walk.add(self._blame(node, [], verdict, text))

    def _advance(self, until: int) -> None:
        """Evaluates the nodes before `until` that were not compared with an instruction."""
        while self._done < until:
            node = self._order[self._done]
            self._done += 1
            if node in self._env or not is_comparable(node.meta.get("functional", node.target)):
                continue  # results such as that of `empty` are undefined; their users are not judged
            value = self._taken_from_file(node)
            if value is not None:
                self._env[node] = value
                continue
            try:
                self._env[node] = self._evaluator.run_node(node)
            except Exception:  # an input is missing; the users of this node are skipped as well
                continue
            if (node.op == "call_function" and self._is_computed(node)) or any(
                each in self._reference for each in node.all_input_nodes
            ):
                self._reference.add(node)

    def _is_computed(self, node: Node) -> bool:
        return node in self._instructions

    def _taken_from_file(self, node: Node) -> Any:
        """Returns the results of control flow, which is many instructions, from the file's simulated memory."""
        if control_flow.form(node) is None:
            return None
        indices = self._values.get(node)
        index_tuple = indices if isinstance(indices, tuple) else (indices,)
        ours = [self._value_map.get(index) if index is not None else None for index in index_tuple]
        if any(index is None for index in ours):
            return None
        return tuple(self._walk.memory.read(index) for index in ours if index is not None)

    def _check(self, step: Step, node: Node) -> None:
        theirs = self._pairs[step.info.index]
        indices = self._values.get(node)
        written = self.walk_of_model.positions_written(
            self.info.instructions[theirs],
            arguments_of(self.walk_of_model.records[theirs]),
            len(step.values),
        )
        args = arguments_of(self.walk_of_model.records[theirs])
        by_value: dict[int, Any] = {}
        for at, value in zip(written, step.values, strict=False):
            members = self._memory.members(args[at])
            by_value[args[at]] = value
            if isinstance(value, (list, tuple)):
                by_value.update(zip(members, value, strict=False))
        actual = [
            None if index is None else by_value.get(index)
            for index in (indices if isinstance(indices, tuple) else (indices,))
        ]
        if len(actual) == 1 and isinstance(actual[0], list):
            actual = actual[0]
        functional = node.meta.get("functional", node.target)
        if not is_comparable(functional):
            self._keep(node, actual, indices)
            return
        inputs = [each for each in node.all_input_nodes if each in self._env]
        if any(value is None for value in actual):
            return
        if len(inputs) != len(node.all_input_nodes):
            self._keep(node, actual, indices)
            return

        delegate, mutating = is_delegate_call(node), ops.is_mutating(functional)

        def run(values: list[Any]) -> list[Any]:
            saved = [self._env[each] for each in inputs]
            if mutating:
                values = [value.clone() if isinstance(value, Tensor) else value for value in values]
            self._env.update(zip(inputs, values, strict=True))
            try:
                wide = any(isinstance(value, Tensor) and value.dtype == torch.float64 for value in values)
                result = self._delegate(node) if delegate else self._run(node, wide)
            finally:
                self._env.update(zip(inputs, saved, strict=True))
            return list(result) if isinstance(result, (list, tuple)) else [result]

        input_values = [self._env[each] for each in inputs]
        growth = 64.0 if delegate else growth_of(input_values, actual, ops.is_pointwise(functional))
        row = self._walk.rows[step.info.index]
        try:
            verdict = judge(actual, run, input_values, growth)
        except NoReference:
            self._keep(node, actual, indices)
            return
        row.against_model = (row.against_model or EQUAL).worse(verdict.numbers)
        if delegate:
            self._walk.enter(row, verdict)
        if step.departs:
            pass  # the kernel's fault was already added
        elif verdict.departs:
            if delegate:
                self.departing_inputs[step.info.index] = [
                    self._env[checked(each, Node)] for each in node.args[1:]
                ]
            self._walk.add(self._blame(node, [step], verdict, verdict.reason))
        elif self._check_weights:
            self._compare_constants(step, theirs)
        self._keep(node, actual, indices)

    def _run(self, node: Node, wide: bool) -> Any:
        if not wide:
            return self._evaluator.run_node(node)
        kwargs = node.kwargs
        halves = (torch.float32, torch.float16, torch.bfloat16)
        if any(value in halves for value in kwargs.values() if isinstance(value, torch.dtype)):
            changed = {
                k: torch.float64 if isinstance(v, torch.dtype) and v in halves else v
                for k, v in kwargs.items()
            }
            node.kwargs = changed
        try:
            return self._evaluator.run_node(node)
        finally:
            node.kwargs = kwargs

    def _delegate(self, node: Node) -> tuple[Any, ...]:
        """Runs the operators of a delegate, in the floating-point dtype of its inputs."""
        lowered = self._env[node_arg(node)]
        values = [self._env[each] if isinstance(each, Node) else each for each in node.args[1:]]
        return delegate_results(lowered.original_module, values)

    def _keep(self, node: Node, actual: list[Any], indices: object) -> None:
        several = isinstance(node.meta.get("spec"), tuple) or isinstance(indices, tuple)
        self._env[node] = tuple(actual) if several or len(actual) > 1 else actual[0]

    # ---- cause of a fault ----

    def _compare_constants(self, step: Step, theirs: int) -> None:
        """Reports a constant that differs from the model's, even if its effect is small."""
        row = self._walk.rows[step.info.index]
        for a, b in self._constants(step.info.index, theirs):
            difference = self._different_constant(a, b)
            if difference is None:
                continue
            kind = self._kind_of(difference[0], step.info)
            self._walk.add(
                Fault(
                    kind,
                    row.operator,
                    row.instruction,
                    row.source,
                    difference[1],
                    self._walk.name,
                    EQUAL,
                    row.module,
                    row.node,
                )
            )
            return

    def _different_constant(self, a: int, b: int) -> tuple[str, str] | None:
        x, y = self._walk.memory.record(a), self._memory.record(b)
        one, two = self._walk.memory.constant(a), self._memory.constant(b)
        if one.shape == two.shape and _same_bits(one, two):
            return None
        if list(x.dim_order) != list(y.dim_order):
            return (
                "layout",
                f"a constant has dim order {list(x.dim_order)}, expected {list(y.dim_order)}",
            )
        is_parameter = any(word in self._names.get(b, "") for word in _PARAMETERS)
        return "quantization" if is_parameter else "weight", _difference_text(one, two)

    @staticmethod
    def _kind_of(kind: str, info: InstructionInfo) -> str:
        quantized = any(word in info.op for word in _QUANTIZED)
        return "quantization" if quantized and kind in ("pass", "weight") else kind

    def _blame(self, node: Node, steps: list[Step], verdict: Verdict, reason: str) -> Fault:
        """Returns the fault of a node that departs, or of an extra or missing instruction before it."""
        name = self._walk.name
        if steps:
            step = steps[0]
            row = self._walk.rows[step.info.index]
            extra = self._extra_source(step)
            if extra is not None:
                extra_row = self._walk.rows[extra]
                text = (
                    f"the model has no such operator there; {row.operator}, which reads its result, {reason}"
                )
                return Fault("pass", extra_row.operator, extra, extra_row.source, text, name, verdict.numbers)
        lacking = self._lacking(node)
        if lacking is not None and (not steps or lacking is not node):
            text = f"the file has no such operator there: {reason}"
            if self._extra_writes and not steps:
                extra = next(reversed(self._extra_writes.values()))
                extra_row = self._walk.rows[extra]
                return Fault(
                    "pass", extra_row.operator, extra, extra_row.source, reason, name, verdict.numbers
                )
            return Fault(
                "pass", _operator_name(lacking), None, _line(lacking), text, name, verdict.numbers,
                module_path(lacking), lacking.name,
            )  # fmt: skip
        if not steps:
            return Fault("pass", _operator_name(node), None, _line(node), reason, name, verdict.numbers)
        step = steps[0]
        row = self._walk.rows[step.info.index]
        kind, more = self._kind(step, node)
        if kind == "plan" and step.overwritten is not None:
            row = self._walk.rows[step.overwritten.by]
        text = f"{more}; it {reason}" if more else reason
        return Fault(
            kind, row.operator, row.instruction, row.source, text, name, verdict.numbers, row.module, row.node
        )

    def _extra_source(self, step: Step) -> int | None:
        """Returns the instruction that wrote an argument, if the model does not have that instruction."""
        memory = self._walk.memory
        for index in arguments_of(self._walk.records[step.info.index]):
            for member in memory.members(index) if index >= 0 else ():
                writer = self._extra_writes.get(member)
                source = step.sources.get(member)
                if writer is None and source is not None and source.instruction not in self._pairs:
                    writer = source.instruction
                if writer is not None and 0 <= writer != step.info.index:
                    return writer
        return None

    def _lacking(self, node: Node) -> Node | None:
        """Returns the node or its nearest predecessor for which the file has no instruction."""
        stack, visited = [node], set()
        while stack:
            each = stack.pop(0)
            if each in visited:
                continue
            visited.add(each)
            if each in self._reference and self._is_computed(each):
                return each
            stack += [one for one in each.all_input_nodes if one in self._reference]
        return None

    def _kind(self, step: Step, node: Node) -> tuple[str, str]:
        """Returns the kind of difference between an instruction and its expected form, and a description."""
        ours, theirs = step.info.index, self._pairs[step.info.index]
        if is_delegate_call(node):
            return "backend", ""
        if step.overwritten is not None:
            return "plan", ""
        mine, model_instruction = self._walk.method.instructions[ours], self.info.instructions[theirs]
        if mine.op != model_instruction.op:
            return "pass", f"the model has {model_instruction.op} there"
        args, model_args = (
            arguments_of(self._walk.records[ours]),
            arguments_of(self.walk_of_model.records[theirs]),
        )
        for number, (a, b) in enumerate(zip(args, model_args, strict=False)):
            difference = self._different(step, a, b)
            if difference is not None:
                kind, text = difference
                return self._kind_of(kind, mine), f"argument {number}: {text}"
        return "pass", ""

    def _different(self, step: Step, a: int, b: int) -> tuple[str, str] | None:
        if a < 0 or b < 0:
            return None if a == b else ("pass", "only one of the arguments is None")
        if not isinstance(a, int):
            return None
        file, model = self._walk.memory, self._memory
        x, y = file.record(a), model.record(b)
        if type(x) is not type(y):
            return "pass", f"is {type(x).__name__}, expected {type(y).__name__}"
        if isinstance(x, pte.Tensor):
            if file.is_constant(a) and model.is_constant(b):
                difference = self._different_constant(a, b)
                if difference is not None:
                    return difference
            if list(x.dim_order) != list(y.dim_order):
                return "layout", f"has dim order {list(x.dim_order)}, expected {list(y.dim_order)}"
            source = step.sources.get(a)
            base = None if source is None else self._model_value.get(source.value)
            if (
                source is not None
                and base is not None
                and x.allocation_info
                and y.allocation_info
                and model.is_planned(base)
            ):
                here = file.place(a)[1] - file.place(source.value)[1]
                there = model.place(b)[1] - model.place(base)[1]
                if here != there:
                    return (
                        "plan",
                        f"starts {here} bytes after the last value that was written there, expected {there}",
                    )
            mapped = self._value_map.get(b)
            if mapped is not None and mapped != a:
                return "pass", f"is value %{a}, expected %{mapped}"
            return None
        if isinstance(x, (pte.IntList, pte.TensorList, pte.OptionalTensorList)):
            for one, two in zip(x.items, y.items, strict=False):
                difference = self._different(step, one, two)
                if difference is not None:
                    return difference
            return (
                None
                if len(x.items) == len(y.items)
                else ("pass", f"has {len(x.items)} items, expected {len(y.items)}")
            )
        return None if x == y else ("pass", f"is {_plain(x)}, expected {_plain(y)}")


def align(file: MethodInfo, model: MethodInfo) -> tuple[dict[int, int], list[int], list[int]]:
    """Aligns the instructions of a file and a model: (pairs, only in the file, only in the model)."""
    lined = any(instruction.source for instruction in file.instructions)
    ours, theirs = (
        [_key(info, instruction, lined) for instruction in info.instructions] for info in (file, model)
    )
    if ours == theirs:
        return {index: index for index in range(len(ours))}, [], []
    pairs: dict[int, int] = {}
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal" or (tag == "replace" and b - a == d - c):
            pairs.update(zip(range(a, b), range(c, d), strict=True))
    extra = [index for index in range(len(ours)) if index not in pairs]
    paired = set(pairs.values())
    return pairs, extra, [index for index in range(len(theirs)) if index not in paired]


def _key(method: MethodInfo, instruction: InstructionInfo, lined: bool) -> tuple[Any, ...]:
    """Returns the operator, source line and output types, which identify an instruction."""
    shapes = []
    for index in instruction.outputs:
        value = method.values[index]
        shapes.append((value.tensor.dtype, tuple(value.tensor.sizes)) if value.tensor else value.kind)
    return instruction.kind, instruction.op, source_line(instruction.source) if lined else "", tuple(shapes)


def delegate_results(
    program: ExportedProgram, values: Sequence[Any], env: dict[Node, Any] | None = None
) -> tuple[Any, ...]:
    """Runs a program on flat inputs, in their floating-point dtype; stores the value of each node in `env`."""
    wide = any(isinstance(value, Tensor) and value.dtype == torch.float64 for value in values)
    remaining = iter(values)
    inputs = []
    for spec in program.graph_signature.input_specs:
        stored = tensor_of(program, spec)
        if stored is not None and wide and stored.is_floating_point():
            stored = stored.double()
        inputs.append(stored.detach() if stored is not None else next(remaining))
    interpreter = Interpreter(program.graph_module, garbage_collect_values=env is None)
    with torch.no_grad():
        results = interpreter.run(*inputs, enable_io_processing=False)
    if env is not None:
        env.update(interpreter.env)
    return tuple(results)[len(program.graph_signature.buffers_to_mutate) :]


def module_path(node: Node) -> str:
    """Returns the path of a node's innermost module, such as ``layers.1.attention``."""
    modules = node.meta.get("nn_module_stack")
    return str(list(modules.values())[-1][0] or "") if modules else ""


def _line(node: Node) -> str:
    frame = user_frame(node)
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line}" if frame else ""


def _operator_name(node: Node) -> str:
    if not ops.is_operator(node.target):
        return node.name
    return ".".join(part for part in ops.kernel_name(node.target) if part)


def _tensors(values: Sequence[Any]) -> list[Any]:
    return [torch.as_tensor(value) if hasattr(value, "__dlpack__") else value for value in values]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(a.contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8)))


def _difference_text(a: Tensor, b: Tensor) -> str:
    if a.shape != b.shape:
        return f"a constant has shape {list(a.shape)}, expected {list(b.shape)}"
    wrong = (a != b) & ~((a != a) & (b != b))
    count = int(wrong.sum())
    if not count:
        return "a constant differs in the sign of a zero"
    at = int(wrong.flatten().nonzero()[0])
    return f"{count} of {a.numel()} elements of a constant differ; the first is {a.flatten()[at]:.6g} instead of {b.flatten()[at]:.6g}"


def _plain(record: Record) -> Any:
    return next(iter(vars(record).values()), None) if hasattr(record, "__dict__") else record
