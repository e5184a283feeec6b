# SPDX-License-Identifier: BSD-3-Clause
# In: samples of sound, bytes of an image, files of either. Out: what encoders were trained on. numpy alone, but for files of images.
"""`log_mel`, `pixels`, `sound_of` and `image_of`."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence

import numpy as np

from torchette.errors import InputError
from torchette.packages import require

_RATE, _WINDOW, _HOP = 16_000, 400, 160
_KINDS, _MOST_PIXELS, _LONGEST = ("PNG", "JPEG", "WEBP", "GIF", "BMP"), 50_000_000, 2048


def _hertz(mel: np.ndarray) -> np.ndarray:
    """Mels are even below 1000 Hz, and even in octaves above."""
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))


def log_mel(samples: np.ndarray, bands: int, frames: int) -> np.ndarray:
    """Whisper's input: the loudness of `bands` in sound at 16 kHz, cut or padded to `frames` of 10 ms: float32
    [1, bands, frames]."""
    sound: np.ndarray = np.zeros(frames * _HOP, np.float64)
    sound[: len(samples)] = samples[: len(sound)]
    sound = np.pad(sound, _WINDOW // 2, "reflect")
    cut = np.lib.stride_tricks.sliding_window_view(sound, _WINDOW)[: frames * _HOP : _HOP]
    power = np.abs(np.fft.rfft(cut * np.hanning(_WINDOW + 1)[:-1])) ** 2
    top = 15 + 27 * np.log(_RATE / 2 / 1000) / np.log(6.4)
    edges = _hertz(np.linspace(0, top, bands + 2))
    bins = np.linspace(0, _RATE / 2, _WINDOW // 2 + 1)
    rise = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    filters = np.clip(np.minimum(rise, fall), 0, None) * (2 / (edges[2:] - edges[:-2]))[:, None]
    loud = np.log10(np.maximum(filters @ power.T, 1e-10))
    result: np.ndarray = ((np.maximum(loud, loud.max() - 8) + 4) / 4)[None].astype(np.float32)
    return result


def pixels(
    image: np.ndarray, height: int, width: int, mean: Sequence[float], std: Sequence[float]
) -> np.ndarray:
    """An image of bytes [h, w, 3] in the size and the range that an encoder takes: float32 [1, 3, height, width]."""

    def weights(given: int, wanted: int) -> np.ndarray:
        at = (np.arange(wanted)[:, None] + 0.5) * given / wanted
        near: np.ndarray = np.clip(1 - np.abs(np.arange(given) + 0.5 - at) / max(given / wanted, 1), 0, None)
        near /= near.sum(1, keepdims=True)
        return near

    planes = image.transpose(2, 0, 1) / 255.0
    sized = weights(image.shape[0], height) @ planes @ weights(image.shape[1], width).T
    scaled: np.ndarray = (sized - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    result: np.ndarray = scaled[None].astype(np.float32)
    return result


def image_of(data: bytes) -> np.ndarray:
    """An image file (PNG, JPEG, WEBP, GIF, BMP) as bytes [height, width, 3], at most 2048 pixels wide and high.
    InputError if it is none, or damaged."""
    image, turned = require("PIL.Image", "reading an image"), require("PIL.ImageOps", "reading an image")
    try:
        opened = image.open(io.BytesIO(data), formats=_KINDS)
        if opened.width * opened.height > _MOST_PIXELS:
            raise ValueError(f"{opened.width} x {opened.height} is more than {_MOST_PIXELS} pixels")
        opened.thumbnail((_LONGEST, _LONGEST))
        return np.asarray(turned.exif_transpose(opened).convert("RGB"))
    except Exception as error:  # what decoders of images raise has no type of its own
        raise InputError(
            f"the image cannot be read: {error}", hints=[f"known are {', '.join(_KINDS)}"]
        ) from None


def sound_of(data: bytes) -> np.ndarray:
    """A WAV file at 16 kHz as samples from -1 to 1, its channels' mean. InputError if it is none."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError, ValueError) as error:
        raise InputError(
            f"the sound cannot be read: {error}", hints=["WAV files of whole numbers are"]
        ) from None
    if rate != _RATE or width != 2:
        raise InputError(
            f"the sound has {rate} samples a second of {8 * width} bits, not {_RATE} of 16",
            hints=["ffmpeg -i FILE -ar 16000 -ac 1 -c:a pcm_s16le sound.wav"],
        )
    frames = frames[: len(frames) // (2 * channels) * 2 * channels]
    result: np.ndarray = np.frombuffer(frames, "<i2").reshape(-1, channels).mean(1, dtype=np.float32) / 32768
    return result
