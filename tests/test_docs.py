# SPDX-License-Identifier: BSD-3-Clause
# In: every Markdown page of the tree. Out: its code runs, its commands, files, names and link targets exist, and the lists and
# counts that it repeats are those of the code.
# Python blocks of a page run in order in one namespace, C++ blocks compile; `torchette ...` lines of shell blocks run
# as commands, in a folder with the files of a page's reader; blocks without a language are figures and output.

from __future__ import annotations

import argparse
import functools
import importlib
import io
import itertools
import re
import shlex
import shutil
import socketserver
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.building import CXX, LAUNCHER
from tests.llm import double
from tests.models import zoo
from torchette import cli, errors, targets

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for name in ("benchmarks", "docs", "torchette") for page in (ROOT / name).rglob("*.md")),
    ]
)
NET = """\
import torch

class Net(torch.nn.Module):
    example_inputs = (torch.ones(1, 3, 224, 224),)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.convolution = torch.nn.Conv2d(3, 4, 3, stride=16)

    def forward(self, image):
        return self.convolution(image).relu().flatten(1)
"""


class Block(NamedTuple):
    language: str
    line: int
    text: str


def blocks(page: Path) -> Iterator[Block]:
    lines: list[str] | None = None
    language, start = "", 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            if lines is None:
                lines, language, start = [], line[3:].strip(), number
            else:
                yield Block(language, start, "\n".join(lines) + "\n")
                lines = None
        elif lines is not None:
            lines.append(line)
    assert lines is None, f"{page.relative_to(ROOT)}:{start}: a code block without an end"


def with_language(*languages: str) -> list[Path]:
    return [page for page in PAGES if any(block.language in languages for block in blocks(page))]


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def made_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages use: model.py, net.pte, net.bpte, program.pt2, photo.npy, chat.pte, a language
    model, and smollm, the folder of a language model before compilation."""
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
    from torchette.devtools.bundle import BundledProgram, MethodTestCase, MethodTestSuite

    image = namespace["Net"].example_inputs
    suite = MethodTestSuite("forward", [MethodTestCase(image, net.eval()(*image))])
    bundle = BundledProgram(None, [suite], folder / "net.pte").serialize()
    (folder / "net.bpte").write_bytes(bundle)
    (folder / "chat.pte").write_bytes(double.program())
    library = zoo.declare_torchvision_operators()  # noqa: F841
    save_smollm(folder / "smollm")
    return folder


def save_smollm(folder: Path) -> None:
    """Writes a small Llama with random weights in the format of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes)).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(double.tokenizer_json())
    (folder / "chat_template.jinja").write_text(double.TEMPLATE)


@pytest.fixture
def reader(made_reader: Path, tmp_path: Path) -> Path:
    """A separate copy for each page: pages save other models under the same names."""
    return shutil.copytree(made_reader, tmp_path / "reader")


@pytest.mark.parametrize("page", with_language("python"), ids=page_id)
@pytest.mark.filterwarnings(
    "default::torchette.errors.DelegationWarning", "default::torchette.errors.MissingKernelWarning"
)
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
def test_cpp_blocks_compile(page: Path, tmp_path: Path) -> None:
    compiler = [
        *LAUNCHER,
        CXX,
        "-std=c++17",
        "-Wall",
        "-Werror",
        f"-I{ROOT}",
        "-c",
        "block.cpp",
        "-o",
        "block.o",
    ]
    for block in blocks(page):
        if block.language == "cpp":
            (tmp_path / "block.cpp").write_text(block.text)
            done = subprocess.run(compiler, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, f"{page.relative_to(ROOT)}:{block.line}\n{done.stderr}"


def with_commands() -> list:
    """Pages with commands, without and with builds for other machines. Only --full runs those builds: tests/build covers
    them."""
    params = []
    for page in with_language("sh", "bash"):
        params.append(pytest.param(page, False, id=page_id(page)))
        if re.search("^torchette build --target", page.read_text(encoding="utf-8"), re.M):
            params.append(pytest.param(page, True, id=f"{page_id(page)}-builds", marks=pytest.mark.slow))
    return params


@functools.cache
def dev_help() -> str:
    return subprocess.run([ROOT / "dev", "--help"], capture_output=True, text=True, check=True).stdout


def debian_compiler(target: str) -> list[str]:
    """Returns options that select an installed cross compiler, because ziglang first compiles the target's C library for minutes.
    The tests of each target do that with --full, and those of WebAssembly always."""
    gcc = targets.find(target).gcc
    return ["--compiler", gcc] if gcc and shutil.which(f"{gcc}g++") else []


@pytest.mark.parametrize(("page", "builds"), with_commands())
def test_commands_run(page: Path, builds: bool, reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader)
    monkeypatch.setattr(socketserver.BaseServer, "serve_forever", lambda self: None)  # until Ctrl-C
    for block in blocks(page):
        if block.language not in ("sh", "bash"):
            continue
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            words = shlex.split(line, comments=True)
            place = f"{page.relative_to(ROOT)}:{number}"
            runner = ROOT / "build" / "dev" / "executor_runner"
            if words[:2] == ["torchette", "validate"] and not runner.exists():
                continue
            if words[:3] == ["torchette", "build", "--target"]:
                if not builds:
                    continue
                if "--compiler" not in words:
                    words += debian_compiler(words[3])
            if words[:1] == ["torchette"]:
                monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n/reset\nWho are you?\n/exit\n"))
                assert cli.main(words[1:]) == 0, f"{place}: {line}"
            elif words[:1] == ["executor_runner"]:
                if runner.exists():
                    done = subprocess.run([runner, *words[1:]], capture_output=True, text=True)
                    assert done.returncode == 0, f"{place}: {done.stderr}"
            elif words[:1] == ["./dev"]:
                assert re.search(rf"^  {re.escape(words[1])}\b", dev_help(), re.M) or words[1] == "--help", (
                    place
                )
            else:
                assert not words or words[0] in ("pip", "git", "cmake", "python", "python3"), (
                    f"{place}: cannot check {line!r}"
                )


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings on code hosts, and the anchors that it defines."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ +(.+)$", text, re.M)
    return set(re.findall(r'<a id="([\w-]+)"></a>', text)) | {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }


# Templates of files that commands write for users, with @NAME@ as a placeholder.
TEMPLATES = sorted((ROOT / "torchette").rglob("*.in"))


@pytest.mark.parametrize("page", [*PAGES, *TEMPLATES], ids=page_id)
def test_link_targets_exist(page: Path) -> None:
    """Links to other hosts are not followed, but must not refer to this project, which is not published there."""
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            if "torchette" in target:
                dead.append(target)
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            dead.append(target)
    assert not dead, f"{page.relative_to(ROOT)}: {dead}"


# The terms that ExecuTorch's glossary and first pages explain.
WORDS = """AOT, ATen, ATen dialect, ATen mode, autograd-safe ATen dialect, backend, backend dialect, backend registry,
backend-specific operator, Buck2, CMake, codegen, Core ATen operators, Core ATen dialect, custom operator, DataLoader,
decomposition table, delegation, DSP, dtype, dynamic quantization, dynamic shapes, eager mode, Edge dialect, Edge operators,
executor_runner, EXIR, ExportedProgram, flatbuffer, framework tax, functional ATen operators, fusion, graph, graph mode,
higher-order operator, hybrid quantization, IR, kernel, kernel registry, lowering, memory planning, method, node, operator,
out variant, PAL, partial kernel, partitioner, portable kernels, portable mode, program, program source code, PTQ, QAT,
quantization, runtime, SDK, selective build, static quantization, XNNPACK"""


def test_the_glossary_has_every_word_in_order() -> None:
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    bold = set(re.findall(r"\*\*(.+?)\*\*", text))
    missing = [word for word in re.split(r",\s+", WORDS) if word not in bold]
    assert not missing, missing
    words = [match[1].lower() for match in re.finditer(r"^\| \*\*(.+?)\*\*", text, re.M)]
    assert len(set(words)) == len(words) > 70
    assert words == sorted(words), next(pair for pair in itertools.pairwise(words) if pair[0] > pair[1])


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
    documented, bases, name = {}, {}, ""
    for line in (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").splitlines():
        if row := re.match(r"\| \*\*`(\w+)`\*\*(?:, `(\w+)`)? \|", line):
            name, bases[row[1]] = row[1], row[2]
        elif row := re.match(r"\| <a id=\"([\w-]+)\"></a>`\1` \|", line):
            documented[row[1]] = name
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    classes = {kind.code: kind.__name__ for kind in kinds}
    assert documented.items() >= classes.items()
    assert all(
        base is None or base in [base_class.__name__ for base_class in getattr(errors, kind).__mro__]
        for kind, base in bases.items()
    )
    # other codes are arguments of raise statements
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "torchette").rglob("*.py"))
    raised = set(re.findall(r"""\bcode=["']([\w-]+)["']""", sources))
    assert documented.keys() - classes.keys() == raised - classes.keys()


