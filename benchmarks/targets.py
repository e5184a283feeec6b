# SPDX-License-Identifier: BSD-3-Clause
# In: networks and targets. Out: instructions of one inference with the CPU engine and with the portable kernels, counted under qemu
# (for WebAssembly: milliseconds in Node.js). The outputs of both are compared.
"""The CPU engine compared with the portable kernels on other processors: instructions of one inference, under emulators."""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchette.build.bare.counter import count_plugin

if TYPE_CHECKING:
    from torchette.targets import Target

HERE = Path(__file__).parent
BACKENDS = ("cpu", "portable")
TARGETS = (
    "aarch64-linux",
    "armv7-linux",
    "riscv64-linux",
    "riscv64-v-linux",
    "wasm32-wasi",
    "mps2-an386",
    "mps2-an500",
    "mps3-an547",
)
MODELS = (
    "digits",
    "keyword_spotting",
    "keyword_spotting_int8",
    "mobilenet_v3_small",
    "mobilenet_v3_small_int8",
    "vit",
    "decoder",
    "lstm",
)
ON_BOARDS = ("digits", "keyword_spotting", "keyword_spotting_int8")
INTEGERS, HALVES = "_int8", "_bfloat16"  # suffixes of a network in static int8, and with precision="bfloat16"


def in_float32(name: str) -> str:
    """Returns the name of the float32 network."""
    return name.removesuffix(INTEGERS).removesuffix(HALVES)


