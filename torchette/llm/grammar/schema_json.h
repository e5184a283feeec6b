// SPDX-License-Identifier: BSD-3-Clause
// JSON values of schemas: compared by value and written with the digits that they have.
#pragma once

#include <string>
#include <string_view>

#include "torchette/llm/text/json.h"
#include "torchette/runtime/compiler.h"

namespace torchette::extension::llm::schema {

bool is_bool(const Json& json);
/// Whether a value is a number without a fraction, such as 1, 1.0 and 1e3.
bool is_integer(const Json& json);
/// Compares two values: numbers by value, objects in any order.
bool is_equal(const Json& a, const Json& b);

/// The value of a key, or null.
const Json* find(const Json& object, std::string_view key);
void set(Json* object, const std::string& key, Json value);
/// The members of an object with a key for which `keeps` is true.
Json only_keys(const Json& object, bool (*keeps)(std::string_view));
/// An empty value of a kind.
Json empty(Json::Kind kind);
/// Of members with the same key, keeps the last value at the first position. Recursive.
void merge_duplicate_keys(Json* json);

/// Returns JSON with a space after a comma and a colon. Escapes only the characters for which JSON requires
/// it. Numbers keep their text.
std::string dump(const Json& json);

/// std::snprintf() into at most 63 characters.
std::string format(const char* form, ...) TORCHETTE_FORMAT(1, 2);

}  // namespace torchette::extension::llm::schema
