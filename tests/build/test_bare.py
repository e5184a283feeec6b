# SPDX-License-Identifier: BSD-3-Clause
# Images for boards, run by the emulator: start-up, semihosting and the minimal libc on each board with each compiler;
# models in flash have the results of this machine, in exactly the billed memory.

from __future__ import annotations

import dataclasses
import json
import re
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import torchette
from tests.build.images import MICROBIT, compiler, each_board, emulate, needs_emulator
from tests.models import artifacts
from torchette import cli, targets
from torchette.build import library, selection, toolchain
from torchette.build.bare import boards
from torchette.build.bare.boards import Board
from torchette.build.bare.image import Image, bare_flags, bare_units, build_image, image_size, link_image
from torchette.build.bare.project import Application
from torchette.build.toolchain import Compiler, Unit
from torchette.devtools.device_memory import bills
from torchette.devtools.embed import embed
from torchette.errors import BuildError
from torchette.exir import ExecutorchBackendConfig
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.runtime import Runtime

# One worker, and one selection for all models, so that the kernels of a board are compiled once.
pytestmark = [needs_emulator, pytest.mark.xdist_group("bare")]
HERE = Path(__file__).parent
MODELS = ("digits", "keyword_spotting")
# Relative to the largest result. Sums are computed in another order than on this machine, and without fused
# multiply-add, there are two roundings instead of one.
TOLERANCE = 2e-6
MEMORY_ALLOCATION_FAILED = 0x21


class Bench(NamedTuple):
    """A board, a compiler, and the compiled runtime."""

    board: Board
    compiler: Compiler
    folder: Path

    def image(self, source: Path, name: str, more: list[Unit], stack: int | None = None) -> Path:
        common = (*bare_flags(), f"-I{self.folder}")
        objects = toolchain.compile_units(
            self.compiler, [*bare_units(self.board, common[:-1]), Unit(source, common), *more]
        )
        (self.folder / "image.ld").write_text(boards.script(self.board, stack or self.board.stack))
        return link_image(self.board, self.compiler, objects, self.folder / f"{name}.elf").path


@pytest.fixture
def bench(board: str, kind: str, tmp_path: Path) -> Bench:
    return Bench(boards.BOARDS[board], compiler(boards.BOARDS[board], kind), tmp_path)


@pytest.mark.parametrize(("board", "kind"), each_board)
def test_image_startup_and_exit(bench: Bench) -> None:
    image = bench.image(HERE / "bare_image.cpp", "starts", [], 4096)
    (bench.folder / "data.bin").write_bytes(b"bytes")
    assert emulate(bench.board, image) == (42, "hello from an image\n")
    assert emulate(bench.board, image, "image", "abort") == (254, "abort\n")
    for wrong in ("fault", "stack"):  # an invalid instruction, a stack overflow
        code, text = emulate(bench.board, image, "image", wrong)
        assert code == 255 and text.startswith("fault: exception 0x0000000"), (code, text)


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        (folder / f"{name}.pte").write_bytes(artifacts.our_file(name))
    return {name: folder / f"{name}.pte" for name in MODELS}


def needs_memory(board: Board) -> None:
    if board.ram.size < 64 << 10:
        pytest.skip(f"{board.name} has {board.ram.size >> 10} KB of RAM")


class IntegerCase(NamedTuple):
    """A compiled model, its input and its outputs on the host."""

    path: Path
    x: torch.Tensor
    expected: np.ndarray


@pytest.fixture(scope="module")
def integer_cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, IntegerCase]:
    """Keyword spotting in static int8, up to the pooling layer and complete, and layers in 8da4w."""
    pytest.importorskip("torchao")
    from tests.backends.engine.passes.test_dynamic_linears import FORMS, Layers
    from tests.backends.engine.passes.test_integers import quantized

    torch.manual_seed(0)
    x = torch.randn(5, 64)
    module, (sound,) = artifacts.fresh_module("keyword_spotting").layers, artifacts.args("keyword_spotting")
    graphs = {
        "image": (quantized(module[:-4], sound), sound),
        "scores": (quantized(module, sound), sound),
        "dynamic": (FORMS["8da4w"](Layers().eval(), x), x),
    }
    cases, folder = {}, tmp_path_factory.mktemp("integers")
    for part, (graph, graph_input) in graphs.items():
        planned = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass())
        compiled = torchette.compile(graph, (graph_input,), config=planned)
        expected = compiled(graph_input).numpy().ravel()
        assert len(np.unique(expected)) > (5 if part == "scores" else 50)
        compiled.save(folder / f"{part}.pte")
        cases[part] = IntegerCase(folder / f"{part}.pte", graph_input, expected)
    return cases


