# SPDX-License-Identifier: BSD-3-Clause
# In: a program, inputs, and the outputs that eager computes for them. Out: one file with all three (.bpte). Also:
# checks whether the runtime computes these outputs. The names are ExecuTorch's names.
"""Bundled programs: program files that contain their own test cases.

>>> suites = [MethodTestSuite("forward", [MethodTestCase((x,), (model(x),))])]
>>> Path("net.bpte").write_bytes(BundledProgram(program, suites).serialize())
>>> bundle = load_bundled_program("net.bpte")
>>> Module(bundle.program).verify_result_with_bundled_expected_output(bundle, "forward", 0)
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torchette.devtools import profile_blocks
from torchette.devtools.inspect import DTYPES
from torchette.errors import ExecutionError, FormatError, InputError, InputTypeError
from torchette.files import missing_file
from torchette.format import bundled
from torchette.format.schema import Record
from torchette.runtime import MethodMeta, Runtime
from torchette.units import counted

if TYPE_CHECKING:
    from torchette.runtime import Method, Program

_NUMBERS = {bool: ("Bool", "bool_val"), int: ("Int", "int_val"), float: ("Double", "double_val")}
_VERSION = 0  # version of the format


class MethodTestCase:
    """Inputs of a method and its expected outputs.

    Args:
        inputs: a pytree of torch tensors and scalars.
        expected_outputs: a pytree of torch tensors and scalars; None for a case that only runs. Complex tensors are stored as
            their real view.
    """

    def __init__(self, inputs: object, expected_outputs: object = None) -> None:
        import torch
        from torch.utils._pytree import tree_leaves

        self.inputs = tree_leaves(inputs)
        self.expected_outputs = [
            torch.view_as_real(value.resolve_conj())
            if isinstance(value, torch.Tensor) and value.is_complex()
            else value
            for value in (() if expected_outputs is None else tree_leaves(expected_outputs))
        ]


@dataclass
class MethodTestSuite:
    """The test cases of one method."""

    method_name: str
    test_cases: Sequence[MethodTestCase]


class _Finished(Protocol):
    @property
    def buffer(self) -> bytes: ...


class BundledProgram:
    """A program and its test cases.

    Args:
        executorch_program: the program's bytes, or an object with the bytes as ``buffer``.
        method_test_suites: the test cases.
        pte_file_path: path of the program, instead of the first argument.

    Raises:
        InputError: both or neither of the program arguments are passed, or the number of inputs of a case differs from
            that of its method.
        InputTypeError: a value is neither a tensor nor a scalar.

    Example:
        >>> suites = [MethodTestSuite("forward", [MethodTestCase((x,), (model(x),))])]
        >>> Path("net.bpte").write_bytes(BundledProgram(program, suites).serialize())
    """

    def __init__(
        self,
        executorch_program: _Finished | bytes | None,
        method_test_suites: Sequence[MethodTestSuite],
        pte_file_path: str | os.PathLike[str] | None = None,
    ) -> None:
        if (executorch_program is None) == (pte_file_path is None):
            raise InputError("a bundle contains one program: pass either executorch_program or pte_file_path")
        self.executorch_program = executorch_program
        self.method_test_suites = sorted(method_test_suites, key=lambda suite: suite.method_name)
        buffer: Any = getattr(executorch_program, "buffer", executorch_program)
        self._bytes = bytes(buffer) if pte_file_path is None else Path(pte_file_path).read_bytes()
        program = Runtime.get().load_program(self._bytes)
        for suite in self.method_test_suites:
            takes = program.metadata(suite.method_name).num_inputs()
            for i, case in enumerate(suite.test_cases):
                if len(case.inputs) != takes:
                    raise InputError(
                        f"case {i} of method {suite.method_name!r} has {counted(len(case.inputs), 'input')}, expected {takes}"
                    )

    def serialize_to_schema(self) -> Any:
        """Returns the record of the .bpte file (`torchette.format.bundled`)."""
        suites = [
            bundled.BundledMethodTestSuite(
                suite.method_name,
                [
                    bundled.BundledMethodTestCase(
                        [_stored(value) for value in case.inputs],
                        [_stored(value) for value in case.expected_outputs],
                    )
                    for case in suite.test_cases
                ],
            )
            for suite in self.method_test_suites
        ]
        return bundled.BundledProgram(_VERSION, suites, self._bytes)

    def serialize(self) -> bytes:
        """Returns the bytes of the .bpte file."""
        return bundled.write(self.serialize_to_schema())


def serialize_from_bundled_program_to_flatbuffer(bundled_program: BundledProgram) -> bytes:
    """Returns the bytes of the .bpte file."""
    return bundled_program.serialize()


def deserialize_from_flatbuffer_to_bundled_program(flatbuffer: bytes) -> Any:
    """Returns the record of a .bpte file (`torchette.format.bundled`). Raises FormatError if it is damaged."""
    return bundled.read(flatbuffer)


def _stored(value: object) -> Any:
    """Returns the record of a value."""
    for kind, (name, field) in _NUMBERS.items():
        if type(value) is kind:
            return bundled.Value(getattr(bundled, name)(**{field: value}))
    import torch

    if not isinstance(value, torch.Tensor):
        raise InputTypeError(f"a case can contain tensors and scalars, not {type(value).__name__}")
    dtype = str(value.dtype).removeprefix("torch.")
    name = {torch_name: name for name, torch_name in DTYPES.items()}.get(dtype, dtype.upper())
    if name not in bundled.ScalarType.__members__:
        raise InputTypeError(f"a case cannot contain a tensor of dtype {dtype}")
    order = sorted(range(value.dim()), key=lambda d: -value.stride()[d])
    in_memory = value.detach().cpu().permute(order).contiguous()
    data = in_memory.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
    kind = bundled.ScalarType[name]
    return bundled.Value(bundled.Tensor(kind, list(value.shape), data, order))


def _read(record: Record) -> Any:
    """Returns the value of a record: a tensor or a scalar. Raises FormatError if it is damaged."""
    value = record.val
    for name, field in _NUMBERS.values():
        if type(value).__name__ == name:
            return getattr(value, field)
    import torch

    sizes, order = list(value.sizes or ()), list(value.dim_order or range(len(value.sizes or ())))
    dtype = getattr(torch, DTYPES.get(value.scalar_type.name, value.scalar_type.name.lower()), None)
    if dtype is None or sorted(order) != list(range(len(sizes))) or min(sizes, default=0) < 0:
        raise FormatError(
            "a tensor of the bundle has an unknown dtype, or sizes and dim order that do not match"
        )
    if len(value.data or b"") != math.prod(sizes) * dtype.itemsize:
        raise FormatError(f"a tensor of the bundle has {len(value.data or b'')} bytes for {sizes} of {dtype}")
    flat = torch.frombuffer(bytearray(value.data), dtype=dtype) if value.data else torch.empty(0, dtype=dtype)
    return flat.reshape([sizes[d] for d in order]).permute([order.index(d) for d in range(len(sizes))])


class BundledModule:
    """A .bpte file that was read."""

    def __init__(self, data: bytes) -> None:
        self._record = bundled.read(data)
        self._module: Module | None = None

    @property
    def program(self) -> bytes:
        """The bytes of the .pte file that the bundle contains."""
        return bytes(self._record.program or b"")

    def case(self, method_name: str, testset_idx: int) -> tuple[list[Any], list[Any]]:
        """Returns the inputs and expected outputs of a case: torch tensors and scalars.

        Raises:
            InputError: the bundle has no such case.
            FormatError: the case is damaged.
        """
        suites = {suite.method_name: suite.test_cases for suite in self._record.method_test_suites or ()}
        cases = suites.get(method_name) or ()
        if not 0 <= testset_idx < len(cases):
            raise InputError(
                f"the bundle has {counted(len(cases), 'case')} for method {method_name!r}; index {testset_idx} is out of range"
            )
        case = cases[testset_idx]
        return [_read(v) for v in case.inputs or ()], [_read(v) for v in case.expected_outputs or ()]

    def verify_result_with_bundled_expected_output(
        self, method_name: str, testset_idx: int, rtol: float = 1e-5, atol: float = 1e-8
    ) -> list[Any]:
        """Runs a case of the bundle's program, like the function of `Module`. Returns the outputs."""
        if self._module is None:
            self._module = Module(self.program)
        return self._module.verify_result_with_bundled_expected_output(
            self, method_name, testset_idx, rtol, atol
        )


