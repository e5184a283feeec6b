// SPDX-License-Identifier: BSD-3-Clause
// Regular expressions of JSON schemas as expressions of GBNF.
#pragma once

#include <optional>
#include <string>

namespace torchette::extension::llm::schema {

/// Characters that JSON strings contain only as escapes, in a class.
extern const char kEscapedCharacters[];

/// An expression of strings in which `pattern` matches, for characters that JSON writes without an escape.
/// Sets `*reason` and returns nothing if GBNF cannot express the pattern.
std::optional<std::string> pattern_expression(const std::string& pattern, std::string* reason);

}  // namespace torchette::extension::llm::schema
