# SPDX-License-Identifier: BSD-3-Clause
# Small networks and their inputs, for tests that compare Vulkan programs with eager.
from __future__ import annotations

import torch
from torch import nn


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)
        self.deep, self.wide = nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Conv2d(16, 24, 1)
        self.head = nn.Linear(24, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        y = nn.functional.relu6(self.deep(x))
        x = nn.functional.max_pool2d(self.wide(x + y), 2)
        x = x * torch.sigmoid(x.mean((2, 3), keepdim=True))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)).softmax(-1)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu")
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 30)

    def forward(self, words):
        x = self.table(words) * 4 + torch.arange(words.shape[1])[:, None] / 10
        return self.out(self.norm(self.layer(x)))


class Shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        x = torch.stack([self.left(a), self.right(b)], 2)
        return x.transpose(1, 2).flatten(1, 2)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(12, 20), nn.Linear(12, 20), nn.Linear(20, 12)
        self.weight = nn.Parameter(torch.rand(12))

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Excited(nn.Module):
    """A stem, an inverted bottleneck with squeeze-and-excitation, and a residual block with a divided reduction."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 36, 3, 2, 1), nn.Conv2d(36, 36, 5, 1, 2, groups=36)
        self.down, self.up = nn.Conv2d(36, 9, 1), nn.Conv2d(9, 36, 1)
        self.out, self.again = nn.Conv2d(36, 64, 1, bias=False), nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x):
        x = nn.functional.hardswish(self.deep(nn.functional.silu(self.stem(x))))
        gate = torch.sigmoid(self.up(nn.functional.silu(self.down(x.mean((2, 3), keepdim=True)))))
        x = self.out(x * gate)
        return torch.relu(x + self.again(x))


def networks() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """Returns modules in eval mode with random statistics, and inputs; the same in each call."""
    torch.manual_seed(0)
    image = torch.randn(2, 3, 24, 20)
    result: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {
        "perceptron": (
            nn.Sequential(nn.Linear(8, 40), nn.GELU(), nn.Linear(40, 4), nn.Tanh()),
            (torch.randn(9, 8),),
        ),
        "vision": (Vision(), (image,)),
        "words": (Words(), (torch.randint(0, 30, (2, 7)),)),
        "decoder": (
            nn.TransformerDecoderLayer(16, 2, 32, batch_first=True),
            (torch.randn(1, 7, 16), torch.randn(1, 5, 16)),
        ),
        "shuffle": (Shuffle(), (torch.randn(1, 8, 6, 5),)),
        "gated": (Gated(), (torch.randn(2, 3, 12),)),
        "upsampling": (
            nn.Sequential(
                nn.ConvTranspose2d(3, 6, 3, 2, 1),
                nn.LeakyReLU(0.2),
                nn.Upsample(scale_factor=2),
                nn.Conv2d(6, 3, 1),
            ),
            (image,),
        ),
        "groups": (
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.AvgPool2d(2), nn.Hardswish()),
            (image,),
        ),
        "excited": (Excited(), (image,)),
        "sound": (
            nn.Sequential(
                nn.Conv1d(2, 8, 5, 2), nn.ELU(), nn.Conv1d(8, 8, 3, groups=8), nn.ConvTranspose1d(8, 2, 4, 2)
            ),
            (torch.randn(1, 2, 33),),
        ),
    }
    for module, _ in result.values():
        module.eval()
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                nn.init.normal_(part.running_mean), nn.init.uniform_(part.running_var, 0.5, 2)
    return result


NAMES = tuple(networks())
