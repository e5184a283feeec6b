# SPDX-License-Identifier: BSD-3-Clause
# In: a file, and a command that runs executor_runner. The runner executes the method on inputs from a bundle. Its
# ETDump contains every value that an instruction wrote.
"""`Remote`: executes a method through a command, for `compare(device=...)`."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torchette.devtools.bundle import BundledProgram, MethodTestCase, MethodTestSuite
from torchette.devtools.inspector.values import is_output, read_value
from torchette.errors import ExecutionError, FormatError, TargetError
from torchette.format import etdump
from torchette.format.schema import Record
from torchette.runtime import Intermediate


class Remote:
    """Executes a method of a file through a command. Each execution is a separate process with initial state.

    Args:
        program: the bytes of the .pte file.
        method: name of the method.
        command: command that runs executor_runner, such as ``["qemu-aarch64", "build/arm/executor_runner"]``.
        copy: use if the device cannot access this machine's files. The program is sent over standard input. Dump and
            values come from standard output of two executions.
        timeout: seconds for one execution.
    """

    def __init__(
        self,
        program: bytes,
        method: str,
        command: Sequence[str],
        *,
        copy: bool = False,
        timeout: float = 300.0,
    ) -> None:
        self._program, self._method = program, method
        self._command, self._copy, self._timeout = list(command), copy, timeout

    def reset(self) -> None:
        """Does nothing: each execution starts from the initial state."""

    def execute(
        self, inputs: Sequence[Any], observer: Callable[[Intermediate], None], *, real_view: bool = True
    ) -> list[Any]:
        """Executes the method.

        Args:
            inputs: inputs of the method.
            observer: function that is called with each value, in the order of the writes.
            real_view: ignored. A dump stores complex outputs as their real view.

        Returns:
            The outputs.

        Raises:
            ExecutionError: the method fails on the device.
            TargetError: the command cannot be run, or its output is not a dump of this method.
        """
        del real_view
        suite = MethodTestSuite(self._method, [MethodTestCase(list(inputs))])
        bundle = BundledProgram(self._program, [suite]).serialize()
        dump, values = self._over_pipes(bundle) if self._copy else self._over_files(bundle)
        try:
            return list(_shown(etdump.load(dump), memoryview(values), observer))
        except FormatError as error:
            raise TargetError(
                f"the output of {self._command[0]} is not an ETDump of executor_runner: {error.message}",
                hints=[
                    "no other program may print to standard output",
                    "the runner on the device may be too old",
                ],
            ) from None

    def _over_files(self, bundle: bytes) -> tuple[bytes, bytes]:
        with tempfile.TemporaryDirectory(prefix="torchette-") as name:
            folder = Path(name)
            (folder / "net.bpte").write_bytes(bundle)
            self._run(str(folder / "net.bpte"), str(folder / "net.etdp"), str(folder / "values.bin"))
            try:
                return (folder / "net.etdp").read_bytes(), (folder / "values.bin").read_bytes()
            except FileNotFoundError:
                raise TargetError(
                    f"{self._command[0]} did not write an ETDump to {name}",
                    hints=["use copy=True, or --copy, if the device cannot access this machine's files"],
                ) from None

    def _over_pipes(self, bundle: bytes) -> tuple[bytes, bytes]:
        dump = self._run("-", "/dev/stdout", "/dev/null", bundle)
        return dump, self._run("-", "/dev/null", "/dev/stdout", bundle)

    def _run(self, model: str, dump: str, values: str, stdin: bytes = b"") -> bytes:
        options = ["--model_path", model, "--bundleio", "--method_name", self._method, "--etdump_path", dump]
        options += ["--dump_intermediate_outputs", "--debug_output_path", values]
        try:
            done = subprocess.run(
                [*self._command, *options],
                capture_output=True,
                input=stdin,
                timeout=self._timeout,
                check=False,
            )
        except OSError as error:
            raise TargetError(
                f"the command {self._command[0]!r} cannot be started: {error.strerror or error}"
            ) from None
        except subprocess.TimeoutExpired:
            raise TargetError(f"{self._command[0]} did not finish within {self._timeout:g} s") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            message = next((line for line in reversed(lines) if line.startswith("executor_runner: ")), "")
            if done.returncode == 1 and message:
                raise ExecutionError(f"{self._command[0]}: {message}")
            text = message or (lines[-1] if lines else "no error message")
            raise TargetError(f"{self._command[0]} exited with code {done.returncode}: {text}")
        return done.stdout


def _shown(dump: Record, values: memoryview, observer: Callable[[Intermediate], None]) -> Iterator[Any]:
    """Passes the values of the last execution to `observer`; yields the outputs."""
    runs = [run for run in dump.run_data or () if run.name == "Execute"]
    if not runs:
        raise FormatError("the dump contains no execution")
    step = 0  # an instruction's values follow its time event; values inside its delegate precede it
    for event in runs[-1].events or ():
        timed, logged = event.profile_event, event.debug_event
        if timed is not None:
            inside = timed.delegate_debug_id_int >= 0 or timed.delegate_debug_id_str
            step += timed.chain_index >= 0 and timed.instruction_id >= 0 and not inside
        if logged is None:
            continue
        value = read_value(logged.debug_entry, values)
        if is_output(logged.debug_entry):
            yield value
            continue
        part = logged.delegate_debug_id_int if logged.delegate_debug_id_int >= 0 else None
        inside = part is not None or bool(logged.delegate_debug_id_str)
        name = logged.delegate_debug_id_str or ""
        at = step if inside else step - 1
        observer(Intermediate(logged.chain_index, logged.instruction_id, at, inside, part, name, value))
