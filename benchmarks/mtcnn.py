# SPDX-License-Identifier: BSD-3-Clause
# In: the weights in the wheel of facenet-pytorch and the images in that of scikit-image; neither is imported. Out: the last
# network of MTCNN, which classifies face candidates (Zhang et al., 2016), and images for its evaluation.
"""`build() -> Trained`."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor, nn

from tests.models import trained

_CALIBRATION_INTERVAL = 4  # every fourth image is for calibration, not for evaluation


class Onet(nn.Module):
    """Images [n, 3, 48, 48] from -1 to 1 -> the probabilities of "no face" and "face" [n, 2]. The names are those of the weights."""

    def __init__(self) -> None:
        super().__init__()
        sizes = zip(itertools.pairwise((3, 32, 64, 64, 128)), (3, 3, 3, 2))
        for place, ((inputs, outputs), size) in enumerate(sizes, 1):
            self.add_module(f"conv{place}", nn.Conv2d(inputs, outputs, size))
            self.add_module(f"prelu{place}", nn.PReLU(outputs))
        self.dense5, self.prelu5, self.dense6_1 = nn.Linear(1152, 256), nn.PReLU(256), nn.Linear(256, 2)

    def forward(self, x: Tensor) -> Tensor:
        for place in range(1, 5):
            x = self.get_submodule(f"prelu{place}")(self.get_submodule(f"conv{place}")(x))
            if place < 4:
                x = nn.functional.max_pool2d(x, 3 if place < 3 else 2, 2, ceil_mode=True)
        x = self.prelu5(self.dense5(x.permute(0, 3, 2, 1).flatten(1)))
        return self.dense6_1(x).softmax(1)


def build() -> trained.Trained:
    """Returns the trained network. Raises MissingPackageError if a package is not installed."""
    module = Onet()
    weights = torch.load(trained.folder_of("facenet_pytorch") / "data" / "onet.pt", weights_only=True)
    module.load_state_dict({name: value for name, value in weights.items() if name in module.state_dict()})
    # 100 faces of Labeled Faces in the Wild and 100 parts of its backgrounds, gray, 25 x 25
    images = torch.from_numpy(np.load(trained.folder_of("skimage") / "data" / "lfw_subset.npy")).float()
    images = nn.functional.interpolate(images[:, None], (48, 48), mode="bilinear").expand(-1, 3, -1, -1)
    images = (images - 0.5) * (255 / 128)
    labels = (torch.arange(len(images)) < len(images) // 2).long()
    is_calibration = torch.arange(len(images)) % _CALIBRATION_INTERVAL == 0
    calibration, judged = (images[part].contiguous().split(1) for part in (is_calibration, ~is_calibration))
    return trained.Trained(
        module.eval().requires_grad_(False),
        [(one,) for one in calibration],
        [(one,) for one in judged],
        labels[~is_calibration],
        last="dense6_1",
    )
