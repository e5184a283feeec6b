# SPDX-License-Identifier: BSD-3-Clause
# In: the URL of a language model. Out: the files of its chat page, for `torchette build` and `torchette serve`.
"""The chat page: `chat_page`."""

from __future__ import annotations

import html
from urllib.parse import quote

from torchette.build.sources import PACKAGE

CONTENT_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript"}
FOLDER = PACKAGE / "llm" / "web"


def chat_page(model: str | None, *, on_server: bool = False) -> dict[str, bytes]:
    """Returns the files of the chat page by name.

    Args:
        model: the URL of the model that the page opens, relative to the page; None if the user chooses a file.
        on_server: whether the URL belongs to OpenAI's endpoint ``v1/models``, and the page uses that server. Otherwise,
            the URL is that of a .pte file, and the browser runs the model with torchette_llm.wasm and torchette.js.
    """
    files = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix != ".cpp"}
    client = files.pop("server.js")  # defines the same class as llm.js
    if on_server:
        files["llm.js"] = client
    if model is not None:
        body = f'<body data-model="{html.escape(model)}">'
        files["index.html"] = files["index.html"].replace(b"<body>", body.encode())
    return files


def served_page(name: str) -> dict[str, tuple[bytes, str]]:
    """Returns the chat page of a server for its model `name`: by path, the bytes and the type of each file."""
    files = chat_page(f"v1/models/{quote(name, '')}", on_server=True)
    return {
        f"/{file.removeprefix('index.html')}": (data, CONTENT_TYPES[file.rpartition(".")[2]])
        for file, data in files.items()
    }
