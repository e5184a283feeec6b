# SPDX-License-Identifier: BSD-3-Clause
# In: random audio and images. Out: the features of transformers and the resized images of Pillow.
"""`torchette.llm.media`."""

from __future__ import annotations

import contextlib
import io
import random
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.building import built, run
from torchette.errors import InputError
from torchette.llm.media import audio_of, image_of


@pytest.mark.parametrize(("seconds", "bands"), [(3, 80), (31, 128)])
def test_log_mel_equals_that_of_whisper(seconds: int, bands: int, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sound = np.random.default_rng(seconds).standard_normal(seconds * 16_000).astype(np.float32)
    theirs = transformers.WhisperFeatureExtractor(feature_size=bands)(
        sound, sampling_rate=16_000, return_tensors="np"
    )
    sound.tofile(tmp_path / "in")
    run(built("torchette_features"), "log_mel", tmp_path / "in", bands, 3000, tmp_path / "out")
    ours = np.fromfile(tmp_path / "out", np.float32).reshape(1, bands, 3000)
    np.testing.assert_allclose(ours, theirs["input_features"], atol=1e-4)


@pytest.mark.parametrize("size", [(48, 20), (9, 64), (32, 32)])
def test_images_are_resized_as_pillow_does(size: tuple[int, int], tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    image = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    theirs = (
        np.asarray(images.fromarray(image).resize((40, 32), images.Resampling.BILINEAR), np.float32) / 255
    )
    np.ascontiguousarray(image.transpose(2, 0, 1)).tofile(tmp_path / "in")
    ranges = (0.5, 0.4, 0.3, 0.5, 0.25, 0.2)
    sizes = (size[1], size[0], 40, 32)
    run(built("torchette_features"), "pixels", tmp_path / "in", *sizes, tmp_path / "out", *ranges)
    ours = np.fromfile(tmp_path / "out", np.float32).reshape(3, 32, 40)
    again = ours.transpose(1, 2, 0) * (0.5, 0.25, 0.2) + (0.5, 0.4, 0.3)
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
    exif[0x0112] = 6  # the camera was rotated
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


def wav(
    samples: bytes, kind: int, bits: int, channels: int = 1, rate: int = 16_000, subformat: int = 0
) -> bytes:
    """Returns a WAV file; with `subformat`, it is WAVE_FORMAT_EXTENSIBLE."""
    frame = channels * bits // 8
    head = struct.pack("<HHIIHH", kind, channels, rate, rate * frame, frame, bits)
    if subformat:
        head += struct.pack("<HHIH", 22, bits, 0, subformat) + bytes.fromhex("000000001000800000aa00389b71")
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(head)) + head
    body += b"LIST" + struct.pack("<I", 3) + b"abc\0"  # an odd chunk is padded
    body += b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_audio_files_of_every_format_are_read(extensible: bool, channels: int) -> None:
    signal = np.random.default_rng(channels).uniform(-0.9, 0.9, (60, channels))
    formats = {
        (1, 8): np.round(signal * 127 + 128).astype("u1").tobytes(),
        (1, 16): np.round(signal * 32767).astype("<i2").tobytes(),
        (1, 24): np.round(signal * 8388607).astype("<i4").reshape(-1, 1).view("u1")[:, :3].tobytes(),
        (1, 32): np.round(signal * 2147483647).astype("<i4").tobytes(),
        (3, 32): signal.astype("<f4").tobytes(),
        (3, 64): signal.astype("<f8").tobytes(),
    }
    for (kind, bits), data in formats.items():
        file = wav(data, 0xFFFE if extensible else kind, bits, channels, subformat=kind if extensible else 0)
        read = audio_of(file)
        assert read.dtype == np.float32
        np.testing.assert_allclose(read, signal.mean(1), atol=1.5 / 2 ** min(bits - 1, 20))
        assert len(audio_of(file[:-1])) == 59  # a file that is cut short ends with its last whole frame


def test_errors_of_audio_files_state_the_reason() -> None:
    samples = bytes(200)
    for data, text in (
        (b"", "not a WAV file"), (b"RIFF", "not a WAV file"), (b"ID3\4" + samples, "not a WAV file"),
        (wav(samples, 1, 16, rate=44_100), "44100 samples per second"), (wav(samples, 7, 8), "format 7 with 8 bits"),
        (wav(samples, 0xFFFE, 16, subformat=6), "format 6"), (wav(b"", 1, 16), "no samples"),
        (wav(samples, 1, 16, channels=0), "no channels"), (wav(samples, 1, 16)[:50], "no data chunk"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"cannot read the audio: .*{text}") as caught:
            audio_of(data)
        assert "ffmpeg" in str(caught.value)
    rng, good = random.Random(0), wav(samples, 1, 24, channels=2)
    for _ in range(2000):
        mutated = bytearray(good[: rng.randrange(len(good))])
        for _ in range(rng.randrange(4)):
            if mutated:
                mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        with contextlib.suppress(InputError):
            audio_of(bytes(mutated))
