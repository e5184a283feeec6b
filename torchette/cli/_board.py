# SPDX-License-Identifier: BSD-3-Clause
# In: a command line. Out: a board with the memories, stack and scratch memory of the options.
"""The options of verbs that build images for boards."""

from __future__ import annotations

import argparse
import dataclasses

from torchette.build.bare import boards
from torchette.build.bare.boards import Board
from torchette.cli import UsageError

DEFAULT = "mps2-an386"


def arguments(parser: argparse._ActionsContainer) -> None:
    """Declares the options for the board of an image."""
    parser.add_argument(
        "--board", help="the board (default: a board with the target's processor, mps2-an386)"
    )
    parser.add_argument("--flash", metavar="SIZE[@ADDRESS]", help="the flash of your board, if it differs")
    parser.add_argument("--ram", metavar="SIZE[@ADDRESS]", help="the RAM of your board, if it differs")
    parser.add_argument(
        "--stack", metavar="SIZE", help="bytes of the stack (default: 16K; 4K on boards with 16K of RAM)"
    )
    parser.add_argument(
        "--temp", default="most", metavar="BYTES", help="bytes of the temp pool, or most (default) or least"
    )


def chosen(options: argparse.Namespace, default: str) -> tuple[Board, int, str | int]:
    """Returns the board with the memories of the options, and the bytes of the stack and of the temp pool."""
    board = boards.find(options.board or default)
    if options.flash:
        board = dataclasses.replace(board, flash=boards.region(options.flash, board.flash.origin))
    if options.ram:
        board = dataclasses.replace(board, ram=boards.region(options.ram, board.ram.origin))
    if not options.temp.isdigit() and options.temp not in ("most", "least"):
        raise UsageError(f"--temp must be a number of bytes, most or least, got {options.temp!r}")
    temp = int(options.temp) if options.temp.isdigit() else options.temp
    return board, boards.region(options.stack).size if options.stack else board.stack, temp
