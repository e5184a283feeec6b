# SPDX-License-Identifier: BSD-3-Clause
# The generated page of error messages contains the messages of both languages, each with a text.

from __future__ import annotations

import runpy
from typing import Any

import pytest

from tests.building import ROOT


@pytest.fixture(scope="module")
def collector() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs/site/messages.py"))


@pytest.fixture(scope="module")
def messages(collector: dict[str, Any]) -> list[Any]:
    result: list[Any] = collector["messages"]()
    return result


@pytest.mark.parametrize(
    ("path", "kind", "text", "hints"),
    [
        ("torchette/files.py", "`FormatError`", "{name} is a folder, not a file", "{*hints}"),
        ("torchette/capture/pt2e.py", "`InputTypeError`", "expected a torchao quantizer", "pass an instance"),
        (
            "torchette/devtools/diff/comparison.py",
            "`InputError`",
            "no model and no file to compare",
            "pass a model",
        ),
        ("torchette/runtime/method.cpp", "`InvalidArgument`", "input %zu must be a tensor", ""),
        (
            "torchette/llm/engine/tools.cpp",
            "`Error`",
            "this build has no JSON schemas; tool_choice must be",
            "",
        ),
        ("torchette/extension/runner/executor_runner.cpp", "`fail`", "cannot open {path}", ""),
    ],
)
def test_page_contains_message(
    collector: dict[str, Any], messages: list[Any], path: str, kind: str, text: str, hints: str
) -> None:
    matches = [one for one in messages if one.path == path and one.text.startswith(text)]
    assert matches, f"no message of {path} begins with {text!r}"
    assert matches[0].kind == kind
    assert matches[0].hints.startswith(hints)
    page = collector["page"](messages)
    assert f"## {path}\n" in page
    assert f"| {matches[0].line} | {kind} | " in page


def test_every_message_has_a_text(messages: list[Any]) -> None:
    assert len(messages) > 2000
    assert not [one for one in messages if not one.text.strip() or not one.kind.strip("`")]


def test_cpp_message_is_read_whole(collector: dict[str, Any]) -> None:
    source = """
  TORCHETTE_CHECK(name == "a" && b.size() > 2,
                  InvalidArgument,
                  "first (%zu), " "second",
                  b.size());
  TORCHETTE_LOG(Info, "not an error");
  return fail("--" + name + R"( needs "a" value)");
"""
    read = [(one.line, one.kind, one.text) for one in collector["cpp_messages"]("a.cpp", source)]
    assert read == [
        (2, "`InvalidArgument`", "first (%zu), second"),
        (7, "`fail`", '--{name} needs "a" value'),
    ]