@pytest.fixture(scope="module")
def chosen(model_files: dict[str, Path], integer_cases: dict[str, IntegerCase]) -> selection.Selection:
    return selection.of_files([*model_files.values(), *(case.path for case in integer_cases.values())])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("board", "kind"), each_board)
def test_model_in_flash_matches_host_in_billed_bytes(
    name: str, bench: Bench, model_files: dict[str, Path], chosen: selection.Selection
) -> None:
    board, folder = bench.board, bench.folder
    if name == "keyword_spotting":
        needs_memory(board)
    common = bare_flags()
    runtime = library.units(targets.find(board.target), chosen, "minimal", common, small=True)
    embed(model_files[name], folder, name="net", target=board.target)
    image = bench.image(
        HERE / "run_model.cpp", name, [*runtime, Unit(folder / "net.c", (*common, "-x", "c++"))]
    )
    flash, _ = image_size(image, board)
    assert flash <= board.flash.size, "initial values of RAM are also in flash"
    (argument,) = artifacts.args(name)
    (folder / "inputs").write_bytes(argument.numpy().tobytes())

    code, text = emulate(board, image)
    assert code == 0, text
    actual = np.array([int(word, 16) for word in text.split()], np.uint32).view(np.float32)
    method = Runtime.get().load_program(model_files[name]).load_method("forward")
    expected = np.asarray(method.execute([argument.numpy()])[0]).ravel()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())
    np.testing.assert_allclose(actual, artifacts.eager(name).numpy().ravel(), artifacts.RTOL, artifacts.ATOL)

    (bill,) = bills(model_files[name], board.target)
    assert bill.temp is not None
    spare = bill.temp.most - bill.temp.least
    code, text = emulate(board, image, "image", "temp", str(spare))
    assert code == 0, text
    for pool, needed in {"method": bill.method, "planned": bill.planned[0], "temp": bill.temp.least}.items():
        if needed > 0:
            code, text = emulate(board, image, "image", pool, str(1 + (spare if pool == "temp" else 0)))
            is_named = re.search(rf" {needed}\b", text) is not None
            assert code == MEMORY_ALLOCATION_FAILED and is_named, (pool, code, text)


@pytest.mark.parametrize("part", ["image", "scores", "dynamic"])
@pytest.mark.parametrize(("board", "kind"), each_board)
def test_integer_results_match_host_bitwise(
    part: str, bench: Bench, integer_cases: dict[str, IntegerCase], chosen: selection.Selection
) -> None:
    case, folder, common = integer_cases[part], bench.folder, bare_flags()
    needs_memory(bench.board)
    runtime = library.units(targets.find(bench.board.target), chosen, "minimal", common, small=True)
    embed(case.path, folder, name="net", target=bench.board.target)
    image = bench.image(
        HERE / "run_model.cpp", part, [*runtime, Unit(folder / "net.c", (*common, "-x", "c++"))]
    )
    (folder / "inputs").write_bytes(case.x.numpy().tobytes())
    code, text = emulate(bench.board, image)
    assert code == 0, text
    actual = np.array([int(word, 16) for word in text.split()], np.uint32).view(np.float32)
    np.testing.assert_array_equal(actual, case.expected)


