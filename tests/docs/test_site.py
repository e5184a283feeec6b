# SPDX-License-Identifier: BSD-3-Clause
# The HTML of the documentation: every page exists, every link and anchor has a target, pages load nothing from a network, code is
# highlighted, the search finds every heading.

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.building import ROOT, run

pytest.importorskip("markdown_it")
pytest.importorskip("pygments")

GENERATED = "# Operators made here\n\n## Numbers\n\nSee [it](#numbers) and `code`.\n"


class Seen(HTMLParser):
    """The anchors and links of a page, and the files that a browser loads for it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if "id" in attributes:
            assert attributes["id"] not in self.anchors, f"two anchors are named {attributes['id']}"
            self.anchors.add(attributes["id"])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif tag in ("link", "script", "img", "iframe", "source", "video", "audio", "object"):
            self.loaded += [
                attributes[name] for name in ("href", "src", "srcset", "data") if name in attributes
            ]


@pytest.fixture(scope="module")
def builder() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs/site/build.py"))


@pytest.fixture(scope="module")
def site(builder: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    generated = folder / "operators.md"
    generated.write_text(GENERATED)
    builder["build"](folder / "html", [generated])
    return folder / "html"


def test_every_page_is_there_and_in_the_menu(builder: dict[str, Any], site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    menu = set(re.findall(r'href="([^"#]+)"', first[first.index("<nav") : first.index("</nav>")]))
    pages = {builder["target_of"](page, []) for page in builder["pages"]()} | {"generated/operators.html"}
    assert len(pages) > 50 and menu == pages
    sections = re.findall(r"<summary>(.+?)</summary>", first)
    headings = re.findall(r"^## (.+)$", (ROOT / "docs/index.md").read_text(encoding="utf-8"), re.M)
    assert sections == ["Torchette", *headings, "Parts", "Decisions"]
    assert all((site / page).exists() for page in pages)


def test_link_targets_exist_and_pages_load_no_remote_files(site: Path) -> None:
    pages = {page: Seen(page) for page in site.rglob("*.html")}
    wrong = []
    for page, its in pages.items():
        for link in [*its.links, *its.loaded]:
            path, _, anchor = link.partition("#")
            if link == "data:,":
                continue
            if re.match(r"[a-z]+:|//", link):
                if link in its.loaded or not link.startswith("https://"):
                    wrong.append((page, link))
                continue
            there = Path(os.path.normpath(page.parent / unquote(path))) if path else page
            known = there.is_file() and (not anchor or anchor in pages[there].anchors)
            if not known:
                wrong.append((page, link))
        loaded = {Path(link).name for link in its.loaded if not link.endswith((".png", ".svg"))}
        assert loaded == {"data:,", "page.css", "index.js", "page.js"}
    assert not wrong, wrong
    styles = (site / "page.css").read_text() + (site / "page.js").read_text()
    assert not re.search(r"url\(|@import|https?:|fetch\(", styles)


def test_images_are_small_and_copied(site: Path) -> None:
    images = {path.name: path for kind in ("png", "svg") for path in site.rglob(f"*.{kind}")}
    pictures = {path.name for path in (ROOT / "docs/pictures").iterdir()}
    assert set(images) == pictures | {"report-graph.png", "report-time.png"}
    assert len(pictures) > 10
    assert all(image.stat().st_size < 100_000 for image in images.values())


def test_headings_are_listed_on_the_page(site: Path) -> None:
    text = (site / "docs/quantize.html").read_text(encoding="utf-8")
    aside = text[text.index("<aside") : text.index("</aside>")]
    assert re.findall(r'href="#([\w-]+)"', aside) == re.findall(r'<h2 id="([\w-]+)"', text)


def test_code_is_coloured(site: Path) -> None:
    text = (site / "docs/java.html").read_text(encoding="utf-8")
    classes = set(re.findall(r'<span class="(\w+)"', text))
    styles = (site / "page.css").read_text(encoding="utf-8")
    assert {"kd", "s"} <= classes and all(f".{name}" in styles for name in ("kd", "s", "mi", "nf", "c1"))
    for name, value in re.findall(r"(--\w+): (#\w+);", styles):
        assert len(set(re.findall(rf"{name}: (#\w+);", styles))) == 2, f"{name} is {value} in light and dark"


def test_the_search_finds(site: Path, tmp_path: Path) -> None:
    index = json.loads(
        (site / "index.js").read_text(encoding="utf-8").removeprefix("const INDEX = ").strip().rstrip(";")
    )
    anchors = {page.relative_to(site).as_posix(): Seen(page).anchors for page in site.rglob("*.html")}
    assert all(address.partition("#")[2] in anchors[address.partition("#")[0]] for _, _, address, _ in index)
    assert ["Operators made here", "Numbers", "generated/operators.html#numbers", "See it and code."] in index
    if (node := shutil.which("node")) is None:
        pytest.skip("node is missing (apt install nodejs)")
    # the script on a page that it creates, without a browser
    page = tmp_path / "page.js"
    page.write_text(
        """
        const element = (tag) => ({tag, children: [], dataset: {top: ".."}, listeners: {},
          addEventListener(name, f) { this.listeners[name] = f; },
          appendChild(child) { this.children.push(child); return child; },
          replaceChildren(...all) { this.children = all; }});
        const parts = {search: element("input"), found: element("ol")};
        globalThis.document = {body: element("body"), getElementById: (id) => parts[id], createElement: element,
          addEventListener() {}, querySelector: () => null, querySelectorAll: () => []};
        """
        + (site / "index.js").read_text(encoding="utf-8")
        + (site / "page.js").read_text(encoding="utf-8")
        + """
        for (const words of process.argv.slice(2)) {
          parts.search.value = words;
          parts.search.listeners.input();
          console.log(JSON.stringify(parts.found.children.map((item) => item.children[0].href)));
        }
        """
    )
    results = [
        json.loads(line)
        for line in run(node, page, "glossary", "OUTLIERS results", "no-such-word").stdout.splitlines()
    ]
    assert results[0][0].startswith("../docs/glossary.html#") and "../docs/quantize.html" in str(results[1])
    assert results[2] == []


def test_an_unknown_language_is_named(builder: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n```klingon\nqapla\n```\n")
    with pytest.raises(SystemExit, match="'klingon', the language of a code block"):
        builder["Page"](page, "page.html", {})
