# SPDX-License-Identifier: BSD-3-Clause
# In: a .pte file. Out: a self-contained HTML page with style, script and data.
"""The report of a program: `write_report` writes a page that any browser opens, offline."""

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
# A folder in a checkout; a zip file in an installed package.
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
        source: path, bytes, or a file that was already read.
        path: path of the page; an existing file is replaced.
        name: name of the program on the page; by default the name of its file.
        times: profile of each method (`torchette.devtools.profile.profile`), or its operations
            (`torchette.devtools.profile.operations`) if another machine ran it; then the page has no processor limits.
        placements: by method, the backend of each call and the reason (`EdgeProgramManager.delegation`).
        source_folders: folders of the model's Python files; the page shows their lines. By default the current folder
            and Python's import path. Files outside these folders are not read.

    Returns:
        The path of the page.

    Raises:
        ModelNotFoundError: the file does not exist.
        FormatError: the file is damaged.
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
    """Returns the HTML page for the result of `contents`."""
    script = (
        "(() => {\n" + "\n".join((_PAGE / path).read_text(encoding="utf-8") for path in _SCRIPTS) + "})();\n"
    )
    # The page loads nothing and runs only its own script, so that names in a file cannot run code.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    data = json.dumps(known, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    parts = {
        "policy": policy,
        "title": html.escape(f"{known['name']}: report"),
        "style": (_PAGE / "style.css").read_text(encoding="utf-8"),
        # Escaping "<" prevents JSON strings from ending the script or opening a comment.
        "contents": data.replace("<", "\\u003c"),
        "script": script,
    }
    template = (_PAGE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda match: parts[match[1]], template)
