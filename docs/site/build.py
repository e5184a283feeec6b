# SPDX-License-Identifier: BSD-3-Clause
# Writes the Markdown pages of the tree, and generated ones, as a folder of HTML that needs no network: menu, search, highlighted
# code. The files that pages link to are copied.
"""python docs/site/build.py FOLDER [GENERATED.md ...]"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
# The sections of the menu after those of docs/index.md, and the folders with their other pages.
FOLDERS = {
    "Generated": "build/docs",
    "Parts": "torchette",
    "Measurements": "benchmarks",
    "Decisions": "docs/decisions",
}


def pages() -> list[Path]:
    """Returns every page of the tree."""
    folders = (ROOT / name for name in ("benchmarks", "docs", "torchette"))
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))])


def anchor(heading: str) -> str:
    """Returns the anchor of a heading on code hosts."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


class Section(NamedTuple):
    """An entry of the search: a heading, its address, and the text below it."""

    title: str
    address: str
    text: str


class Page:
    """One page, parsed.

    Attributes:
        target: the HTML file, relative to the site.
        title: the first heading.
        headings: (anchor, text) of each heading of the second level.
        sections: the entries of the search.
        linked: the files of the tree that the page links to.
    """

    def __init__(self, path: Path, target: str, targets: dict[Path, str]) -> None:
        self.path, self.target = path, target
        self._targets = targets
        self.headings: list[tuple[str, str]] = []
        self.sections: list[Section] = []
        self.linked: set[Path] = set()
        tokens = _parser().parse(path.read_text(encoding="utf-8"))
        num_uses: dict[str, int] = {}
        words: list[str] = []
        self.title = target
        for place, token in enumerate(tokens):
            if token.type == "heading_open":
                content = tokens[place + 1].content
                name = anchor(content)
                num_uses[name] = num_uses.get(name, -1) + 1
                token.attrSet("id", name + (f"-{num_uses[name]}" if num_uses[name] else ""))
                plain = "".join(child.content for child in tokens[place + 1].children or ())
                self.title = plain if token.tag == "h1" else self.title
                if token.tag == "h2":
                    self.headings.append((str(token.attrGet("id")), plain))
                self.sections.append(Section(plain, f"{target}#{token.attrGet('id')}", ""))
            elif token.type == "heading_close":
                words = []
            elif token.type == "inline":
                for child in token.children or ():
                    for kind, name in (("link_open", "href"), ("image", "src")):
                        if child.type == kind:
                            child.attrSet(name, self._address(str(child.attrGet(name))))
                    if child.type == "html_inline":  # <picture>, for images in light and dark
                        child.content = re.sub(
                            r'\b(src|srcset)="([^"]+)"',
                            lambda match: f'{match[1]}="{self._address(match[2])}"',
                            child.content,
                        )
                    else:
                        words.append(child.content)
                words.append(" ")
            elif token.type == "fence":
                words.append(token.content)
            if self.sections:
                text = " ".join("".join(words).split())
                self.sections[-1] = self.sections[-1]._replace(text=text)
        self.body = _parser().renderer.render(tokens, _parser().options, {})

    def _address(self, link: str) -> str:
        """Returns the address of a link's target, relative to the page."""
        path, _, fragment = link.partition("#")
        if not path or re.match(r"[a-z]+:", link):
            return link
        there = (self.path.parent / path).resolve()
        if there.is_dir():  # the first page of the folder
            there = next((page for page in sorted(there.glob("*.md")) if page in self._targets), there)
        if there not in self._targets:
            self.linked.add(there)
        target = self._targets.get(there) or file_target(there)
        return relative(target, self.target) + (f"#{fragment}" if fragment else "")


def file_target(path: Path) -> str:
    """Returns the file of the site that shows a linked file of the tree."""
    name = path.relative_to(ROOT).as_posix()
    return name if lexer_of(path) is None else f"{name}.html"


def relative(target: str, here: str) -> str:
    """Returns the relative address from one file of the site to another."""
    return os.path.relpath(target, os.path.dirname(here) or ".").replace(os.sep, "/")


def lexer_of(path: Path) -> Lexer | None:
    """Returns the HTML of source code, or None for other files, such as a notebook, a licence or an image."""
    if path.suffix in ("", ".ipynb", ".png", ".svg"):
        return None
    known = {".fbs": "c", ".def": "c++", ".txt": "text"}
    if path.suffix in known:
        return get_lexer_by_name(known[path.suffix])
    return get_lexer_for_filename(path.name)


@cache
def _parser() -> MarkdownIt:
    def code(text: str, language: str, _: str) -> str:
        try:
            lexer = get_lexer_by_name(language or "text")
        except ClassNotFound as error:
            raise SystemExit(f"{language!r}, the language of a code block, is unknown") from error
        return highlight(text, lexer, HtmlFormatter(nowrap=True))

    parser = MarkdownIt("commonmark", {"html": True, "highlight": code}).enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="table"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return parser


