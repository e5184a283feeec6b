# SPDX-License-Identifier: BSD-3-Clause
# In: a program that first quantizes an input, or finally dequantizes an output. Out: the program without these steps,
# with integer inputs and outputs. Constant methods with ExecuTorch's names return the quantization parameters.
"""`QuantizeInputs` and `QuantizeOutputs`: integer inputs and outputs."""

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
    is_reordering,
    outputs,
    place,
    placeholders,
    recompile,
    replace,
    sync_signature,
)
from torchette.units import counted

if TYPE_CHECKING:
    from torchette.exir.program import EdgeProgramManager

# By name, because torch registers them only when its quantization module is imported.
_QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
_INTEGER_DTYPES = (torch.int8, torch.uint8, torch.int16, torch.uint16)


class QuantArgs(NamedTuple):
    """Affine quantization of `dtype`: real = (q - zero_point) * scale, with quant_min <= q <= quant_max."""

    scale: float
    zero_point: int
    quant_min: int
    quant_max: int
    dtype: torch.dtype


Choice = Callable[[QuantArgs], QuantArgs]


def quantize_input(
    exported_program: ExportedProgram, input_index: int, qparams: Mapping[str, Any] | None = None
) -> QuantArgs:
    """Converts an input of a program to integers. Edits the program, and its example input, in place.

    Args:
        exported_program: a program as captured by torch.export, or in the Edge dialect. All readers of the input must
            quantize it with the same parameters, possibly after operators that only move elements.
        input_index: index among the user inputs.
        qparams: "scale", "zp" and "dtype" of the caller's integers, if they differ from those of the model.

    Returns:
        Scale, zero point, minimum, maximum, and dtype of the integers.

    Raises:
        InputError: the input does not exist, or `qparams` lacks a key.
        QuantizationError: code "not-quantized": an operator reads the input as floats. The error contains its line.
    """
    args = _quantize_input(
        exported_program, input_index, _unchanged if qparams is None else _parameters_of(qparams)
    )
    recompile(exported_program.graph_module)
    return args


def quantize_output(exported_program: ExportedProgram, output_index: int) -> QuantArgs:
    """Converts an output of a program to integers. Edits the program in place.

    Args:
        exported_program: see `quantize_input`. The output must be the result of a dequantize call, possibly followed by
            operators that only move elements.
        output_index: index among the user outputs.

    Returns:
        Scale, zero point, minimum, maximum, and dtype of the integers.

    Raises:
        InputError: the output does not exist.
        QuantizationError: code "not-quantized": the output is computed in floats. The error contains the source line.
    """
    args = _quantize_output(exported_program, output_index, _unchanged)
    recompile(exported_program.graph_module)
    return args


def check_io_dtype(dtype: str) -> None:
    """Raises InputError for a dtype other than "int8" and "uint8"."""
    if dtype not in ("int8", "uint8"):
        raise InputError(f"io={dtype!r}: expected an 8-bit dtype", hints=["io='int8'", "io='uint8'"])


def quantize_io(program: ExportedProgram, dtype: str, method: str) -> tuple[ExportedProgram, dict[str, Any]]:
    """Returns a copy of a program with 8-bit integers in place of all float inputs and outputs, and the constant
    methods that return their quantization parameters.

    Raises:
        InputError: `dtype` is not "int8" or "uint8".
        QuantizationError: code "not-quantized", see `quantize_input`.
    """
    check_io_dtype(dtype)
    io_dtype = getattr(torch, dtype)
    program, constants = copy_program(program), dict[str, Any]()
    for index, node in enumerate(_inputs(program)):
        if _is_float(node):
            constants |= _methods(
                method, "input", index, _quantize_input(program, index, _shifted_to(io_dtype))
            )
    for index, position in enumerate(_positions(program)):
        if _is_float(outputs(program)[position]):
            constants |= _methods(
                method, "output", index, _quantize_output(program, index, _shifted_to(io_dtype))
            )
    return program, constants


# ---- ExecuTorch's passes ----


