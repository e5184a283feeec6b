# SPDX-License-Identifier: BSD-3-Clause
# In: the Markdown pages of the tree, and generated ones. Out: a folder of HTML that a browser shows without a network: navigation,
# search, highlighted code; beside them the files that pages link to.
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
# Pages that docs/index.md does not name one by one, by folder; in the menu below those that it does.
GROUPS = {
    "Generated": "build/docs",
    "Parts": "torchette",
    "Measurements": "benchmarks",
    "Decisions": "docs/decisions",
}


def pages() -> list[Path]:
    """Every page of the tree."""
    folders = (ROOT / name for name in ("benchmarks", "docs", "torchette"))
    return sorted([*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))])


def anchor(heading: str) -> str:
    """Of a heading's Markdown, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


class Section(NamedTuple):
    """A heading and the text below it, as the search knows them."""

    title: str
    address: str
    text: str


class Page:
    """One page, parsed.

    Attributes:
        target: its file, relative to the site.
        title: its first heading.
        headings: (anchor, words) of those of the second level.
        sections: for the search.
        linked: files of the tree that it leads to.
    """

    def __init__(self, path: Path, target: str, targets: dict[Path, str]) -> None:
        self.path, self.target = path, target
        self._targets = targets
        self.headings: list[tuple[str, str]] = []
        self.sections: list[Section] = []
        self.linked: set[Path] = set()
        tokens = _parser().parse(path.read_text(encoding="utf-8"))
        seen: dict[str, int] = {}
        words: list[str] = []
        self.title = target
        for place, token in enumerate(tokens):
            if token.type == "heading_open":
                content = tokens[place + 1].content
                name = anchor(content)
                seen[name] = seen.get(name, -1) + 1
                token.attrSet("id", name + (f"-{seen[name]}" if seen[name] else ""))
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
                    words.append(child.content)
                words.append(" ")
            elif token.type == "fence":
                words.append(token.content)
            if self.sections:
                text = " ".join("".join(words).split())
                self.sections[-1] = self.sections[-1]._replace(text=text)
        self.body = _parser().renderer.render(tokens, _parser().options, {})

    def _address(self, link: str) -> str:
        """Of what a link of the page leads to, from the page."""
        path, _, rest = link.partition("#")
        if not path or re.match(r"[a-z]+:", link):
            return link
        there = (self.path.parent / path).resolve()
        if there.is_dir():  # the first page of it
            there = next((page for page in sorted(there.glob("*.md")) if page in self._targets), there)
        if there not in self._targets:
            self.linked.add(there)
        target = self._targets.get(there) or file_target(there)
        return relative(target, self.target) + (f"#{rest}" if rest else "")


def file_target(path: Path) -> str:
    """Where a linked file of the tree is shown."""
    name = path.relative_to(ROOT).as_posix()
    return name if lexer_of(path) is None else f"{name}.html"


def relative(target: str, here: str) -> str:
    """The way from one file of the site to another."""
    return os.path.relpath(target, os.path.dirname(here) or ".").replace(os.sep, "/")


def lexer_of(path: Path) -> Lexer | None:
    """None for a file that is not a source: a notebook, a licence, an image."""
    if path.suffix in ("", ".ipynb", ".png"):
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
            raise SystemExit(f"{language!r}, the language of a code block, is none that is known") from error
        return highlight(text, lexer, HtmlFormatter(nowrap=True))

    parser = MarkdownIt("commonmark", {"html": True, "highlight": code}).enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="table"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return parser


def target_of(path: Path, generated: Sequence[Path]) -> str:
    """The HTML of a page: the README is the first one."""
    if path == ROOT / "README.md":
        return "index.html"
    if path in generated:
        return f"generated/{path.stem}.html"
    return path.relative_to(ROOT).with_suffix(".html").as_posix()


def menu(found: dict[Path, Page]) -> list[tuple[str, list[Page]]]:
    """The groups of the navigation: what docs/index.md names in its order, then the rest by folder."""
    index = ROOT / "docs" / "index.md"
    first = [found[ROOT / "README.md"], found[index]]
    for link in re.findall(r"\]\(([\w./-]+\.md)", index.read_text(encoding="utf-8")):
        page = found.get((index.parent / link).resolve())
        if page is not None and page not in first:
            first.append(page)
    left = [page for page in found.values() if page not in first]
    groups = [("Torchette", first)]
    for name, folder in GROUPS.items():
        chosen = [page for page in left if page.path.is_relative_to(ROOT / folder)]
        groups.append((name, chosen))
        left = [page for page in left if page not in chosen]
    groups[0][1].extend(left)
    return groups


def framed(
    here: str, title: str, body: str, groups: Sequence[tuple[str, list[Page]]], page: Page | None
) -> str:
    """A whole page."""
    lines = []
    for name, members in groups:
        inside = page in members
        lines.append(
            f"<details{' open' if inside or name == 'Torchette' else ''}><summary>{name}</summary><ul>"
        )
        for member in members:
            current = ' aria-current="page"' if member is page else ""
            address = relative(member.target, here)
            lines.append(f'<li><a href="{address}"{current}>{html.escape(member.title)}</a>')
            if member is page and member.headings:
                parts = (
                    f'<li><a href="#{id}">{html.escape(words)}</a></li>' for id, words in member.headings
                )
                lines.append(f"<ul>{''.join(parts)}</ul>")
            lines.append("</li>")
        lines.append("</ul></details>")
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
<a class="skip" href="#content">To the text</a>
<nav aria-label="Pages">
<p><a class="name" href="{relative("index.html", here)}">Torchette</a></p>
<input id="search" type="search" placeholder="Search  /" aria-label="Search" autocomplete="off">
<ol id="found" hidden></ol>
{"".join(lines)}
</nav>
<main id="content">
{body}</main>
<script src="{top}/index.js" defer></script>
<script src="{top}/search.js" defer></script>
</body>
</html>
"""


