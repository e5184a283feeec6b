# SPDX-License-Identifier: BSD-3-Clause
# Sizes and durations with units; text that is not a size is refused; no other module formats sizes.

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import torchette
from torchette.units import byte_count, byte_text, duration_text


@pytest.mark.parametrize(("text", "count"), [("7", 7), ("64K", 65536), ("2 MiB", 2 << 20), ("1gb", 1 << 30)])
def test_byte_count_accepts_units(text: str, count: int) -> None:
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "K", "-1", "1.5K", "64Q"])
def test_byte_count_rejects_text_that_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a number of bytes"):
        byte_count(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (48_100, "48.1 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (4_448_000, "4.45 MB"),
        (25.4e9, "25.4 GB"),
        (3e15, "3000 TB"),
    ],
)
def test_byte_text_is_decimal_with_three_digits(count: float, text: str) -> None:
    assert byte_text(count) == text


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_reports_page_formats_sizes_alike() -> None:
    page = Path(torchette.__file__).parent / "devtools" / "report" / "page" / "program.js"
    function = re.search(
        r"^function bytes\(.*?^}", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert function is not None
    counts = [0, 999, 1000, 48_100, 999_499, 999_500, 4_448_000, 25_400_000_000]
    script = f"{function[0]} console.log(JSON.stringify({counts}.map(bytes)))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [byte_text(count) for count in counts]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (200, "3 min"), (7300, "2 h")])
def test_duration_text_has_one_unit(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_no_other_module_formats_sizes() -> None:
    """The chat page in the browser has its own formatter."""
    root = Path(torchette.__file__).parent
    formatted = re.compile(r"\} ?(kB|KB|KiB|MB|MiB|GB)\b(?!/s)")
    files = [
        str(path.relative_to(root))
        for pattern in ("*.py", "*.js")
        for path in root.rglob(pattern)
        if formatted.search(path.read_text(encoding="utf-8"))
    ]
    assert files == ["llm/web/chat.js"]