def target_of(path: Path, generated: Sequence[Path]) -> str:
    """Returns the HTML file of a page. The README becomes index.html."""
    if path == ROOT / "README.md":
        return "index.html"
    if path in generated:
        return f"generated/{path.stem}.html"
    return path.relative_to(ROOT).with_suffix(".html").as_posix()


def menu(pages_by_path: dict[Path, Page]) -> dict[str, list[Page]]:
    """Returns the navigation: pages by section.

    The sections of docs/index.md come first, each with the pages that it links to. Pages that the index does not link to follow
    by folder, or come first if they are in none of `FOLDERS`.
    """
    index = ROOT / "docs" / "index.md"
    left = {path: page for path, page in pages_by_path.items() if path not in (ROOT / "README.md", index)}
    sections: dict[str, list[Page]] = {"Torchette": [pages_by_path[ROOT / "README.md"], pages_by_path[index]]}
    name = "Torchette"
    for line in index.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            name = line[3:]
        for link in re.findall(r"\]\(([\w./-]+\.md)", line):
            if page := left.pop((index.parent / link).resolve(), None):
                sections.setdefault(name, []).append(page)
    for name, folder in FOLDERS.items():
        chosen = [path for path in left if path.is_relative_to(ROOT / folder)]
        sections.setdefault(name, []).extend(left.pop(path) for path in chosen)
    sections["Torchette"] += left.values()
    return {name: members for name, members in sections.items() if members}


def navigation(here: str, sections: dict[str, list[Page]], page: Page | None) -> str:
    """Returns the HTML of the menu; the section of `page` is open."""
    lines = []
    for name, members in sections.items():
        is_open = page in members or name == "Torchette"
        lines.append(f"<details{' open' if is_open else ''}><summary>{name}</summary><ul>")
        for member in members:
            current = ' aria-current="page"' if member is page else ""
            address = relative(member.target, here)
            lines.append(f'<li><a href="{address}"{current}>{html.escape(member.title)}</a></li>')
        lines.append("</ul></details>")
    return "\n".join(lines)


def contents(page: Page | None) -> str:
    """Returns the HTML of "On this page", the headings of the second level; empty if there are fewer than two."""
    if page is None or len(page.headings) < 2:
        return ""
    items = "\n".join(f'<li><a href="#{name}">{html.escape(words)}</a></li>' for name, words in page.headings)
    return f'<aside aria-label="On this page"><p>On this page</p><ul>\n{items}\n</ul></aside>\n'


def framed(here: str, title: str, body: str, sections: dict[str, list[Page]], page: Page | None) -> str:
    """Returns the complete HTML document of a page."""
    top = relative(".", here)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)} · Torchette</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{top}/page.css">
</head>
<body data-top="{top}">
<a class="skip" href="#content">Skip to the text</a>
<nav aria-label="Pages">
<p><a class="name" href="{relative("index.html", here)}">Torchette</a></p>
<input id="search" type="search" placeholder="Search  /" aria-label="Search" autocomplete="off">
<ol id="found" hidden></ol>
{navigation(here, sections, page)}
</nav>
<main id="content">
{body}</main>
{contents(page)}<script src="{top}/index.js" defer></script>
<script src="{top}/page.js" defer></script>
</body>
</html>
"""


def sources(linked: Sequence[Path]) -> Iterator[tuple[str, Path, str | None]]:
    """Yields (file of the site, file of the tree, HTML) of each linked file; the HTML is None for a file that is copied."""
    for path in linked:
        lexer = lexer_of(path)
        code = None
        if lexer is not None:
            text = highlight(path.read_text(encoding="utf-8"), lexer, HtmlFormatter(nowrap=True))
            code = f"<h1>{path.relative_to(ROOT)}</h1>\n<pre><code>{text}</code></pre>\n"
        yield file_target(path), path, code


def build(folder: Path, generated: Sequence[Path] = ()) -> list[Path]:
    """Replaces the folder with the site and returns its HTML files."""
    targets = {path: target_of(path, generated) for path in [*pages(), *generated]}
    pages_by_path = {path: Page(path, target, targets) for path, target in targets.items()}
    sections = menu(pages_by_path)
    shutil.rmtree(folder, ignore_errors=True)
    written = {
        page.target: framed(page.target, page.title, page.body, sections, page)
        for page in pages_by_path.values()
    }
    for target, path, code in sources(sorted(set().union(*(page.linked for page in pages_by_path.values())))):
        if code is None:
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / target)
        else:
            written[target] = framed(target, path.name, code, sections, None)
    for target, text in written.items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        (folder / target).write_text(text, encoding="utf-8")
    index = [[page.title, *section] for page in pages_by_path.values() for section in page.sections]
    (folder / "index.js").write_text(
        f"const INDEX = {json.dumps(index, ensure_ascii=False)};\n", encoding="utf-8"
    )
    for name in ("page.css", "page.js"):
        shutil.copy(HERE / name, folder)
    return [folder / target for target in written]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    count = len(build(Path(sys.argv[1]), [Path(name).resolve() for name in sys.argv[2:]]))
    print(f"{count} pages: {Path(sys.argv[1]) / 'index.html'}")
