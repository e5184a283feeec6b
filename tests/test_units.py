# SPDX-License-Identifier: BSD-3-Clause
# Sizes with and without units; text that is not a size is refused.

from __future__ import annotations

import pytest

from torchette.units import byte_count


@pytest.mark.parametrize(("text", "count"), [("7", 7), ("64K", 65536), ("2 MiB", 2 << 20), ("1gb", 1 << 30)])
def test_byte_count_accepts_units(text: str, count: int) -> None:
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "K", "-1", "1.5K", "64Q"])
def test_byte_count_refuses_text_that_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="no number of bytes"):
        byte_count(text)
