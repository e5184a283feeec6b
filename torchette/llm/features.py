# SPDX-License-Identifier: BSD-3-Clause
# In: samples of sound, bytes of an image. Out: what encoders were trained on. numpy alone.
"""`log_mel` and `pixels`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_RATE, _WINDOW, _HOP = 16_000, 400, 160


def _hertz(mel: np.ndarray) -> np.ndarray:
    """Mels are even below 1000 Hz, and even in octaves above."""
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))


def log_mel(samples: np.ndarray, bands: int, frames: int) -> np.ndarray:
    """Of sound at 16 kHz, cut or filled up to `frames` of 10 ms, the loudness of so many bands, as Whisper takes it:
    float32 [1, bands, frames]."""
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
    return ((np.maximum(loud, loud.max() - 8) + 4) / 4)[None].astype(np.float32)


def pixels(
    image: np.ndarray, height: int, width: int, mean: Sequence[float], std: Sequence[float]
) -> np.ndarray:
    """An image of bytes [h, w, 3] in the size and the range that an encoder takes: float32 [1, 3, height, width]."""

    def weights(given: int, wanted: int) -> np.ndarray:
        at = (np.arange(wanted)[:, None] + 0.5) * given / wanted
        near = np.clip(1 - np.abs(np.arange(given) + 0.5 - at) / max(given / wanted, 1), 0, None)
        return near / near.sum(1, keepdims=True)

    planes = image.transpose(2, 0, 1) / 255.0
    sized = weights(image.shape[0], height) @ planes @ weights(image.shape[1], width).T
    scaled = (sized - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    return scaled[None].astype(np.float32)
