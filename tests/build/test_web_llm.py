# SPDX-License-Identifier: BSD-3-Clause
# Language models in WebAssembly: llm.js in Node.js generates the same tokens as `Session`.

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.build import chromium
from tests.building import ROOT, run
from tests.llm.engine.test_runner import CHUNK, PROMPT, Small, small  # noqa: F401
from torchette import cli, llm

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wasm")]

MESSAGES = [{"role": "user", "content": 'Say "hello" 😀\n'}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}[assistant]"
)


@pytest.fixture(scope="module")
def folder(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed (pip install ziglang)")
    folder = tmp_path_factory.mktemp("talk")
    source = folder / "source"
    shutil.copytree(small.folder, source, ignore=shutil.ignore_patterns("*.pte"))
    (source / "chat_template.jinja").write_text(TEMPLATE)
    llm.export(source, max_prefill=CHUNK).save(folder / "model.pte")
    site = folder / "site"
    arguments = ["build", "--target", "wasm32-browser", "--llm", "--optimize", "size"]
    assert cli.main([*arguments, str(folder / "model.pte"), "-o", str(site)]) == 0
    return site


def test_answers_match_session(folder: Path) -> None:
    program = shutil.which("node")
    if program is None:
        pytest.skip("Node.js is not installed (apt install nodejs)")
    script = Path(__file__).with_name("llm_test.mjs")
    got = json.loads(run(program, "--no-warnings", script, folder, PROMPT, json.dumps(MESSAGES)).stdout)
    session = llm.Session(folder / "model.pte")
    greedy = session.generate(PROMPT, max_tokens=40, ignore_end=True).run()
    chat = session.chat(MESSAGES, max_tokens=9).run()
    assert got["greedy"]["tokens"] == got["again"]["tokens"] == got["alive"] == greedy.tokens
    assert len(got["unset"]["tokens"]) == 40
    assert got["continued"] == got["rewound"] == greedy.tokens
    assert greedy.tokens[0] not in got["biased"] and len(got["biased"]) == 40
    another = "TorchetteError InvalidState: another answer of this Llm is not complete"
    assert all(message.startswith(another) for message in got["busy"][:2]), got["busy"]
    assert got["busy"][2] == "TorchetteError InvalidState: rewind() has ended this answer"
    assert got["chat"]["text"] == chat.text and got["rendered"] == session.render(MESSAGES)
    assert got["decoded"] == "Grüße 😀" and got["encoded"] == session.encode("Grüße 😀", special=False)
    assert got["context"] == session.max_context and 0 < got["left"] <= session.max_context + 1
    assert (got["statistics"]["generated_tokens"], got["statistics"]["finish_reason"]) == (40, "length")
    expected = {
        "nan": 'InvalidArgument: top_p must be a number above 0 and at most 1, got "NaN"',
        "position": "InvalidArgument: there is no position -1",
        "file": "InvalidProgram: the file is truncated",
        "url": "AccessFailed: ENOENT",
        "tokenizer": "InvalidExternalData: ",
    }
    assert expected.keys() == got["errors"].keys()
    for name, text in expected.items():
        assert got["errors"][name].startswith(f"TorchetteError {text}"), got["errors"][name]


def test_page_files_exist(folder: Path) -> None:
    """The files that the page loads exist, and the runtime is small."""
    for name in ("index.html", "chat.js", "worker.js", "llm.js"):
        text = (folder / name).read_text(encoding="utf-8")
        for named in re.findall(r'(?:href|src|from|Worker\(|new URL\()\s*=?\s*"(?:\./)?([\w.]+)"', text):
            assert (folder / named).exists(), (name, named)
    ids = set(re.findall(r'id="(\w+)"', (folder / "index.html").read_text()))
    assert set(re.findall(r'find\("(\w+)"\)', (folder / "chat.js").read_text())) <= ids
    assert (folder / "torchette_llm.wasm").stat().st_size < 1_000_000


def test_the_guides_script_runs(folder: Path) -> None:
    program = shutil.which("node")
    if program is None:
        pytest.skip("Node.js is not installed (apt install nodejs)")
    page = (ROOT / "docs/browser.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```javascript\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (folder / "guide.mjs").write_text(script, encoding="utf-8")
    printed = run(program, "--no-warnings", folder / "guide.mjs").stdout
    session = llm.Session(folder / "model.pte")
    assert printed.startswith(session.chat([{"role": "user", "content": "Hello"}], max_tokens=64).run().text)


def test_page_chats_in_browser(folder: Path) -> None:
    """Its answer matches a session; the page stays responsive; nothing is loaded from other hosts."""
    chromium.find()
    session = llm.Session(folder / "model.pte")
    expected = session.chat([{"role": "user", "content": "Hello"}], max_tokens=60).run().text
    with chromium.Served(folder) as url, chromium.Chromium() as page:
        page.open(url, "document.body.dataset.ready === ''")
        page.value(
            """(() => {
              window.lengths = new Set(); window.turns = 0; window.longest = 0;
              let last = performance.now();
              setInterval(() => { window.turns += 1; const now = performance.now(); window.longest = Math.max(window.longest, now - last); last = now; }, 1);
              const list = document.getElementById("messages");
              new MutationObserver(() => window.lengths.add(list.textContent.length)).observe(list, {childList: true, subtree: true, characterData: true});
              document.getElementById("most").value = "60";
              document.getElementById("question").value = "Hello";
              document.getElementById("form").requestSubmit();
            })()"""
        )
        page.wait("document.getElementById('facts').textContent.includes('tokens ·')")
        script = "[...document.querySelectorAll('#messages li.assistant')].map((item) => item.textContent)"
        assert page.value(script) == [expected]
        assert page.value("window.lengths.size") > 5 and page.value("window.turns") > 5
        origins = page.value(
            "performance.getEntriesByType('resource').map((entry) => new URL(entry.name).origin)"
        )
        assert origins and set(origins) == {url}
        page.value("document.getElementById('clear').click()")
        assert page.value(script) == [] and not page.errors, page.errors
