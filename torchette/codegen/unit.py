# SPDX-License-Identifier: BSD-3-Clause
# In: a verified .pte file. Out: the contents of its C++ files: header, methods, weights, and for each source of kernels
# a file that includes it and exports the functions that the methods call.
"""Creates the files of a generated unit: `unit`."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from typing import Any

from torchette import runtime
from torchette.build import kernels
from torchette.build.sources import ROOT
from torchette.codegen.loops import definitions
from torchette.codegen.methods import C_TYPES, Method, Pool, Port, codes_of, parameter, symbol
from torchette.devtools.device_memory import temp_bytes, tenants
from torchette.devtools.embed import distinct_names
from torchette.devtools.inspect import describe
from torchette.errors import InputError
from torchette.format import pte

# Alignment of weights and planned memory, and of scratch memory, in bytes.
_ALIGNMENT, _TEMP_ALIGNMENT = 16, 64

# The compiler condition of each level (torchette/kernels/simd.h) that scratch memory is measured for.
_LEVELS = (("v4", "defined(__AVX512F__)"), ("v3", "defined(__AVX__)"))
# 64-bit ARM has vectors of the size of the last level, but twice as many. Its tiles have 14 rows instead of 6 (kMaxRows
# of torchette/kernels/gemm.h). Only the row count affects the scratch memory.
_MORE_REGISTERS = ("defined(__aarch64__)", 14, 6)

_CONFIG = """\
// The first include of every file of the unit. The unit has its own namespace, so that it links with other units.
#pragma once

#ifndef _GNU_SOURCE  // otherwise some C libraries hide M_PI and similar names from standard C++
#define _GNU_SOURCE
#endif
#define torchette {name}_torchette
#define TORCHETTE_ISA kernels
#define TORCHETTE_LOG_LEVEL 0
#define TORCHETTE_EVENT_TRACER 0
#define TORCHETTE_PLATFORM_SCRATCH 0
{selected}
#include "codegen/unit.h"