def network(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Returns a network that an emulator runs in seconds: one of the zoo with small images, or a small one."""
    import torch

    from tests.models import zoo

    torch.manual_seed(0)
    name = in_float32(name)
    if name == "linear":
        return torch.nn.Linear(384, 384).eval(), (torch.randn(128, 384),)
    if name == "vit":
        zoo.declare_torchvision_operators()
        import timm

        sizes = {"img_size": 64, "patch_size": 16, "embed_dim": 96, "depth": 3, "num_heads": 3}
        return timm.models.VisionTransformer(**sizes, num_classes=10).eval(), (torch.randn(1, 3, 64, 64),)
    if name == "decoder":
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
        )  # fmt: skip
        return logits_of(LlamaForCausalLM(config).eval()), (torch.randint(0, 256, (1, 16)),)
    module, args = zoo.build(name)
    return module, (torch.randn(1, 3, 64, 64),) if args[0].shape[-1] == 224 else args


def logits_of(model: Any) -> Any:
    """A module that returns the first output of a language model."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=tokens).logits

    return Module()


def main(arguments: list[str] | None = None) -> int:
    from torchette import targets

    parser = argparse.ArgumentParser(prog="./dev bench targets", description=__doc__)
    parser.add_argument(
        "targets", nargs="*", default=TARGETS, help=f"machines and boards, of {' '.join(TARGETS)}"
    )
    parser.add_argument("--models", default=",".join(MODELS), help=f"default: {','.join(MODELS)}")
    parser.add_argument("--gcc", action="store_true", help="with Debian's cross compilers (default: ziglang)")
    options = parser.parse_args(arguments)
    names = options.models.split(",")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            save(name, Path(folder))
        print(
            f"{'':16}{'':30}{'':14}"
            + "".join(f"{side:>16}" for side in BACKENDS)
            + f"{'ratio':>8}{'of float32':>12}"
        )
        for where in options.targets:
            board = where not in targets.TARGETS
            chosen = [name for name in names if not board or name in ON_BOARDS]
            costs = (of_board if board else of_target)(where, chosen, Path(folder), options.gcc)
            engines = {name: engine for name, (_, engine, _) in zip(chosen, costs, strict=True)}
            for name, (unit, engine, portable) in zip(chosen, costs, strict=True):
                digits = ",.6g" if unit == "milliseconds" else ",.0f"
                floats = engines.get(in_float32(name)) if name != in_float32(name) else None
                print(
                    f"{where:16}{name:30}{unit:14}{engine:16{digits}}{portable:16{digits}}{engine / portable:8.2f}"
                    + (f"{engine / floats:12.2f}" if floats else ""),
                    flush=True,
                )
    return 0


def save(name: str, folder: Path) -> None:
    """Returns the network compiled for each side, its inputs, and the outputs on this machine."""
    import torchette

    module, args = network(name)
    how: dict[str, Any] = {}
    if name.endswith(INTEGERS):
        from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config

        quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
        how = {"quantizer": quantizer, "calibration": [args]}
    answers: dict[str, np.ndarray] = {}
    for i, tensor in enumerate(args):
        tensor.numpy().tofile(folder / f"{name}-in{i}.bin")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for backend in BACKENDS:
            halves = {"precision": "bfloat16"} if name.endswith(HALVES) and backend == "cpu" else {}
            model = torchette.compile(module, args, backend=backend, **how, **halves)
            model.save(folder / f"{name}-{backend}.pte")
            answers[backend] = np.asarray(model(*args))
    for backend in BACKENDS:  # in int8, another rounding of an accumulator may change the output by steps
        expected = answers[backend if how else "portable"]
        expected.tofile(folder / f"{name}-{backend}-expected.bin")


def of_target(where: str, names: Sequence[str], folder: Path, gcc: bool) -> list[tuple[str, float, float]]:
    """Measures each network on a target with an operating system, with one program for all networks."""
    from torchette import targets
    from torchette.build import selection
    from torchette.build.make import make

    target = targets.find(where)
    files = [folder / f"{name}-{side}.pte" for name in names for side in BACKENDS]
    compiler = target.gcc if gcc else None
    build = make(target, selection.of_files(files), folder / where, compiler=compiler, small=False)
    program = build.files["runner"]
    if target.kind == "wasm":
        shutil.copy(program, folder / program.name)
        return [("milliseconds", *milliseconds(name, program.name, folder)) for name in names]
    plugin = count_plugin(folder)
    costs = []
    for name in names:
        pair = []
        for side in BACKENDS:
            counts = [executed(target, program, plugin, name, side, count, folder) for count in (1, 3)]
            pair.append((counts[1] - counts[0]) / 2)
        costs.append(("instructions", *pair))
    return costs


def words_of(name: str, side: str, folder: Path, at: str) -> list[str]:
    inputs = ",".join(f"{at}{path.name}" for path in sorted(folder.glob(f"{name}-in*.bin")))
    words = ["--model_path", f"{at}{name}-{side}.pte", "--inputs", inputs, "--print_output", "none"]
    return [*words, "--output_file", f"{at}out", "--cpu_threads", "1"]


def check(name: str, side: str, folder: Path) -> None:
    """Exits if the program's output differs from the output on this machine."""
    actual = np.fromfile(folder / "out-0.bin", np.float32)
    expected = np.fromfile(folder / f"{name}-{side}-expected.bin", np.float32)
    tolerances = (1e-3, 1e-4) if not name.endswith(HALVES) else (0, 0.02 * np.abs(expected).max())
    if not np.allclose(actual, expected, *tolerances):
        raise SystemExit(f"{name}, {side}: differs by {np.abs(actual - expected).max()}")


def executed(
    target: Target, program: Path, plugin: Path, name: str, side: str, count: int, folder: Path
) -> int:
    """Returns the instructions of the program with `count` inferences."""
    command: list[str | Path] = [*target.emulator, "-plugin", plugin, program]
    command += [*words_of(name, side, folder, f"{folder}/"), "--num_executions", str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    check(name, side, folder)
    return int(re.search(r"instructions (\d+)", done.stderr)[1])  # type: ignore[index]


def milliseconds(name: str, program: str, folder: Path, rounds: int = 5) -> list[float]:
    """Returns the minimum of some alternating rounds in Node.js."""
    runner = HERE.parent / "tests" / "build" / "wasi.mjs"
    best = [math.inf] * len(BACKENDS)
    for _ in range(rounds):
        for i, side in enumerate(BACKENDS):
            command = ["node", "--no-warnings", runner, folder, program, *words_of(name, side, folder, "")]
            done = subprocess.run(
                [*command, "--num_executions", "10", "--json"], check=True, capture_output=True, text=True
            )
            check(name, side, folder)
            best[i] = min(best[i], json.loads(done.stdout)["execute_ms"]["best"])
    return best


def of_board(where: str, names: Sequence[str], folder: Path, gcc: bool) -> list[tuple[str, float, float]]:
    """Measures the image of each network on a board: all instructions, with the load and one inference."""
    from torchette import targets
    from torchette.build import selection, toolchain
    from torchette.build.bare import boards
    from torchette.build.bare.image import build_image
    from torchette.build.bare.project import Application

    board, plugin = boards.find(where), count_plugin(folder)
    target = targets.find(board.target)
    compiler = toolchain.find_compiler(target, target.gcc if gcc else None)
    costs = []
    for name in names:
        pair, sizes = [], []
        for side in BACKENDS:
            model = folder / f"{name}-{side}.pte"
            application = Application(model, board, name, board.stack)
            image = build_image(
                application, compiler, selection.of_file(model), folder / where / name / side, log_level=0
            )
            command = [*board.emulator, image.path, "-plugin", plugin]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            pair.append(int(re.search(r"instructions (\d+)", done.stderr)[1]))  # type: ignore[index]
            sizes.append((image.flash, image.ram))
        costs.append(("instructions", *pair))
        print(
            f"{where:16}{name:30}"
            + ", ".join(
                f"{side}: {flash:,} flash, {ram:,} RAM" for side, (flash, ram) in zip(BACKENDS, sizes)
            )
        )
    return costs