def sources(linked: Sequence[Path]) -> Iterator[tuple[str, Path, str | None]]:
    """(file of the site, file of the tree, its HTML; None for one that is copied) of the files that pages lead to."""
    for path in linked:
        lexer = lexer_of(path)
        code = None
        if lexer is not None:
            text = highlight(path.read_text(encoding="utf-8"), lexer, HtmlFormatter(nowrap=True))
            code = f"<h1>{path.relative_to(ROOT)}</h1>\n<pre><code>{text}</code></pre>\n"
        yield file_target(path), path, code


def build(folder: Path, generated: Sequence[Path] = ()) -> list[Path]:
    """Writes the site anew; the HTML files that it has."""
    targets = {path: target_of(path, generated) for path in [*pages(), *generated]}
    found = {path: Page(path, target, targets) for path, target in targets.items()}
    groups = [(name, members) for name, members in menu(found) if members]
    shutil.rmtree(folder, ignore_errors=True)
    written = {
        page.target: framed(page.target, page.title, page.body, groups, page) for page in found.values()
    }
    for target, path, code in sources(sorted(set().union(*(page.linked for page in found.values())))):
        if code is None:
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / target)
        else:
            written[target] = framed(target, path.name, code, groups, None)
    for target, text in written.items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        (folder / target).write_text(text, encoding="utf-8")
    index = [[page.title, *section] for page in found.values() for section in page.sections]
    (folder / "index.js").write_text(
        f"const INDEX = {json.dumps(index, ensure_ascii=False)};\n", encoding="utf-8"
    )
    for name in ("page.css", "search.js"):
        shutil.copy(HERE / name, folder)
    return [folder / target for target in written]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    count = len(build(Path(sys.argv[1]), [Path(name).resolve() for name in sys.argv[2:]]))
    print(f"{count} pages: {Path(sys.argv[1]) / 'index.html'}")
