# SPDX-License-Identifier: BSD-3-Clause
# In: the output of the emitter. Out: a program manager that writes the bytes of the file. Names and signatures are
# those of ExecuTorch; additional ones have a default.
"""`ExecutorchProgramManager`: a finished program."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from torch.export import ExportedProgram

from torchette import runtime
from torchette.errors import CompileError, InputError, MissingKernelWarning, NativeModuleError, kernel_hints
from torchette.exir.config import ExecutorchBackendConfig
from torchette.exir.emit import EmitterOutput
from torchette.exir.graph import calls, place, shape_text
from torchette.exir.ops import is_operator, kernel_name
from torchette.exir.pipeline import Report
from torchette.exir.program.describe import describe, html, method_named, signature_text
from torchette.format import ptd, pte
from torchette.runtime.verification import LoadFault, load_faults


class ExecutorchProgramManager:
    """A finished program: the bytes of its file, and how it was compiled. `to_executorch` returns it.

    Example:
        >>> program = to_edge(exported).to_executorch()
        >>> program.save("model.pte")
        >>> planned, bound = program.planned_bytes()
    """

    def __init__(
        self,
        programs: Mapping[str, ExportedProgram],
        constant_methods: Mapping[str, Any],
        output: EmitterOutput,
        config: ExecutorchBackendConfig,
        reports: Mapping[str, Report],
    ) -> None:
        self._programs = dict(programs)
        self._constant_methods = dict(constant_methods)
        self._output = output
        self._reports = dict(reports)
        self._config = config
        self._etrecord: Any = None
        self._pte = pte.write(
            output.program,
            output.constants,
            output.mutable_data,
            output.delegate_data,
            output.named_data,
            named_alignment=output.named_alignment,
            segment_alignment=config.segment_alignment,
            constant_tensor_alignment=config.constant_tensor_alignment or 16,
            extract_delegate_segments=config.extract_delegate_segments,
        )
        check_load(self._pte, output)
        self._buffer: bytes | None = None

    @property
    def buffer(self) -> bytes:
        """The bytes of the file. `save` and `write_to_file` are faster, because they do not copy the weights."""
        if self._buffer is None:
            self._buffer = bytes(self._pte)
        return self._buffer

    def write_to_file(self, open_file: BinaryIO) -> None:
        """Writes the file to an open file.

        Args:
            open_file: a binary file.
        """
        self._pte.write_to(open_file)

    def save(self, path: str | Path) -> None:
        """Writes the file.

        Args:
            path: the file. A path without a suffix gets the suffix `.pte`.
        """
        path = Path(path)
        self._pte.write_to(path if path.suffix else path.with_suffix(".pte"))

    @property
    def has_tensor_data(self) -> bool:
        """Whether some weights are stored in separate data files."""
        return bool(self._output.data_files)

    def write_tensor_data_to_file(self, outdir: str | Path) -> None:
        """Writes the weights that are stored in separate data files, one `<name>.ptd` per file.

        Args:
            outdir: an existing folder.
        """
        for name, data in self._tensor_data.items():
            (Path(outdir) / (name if name.endswith(".ptd") else f"{name}.ptd")).write_bytes(data)

    @property
    def _emitter_output(self) -> Any:
        """The emitter's output, under the name that user code of ExecuTorch accesses."""
        return self._output

    @property
    def _tensor_data(self) -> dict[str, Any]:
        """The bytes of each data file by name. User code of ExecuTorch accesses this name."""
        alignment = self._config.segment_alignment
        return {
            name: ptd.write(named, segment_alignment=alignment)
            for name, named in self._output.data_files.items()
        }

    @property
    def methods(self) -> set[str]:
        """The names of the methods with a program."""
        return {name for name in self._programs if not name.endswith(pte.PORTABLE)}

    @property
    def config_methods(self) -> set[str]:
        """The names of the methods that return a constant."""
        return set(self._constant_methods)

    @property
    def executorch_program(self) -> Any:
        """The program as records of the file's schema, without the weights."""
        return self._output.program

    def exported_program(self, method_name: str = "forward") -> ExportedProgram:
        """Returns the planned graph of a method, in the EXEC dialect.

        Args:
            method_name: the name of the method.

        Raises:
            KeyError: there is no such method; the message lists the methods.
        """
        result: ExportedProgram = method_named(self._programs, method_name)
        return result

    def report(self, method_name: str = "forward") -> Report:
        """Returns the effect of each pass on a method.

        Args:
            method_name: the name of the method.

        Raises:
            KeyError: there is no such method; the message lists the methods.
        """
        result: Report = method_named(self._reports, method_name)
        return result

    def planned_bytes(self, method_name: str = "forward") -> tuple[int, int]:
        """Returns (planned memory of a method, lower bound of any plan), in bytes.

        Args:
            method_name: the name of the method.

        Raises:
            KeyError: there is no such method; the message lists the methods.
        """
        meta = self.exported_program(method_name).graph_module.meta
        return sum(meta["non_const_buffer_sizes"]), sum(meta["memory_bounds"])

    def dump_executorch_program(self, verbose: bool = False, out: IO[str] | None = None) -> None:
        """Prints the graphs with planned memory.

        Args:
            verbose: print all records of the file instead.
            out: a text file; default: standard output.
        """
        out = out or sys.stdout
        if verbose:
            print(self.executorch_program, file=out)
            return
        for name, program in sorted(self._programs.items()):
            print(f"{name}: {signature_text(program)}", file=out)
            for node in calls(program):
                mark = (
                    "  (alias)" if "alias" in node.meta else "  (in place)" if "in_place" in node.meta else ""
                )
                print(f"  {node.name} = {node.target}{node.args}{mark}", file=out)

    @property
    def named_data(self) -> dict[str, Any]:
        """The bytes of each named-data entry of the file."""
        return dict(self._output.named_data)

    @property
    def debug_handle_map(self) -> dict[str, dict[int, Any]]:
        """Method -> instruction -> debug handle of its node."""
        return self._output.debug_handle_map

    def nodes(self, method_name: str = "forward") -> list[torch.fx.Node]:
        """Returns the node of each instruction of the file, from `exported_program(method_name)` or a branch of it.

        Args:
            method_name: the name of the method.

        Raises:
            KeyError: there is no such method; the message lists the methods.
        """
        result: list[torch.fx.Node] = method_named(self._output.nodes, method_name)
        return result

    def values(self, method_name: str = "forward") -> dict[torch.fx.Node, int | tuple[int, ...]]:
        """Returns node -> value or values that it yields, as indices of the values of the file's method.

        Args:
            method_name: the name of the method.

        Raises:
            KeyError: there is no such method; the message lists the methods.
        """
        result: dict[torch.fx.Node, int | tuple[int, ...]] = method_named(self._output.values, method_name)
        return result

    @property
    def delegate_map(self) -> dict[str, dict[int, Any]]:
        """Method -> instruction -> {"name": backend, "delegate_map": debug handles of the backend}."""
        return self._output.delegate_map

    @property
    def instruction_id_to_num_outs_map(self) -> dict[str, dict[int, int]]:
        """Method -> instruction -> number of tensors that it writes."""
        return self._output.instruction_id_to_num_outs_map

    def get_etrecord(self) -> Any:
        """Returns the `torchette.devtools.ETRecord` that maps instructions to the model.

        Raises:
            InputError: the program was compiled without `generate_etrecord=True`.
        """
        if self._etrecord is None:
            raise InputError(
                "this program has no ETRecord",
                hints=[
                    "to_edge(..., generate_etrecord=True)",
                    "to_edge_transform_and_lower(..., generate_etrecord=True)",
                ],
            )
        return self._etrecord

    def operators(self) -> dict[str, str]:
        """Returns the name of every operator that the program calls, as in the file -> source line of its first
        call."""
        lines: dict[str, str] = {}
        called = {
            ".".join(part for part in (op.name, op.overload) if part)
            for plan in self._output.program.execution_plan
            for op in plan.operators
        }
        for program in self._programs.values():
            for node in calls(program):
                if "alias" in node.meta:
                    lines.setdefault("executorch_prim::et_view.default", place(node))
                elif is_operator(node.target):
                    lines.setdefault(".".join(part for part in kernel_name(node.target) if part), place(node))
        return {name: lines.get(name, "") for name in sorted(called)}

    def missing_kernels(self) -> dict[str, str]:
        """Returns the `operators()` without a kernel in the runtime of this machine; empty if the runtime is not
        built."""
        try:
            known = runtime.operator_names()
        except ImportError:
            return {}
        return {name: line for name, line in self.operators().items() if name not in known}

    def __repr__(self) -> str:
        lines = []
        for name, program in sorted(self._programs.items()):
            planned, bound = self.planned_bytes(name)
            lines.append(
                f"{name}: {signature_text(program)}, {planned} bytes planned (at least {bound} needed)"
            )
        return describe(self, [f"{len(self._pte)} bytes", *lines])

    def _repr_html_(self) -> str:
        return html(self)


