# SPDX-License-Identifier: BSD-3-Clause
# Runs docs/llm-cpp.md and docs/llm-c.md: the installed package, a CMake project, a program in C, `torchette build --llm`.

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.building import BUILD, CC, CXX, ROOT, built, run
from tests.extension.test_guides import installed  # noqa: F401
from tests.llm.engine.test_runner import CONTEXT, PROMPT, Small, small  # noqa: F401
from torchette import cli


def block(language: str) -> str:
    """Returns the first code block in a language; the one in C is in the page of C."""
    text = (ROOT / "docs" / f"llm-{'c' if language == 'c' else 'cpp'}.md").read_text(encoding="utf-8")
    match = re.search(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    assert match is not None
    return match[1]


@pytest.fixture
def prefix(installed: Path) -> Path:  # noqa: F811
    built("torchette_llm", "torchette_llm_shared", "llm_runner")
    run("cmake", "--install", BUILD, "--prefix", installed, "--component", "llm")
    return installed


def answer(small: Small) -> str:  # noqa: F811
    ids = small.tokenizer.encode(PROMPT).ids
    tokens = small.expected(ids, min(64, CONTEXT - len(ids)), eos_token_id=small.end)[len(ids) :]
    assert tokens.pop() == small.end
    known = [token for token in tokens if token < small.tokenizer.get_vocab_size()]
    return small.tokenizer.decode(known).partition("\n\n")[0]


@pytest.mark.gate
def test_the_guides(prefix: Path, small: Small, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "CMakeLists.txt").write_text(block("cmake"))
    (tmp_path / "main.cpp").write_text(block("cpp"))
    run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    done = run(tmp_path / "build" / "talk", small.path, PROMPT)
    assert done.stdout == answer(small) and "ended by: stop" in done.stderr

    (tmp_path / "talk.c").write_text(block("c"))
    library = prefix / "lib"
    flags = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I", prefix / "include", f"-L{library}")
    run(CC, tmp_path / "talk.c", "-o", tmp_path / "talk", *flags, f"-Wl,-rpath,{library}", "-ltorchette_llm")
    assert run(tmp_path / "talk", small.path, PROMPT).stdout == answer(small)
    assert run(prefix / "bin" / "llm_runner", "--help").stdout.startswith("usage: llm_runner")


@pytest.mark.slow
def test_a_build_for_language_models(small: Small, tmp_path: Path) -> None:  # noqa: F811
    """A build of `torchette build --llm` answers like the library of this checkout."""
    from torchette.build import library, toolchain
    from torchette.targets import find

    built("torchette_shared")
    driver = toolchain.find_compiler(find("host"), CXX)
    objects = toolchain.compile_units(driver, library.llm_units(library.flags(small=True)), None)
    toolchain.archive(driver, objects, tmp_path / "libtorchette_llm.a")
    library.write_headers(tmp_path / "include", bare=False, llm=True)
    (tmp_path / "main.cpp").write_text(block("cpp"))
    run(
        *(CXX, "-std=c++17", tmp_path / "main.cpp", "-o", tmp_path / "talk", "-I", tmp_path / "include"),
        *(f"-L{tmp_path}", "-ltorchette_llm", "-ltorchette", f"-L{BUILD}", f"-Wl,-rpath,{BUILD}"),
    )
    assert run(tmp_path / "talk", small.path, PROMPT).stdout == answer(small)


def test_llm_build_for_a_target_without_files_is_an_error(tmp_path: Path) -> None:
    assert cli.main(["build", "--target", "cortex-m4", "--llm", "-o", str(tmp_path / "built")]) == 2
