# SPDX-License-Identifier: BSD-3-Clause
# C++ for tests. The CMake build trees of this checkout are configured once and shared by all tests and their processes:
# `dev`, which `./dev setup` creates, and the same sources under sanitizers. Single programs are compiled through the
# compiler cache.

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "dev"
CXX = os.environ.get("CXX", "c++")
CC = os.environ.get("CC", "cc")
# `./dev` and tests/conftest.py set ccache if it is installed; CMake reads the same variable.
LAUNCHER = shlex.split(os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", ""))
FETCHED = ROOT / ".torchette" / "xnnpack"  # by `./dev xnnpack`

_DEBUG = ("-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-Og", "-DTORCHETTE_BUILD_TESTS=ON")
_PLAIN = ("-DTORCHETTE_BUILD_PYTHON=OFF", "-DTORCHETTE_BUILD_EXECUTOR_RUNNER=OFF")
# AddressSanitizer and UndefinedBehaviorSanitizer, with all backends and the Python module; ThreadSanitizer; libFuzzer,
# with a separate compiler; torch's kernels.
TREES: dict[str, tuple[str, ...]] = {
    "asan": (*_DEBUG, "-DTORCHETTE_SANITIZE=ON", "-DTORCHETTE_ONE_LEVEL=ON"),
    # without the Vulkan device, which tests of threads do not use: its shaders compile in 4 s
    "tsan": (
        *(*_DEBUG, *_PLAIN, "-DTORCHETTE_ONE_LEVEL=ON", "-DTORCHETTE_VULKAN=OFF"),
        "-DCMAKE_CXX_FLAGS=-fsanitize=thread -g1",
    ),
    "aten": (*_PLAIN, "-DCMAKE_BUILD_TYPE=Release", "-DTORCHETTE_ATEN=ON", "-DTORCHETTE_ONE_LEVEL=ON"),
    "fuzz": (*_DEBUG, *_PLAIN, "-DTORCHETTE_SANITIZE=ON", "-DTORCHETTE_ONE_LEVEL=ON"),
}


def run(*command: str | Path, status: int = 0, **more) -> subprocess.CompletedProcess[str]:
    """Runs a command, and checks that its exit status is `status`; returns its output as text."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    assert done.returncode == status, (
        f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done


@contextlib.contextmanager
def locked(folder: Path = BUILD) -> Iterator[None]:
    """Locks the build folder against other processes. Skips the test if the checkout cannot be built."""
    if shutil.which("cmake") is None or not (BUILD / "CMakeCache.txt").exists():
        pytest.skip("not built by ./dev setup")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def configure() -> None:
    """Restores the state of the build folder after a test that built a wheel in it."""
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    # another version of cmake would change the command lines, and everything would be compiled again
    cmake = next(line.partition("=")[2] for line in cache.splitlines() if line.startswith("CMAKE_COMMAND:"))
    run(cmake, "-S", ROOT, "-B", BUILD, "-U", "SKBUILD*", f"-DPython_EXECUTABLE={sys.executable}")


def built(*targets: str, tree: str = "dev", options: Sequence[str] = ()) -> Path:
    """Builds a target and returns the file of the first one, or of the Python module; compiles only changes.

    Args:
        tree: "dev" or one of TREES; it is configured again when its options change.
        options: additional options, for a tree that only one test uses.
    """
    folder = BUILD.with_name(tree)
    with locked(folder):
        if tree != "dev":
            _configured(folder, (*TREES[tree], *options))
        run("cmake", "--build", folder, *(word for target in targets for word in ("--target", target)))
    return next(folder.glob(f"{targets[0]}.*.so"), folder / targets[0])


def _configured(folder: Path, options: Sequence[str]) -> None:
    if folder.name == "asan":
        options = [*options, *_sanitized_xnnpack(folder / "library")]
    elif folder.name == "tsan" and (FETCHED / "build/libXNNPACK.a").exists():
        # The library is not instrumented: the sanitizer checks only how the backend shares its memory.
        options = [*options, f"-DTORCHETTE_XNNPACK_DIR={FETCHED}"]
    command = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *options]
    command.append(f"-DPython_EXECUTABLE={sys.executable}")
    stamp = folder / "configured"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != "\n".join(command):
        run(*command)
        stamp.write_text("\n".join(command), encoding="utf-8")


def _sanitized_xnnpack(library: Path) -> list[str]:
    """Returns CMake's option for XNNPACK under AddressSanitizer, which is built in the user's cache folder.

    The sources that check, pack and schedule are instrumented. The 859 sources of microkernels are instrumented only if
    TORCHETTE_SANITIZE_ALL is set: they read out of bounds on purpose, with attributes for the sanitizer, and need
    minutes to compile.
    """
    microkernels = FETCHED / "build/libmicrokernels-prod.a"
    if not microkernels.exists():
        return []
    environment = {**os.environ, "CFLAGS": "-fsanitize=address -fno-omit-frame-pointer -g1"}
    environment.pop("TORCHETTE_CACHE", None)  # the cache of tests belongs to the checkout
    if not os.environ.get("TORCHETTE_SANITIZE_ALL"):
        environment["MICROKERNELS"] = str(microkernels.resolve())
    run("bash", ROOT / "torchette/backends/xnnpack/build_library.sh", library, env=environment)
    return [f"-DTORCHETTE_XNNPACK_DIR={library.resolve()}"]


def program(
    path: Path, sources: Sequence[str | Path], *flags: str | Path, link: Sequence[str | Path] = ()
) -> Path:
    """Compiles each source with the flags, through the compiler cache if available, and links a program.

    Args:
        path: the program; objects are written next to it.
        sources: a relative path is relative to the program's folder. The compiler cache finds only such sources if they
            were compiled in another folder.
        link: libraries and flags of the linker.
    """
    objects = [path.with_name(f"{path.name}-{i}-{Path(source).stem}.o") for i, source in enumerate(sources)]

    def compile_source(source: str | Path, output: Path) -> None:
        # ccache compares the files that -MD lists instead of the preprocessed source
        environment = {**os.environ, "CCACHE_DEPEND": "1"}
        run(*LAUNCHER, CXX, *flags, "-MD", "-c", source, "-o", output, cwd=path.parent, env=environment)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_source, sources, objects))
    sanitizers = [flag for flag in flags if str(flag).startswith("-fsanitize")]
    run(CXX, *sanitizers, *objects, *link, "-o", path)
    return path