def warn_of_missing_kernels(program: ExecutorchProgramManager) -> None:
    """Warns about missing kernels. This is not an error, because the device may have kernels that this machine
    lacks."""
    missing = program.missing_kernels()
    if missing:
        lines = [
            f"this runtime has no kernel for {', '.join(missing)}; the file loads only on a runtime with such a kernel",
            *(f"at {line}, for {name}" for name, line in missing.items()),
            "Try:",
            *(f"- {hint}" for hint in kernel_hints(missing)),
        ]
        warnings.warn("\n  ".join(lines), MissingKernelWarning, stacklevel=3)


def check_load(file: pte.Pte, output: EmitterOutput) -> None:
    """Checks that the runtime loads every method of a file. Does nothing if the runtime is not built.

    The weights are not read or copied. Missing kernels and backends are no errors, because the device may have them.

    Args:
        file: the serialized program.
        output: the output of the emitter, which maps records to nodes.

    Raises:
        CompileError: code "does-not-load": a method does not load. Names the operator and the line of the model.
    """
    try:
        faults = load_faults(file.chunks[0], file.nbytes)
    except NativeModuleError:
        return
    if not faults:
        return
    first = faults[0]
    subject = f"method {first.method!r}" if first.method else "the program"
    raise CompileError(
        f"{subject} does not load: {first.reason}",
        where=[location for fault in faults if (location := _location(fault, output))],
        hints=_hints(first),
        code="does-not-load",
    )


def _hints(fault: LoadFault) -> list[str]:
    if "too large" in fault.reason:
        return ["use smaller tensors, or a smaller maximum of a dynamic dimension: Dim('n', max=1024)"]
    return [
        "edge=EdgeCompileConfig(check_passes=True) checks the graph after each pass",
        "remove custom passes, partitioners and memory planning passes, one at a time",
    ]


def _location(fault: LoadFault, output: EmitterOutput) -> str:
    """Returns the operator of a fault and its line in the model; empty if they are unknown."""
    node = None
    if fault.instruction is not None:
        nodes = output.nodes.get(fault.method, [])
        node = nodes[fault.instruction] if fault.instruction < len(nodes) else None
    elif fault.value is not None:
        for candidate, values in output.values.get(fault.method, {}).items():
            if fault.value in (values if isinstance(values, tuple) else (values,)):
                node = candidate
                break
    if node is None:
        return ""
    what = str(node.target) if node.op == "call_function" else f"{node.op} {node.name}"
    return f"{what}, {shape_text(node.meta.get('val'))}: {place(node)}"
