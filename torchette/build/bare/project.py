# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file and a board. Out: the sources of an image that runs the model, or a complete project with a Makefile.
"""Sources of an image: `write_application` writes the sources for the model, `new_project` also copies the runtime.

Before sources are written, the model's memory is compared with that of the board. The linker checks the total.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchette import targets
from torchette.build import kernels, selection
from torchette.build.bare import boards
from torchette.build.bare.boards import STACK, Board
from torchette.build.sources import PACKAGE, ROOT
from torchette.devtools.device_memory import Bill, bills
from torchette.devtools.embed import distinct_names, embed
from torchette.devtools.inspect import MethodInfo, TensorInfo, describe
from torchette.errors import BuildError, TorchetteError
from torchette.format import pte, schema
from torchette.schema import DTYPES

TEMPLATES = boards.FOLDER / "project"
# Maximum number of values per output that the image compares, because of the limited flash of small boards.
COMPARED = 256
# dtypes with a C type.
_C_TYPES = {
    dtype.torch_name: dtype.cpp_type for dtype in DTYPES if dtype.cpp_type not in ("", "Half", "BFloat16")
}


@dataclass(frozen=True)
class Application:
    """A model, and the board of its image.

    Attributes:
        model: path of the .pte file.
        board: the board that runs the image.
        name: name of the image, and prefix of the embedded program's symbols.
        stack: bytes of the stack.
        temp: see `torchette.devtools.embed.embed`.
    """

    model: Path
    board: Board
    name: str
    stack: int = STACK
    temp: str | int = "most"


def write_application(application: Application, folder: Path) -> list[Path]:
    """Writes main.cpp, expected.h, image.ld and the embedded program.

    Returns:
        The paths of the written files.

    Raises:
        BuildError: the model requires more memory than the board has; the message contains the missing bytes.
        InputError: the temp memory cannot be determined, see `embed`.
    """
    method = describe(application.model).methods[0]
    (bill, *_) = bills(
        application.model, application.board.target, temp=not isinstance(application.temp, int)
    )
    outer = _CallerTensors(method)
    check_fit(application, bill, outer.nbytes)
    folder.mkdir(parents=True, exist_ok=True)
    board = application.board
    written = embed(
        application.model, folder, name=application.name, target=board.target, temp=application.temp
    )
    expected = _expected(application.model, method)
    texts = {
        "image.ld": boards.script(board, application.stack),
        "expected.h": _expected_header(expected),
        "main.cpp": _filled(
            "main.cpp",
            NAME=application.name,
            BOARD=board.name,
            METHOD=distinct_names(pte.load_file(application.model))[0],
            METHOD_NAME=method.name,
            ARRAYS=outer.arrays(),
            GIVE=outer.calls(method),
            CHECK=_checks(expected),
        ),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*written, *(folder / name for name in texts)]


def new_project(application: Application, folder: Path) -> list[Path]:
    """Writes a folder that `make` builds and `make run` runs, without this package.

    Returns:
        The paths of the written files.

    Raises:
        BuildError: the folder is not empty, or the model does not fit (see `write_application`).
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BuildError(f"{folder} is not empty", code="folder-not-empty", hints=["choose a new folder"])
    board, target = application.board, targets.find(application.board.target)
    (bill, *_) = bills(application.model, board.target, temp=not isinstance(application.temp, int))
    written = write_application(application, folder)
    chosen = selection.of_files([application.model])
    (folder / "selected.h").write_text(chosen.header(), encoding="utf-8")
    for name in ("Makefile", "README"):
        text = _filled(
            name,
            NAME=application.name,
            BOARD=board.name,
            BOARD_TEXT=f"{board.name} ({board.text})",
            ZIG_FLAGS=" ".join(target.zig),
            ZIG_LINK_FLAGS=" ".join(target.zig_link or target.zig),
            CROSS=target.gcc or "",
            GCC_FLAGS=" ".join(target.gcc_flags),
            **_board_texts(application),
            BILL=", ".join(f"{label} {size:,}" for label, size, _ in bill.rows() if isinstance(size, int)),
        )
        written.append(folder / {"README": "README.md"}.get(name, name))
        written[-1].write_text(text, encoding="utf-8")
    if board.uf2_family is not None:
        written.append(Path(shutil.copyfile(TEMPLATES / "uf2.py", folder / "uf2.py")))
    return [*written, folder / "selected.h", *_copy_runtime(board, chosen, folder)]


