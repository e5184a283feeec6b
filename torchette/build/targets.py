# SPDX-License-Identifier: BSD-3-Clause
# In: the name of a machine. Out: the compiler flags for it, and the emulator that runs its programs here.
"""The machines that Torchette is built for: `TARGETS` by name, `find` with a remedy where a name is wrong."""

from __future__ import annotations

import difflib
import platform
from dataclasses import dataclass

from torchette.errors import TargetError


@dataclass(frozen=True)
class Target:
    """A machine to build for. What its memory is like, `torchette.devtools.memory` knows.

    Attributes:
        name: what `--target` takes.
        text: one line of description.
        kind: "linux" (a process with files), "bare" (an image without an operating system), "wasm", or "other" (a process of
            another system).
        zig: flags of `zig c++` for compiling; empty for the machine that this runs on.
        zig_link: flags for linking if they differ from `zig`.
        gcc: prefix of the GNU tools, such as ``aarch64-linux-gnu-``; None if there are none.
        gcc_flags: flags that those need.
        emulator: the command that runs a program of the target on Linux x86-64; empty if none is needed or known.
        levels: whether the kernels are compiled for each level of x86-64, of which the runtime picks one.
        note: what is not available for this target, or not tested.
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
    # Without the name of its floating-point unit, a core would pass floats in registers and compute in software.
    # newlib declares M_PI and Bessel functions only with this macro.
    flags: tuple[str, ...] = (f"-mcpu={name}", "-mthumb", "-mfloat-abi=hard", "-D_GNU_SOURCE")
    flags += (f"-mfpu={gcc_fpu}",) if gcc_fpu else ()
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
            "Linux, 64-bit ARM, static with ziglang",
            "linux",
            zig=("-target", "aarch64-linux-musl"),
            gcc="aarch64-linux-gnu-",
            emulator=("qemu-aarch64",),
        ),
        Target(
            "armv7-linux",
            "Linux, 32-bit ARM with NEON, static with ziglang",
            "linux",
            zig=("-target", "arm-linux-musleabihf", "-mcpu=generic+v7a+neon+vfp3"),
            gcc="arm-linux-gnueabihf-",
            gcc_flags=("-march=armv7-a", "-mfpu=neon", "-mfloat-abi=hard"),
            emulator=("qemu-arm",),
        ),
        Target(
            "riscv64-linux",
            "Linux, 64-bit RISC-V (rv64gc), static with ziglang",
            "linux",
            zig=("-target", "riscv64-linux-musl"),
            gcc="riscv64-linux-gnu-",
            emulator=("qemu-riscv64",),
        ),
        _cortex("cortex-m4", "bare metal, Cortex-M4F", "cortex_m4+vfp4d16sp", "fpv4-sp-d16"),
        _cortex(
            "cortex-m7", "bare metal, Cortex-M7, single precision", "cortex_m7+fp_armv8d16sp", "fpv5-sp-d16"
        ),
        _cortex("cortex-m33", "bare metal, Cortex-M33 with FPU", "cortex_m33+fp_armv8d16sp", "fpv5-sp-d16"),
        _cortex("cortex-m55", "bare metal, Cortex-M55 with Helium", "cortex_m55+mve_fp+fp_armv8d16", None),
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
            # otherwise mingw has no M_PI and no Bessel functions
            zig=("-target", "x86_64-windows-gnu", "-U__STRICT_ANSI__"),
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
    """The target called `name`.

    Raises:
        TargetError: there is none; the hint names the nearest.
    """
    if name in TARGETS:
        return TARGETS[name]
    near = difflib.get_close_matches(name, TARGETS, 1, 0.5)
    raise TargetError(
        f"there is no target {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
        hints=[f"the targets are {', '.join(TARGETS)}"],
    )
