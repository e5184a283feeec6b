# SPDX-License-Identifier: BSD-3-Clause
"""Compiles the shaders of this folder and pointwise.def to the sources that the runtime embeds, during the build.

Run by CMake: `compile.py GLSLC OUTPUT`. Each `*.comp` is compiled for every variant in its comment `variants:`:
`words`, `half`, with buffers that may hold 16-bit floats, or `packed`, which also computes with them. `OUTPUT/shaders.h` declares the shaders,
`OUTPUT/shaders.cpp` contains their SPIR-V, `OUTPUT/pointwise.inc` the switch of the pointwise shader, and
`OUTPUT/pointwise_table.inc` its operators.

The comments `probe[N=A,B]: groups layers | push constants | buffers` define test inputs for drivers. The part in
brackets restricts a probe to pipelines with constant N equal to A or B. An indented line continues the previous line. A
push constant with a decimal point is a float. A buffer is a kind and an element count: `f:` floats, `p:` positive
floats, `iM:` integers in [-M, M), `kN:` the kind that constant N selects.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def pointwise_rows(text: str) -> list[list[str]]:
    """Parses pointwise.def to rows: operator, arguments, dtype of the computation, expression."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [[cell.strip() for cell in line.split(" | ", 3)] for line in lines]


def switch(rows: list[list[str]]) -> str:
    """Generates the function `compute`, for floats and for integers."""
    text = ""
    for kind, is_integer in (("float", False), ("int", True)):
        text += f"{kind} compute(uint operation, {kind} x, {kind} y, {kind} z, {kind} p, {kind} q) {{\n  switch (operation) {{\n"
        for number, (_, arguments, computes, expression) in enumerate(rows):
            if computes == ("float" if is_integer else "int"):
                continue
            if arguments.startswith("c "):  # the condition is the first operand
                expression = re.sub(
                    r"\b[cxy]\b", lambda m: {"c": "x != 0", "x": "y", "y": "z"}[m.group()], expression
                )
            value = f"{kind}({expression})" if computes == "bool" else expression
            if not is_integer:
                if computes == "float" and "y" not in arguments:  # GLSL does not define most functions of NaN
                    value = f"isnan(x) ? x : {value}"
                value = re.sub(r"(?<![\w.])(\d+)(?![\w.])", r"\1.0", value)
            text += f"    case {number + 1}: return {value};\n"
        text += f"  }}\n  return {kind}(0);\n}}\n"
    return text


def table(rows: list[list[str]]) -> str:
    """Generates the initializers of the runtime's table."""
    return "".join(
        f'{{"{name}", "{arguments}", Computes::k_{computes}}},\n' for name, arguments, computes, _ in rows
    )


def probes(text: str) -> str:
    """Generates the initializers of a shader's probes."""
    initializers = ""
    for when, body in re.findall(r"// probe(?:\[(.*)\])?: (.*(?:\n//   .*)*)", text):
        groups, push, buffers = (part.split() for part in body.replace("\n//", "").split("|"))
        constant, _, choices = when.partition("=")
        mask = sum(1 << int(value) for value in choices.split(",")) if when else 0
        words = [
            struct.unpack("<I", struct.pack("<f", float(one)))[0] if "." in one else int(one) for one in push
        ]
        kinds = ",".join(
            f"{{'{kind[0]}',{kind[1:] or 0},{count}}}"
            for kind, _, count in (one.partition(":") for one in buffers)
        )
        initializers += f"{{{constant or 0},{mask}u,{groups[0]},{groups[1]},{len(words)},{{{','.join(f'{word}u' for word in words)}}},{{{kinds}}}}},"
    return initializers


def compile_all(glslc: str, output: Path) -> None:
    """Writes all generated files to the folder `output`. Exits if a shader does not compile."""
    output.mkdir(parents=True, exist_ok=True)
    for stale in output.glob("*.spv"):  # of shaders that no longer exist
        stale.unlink()
    rows = pointwise_rows((HERE.parent / "pointwise.def").read_text())
    (output / "pointwise.inc").write_text(switch(rows))
    (output / "pointwise_table.inc").write_text(table(rows))
    names, code = [], ""
    for source in sorted(HERE.glob("*.comp")):
        text = source.read_text()
        bindings = 1 + max(map(int, re.findall(r"(?:\bIN|\bOUT|binding =)\W*(\d+)", text)))
        tries = probes(text)
        code += f"static const Probe {source.stem}_probes[] = {{{tries}}};\n"
        variants = re.search(r"// variants: (.*)", text)
        for variant in variants.group(1).split() if variants else ["words"]:
            name = source.stem + ("" if variant == "words" else f"_{variant}")
            target = output / f"{name}.spv"
            define = {"words": [], "half": ["-DHALF"], "packed": ["-DHALF", "-DPACKED"]}[variant]
            subprocess.run(
                [
                    glslc,
                    "-O",
                    "--target-env=vulkan1.1",
                    *define,
                    "-I",
                    HERE,
                    "-I",
                    output,
                    "-o",
                    target,
                    source,
                ],
                check=True,
            )
            data = target.read_bytes()
            words = ",".join(str(int.from_bytes(data[i : i + 4], "little")) for i in range(0, len(data), 4))
            code += f"static const uint32_t {name}_words[] = {{{words}}};\n"
            code += f'const Shader {name}_shader{{"{name}", {name}_words, {len(data)}, {bindings}, {int(variant != "words")}, {int(variant == "packed")}, {source.stem}_probes, {tries.count("}},")}}};\n'
            names.append(name)
    declared = "".join(f"extern const Shader {name}_shader;\n" for name in names)
    opening, closing = (
        "namespace torchette {\nnamespace vulkan {\n",
        "}  // namespace vulkan\n}  // namespace torchette\n",
    )
    include = '#include "torchette/backends/vulkan/device.h"\n'
    (output / "shaders.h").write_text(f"#pragma once\n{include}{opening}{declared}{closing}")
    (output / "shaders.cpp").write_text(
        f'#include "torchette/backends/vulkan/shaders.h"\n{opening}{code}{closing}'
    )


if __name__ == "__main__":
    compile_all(sys.argv[1], Path(sys.argv[2]))
