# SPDX-License-Identifier: BSD-3-Clause
# The chat page that `torchette build --llm` writes opens the model that it was built with.

from __future__ import annotations

import html
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.llm import double
from torchette import cli
from torchette.build import toolchain, web
from torchette.build.web.chat import chat_page


def opened(index: bytes) -> str | None:
    """The URL of the model that the page opens."""
    match = re.search(r'<body data-model="(.*?)">', index.decode())
    return html.unescape(match[1]) if match else None


def test_the_page_opens_the_model_of_its_url() -> None:
    for url in ("tiny.pte", 'a"b<c>&d', None):
        files = chat_page(url)
        assert opened(files["index.html"]) == url
        assert {"chat.js", "chat.css", "worker.js", "llm.js"} < files.keys() and "server.js" not in files
    assert chat_page("x", on_server=True)["llm.js"] == (web.chat.FOLDER / "server.js").read_bytes()


@pytest.mark.parametrize("models", [["tiny.pte"], ["my model.pte", "other.pte"], []])
def test_build_writes_the_models_name_into_the_page(
    models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler is replaced: the page does not depend on it."""
    for name in models:
        (tmp_path / name).write_bytes(double.program())
    nothing = toolchain.Compiler((), (), (), "", True, True)
    monkeypatch.setattr(toolchain, "find_compiler", lambda target: nothing)
    monkeypatch.setattr(toolchain, "compile_units", lambda *args: [])
    monkeypatch.setattr(toolchain, "link", lambda compiler, objects, program, flags: program.touch())
    site = tmp_path / "site"
    paths = [str(tmp_path / name) for name in models]
    assert cli.main(["build", "--target", "wasm32-browser", "--llm", *paths, "-o", str(site)]) == 0
    url = opened((site / "index.html").read_bytes())
    assert (unquote(url) if url else None) == (models[0] if models else None)
    assert all((site / name).exists() for name in models)
