// SPDX-License-Identifier: BSD-3-Clause
// Value: a value of a template expression. Integers, floats, strings, lists and dicts behave as in Python.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/llm/text/json.h"

namespace torchette::extension::llm::jinja {

struct Node;

struct Value {
  enum class Kind : uint8_t { Undefined, None, Bool, Int, Float, String, List, Dict, Macro };
  using List = std::vector<Value>;
  using Dict = std::vector<std::pair<std::string, Value>>;

  Kind kind = Kind::Undefined;
  int64_t integer = 0;  // Int; Bool as 0 or 1
  double real = 0;      // Float
  std::string text;     // String; the name of an Undefined value; the digits of a Float beyond int64
  // Copies share their items. Only a namespace changes after it was made.
  std::shared_ptr<List> list;
  std::shared_ptr<Dict> dict;   // also of a tuple with attributes, and the variables around a Caller
  bool is_tuple = false;        // of a List
  const Node* macro = nullptr;  // also of the variable `loop` of a recursive loop: the loop

  Value() = default;
  static Value undefined(std::string name);
  static Value none();
  static Value of(bool value);
  static Value of(int64_t value);
  static Value of(size_t value) { return of(static_cast<int64_t>(value)); }
  static Value of(double value);
  static Value of(std::string value);
  static Value of(List value);
  static Value tuple(List value);
  static Value of(Dict value);
  static Value of_macro(const Node* node);
  static Value of_json(const Json& json);

  bool is(Kind k) const { return kind == k; }
  bool is_integer() const { return kind == Kind::Bool || kind == Kind::Int; }
  bool is_number() const { return is_integer() || kind == Kind::Float; }
  /// Whether a Float is an integer that int64 cannot store.
  bool is_big_integer() const { return kind == Kind::Float && !text.empty(); }
  /// The value of a number.
  double as_double() const { return kind == Kind::Float ? real : static_cast<double>(integer); }
  /// Python's bool().
  bool is_true() const;
  /// The value of a dict's key or of a tuple's attribute. Null if there is none.
  const Value* find(std::string_view key) const;
};
using Kind = Value::Kind;

/// Sets the value of a key.
void set_key(Value::Dict* dict, const std::string& key, Value value);
/// The (key, value) pairs of a dict.
Value::List items_of_dict(const Value& dict);
/// Python's ==. Values share items, so a comparison may be long: it ends when `*work`, which it decrements
/// for each pair, is negative.
bool is_equal(const Value& a, const Value& b, int64_t* work, int depth = 0);
/// Python's str(); empty for undefined values and macros.
std::string to_string(const Value& value);
/// Python's repr(). A text that is too long ends after kMaxString.
std::string to_repr(const Value& value);

/// The arguments of Python's json.dumps.
struct JsonForm {
  bool ensure_ascii = false;
  bool is_indented = false;
  std::string indent;  // of one level
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};
/// Appends a value as json.dumps writes it. Returns why that is not possible, or null.
const char* append_json(const Value& value, const JsonForm& form, std::string* out, int depth = 0);

}  // namespace torchette::extension::llm::jinja
