# SPDX-License-Identifier: BSD-3-Clause
# In: every Markdown page of the tree. Out: its code runs, its commands exist, its links lead somewhere.
# Python blocks of a page run in order in one namespace, C++ blocks compile; `torchette ...` lines of shell blocks run
# as commands, in a folder that holds what a page's reader would have; blocks in no language are pictures and output.

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from torchette import cli, errors

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "torchette").rglob("*.md")])
NET = """\
import torch

class Net(torch.nn.Module):
    example_inputs = (torch.ones(1, 3, 224, 224),)

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3, stride=16)

    def forward(self, image):
        return self.convolution(image).relu().flatten(1)
"""


class Block(NamedTuple):
    language: str
    line: int
    text: str


def blocks(page: Path) -> Iterator[Block]:
    found: list[str] | None = None
    language, start = "", 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            if found is None:
                found, language, start = [], line[3:].strip(), number
            else:
                yield Block(language, start, "\n".join(found) + "\n")
                found = None
        elif found is not None:
            found.append(line)
    assert found is None, f"{page.relative_to(ROOT)}:{start}: a code block without an end"


def with_language(*languages: str) -> list[Path]:
    return [page for page in PAGES if any(block.language in languages for block in blocks(page))]


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def made_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages speak of: model.py, net.pte, program.pt2, photo.npy."""
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("reader")
    (folder / "model.py").write_text(NET)
    np.save(folder / "photo.npy", np.ones((1, 3, 224, 224), np.float32))
    for page in PAGES:  # a block that begins with a file's name is that file
        for block in blocks(page):
            if named := re.match(r"(?://|#) (\w+\.(?:cpp|yaml))\n", block.text):
                (folder / named[1]).write_text(block.text)
    namespace: dict[str, type] = {}
    exec(NET, namespace)
    net = namespace["Net"]()
    torch.export.save(
        torch.export.export(net.eval(), namespace["Net"].example_inputs), folder / "program.pt2"
    )
    assert cli.main(["compile", f"{folder}/model.py:Net", "-o", f"{folder}/net.pte"]) == 0
    return folder


@pytest.fixture
def reader(made_reader: Path, tmp_path: Path) -> Path:
    """A page's own copy: pages save other models under the same names."""
    return shutil.copytree(made_reader, tmp_path / "reader")


@pytest.mark.parametrize("page", with_language("python"), ids=page_id)
def test_python_blocks_run(page: Path, reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader)
    # A module, since torch imports the one that a traced function says it comes from.
    module = types.ModuleType("__page__")
    monkeypatch.setitem(sys.modules, "__page__", module)
    namespace = vars(module)
    for block in blocks(page):
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", with_language("cpp"), ids=page_id)
def test_cpp_blocks_compile(page: Path) -> None:
    compiler = [os.environ.get("CXX", "c++"), "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", f"-I{ROOT}"]
    for block in blocks(page):
        if block.language == "cpp":
            done = subprocess.run(
                [*compiler, "-x", "c++", "-"], input=block.text, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{page.relative_to(ROOT)}:{block.line}\n{done.stderr}"


@pytest.mark.parametrize("page", with_language("sh", "bash"), ids=page_id)
def test_commands_run(page: Path, reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader)
    dev_help = subprocess.run([ROOT / "dev", "--help"], capture_output=True, text=True, check=True).stdout
    for block in blocks(page):
        if block.language not in ("sh", "bash"):
            continue
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            words = shlex.split(line, comments=True)
            place = f"{page.relative_to(ROOT)}:{number}"
            if words[:1] == ["torchette"]:
                assert cli.main(words[1:]) == 0, f"{place}: {line}"
            elif words[:1] == ["executor_runner"]:
                runner = ROOT / "build" / "dev" / "executor_runner"
                if runner.exists():
                    done = subprocess.run([runner, *words[1:]], capture_output=True, text=True)
                    assert done.returncode == 0, f"{place}: {done.stderr}"
            elif words[:1] == ["./dev"]:
                assert re.search(rf"^  {re.escape(words[1])}\b", dev_help, re.M) or words[1] == "--help", (
                    place
                )
            else:
                assert not words or words[0] in ("pip", "git", "cmake", "python"), (
                    f"{place}: cannot check {line!r}"
                )


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them, and those that it sets itself."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ +(.+)$", text, re.M)
    return set(re.findall(r'<a id="([\w-]+)"></a>', text)) | {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            dead.append(target)
    assert not dead, f"{page.relative_to(ROOT)}: {dead}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        for target in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8")):
            there = (page.parent / target).resolve()
            if there.is_dir():
                todo += there.glob("*.md")
            elif there.exists():
                todo.append(there)
    assert not sorted(map(page_id, set(PAGES) - reached))


def test_the_error_page_names_every_code() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| <a id=\"[\w-]+\"></a>`([\w-]+)` \| `(\w+)`", text, re.M))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    classes = {kind.code: kind.__name__ for kind in kinds}
    assert documented.items() >= classes.items()
    # the others are given where the error is raised
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "torchette").rglob("*.py"))
    raised = set(re.findall(r"""\bcode=["']([\w-]+)["']""", sources))
    assert documented.keys() - classes.keys() == raised - classes.keys()