@pytest.mark.slow
def test_build_creates_image_of_each_model(
    model_files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = boards.BOARDS["mps2-an386"]
    compiler(board, "gcc")
    words = ["--target", "cortex-m4", "--compiler", "arm-none-eabi-", "-o", str(tmp_path), "--json"]
    assert cli.main(["build", *map(str, model_files.values()), *words]) == 0
    report = json.loads(capsys.readouterr().out)
    for name, model in model_files.items():
        assert emulate(board, Path(report["files"][f"image of {name}"]))[0] == 0
        assert report["images"][name]["flash"] > model.stat().st_size
        assert report["images"][name]["ram"] > boards.STACK
    assert cli.main(["build", *words, "--board", "mps3-an547"]) == 2
    assert "mps3-an547 has a cortex-m55, but the target" in capsys.readouterr().err


def crc32(data: bytes) -> int:
    """Computes the CRC of the RP2040's boot ROM: no reflection, no final inversion."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
    return crc


def test_rp2040_image_meets_rom_requirements(tmp_path: Path) -> None:
    """A boot block with CRC, followed by the vector table, and a UF2 file. Results on a Cortex-M0 match the host."""
    board = boards.BOARDS["rp2040"]
    gcc = compiler(board, "gcc")
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Tanh()).eval()
    torchette.compile(net, (torch.ones(2, 8),)).save(tmp_path / "net.pte")
    chosen = selection.of_file(tmp_path / "net.pte")
    image = build_image(Application(tmp_path / "net.pte", board, "net"), gcc, chosen, tmp_path / "rp2040")
    assert image.uf2 is not None
    flash = bytearray()
    packed = image.uf2.read_bytes()
    for number, at in enumerate(range(0, len(packed), 512)):
        *head, payload, end = struct.unpack_from("<8I476sI", packed, at)
        assert head[:3] == [0x0A324655, 0x9E5D5157, 0x2000] and end == 0x0AB16F30
        assert head[3:] == [board.flash.origin + len(flash), 256, number, len(packed) // 512, 0xE48BFF56]
        flash += payload[:256]
    assert 0 <= len(flash) - image.flash < 256
    objcopy = ["arm-none-eabi-objcopy", "-O", "binary", image.path, tmp_path / "flash.bin"]
    subprocess.run(objcopy, check=True)
    assert flash[: image.flash] == (tmp_path / "flash.bin").read_bytes()
    assert crc32(flash[:252]) == int.from_bytes(flash[252:256], "little")
    stack, reset = struct.unpack_from("<2I", flash, 256)
    assert stack == board.ram.origin + boards.STACK and reset % 2 == 1
    assert reset - board.flash.origin in range(256, image.flash)

    model = build_image(
        Application(tmp_path / "net.pte", MICROBIT, "net"), gcc, chosen, tmp_path / "microbit"
    )
    code, text = emulate(MICROBIT, model.path)
    assert code == 0 and "8 values are equal to the expected values" in text, text


def test_rp2040_boot_block_matches_its_comment(tmp_path: Path) -> None:
    board = boards.BOARDS["rp2040"]
    compiler(board, "gcc")
    (source,) = (path for path in boards.sources(board) if path.name == board.source)
    text = source.read_text()
    listing = re.findall(r"^//     ((?:call: )?[a-z].*)$", text, re.M)
    code = ".syntax unified\n.cpu cortex-m0plus\n.thumb\n"
    for line in listing:
        line = re.sub(r'="(.)(.)"', lambda match: f"={ord(match[1]) | ord(match[2]) << 8:#x}", line)
        code += re.sub(r" {3,}.*", "", line).replace("call:", ".align 2\ncall:") + "\n"
    (tmp_path / "boot.s").write_text(code)
    for command in (
        ["as", tmp_path / "boot.s", "-o", tmp_path / "boot.o"],
        ["objcopy", "-O", "binary", "-j", ".text", tmp_path / "boot.o", tmp_path / "boot.bin"],
    ):
        subprocess.run(["arm-none-eabi-" + command[0], *command[1:]], check=True)
    stored = re.findall(r"0x[0-9a-f]{8}", text[text.index("boot_block[64]") :])[:-1]
    words = struct.pack(f"<{len(stored)}I", *(int(word, 16) for word in stored))
    assert words == (tmp_path / "boot.bin").read_bytes()


def test_oversized_model_error_has_missing_bytes(model_files: dict[str, Path], tmp_path: Path) -> None:
    """Before compiling from the bill, and exactly from the linker."""
    board = boards.BOARDS["mps2-an386"]
    gcc = compiler(board, "gcc")
    chosen = selection.of_files(list(model_files.values()))

    def build(flash: int, ram: int) -> Image:
        small = dataclasses.replace(
            board,
            flash=dataclasses.replace(board.flash, size=flash),
            ram=dataclasses.replace(board.ram, size=ram),
        )
        application = Application(model_files["digits"], small, "digits")
        return build_image(application, gcc, chosen, tmp_path / "image")

    image = build(board.flash.size, board.ram.size)
    assert emulate(board, image.path)[0] == 0
    assert build(image.flash, image.ram) == image
    with pytest.raises(
        BuildError, match=r"^digits.elf does not fit mps2-an386: FLASH is \d+ bytes too small"
    ) as raised:
        build(image.flash - 4, image.ram)
    assert raised.value.code == "does-not-fit-board" and re.search(
        r" is [1-4] bytes too small", str(raised.value)
    )
    assert "int8 weights" in raised.value.hints[0] and "--flash" in raised.value.hints[0]
    with pytest.raises(BuildError, match=r"RAM is [1-8] bytes too small"):
        build(image.flash, image.ram - 4)
    with pytest.raises(
        BuildError, match=r"does not fit the RAM of mps2-an386: it needs [0-9,]+ bytes of 1,000"
    ) as raised:
        build(image.flash, 1000)
    assert any("--budget ram=" in hint for hint in raised.value.hints)
