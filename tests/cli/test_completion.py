# SPDX-License-Identifier: BSD-3-Clause
# `torchette completion`: bash completes with the script; the scripts of other shells contain every command and option.

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from torchette import cli
from torchette.cli import completion

SHELLS = sorted(completion.SCRIPTS)


def script(shell: str) -> str:
    return completion.SCRIPTS[shell](list(completion.commands(cli._parser())))


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Completions of bash for each line, in a folder with net.pte."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    folder = tmp_path_factory.mktemp("completion")
    (folder / "net.pte").touch()
    lines = {
        "torchette ru": "torchette ru",
        "torchette compile --quantize int8-": "torchette compile --quantize int8-",
        "torchette compile --quantize=8": "torchette compile --quantize = 8",
        "torchette run --met": "torchette run --met",
        "torchette llm ": "torchette llm ''",
        "torchette llm compile --cache f": "torchette llm compile --cache f",
        "torchette completion z": "torchette completion z",
        "torchette run n": "torchette run n",
        "torchette run --output n": "torchette run --output n",
    }
    calls = "\n".join(
        f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _torchette; "
        f'echo {shlex.quote(line)}"|${{COMPREPLY[*]}}"'
        for line, words in lines.items()
    )
    done = subprocess.run(
        [bash, "--norc", "-uc", f"{script('bash')}\n{calls}"], cwd=folder, capture_output=True, text=True
    )
    assert not done.stderr, done.stderr
    return {
        line: offered.split() for line, _, offered in (row.partition("|") for row in done.stdout.splitlines())
    }


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torchette ru", ["run"]),
        ("torchette compile --quantize int8-", ["int8-dynamic", "int8-weight-only"]),
        ("torchette compile --quantize=8", ["8da4w"]),
        ("torchette run --met", ["--method"]),
        ("torchette llm ", ["compile", "adapter"]),
        ("torchette llm compile --cache f", ["float32", "float16"]),
        ("torchette completion z", ["zsh"]),
        ("torchette run n", []),  # bash completes files
        ("torchette run --output n", []),
    ],
)
def test_bash_completes(completed: dict[str, list[str]], line: str, expected: list[str]) -> None:
    assert completed[line] == expected


def test_bash_falls_back_to_files() -> None:
    assert script("bash").endswith("complete -o default -F _torchette torchette")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_command_and_option(shell: str) -> None:
    text = script(shell)
    for one in completion.commands(cli._parser()):
        assert all(re.search(rf"\b{re.escape(word)}\b", text) for word in one.words)
        names = [name.lstrip("-") if shell == "fish" else name for name in one.options]
        assert all(f" {name}" in text or f"'{name}:" in text or f'"{name}' in text for name in names)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell))
    done = subprocess.run([program, "-n", tmp_path / "script"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_fish_completes(tmp_path: Path) -> None:
    program = shutil.which("fish")
    if program is None:
        pytest.skip("fish is not installed")
    lines = ["torchette ru", "torchette compile --quantize int8-", "torchette llm ad", "torchette run --meth"]
    calls = "\n".join(f"complete -C {shlex.quote(line)}" for line in lines)
    (tmp_path / "script").write_text(f"{script('fish')}\n{calls}\n")
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [program, "--no-config", tmp_path / "script"], capture_output=True, text=True, env=env
    )
    offered = [line.partition("\t")[0] for line in done.stdout.splitlines()]
    assert offered == ["run", "int8-dynamic", "int8-weight-only", "adapter", "--method"], done.stderr


def test_zsh_completes(tmp_path: Path) -> None:
    program = shutil.which("zsh")
    if program is None:
        pytest.skip("zsh is not installed")
    # Stubs of zsh's completion functions that print the completions.
    stubs = "compdef() {}; _files() { print files }; _describe() { print -r -- ${${(@P)2}%%:*} }"
    calls = "\n".join(
        f"words=({line}); CURRENT=$#words; PREFIX=${{words[-1]}}; _torchette"
        for line in (
            "torchette ''",
            "torchette compile --quantize ''",
            "torchette run net",
            "torchette run -",
        )
    )
    (tmp_path / "script").write_text(f"{stubs}\n{script('zsh')}\n{calls}\n")
    done = subprocess.run([program, "-f", tmp_path / "script"], capture_output=True, text=True)
    verbs, schemes, file, options = done.stdout.splitlines()
    assert verbs.split() == cli.verbs() and schemes.split()[:2] == ["int8", "int8-dynamic"]
    assert file == "files" and {"-h", "--inputs", "--method"} <= set(options.split())
