# SPDX-License-Identifier: BSD-3-Clause
# In: models with one float input and one float output. Out: the code of `torchette codegen` compared with the interpreter, with
# the same kernels and flags: bytes of a program, instructions under callgrind, and time in alternating runs.
"""Generated C++ compared with the interpreter: size, instructions and time of one inference."""

from __future__ import annotations

import argparse
import math
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.core_size import CORTEX_M4, HOST, Size, Target
from torchette import targets as machines
from torchette.build import library, selection, toolchain
from torchette.build.bare.counter import count_plugin
from torchette.codegen import codegen
from torchette.devtools.embed import embed
from torchette.devtools.inspect import describe
from torchette.targets import find

MODELS = ("digits", "keyword_spotting", "mobilenet_v2_96")
SIDES = ("interpreter", "codegen")

_MAIN = """\
#ifdef __linux__
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#endif
@head@
static float in[@in@], out[@out@];
int main(int argc, char** argv) {
  for (int i = 0; i < @in@; ++i) in[i] = static_cast<float>(i % 31 - 15) / 8;
  @setup@
#ifdef __linux__
  timespec start, end;
  const int count = argc > 1 ? atoi(argv[1]) : 1;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
  for (int i = 0; i < count; ++i) @run@
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  unsigned hash = 0;
  for (const float& x : out) hash = hash * 31 + *reinterpret_cast<const unsigned*>(&x);
  printf("%u %.9g\\n", hash, ((end.tv_sec - start.tv_sec) * 1e9 + (end.tv_nsec - start.tv_nsec)) / count);
#else
  (void)argc, (void)argv;
  @run@
#endif
}
"""


class Side(NamedTuple):
    """The program of one side, the size of its sections, and the bytes of its weights, which are not counted."""

    program: Path
    size: Size
    constants: int

    @property
    def bytes(self) -> int:
        """Code and constants without weights; for the interpreter including the program that it reads."""
        return self.size.text + self.size.rodata + self.size.data - self.constants


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev bench codegen", description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--level", default="-Os", help="the compiler's level for both (default: -Os)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--emulated",
        default="",
        metavar="A,B,...",
        help="also count instructions on these targets, under qemu",
    )
    options = parser.parse_args(arguments)
    targets = [HOST, *([] if CORTEX_M4.missing else [CORTEX_M4])]
    print(f"{'model':20}{'target':>14}{'':>14}{'interpreter':>14}{'codegen':>14}{'ratio':>8}")
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            pte = save(name, Path(folder))
            for target in targets:
                sides = [build(pte, target, kind, options.level) for kind in SIDES]
                row(name, target.name, "bytes", *(side.bytes for side in sides))
                row(name, target.name, "RAM", *(side.size.bss + ram(side, target) for side in sides))
                if target is HOST:
                    compare(name, sides, options.rounds)
            for machine in map(find, filter(None, options.emulated.split(","))):
                programs = [link(pte, machine, kind, options.level) for kind in SIDES]
                row(name, machine.name, "instructions", *(emulated(program, machine) for program in programs))
    return 0


def row(name: str, target: str, measure: str, interpreter: float, generated: float) -> None:
    ratio = f"{generated / interpreter:.3f}" if interpreter else ""
    print(f"{name:20}{target:>14}{measure:>14}{interpreter:14,.0f}{generated:14,.0f}{ratio:>8}", flush=True)


def ram(side: Side, target: Target) -> int:
    """Returns the bytes of initialized memory that is written. Relocated constants of a position-independent program are not."""
    return 0 if target is HOST else side.size.data


def save(name: str, folder: Path) -> Path:
    """Returns the compiled model."""
    import torch

    import torchette
    from tests.models import zoo

    module, args = zoo.build(name.removesuffix("_96"))
    if name.endswith("_96"):
        args = (torch.randn(1, 3, 96, 96),)
    path = folder / f"{name}.pte"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torchette.compile(module, args).save(path)
    return path


def build(pte: Path, target: Target, kind: str, level: str) -> Side:
    """Builds the program of one side; both sides have the same flags."""
    machine = find("host" if target is HOST else target.name)
    compiler = toolchain.find_compiler(machine, "" if target is HOST else target.binutils)
    # strict C++ hides names that kernels need on targets without an operating system
    dialect = () if target is HOST else ("-std=gnu++17",)
    program = link(pte, machine, kind, level, compiler, dialect, target.link_flags)
    constants = int(re.search(r"WEIGHTS_BYTES (\d+)", _header(pte, target))[1])  # type: ignore[index]
    return Side(program, Size.of(program, target), constants)


