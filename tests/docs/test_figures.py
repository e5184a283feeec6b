# SPDX-License-Identifier: BSD-3-Clause
# The figures of docs/pictures: drawn again and compared, or, if they contain times or need minutes, their labels are checked.

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
import torch

from tests.building import ROOT
from tests.llm import double
from torchette.devtools import drawing
from torchette.quantization import SCHEMES

PICTURES = ROOT / "docs/pictures"
TITLE = "{http://www.w3.org/2000/svg}title"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    return importlib.import_module("figures")


def titles(svg: str) -> list[str]:
    """Returns the document's title, and the tooltips in the order of the elements."""
    return [str(title.text) for title in ElementTree.fromstring(svg).iter(TITLE)]


def words(svg: str) -> str:
    """Returns all text of a document, with single spaces."""
    root = ElementTree.fromstring(svg)
    lines = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    return " ".join(" ".join(lines).split())


def committed(name: str) -> str:
    return (PICTURES / f"{name}.svg").read_text(encoding="utf-8")


def test_each_figure_has_both_themes_and_is_small(figures: ModuleType) -> None:
    names = {f"{name}{end}" for name in figures.FIGURES for end in ("", "-dark")}
    assert {path.stem for path in PICTURES.glob("*.svg")} == names
    for name in figures.FIGURES:
        light, dark = committed(name), committed(f"{name}-dark")
        assert light != dark and titles(light)[0] == titles(dark)[0] and words(light) == words(dark)
        assert max(len(light), len(dark)) < figures.MAX_BYTES


@pytest.mark.parametrize("name", ["pipeline", "memory-plan"])
def test_the_command_reproduces_the_figure(figures: ModuleType, name: str) -> None:
    assert figures.main(["--check", name]) == 0, f"python docs/site/figures.py {name} writes it again"


def test_the_trace_has_the_operations_of_the_figure(figures: ModuleType) -> None:
    drawn = figures.trace()("light")
    shown, new = (
        [title.partition(": ")[0] for title in titles(svg)[1:]] for svg in (committed("trace"), drawn)
    )
    assert new == shown and "Method::execute" in shown and "cpu::convolution.out" in shown


def test_the_scatter_has_a_point_for_each_scheme(figures: ModuleType) -> None:
    pytest.importorskip("torchao")
    about = [title.partition(": ") for title in titles(committed("quantization"))[1:]]
    assert set(SCHEMES) <= {scheme for scheme, _, _ in about}
    assert all(re.fullmatch(r"[\d,]+ bytes, [\d.]+ dB", measured) for _, _, measured in about)
    torch.manual_seed(0)
    (point,) = figures.measured(torch.nn.Linear(64, 8).eval(), [torch.randn(1, 64)], "bfloat16")
    assert f"bfloat16: {point.size:,.0f} bytes, {point.sqnr:.1f} dB" in titles(
        figures.scatter([point], "light")
    )
    assert point.size > 1000 and 30 < point.sqnr < 70


def test_the_recorded_answers_are_those_of_the_glossary(figures: ModuleType) -> None:
    terminal = figures.terminal
    answers = terminal.rows(terminal.GLOSSARY.read_text(encoding="utf-8"))
    shown = words(committed("chat"))
    for question in terminal.QUESTIONS:
        assert f"> {question} {answers[question]}" in shown, "python docs/site/figures.py chat"


def test_a_terminal_is_recorded(figures: ModuleType, tmp_path: Path) -> None:
    terminal = figures.terminal
    (tmp_path / "chat.pte").write_bytes(double.program())
    lines = terminal.recorded(tmp_path, ["torchette", "chat", "chat.pte"], ("/help",), 0.0)
    text = ["".join(piece.words for piece in line) for line in lines]
    assert text[:3] == ["$ torchette chat chat.pte", "/help lists the commands", "> /help"]
    assert any("begin a new conversation" in line for line in text[3:])
    seconds = [piece.second for line in lines for piece in line]
    assert seconds == sorted(seconds) and seconds[-1] > 2
    assert "begin a new conversation" in words(terminal.film(lines, "dark"))


def test_the_browser_page_is_shown_in_both_themes() -> None:
    images = pytest.importorskip("PIL.Image")
    for name, ground in (("browser", (243, 244, 247)), ("browser-dark", (18, 20, 26))):
        image = images.open(PICTURES / f"{name}.png").convert("RGB")
        colours = {colour for _, colour in image.getcolors(1 << 20)}
        assert image.size == (820, 600), "python docs/site/screenshots.py browser"
        distance = max(abs(a - b) for a, b in zip(image.getpixel((0, 0)), ground, strict=True))
        assert distance <= 2, "the page of examples/web has another background"  # 256 colours
        assert (238, 76, 44) in colours  # the digit that the network has read, and its bar


def test_without_a_theme_a_document_follows_the_machine() -> None:
    svg = drawing.document("a & b", 10, 10, [drawing.text(1, 9, "<x>")])
    assert "prefers-color-scheme: dark" in svg and 'class="page"' in svg and titles(svg) == ["a & b"]
    assert all(colour in svg for name in drawing.THEMES for colour in drawing.THEMES[name][:3])