def _board_texts(application: Application) -> dict[str, str]:
    """Returns the template values that depend on the board."""
    board, name, steps = application.board, application.name, []
    output = (
        "On the board, messages and the exit code go to the debugger by semihosting. If there is no debugger, replace\n"
        "`torchette/build/bare/semihosting.cpp` by functions that write to one of your ports."
    )
    run = f"@echo '{board.name} has no emulator' >&2; exit 2"
    if board.emulator:
        run = f"{' '.join(board.emulator)} $(IMAGE)"
        steps.append(
            f"    make run      # apt install {board.emulator_package}; the exit code is 0 if the results match"
        )
    rules = ""
    if board.uf2_family is not None:
        rules = (
            f"\n.PHONY: uf2\nuf2: {name}.uf2\n%.uf2: %.elf\n\t@$(PYTHON) uf2.py $< $@ {board.uf2_family:#x}\n"
        )
        steps.append(f"    make uf2      # {name}.uf2; requires Python 3")
        output = (
            f"Hold BOOTSEL while you plug in the board, and copy `{name}.uf2` onto the drive that appears. Messages come from UART0,\n"
            "pin GP0, with 115200 baud: see `torchette/build/bare/rp2040.cpp`."
        )
    packages = {"arm-none-eabi-": "gcc-arm-none-eabi libnewlib-arm-none-eabi libstdc++-arm-none-eabi-dev"}
    cross = targets.find(board.target).gcc or ""
    gnu = f"{cross}g++ (apt install {packages[cross]}),\n                  # or " if cross in packages else ""
    return {
        "RUN": run,
        "MORE_RULES": rules,
        "STEPS": "\n".join(steps),
        "OUTPUT": output,
        "COMPILERS": f"{gnu}ziglang (pip install ziglang)",
    }


def check_fit(application: Application, bill: Bill, outer: int) -> None:
    """Compares the memory that is known before linking with that of the board.

    Raises:
        BuildError: the program is larger than flash, or its pools are larger than RAM.
    """
    board = application.board
    if isinstance(application.temp, int):
        temp = application.temp
    else:
        temp = 0 if bill.temp is None else bill.temp.least if application.temp == "least" else bill.temp.most
    ram = {
        "planned": sum(bill.planned),
        "method": bill.method,
        "temp": temp,
        "dynamic": bill.dynamic or 0,
        "inputs and outputs": outer,
        "stack": application.stack,
    }
    missing = sum(ram.values()) - board.ram.size
    if missing > 0:
        parts = ", ".join(f"{label} {size:,}" for label, size in ram.items() if size)
        hints = []
        if bill.temp is not None and bill.temp.least < temp:
            hints.append(f"--temp least saves {temp - bill.temp.least:,} bytes, with slower kernels")
        hints += [
            "a smaller --stack",
            "integers: torchette compile ... --quantize int8",
            "compile for a budget: torchette compile ... --budget ram=64K --fit",
        ]
        raise BuildError(
            f"{application.name} does not fit the RAM of {board.name}: it needs {sum(ram.values()):,} bytes "
            f"of {board.ram.size:,}, {missing:,} too many ({parts})",
            code="does-not-fit-board",
            hints=hints,
        )
    size = application.model.stat().st_size
    if size > board.flash.size:
        raise BuildError(
            f"{application.name} does not fit the flash of {board.name}: the program has {size:,} bytes "
            f"of {board.flash.size:,}, {size - board.flash.size:,} too many, before any code",
            code="does-not-fit-board",
            hints=["quantize the weights, or choose a smaller model", "a larger board: --board, --flash"],
        )


class _CallerTensors:
    """The tensors of a method in the caller's memory, and the code that passes them."""

    def __init__(self, method: MethodInfo) -> None:
        self._tensors: list[tuple[str, str, TensorInfo]] = []  # variable, description, tensor
        names: set[str] = set()
        self._inputs: list[tuple[int, str]] = []
        self._outputs: list[tuple[int, str]] = []
        inputs = {port.index for port in method.inputs}
        for number, port in enumerate(method.inputs):
            tensor = method.values[port.index].tensor
            if tensor is not None:
                self._inputs.append((number, self._add("input", number, port.name, tensor, names)))
        for number, port in enumerate(method.outputs):
            tensor = method.values[port.index].tensor
            if tensor is None or tensor.storage != "unplanned" or port.index in inputs:
                continue
            if tensor.dynamism != "dynamic_unbound":  # such a tensor is allocated at run time
                self._outputs.append((number, self._add("output", number, port.name, tensor, names)))

    def _add(self, kind: str, number: int, name: str, tensor: TensorInfo, names: set[str]) -> str:
        variable = re.sub(r"\W", "_", name, flags=re.ASCII)
        if not re.fullmatch(r"[a-z]\w*", variable) or variable in names or variable in _TAKEN:
            variable = f"{kind}_{number}"
        names.add(variable)
        self._tensors.append((variable, f"{kind} {number}: {tensor}", tensor))
        return variable

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for _, _, tensor in self._tensors)

    def arrays(self) -> str:
        lines = []
        for variable, text, tensor in self._tensors:
            lines.append(f"// {text}")
            if tensor.dtype in _C_TYPES:
                lines.append(f"{_C_TYPES[tensor.dtype]} {variable}[{max(1, int(np.prod(tensor.sizes)))}];")
            else:
                lines.append(f"alignas(8) uint8_t {variable}[{max(1, tensor.nbytes)}];")
        return "\n".join([*lines, ""])

    def calls(self, method: MethodInfo) -> str:
        lines = []
        dtypes = {variable: tensor.dtype for variable, _, tensor in self._tensors}
        pointers = dict(self._inputs)
        for number in range(len(method.inputs)):
            if number not in pointers:  # fixed at export
                lines.append(f"TORCHETTE_TRY(method->set_input(method->get_input({number}), {number}));")
                continue
            if dtypes[pointers[number]] in _C_TYPES:
                lines.append(f"fill({pointers[number]});")
            lines.append(f"TORCHETTE_TRY(give(*method, {number}, {pointers[number]}));")
        for number, variable in self._outputs:
            lines.append(
                f"TORCHETTE_TRY(method->set_output_data_ptr({variable}, sizeof({variable}), {number}));"
            )
        return "".join(f"  {line}\n" for line in lines)


