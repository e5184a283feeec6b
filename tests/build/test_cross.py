# SPDX-License-Identifier: BSD-3-Clause
# Builds for other machines, run by an emulator: the runtime's C++ tests, operators against eager, and a model against
# the host. The gate runs AArch64 and ARMv7; --full runs every target with each compiler.

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import torchette
from tests.build.images import WINDOWS, emulated, named, with_gcc, with_zig
from tests.building import BUILD, ROOT, locked, run
from tests.kernels import parity
from tests.models import zoo
from torchette import cli, targets
from torchette.build import library, selection, toolchain
from torchette.build.bare import boards
from torchette.build.make import BuildResult, link_flags, make
from torchette.build.selection import Selection
from torchette.devtools.device_memory import bills
from torchette.exir import ExecutorchBackendConfig
from torchette.exir.memory.plan_memory import MemoryPlanningPass

# One worker compiles the models of the fixtures and the kernels of each target once.
pytestmark = pytest.mark.xdist_group("cross")

# Operators of each family of kernels; each target runs some of their samples.
OPERATORS = (
    "add", "mul", "sub", "div.floor_rounding", "exp", "tanh", "erf", "pow", "where", "clamp", "eq", "remainder",
    "bitwise_and", "sum", "mean", "amax", "argmax", "var", "any", "cumsum", "softmax", "log_softmax", "matmul",
    "bmm", "addmm", "nn.functional.conv2d", "nn.functional.conv_transpose2d", "nn.functional.max_pool2d",
    "nn.functional.avg_pool2d", "nn.functional.layer_norm", "nn.functional.group_norm", "nn.functional.pad.constant",
    "nn.functional.interpolate.bilinear", "nn.functional.gelu", "cat", "index_select", "gather", "scatter_add",
    "topk", "sort", "flip", "repeat", "permute", "tril", "cdist", "nn.functional.embedding",
)  # fmt: skip


class Product(torch.nn.Module):
    def forward(self, x, y):
        return x @ y


@dataclass
class Case:
    """A model with arguments, and its outputs on the host."""

    path: Path
    args: tuple[torch.Tensor, ...]
    expected: list[torch.Tensor]


def compiled(module: torch.nn.Module, args: tuple[torch.Tensor, ...], path: Path, **how: str) -> Case:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # torchao's graphs are in inference mode, and do not support eval()
        module = module if isinstance(module, torch.fx.GraphModule) else module.eval()
        model = torchette.compile(module, args, **how)
    model.save(path)
    outputs = model(*map(torch.clone, args))
    return Case(path, args, list(torch.utils._pytree.tree_leaves(outputs)))


@pytest.fixture(scope="session")
def mobilenet(tmp_path_factory: pytest.TempPathFactory) -> Case:
    module, _ = zoo.build("mobilenet_v2")
    torch.manual_seed(0)
    return compiled(
        module, (torch.rand(1, 3, 96, 96),), tmp_path_factory.mktemp("mobilenet") / "mobilenet.pte"
    )


@pytest.fixture(scope="session")
def operators(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[parity.Sample], Case]:
    samples = [
        sample
        for name in OPERATORS
        for dtype in parity.two_dtypes(name)
        for sample in parity.samples(name, dtype, 2)
        if not parity.is_excluded(sample)
    ]
    passed = parity.hold(samples).passed
    assert len(passed) > 0.95 * len(samples)
    inputs = (torch.zeros(1), *(tensor for sample in passed for tensor in sample.tensors()))
    path = tmp_path_factory.mktemp("operators") / "operators.pte"
    return passed, compiled(parity.Calls(passed), inputs, path)