def link(
    pte: Path,
    machine: machines.Target,
    kind: str,
    level: str,
    compiler: toolchain.Compiler | None = None,
    dialect: Sequence[str] = (),
    link_flags: Sequence[str] = (),
) -> Path:
    """Builds the program of one side for a target; the default compiler is ziglang."""
    compiler = compiler or toolchain.find_compiler(machine)
    folder, name = pte.parent / f"{machine.name}_{kind}", pte.stem
    common = (level, *(flag for flag in library.flags(small=True, log_level=0) if flag != "-Os"), *dialect)
    method = describe(pte).methods[0]
    sizes = [math.prod(method.values[p.index].tensor.sizes) for p in (method.inputs[0], method.outputs[0])]
    if kind == "codegen":
        codegen(pte, folder, name=name)
        head, setup, call = f'#include "{name}.h"', "", f"{name}_forward(in, out);"
        sources = sorted(folder.glob("*.cpp"))
        flags = (*common, *toolchain.KERNEL_FLAGS, f"-I{folder}")
        units = [toolchain.Unit(source, flags) for source in sources]
    else:
        embed(pte, folder, name=name, target="x86-64" if machine.name == "host" else machine.name)
        head = f'#include "{name}.hpp"\nusing namespace torchette;'
        setup = (
            f"auto loader = {name}::program();\n"
            "  auto program = Program::load(&loader, Program::Verification::InternalConsistency);\n"
            f"  {name}::forward_memory memory;\n"
            "  if (!program.ok()) return 1;\n"
            '  auto method = program->load_method("forward", &memory.manager);\n'
            "  if (!method.ok()) return 2;\n"
            "  TensorImpl impl = *method->get_input(0).to_tensor().unsafe_impl();\n"
            "  impl.data = in;\n"
            "  if (method->output_needs_memory(0) && method->set_output_data_ptr(out, sizeof(out), 0) != Error::Ok)"
            " return 4;"
        )
        call = "if (method->set_input(Value(Tensor(&impl)), 0) != Error::Ok || method->execute() != Error::Ok) return 3;"
        flags = (*common, f"-I{folder}")
        units = [toolchain.Unit(folder / f"{name}.c", ("-x", "c++", *flags))]
        units += library.core_units("minimal", common)
        units += library.kernel_units(machine, selection.of_file(pte), common, small=True)
    text = _MAIN.replace("@head@", head).replace("@setup@", setup).replace("@run@", call)
    text = text.replace("@in@", str(sizes[0])).replace("@out@", str(sizes[1]))
    (folder / "main.cc").write_text(text)
    objects = toolchain.compile_units(compiler, [*units, toolchain.Unit(folder / "main.cc", flags)])
    program = folder / "program"
    toolchain.link(compiler, objects, program, ["-Wl,--gc-sections", *link_flags])
    return program


def _header(pte: Path, target: Target) -> str:
    folder = pte.parent / f"{target.name}_weights"
    codegen(pte, folder, name=pte.stem)
    return (folder / f"{pte.stem}.h").read_text()


def compare(name: str, sides: list[Side], rounds: int) -> None:
    """Returns the instructions and the time of one inference of each side. Exits if the outputs differ."""
    answers, fastest = set(), [math.inf, math.inf]
    for _ in range(rounds):
        for i, side in enumerate(sides):
            answer, time = subprocess.run(
                [side.program, "20"], check=True, capture_output=True, text=True
            ).stdout.split()
            answers.add(answer)
            fastest[i] = min(fastest[i], float(time))
    row(name, "x86-64", "ns", *fastest)
    if len(answers) != 1:
        raise SystemExit(f"{name}: the outputs of the interpreter and of the generated code differ")
    if shutil.which("valgrind"):
        row(name, "x86-64", "instructions", *(instructions(side.program) for side in sides))


def emulated(program: Path, machine: machines.Target) -> float:
    """Returns the instructions of one inference under qemu-user: the difference of two counts, for ten inferences."""
    plugin = count_plugin(program.parent)
    counts = []
    for count in ("2", "12"):
        command = [*machine.emulator, "-plugin", plugin, program, count]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        counts.append(int(re.search(r"instructions (\d+)", done.stderr)[1]))  # type: ignore[index]
    return (counts[1] - counts[0]) / 10


def instructions(program: Path) -> float:
    """Returns the instructions of one inference under callgrind: the difference of two counts, for ten inferences."""
    counts = []
    for count in ("2", "12"):
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(program), count]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        counts.append(int(re.search(r"Collected : (\d+)", done.stderr)[1]))  # type: ignore[index]
    return (counts[1] - counts[0]) / 10


if __name__ == "__main__":
    raise SystemExit(main())
