# SPDX-License-Identifier: BSD-3-Clause
# In: the name of a machine. Out: properties of its processor, compiler flags, and an emulator. Used by `torchette
# build`, `torchette memory` and `Device(target=...)`.
"""The supported machines: `TARGETS` for builds, and `PROCESSORS` for memory accounting."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass, replace

from torchette.errors import InputError, TargetError, unknown_name


@dataclass(frozen=True)
class Processor:
    """The properties of a processor that affect memory.

    Attributes:
        name: a value of `torchette memory --target`, in addition to the names of `TARGETS`.
        pointer: bytes of a pointer. A scalar in the runtime's structures is aligned to its size.
        lanes: float32 lanes of the kernels' vectors.
    """

    name: str
    pointer: int
    lanes: int = 4


# Kernel level -> float32 lanes of its vectors (torchette/kernels/simd.h).
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
        Processor("riscv64-v", 8, 8),
        Processor("x86-64", 8, LANES["v1"]),
        Processor("x86-64-v3", 8, LANES["v3"]),
        Processor("x86-64-v4", 8, LANES["v4"]),
    )
}


def processor(name: str) -> Processor:
    """Returns the processor of a machine.

    For this machine, see `torchette.devtools.device_memory.processor_of`.

    Args:
        name: one of `TARGETS`, or a name that begins with one of `PROCESSORS`, such as cortex-m0.

    Raises:
        InputError: if there is no such processor.
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
    """A machine to build for. `processor` returns its processor by the same name.

    Attributes:
        name: the value of `--target`.
        text: a description of one line.
        kind: "linux" (a process with files), "bare" (an image without an operating system), "wasm", or "other" (a
            process of another operating system).
        zig: compiler flags of `zig c++`; empty for the host.
        zig_link: linker flags, if they differ from `zig`.
        gcc: prefix of the GNU tools, such as ``aarch64-linux-gnu-``; None if there are none.
        gcc_flags: flags for the GNU tools.
        emulator: the command that runs a program of the target on Linux x86-64; empty if it is unnecessary or unknown.
        levels: whether the kernels are compiled for each x86-64 level, so that the runtime selects one.
        note: limitations of the target, or features that are not tested.
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
    # Without the name of the floating-point unit, gcc passes floats in registers but computes them in software.
    # newlib declares M_PI and Bessel functions only with _GNU_SOURCE.
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
        # zig has C and C++ headers for Linux only. Its musl does not compile for all of these cores; only the math part
        # is linked.
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
            "this machine",
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
        Target(
            "riscv64-v-linux",
            "Linux, 64-bit RISC-V with vectors (rv64gcv), static",
            "linux",
            zig=("-target", "riscv64-linux-musl", "-mcpu=baseline_rv64+v"),
            emulator=("qemu-riscv64", "-cpu", "rv64,v=true,vlen=128,vext_spec=v1.0"),
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
            # no main: JavaScript calls the exports. The stack is at the lowest addresses, so that an overflow traps
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
            note="the tests build it, but do not run it",
        ),
        Target(
            "x86-64-windows",
            "Windows, x86-64",
            "other",
            zig=("-target", "x86_64-windows-gnu"),
            gcc="x86_64-w64-mingw32-",
            # gcc does not align the stack to 32 bytes on Windows, so vector moves must not require alignment
            gcc_flags=("-Wa,-muse-unaligned-vector-move",),
            emulator=("wine",),
            levels=True,
        ),
        Target(
            "aarch64-android",
            "Android 10, 64-bit ARM",
            "other",
            gcc="aarch64-linux-android29-",
            note="requires the NDK, because ziglang has no headers of Android's C library",
        ),
    )
}


def find(name: str) -> Target:
    """Returns the target with this name; "native" is an alias of "host".

    Raises:
        TargetError: if there is no such target; a hint lists the targets.
    """
    name = "host" if name == "native" else name
    if name in TARGETS:
        return TARGETS[name]
    if name in PROCESSORS:
        raise TargetError(
            f"there is no build target {name!r}: it is a processor for memory accounting",
            hints=[f"targets: {', '.join(TARGETS)}"],
        )
    raise TargetError(
        unknown_name("target", name, TARGETS),
        hints=[f"targets: {', '.join(TARGETS)}"],
    )