_TAKEN = {"fill", "give", "check", "run", "say", "say_number", "main", "line", "data", "equal", "error"} | {
    *("loader", "program", "memory", "method", "int", "float", "double", "bool", "new", "this", "char"),
    *("expected", "buffer", "auto", "const", "static", "class", "return", "default", "long", "short"),
}


def pattern(tensor: TensorInfo) -> np.ndarray[Any, Any]:
    """Returns the values that `fill` of main.cpp writes to an input."""
    count = int(np.prod(tensor.sizes))
    index: np.ndarray[Any, Any] = np.arange(count, dtype=np.int64)
    values: np.ndarray[Any, Any]
    if tensor.dtype in ("float32", "float64"):
        values = (index * 7919 % 2**32 % 257 - 128) / 128
    elif tensor.dtype in _C_TYPES:
        values = index % 2
    else:
        values = index * 0
    return values.reshape(tensor.sizes).astype(tensor.dtype)


def _expected(model: Path, method: MethodInfo) -> dict[int, np.ndarray[Any, Any]]:
    """Returns the values that the image compares, by output; empty if this machine cannot run the method."""
    from torchette.runtime import Runtime

    inputs = [method.values[port.index] for port in method.inputs]
    try:
        loaded = Runtime.get().load_program(model).load_method(method.name)
        outputs = loaded.execute([pattern(v.tensor) if v.tensor else v.value for v in inputs])
    except (TorchetteError, TypeError):
        return {}
    arrays = {}
    for number, output in enumerate(outputs):
        array = np.asarray(output)
        if array.dtype.name in _C_TYPES and array.size:
            arrays[number] = array.ravel()[:COMPARED]
    return arrays


def _expected_header(expected: dict[int, np.ndarray[Any, Any]]) -> str:
    lines = [
        "// Outputs of the model on the development machine, for the inputs of fill().",
        "#pragma once",
        "",
    ]
    lines += ["#include <stdint.h>", ""]
    for number, values in expected.items():
        dtype = values.dtype.name
        texts = [
            f"{value!r}f" if dtype == "float32" else str(value).lower()
            for value in (np.nan_to_num(values) if values.dtype.kind == "f" else values).tolist()
        ]
        lines.append(f"static const {_C_TYPES[dtype]} expected_{number}[] = {{")
        lines += ["    " + ", ".join(texts[at : at + 8]) + "," for at in range(0, len(texts), 8)]
        lines.append("};")
    return "\n".join([*lines, ""])


def _checks(expected: dict[int, np.ndarray[Any, Any]]) -> str:
    return "".join(
        f"  *equal = check(*method, {number}, expected_{number}, {len(values)}) && *equal;\n"
        for number, values in expected.items()
    )


def _filled(template: str, **values: str) -> str:
    text = (TEMPLATES / f"{template}.in").read_text(encoding="utf-8")
    return re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], text)


def _copy_runtime(board: Board, chosen: selection.Selection, folder: Path) -> list[Path]:
    """Copies the core, the selected kernels and all files that they include."""
    roots: list[str] = [
        f"torchette/runtime/{source.name}"
        for source in (PACKAGE / "runtime").glob("*.cpp")
        if source.stem != "platform_posix"
    ]
    roots += [f"torchette/build/bare/{source.name}" for source in boards.sources(board)]
    roots += ["torchette/kernels/table.cpp", "torchette/extension/buffer_data_loader.h"]
    roots += [
        f"torchette/kernels/{source}"
        for source, family in kernels.families().items()
        if chosen.operators is None or chosen.operators.intersection(family.operators)
    ]
    names = kernels.closure(roots)
    for name in names:
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("torchette/schema/") and to.suffix == ".h":
            source = PACKAGE / "schema" / f"{to.stem}.fbs"
            to.write_text(schema.cpp_header(schema.load(source), source.name), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / name, to)
    return [folder / name for name in names]
