# SPDX-License-Identifier: BSD-3-Clause
# In: a folder. Out: digits.pte, a network that classifies digits, and seven.f32, an image of 64 floats that is not in the training
# set.
"""python examples/digits/make.py FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "web"))

import train

import torchette


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images, digits = train.data(held_back=True)
    torchette.compile(train.trained(), (images[:1],)).save(folder / "digits.pte")
    images[digits == 7][0].numpy().astype("<f4").tofile(folder / "seven.f32")
    print(f"{folder / 'digits.pte'} {folder / 'seven.f32'}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
