# SPDX-License-Identifier: BSD-3-Clause
# In: nothing. Out: four speech models in the form of their families, with random weights, and the arguments of one call.
"""The speech models of `./dev bench peers`: a vocoder, a bidirectional LSTM, a voice activity detector and a Conformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Vocoder(nn.Module):
    """A HiFi-GAN generator: mel bands float32 [1, 80, T] -> samples [1, 1, 256 T].

    Each stage upsamples by a transposed convolution and averages residual blocks of different kernel sizes.
    """

    def __init__(self, width: int = 128, factors: tuple[int, ...] = (8, 8, 4)) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for factor in factors:
            self.ups.append(nn.ConvTranspose1d(width, width // 2, 2 * factor, factor, padding=factor // 2))
            width //= 2
            self.blocks.append(nn.ModuleList(_residual(width, kernel) for kernel in (3, 7)))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.first(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            x = sum(_add_each(block, x) for block in blocks) / len(blocks)
        return torch.tanh(self.last(functional.leaky_relu(x)))


def _residual(width: int, kernel: int) -> nn.ModuleList:
    """Returns the dilated convolutions of a residual block."""
    return nn.ModuleList(
        nn.Sequential(
            nn.LeakyReLU(0.1),
            nn.Conv1d(width, width, kernel, dilation=dilation, padding=(kernel - 1) // 2 * dilation),
            nn.LeakyReLU(0.1),
            nn.Conv1d(width, width, kernel, padding=(kernel - 1) // 2),
        )
        for dilation in (1, 3, 5)
    )


def _add_each(block: nn.ModuleList, x: Tensor) -> Tensor:
    for part in block:
        x = x + part(x)
    return x


class BidirectionalLstm(nn.Module):
    """An acoustic model: features float32 [1, T, 80] -> scores [1, T, 41]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(80, 256, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(512, 41)

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.layers(features)[0])


class VoiceActivity(nn.Module):
    """A detector on 32 ms of 16 kHz audio with state: samples float32 [1, 576], hidden and cell [1, 128] -> probability [1, 1] and
    the new state."""

    def __init__(self) -> None:
        super().__init__()
        self.spectrum = nn.Conv1d(1, 258, 256, stride=128, bias=False)  # real and imaginary parts
        widths = (129, 128, 64, 64, 128)
        self.encoder = nn.Sequential(
            *(
                layer
                for i, stride in enumerate((1, 2, 2, 1))
                for layer in (nn.Conv1d(widths[i], widths[i + 1], 3, stride, padding=1), nn.ReLU())
            )
        )
        self.cell = nn.LSTMCell(128, 128)
        self.head = nn.Linear(128, 1)

    def forward(self, samples: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        real, imaginary = self.spectrum(samples[:, None]).chunk(2, dim=1)
        encoded = self.encoder(torch.sqrt(real * real + imaginary * imaginary + 1e-9))
        hidden, cell = self.cell(encoded.mean(-1), (hidden, cell))
        return torch.sigmoid(self.head(torch.relu(hidden))), hidden, cell


class Conformer(nn.Module):
    """The encoder layers of a small Conformer: float32 [1, T, 176] -> [1, T, 176]."""

    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ConformerLayer() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class ConformerLayer(nn.Module):
    """Half a feedforward layer, attention, a gated depthwise convolution, and the other half."""

    def __init__(self, width: int = 176, heads: int = 4, kernel: int = 31) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = (
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
            )
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.inputs, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.down = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise = nn.Sequential(
            nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width),
            nn.BatchNorm1d(width),
            nn.SiLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x) / 2
        query, key, value = self.inputs(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        mixed = functional.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (query, key, value)))
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        gated = functional.glu(self.gate(self.norms[1](x).transpose(1, 2)), dim=1)
        x = x + self.down(self.depthwise(gated)).transpose(1, 2)
        return self.norms[2](x + self.second(x) / 2)


def vocoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Vocoder(), (torch.randn(1, 80, 32),)


def bilstm() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return BidirectionalLstm(), (torch.randn(1, 100, 80),)


def voice_activity() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return VoiceActivity(), (torch.randn(1, 576), torch.randn(1, 128) / 4, torch.randn(1, 128) / 4)


def conformer() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Conformer(), (torch.randn(1, 100, 176),)


BUILDERS = {builder.__name__: builder for builder in (vocoder, bilstm, voice_activity, conformer)}
