# SPDX-License-Identifier: BSD-3-Clause
# The signature of a method: inputs, outputs, attributes, memory, backends.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchette import pytree
from torchette.errors import FormatError
from torchette.runtime import native
from torchette.runtime.tensor_info import TensorInfo

_KINDS = ("None", "Tensor", "str", "float", "int", "bool")


class MethodMeta:
    """The signature and the memory needs of a method. Functions with an index raise IndexError if it is out of range.

    Example:
        >>> meta = Runtime.get().load_program("model.pte").metadata("forward")
        >>> meta.num_inputs(), meta.input_text(0)
        (1, 'float32[1, 4]')
    """

    def __init__(self, signature: Any, constant: Callable[[str], Any] = lambda name: None) -> None:
        self._signature = signature
        self._constant = constant  # by name: the value of a method of the file that returns a constant
        self._attributes = [TensorInfo(tensor) for tensor in signature.attributes]
        self._inputs = self._ports("input", signature.inputs)
        self._outputs = self._ports("output", signature.outputs)
        self._complex = _complex_leaves(signature.encoded_outputs, len(self._outputs))

    def _ports(self, port_kind: str, ports: list[Any]) -> list[tuple[int, TensorInfo | None]]:
        def info(index: int, tensor: object) -> TensorInfo:
            names = [f"{self.name()}_{port_kind}{index}"]
            if self.name() == "forward":
                names.append(f"{port_kind}{index}")  # ExecuTorch's name, without the method

            def constant(key: str) -> Any:
                return next((v for name in names if (v := self._constant(f"{name}_{key}")) is not None), None)

            return TensorInfo(tensor, constant)

        return [(port.tag, port.tensor and info(index, port.tensor)) for index, port in enumerate(ports)]

    def name(self) -> str:
        """Returns the method's name, such as ``forward``."""
        result: str = self._signature.name.removesuffix(native.module().PORTABLE)
        return result

    @property
    def plan_name(self) -> str:
        """The name in the file. It differs from `name` for the portable plan, which runs if a backend is missing."""
        result: str = self._signature.name
        return result

    def num_inputs(self) -> int:
        """Returns the number of inputs of `execute`."""
        return len(self._inputs)

    def num_outputs(self) -> int:
        """Returns the number of values that `execute` returns."""
        return len(self._outputs)

    def num_attributes(self) -> int:
        """Returns the number of named tensors inside the method."""
        return len(self._attributes)

    def input_tensor_meta(self, index: int) -> TensorInfo:
        """Returns the shape, the dtype and the layout of an input.

        Args:
            index: the index of the input.

        Raises:
            IndexError: there is no such input.
            TypeError: the input is not a tensor.
        """
        return self._tensor("input", self._inputs, index)

    def output_tensor_meta(self, index: int) -> TensorInfo:
        """Returns the shape, the dtype and the layout of an output. For a complex output this is its real view in the file: a
        float tensor with a last dimension of size 2.

        Args:
            index: the index of the output.

        Raises:
            IndexError: there is no such output.
            TypeError: the output is not a tensor.
        """
        return self._tensor("output", self._outputs, index)

    def output_is_complex(self, index: int) -> bool:
        """Returns whether `Method.execute` returns an output as a complex tensor.

        Args:
            index: the index of the output.
        """
        return checked_index("output", index, len(self._outputs)) in self._complex

    def attribute_tensor_meta(self, index: int) -> TensorInfo:
        """Returns a named internal tensor, such as a buffer that the method updates.

        Args:
            index: the index of the tensor.

        Raises:
            IndexError: there is no such tensor.
        """
        return self._attributes[checked_index("attribute", index, len(self._attributes))]

    @staticmethod
    def _tensor(port_kind: str, ports: list[Any], index: int) -> TensorInfo:
        kind, tensor = ports[checked_index(port_kind, index, len(ports))]
        if tensor is None:
            raise TypeError(f"{port_kind} {index} is not a tensor but of kind {_kind(kind)}")
        result: TensorInfo = tensor
        return result

    def input_text(self, index: int) -> str:
        """Returns a readable description of an input, such as ``float32[1, 3]`` or ``int``.

        Args:
            index: the index of the input.
        """
        kind, tensor = self._inputs[checked_index("input", index, len(self._inputs))]
        return repr(tensor) if tensor else _kind(kind)

    def output_text(self, index: int) -> str:
        """Returns a readable description of an output.

        Args:
            index: the index of the output.
        """
        kind, tensor = self._outputs[checked_index("output", index, len(self._outputs))]
        text = repr(tensor) if tensor else _kind(kind)
        return f"{text} as complex" if index in self._complex else text

    def input_name(self, index: int) -> str:
        """Returns the name of the model's argument for an input; empty if the file has no name.

        Args:
            index: the index of the input.
        """
        tensor = self._inputs[checked_index("input", index, len(self._inputs))][1]
        return tensor.name if tensor else ""

    @property
    def planned_sizes(self) -> list[int]:
        """Bytes of each planned buffer."""
        return list(self._signature.planned_sizes)

    @property
    def num_instructions(self) -> int:
        """The number of instructions of one execution, without jumps."""
        result: int = self._signature.num_instructions
        return result

    @property
    def backend_names(self) -> list[str]:
        """The backends that the method delegates to, one entry per delegate."""
        return list(self._signature.backend_names)

    @property
    def encoded_inputs(self) -> str:
        """The pytree spec of the inputs as text, as in the file; empty if the file has none."""
        result: str = self._signature.encoded_inputs
        return result

    @property
    def encoded_outputs(self) -> str:
        """The pytree spec of the outputs as text, as in the file; empty if the file has none."""
        result: str = self._signature.encoded_outputs
        return result

    def __repr__(self) -> str:
        inputs = [
            f"{self.input_name(i) or f'input {i}'}: {self.input_text(i)}" for i in range(self.num_inputs())
        ]
        outputs = [self.output_text(i) for i in range(self.num_outputs())]
        return f"{self.name()}({', '.join(inputs)}) -> {', '.join(outputs) or 'nothing'}"

    def _repr_html_(self) -> str:
        from torchette import notebook

        ports = [
            *(("input", self.input_name(i), self.input_text(i)) for i in range(self.num_inputs())),
            *(("output", "", self.output_text(i)) for i in range(self.num_outputs())),
        ]
        about = [f"{self.num_instructions} instructions", f"{sum(self.planned_sizes):,} bytes planned"]
        about += sorted(set(self.backend_names))
        return notebook.tables([("", ("", "name", "type"), ports)], f"{self.name()}: {', '.join(about)}")


def _kind(kind: int) -> str:
    return _KINDS[kind] if kind < len(_KINDS) else "list"


def _complex_leaves(encoded_outputs: str, count: int) -> frozenset[int]:
    """The indices of the complex outputs. Empty if the pytree spec cannot be read or its number of leaves differs: a method
    can be executed without its spec."""
    if '"complex"' not in encoded_outputs:
        return frozenset()
    try:
        tree = pytree.decode(encoded_outputs)
    except FormatError:
        return frozenset()
    if tree is None or tree.num_leaves != count:
        return frozenset()
    return frozenset(i for i, leaf in enumerate(pytree.leaves(tree)) if leaf.is_complex)


def checked_index(label: str, index: int, count: int) -> int:
    """Returns `index`. Raises IndexError if it is not an index of `count` items."""
    if not 0 <= index < count:
        raise IndexError(f"{label} {index} does not exist, {label}s: {count}")
    return index
