# SPDX-License-Identifier: BSD-3-Clause
# Screenshots in Chromium, light and dark, in docs/pictures. report: a small network that is compiled and profiled here.
# browser: the page of `./dev page` with a drawn digit; requires ziglang and scikit-learn.
"""python docs/site/screenshots.py [report] [browser]"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import torch
from PIL import Image

import torchette
from tests.build.chromium import Chromium, Served
from tests.examples.test_web_page import draw
from torchette.devtools.inspect import describe
from torchette.devtools.profile import profile
from torchette.devtools.report import write_report
from torchette.runtime import Runtime

FOLDER = Path(__file__).resolve().parents[1]
MAX_BYTES = 100_000  # bytes of an image
THEMES = {"": False, "-dark": True}
REPORT, PAGE = (1100, 700), (820, 600)  # pixels of the window
DIGIT = 3  # is drawn
VIEWS = {
    "graph": "report.go(report.program.byNode[report.program.nodes.findIndex((it) => it.label === 'convolution')].id)",
    "time": "report.show('time')",
}


class Block(torch.nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns features of the same shape."""
        return (x + self.conv2(self.conv1(x).relu())).relu()


class Net(torch.nn.Module):
    """A residual network of two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.blocks = torch.nn.Sequential(Block(32), Block(32))
        self.head = torch.nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Returns the probabilities [N, 10] of images [N, 3, H, W]."""
        x = self.blocks(self.stem(image).relu())
        return self.head(x.mean((2, 3))).softmax(-1)


def report() -> None:
    """Writes the images of docs/report.md."""
    image = torch.ones(1, 3, 64, 64)
    data = bytes(torchette.compile(Net().eval(), (image,)))
    method = Runtime.get().load_program(data).load_method("forward", tracing=True)
    measured = profile(method, describe(data).methods[0], [image], runs=50)
    with tempfile.TemporaryDirectory() as folder, Chromium(*REPORT) as browser:
        page = write_report(data, Path(folder, "net.html"), name="net.pte", times={"forward": measured})
        for theme, dark in THEMES.items():
            browser.resize(*REPORT, dark=dark)
            browser.open(page.as_uri(), "!!window.report")
            for view, expression in VIEWS.items():
                browser.value(expression)
                save(browser, FOLDER / "pictures" / f"report-{view}{theme}.png")


def browser() -> None:
    """Builds the page of digits, draws one, and writes the images of docs/browser.md."""
    sys.path.insert(0, str(FOLDER.parent / "examples" / "web"))
    import serve

    with tempfile.TemporaryDirectory() as folder:
        site = serve.build(Path(folder))
        with Served(site) as url, Chromium() as browser:
            browser.open(url, "document.body.dataset.ready === ''")
            for theme, dark in THEMES.items():
                browser.resize(*PAGE, dark=dark)
                draw(browser, DIGIT, touch=False)
                save(browser, FOLDER / "pictures" / f"browser{theme}.png")


def save(browser: Chromium, path: Path) -> None:
    """Writes a screenshot of the window with 256 colours."""
    picture = Image.open(io.BytesIO(browser.picture())).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    assert path.stat().st_size < MAX_BYTES, f"{path}: {path.stat().st_size} bytes"
    print(path, path.stat().st_size)


if __name__ == "__main__":
    chosen = {"report": report, "browser": browser}
    for name in sys.argv[1:] or chosen:
        chosen[name]()
