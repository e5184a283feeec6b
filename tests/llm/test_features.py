# SPDX-License-Identifier: BSD-3-Clause
# In: random sound and images. Out: what transformers and Pillow make of them.
"""`torchette.llm.features`."""

from __future__ import annotations

import contextlib
import io
import random
import wave

import numpy as np
import pytest

from torchette.errors import InputError
from torchette.llm.features import image_of, log_mel, pixels, sound_of


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


@pytest.mark.filterwarnings("ignore:Tag data", "ignore:Corrupt EXIF")
def test_files_of_images_are_read_upright_and_damaged_ones_named() -> None:
    images = pytest.importorskip("PIL.Image")
    photo = np.random.default_rng(2).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for kind, mode in (("PNG", "RGB"), ("PNG", "P"), ("WEBP", "RGBA"), ("GIF", "L")):
        file = io.BytesIO()
        images.fromarray(photo).convert(mode).save(file, kind, lossless=True)
        read = image_of(file.getvalue())
        assert read.shape == (20, 30, 3) and read.dtype == np.uint8
        assert (read == photo).all() or mode in ("P", "L")
    file, exif = io.BytesIO(), images.Exif()
    exif[0x0112] = 6  # the camera was turned
    images.fromarray(photo).save(file, "JPEG", exif=exif)
    good = file.getvalue()
    assert image_of(good).shape == (30, 20, 3)
    large = io.BytesIO()
    images.new("1", (5000, 1000)).save(large, "PNG")
    assert image_of(large.getvalue()).shape == (410, 2048, 3)
    bomb = io.BytesIO()
    images.new("1", (9000, 9000)).save(bomb, "PNG")
    rng = random.Random(0)
    bad = [b"", b"GIF89a", b"%PDF-1.4", b"<svg/>", bomb.getvalue(), good[:200]]
    for _ in range(100):
        mutated = bytearray(good)
        mutated[rng.randrange(40)] ^= 1 << rng.randrange(8)
        bad.append(bytes(mutated[: rng.randrange(len(good))]))
    read = 0
    for data in bad:
        with contextlib.suppress(InputError):
            read += image_of(data) is not None
    assert read < 10


def test_files_of_sound_are_read() -> None:
    sound = np.arange(-400, 400, dtype=np.int16).reshape(-1, 2)

    def file(rate: int = 16_000, width: int = 2) -> bytes:
        data = io.BytesIO()
        with wave.open(data, "wb") as made:
            made.setparams((2, width, rate, 0, "NONE", ""))
            made.writeframes(sound.tobytes())
        return data.getvalue()

    np.testing.assert_array_equal(sound_of(file()), sound.mean(1, dtype=np.float32) / 32768)
    assert sound_of(file()[:-3]).shape == (399,)
    for bad in (b"", b"RIFF", file(44_100), file(width=1), file()[:20]):
        with pytest.raises(InputError, match="the sound"):
            sound_of(bad)
