// SPDX-License-Identifier: BSD-3-Clause
// JSON as a tree. Input that is not JSON, or is nested too deeply, is an error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

struct Json {
  enum class Kind : uint8_t { Null, False, True, Number, String, Array, Object };

  Kind kind = Kind::Null;
  double number = 0;
  std::string text;  // of a string; of a number, its digits
  std::vector<Json> items;
  std::vector<std::string> keys;  // of an object, one for each item

  static constexpr int kMaxSchemaDepth = 400;  // of schemas; their JSON is nested twice as deep
  /// Parses JSON. Error: InvalidExternalData (the log states the position).
  static Result<Json> parse(std::string_view text, int max_depth = 32);
  /// Reads the value at `*at`, which then is the position after the value. Returns whether there is a value.
  /// Logs nothing.
  static bool read(std::string_view text, size_t* at, Json* out, int max_depth = 32);

  bool is(Kind k) const { return kind == k; }
  bool is_string() const { return kind == Kind::String; }
  /// The member of an object, or a null value.
  const Json& operator[](std::string_view key) const;
  bool flag(std::string_view key, bool otherwise = false) const;
  std::string_view string(std::string_view key, std::string_view otherwise = {}) const;
  /// An integer from 0 to 2^31 - 1, or -1.
  int64_t index() const;
};

/// The format of a tree as text.
struct JsonStyle {
  std::string (*number)(const Json&);
  std::string (*string)(std::string_view);  // quotes included
  const char *comma, *colon;
};
std::string write_json(const Json& json, const JsonStyle& style);

/// Returns `text` as a JSON string, with its quotes and the escapes of Python's json.dumps. Bytes that are
/// not UTF-8 stay; with `ensure_ascii`, they become U+FFFD.
std::string json_string(std::string_view text, bool ensure_ascii = false);
/// Python's repr() of a float: the fewest digits that read back as the same value.
std::string float_repr(double value);
/// Returns a tree as JSON without spaces.
std::string to_json(const Json& json);

}  // namespace torchette::extension::llm
