// SPDX-License-Identifier: BSD-3-Clause
// Operations on strings that filters and methods share. Strings are UTF-8, positions count characters.
#pragma once

#include <string>

#include "torchette/llm/text/unicode.h"

namespace torchette::extension::llm::jinja {

/// The characters of a string; none if it is not UTF-8.
Text characters(const std::string& text);

/// Removes leading and trailing characters of `set`, or whitespace if it is null.
std::string strip(const std::string& text, const std::string* set, bool left = true, bool right = true);
/// Replaces the first `count` occurrences of `from`; a negative count replaces all. An empty `from` occurs
/// between all characters.
std::string replace(const std::string& text, const std::string& from, const std::string& to, int64_t count);

/// The text with `fill` on both sides, to `width` characters. The parts of the sides are `left` and `right`;
/// in the middle, Python's str.center() decides about an odd character.
std::string padded(const std::string& text, int64_t width, char fill, int left, int right);

enum class Case : uint8_t { Upper, Lower, Capitalize, Title };
constexpr size_t kWorkOfCase = 8;  // steps for each byte; see append_upper()
std::string change_case(const std::string& text, Case to);

}  // namespace torchette::extension::llm::jinja
