# SPDX-License-Identifier: BSD-3-Clause
# libFuzzer on loading and executing: neither the stored corpus nor a few seconds of new inputs cause an error of a sanitizer. For
# hours of fuzzing: build/fuzz/torchette_fuzz FOLDER.

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.building import built

CORPUS = Path(__file__).parent / "corpus.tar.xz"
SECONDS = int(os.environ.get("TORCHETTE_FUZZ_SECONDS", "5"))

pytestmark = pytest.mark.safety

WITHOUT = "no clang with libFuzzer: ./dev tools, or apt-get install clang libclang-rt-dev"


def run(*command: str | Path, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)


@pytest.fixture(scope="module")
def clang(tmp_path_factory: pytest.TempPathFactory) -> str:
    source = tmp_path_factory.mktemp("clang") / "fuzz.cpp"
    source.write_text(
        'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n'
    )
    for version in ("", *(f"-{number}" for number in range(22, 13, -1))):
        compiler = shutil.which(f"clang++{version}")
        if compiler is None:
            continue
        done = run(compiler, "-fsanitize=fuzzer,address,undefined", source, "-o", source.with_suffix(""))
        if done.returncode == 0:
            return compiler
    pytest.skip(WITHOUT)


@pytest.fixture(scope="module")
def fuzzer(clang: str) -> Path:
    return built("torchette_fuzz", tree="fuzz", options=[f"-DCMAKE_CXX_COMPILER={clang}"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    with tarfile.open(CORPUS) as archive:
        archive.extractall(folder, filter="data")
    assert len(list(folder.iterdir())) > 100
    return folder


def test_fuzzed_files_cause_no_undefined_behaviour(fuzzer: Path, corpus: Path, tmp_path: Path) -> None:
    limits = [f"-max_total_time={SECONDS}", "-max_len=4096", "-timeout=5", "-rss_limit_mb=1024"]
    # Linux counts the peak memory of the parent process for its child; the shell in between uses little memory.
    apart = ("sh", "-c", '"$0" "$@"; exit $?')
    done = run(*apart, fuzzer, corpus, *limits, f"-artifact_prefix={tmp_path}/", "-print_final_stats=1")
    assert done.returncode == 0, done.stderr[-6000:]
    assert "DONE" in done.stderr