class QuantizeInputs:
    """A pass for `EdgeProgramManager.transform` that calls `quantize_input`. The new manager has the constant methods.

    Args:
        edge_program_manager, exported_program: ignored; `transform` passes the program.
        quantized_inputs_idx: indices of inputs, or index -> `qparams`.
        method_name: prefix of the constants' names, as in ``forward_input0_scale``; None for ``input0_scale``.
    """

    def __init__(
        self,
        edge_program_manager: object,
        quantized_inputs_idx: Mapping[int, Mapping[str, Any] | None] | Sequence[int],
        method_name: str | None = None,
        exported_program: ExportedProgram | None = None,
    ) -> None:
        indices = quantized_inputs_idx
        self._inputs = dict(indices) if isinstance(indices, Mapping) else dict.fromkeys(indices)
        self._method = method_name
        self.quant_args: dict[int, QuantArgs] = {}
        self.constant_methods: dict[str, Any] = {}

    def __call__(self, program: ExportedProgram) -> ExportedProgram:
        """Edits and returns a program."""
        for index, qparams in self._inputs.items():
            self.quant_args[index] = quantize_input(program, index, qparams)
            self.constant_methods |= _methods(self._method, "input", index, self.quant_args[index])
        return program


class QuantizeOutputs:
    """A pass for `EdgeProgramManager.transform` that calls `quantize_output`. The arguments are those of
    `QuantizeInputs`."""

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
        """Edits and returns a program."""
        for index in self._outputs:
            self.dequant_args[index] = quantize_output(program, index)
            self.constant_methods |= _methods(self._method, "output", index, self.dequant_args[index])
        return program


def extract_io_quant_params(
    edge_prog: EdgeProgramManager, *, input_idxs: Sequence[int] = (0,), output_idxs: Sequence[int] = (0,)
) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the quantization parameters of inputs and outputs of the method ``forward``.

    The result is {"inputs": {name: {"scale": ..., "zero_point": ..., "quant_min": ..., "quant_max": ..., "dtype":
    torch.dtype}}, "outputs": ...}. The manager is not modified.
    """
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
    """Returns the name of the method for "scale", "zp", "quant_min", "quant_max" or "dtype" of an "input" or
    "output"."""
    return f"{'' if prefix is None else f'{prefix}_'}{arg_type}{index}_{key}"


def _methods(method: str | None, port: str, index: int, args: QuantArgs) -> dict[str, Any]:
    keys = ("scale", "zp", "quant_min", "quant_max", "dtype")  # the file stores a dtype as its integer
    return {
        get_config_method_name(method, port, index, key): value for key, value in zip(keys, args, strict=True)
    }


# ---- choice of the integers ----


def _unchanged(args: QuantArgs) -> QuantArgs:
    return args


def _shifted_to(dtype: torch.dtype) -> Choice:
    """Returns a function that shifts quantization parameters to another 8-bit dtype."""

    def choose(args: QuantArgs) -> QuantArgs:
        scale, zero, low, high, model_dtype = args
        if torch.iinfo(model_dtype).bits != 8:
            raise _not_quantized(f"the model uses {model_dtype}, which does not fit in 8 bits", None)
        by = torch.iinfo(dtype).min - torch.iinfo(model_dtype).min
        return QuantArgs(scale, zero + by, low + by, high + by, dtype)

    return choose


def _parameters_of(qparams: Mapping[str, Any]) -> Choice:
    missing = [key for key in ("scale", "zp", "dtype") if key not in qparams]
    if missing or qparams["dtype"] not in _INTEGER_DTYPES:
        raise InputError(
            f"qparams of an input lack {', '.join(missing) or 'a supported dtype'}",
            hints=[
                '{"scale": 1 / 255, "zp": 0, "dtype": torch.uint8}',
                f"dtypes: {', '.join(map(str, _INTEGER_DTYPES))}",
            ],
        )
    limits = torch.iinfo(qparams["dtype"])
    qargs = QuantArgs(float(qparams["scale"]), int(qparams["zp"]), limits.min, limits.max, qparams["dtype"])

    def choose(args: QuantArgs) -> QuantArgs:
        """Returns the model's parameters if they differ only in the range, otherwise the given ones."""
        same = (args.scale, args.zero_point, args.dtype) == (qargs.scale, qargs.zero_point, qargs.dtype)
        return args if same else qargs

    return choose


