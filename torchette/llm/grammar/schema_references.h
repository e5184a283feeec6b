// SPDX-License-Identifier: BSD-3-Clause
// References of JSON schemas to other parts of the schema.
#pragma once

#include <string>

#include "torchette/llm/text/json.h"

namespace torchette::extension::llm::schema {

/// Writes each `$ref` that names an `$id`, an `$anchor` or a JSON pointer within an `$id` as a JSON pointer
/// from the root: `#` or `#/...`. Other references keep their text.
void resolve_references(Json* root);
/// Follows a JSON pointer from the root. Returns null if it leads nowhere or `reference` is not such a
/// pointer.
const Json* follow(const Json& root, const std::string& reference);

}  // namespace torchette::extension::llm::schema
