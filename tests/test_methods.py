# SPDX-License-Identifier: BSD-3-Clause
# Arguments for all methods or by method, and names of methods that do not exist.

from __future__ import annotations

import types

import pytest

from torchette.errors import InputTypeError
from torchette.methods import by_method

METHODS = ("encode", "decode")


def test_none_is_the_value_of_no_method():
    assert by_method(None, METHODS, "calibration") == {}


@pytest.mark.parametrize("shared", [3, (1, 2), [], "text", False])
def test_all_methods_share_a_value_that_is_not_a_mapping(shared):
    values = by_method(shared, METHODS, "calibration")
    assert list(values) == ["encode", "decode"] and all(value is shared for value in values.values())


def test_one_value_belongs_to_forward_by_default():
    assert by_method(3) == {"forward": 3}


def test_a_mapping_is_copied_and_may_name_some_methods_only():
    mapping = types.MappingProxyType({"decode": 1})
    values = by_method(mapping, METHODS, "calibration")
    assert values == {"decode": 1} and type(values) is dict
    values["encode"] = 2
    assert "encode" not in mapping


def test_methods_may_be_an_iterator():
    assert by_method(1, iter(METHODS), "calibration") == dict.fromkeys(METHODS, 1)
    with pytest.raises(InputTypeError):
        by_method({"other": 1}, iter(METHODS), "calibration")


def test_unknown_methods_are_named_with_the_known_ones():
    with pytest.raises(InputTypeError) as caught:
        by_method({"train": 1, "decode": 2, "eval": 3}, METHODS, "calibration")
    assert "calibration is given for eval, train, which is not a method" in str(caught.value)
    assert caught.value.hints == ("methods: decode, encode",)


def test_names_are_not_checked_without_the_argument_s_name():
    assert by_method({"train": 1}) == {"train": 1}
