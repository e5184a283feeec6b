# SPDX-License-Identifier: BSD-3-Clause
# The report's page in a headless browser, with mouse and keyboard input.

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.build.chromium import PATIENCE, Chromium
from tests.devtools.report_programs import SOURCE, encoder
from torchette.devtools.limits import Limits, Store
from torchette.devtools.profile import Operation, Profile
from torchette.devtools.report import write_report
from torchette.devtools.work import Work

pytestmark = [pytest.mark.gate, pytest.mark.xdist_group("report page")]

READY = "!!window.report"
VIEWS = ("overview", "graph", "memory", "time", "size", "quantization", "placement")
HELD = "report.graph.selected?.node?.name"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    (folder / "encoder.py").write_text(SOURCE)
    data = encoder(3)
    times = [
        Operation("", index, None, "", [1e-6 * (1 + index % 11)] * 3, 3, Work(1000, 500))
        for index in range(33)
    ]
    limits = Limits("A processor", "avx2", 1, 1e10, (Store("L2", None, 1e10),))
    profile = Profile("", 3, times, [], limits)
    write_report(
        data, folder / "net.html", name="net.pte", times={"forward": profile}, source_folders=[folder]
    )
    write_report(data, folder / "plain.html", name="net.pte", source_folders=[])
    write_report(encoder(500), folder / "big.html", name="big.pte", source_folders=[])
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium(1280, 800) as browser:
        yield browser


@pytest.fixture
def page(browser: Chromium, folder: Path) -> Iterator[Chromium]:
    browser.resize(1280, 800)
    browser.open("about:blank", "true")
    browser.open((folder / "net.html").as_uri(), READY)
    yield browser
    assert not browser.errors


def until(page: Chromium, expression: str) -> None:
    end = time.monotonic() + PATIENCE
    while not page.value(expression):
        assert time.monotonic() < end, expression
        time.sleep(0.05)


def click(page: Chromium, selector: str, *, count: int = 1, at: tuple[float, float] = (0.5, 0.5)) -> None:
    """Clicks the center of an element, or the given relative position."""
    box = page.value(
        f"(() => {{ const b = document.querySelector({selector!r})?.getBoundingClientRect();"
        f" return b && [b.x + b.width * {at[0]}, b.y + b.height * {at[1]}]; }})()"
    )
    assert box, f"{selector} is not there"
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=count)


def press(page: Chromium, *keys: str) -> None:
    codes = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
    for key in keys:
        more: dict[str, Any] = {"windowsVirtualKeyCode": codes.get(key, ord(key[0].upper()))}
        if len(key) == 1:
            more["text"] = key
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key, **more)
        page.call("Input.dispatchKeyEvent", type="keyUp", key=key, **more)


def text(page: Chromium, selector: str) -> str:
    return page.value(f"document.querySelector({selector!r})?.innerText || ''")


def item(page: Chromium, label: str) -> str:
    """Returns the index of the box with this label."""
    identifier = page.value(f"[...report.program.byId.values()].find(it => it.label === {label!r})?.id")
    assert identifier, label
    return identifier


def test_tabs_show_each_view(page: Chromium) -> None:
    heads = {
        "memory": "Memory",
        "time": "Time",
        "size": "Size",
        "quantization": "Quantization",
        "placement": "Placement",
    }
    assert "33" in text(page, ".figures") and "float32[64, 64]" in text(page, ".signature")
    for view, head in heads.items():
        click(page, f"#tab-{view}")
        until(page, f"document.querySelector('h1')?.innerText === '{head}'")
        assert page.value(f"document.querySelector('#tab-{view}').getAttribute('aria-selected')") == "true"


def test_views_have_legends_and_no_markup_of_text(page: Chromium) -> None:
    for view in ("overview", "graph", "memory", "time"):
        page.value(f"report.show('{view}')")
        assert "Matrix, convolution" in text(page, ".kinds"), view
    for view in VIEWS:
        page.value(f"report.show('{view}')")
        assert "`" not in text(page, "main"), view
    page.value("report.show('memory')")
    assert "torchette memory" in text(page, "main td code")
    page.value("report.show('size')")
    assert "weights" in text(page, ".legend") and "constant" not in text(page, "main")


def test_time_of_node_has_fraction_of_limits(page: Chromium) -> None:
    page.value("report.show('time')")
    assert "1 thread can do 10 GFLOP/s" in text(page, ".page") and "on A processor" in text(page, ".page")
    heads = page.value("[...document.querySelectorAll('#rows th')].map((it) => it.innerText.trim())")
    assert heads[3:8] == ["GFLOP/s", "Peak", "GB/s", "L2", "Bound"]
    page.value("report.go('n1')")
    details = text(page, "#details")
    assert "1 GFLOP/s 10% of the peak" in details and "0.5 GB/s 5.0% of L2" in details


