# SPDX-License-Identifier: BSD-3-Clause
# Runs the C++ tests of torchette/extension with a program that Torchette compiles.

from __future__ import annotations

import re
from pathlib import Path

from tests.building import ROOT, built, run
from torchette import receipt


def test_cpp(two_methods: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.pte"
    secret.write_bytes(bytes(byte ^ 0x5A for byte in two_methods.read_bytes()))
    signed, damaged = tmp_path / "signed.pte", tmp_path / "damaged.pte"
    contents = receipt.sign(two_methods.read_bytes())
    signed.write_bytes(contents)
    damaged.write_bytes(contents[:-400] + bytes([contents[-400] ^ 1]) + contents[-399:])
    output = run(built("torchette_extension_test"), two_methods, secret, signed, damaged).stdout
    assert re.search(r"\d{3,} checks, 0 failures", output)


def test_a_loader_that_decrypts_has_15_lines() -> None:
    """The guide shows the loader that the C++ test runs."""
    source = (ROOT / "tests/extension/extension_test.cpp").read_text(encoding="utf-8")
    loader = re.search(r"^class XorDataLoader.*?^};\n", source, re.MULTILINE | re.DOTALL)[0]
    assert loader in (ROOT / "docs/cpp-core.md").read_text(encoding="utf-8") and loader.count("\n") <= 15