class Module:
    """A program with the interface of ExecuTorch's Python bindings. A method is loaded on its first call.

    Args:
        program: path or bytes of a .pte file.
        options: options of `torchette.runtime.Runtime.load_program`.
    """

    def __init__(self, program: bytes | str | os.PathLike[str], **options: Any) -> None:
        self._program = Runtime.get().load_program(
            Path(program) if isinstance(program, os.PathLike) else program, **options
        )
        self._methods: dict[str, Any] = {}
        self._inputs: dict[str, list[Any]] = {}

    def method_names(self) -> list[str]:
        """Returns the sorted names of the methods."""
        return sorted(self._program.method_names)

    def method_meta(self, method_name: str) -> MethodMeta:
        """Returns the signature and memory of a method."""
        return self._program.metadata(method_name)

    def run_method(self, method_name: str, inputs: object = (), clone_outputs: bool = True) -> list[Any]:
        """Runs a method.

        Args:
            method_name: name of the method.
            inputs: a list or tuple with one value per input; any other object is the only input. `plan_execute` reuses
                them.
            clone_outputs: no effect; the caller always owns the outputs.

        Returns:
            The outputs; numpy arrays if an input is one, else torch tensors.

        Raises:
            InputError, ExecutionError: as for `torchette.runtime.Method.execute`.
        """
        del clone_outputs
        self._inputs[method_name] = input_list = (
            list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        )
        return run(self.method(method_name), input_list)

    def method(self, name: str) -> Any:
        """Returns a loaded method of the runtime. Raises as `torchette.runtime.Program.load_method`."""
        if name not in self._methods:
            self._methods[name] = load_method(self._program, name)
        return self._methods[name]

    def forward(self, inputs: object = (), clone_outputs: bool = True) -> list[Any]:
        """Runs the method forward."""
        return self.run_method("forward", inputs, clone_outputs)

    __call__ = forward

    def has_etdump(self) -> bool:
        """Whether the program was loaded with ``enable_etdump=True``."""
        return self._program.has_etdump()

    def write_etdump_result_to_file(
        self, path: str | os.PathLike[str], debug_buffer_path: str | os.PathLike[str] | None = None
    ) -> None:
        """Writes the ETDump, as `torchette.runtime.Program.write_etdump_result_to_file`."""
        self._program.write_etdump_result_to_file(path, debug_buffer_path)

    def load_bundled_input(self, bundle: BundledModule, method_name: str, testset_idx: int) -> None:
        """Stores the inputs of a case for `plan_execute`. Raises InputError if the bundle has no such case."""
        self._inputs[method_name] = bundle.case(method_name, testset_idx)[0]
        if self.has_etdump():
            self._program.set_bundled_input_index(testset_idx)

    def plan_execute(self, method_name: str, clone_outputs: bool = True) -> list[Any]:
        """Runs a method with the inputs of its last call, or of the last `load_bundled_input` if that is later.

        Raises:
            InputError: a method with inputs has none yet.
            ExecutionError: as for `torchette.runtime.Method.execute`.
        """
        count = self.method_meta(method_name).num_inputs()
        if count and method_name not in self._inputs:
            raise InputError(
                f"method {method_name!r} has no inputs yet: it requires {counted(count, 'input')}",
                hints=[f"module.run_method({method_name!r}, inputs)", "module.load_bundled_input(...)"],
            )
        return self.run_method(method_name, self._inputs.get(method_name, []), clone_outputs)

    def verify_result_with_bundled_expected_output(
        self,
        bundle: BundledModule,
        method_name: str,
        testset_idx: int,
        rtol: float = 1e-5,
        atol: float = 1e-8,
    ) -> list[Any]:
        """Runs a case and compares its outputs.

        Args:
            bundle: the bundle that contains the case.
            method_name: name of the method.
            testset_idx: index of the case.
            rtol: relative tolerance.
            atol: absolute tolerance.

        Returns:
            The outputs.

        Raises:
            InputError: the bundle has no such case, or the case has no expected outputs.
            ExecutionError: an element of an output has |output - expected| > atol + rtol * |expected|.
        """
        expected = bundle.case(method_name, testset_idx)[1]
        case_name = f"case {testset_idx} of method {method_name!r}"
        if not expected:
            raise InputError(f"{case_name} has no expected outputs")
        self.load_bundled_input(bundle, method_name, testset_idx)
        outputs = self.plan_execute(method_name)
        if len(outputs) < len(expected):
            raise ExecutionError(f"{case_name}: {counted(len(outputs), 'output')}, {len(expected)} expected")
        for i, (output, expected_output) in enumerate(zip(outputs, expected)):
            difference = _difference(output, expected_output, rtol, atol)
            if difference:
                raise ExecutionError(f"{case_name}: output {i} {difference}", code="output-differs")
        return outputs


