# SPDX-License-Identifier: BSD-3-Clause
# In: a folder, a model and a board. Out: a project in that folder that builds an image of the model and runs it.
"""Create a project: firmware for a microcontroller around a model

Writes sources, linker script and Makefile that do not require this package: `make` builds the image with
arm-none-eabi-g++ or ziglang, `make run` runs it in the emulator. The image compares its results with those of the
model on this machine. Without a model, the image computes the sine.

examples:
  torchette new mcu firmware net.pte
  torchette new mcu firmware net.pte --board mps3-an547
  torchette new mcu firmware net.pte --board rp2040                                         a Raspberry Pi Pico
  torchette new mcu firmware net.pte --board mps2-an386 --flash 512K@0x08000000 --ram 128K  an STM32F446 (Nucleo)
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

from torchette.cli import DONE, _board


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=["mcu"], help="the kind of project")
    parser.add_argument("folder", metavar="DIR", type=Path, help="a new or empty folder")
    parser.add_argument("model", metavar="MODEL.pte", type=Path, nargs="?", help="a compiled model")
    _board.arguments(parser)
    parser.add_argument("--name", help="name of the image (default: that of the model)")


def run(options: argparse.Namespace) -> int:
    from torchette.build.bare.project import Application, new_project
    from torchette.devtools.embed import identifier

    board, stack, temp = _board.chosen(options, _board.DEFAULT)
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or _sine(Path(folder))
        application = Application(model, board, identifier(options.name or model.stem), stack, temp)
        new_project(application, options.folder)
    print(f"{options.folder}: {application.name} for {board.name}, {board.text}")
    print(f"make -C {options.folder}" + (" run" if board.emulator else " uf2" if board.uf2_family else ""))
    return DONE


def _sine(folder: Path) -> Path:
    """Compiles a network that approximates sin(pi x) over [-1, 1] piecewise linearly, with one hidden layer."""
    import math

    import torch

    import torchette

    pieces = 16
    knots = [2 * i / pieces - 1 for i in range(pieces + 1)]
    slopes = [
        (math.sin(math.pi * b) - math.sin(math.pi * a)) * pieces / 2 for a, b in itertools.pairwise(knots)
    ]
    bends = [slopes[0], *(b - a for a, b in itertools.pairwise(slopes))]
    bent, summed = torch.nn.Linear(1, pieces), torch.nn.Linear(pieces, 1)
    net = torch.nn.Sequential(bent, torch.nn.ReLU(), summed).eval()
    with torch.no_grad():
        bent.weight.fill_(1)
        bent.bias.copy_(-torch.tensor(knots[:-1]))
        summed.weight.copy_(torch.tensor([bends]))
        summed.bias.zero_()
    torchette.compile(net, (torch.zeros(16, 1),)).save(folder / "sine.pte")
    return folder / "sine.pte"