# ---- editing ----


def _quantize_input(program: ExportedProgram, index: int, choose: Choice) -> QuantArgs:
    inputs = _inputs(program)
    if not 0 <= index < len(inputs):
        raise InputError(
            f"the program has no input {index}",
            hints=[f"the program has {counted(len(inputs), 'input')}; indices start at 0"],
        )
    node = inputs[index]
    model_args: set[QuantArgs] = set()
    reader = _reader_of_floats(node, model_args)
    if reader is not None or node.name in program.graph_signature.user_inputs_to_mutate.values():
        raise _not_quantized(f"input {index} ({node.name}) is read as floats", reader)
    if len(model_args) != 1:
        problem = "is quantized with different parameters" if model_args else "is not used"
        raise _not_quantized(f"input {index} ({node.name}) {problem}", next(iter(node.users), None))
    (model_qargs,) = model_args
    args = choose(model_qargs)
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
            f"the program has no output {index}",
            hints=[f"the program has {counted(len(positions), 'output')}; indices start at 0"],
        )
    value = source = outputs(program)[positions[index]]
    while isinstance(source, Node) and _only_moves_elements(source):
        source = source.args[0]
    model_qargs = args_of(source, _DEQUANTIZE)
    if model_qargs is None:
        raise _not_quantized(
            f"output {index} is computed in floats", source if isinstance(source, Node) else None
        )
    args, end = choose(model_qargs), program.graph.output_node()
    if value is source and args == model_qargs:
        quantized = value.args[0]
    else:
        val = value.meta["val"].to(args.dtype)
        quantized = call(end, _target(_QUANTIZE), (value, *args), val=val, like=source)
    results = outputs(program)
    results[positions[index]] = quantized
    end.args = (tuple(results),)
    if not value.users:
        value.graph.erase_node(value)
    sync_signature(program)
    return args


def args_of(node: object, name: str) -> QuantArgs | None:
    """Returns the arguments of a per-tensor quantize or dequantize call; None for any other node."""
    if not isinstance(node, Node) or str(node.target) != name or len(node.args) < 6:
        return None
    values: list[Any] = list(node.args[1:6])
    return QuantArgs(*values) if all(isinstance(number, (int, float)) for number in values[:4]) else None


def _reader_of_floats(node: Node, qargs: set[QuantArgs]) -> Node | None:
    """Adds the quantization parameters of a value's readers to `qargs`. Returns the first call that reads it as
    floats."""
    for user in node.users:
        args = args_of(user, _QUANTIZE)
        if args is not None:
            qargs.add(args)
        elif not _only_moves_elements(user):
            return user
        elif (reader := _reader_of_floats(user, qargs)) is not None:
            return reader
    return None


def _only_moves_elements(node: Node) -> bool:
    """Returns whether a call only moves elements of its single operand."""
    if node.op != "call_function" or not isinstance(node.args[0], Node):
        return False
    return (
        is_reordering(node.target)
        or ops.is_view(node.target)
        or (ops.is_operator(node.target) and ops.is_copying(node.target))
    )


def _inputs(program: ExportedProgram) -> list[Node]:
    named = {node.name: node for node in placeholders(program)}
    return [named[str(name)] for name in program.graph_signature.user_inputs]


def _positions(program: ExportedProgram) -> list[int]:
    """Returns the positions of the user outputs in the outputs of the graph."""
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
        f"{problem}: integer inputs and outputs require static quantization of the whole model",
        where=[place(node)] if node is not None and node.op == "call_function" else [],
        hints=[
            'quantizer=... with calibration=..., or torchette.quantize(model, calibration, "int8")',
            "QuantizeInputs(edge, [0]) and QuantizeOutputs(edge, [0]) of torchette.exir.passes.quantize_io_pass convert "
            "individual inputs and outputs",
        ],
        code="not-quantized",
    )