def load_method(program: Program, name: str) -> Method:
    """Loads a method, traced if there is a profile block to record its events."""
    return program.load_method(name, tracing=profile_blocks.is_recording() and not program.has_etdump())


def run(method: Method, inputs: object) -> list[Any]:
    """Runs a method of the runtime, like `Module.run_method`."""
    import numpy

    input_list = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    outputs = method.execute(input_list)
    if profile_blocks.is_recording():
        profile_blocks.record(method.take_events())
    return outputs if any(isinstance(value, numpy.ndarray) for value in input_list) else torch_s(outputs)


def torch_s(values: list[Any]) -> list[Any]:
    """Returns the values with torch tensors instead of arrays."""
    import numpy

    if not any(isinstance(value, numpy.ndarray) for value in values):
        return values
    import torch

    return [torch.from_numpy(value) if isinstance(value, numpy.ndarray) else value for value in values]


def _difference(output: Any, expected: Any, rtol: float, atol: float) -> str:
    """Returns a description of the difference; empty if the output matches."""
    import torch

    if not isinstance(expected, torch.Tensor):
        close = math.isclose(output, expected, rel_tol=rtol, abs_tol=atol) or output == expected
        return "" if close else f"is {output}, expected {expected}"
    actual = torch.as_tensor(output)
    if actual.is_complex() and not expected.is_complex():  # a bundle stores the real view
        actual = torch.view_as_real(actual.resolve_conj())
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"is {actual.dtype} {list(actual.shape)}, expected {expected.dtype} {list(expected.shape)}"
    wide = torch.complex128 if expected.is_complex() else torch.float64
    actual, expected = actual.to(wide), expected.to(wide)
    apart = ~torch.isclose(actual, expected, rtol, atol, equal_nan=True)
    if not apart.any():
        return ""
    greatest = (actual - expected).abs()[apart].max().item()
    return f"differs in {int(apart.sum())} of {apart.numel()} elements; largest difference {greatest:.6g} (rtol {rtol}, atol {atol})"


def load_bundled_program(path: str | os.PathLike[str]) -> BundledModule:
    """Reads a .bpte file.

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is damaged.
    """
    if not Path(path).is_file():
        raise missing_file(path)
    return BundledModule(Path(path).read_bytes())
