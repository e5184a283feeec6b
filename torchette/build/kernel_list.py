# SPDX-License-Identifier: BSD-3-Clause
# In: ExecuTorch's kernel lists (functions.yaml, custom_ops.yaml). Out: C++ that declares the kernels and registers
# them, by dtype and dim order if the list specifies them. Does not require torch.
"""Reads a kernel list and writes its registration: `write`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchette import schema
from torchette.build import kernels
from torchette.build.selection import DTYPES, Selection, checked_operators, of_files
from torchette.errors import FormatError
from torchette.files import missing_file
from torchette.format import pte
from torchette.packages import require
from torchette.units import counted

# Schema type -> C++ type of a kernel's parameter.
_CPP = {
    "Tensor": "const ::executorch::aten::Tensor&",
    "Tensor?": "const ::executorch::aten::optional<::executorch::aten::Tensor>&",
    "Tensor[]": "::executorch::aten::ArrayRef<::executorch::aten::Tensor>",
    "Tensor?[]": "::executorch::aten::ArrayRef<::torchette::Optional<::executorch::aten::Tensor>>",
    "Scalar": "const ::executorch::aten::Scalar&",
    "Scalar?": "const ::executorch::aten::optional<::executorch::aten::Scalar>&",
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "str": "::executorch::aten::string_view",
    "int[]": "::executorch::aten::ArrayRef<int64_t>",
    "float[]": "::executorch::aten::ArrayRef<double>",
    "bool[]": "::executorch::aten::ArrayRef<bool>",
    "ScalarType": "::executorch::aten::ScalarType",
}
_CODES = {code.letter: code.schema_type for code in schema.CODES if not code.is_written} | {"t": "Tensor"}
_TYPE_NUMBERS = {name: int(pte.SCHEMA.types["ScalarType"][name]) for name in DTYPES.values()}


@dataclass(frozen=True)
class Parameter:
    """An argument of a kernel: its name, its schema type without annotations, and whether the kernel writes it."""

    name: str
    type: str
    out: bool

    @property
    def cpp(self) -> str:
        """The C++ type of the parameter."""
        if self.out:
            return "::executorch::aten::Tensor&" if self.type == "Tensor" else _CPP["Tensor[]"]
        if self.type in _CPP:
            return _CPP[self.type]
        return f"::executorch::aten::optional<{_CPP[self.type.removesuffix('?')]}>"


@dataclass(frozen=True)
class Kernel:
    """A kernel in the list: the operator's full name, its parameters, the C++ function, and its keys."""

    operator: str
    parameters: tuple[Parameter, ...]
    function: str
    keys: tuple[str, ...]  # ("",) for all tensors
    custom: bool

    @property
    def returns(self) -> str:
        """The return type of the C++ function."""
        outs = [parameter.cpp for parameter in self.parameters if parameter.out]
        if len(outs) == 1:
            return outs[0] if outs[0].endswith("&") else "void"
        return f"std::tuple<{', '.join(outs)}>"


def read(path: str | Path, signatures: Mapping[str, str] | None = None) -> tuple[list[Kernel], list[str]]:
    """Reads a kernel list.

    Args:
        path: a YAML file: entries with `op` (the name of an ATen operator) or `func` (a schema), `kernels` (`arg_meta`,
            `kernel_name`), `type_alias` and `dim_order_alias`.
        signatures: signatures of operators without a schema; by default `torchette.runtime.operator_signatures()`.

    Returns:
        The kernels, and the names of operators without out arguments, which cannot be registered.

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is not a kernel list; the message contains the entry and the problem.
        MissingPackageError: pyyaml is not installed.
    """
    if signatures is None:
        from torchette import runtime

        signatures = runtime.operator_signatures()
    listed: list[Kernel] = []
    left_out: list[str] = []
    for operator, entry in entries_of(path):
        try:
            pairs = list(_kernels(entry, operator, signatures))
        except _InvalidEntry as wrong:
            raise FormatError(f"{path}: {_named(entry)}: {wrong}") from None
        listed += pairs
        if not pairs:
            left_out.append(_named(entry))
    return listed, left_out