class Delegated(nn.Module):
    """A network with every kind of layer for which library kernels replace XNNPACK."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 24, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.back = nn.ConvTranspose2d(24, 8, 2, stride=2)
        self.last = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu6(self.depthwise(self.first(x).relu()))
        x = nn.functional.max_pool2d(self.back(x), 2) + nn.functional.avg_pool2d(self.back(x), 2)
        x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear").flatten(2).transpose(1, 2)
        scores = torch.softmax(x @ x.transpose(1, 2), -1)
        return self.last(torch.nn.functional.gelu(scores @ x))


@pytest.fixture(scope="session")
def delegated(tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("delegated") / "delegated.pte"
    return compiled(Delegated(), (torch.rand(1, 3, 16, 16),), path, backend="xnnpack")


class Stored(nn.Module):
    """Layers with 8-bit and 4-bit weights, on one row and on several. All values are chosen so that float sums are
    exact in any order."""

    def __init__(self) -> None:
        super().__init__()
        for bits in (8, 4):
            most = 2 ** (bits - 1)
            self.register_buffer(f"whole{bits}", torch.randint(-most, most, (40, 64), dtype=torch.int8))
        self.register_buffer("scales", 2.0 ** -torch.randint(1, 5, (40, 8, 1)))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights = [
            (integers.view(40, 8, -1).float() * self.scales).view(40, 64)
            for integers in (self.whole8, self.whole4)
        ]
        return tuple(nn.functional.linear(rows, weight) for weight in weights for rows in (x, x[:1]))


class Halves(nn.Module):
    """Layers in bfloat16 on 1 to 13 rows. No depth is a multiple of four, not even of a block of the deep layer."""

    COUNTS = (1, 2, 3, 5, 7, 13)

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Linear(1542, 40)
        self.shallow = nn.Linear(70, 33)
        for parameter in self.parameters():
            parameter.data = torch.randint(-8, 9, parameter.shape).float()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(
            layer(x[:count, : layer.in_features])
            for layer in (self.deep, self.shallow)
            for count in self.COUNTS
        )


@pytest.fixture(scope="session")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """All values are small integers: float accumulators are exact in any order."""
    torch.manual_seed(0)
    rows, path = torch.randint(-8, 9, (13, 1542)).float(), tmp_path_factory.mktemp("halves") / "halves.pte"
    return compiled(Halves(), (rows,), path, precision="bfloat16")


@pytest.fixture(scope="session")
def integers(tmp_path_factory: pytest.TempPathFactory, halves: Case) -> list[Case]:
    """Networks with the same output bits on every target."""
    pytest.importorskip("torchao")
    from tests.backends.engine.passes import test_dynamic_linears as dynamic_linears
    from tests.backends.engine.passes.test_integers import Block, quantized

    class Image(Block):
        forward = Block.image

    torch.manual_seed(0)
    folder, image = tmp_path_factory.mktemp("integers"), torch.randn(2, 3, 21, 20)
    cases = [
        compiled(quantized(kind(), image), (image,), folder / f"{kind.__name__}.pte")
        for kind in (Block, Image)
    ]
    rows = torch.randint(-8, 9, (9, 64)).float()
    cases += [compiled(Stored(), (rows,), folder / "stored.pte"), halves]
    for form, count in (("pt2e by channel", 9), ("8da4w", 9), ("8da4w", 1), ("integers with zero points", 9)):
        rows = torch.randn(count, 64)
        path = folder / f"dynamic{len(cases)}.pte"
        cases.append(
            compiled(dynamic_linears.FORMS[form](dynamic_linears.Layers().eval(), rows), (rows,), path)
        )
    return cases


@pytest.fixture(scope="session")
def chosen(mobilenet: Case, delegated: Case, operators: tuple[list, Case], integers: list[Case]) -> Selection:
    """One selection for all models, so that the kernels of a target are compiled once."""
    files = [case.path for case in (mobilenet, delegated, operators[1], *integers)]
    kernels = {
        f"cpu::{name}.out" for name in ("quantized_convolution", "weight_only_linear", "dynamic_linear")
    }
    selected = selection.of_files(files)
    assert kernels < (selected.operators or set())
    return selected


def built(target: targets.Target, kind: str, chosen: Selection, folder: Path) -> BuildResult:
    """Optimized for speed if the target has vectors, else for size, which no other test covers."""
    small = target.name not in ("aarch64-linux", "armv7-linux", "riscv64-v-linux", "wasm32-wasi")
    return make(target, chosen, folder / "build", compiler=named(target, kind), small=small)


def order_of(tensor: torch.Tensor) -> list[int]:
    """Returns the dimensions from the outermost to the innermost in memory."""
    return sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))


def outputs_of(build: BuildResult, target: targets.Target, case: Case, folder: Path) -> list[torch.Tensor]:
    """Returns the outputs of the target's runner, with the dtypes and shapes of the host."""
    for i, tensor in enumerate(case.args):
        in_memory = tensor.permute(order_of(tensor)).contiguous()
        in_memory.reshape(-1).view(torch.uint8).numpy().tofile(folder / f"in-{i}.bin")
    program, model, at = build.files["runner"], case.path, folder
    command = emulated(target)
    if target.kind == "wasm":  # this folder is the root of its file system
        for file in (program, model):
            shutil.copyfile(file, folder / file.name)
        command = ["node", "--no-warnings", str(Path(__file__).with_name("wasi.mjs")), str(folder)]
        program, model, at = Path(program.name), Path(model.name), Path()
    names = ",".join(str(at / f"in-{i}.bin") for i in range(len(case.args)))
    options = ["--inputs", names, "--output_file", at / "out", "--print_output", "none"]
    run(*command, program, "--model_path", model, *options)
    outputs = []
    for i, expected in enumerate(case.expected):
        data = (folder / f"out-{i}.bin").read_bytes()
        assert len(data) == expected.nbytes
        flat = torch.frombuffer(bytearray(data), dtype=expected.dtype) if data else expected.flatten()
        order = order_of(expected)
        shape = [expected.shape[d] for d in order]
        outputs.append(flat.reshape(shape).permute([order.index(d) for d in range(expected.dim())]))
    return outputs


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *with_gcc("aarch64-linux", "riscv64-linux"),
        # The core's tests below run on ARMv7 in the gate, and tests/models/test_32_bit.py on 32-bit x86.
        pytest.param("armv7-linux", "gcc", marks=pytest.mark.slow),
        WINDOWS,
        *with_zig("x86-64-linux-musl", "aarch64-linux", "armv7-linux", "x86-64-windows"),
        *with_zig("riscv64-linux", "riscv64-v-linux"),
    ],
)
def test_targets_match_host_results(
    name: str,
    kind: str,
    tmp_path: Path,
    mobilenet: Case,
    delegated: Case,
    operators: tuple[list, Case],
    chosen: Selection,
) -> None:
    target, folder = targets.find(name), tmp_path
    emulated(target)
    samples, calls = operators
    build = built(target, kind, chosen, folder)
    for case in (mobilenet, delegated):
        torch.testing.assert_close(
            outputs_of(build, target, case, folder), case.expected, rtol=1e-4, atol=1e-5
        )
    flat = iter(outputs_of(build, target, calls, folder))
    wrong = {
        str(sample): problem
        for sample in samples
        if (problem := parity.difference(sample, [next(flat) for _ in sample.eager()])) is not None
    }
    assert not wrong


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *with_gcc("aarch64-linux", "riscv64-linux"),
        pytest.param("armv7-linux", "gcc", marks=pytest.mark.slow),
        WINDOWS,
        *with_zig("x86-64-linux-musl", "aarch64-linux", "armv7-linux", "riscv64-linux", "riscv64-v-linux"),
        pytest.param("wasm32-wasi", "zig", marks=pytest.mark.slow),
    ],
)
def test_integer_results_are_bitwise_equal_on_targets(
    name: str,
    kind: str,
    tmp_path: Path,
    integers: list[Case],
    chosen: Selection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = targets.find(name)
    emulated(target)
    if target.kind == "wasm":  # other models are not run there
        chosen = selection.of_files([case.path for case in integers])
    if target.kind == "wasm" and shutil.which("node") is None:
        pytest.skip("Node.js is not installed (apt install nodejs)")
    build = built(target, kind, chosen, tmp_path)
    # with and without matmul and dot-product instructions, for static and dynamic layers
    for processor in ("max", "cortex-a76", "cortex-a53") if name == "aarch64-linux" else (None,):
        if processor is not None:
            monkeypatch.setenv("QEMU_CPU", processor)
        for case in integers:
            outputs = outputs_of(build, target, case, tmp_path)
            assert all(map(torch.equal, outputs, case.expected)), (processor, case.path)


@pytest.mark.parametrize(("name", "kind"), [*with_gcc("aarch64-linux"), *with_zig("aarch64-linux")])
def test_bfloat16_rows_do_not_depend_on_their_count(
    name: str, kind: str, tmp_path: Path, halves: Case, chosen: Selection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row is multiplied by bfdot, several rows by bfmmla."""
    target = targets.find(name)
    emulated(target)
    build = built(target, kind, chosen, tmp_path)
    monkeypatch.setenv("QEMU_CPU", "max")
    case = Case(halves.path, (torch.randn(13, 1542),), halves.expected)
    outputs = outputs_of(build, target, case, tmp_path)
    for i in range(0, len(outputs), len(Halves.COUNTS)):
        *fewer, all_rows = outputs[i : i + len(Halves.COUNTS)]
        assert all(torch.equal(rows, all_rows[: len(rows)]) for rows in fewer)
        assert all_rows.std() > 1


# tests/build/test_presets.py runs them on Windows, which has no weak platform functions.
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *with_gcc("armv7-linux"),
        *with_zig("aarch64-linux", "riscv64-linux", "x86-64-linux-musl"),
    ],
)
def test_the_runtimes_own_tests_pass_on(name: str, kind: str, tmp_path: Path) -> None:
    target, folder = targets.find(name), tmp_path
    command = emulated(target)
    driver = toolchain.find_compiler(target, named(target, kind))
    common = (*library.flags(small=False), f"-I{ROOT / 'tests' / 'runtime'}")
    tests = [
        toolchain.Unit(source, common) for source in sorted((ROOT / "tests" / "runtime").glob("*_test.cpp"))
    ]
    units = [*library.core_units("posix", common), *library.extension_units(target, common), *tests]
    program = folder / "core_tests"
    toolchain.link(driver, toolchain.compile_units(driver, units), program, link_flags(target, driver))
    file = ROOT / "tests" / "runtime" / "one_of_everything.pte"
    assert " 0 failures" in run(*command, program, file).stdout


class Products(torch.nn.Module):
    """Operators with scratch memory that depends on the vector width: matmuls and convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Conv2d(8, 24, 3, padding=1)
        self.back = torch.nn.ConvTranspose2d(24, 130, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.back(torch.relu(self.wide(x)))
        return y.flatten(1)[0, :12800].reshape(100, 128).t() @ y.flatten(1)[0, :3100].reshape(100, 31)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("armv7-linux", "gcc", marks=pytest.mark.slow),
        *with_zig("aarch64-linux", "riscv64-linux", "riscv64-v-linux"),
    ],
)
def test_the_memory_bill_is_exact(name: str, kind: str, tmp_path: Path) -> None:
    """Scratch memory is measured on this machine, with kernels of the same vector width."""
    torch.manual_seed(0)
    module, x, file = Products().eval(), torch.rand(1, 8, 12, 12), tmp_path / "model.pte"
    torchette.compile(
        module, (x,), config=ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass())
    ).save(file)
    with torch.no_grad():
        expected = module(x)
    target = targets.find(name)
    emulator = emulated(target)
    driver = toolchain.find_compiler(target, named(target, kind))
    common = (*library.flags(small=False), f"-I{ROOT}")
    units = library.units(target, selection.of_files([file]), "posix", common, small=False)
    own_sources = [ROOT / "tests/models/heapless.cpp", ROOT / "torchette/backends/null/runtime.cpp"]
    objects = toolchain.compile_units(
        driver, [*units, *(toolchain.Unit(path, common) for path in own_sources)]
    )
    # glibc's static library defines malloc next to __libc_malloc, which heapless.cpp calls: its own malloc is the first
    allowed = ["-Wl,--allow-multiple-definition"] if kind == "gcc" else []
    toolchain.link(driver, objects, tmp_path / "heapless", [*link_flags(target, driver), *allowed])
    (tmp_path / "in").write_bytes(x.numpy().tobytes())
    (bill,) = bills(file, name.removesuffix("-linux"))
    assert bill.temp is not None and bill.temp.least > 4096 and not bill.temp.unknown

    def outputs(method: int, temp: int, planned: list[int]) -> subprocess.CompletedProcess[str]:
        files = [tmp_path / name for name in ("heapless", "model.pte", "in", "out")]
        command = [*emulator, *files, method, temp, *planned]
        return subprocess.run([str(word) for word in command], capture_output=True, text=True)

    for temp in {bill.temp.most, bill.temp.least}:
        assert outputs(bill.method, temp, bill.planned).returncode == 0
        result = torch.frombuffer(bytearray((tmp_path / "out").read_bytes()), dtype=torch.float32)
        torch.testing.assert_close(result.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)
    assert outputs(bill.method - 1, bill.temp.most, bill.planned).returncode == 1
    less = outputs(bill.method, bill.temp.least - 1, bill.planned)
    assert less.returncode == 1 and f"at least {bill.temp.least} are needed" in less.stderr, less.stderr


