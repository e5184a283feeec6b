# SPDX-License-Identifier: BSD-3-Clause
# In: image and audio files. Out: the arrays that `Session.generate` accepts. The C++ files of this folder compute the inputs of
# encoders from them.
"""`image_of` and `audio_of`: decode image and audio files."""

from __future__ import annotations

import io

import numpy as np

from torchette.errors import InputError
from torchette.packages import require
from torchette.runtime import native

_KINDS, _MAX_PIXELS, _MAX_SIDE = ("PNG", "JPEG", "WEBP", "GIF", "BMP"), 50_000_000, 2048


def image_of(data: bytes) -> np.ndarray:
    """Decodes an image file (PNG, JPEG, WEBP, GIF or BMP).

    Returns:
        uint8 [height, width, 3], upright, at most 2048 pixels wide and high.

    Raises:
        InputError: the bytes are not such a file, or are damaged.
    """
    image, turned = require("PIL.Image", "reading an image"), require("PIL.ImageOps", "reading an image")
    try:
        opened = image.open(io.BytesIO(data), formats=_KINDS)
        if opened.width * opened.height > _MAX_PIXELS:
            raise ValueError(f"{opened.width} x {opened.height} is more than {_MAX_PIXELS} pixels")
        opened.thumbnail((_MAX_SIDE, _MAX_SIDE))
        return np.asarray(turned.exif_transpose(opened).convert("RGB"))
    except Exception as error:  # the exceptions of image decoders have no common class
        raise InputError(
            f"cannot read the image: {error}", hints=[f"supported formats: {', '.join(_KINDS)}"]
        ) from None


def audio_of(data: bytes) -> np.ndarray:
    """Decodes a WAV file with 16,000 samples per second: 8-bit to 32-bit integers, or 32-bit or 64-bit floats.

    Returns:
        float32 [samples] from -1 to 1, the mean of the channels.

    Raises:
        InputError: the bytes are not such a file.
    """
    try:
        return np.frombuffer(native.module().llm.read_wav(data), np.float32)
    except native.module().Fault as fault:
        raise InputError(
            f"cannot read the audio: {fault.args[2]}",
            hints=["ffmpeg -i FILE -ar 16000 -ac 1 -c:a pcm_s16le audio.wav"],
        ) from None