def _named(entry: Mapping[str, Any]) -> str:
    """Returns the name of the operator in the entry."""
    return str(entry.get("func") or entry.get("op")).partition("(")[0].strip()


def entries_of(path: str | Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the entries of a list, each with its operator's full name, such as ``aten::add.out``.

    Raises:
        ModelNotFoundError, FormatError, MissingPackageError: as for `read`.
    """
    yaml = require("yaml", "reading YAML")
    path = Path(path)
    if not path.is_file():
        raise missing_file(path)
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise FormatError(f"{path} is not YAML: {error}") from None
    if not isinstance(entries, list):
        raise FormatError(
            f"{path} is not a list of kernels", hints=["entries begin with `- op:` or `- func:`"]
        )
    for entry in entries:
        named = entry.get("func") or entry.get("op") if isinstance(entry, dict) else None
        if not isinstance(named, str):
            raise FormatError(f"{path}: an entry has neither op nor func: {entry}")
    names = map(_named, entries)
    full = (name if "::" in name else f"aten::{name}" for name in names)
    return list(zip(full, entries, strict=True))


def merge(first: str | Path, fallback: str | Path, output: Path) -> None:
    """Writes the entries of `first`, and those of `fallback` for other operators.

    Raises:
        ModelNotFoundError, FormatError, MissingPackageError: as for `read`.
    """
    yaml = require("yaml", "reading YAML")
    entries = entries_of(first)
    known = {name for name, _ in entries}
    merged = entries + [(name, entry) for name, entry in entries_of(fallback) if name not in known]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(yaml.safe_dump([entry for _, entry in merged], sort_keys=False), encoding="utf-8")


def selected(models: str, operators: str, lists: str, dtypes: str) -> Selection:
    """Returns the union of the options of ExecuTorch's selective build.

    Args:
        models: .pte files, separated by commas or semicolons.
        operators: full names, separated by commas or semicolons. Names outside ``aten`` that the library does not have
            are operators of the caller.
        lists: YAML files, separated by commas or semicolons.
        dtypes: if empty or a false value of CMake, all dtypes; otherwise those of the models.

    Raises:
        TargetError: an operator of ``aten`` does not exist.
        FormatError: a file is not a .pte file or not a kernel list.
        ModelNotFoundError: a file does not exist.
    """
    paths, names, yamls = (
        [word for word in re.split("[,;]", text) if word] for text in (models, operators, lists)
    )
    library = set(kernels.library())
    required = checked_operators(name for name in names if name.startswith("aten::") or name in library)
    required |= {name for path in yamls for name, _ in entries_of(path) if name in library}
    chosen = of_files(paths) if paths else Selection(frozenset(), frozenset())
    is_on = dtypes.upper() not in ("", "0", "OFF", "NO", "FALSE", "N")
    return Selection(
        (chosen.operators or frozenset()) | required, chosen.dtypes if is_on else None, chosen.backends
    )


class _InvalidEntry(Exception):
    """A problem of an entry."""


def _kernels(entry: Mapping[str, Any], operator: str, signatures: Mapping[str, str]) -> Iterable[Kernel]:
    parameters = _of_schema(entry["func"]) if "func" in entry else _of_signature(operator, signatures)
    if not any(parameter.out for parameter in parameters):
        return
    kernels = entry.get("kernels")
    if not isinstance(kernels, list) or not kernels:
        raise _InvalidEntry("it has no kernels")
    for kernel in kernels:
        if not isinstance(kernel, dict) or not re.fullmatch(r"\w+(::\w+)*", str(kernel.get("kernel_name"))):
            raise _InvalidEntry(f"kernel_name must be a C++ name: {kernel}")
        space, _, function = str(kernel["kernel_name"]).rpartition("::")
        # the namespace that ExecuTorch's generator uses
        name = f"{space or 'at'}::native::{function}"
        keys = tuple(_keys(kernel.get("arg_meta"), entry, parameters))
        yield Kernel(operator, tuple(parameters), name, keys, "func" in entry)


def _of_schema(text: str) -> list[Parameter]:
    match = re.fullmatch(r"\s*[\w:.]+\s*\((.*)\)\s*->.*", text, re.DOTALL)
    if not match:
        raise _InvalidEntry(f"not a schema: {text!r}")
    parameters = []
    for part in re.split(r",(?![^\[(]*[\])])", match[1]):
        words = part.split("=")[0].split()
        if words in ([], ["*"]):
            continue
        if len(words) != 2:
            raise _InvalidEntry(f"not an argument: {part.strip()!r}")
        kind = re.sub(r"\[\d+\]", "[]", re.sub(r"\((\w)(!?)\)", r"\2", words[0])).replace("SymInt", "int")
        out, kind = "!" in kind, kind.replace("!", "").replace("MemoryFormat", "int")
        if kind not in _CPP and kind.removesuffix("?") not in _CPP:
            raise _InvalidEntry(f"the type {words[0]} is not supported")
        parameters.append(Parameter(words[1], kind, out))
    return parameters


def _of_signature(operator: str, signatures: Mapping[str, str]) -> list[Parameter]:
    if operator not in signatures:
        raise _InvalidEntry(
            "this runtime does not have the operator, so its arguments are unknown: specify its schema with func:"
        )
    codes = re.findall(r"\??\w", signatures[operator])
    parameters = []
    for i, code in enumerate(codes):
        out = code == "t" or (code == "L" and i == len(codes) - 1 and operator.endswith("out"))
        kind = _CODES[code[-1]] + ("?" if code[0] == "?" else "")
        parameters.append(Parameter(f"arg{i}", kind, out))
    return parameters


def _keys(meta: object, entry: Mapping[str, Any], parameters: Sequence[Parameter]) -> Iterable[str]:
    """Yields a key for each combination of alias values; an alias has the same value in all arguments."""
    if meta is None:
        yield ""
        return
    if not isinstance(meta, dict):
        raise _InvalidEntry(f"arg_meta must be a map of arguments, got {meta!r}")
    types = {name: _listed(value) for name, value in (entry.get("type_alias") or {}).items()}
    orders = {name: _orders(value) for name, value in (entry.get("dim_order_alias") or {}).items()}
    tensors = [parameter.name for parameter in parameters if parameter.type in ("Tensor", "Tensor?")]
    if "func" in entry:
        if sorted(meta) != sorted(tensors):
            raise _InvalidEntry(
                f"arg_meta contains {', '.join(meta)}, but the tensors are {', '.join(tensors)}"
            )
        meta = {name: meta[name] for name in tensors}
    elif len(meta) != len(tensors):
        raise _InvalidEntry(
            f"arg_meta has {counted(len(meta), 'argument')}, but the operator has {counted(len(tensors), 'tensor')}"
        )
    chosen: dict[str, list[Any]] = {}
    for value in meta.values():
        if not isinstance(value, list) or len(value) != 2:
            raise _InvalidEntry(f"an argument must be [dtype, dim order], got {value!r}")
        kind, order = value
        chosen[f"type {kind}"] = types.get(kind, [kind])
        if isinstance(order, str) and order not in orders:
            raise _InvalidEntry(f"there is no dim_order_alias {order}")
        chosen[f"order {order}"] = orders[order] if isinstance(order, str) else _orders(order)
    for choice in itertools.product(*chosen.values()):
        now = dict(zip(chosen, choice, strict=True))
        parts = []
        for kind, order in meta.values():
            dtype = str(now[f"type {kind}"])
            if dtype.upper() not in _TYPE_NUMBERS:
                raise _InvalidEntry(f"there is no dtype {dtype}")
            parts.append(f"{_TYPE_NUMBERS[dtype.upper()]};{','.join(map(str, now[f'order {order}']))}")
        yield "|".join(parts)


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _orders(value: object) -> list[list[int]]:
    nested: list[Any] = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    for order in nested:
        if not isinstance(order, list) or sorted(order) != list(range(len(order))):
            raise _InvalidEntry(f"not a dim order: {order!r}")
    return nested


def write(paths: Sequence[str | Path], folder: Path, *, own: bool = False) -> tuple[list[Path], list[str]]:
    """Writes the registration of the kernels in all lists.

    The files are RegisterKernels.cpp, NativeFunctions.h (kernels of ATen operators), CustomOpsNativeFunctions.h
    (kernels with a schema) and Functions.h.

    Args:
        paths: the lists.
        folder: output folder; created if it does not exist.
        own: omit kernels in ExecuTorch's namespace for operators that the library has.

    Returns:
        The paths of the files, and the operators that were omitted because they write to no argument.

    Raises:
        ModelNotFoundError, FormatError, MissingPackageError: as for `read`.
    """
    listed: list[Kernel] = []
    left_out: list[str] = []
    for path in paths:
        pairs, without = read(path)
        listed += pairs
        left_out += without
    if own:
        library = kernels.library()
        theirs = "torch::executor::native::"
        listed = [
            kernel
            for kernel in listed
            if kernel.operator not in library or not kernel.function.startswith(theirs)
        ]
    texts = {
        "NativeFunctions.h": _declarations(kernel for kernel in listed if not kernel.custom),
        "CustomOpsNativeFunctions.h": _declarations(kernel for kernel in listed if kernel.custom),
        "Functions.h": _functions(listed),
        "RegisterKernels.cpp": _registration(listed),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts], left_out


_ABOUT = "// Written by torchette custom yaml.\n"
_HEAD = (
    _ABOUT + "#pragma once\n\n#include <tuple>\n\n#include <executorch/runtime/kernel/kernel_includes.h>\n\n"
)


def _declared(kernel: Kernel) -> str:
    listed = ", ".join(f"{parameter.cpp} {parameter.name}" for parameter in kernel.parameters)
    return f"(::executorch::runtime::KernelRuntimeContext& context, {listed})"


def _declarations(kernels: Iterable[Kernel]) -> str:
    lines: dict[str, None] = {}
    for kernel in kernels:
        space, _, function = kernel.function.rpartition("::")
        lines[f"namespace {space} {{ {kernel.returns} {function}{_declared(kernel)}; }}\n"] = None
    return _HEAD + "".join(lines)


def _functions(kernels: Iterable[Kernel]) -> str:
    """Returns the first kernel of each operator, under the operator's name; overloads are C++ overloads."""
    lines: dict[str, str] = {}
    for kernel in kernels:
        space, _, name = kernel.operator.partition("::")
        packet = re.sub(r"\W", "_", name.partition(".")[0])
        space = "torch::executor" if space == "aten" else space
        passed = ", ".join(["context", *(parameter.name for parameter in kernel.parameters)])
        head = f"namespace {space} {{ inline {kernel.returns} {packet}_outf{_declared(kernel)}"
        overload = f"{space}::{packet}({[parameter.cpp for parameter in kernel.parameters]})"
        lines.setdefault(overload, f"{head} {{ return ::{kernel.function}({passed}); }} }}\n")
    heads = '#include "CustomOpsNativeFunctions.h"\n#include "NativeFunctions.h"\n\n'
    return _ABOUT + "#pragma once\n\n" + heads + "".join(lines.values())


def _registration(kernels: Iterable[Kernel]) -> str:
    lines = [_ABOUT, '#include "CustomOpsNativeFunctions.h"\n#include "NativeFunctions.h"\n']
    lines.append('#include "torchette/extension/partial_kernel.h"\n\n')
    # The kernel registered last is tried first: kernels for all tensors precede those for specific ones.
    for number, kernel in enumerate(sorted(kernels, key=lambda kernel: kernel.keys != ("",))):
        # C++ can have several functions with this name.
        lines.append(f"\nusing Kernel{number} = {kernel.returns}{_declared(kernel)};\n")
        function = f"::torchette::Unboxed<static_cast<Kernel{number}*>(&::{kernel.function})>::call"
        lines += [
            f'TORCHETTE_PARTIAL_KERNEL("{kernel.operator}", "{key}", {function})\n' for key in kernel.keys
        ]
    return "".join(lines)