@pytest.mark.slow
def test_ziglang_builds_x86_64_for_speed(tmp_path: Path) -> None:
    """For one instruction set level, because zig's library cannot detect the processor's level."""
    case = compiled(Product(), (torch.randn(40, 50), torch.randn(50, 30)), tmp_path / "product.pte")
    target = targets.find("x86-64-linux-musl")
    build = make(target, selection.of_files([case.path]), tmp_path / "build", small=False)
    torch.testing.assert_close(outputs_of(build, target, case, tmp_path), case.expected)


@pytest.mark.slow  # ziglang compiles its libraries first
def test_macos_program_has_macho_header(tmp_path: Path) -> None:
    """Checks only the file; this machine cannot run it."""
    case = compiled(Product(), (torch.ones(2, 2), torch.ones(2, 2)), tmp_path / "product.pte")
    build = make(
        targets.find("aarch64-macos"), selection.of_files([case.path]), tmp_path / "build", small=True
    )
    magic, processor, _, kind = struct.unpack_from("<4I", build.files["runner"].read_bytes())
    assert (magic, processor, kind) == (0xFEEDFACF, 0x0100000C, 2)  # 64 bits, ARM, an executable
    assert build.files["library"].stat().st_size > 100_000


def test_program_with_missing_operators_raises(tmp_path: Path) -> None:
    """On the host: a missing operator, and a missing dtype of an included operator."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")

    class Sum(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    class Times(torch.nn.Module):
        def forward(self, x, y):
            return x * y

    pair = (torch.ones(3), torch.ones(3))
    integers = (torch.ones(3, dtype=torch.int64), torch.ones(3, dtype=torch.int64))
    built_for = compiled(Sum(), pair, tmp_path / "sum.pte")
    target = targets.find("host")
    build = make(target, selection.of_files([built_for.path]), tmp_path / "build", small=True)
    assert [cost.name for cost in build.footprint.kernels] == ["aten::add.out"]
    torch.testing.assert_close(outputs_of(build, target, built_for, tmp_path), built_for.expected)

    def refusal(case: Case) -> str:
        return run(build.files["runner"], "--model_path", case.path, status=1).stderr

    assert "there is no kernel for aten::mul.out: add it with torchette build --ops" in refusal(
        compiled(Times(), pair, tmp_path / "mul.pte")
    )
    of_other_type = refusal(compiled(Sum(), integers, tmp_path / "whole.pte"))
    assert "aten::add.out for dtype 4 is not in this build" in of_other_type and "--dtypes" in of_other_type


def test_library_contains_only_selected_kernels(tmp_path: Path) -> None:
    if shutil.which("c++") is None or shutil.which("nm") is None:
        pytest.skip("no C++ compiler")
    target = targets.find("host")
    operators = frozenset(["aten::mm.out", "aten::add.out"])
    bytes_of = {}
    for dtypes in (frozenset(["float32"]), frozenset(["float32", "float64", "int64", "float16"])):
        build = make(target, Selection(operators, dtypes), tmp_path / str(len(dtypes)), small=True)
        symbols = subprocess.run(
            ["nm", "-C", build.files["library"]], capture_output=True, text=True, check=True
        )
        boxed = {
            line.split("torchette::Boxed<&")[1] for line in symbols.stdout.splitlines() if "Boxed<&" in line
        }
        assert {re.match(r"\w+", name.split("::")[2])[0] for name in boxed} == {"mm_out", "add_out"}
        assert {cost.name for cost in build.footprint.kernels} == operators
        bytes_of[len(dtypes)] = build.footprint.shared + sum(c.own for c in build.footprint.kernels)
    assert bytes_of[1] < bytes_of[4]


def test_board_image_matches_host_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("arm-none-eabi-g++") is None or shutil.which("qemu-system-arm") is None:
        pytest.skip("./dev tools installs the compiler and the emulator")
    case = compiled(torch.nn.Softmax(-1), (torch.randn(2, 5),), tmp_path / "soft.pte")
    words = ["build", "--target", "cortex-m4", "--compiler", "arm-none-eabi-", str(case.path)]
    assert cli.main([*words, "-o", str(tmp_path / "made")]) == 0
    image = tmp_path / "made" / "images" / "soft" / "soft.elf"
    printed = run(*boards.find("mps2-an386").emulator, image).stderr
    assert "10 values are equal to the expected values" in printed
    # the linker reports the exact size of the missing flash
    flash = 20_000
    words += ["-o", str(tmp_path / "short"), "--flash"]
    capsys.readouterr()
    assert cli.main([*words, str(flash)]) == 2
    missing = int(
        re.search(r"FLASH is ([\d,]+) bytes too small", capsys.readouterr().err)[1].replace(",", "")
    )
    assert cli.main([*words, str(flash + missing)]) == 0
    assert cli.main([*words, str(flash + missing - 4)]) == 2
    assert "FLASH is 4 bytes too small" in capsys.readouterr().err


@pytest.mark.slow
def test_images_are_optimised_for_size_or_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("arm-none-eabi-g++") is None or shutil.which("qemu-system-arm") is None:
        pytest.skip("./dev tools installs the compiler and the emulator")
    case = compiled(torch.nn.Softmax(-1), (torch.randn(2, 5),), tmp_path / "soft.pte")
    words = ["build", "--target", "cortex-m4", "--compiler", "arm-none-eabi-", str(case.path)]
    flash = {}
    for goal in ("size", "speed"):
        assert cli.main([*words, "-o", str(tmp_path / goal), "--optimize", goal]) == 0
        flash[goal] = int(re.search(r"([\d,]+) bytes of flash", capsys.readouterr().err)[1].replace(",", ""))
        image = tmp_path / goal / "images" / "soft" / "soft.elf"
        assert "10 values are equal" in run(*boards.find("mps2-an386").emulator, image).stderr
    assert flash["size"] < flash["speed"]


@pytest.mark.gate
def test_project_finds_build_and_its_compiler(tmp_path: Path) -> None:
    """docs/cpp.md and docs/cross-compile.md: find_package and the toolchain file that `torchette build` writes; and CMake's
    own build of the core with selection.h."""
    target = targets.find("aarch64-linux")
    emulated(target)
    compiler = named(target, "gcc")
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("no cmake and ninja")
    chosen = Selection(frozenset(["aten::add.out"]), frozenset(["float32"]))
    result = make(target, chosen, tmp_path / "made", compiler=compiler)
    project = tmp_path / "project"
    project.mkdir()
    (project / "main.cpp").write_text(
        '#include <cstdio>\n#include "torchette/runtime/kernel.h"\n'
        "int main() {\n  for (const torchette::Kernels& family : torchette::kernel_table())\n"
        "    for (const torchette::Kernel& kernel : family) std::puts(kernel.name);\n  return 0;\n}\n"
    )
    page = (ROOT / "docs" / "cpp.md").read_text()
    (project / "CMakeLists.txt").write_text(page.split("```cmake\n")[1].split("```")[0])
    options = [f"-DCMAKE_TOOLCHAIN_FILE={result.files['toolchain']}", "-G", "Ninja"]
    build = tmp_path / "build"
    run("cmake", "-S", project, "-B", build, *options, f"-DCMAKE_PREFIX_PATH={tmp_path / 'made'}")
    run("cmake", "--build", build)
    toolchain_file = result.files["toolchain"].read_text()
    emulator = re.search(r'EMULATOR "(.+)"', toolchain_file)[1].split(";")
    assert run(*emulator, build / "app").stdout == "aten::add.out\n"
    folder = BUILD.with_name(
        "cross"
    )  # in the checkout, where the compiler cache finds the same command lines
    with locked(folder):
        tree = folder / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir()
        shutil.copyfile(result.files["selection"], tree / "selection.h")
        ours = [*options, f"-DTORCHETTE_SELECTION={tree / 'selection.h'}", "-DTORCHETTE_BUILD_PYTHON=OFF"]
        run("cmake", "-S", ROOT, "-B", tree, *ours, f"-DPython_EXECUTABLE={sys.executable}")
        run("cmake", "--build", tree, "--target", "torchette_core")
        assert list(tree.glob("libtorchette_core.a"))


@pytest.mark.slow
def test_cmake_builds_runtime_with_custom_compiler(tmp_path: Path) -> None:
    """docs/cross-compile.md: a toolchain file for a board, and an application that includes the checkout."""
    if shutil.which("arm-none-eabi-g++") is None:
        pytest.skip("./dev tools installs arm-none-eabi-g++")
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        pytest.skip("no cmake and ninja")
    page = (ROOT / "docs" / "cross-compile.md").read_text()
    (tmp_path / "my-board.cmake").write_text(re.search(r"```cmake\n(# my-board.*?)```", page, re.S)[1])
    chosen = Selection(frozenset(["aten::add.out"]), frozenset(["float32"]))
    (tmp_path / "selection.h").write_text(chosen.header())
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(app LANGUAGES CXX)\n"
        f"add_subdirectory({ROOT} torchette EXCLUDE_FROM_ALL)\nadd_executable(app main.cpp)\n"
        "target_link_libraries(app PRIVATE torchette_core torchette_kernels m c nosys gcc)\n"
        "target_link_options(app PRIVATE -nodefaultlibs -Wl,--gc-sections)\n"
    )
    (tmp_path / "main.cpp").write_text(
        '#include "torchette/runtime/kernel_registry.h"\n'
        'int main() { return torchette::find_kernel("aten::add.out") == nullptr; }\n'
    )
    command = re.search(r"^cmake -B build (.*my-board.*)$", page, re.M)[1].replace("made/m4/", "")
    options = command.replace("$PWD", str(tmp_path)).split()
    build = tmp_path / "build"
    run(
        "cmake", "-G", "Ninja", "-S", tmp_path, "-B", build, *options, f"-DPython_EXECUTABLE={sys.executable}"
    )
    run("cmake", "--build", build)
    symbols = run("arm-none-eabi-nm", "-C", build / "app").stdout
    assert "add_out" in symbols and "mul_out" not in symbols
