# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: one HTML page that shows it and asks for nothing else: style, script and contents are in it.
"""The report of a program: `write_report` makes a page that any browser opens, offline."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchette.devtools.report.contents import Times, contents
from torchette.format import pte

_HERE = Path(__file__).parent
# A folder in a checkout, packed where it is installed.
_PAGE = _HERE / "page" if (_HERE / "page").is_dir() else zipfile.Path(_HERE / "page.zip")
_SCRIPTS = ("program.js", "layout.js", "graph.js", "views.js", "app.js")


def write_report(
    source: str | os.PathLike[str] | bytes | pte.PteFile,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    times: Mapping[str, Times] | None = None,
    placements: Mapping[str, Any] | None = None,
    source_folders: Iterable[str | Path] | None = None,
) -> Path:
    """Writes the report of a program as one HTML file.

    Args:
        source: the path of a .pte file, its bytes, or a file that has been read.
        path: the page; a file of that name is replaced.
        name: what the page calls the program; by default the name of its file.
        times: by method, its profile (`torchette.devtools.profile.profile`); or its operations
            (`torchette.devtools.profile.operations`), if another machine ran it: the page has no limits of a processor then.
        placements: by method, why its calls run where they do (`EdgeProgramManager.delegation`).
        source_folders: where the model's Python files are, whose lines the page shows. By default the current folder and
            the folders that Python imports from; no file outside of them is read.

    Raises:
        FormatError, ModelNotFoundError: there is no such program.
    """
    if isinstance(source, (str, os.PathLike)):
        name = name or Path(source).name
        source = pte.load_file(Path(source))
    file = source if isinstance(source, pte.PteFile) else pte.read(source)
    known = contents(
        file, name or "program.pte", times=times, placements=placements, source_folders=source_folders
    )
    target = Path(path)
    target.write_text(page(known), encoding="utf-8")
    return target


def page(known: Mapping[str, Any]) -> str:
    """The page that shows what `contents` has found."""
    script = "(() => {\n" + "\n".join((_PAGE / it).read_text(encoding="utf-8") for it in _SCRIPTS) + "})();\n"
    # The page asks for nothing, and runs no script but its own: names in a file cannot become one.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    data = json.dumps(known, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    parts = {
        "policy": policy,
        "title": html.escape(f"{known['name']}: report"),
        "style": (_PAGE / "style.css").read_text(encoding="utf-8"),
        # "<" ends no script and opens no comment inside of JSON's strings when it is written so
        "contents": data.replace("<", "\\u003c"),
        "script": script,
    }
    template = (_PAGE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda match: parts[match[1]], template)
