# SPDX-License-Identifier: BSD-3-Clause
# In: scikit-learn's handwritten digits. Out: a network that classifies images of 8 x 8 pixels; its training is reproducible.
"""The digits network: 64 values from 0 (paper) to 1 (ink), row by row -> ten probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def data(held_back: bool) -> tuple[Tensor, Tensor]:
    """Returns images float32 [n, 64] and digits int64 [n], for training and for evaluation; every fifth is for evaluation."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    chosen = (torch.arange(len(loaded.target)) % 5 == 0) == held_back
    return torch.from_numpy(loaded.data).float()[chosen] / 16, torch.from_numpy(loaded.target).long()[chosen]


def shaken(images: Tensor) -> Tensor:
    """Returns each image with a small random rotation, slant, scale and shift, to imitate other handwriting."""
    count = len(images)
    angle = torch.randn(count) * math.radians(8)
    slant, wide, high = torch.randn(count) * 0.15, 1 + torch.randn(count) * 0.1, 1 + torch.randn(count) * 0.08
    move = torch.randn(count, 2) * 0.06
    matrix = torch.stack(
        [
            torch.stack([wide * angle.cos(), slant - angle.sin(), move[:, 0]], 1),
            torch.stack([angle.sin(), high * angle.cos(), move[:, 1]], 1),
        ],
        1,
    )
    grid = nn.functional.affine_grid(matrix, [count, 1, 8, 8], align_corners=False)
    moved = nn.functional.grid_sample(images.view(-1, 1, 8, 8), grid, align_corners=False)
    return (moved.flatten(1) * (0.8 + 0.4 * torch.rand(count, 1))).clamp(0, 1)


def trained(steps: int = 600) -> nn.Module:
    """Returns the network, trained with a fixed seed on one thread, so that its weights are reproducible."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        images, digits = data(held_back=False)
        layers = [nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10)]
        network = nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
        for _ in range(steps):
            chosen = torch.randint(len(images), (256,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(
                network(shaken(images[chosen])), digits[chosen], label_smoothing=0.02
            )
            loss.backward()
            optimizer.step()
            schedule.step()
    torch.set_num_threads(threads)
    return nn.Sequential(network, nn.Softmax(dim=-1)).eval()
