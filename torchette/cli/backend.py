# SPDX-License-Identifier: BSD-3-Clause
# In: a name. Out: a folder with a complete backend: compiler and runtime parts, a build, the conformance suite.
"""Create a backend: a complete one that adds and multiplies

Writes NAME/ with a partitioner, a preprocess, a runtime in C++, a CMakeLists.txt and a test that builds the runtime,
registers it and runs the conformance suite. It is a copy of the null backend under another name, as a starting point.

examples:
  torchette backend new acme
  torchette backend new acme -o drivers
"""

from __future__ import annotations

import argparse
import keyword
from pathlib import Path

import torchette
from torchette.cli import DONE, UsageError

TEMPLATE = Path(torchette.__file__).parent / "backends" / "null"

_CMAKE = """\
# cmake -B build -DCMAKE_PREFIX_PATH="$(torchette --cmake-prefix)" && cmake --build build
cmake_minimum_required(VERSION 3.20)
project({name} LANGUAGES CXX)
find_package(torchette REQUIRED)
add_library({name} MODULE runtime.cpp)
target_link_libraries({name} PRIVATE torchette::torchette)
set_target_properties({name} PROPERTIES PREFIX "lib" CXX_VISIBILITY_PRESET hidden)
"""

_ENTRY = """
// Programs that load this library call this function.
extern "C" __attribute__((visibility("default"))) torchette::Backend* torchette_backend() {{
  return &torchette::{name}_backend;
}}
"""

_TEST = '''\
"""Conformance tests of the backend. Build it first; see CMakeLists.txt."""

from pathlib import Path

import pytest
from {name} import {Name}Partitioner
from torchette.backends import conformance
from torchette.runtime import Runtime

LIBRARY = Path(__file__).parent / "build" / "lib{name}.so"


@pytest.fixture(scope="session", autouse=True)
def registered():
    registry = Runtime.get().backend_registry
    if not registry.is_available("{Name}Backend"):
        registry.load(LIBRARY)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_conformance(check):
    try:
        check({Name}Partitioner)
    except conformance.Unclaimed as unclaimed:
        pytest.skip(f"the backend does not accept {{unclaimed}}")
'''


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["new"], help="the action")
    parser.add_argument(
        "name", metavar="NAME", help="the backend's name: lower case, valid in Python and C++"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="the parent of the new folder (default: the current folder)",
    )


def run(options: argparse.Namespace) -> int:
    name, folder = options.name, options.output / options.name
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower() or name.startswith("_"):
        raise UsageError(f"{name!r} is not a package name: use lower-case letters, digits and _")
    if folder.exists():
        raise UsageError(f"{folder} already exists")
    camel = "".join(part.capitalize() for part in name.split("_"))
    texts = {
        file: (TEMPLATE / file).read_text(encoding="utf-8")
        for file in ("__init__.py", "partitioner.py", "preprocess.py", "runtime.cpp")
    }
    words = [
        ("torchette.backends.null", name),
        ("Null", camel),
        ("null_backend", f"{name}_backend"),
        ("null backend", f"{name} backend"),
        ('f"null ', f'f"{name} '),
        ("NUL1", (camel.upper() + "___")[:3] + "1"),
        (
            "{'N', 'U', 'L', '1'}",
            "{{{}, {}, {}, '1'}}".format(*(f"'{c}'" for c in (camel.upper() + "___")[:3])),
        ),
    ]
    folder.mkdir(parents=True)
    for file, text in texts.items():
        for old, new in words:
            text = text.replace(old, new)
        (folder / file).write_text(text, encoding="utf-8")
    with (folder / "runtime.cpp").open("a", encoding="utf-8") as runtime:
        runtime.write(_ENTRY.format(name=name))
    (folder / "CMakeLists.txt").write_text(_CMAKE.format(name=name), encoding="utf-8")
    (folder / f"test_{name}.py").write_text(_TEST.format(name=name, Name=camel), encoding="utf-8")
    print(f"created {folder}; CMakeLists.txt describes the build, and test_{name}.py tests the backend")
    return DONE
