// SPDX-License-Identifier: BSD-3-Clause
// Merges two JSON schemas into a schema of the values that both accept.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "torchette/llm/text/json.h"

namespace torchette::extension::llm::schema {

/// Whether a keyword is only an annotation, which accepts every value.
bool is_annotation(std::string_view key);
/// The keywords of a schema that are not annotations.
Json constraints_of(const Json& schema);
/// Returns the merged schema, or the schema `false` if no value matches both. References are not resolved.
/// Sets
/// `*reason` and returns nothing if one schema cannot express the conjunction.
std::optional<Json> conjunction(const Json& a, const Json& b, std::string* reason);

}  // namespace torchette::extension::llm::schema
