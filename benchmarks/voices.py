# SPDX-License-Identifier: BSD-3-Clause
# In: the weights in the wheel of resemblyzer, which is not imported, because it has many dependencies. Out: its speaker encoder
# (Wan et al., 2018, three LSTMs), and synthetic voices for its evaluation.
"""`build() -> Trained`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tests.models import trained

_RATE, _NUM_FRAMES, _CHANNELS = 16_000, 160, 40  # samples per second; a frame is 10 ms
_NUM_PAIRS, _NUM_CALIBRATION_PAIRS = 40, 8


class VoiceEncoder(nn.Module):
    """Mel spectrograms [n, 160, 40] -> vectors of length 1 [n, 256]. The names are those of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(_CHANNELS, 256, 3, batch_first=True), nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        _, (hidden, _) = self.lstm(mels)
        return nn.functional.normalize(self.linear(hidden[-1]).relu())


def build() -> trained.Trained:
    """Returns the trained network. Raises MissingPackageError if resemblyzer is not installed."""
    module = VoiceEncoder()
    path = trained.folder_of("resemblyzer") / "pretrained.pt"
    stored = torch.load(path, map_location="cpu", weights_only=True)
    weights = {name: stored["model_state"][name] for name in module.state_dict()}
    module.load_state_dict(weights)
    draws = torch.Generator().manual_seed(0)
    sounds = torch.stack([_voice(draws) for _ in range(2 * (_NUM_PAIRS + _NUM_CALIBRATION_PAIRS))])
    calls = [(one,) for one in _mels(sounds).split(1)]
    judged = 2 * _NUM_PAIRS
    return trained.Trained(module.eval().requires_grad_(False), calls[judged:], calls[:judged], last="linear")


def _voice(draws: torch.Generator) -> Tensor:
    """Returns 1.6 seconds of vowels: pulses of varying pitch through three resonances, which change every fifth of a second."""

    def between(low: float, high: float, count: int = 1) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=draws)

    count = _NUM_FRAMES * _RATE // 100
    time = torch.arange(count) / _RATE
    pitch = between(80, 260) * (1 + 0.1 * torch.sin(2 * math.pi * between(0.5, 3) * time))
    phase = 2 * math.pi * torch.cumsum(pitch, 0) / _RATE
    tract = between(0.85, 1.2)
    formants = torch.stack([between(*span, 8) for span in ((250, 850), (850, 2400), (2300, 3300))])
    formants = tract * nn.functional.interpolate(formants[None], count, mode="linear")[0]
    sound = torch.zeros(count)
    for harmonic in range(1, 31):
        at = harmonic * pitch
        gain = (1 / (1 + ((at - formants) / 80) ** 2)).sum(0) * (at < _RATE / 2)
        sound += gain / harmonic * torch.sin(harmonic * phase)
    sound += 0.003 * torch.randn(count, generator=draws)
    return sound * 10 ** (-30 / 20) / sound.square().mean().sqrt()


def _mels(sounds: Tensor) -> Tensor:
    """Returns the power of 40 bands of equal width on Slaney's mel scale, in 160 frames."""
    window = torch.hann_window(400)
    spectrum = torch.stft(sounds, 400, 160, window=window, pad_mode="constant", return_complex=True)
    power = spectrum.abs().square()[:, :, :_NUM_FRAMES]
    step = math.log(6.4) / 27

    def hertz(mel: Tensor) -> Tensor:
        return torch.where(mel < 15, mel * (200 / 3), 1000 * torch.exp(step * (mel - 15)))

    edges = hertz(torch.linspace(0, 15 + math.log(_RATE / 2 / 1000) / step, _CHANNELS + 2))
    bins = torch.arange(201) * (_RATE / 400)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    bands = torch.minimum(rising, falling).clamp(min=0) * (2 / (edges[2:] - edges[:-2]))[:, None]
    return (bands @ power).transpose(1, 2).contiguous()
