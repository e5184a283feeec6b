# SPDX-License-Identifier: BSD-3-Clause
# In: shapes and words. Out: an SVG document in light colours, in dark colours, or in those that the reader's machine prefers.
"""SVG elements and documents. `torchette memory --svg` and the figures of docs/ are drawn with them."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from string import Template

# Text, secondary text, page, panel and its border, lines, highlight and its border, then the colours c0, c1, ... of data.
_NAMES = ("text", "quiet", "page", "panel", "border", "line", "mark", "edge")
SERIES = 8
THEMES: dict[str, tuple[str, ...]] = {
    "light": (
        "#1f2328", "#59636e", "#ffffff", "#f6f8fa", "#d1d9e0", "#818b98", "#ddf4ff", "#54aeff",
        "#b6d9ff", "#ffd8a8", "#b9e8c4", "#f7c6d9", "#d8ccff", "#c5e9ee", "#f0e3a0", "#dfd5cb",
    ),
    "dark": (
        "#f0f6fc", "#9198a1", "#0d1117", "#151b23", "#3d444d", "#9198a1", "#0c2d4d", "#388bfd",
        "#1d4f8f", "#7a4a12", "#1f6138", "#7a2f50", "#4f3a94", "#1f5f6b", "#66591a", "#574b40",
    ),
}  # fmt: skip
_RULES = Template("""
  text { fill: $text } .quiet { fill: $quiet } .page { fill: $page }
  .panel { fill: $panel; stroke: $border } .mark { fill: $mark; stroke: $edge } .tick { stroke: $border }
  .arrow { stroke: $line } .head { fill: $line } .dot { fill: $edge; stroke: $page } .path { stroke: $edge }
""")
_STYLE = """
  text { font: 13px system-ui, sans-serif } .middle { text-anchor: middle } .end { text-anchor: end }
  .small { font-size: 11px } .title { font-size: 15px; font-weight: 600 } .mono { font-family: ui-monospace, monospace }
  .tick { stroke-dasharray: 4 4 } .arrow { stroke-width: 1.5; fill: none; marker-end: url(#head) }
  .path { fill: none; stroke-width: 1.5 } .box { stroke-opacity: .35; stroke-width: .6 } .box:hover { stroke-width: 2 }
"""
_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
)


def text(x: float, y: float, words: str, kind: str = "", extra: str = "") -> str:
    """Returns words with their baseline at y. `kind` names classes such as "quiet small end"; `extra` is more attributes."""
    return f'<text{_class(kind)} x="{x:g}" y="{y:g}"{extra}>{escape(words)}</text>'


def rectangle(
    x: float, y: float, width: float, height: float, kind: str = "panel", about: str = "", radius: float = 0
) -> str:
    """Returns a rectangle; `about` is its tooltip."""
    size = f'width="{_short(width)}" height="{_short(height)}"' + (f' rx="{radius:g}"' if radius else "")
    title = f"<title>{escape(about)}</title>" if about else ""
    shape = f'<rect{_class(kind)} x="{_short(x)}" y="{_short(y)}" {size}'
    return f"{shape}>{title}</rect>" if title else f"{shape}/>"


def circle(x: float, y: float, radius: float, kind: str = "dot", about: str = "") -> str:
    """Returns a circle; `about` is its tooltip."""
    title = f"<title>{escape(about)}</title>"
    return f'<circle{_class(kind)} cx="{_short(x)}" cy="{_short(y)}" r="{radius:g}">{title}</circle>'


def path(commands: str, kind: str = "path") -> str:
    """Returns a path; the kind "arrow" has a head at its end."""
    return f'<path{_class(kind)} d="{commands}"/>'


def tick(x1: float, y1: float, x2: float, y2: float) -> str:
    """Returns a dashed line."""
    return path(f"M{_short(x1)} {_short(y1)} L{_short(x2)} {_short(y2)}", "tick")


def series(index: int) -> str:
    """Returns the kind of a data box; colours repeat after the last one."""
    return f"box c{index % SERIES}"


def fitting(words: str, width: float, size: float = 11) -> str:
    """Returns the words if they fit into the width in pixels at this font size, else an empty text."""
    return words if len(words) * size * 0.6 <= width else ""


def document(
    title: str,
    width: float,
    height: float,
    elements: Iterable[str],
    *,
    theme: str | None = None,
    style: str = "",
) -> str:
    """Returns an SVG document.

    Args:
        title: what a screen reader says.
        width: width of the document in pixels.
        height: height of the document in pixels.
        elements: the elements, from back to front.
        theme: "light" or "dark", without a background, for a page in these colours. None follows the reader's machine, on
            an opaque background.
        style: additional CSS rules.
    """
    if theme is None:
        rules = f"{_rules('light')}  @media (prefers-color-scheme: dark) {{{_rules('dark')}  }}"
        elements = [rectangle(0, 0, width, height, "page"), *elements]
    else:
        rules = _rules(theme)
    body = "\n".join(elements)
    head = _HEAD if 'class="arrow"' in body else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" '
        f'role="img">\n<!-- SPDX-License-Identifier: BSD-3-Clause -->\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}{rules}{style}</style>\n{head}{body}\n</svg>\n"
    )


def _rules(theme: str) -> str:
    colours = dict(zip(_NAMES, THEMES[theme]))
    data = THEMES[theme][len(_NAMES) :]
    boxes = " ".join(f".c{index} {{ fill: {colour} }}" for index, colour in enumerate(data))
    return f"{_RULES.substitute(colours)}  {boxes} .box {{ stroke: {colours['text']} }}\n"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