def test_empty_views_say_how_to_fill_them(page: Chromium, folder: Path) -> None:
    page.open((folder / "plain.html").as_uri(), READY)
    for view, words in {
        "time": "torchette report net.pte -o report.html --profile 50",
        "quantization": "torchette compile model.py:Net --quantize int8 -o net.pte",
        "placement": "torchette compile model.py:Net --report-page report.html",
    }.items():
        page.value(f"report.show('{view}')")
        assert words in text(page, "main"), view


def test_click_opens_module_and_node_shows_source_line(page: Chromium) -> None:
    click(page, "#tab-graph")
    until(page, "!!document.querySelector('#world .hit')")
    layer = item(page, "layers.1")
    page.value(
        f"report.graph.toggle(report.program.byId.get('{layer}'), false), report.graph.centre(report.program.byId.get('{layer}'))"
    )
    before = page.value("report.graph.boxes")
    click(page, f"#world [data-id={layer}]", count=1)
    assert page.value(f"report.graph.selected.id === '{layer}'") and "11" in text(page, "#details")
    click(page, f"#world [data-id={layer}] [data-twist]", at=(0.9, 0.5))
    until(page, f"report.program.byId.get('{layer}').open")
    assert page.value("report.graph.boxes") != before
    page.value("report.go('n2')")
    page.value("report.go('n1')")
    assert page.value("document.querySelector('#world .on').dataset.id") == "n1"
    assert page.value("document.querySelectorAll('#world .light').length") == 2
    details = text(page, "#details")
    assert "aten::mm.out" in details and "layers.0.attention.query" in details
    assert "encoder.py:10" in details and "value_10 = 10  # line 10" in details
    assert page.value("document.querySelector('#details .here').dataset.n") == "10"
    assert "float32[64, 64]" in details and "16.4 kB" in details and "%" in details
    # the source is text, not markup
    page.value("report.go('n3')")
    assert "hidden = self.query(x) <b>" in text(page, "#details")
    # from an input to the node that wrote it
    page.value("report.go('n4')")
    click(page, "#details button.tensor[data-id]")
    until(page, "report.graph.selected.id === 'n1'")


def test_search_finds_by_operator_module_and_line(page: Chromium) -> None:
    press(page, "/")
    until(page, "document.querySelector('#palette').open")
    page.call("Input.insertText", text="sigmoid")
    until(page, "document.querySelectorAll('#found [data-number]').length === 3")
    press(page, "ArrowDown", "ArrowDown", "ArrowUp", "Enter")
    until(page, "report.view === 'graph' && !!report.graph.selected")
    assert page.value(HELD) == "aten::sigmoid.out" and "layers.1.mlp.act" in text(page, "#details")
    for words, expected in (("layers.2 query", "aten::mm.out"), ("encoder.py:30", "aten::add.out")):
        press(page, "/")
        page.call("Input.insertText", text=words)
        until(page, f"document.querySelector('#query').value === '{words}'")
        press(page, "Enter")
        until(page, f"{HELD} === '{expected}'")
    press(page, "/")
    page.call("Input.insertText", text="<i>nothing</i>")
    until(page, "document.querySelector('#found').innerText.includes('Nothing is called')")
    assert page.value("document.querySelectorAll('#found i').length") == 0
    press(page, "Escape")
    until(page, "!document.querySelector('#palette').open")


def test_keys_navigate_open_and_close(page: Chromium) -> None:
    press(page, "2")
    until(page, "report.view === 'graph'")
    page.value("report.graph.foldAll(false), report.graph.select(null)")
    press(page, "ArrowDown", "ArrowDown")
    assert page.value("report.graph.selected.label") == "layers"
    press(page, "Enter")
    assert page.value("report.graph.selected.open")
    press(page, "ArrowRight")
    assert page.value("report.graph.selected.label") == "layers.0"
    press(page, "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft")
    assert page.value("report.graph.selected.label + report.graph.selected.open") == "layers.0false"
    press(page, "ArrowUp", "Escape")
    assert page.value("report.graph.selected") is None and text(page, "#details") == ""
    press(page, "?")
    until(page, "document.querySelector('#keys').open")
    press(page, "Escape")


