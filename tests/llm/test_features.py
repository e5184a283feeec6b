# SPDX-License-Identifier: BSD-3-Clause
# In: random sound and images. Out: what transformers and Pillow make of them.
"""`torchette.llm.features`."""

from __future__ import annotations

import numpy as np
import pytest

from torchette.llm.features import log_mel, pixels


@pytest.mark.parametrize(("seconds", "bands"), [(3, 80), (31, 128)])
def test_loudness_of_bands_is_whispers(seconds: int, bands: int) -> None:
    transformers = pytest.importorskip("transformers")
    sound = np.random.default_rng(seconds).standard_normal(seconds * 16_000).astype(np.float32)
    theirs = transformers.WhisperFeatureExtractor(feature_size=bands)(
        sound, sampling_rate=16_000, return_tensors="np"
    )
    ours = log_mel(sound, bands, 3000)
    assert ours.shape == theirs["input_features"].shape and ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs["input_features"], atol=1e-4)


@pytest.mark.parametrize("size", [(48, 20), (9, 64), (32, 32)])
def test_images_are_resized_as_pillow_does(size: tuple[int, int]) -> None:
    images = pytest.importorskip("PIL.Image")
    image = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    theirs = (
        np.asarray(images.fromarray(image).resize((40, 32), images.Resampling.BILINEAR), np.float32) / 255
    )
    ours = pixels(image, 32, 40, (0.5, 0.4, 0.3), (0.5, 0.25, 0.2))
    again = ours[0].transpose(1, 2, 0) * (0.5, 0.25, 0.2) + (0.5, 0.4, 0.3)
    np.testing.assert_allclose(again, theirs, atol=1.01 / 255)
