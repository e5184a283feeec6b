# SPDX-License-Identifier: BSD-3-Clause
# The page of examples/web in a headless Chromium: it recognizes digits drawn by mouse and by finger.

from __future__ import annotations

import importlib.util
import math
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build import chromium
from tests.building import ROOT

pytestmark = [pytest.mark.gate, pytest.mark.xdist_group("wasm")]

Point = tuple[float, float]


def arc(x: float, y: float, width: float, height: float, start: float, end: float) -> list[Point]:
    """Returns points of an ellipse from one angle to another, in degrees clockwise from the right."""
    angles = [math.radians(start + (end - start) * i / 24) for i in range(25)]
    return [(x + width * math.cos(angle), y + height * math.sin(angle)) for angle in angles]


# Strokes in a square of side 1, y downwards.
DIGITS = {
    0: [arc(0.5, 0.5, 0.22, 0.34, -90, 270)],
    1: [[(0.38, 0.3), (0.54, 0.15), (0.54, 0.85)]],
    2: [[*arc(0.5, 0.32, 0.2, 0.17, -180, 30), (0.3, 0.82), (0.72, 0.82)]],
    3: [arc(0.48, 0.32, 0.18, 0.16, -160, 90) + arc(0.48, 0.66, 0.2, 0.18, -90, 150)],
    4: [[(0.56, 0.15), (0.28, 0.6), (0.75, 0.6)], [(0.6, 0.4), (0.6, 0.88)]],
    5: [[(0.68, 0.16), (0.36, 0.16), (0.34, 0.46), *arc(0.48, 0.63, 0.2, 0.2, -120, 140)]],
    7: [[(0.3, 0.18), (0.7, 0.18), (0.45, 0.86)]],
    9: [[*arc(0.5, 0.33, 0.17, 0.17, 0, 360), (0.67, 0.33), (0.62, 0.86)]],
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    chromium.find()
    for package in ("ziglang", "sklearn"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    specification = importlib.util.spec_from_file_location("serve", ROOT / "examples/web/serve.py")
    assert specification and specification.loader
    serve = importlib.util.module_from_spec(specification)
    path = list(sys.path)
    specification.loader.exec_module(serve)
    sys.path[:] = path
    with chromium.Served(serve.build(tmp_path_factory.mktemp("page"))) as url, chromium.Chromium() as browser:
        browser.open(url, "document.body.dataset.ready === ''")
        yield browser


def draw(page: chromium.Chromium, digit: int, *, touch: bool) -> str:
    page.value("document.getElementById('clear').click()")
    x, y, side = page.value(
        "(({x, y, width}) => [x, y, width])(document.getElementById('pad').getBoundingClientRect())"
    )
    for stroke in DIGITS[digit]:
        page.drag([(x + side * a, y + side * b) for a, b in stroke], touch=touch)
    return page.value("document.getElementById('digit').value")


@pytest.mark.parametrize("digit", DIGITS)
def test_a_digit_is_read(page: chromium.Chromium, digit: int) -> None:
    assert draw(page, digit, touch=False) == str(digit)
    assert draw(page, digit, touch=True) == str(digit)
    assert page.value("document.querySelectorAll('li.best').length") == 1
    assert not page.errors


def test_clearing_forgets(page: chromium.Chromium) -> None:
    draw(page, 3, touch=False)
    page.value("dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    assert page.value("document.getElementById('digit').value") == "–"
    assert page.value("document.getElementById('clear').disabled")


@pytest.mark.parametrize(("width", "height", "dark"), [(900, 640, False), (390, 820, True)])
def test_the_picture_of_the_page(
    page: chromium.Chromium, width: int, height: int, dark: bool, tmp_path: Path
) -> None:
    """Paper, ink and the highlight of the answer have their positions; nothing is wider than the window."""
    page.resize(width, height, dark=dark)
    draw(page, 7, touch=True)
    assert page.value("document.documentElement.scrollWidth <= innerWidth")
    picture = page.picture()
    (tmp_path / "page.png").write_bytes(picture)
    pixels = decoded(picture)
    assert (len(pixels[0]), len(pixels)) == (width, height)
    paper, ink = ((28, 31, 38), (238, 240, 244)) if dark else ((255, 255, 255), (25, 28, 35))
    count = {colour: sum(row.count(colour) for row in pixels) for colour in (paper, ink, (238, 76, 44))}
    assert count[paper] > 0.3 * width * height  # two sheets
    assert count[ink] > 2000  # the stroke
    assert count[238, 76, 44] > 500  # the digit and its bar
    x, y, side = page.value(
        "(({x, y, width}) => [x, y, width])(document.getElementById('pad').getBoundingClientRect())"
    )
    for a, b in DIGITS[7][0]:
        assert pixels[round(y + side * b)][round(x + side * a)] == ink
    page.resize(900, 640)


def decoded(png: bytes) -> list[list[tuple[int, int, int]]]:
    """Returns the rows of an 8-bit RGB or RGBA PNG, without opacity."""
    at, data, header = 8, b"", (0,)
    while at < len(png):
        size, kind = struct.unpack_from(">I4s", png, at)
        body = png[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            data += body
        at += size + 12
    width, height, bits, colour = header[:4]
    assert bits == 8 and colour in (2, 6)
    step = 3 if colour == 2 else 4
    raw, stride = zlib.decompress(data), width * step
    rows, above = [], bytes(stride)
    for y in range(height):
        kind, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        for i in range(stride):
            left = line[i - step] if i >= step else 0
            corner = above[i - step] if i >= step else 0
            up = above[i]
            if kind == 4:
                estimate = left + up - corner
                near = min(
                    (abs(estimate - left), 0, left),
                    (abs(estimate - up), 1, up),
                    (abs(estimate - corner), 2, corner),
                )
                line[i] = (line[i] + near[2]) & 255
            elif kind:
                line[i] = (line[i] + (0, left, up, (left + up) // 2)[kind]) & 255
        rows.append([tuple(line[i : i + 3]) for i in range(0, stride, step)])
        above = bytes(line)
    return rows