def test_dragging_and_the_wheel_move_and_zoom(page: Chromium) -> None:
    press(page, "2")
    until(page, "!!document.querySelector('#world .hit')")
    x, scale = page.value("report.graph.x"), page.value("report.graph.scale")
    page.drag([(420, 700), (440, 690), (500, 640)])
    assert page.value("report.graph.x") == pytest.approx(x + 80)
    assert page.value("report.graph.selected") is None
    page.call("Input.dispatchMouseEvent", type="mouseWheel", x=700, y=400, deltaX=0, deltaY=-240)
    until(page, f"report.graph.scale > {scale} * 1.2")
    press(page, "f")
    assert page.value("report.graph.scale") < scale * 1.3
    click(page, "[data-colour=time]")
    assert page.value("document.querySelector('#world').innerHTML.includes('color-mix')")


def test_memory_block_links_to_node(page: Chromium) -> None:
    press(page, "3")
    until(page, "!!document.querySelector('[data-map]')")
    page.value("document.querySelector('[data-map]').scrollIntoView({block: 'center'})")
    click(page, "[data-map]", at=(0.015, 0.9))
    until(page, "report.view === 'graph' && !!report.graph.selected")
    assert page.value("report.graph.selected.node.at") == 0


def test_tables_sort_and_filter(page: Chromium) -> None:
    press(page, "4")
    until(page, "document.querySelectorAll('#rows tbody tr').length === 33")
    click(page, "#rows th:nth-child(2) button")
    first = text(page, "#rows tbody tr td:nth-child(2)")
    assert first == "1.00 µs"
    click(page, "#filter")
    page.call("Input.insertText", text="tanh")
    until(page, "document.querySelectorAll('#rows tbody tr').length === 3")
    click(page, "[data-by=modules]")
    page.value(
        "document.querySelector('#filter').value = '', document.querySelector('#filter').dispatchEvent(new Event('input'))"
    )
    assert "layers.0" in text(page, "#rows")


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark(page: Chromium, dark: bool) -> None:
    page.resize(1280, 800, dark=dark)
    bright = "(() => { const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g); return +r + +g + +b > 384; })()"
    assert page.value(bright) is not dark
    click(page, "#theme")
    assert page.value(bright) is dark
    press(page, "t")
    assert page.value(bright) is not dark
    page.value("localStorage.removeItem('torchette-theme')")


def test_mobile_layout_has_no_horizontal_scrolling(page: Chromium) -> None:
    page.resize(360, 740)
    for view in (*VIEWS[2:], *VIEWS[:2]):
        page.value(f"report.show('{view}')")
        for element in ("document.documentElement", "document.querySelector('main')"):
            assert page.value(f"{element}.scrollWidth") <= 360, view
    click(page, "#outline-open")
    until(page, "document.querySelector('#graph').classList.contains('outlined')")
    page.value("report.go('n1')")
    until(page, "document.querySelector('#details').getBoundingClientRect().top < 740")
    box = page.value(
        "(() => { const b = document.querySelector('#details').getBoundingClientRect(); return [b.left, b.right]; })()"
    )
    assert box[0] >= 0 and box[1] <= 360


def test_boxes_do_not_overlap(page: Chromium) -> None:
    """Open boxes do not overlap and are inside their group."""
    page.value("report.show('graph'), report.graph.foldAll(true)")
    groups = page.value(
        "[...report.program.byId.values()].filter(it => it.open || !it.parent).map(it => [it.w, it.h, it.kids.map(k => [k.x, k.y, k.w, k.h])])"
    )
    assert len(groups) > 6
    for width, height, boxes in groups:
        for x, y, w, h in boxes:
            assert x >= 0 and x + w <= width + 0.01 and y >= 0 and y + h <= height + 0.01
        for a, b in itertools.combinations(boxes, 2):
            assert (
                a[0] + a[2] <= b[0] + 0.01
                or b[0] + b[2] <= a[0] + 0.01
                or a[1] + a[3] <= b[1] + 0.01
                or b[1] + b[3] <= a[1] + 0.01
            )


def test_five_thousand_nodes(browser: Chromium, folder: Path) -> None:
    """Only open boxes near the visible area are drawn."""
    browser.resize(1280, 800)
    browser.open((folder / "big.html").as_uri(), READY)
    browser.value("report.show('graph')")
    assert browser.value("report.program.nodes.length") == 5_502
    assert browser.value("document.querySelectorAll('#world .hit').length") < 40
    browser.value("report.graph.foldAll(true), report.go('n2700')")
    assert browser.value("report.graph.boxes") < 200
    assert browser.value("!!document.querySelector('#world .on')")
    assert not browser.errors
