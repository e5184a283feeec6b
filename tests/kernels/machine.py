# SPDX-License-Identifier: BSD-3-Clause
# The kernels of another machine: an emulator runs kernel_server.cpp, compiled for that machine with every kernel of the
# table, and the tests of this folder call these kernels instead of the kernels of this process.
"""`build` compiles the program; a `Machine` starts it and calls its kernels. As a plugin, `pytest -p
tests.kernels.machine --kernels-of COMMAND`, the module calls the kernels of the program in all tests of the run.

A request contains the name of the kernel, the number of threads, the storages of all tensors, and the arguments. Whole
storages are sent, so the tests also see writes outside of a tensor. The reply contains a status, a message, the same
storages, and the sizes of output tensors or the scalars that the kernel returned. All integers are little-endian.
"""

from __future__ import annotations

import contextlib
import shlex
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchette import targets
from torchette.build import library, toolchain
from torchette.build.make import link_flags
from torchette.build.selection import Selection
from torchette.exir.emit.records import scalar_type
from torchette.runtime import _native, kernel_levels

ALIGNMENT = 64
OK, WRONG_ARGUMENTS, NO_KERNEL, FAILED = range(4)


class Died(Exception):
    """The program ended while it ran a kernel."""


def build(target: targets.Target, compiler: str | None, folder: Path) -> list[str]:
    """Compiles the server with all kernels; returns the command that runs it here."""
    driver = toolchain.find_compiler(target, compiler)
    common = library.flags(small=False)
    units = library.units(target, Selection(None, None), "posix", common, small=False)
    units.append(toolchain.Unit(Path(__file__).with_name("kernel_server.cpp"), common))
    program = folder / "kernel_server"
    toolchain.link(driver, toolchain.compile_units(driver, units), program, link_flags(target, driver))
    return [*target.emulator, str(program)]


class Machine:
    """Calls kernels in a program that a command starts. `called` contains the names of the called kernels."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command
        self.called: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def call_kernel(
        self, name: str, *arguments: Any, level: str | None = None, threads: int = 1
    ) -> list[Any]:
        """Like `_native.call_kernel`. The machine has a single level; `level` is ignored."""
        storages: dict[int, torch.UntypedStorage] = {}
        items = b"".join(_item(argument, storages) for argument in arguments)
        blocks = [_bytes_of(storage) for storage in storages.values()]
        request = [_text(name), struct.pack("<II", threads, len(blocks))]
        for address, block in zip(storages, blocks, strict=True):
            request += [struct.pack("<IQ", address % ALIGNMENT, block.nbytes), block.numpy().tobytes()]
        request += [struct.pack("<I", len(arguments)), items]
        if self._process is None:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1 << 20
            )
        self.called.add(name)
        try:
            self._process.stdin.write(b"".join(request))
            self._process.stdin.flush()
            return self._answer(name, blocks)
        except (BrokenPipeError, EOFError) as error:
            status, self._process = self._process.wait(), None
            raise Died(f"{name} ended {' '.join(self.command)} with status {status}") from error

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _answer(self, name: str, blocks: list[torch.Tensor]) -> list[Any]:
        (status,) = self._read("<B")
        (length,) = self._read("<I")
        text = self._bytes(length).decode()
        for block in blocks:
            if block.numel():
                block.copy_(torch.frombuffer(bytearray(self._bytes(block.nbytes)), dtype=torch.uint8))
        results = [self._result() for _ in range(*self._read("<I"))]
        if status != OK:
            raise {WRONG_ARGUMENTS: TypeError, NO_KERNEL: KeyError, FAILED: RuntimeError}[status](text)
        return results

    def _result(self) -> Any:
        (kind,) = self._read("<c")
        if kind == b"t":
            (dim,) = self._read("<I")
            return tuple(self._read(f"<{dim}i"))
        if kind == b"n":
            return None
        (number,) = self._read({b"b": "<?", b"i": "<q", b"d": "<d"}[kind])
        return number

    def _read(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))

    def _bytes(self, size: int) -> bytes:
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise EOFError
        return data


@contextlib.contextmanager
def kernels_of(machine: Machine) -> Iterator[None]:
    """Redirects kernel calls to the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_native, "call_kernel", machine.call_kernel)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kernels-of", metavar="COMMAND", help="call the kernels of this program")
    parser.addoption(
        "--called-kernels", metavar="FILE", help="store the names of the kernels that were called"
    )


def pytest_configure(config: pytest.Config) -> None:
    machine, stack = Machine(shlex.split(config.getoption("--kernels-of"))), contextlib.ExitStack()
    called = Path(config.getoption("--called-kernels"))
    stack.callback(lambda: called.write_text("\n".join(machine.called)))
    stack.callback(machine.close)
    stack.enter_context(kernels_of(machine))
    config.add_cleanup(stack.close)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deselects tests of the higher levels of this processor."""
    lowest, *higher = kernel_levels()
    items[:] = [
        item
        for item in items
        if not (hasattr(item, "callspec") and item.callspec.params.get("level", lowest) in higher)
    ]


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _item(value: Any, storages: dict[int, torch.UntypedStorage]) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return struct.pack("<cB", b"b", value)
    if isinstance(value, int):
        return struct.pack("<cq", b"i", value)
    if isinstance(value, float):
        return struct.pack("<cd", b"d", value)
    if isinstance(value, str):
        return b"s" + _text(value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return _tensor(torch.as_tensor(value), storages)
    return struct.pack("<cI", b"l", len(value)) + b"".join(_item(item, storages) for item in value)


def _tensor(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> bytes:
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    storages.setdefault(address, storage)
    place = list(storages).index(address)
    offset = tensor.storage_offset() * tensor.element_size()
    head = struct.pack("<cBBIQ", b"t", int(scalar_type(tensor.dtype)), tensor.dim(), place, offset)
    return head + b"".join(
        struct.pack("<ii", *pair) for pair in zip(tensor.shape, tensor.stride(), strict=True)
    )