def spans(page: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each piece of inline code."""
    fenced = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.startswith("```")
        if not fenced:
            yield from ((number, text) for text in re.findall(r"`([^`]+)`", line))


def known_options(parser: argparse.ArgumentParser) -> set[str]:
    options = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for nested in action.choices.values():
                options |= known_options(nested)
    return options


@functools.cache
def known_verbs() -> dict[str, set[str]]:
    """Returns the options of the verbs, by name."""
    parsers = next(
        action.choices for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    return {verb: known_options(parser) for verb, parser in parsers.items()}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_names_in_inline_code_exist(page: Path) -> None:
    """Verbs and options of the command line, `./dev` commands, files of this tree, names in Python."""
    verbs = known_verbs()
    library = zoo.declare_torchvision_operators()  # noqa: F841
    tops = {path.name for folder in (ROOT, ROOT / "torchette") for path in folder.iterdir() if path.is_dir()}
    wrong = []
    for line, text in spans(page):
        words = text.split()
        if words[0] == "torchette" and len(words) > 1 and words[1][0].islower():
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            good = words[1] in verbs and options <= verbs[words[1]]
        elif words[0] == "./dev" and len(words) > 1:
            good = bool(re.search(rf"^  {re.escape(words[1])}\b", dev_help(), re.M)) or words[1] == "--help"
        elif re.fullmatch(r"[a-z]\w*(/[\w.-]+)+/?", text) and text.partition("/")[0] in tops - {"build"}:
            good = any((folder / text).exists() for folder in (ROOT, ROOT / "torchette", page.parent))
        elif re.fullmatch(r"torchette(\.\w+)+(?<!\.ts)(?<!\.js)", text):
            good = _resolves(text)
        else:
            good = True
        if not good:
            wrong.append(f"{line}: {text}")
    assert not wrong, f"{page_id(page)}: {wrong}"


def _resolves(name: str) -> bool:
    """Returns whether a dotted name is a module or an attribute of a module."""
    module, _, attributes = name, "", ""
    while module:
        try:
            value: object = importlib.import_module(module)
        except ImportError:
            module, _, last = module.rpartition(".")
            attributes = f"{last}.{attributes}" if attributes else last
            continue
        for part in attributes.split(".") if attributes else ():
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def test_the_page_of_the_command_line_has_every_verb() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    shown = re.findall(r"^torchette ([\w-]+)", text, re.M)
    assert sorted(set(shown)) == cli.verbs()


def test_counts_are_those_that_the_commands_print() -> None:
    """`torchette ops` counts kernels and operators, `benchmarks/architectures.md` architectures; pages repeat them."""
    from torchette.cli import ops

    # a separate process: code of the pages registers kernels in this process
    code = "from torchette.runtime import operator_names; print(*operator_names())"
    kernels = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split())
    core = list(ops.coverage(kernels))
    zoo = len(
        re.findall(r"^\| `", (ROOT / "benchmarks" / "architectures.md").read_text(encoding="utf-8"), re.M)
    )
    printed = {
        r"\b(\d+(?:,\d{3})*) kernels\b": [f"{len(kernels):,}"],
        r"\b(\d+) of (\d+) Core ATen operators": [
            f"{sum(bool(row['runs as']) for row in core)}", f"{len(core)}",
        ],
        r"\b(\d+) architectures\b": [f"{zoo}"],
    }  # fmt: skip
    num_mentions = dict.fromkeys(printed, 0)
    for page in PAGES:
        for pattern, counts in printed.items():
            for match in re.finditer(pattern, page.read_text(encoding="utf-8")):
                assert list(match.groups()) == counts, f"{page_id(page)}: {match[0]!r} should be {counts}"
                num_mentions[pattern] += 1
    assert all(num_mentions.values()), num_mentions


def table(page: str, head: str) -> list[list[str]]:
    """Returns the cells of the rows below the line that begins with `head`."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(head))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_table_of_targets_is_complete() -> None:
    from torchette.targets import TARGETS

    rows = table("cross-compile.md", "| target | |")
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(row[0] for row in rows))) == sorted(TARGETS)


def test_the_table_of_boards_is_theirs() -> None:
    from torchette.build.bare.boards import BOARDS, Region

    def text(region: Region) -> str:
        size, unit = (region.size >> 10, "K") if region.size % (1 << 20) else (region.size >> 20, "M")
        return f"{size}{unit} at 0x{region.origin:08x}"

    rows = {row[0].strip("`"): row[1:] for row in table("port-to-a-board.md", "| board | processor |")}
    assert rows == {board.name: [board.text, text(board.flash), text(board.ram)] for board in BOARDS.values()}


def test_no_text_names_a_package_that_cannot_be_installed() -> None:
    """Until a release is on PyPI, `pip install` names a checkout, a wheel or other packages."""
    wrong = []
    for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split():
        path = ROOT / name
        if name.startswith("tests/") or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        matches = re.finditer(
            r"pip install [^\n`]*?(?<![/\w-])torchette(?!-)\b|pypi\.org/project/torchette", text
        )
        wrong += [f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}" for match in matches]
    assert not wrong, wrong
