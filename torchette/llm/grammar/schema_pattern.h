// SPDX-License-Identifier: BSD-3-Clause
// Regular expressions of JSON schemas, in the syntax of ECMA-262 with Unicode, as expressions of GBNF.
#pragma once

#include <optional>
#include <string>

namespace torchette::extension::llm::schema {

/// Characters that JSON strings contain only as escapes, and DEL, in a class.
extern const char kEscapedCharacters[];

/// Returns an expression of the JSON strings, without their quotes, in which `pattern` matches. A set of
/// characters accepts a character unescaped, or as JSON must escape it (\n or \u000a for a line feed). Sets
/// `*reason` and returns nothing if GBNF cannot express the pattern: lookaround, references to groups, \b,
/// \B, properties, flags.
std::optional<std::string> pattern_expression(const std::string& pattern, std::string* reason);

/// Returns an expression of the texts that `pattern` matches from beginning to end, with unescaped
/// characters. Errors as pattern_expression.
std::optional<std::string> text_expression(const std::string& pattern, std::string* reason);

}  // namespace torchette::extension::llm::schema
