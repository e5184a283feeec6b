# SPDX-License-Identifier: BSD-3-Clause
# In: a program that quantizes an input first, or dequantizes an output last. Out: the same without these steps, which takes
# and returns the whole numbers. What they stand for goes into the file as methods that return a constant, with
# ExecuTorch's names.
"""`QuantizeInputs` and `QuantizeOutputs`: whole numbers in and out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from torchette.errors import InputError, QuantizationError
from torchette.exir import ops
from torchette.exir.graph import (
    call,
    copy_program,
    outputs,
    place,
    placeholders,
    recompile,
    replace,
    sync_signature,
    turns,
)
from torchette.units import counted

if TYPE_CHECKING:
    from torchette.exir.program import EdgeProgramManager

# By name: torch declares them only where its quantization has been imported.
_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
_WHOLE = (torch.int8, torch.uint8, torch.int16, torch.uint16)


class QuantArgs(NamedTuple):
    """What whole numbers q of `dtype` stand for: (q - zero_point) scale, of quant_min <= q <= quant_max."""

    scale: float
    zero_point: int
    quant_min: int
    quant_max: int
    dtype: torch.dtype


Choice = Callable[[QuantArgs], QuantArgs]


def quantize_input(
    exported_program: ExportedProgram, input_index: int, qparams: Mapping[str, Any] | None = None
) -> QuantArgs:
    """Let a program take an input in whole numbers; it is edited in place, its example input too.

    Args:
        exported_program: as torch.export captured it, or in the Edge dialect. All that reads the input must quantize it, in
            one way, perhaps after operators that only move elements.
        input_index: among the user's inputs.
        qparams: "scale", "zp" and "dtype" of whole numbers that the caller has, where they are not the model's own.

    Returns:
        Scale, zero point, least and greatest number, and dtype of the input.

    Raises:
        InputError: there is no such input, or `qparams` lacks something.
        QuantizationError: code "not-quantized": something reads the input as floats; names the line.
    """
    args = _quantize_input(exported_program, input_index, _own if qparams is None else _given(qparams))
    recompile(exported_program.graph_module)
    return args


def quantize_output(exported_program: ExportedProgram, output_index: int) -> QuantArgs:
    """Let a program return an output in whole numbers; it is edited in place.

    Args:
        exported_program: as for `quantize_input`. The output must be dequantized, perhaps before operators that only move
            elements.
        output_index: among the user's outputs.

    Returns:
        Scale, zero point, least and greatest number, and dtype of the output.

    Raises:
        InputError: there is no such output.
        QuantizationError: code "not-quantized": the output is computed in floats; names the line.
    """
    args = _quantize_output(exported_program, output_index, _own)
    recompile(exported_program.graph_module)
    return args


def check_io_dtype(dtype: str) -> None:
    """Raises InputError for a dtype other than "int8" and "uint8"."""
    if dtype not in ("int8", "uint8"):
        raise InputError(f"io={dtype!r}: inputs and outputs have 8 bits", hints=["io='int8'", "io='uint8'"])


def quantize_io(program: ExportedProgram, dtype: str, method: str) -> tuple[ExportedProgram, dict[str, Any]]:
    """A program that takes and returns all floats as whole numbers of 8 bits, and constant methods that say what they stand
    for; the given program stays as it is.

    Raises:
        InputError: `dtype` is not "int8" or "uint8".
        QuantizationError: code "not-quantized", as for `quantize_input`.
    """
    check_io_dtype(dtype)
    wanted = getattr(torch, dtype)
    program, constants = copy_program(program), dict[str, Any]()
    for index, node in enumerate(_inputs(program)):
        if _is_float(node):
            constants |= _methods(method, "input", index, _quantize_input(program, index, _in(wanted)))
    for index, position in enumerate(_positions(program)):
        if _is_float(outputs(program)[position]):
            constants |= _methods(method, "output", index, _quantize_output(program, index, _in(wanted)))
    return program, constants


# ---- ExecuTorch's passes ----


class QuantizeInputs:
    """A pass for `EdgeProgramManager.transform`: see `quantize_input`. The new manager has the constant methods.

    Args:
        edge_program_manager, exported_program: as in ExecuTorch; the program is the one that `transform` gives.
        quantized_inputs_idx: numbers of inputs; or number -> `qparams`.
        method_name: stands before the constants' names, as in ``forward_input0_scale``; without it, ``input0_scale``.
    """

    def __init__(
        self,
        edge_program_manager: object,
        quantized_inputs_idx: Mapping[int, Mapping[str, Any] | None] | Sequence[int],
        method_name: str | None = None,
        exported_program: ExportedProgram | None = None,
    ) -> None:
        given = quantized_inputs_idx
        self._inputs = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given)
        self._method = method_name
        self.quant_args: dict[int, QuantArgs] = {}
        self.constant_methods: dict[str, Any] = {}

    def __call__(self, program: ExportedProgram) -> ExportedProgram:
        """Edit a program."""
        for index, qparams in self._inputs.items():
            self.quant_args[index] = quantize_input(program, index, qparams)
            self.constant_methods |= _methods(self._method, "input", index, self.quant_args[index])
        return program


class QuantizeOutputs:
    """A pass for `EdgeProgramManager.transform`: see `quantize_output`. Arguments as for `QuantizeInputs`."""

    def __init__(
        self,
        edge_program_manager: object,
        quantized_outputs_idx_list: Sequence[int],
        method_name: str | None = None,
        exported_program: ExportedProgram | None = None,
    ) -> None:
        self._outputs = list(quantized_outputs_idx_list)
        self._method = method_name
        self.dequant_args: dict[int, QuantArgs] = {}
        self.constant_methods: dict[str, Any] = {}

    def __call__(self, program: ExportedProgram) -> ExportedProgram:
        """Edit a program."""
        for index in self._outputs:
            self.dequant_args[index] = quantize_output(program, index)
            self.constant_methods |= _methods(self._method, "output", index, self.dequant_args[index])
        return program


def extract_io_quant_params(
    edge_prog: EdgeProgramManager, *, input_idxs: Sequence[int] = (0,), output_idxs: Sequence[int] = (0,)
) -> dict[str, dict[str, dict[str, Any]]]:
    """What inputs and outputs of the method ``forward`` would stand for: {"inputs": {name: {"scale": ..., "zero_point": ...,
    "quant_min": ..., "quant_max": ..., "dtype": torch's}}, "outputs": ...}. The given manager stays as it is."""
    inputs, results = QuantizeInputs(edge_prog, input_idxs), QuantizeOutputs(edge_prog, output_idxs)
    program = edge_prog.transform({"forward": [inputs, results]}).exported_program()
    names = [node.name for node in _inputs(program)]
    returned = [str(outputs(program)[position]) for position in _positions(program)]
    return {
        "inputs": {names[index]: args._asdict() for index, args in inputs.quant_args.items()},
        "outputs": {returned[index]: args._asdict() for index, args in results.dequant_args.items()},
    }


def get_config_method_name(
    prefix: str | None = "forward", arg_type: str = "input", index: int = 0, key: str = "scale"
) -> str:
    """The name of the method that returns "scale", "zp", "quant_min", "quant_max" or "dtype" of an "input" or "output"."""
    return f"{'' if prefix is None else f'{prefix}_'}{arg_type}{index}_{key}"


def _methods(method: str | None, what: str, index: int, args: QuantArgs) -> dict[str, Any]:
    keys = ("scale", "zp", "quant_min", "quant_max", "dtype")  # a dtype is stored as its number
    return {
        get_config_method_name(method, what, index, key): value for key, value in zip(keys, args, strict=True)
    }


# ---- which whole numbers ----


def _own(args: QuantArgs) -> QuantArgs:
    return args


def _in(dtype: torch.dtype) -> Choice:
    """The same numbers, moved into another dtype of 8 bits."""

    def choose(args: QuantArgs) -> QuantArgs:
        scale, zero, low, high, given = args
        if torch.iinfo(given).bits != 8:
            raise _not_quantized(f"the model has it in {given}, which 8 bits cannot hold", None)
        by = torch.iinfo(dtype).min - torch.iinfo(given).min
        return QuantArgs(scale, zero + by, low + by, high + by, dtype)

    return choose


def _given(qparams: Mapping[str, Any]) -> Choice:
    missing = [key for key in ("scale", "zp", "dtype") if key not in qparams]
    if missing or qparams["dtype"] not in _WHOLE:
        raise InputError(
            f"whole numbers of an input need {', '.join(missing) or 'another dtype'}",
            hints=[
                '{"scale": 1 / 255, "zp": 0, "dtype": torch.uint8}',
                f"dtypes: {', '.join(map(str, _WHOLE))}",
            ],
        )
    limits = torch.iinfo(qparams["dtype"])
    given = QuantArgs(float(qparams["scale"]), int(qparams["zp"]), limits.min, limits.max, qparams["dtype"])

    def choose(args: QuantArgs) -> QuantArgs:
        """Those that the model has, but for the range that it uses of them, are the model's."""
        same = (args.scale, args.zero_point, args.dtype) == (given.scale, given.zero_point, given.dtype)
        return args if same else given

    return choose


# ---- editing ----


def _quantize_input(program: ExportedProgram, index: int, choose: Choice) -> QuantArgs:
    inputs = _inputs(program)
    if not 0 <= index < len(inputs):
        raise InputError(
            f"there is no input {index}",
            hints=[f"the program has {counted(len(inputs), 'input')}; the first is 0"],
        )
    node = inputs[index]
    found: set[QuantArgs] = set()
    reader = _reader_of_floats(node, found)
    if reader is not None or node.name in program.graph_signature.user_inputs_to_mutate.values():
        raise _not_quantized(f"input {index} ({node.name}) is used in floats", reader)
    if len(found) != 1:
        what = "is quantized in several ways" if found else "is not used"
        raise _not_quantized(f"input {index} ({node.name}) {what}", next(iter(node.users), None))
    (own,) = found
    args = choose(own)
    first = next(user for user in node.graph.nodes if user in node.users)
    val = node.meta["val"]
    floats = call(first, _target(_DEQUANTIZE), (node, *args), val=val, like=first)
    node.replace_all_uses_with(floats, delete_user_cb=lambda user: user is not floats)
    node.meta["val"] = val.to(args.dtype)
    for user in list(floats.users):
        if args_of(user, _QUANTIZE) == args:
            replace(program, user, node)
    if not floats.users:
        floats.graph.erase_node(floats)
    _quantize_example(program, index, args)
    return args


def _quantize_output(program: ExportedProgram, index: int, choose: Choice) -> QuantArgs:
    positions = _positions(program)
    if not 0 <= index < len(positions):
        raise InputError(
            f"there is no output {index}",
            hints=[f"the program has {counted(len(positions), 'output')}; the first is 0"],
        )
    value = source = outputs(program)[positions[index]]
    while isinstance(source, Node) and _moves(source):
        source = source.args[0]
    own = args_of(source, _DEQUANTIZE)
    if own is None:
        raise _not_quantized(
            f"output {index} is computed in floats", source if isinstance(source, Node) else None
        )
    args, end = choose(own), program.graph.output_node()
    if value is source and args == own:
        whole = value.args[0]
    else:
        val = value.meta["val"].to(args.dtype)
        whole = call(end, _target(_QUANTIZE), (value, *args), val=val, like=source)
    results = outputs(program)
    results[positions[index]] = whole
    end.args = (tuple(results),)
    if not value.users:
        value.graph.erase_node(value)
    sync_signature(program)
    return args


def args_of(node: object, name: str) -> QuantArgs | None:
    """Of a call that quantizes or dequantizes a whole tensor; None of any other."""
    if not isinstance(node, Node) or str(node.target) != name or len(node.args) < 6:
        return None
    given: list[Any] = list(node.args[1:6])
    return QuantArgs(*given) if all(isinstance(number, (int, float)) for number in given[:4]) else None


def _reader_of_floats(node: Node, found: set[QuantArgs]) -> Node | None:
    """Collects how a value is quantized; the first call that reads it as floats."""
    for user in node.users:
        args = args_of(user, _QUANTIZE)
        if args is not None:
            found.add(args)
        elif not _moves(user):
            return user
        elif (reader := _reader_of_floats(user, found)) is not None:
            return reader
    return None


def _moves(node: Node) -> bool:
    """Whether a call gives elements of its one operand another place, and computes nothing."""
    if node.op != "call_function" or not isinstance(node.args[0], Node):
        return False
    return (
        turns(node.target)
        or ops.is_view(node.target)
        or (ops.is_operator(node.target) and ops.is_copying(node.target))
    )


def _inputs(program: ExportedProgram) -> list[Node]:
    named = {node.name: node for node in placeholders(program)}
    return [named[str(name)] for name in program.graph_signature.user_inputs]


def _positions(program: ExportedProgram) -> list[int]:
    """Where the user's outputs are among those of the graph."""
    specs = enumerate(program.graph_signature.output_specs)
    return [position for position, spec in specs if spec.kind is OutputKind.USER_OUTPUT]


def _is_float(value: object) -> bool:
    val = value.meta.get("val") if isinstance(value, Node) else None
    return isinstance(val, torch.Tensor) and val.is_floating_point()


def _target(name: str) -> Any:
    _, operator, overload = name.split(".")
    return getattr(getattr(torch.ops.quantized_decomposed, operator), overload)


def _quantize_example(program: ExportedProgram, index: int, args: QuantArgs) -> None:
    if program.example_inputs is None:
        return
    leaves, tree = pytree.tree_flatten(program.example_inputs)
    leaves[index] = _target(_QUANTIZE)(leaves[index].float(), *args)
    program._example_inputs = pytree.tree_unflatten(leaves, tree)


def _not_quantized(problem: str, node: Node | None) -> QuantizationError:
    return QuantizationError(
        f"{problem}: whole numbers are taken and given where all of it is quantized with fixed scales",
        where=[place(node)] if node is not None and node.op == "call_function" else [],
        hints=[
            'quantizer=... with calibration=..., or torchette.quantize(model, calibration, "int8")',
            "QuantizeInputs(edge, [0]) and QuantizeOutputs(edge, [0]) of torchette.exir.passes.quantize_io_pass take single ones",
        ],
        code="not-quantized",
    )
