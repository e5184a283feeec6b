// SPDX-License-Identifier: BSD-3-Clause
// Expressions of GBNF, the language of grammar.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace torchette::extension::llm::schema {

/// A literal.
std::string quoted(std::string_view text);
/// A character in a class.
std::string class_member(char32_t c);
std::string join(const std::vector<std::string>& parts, const char* separator);
/// The integers from `low` to `high`, which are digits without a sign.
std::string unsigned_range(const std::string& low, const std::string& high);

}  // namespace torchette::extension::llm::schema
