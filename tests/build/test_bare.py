# SPDX-License-Identifier: BSD-3-Clause
# Images for boards, run by the emulator: what start-up, semihosting and the few C functions of torchette/build/bare promise
# holds on each board, with each compiler.

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.building import ROOT
from torchette.build.bare import boards

BARE = ROOT / "torchette" / "build" / "bare"
ZIG = {
    "cortex-m4": "cortex_m4+vfp4d16sp",
    "cortex-m7": "cortex_m7+fp_armv8d16sp",
    "cortex-m33": "cortex_m33+fp_armv8d16sp",
    "cortex-m55": "cortex_m55+mve_fp+fp_armv8d16",
}
FPU = {"cortex-m4": "fpv4-sp-d16", "cortex-m7": "fpv5-sp-d16", "cortex-m33": "fpv5-sp-d16"}
FLAGS = (
    "-Os -fno-exceptions -fno-rtti -fno-threadsafe-statics -ffunction-sections -fdata-sections -fno-builtin"
)

needs_emulator = pytest.mark.skipif(
    shutil.which("qemu-system-arm") is None, reason="apt install qemu-system-arm"
)


def commands(target: str, compiler: str) -> tuple[list[str], list[str]]:
    """What compiles and what links for a processor."""
    if compiler == "gcc":
        if shutil.which("arm-none-eabi-g++") is None:
            pytest.skip("apt install gcc-arm-none-eabi libnewlib-arm-none-eabi libstdc++-arm-none-eabi-dev")
        flags = ["arm-none-eabi-gcc", f"-mcpu={target}", "-mthumb", "-mfloat-abi=hard"]
        flags += [f"-mfpu={FPU[target]}"] if target in FPU else []
        return [*flags, "-std=gnu++17", *FLAGS.split()], [*flags, "-specs=nano.specs"]
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("pip install ziglang")
    zig = [sys.executable, "-m", "ziglang"]
    name = ["-target", "thumb-linux-musleabihf", f"-mcpu={ZIG[target]}"]
    compile = [
        *zig,
        "c++",
        *name,
        "-std=gnu++17",
        *FLAGS.split(),
        "-fno-sanitize=all",
        "-fno-stack-protector",
    ]
    return compile, [*zig, "cc", "-target", "thumb-freestanding-eabihf", f"-mcpu={ZIG['cortex-m4']}"]


@pytest.fixture(
    scope="module", params=[(board, kind) for board in boards.BOARDS for kind in ("gcc", "zig")], ids="-".join
)
def image(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[boards.Board, Path]:
    board, kind = boards.BOARDS[request.param[0]], request.param[1]
    folder = tmp_path_factory.mktemp(f"{board.name}-{kind}")
    compile, link = commands(board.target, kind)
    objects = []
    for source in [*BARE.glob("*.cpp"), Path(__file__).with_name("bare_image.cpp")]:
        objects.append(folder / f"{source.stem}.o")
        subprocess.run([*compile, f"-I{ROOT}", "-c", source, "-o", objects[-1]], check=True)
    (folder / "image.ld").write_text(boards.script(board, 4096))
    options = ["-nostartfiles", "-static", "-Wl,--gc-sections", "-Wl,-T", f"-Wl,{folder / 'image.ld'}"]
    subprocess.run([*link, *objects, *options, "-Wl,-e,reset", "-o", folder / "image.elf"], check=True)
    (folder / "data.bin").write_bytes(b"bytes")
    return board, folder / "image.elf"


def run(image: tuple[boards.Board, Path], *words: str) -> tuple[int, str]:
    board, path = image
    command = [
        word.replace("target=native", ",".join(["target=native", *(f"arg={w}" for w in words)]))
        for word in board.emulator
    ]
    done = subprocess.run([*command, path], capture_output=True, text=True, timeout=60, cwd=path.parent)
    return done.returncode, done.stdout + done.stderr


@needs_emulator
def test_an_image_starts_and_ends_as_it_should(image: tuple[boards.Board, Path]) -> None:
    assert run(image) == (42, "hello from an image\n")


@needs_emulator
def test_what_goes_wrong_ends_the_image_with_a_word(image: tuple[boards.Board, Path]) -> None:
    code, text = run(image, "image", "abort")
    assert (code, text) == (254, "abort\n")
    code, text = run(image, "image", "fault")
    assert code == 255 and text.startswith("fault: exception 0x0000000")


@needs_emulator
def test_a_stack_that_is_too_small_is_a_fault(image: tuple[boards.Board, Path]) -> None:
    code, text = run(image, "image", "stack")
    assert code == 255 and text.startswith("fault: exception 0x0000000"), (code, text)
