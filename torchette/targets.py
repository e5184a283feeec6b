# SPDX-License-Identifier: BSD-3-Clause
# In: the name of a machine. Out: what its processor is like, what compilers must be told to build for it, and what runs its
# programs here. `torchette build`, `torchette memory` and `Device(target=...)` ask this table.
"""The machines that Torchette knows: `TARGETS` to build for, `PROCESSORS` for which memory is counted."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass, replace

from torchette.errors import InputError, TargetError, unknown_name


@dataclass(frozen=True)
class Processor:
    """A kind of processor, as far as memory depends on it.

    Attributes:
        name: what `torchette memory --target` takes, besides the names of `TARGETS`.
        pointer: bytes of a pointer. A number of the runtime's structures is aligned to its size.
        lanes: floats in one of the kernels' vectors.
    """

    name: str
    pointer: int
    lanes: int = 4


# How wide the vectors are that the kernels of a level are written for (torchette/kernels/simd.h).
LANES = {"v1": 4, "v3": 8, "v4": 16, "baseline": 4}

PROCESSORS = {
    processor.name: processor
    for processor in (
        Processor("cortex-m", 4),
        Processor("armv7", 4),
        Processor("riscv32", 4),
        Processor("wasm32", 4),
        Processor("aarch64", 8),
        Processor("riscv64", 8),
        Processor("x86-64", 8, LANES["v1"]),
        Processor("x86-64-v3", 8, LANES["v3"]),
        Processor("x86-64-v4", 8, LANES["v4"]),
    )
}


def processor(name: str) -> Processor:
    """Returns the processor of a machine. The name is one of `TARGETS`, or begins with one of `PROCESSORS`, such as
    cortex-m0. For this machine, see `torchette.devtools.device_memory.processor_of`.

    Raises:
        InputError: there is no such processor.
    """
    kinds = [kind for kind in PROCESSORS if re.fullmatch(rf"{kind}(\d+\w*|-.+)?", name)]
    if not kinds:
        raise InputError(
            unknown_name("target", name, (*PROCESSORS, *TARGETS)),
            hints=[f"a processor, {', '.join(PROCESSORS)}", f"a machine to build for, {', '.join(TARGETS)}"],
        )
    return replace(PROCESSORS[max(kinds, key=len)], name=name)


@dataclass(frozen=True)
class Target:
    """A machine to build for; `processor` has its processor by the same name.

    Attributes:
        name: what `--target` takes.
        text: one line for people.
        kind: "linux" (a process with files), "bare" (an image and nothing below it), "wasm", or "other" (a process of
            another system).
        zig: flags of `zig c++` for compiling; empty for the machine that this runs on.
        zig_link: flags for linking where they are others than `zig`.
        gcc: prefix of the GNU tools, such as ``aarch64-linux-gnu-``; None where there are none.
        gcc_flags: flags that those need.
        emulator: the command that runs a program of the target on Linux x86-64; empty where none is needed or known.
        levels: whether the kernels are compiled for each level of x86-64, of which the runtime picks one.
        note: what cannot be had for this target, or was not tried.
    """

    name: str
    text: str
    kind: str
    zig: tuple[str, ...] = ()
    zig_link: tuple[str, ...] = ()
    gcc: str | None = None
    gcc_flags: tuple[str, ...] = ()
    emulator: tuple[str, ...] = ()
    levels: bool = False
    note: str = ""


def _cortex(name: str, text: str, zig: str, gcc_fpu: str | None) -> Target:
    # A core without its floating-point unit named would pass floats in registers and compute them in software.
    # newlib declares M_PI and Bessel functions to those who ask.
    abi = "soft" if name == "cortex-m0plus" else "hard"
    flags: tuple[str, ...] = (f"-mcpu={name}", "-mthumb", f"-mfloat-abi={abi}", "-D_GNU_SOURCE")
    flags += (f"-mfpu={gcc_fpu}",) if gcc_fpu else ()
    if abi == "soft":
        zig_flags = ("-target", "thumb-linux-musleabi", f"-mcpu={zig}")
        return Target(name, text, "bare", zig_flags, gcc="arm-none-eabi-", gcc_flags=flags)
    return Target(
        name,
        text,
        "bare",
        # zig has C and C++ headers for Linux only; of its musl, which does not compile for all of them, mathematics is linked
        zig=("-target", "thumb-linux-musleabihf", f"-mcpu={zig}"),
        zig_link=("-target", "thumb-linux-musleabihf", "-mcpu=cortex_m4+vfp4d16sp"),
        gcc="arm-none-eabi-",
        gcc_flags=flags,
    )


_X86 = platform.machine() in ("x86_64", "AMD64")

_WASM = ("-target", "wasm32-wasi", "-msimd128")

TARGETS = {
    target.name: target
    for target in (
        Target(
            "host",
            "the machine that this runs on",
            "linux",
            gcc="",
            levels=_X86,
        ),
        Target(
            "x86-64-linux-musl",
            "Linux, x86-64, static",
            "linux",
            zig=("-target", "x86_64-linux-musl"),
            gcc="x86_64-linux-musl-",
            levels=True,
        ),
        Target(
            "aarch64-linux",
            "Linux, 64-bit ARM, static",
            "linux",
            zig=("-target", "aarch64-linux-musl"),
            gcc="aarch64-linux-gnu-",
            emulator=("qemu-aarch64",),
        ),
        Target(
            "armv7-linux",
            "Linux, 32-bit ARM with NEON, static",
            "linux",
            zig=("-target", "arm-linux-musleabihf", "-mcpu=generic+v7a+neon+vfp3"),
            gcc="arm-linux-gnueabihf-",
            gcc_flags=("-march=armv7-a", "-mfpu=neon", "-mfloat-abi=hard"),
            emulator=("qemu-arm",),
        ),
        Target(
            "riscv64-linux",
            "Linux, 64-bit RISC-V (rv64gc), static",
            "linux",
            zig=("-target", "riscv64-linux-musl"),
            gcc="riscv64-linux-gnu-",
            emulator=("qemu-riscv64",),
        ),
        _cortex("cortex-m0plus", "bare metal, Cortex-M0 and M0+", "cortex_m0plus", None),
        _cortex("cortex-m4", "bare metal, Cortex-M4F", "cortex_m4+vfp4d16sp", "fpv4-sp-d16"),
        _cortex(
            "cortex-m7", "bare metal, Cortex-M7, single precision", "cortex_m7+fp_armv8d16sp", "fpv5-sp-d16"
        ),
        _cortex("cortex-m33", "bare metal, Cortex-M33 with FPU", "cortex_m33+fp_armv8d16sp", "fpv5-sp-d16"),
        _cortex("cortex-m55", "bare metal, Cortex-M55 with Helium", "cortex_m55+mve_fp+fp_armv8d16", None),
        Target(
            "riscv32-imac",
            "bare metal, RISC-V (rv32imac)",
            "bare",
            zig=("-target", "riscv32-linux-musl", "-mcpu=generic_rv32+m+a+c+zicsr"),
            gcc="riscv64-unknown-elf-",
            gcc_flags=("-march=rv32imac_zicsr", "-mabi=ilp32", "-D_GNU_SOURCE"),
        ),
        Target(
            "wasm32-wasi",
            "WebAssembly with files (WASI)",
            "wasm",
            zig=(*_WASM, "-D_WASI_EMULATED_MMAN"),
            zig_link=(*_WASM, "-lwasi-emulated-mman"),
        ),
        Target(
            "wasm32-browser",
            "WebAssembly for web pages and Node.js, with a JavaScript module",
            "wasm",
            zig=_WASM,
            # no main: JavaScript calls the exports. A stack that is too small traps, since it lies below everything else
            zig_link=(
                *_WASM,
                "-mexec-model=reactor",
                "-nostartfiles",
                "-Wl,--no-entry",
                "-Wl,-z,stack-size=131072",
            ),
        ),
        Target(
            "aarch64-macos",
            "macOS on Apple silicon",
            "other",
            zig=("-target", "aarch64-macos"),
            note="built by the tests, run by none",
        ),
        Target(
            "x86-64-windows",
            "Windows, x86-64",
            "other",
            zig=("-target", "x86_64-windows-gnu"),
            gcc="x86_64-w64-mingw32-",
            # gcc aligns no stack to 32 bytes there, so that moves of vectors must not ask for it
            gcc_flags=("-Wa,-muse-unaligned-vector-move",),
            emulator=("wine",),
            levels=True,
        ),
        Target(
            "aarch64-android",
            "Android 10, 64-bit ARM",
            "other",
            gcc="aarch64-linux-android29-",
            note="needs the NDK: ziglang has no headers of Android's C library",
        ),
    )
}


def find(name: str) -> Target:
    """The target called `name`; "native" is "host".

    Raises:
        TargetError: nothing is built for a machine of that name; the hint names the nearest.
    """
    name = "host" if name == "native" else name
    if name in TARGETS:
        return TARGETS[name]
    if name in PROCESSORS:
        raise TargetError(
            f"there is no target {name!r} to build for: it is a processor for which memory is counted",
            hints=[f"the targets are {', '.join(TARGETS)}"],
        )
    raise TargetError(
        unknown_name("target", name, TARGETS),
        hints=[f"the targets are {', '.join(TARGETS)}"],
    )