// The registration macros of the kernel sources are empty, because the unit calls kernels directly.
#undef TORCHETTE_KERNEL
#undef TORCHETTE_KERNELS
#undef TORCHETTE_KERNELS_ONCE
#undef TORCHETTE_KERNELS_NARROW
#undef TORCHETTE_FAMILY
#define TORCHETTE_KERNEL(name, function) ::torchette::Kernel{{name, nullptr, nullptr}}
#define TORCHETTE_KERNELS(family, ...)
#define TORCHETTE_KERNELS_ONCE(family, ...)
#define TORCHETTE_KERNELS_NARROW(family, ...)
#define TORCHETTE_FAMILY(family)

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-const-variable"
"""


def unit(file: pte.PteFile, name: str, temp: int | None, selected: str) -> dict[str, str]:
    """Returns the contents of the unit's files, by path.

    Args:
        file: the program.
        name: prefix of all symbols and file names.
        temp: size of the scratch memory in bytes; None to measure it.
        selected: lines of C++ that select dtypes, for torchette/runtime/selected.h.

    Raises:
        UnsupportedError, InputError: see `torchette.codegen.codegen`.
    """
    plans = _plans(file)
    pool, signatures = Pool(), runtime.operator_signatures()
    shared: list[int] = []  # sizes of the planned memories that methods without state share
    states: list[bool] = []
    methods: list[Method] = []
    for (plan, has_state), symbol_name in plans:
        states.append(has_state)
        prefix = f"{symbol_name}_planned" if has_state else "planned"
        sizes = list(plan.non_const_buffer_sizes)
        if not has_state:
            shared += [0] * (len(sizes) - len(shared))
            shared[: len(sizes)] = map(max, shared, sizes)
        names = [f"{prefix}{index}" for index in range(len(sizes))]
        methods.append(Method(plan, symbol_name, signatures, pool, names))
    body: list[str] = []
    for method, has_state in zip(methods, states):
        body += ["", f"namespace {method.name}_method {{"]
        sizes = list(method.plan.non_const_buffer_sizes) if has_state else []
        own = {f"{method.name}_planned{index}": size for index, size in enumerate(sizes) if index and size}
        body += [_arena(arena, size) for arena, size in own.items()]
        if has_state:
            body += _reset(list(own), method.initial())
        body += [*method.text(), f"}}  // namespace {method.name}_method"]
    temps = _temps([plan for (plan, _), _ in plans], temp)
    has_temp = any(size for _, size in temps)
    source = [
        f'#include "{name}/calls.h"',
        "",
        f'#include "{name}.h"',
        "",
        "namespace torchette {",
        "using namespace TORCHETTE_ISA;",
        "extern const uint64_t weights[];",
        "namespace {",
        *(
            [f"alignas({_TEMP_ALIGNMENT}) uint8_t temp_pool[{name.upper()}_TEMP_BYTES + 1];"]
            if has_temp
            else []
        ),
        *[_arena(f"planned{index}", size) for index, size in enumerate(shared) if index and size],
        *[text.replace("@", constant, 1) for text, constant in pool.declarations.items()],
        *body,
        "",
        "}  // namespace",
        "}  // namespace torchette",
    ]
    for method, has_state in zip(methods, states):
        source += _c_functions(name, method, has_state, has_temp)
    about = f"// {name}: a model as C++, generated by `torchette codegen`.\n"
    used = {f"torchette/kernels/{kernels.library()[operator].source}" for operator in pool.operators}
    used.update(loop.source for loop in pool.loops)
    texts = {
        f"{name}.h": _header(name, methods, states, shared, temps, pool),
        f"{name}.cpp": about + "\n".join([*source, ""]),
        f"{name}/config.h": about + _CONFIG.format(name=name, selected=selected),
        f"{name}/calls.h": about + _calls(pool, signatures),
    }
    if pool.weights:
        texts[f"{name}_weights.cpp"] = about + _weights(name, file, pool)
    roots = [*kernels.RUNTIME, "torchette/codegen/unit.h", *sorted(used)]
    for path in kernels.closure(roots):
        texts[path.replace("torchette", name, 1)] = _relative((ROOT / path).read_text("utf-8"), path)
        stem = path.rpartition("/")[2].removesuffix(".cpp")
        if path.endswith(".cpp"):
            texts[f"{name}_{stem}.cpp"] = about + _source(name, path, pool, signatures)
    return texts


def _plans(file: pte.PteFile) -> list[tuple[tuple[Any, bool], str]]:
    """Returns ((plan, whether it has state), name in C) of each generated method."""
    infos = describe(file).methods
    plans = {plan.name: plan for plan in file.program.execution_plan}
    found = []
    for plan, info, name in zip(file.program.execution_plan, infos, distinct_names(file)):
        if plan.name.endswith(pte.PORTABLE):
            continue
        portable = plans.get(plan.name + pte.PORTABLE) if plan.delegates else None
        if portable is not None:
            plan, info = portable, infos[file.program.execution_plan.index(portable)]
        has_state = any(tenant.maker == "state" for tenant in tenants(info))
        found.append(((plan, has_state), name))
    return found


def _temps(plans: Sequence[Any], temp: int | None) -> list[tuple[str, int]]:
    """Returns (preprocessor condition, size of the scratch memory). The last condition is empty."""
    if temp is not None:
        return [("", temp)]
    levels = runtime.kernel_levels()
    found = []
    for level, condition in (*_LEVELS, (levels[-1], "")):
        if level not in levels:
            found.append((condition, -1))
            continue
        most = 0
        for plan in plans:
            bill = temp_bytes(plan, level)
            if unknown := list(filter(kernels.uses_scratch, bill.unknown)):
                raise InputError(
                    f"the scratch memory of method {plan.name!r} is unknown: that of {', '.join(unknown)} depends "
                    "on the data",
                    hints=["set the size in bytes: --temp 100000"],
                )
            most = max(most, bill.most)
        found.append((condition, most))
    condition, rows, fewer = _MORE_REGISTERS
    if levels[-1] != "baseline":  # otherwise this machine has the same vectors
        found.insert(-1, (condition, -(-found[-1][1] * rows // fewer // 64) * 64))
    return found


def _arena(name: str, size: int) -> str:
    return f"alignas({_ALIGNMENT}) uint8_t {name}[{size}];"


def _reset(arenas: Sequence[str], initial: Sequence[tuple[str, int, int]]) -> list[str]:
    lines = ["bool ready = false;", "", "void reset() {"]
    lines += [f"  memset({name}, 0, sizeof({name}));" for name in arenas]
    lines += [f"  memcpy({place}, weights + {offset // 8}, {size});" for place, size, offset in initial]
    return [*lines, "  ready = true;", "}", ""]


def _c_functions(name: str, method: Method, has_state: bool, has_temp: bool) -> list[str]:
    """Returns the functions that C code calls."""
    space = f"torchette::{method.name}_method"
    parameters = ", ".join(method.parameters())
    names = [re.sub(r".*[ *]", "", text) for text in method.parameters()]
    lines = ["", f"int {name}_{method.name}({parameters or 'void'}) {{"]
    if has_state:
        lines.append(f"  if (!{space}::ready) {space}::reset();")
    if has_temp:
        lines.append(
            f"  torchette::MemoryAllocator temp({name.upper()}_TEMP_BYTES, torchette::temp_pool);\n"
            "  torchette::Context context(&temp);"
        )
    else:
        lines.append("  torchette::Context context;")
    lines += [f"  return static_cast<int>({space}::run({', '.join(['context', *names])}));", "}"]
    if has_state:
        lines += ["", f"void {name}_{method.name}_reset(void) {{ {space}::reset(); }}"]
    return lines


def _declaration(operator: str, signature: str) -> str:
    parameters = [f"{parameter(code)} a{i}" for i, code in enumerate(codes_of(signature))]
    return f"Error {symbol(operator)}({', '.join(['Context& context', *parameters])})"


def _calls(pool: Pool, signatures: dict[str, str]) -> str:
    lines = [
        "#pragma once",
        "",
        '#include "config.h"',
        "",
        "namespace torchette {",
        "namespace TORCHETTE_ISA {",
        "",
    ]
    lines += [f"{_declaration(operator, signatures[operator])};" for operator in sorted(pool.operators)]
    lines += [f"{loop.declaration};" for loop in sorted(pool.loops)]
    return "\n".join([*lines, "", "}  // namespace TORCHETTE_ISA", "}  // namespace torchette", ""])


def _source(name: str, path: str, pool: Pool, signatures: dict[str, str]) -> str:
    """Returns a file that includes a source of the kernel library and exports the called kernels."""
    lines = [f'#include "{name}/calls.h"', f'#include "{path.replace("torchette", name, 1)}"', ""]
    functions = {
        operator: function.name
        for operator, function in kernels.library().items()
        if operator in pool.operators and f"torchette/kernels/{function.source}" == path
    }
    loops = sorted(loop for loop in pool.loops if loop.source == path)
    if not functions and not loops:
        return "\n".join(lines)
    lines += ["namespace torchette {", "namespace TORCHETTE_ISA {", ""]
    for operator, function in sorted(functions.items()):
        codes = codes_of(signatures[operator])
        arguments = ["context"]
        lines.append(f"{_declaration(operator, signatures[operator])} {{")
        for i, code in enumerate(codes):
            if code == "t":
                lines.append(f"  Tensor out{i} = a{i};")
                arguments.append(f"out{i}")
            elif code == "?T":
                arguments.append(f"a{i} != nullptr ? Optional<Tensor>(*a{i}) : Optional<Tensor>()")
            else:
                arguments.append(f"a{i}")
        lines += [f"  const Error error = {function}({', '.join(arguments)});", "  context.reset_temp();"]
        lines += ["  return error;", "}", ""]
    lines += definitions(loops)
    return "\n".join([*lines, "}  // namespace TORCHETTE_ISA", "}  // namespace torchette", ""])


def _relative(text: str, path: str) -> str:
    """Makes the includes of a source relative to its folder, so that no include path is needed."""
    here = path.rpartition("/")[0]
    return re.sub(
        r'^#include "(torchette/[^"]+)"',
        lambda found: f'#include "{os.path.relpath(found[1], here)}"',
        text,
        flags=re.M,
    )


def _weights(name: str, file: pte.PteFile, pool: Pool) -> str:
    data = bytearray(pool.weights_size)
    for key, (offset, nbytes) in pool.weights.items():
        item = file.constant(key[1]) if key[0] == 0 else file.mutable(*key[1:])
        data[offset : offset + nbytes] = item[:nbytes]
    words = struct.unpack(f"<{len(data) // 8}Q", data)
    lines = [f'#include "{name}/config.h"', "", "namespace torchette {"]
    lines += ["// little-endian", f"extern const uint64_t weights[{len(words)}];"]
    lines += [f"alignas({_ALIGNMENT}) const uint64_t weights[{len(words)}] = {{"]
    lines += [",".join(map(hex, words[at : at + 8])) + "," for at in range(0, len(words), 8)]
    return "\n".join([*lines, "};", "}  // namespace torchette", ""])


def _header(
    name: str,
    methods: Sequence[Method],
    states: Sequence[bool],
    shared: Sequence[int],
    temps: Sequence[tuple[str, int]],
    pool: Pool,
) -> str:
    upper = name.upper()
    lines = [f"/* {name}: a model as C++, generated by `torchette codegen`. */"]
    lines += [
        f"#ifndef {upper}_H",
        f"#define {upper}_H",
        "",
        "#include <stdbool.h>",
        "#include <stdint.h>",
        "",
    ]
    lines += ["#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    planned = sum(shared[1:]) + sum(
        sum(method.plan.non_const_buffer_sizes[1:]) for method, has_state in zip(methods, states) if has_state
    )
    lines += ["/* Static memory in bytes: constants, tensors, and the kernels' scratch memory. */"]
    lines += [
        f"#define {upper}_WEIGHTS_BYTES {pool.weights_size}",
        f"#define {upper}_PLANNED_BYTES {planned}",
    ]
    lines += [f"#ifndef {upper}_TEMP_BYTES"]
    for index, (condition, size) in enumerate(temps):
        if len(temps) > 1:
            lines.append(f"#{'el' if index else ''}if {condition}" if condition else "#else")
        if size < 0:
            lines.append(f"#error Not measured for this machine: define {upper}_TEMP_BYTES")
        else:
            lines.append(f"#define {upper}_TEMP_BYTES {size}")
    lines += ["#endif"] * (2 if len(temps) > 1 else 1)
    lines += [
        "",
        "/* Functions return 0 or an Error (torchette/runtime/error.h). Calls must not overlap. Outputs must have room",
        "   for NUMEL elements of their upper bounds; dynamic outputs also return their actual sizes. */",
    ]
    for method, has_state in zip(methods, states):
        lines += ["", f"int {name}_{method.name}({', '.join(method.parameters()) or 'void'});"]
        if has_state:
            lines.append(f"void {name}_{method.name}_reset(void); /* restores the initial state */")
        for port in (*method.inputs, *method.outputs):
            lines += _port(f"{upper}_{method.name.upper()}_{port.name.upper()}", port)
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {upper}_H */", ""]
    return "\n".join(lines)


def _port(macro: str, port: Port) -> list[str]:
    """Returns the constants of a tensor: dtype as torch's enum value, sizes at their upper bounds."""
    if not hasattr(port.record, "scalar_type"):
        return []
    sizes = list(port.record.sizes)
    numel = pte.tensor_nbytes(port.record) // pte.ITEM_SIZE[port.record.scalar_type]
    shape = f" {{{', '.join(map(str, sizes))}}}" if sizes else " {1} /* no dimensions */"
    return [
        f"#define {macro}_DTYPE {int(port.record.scalar_type)} /* {C_TYPES[port.record.scalar_type.name]} */",
        f"#define {macro}_RANK {len(sizes)}",
        f"#define {macro}_SHAPE{shape}",
        f"#define {macro}_NUMEL {numel}",
    ]
