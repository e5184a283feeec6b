// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "torchette/llm/text/jinja/limits.h"
#include "torchette/llm/text/jinja/strings.h"
#include "torchette/llm/text/json.h"

namespace torchette::extension::llm::jinja {
namespace {

Value of_kind(Kind kind) {
  Value value;
  value.kind = kind;
  return value;
}

/// Python's str.isprintable() of one character.
bool is_printable(char32_t c) {
  constexpr uint32_t kUnprintable = mask(Category::Cn) | mask(Category::Zs, Category::Co);
  return c == ' ' || !is_in(c, kUnprintable);
}

/// Appends Python's escape of a character in a string.
void append_escape(char32_t c, std::string* out) {
  constexpr std::string_view kFrom = "\n\r\t", kTo = "nrt";
  const size_t known = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
  if (known != std::string_view::npos) {
    (*out += '\\') += kTo[known];
    return;
  }
  char escaped[12];
  const char* const form = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(escaped, sizeof(escaped), form, static_cast<unsigned>(c));
  *out += escaped;
}

std::string string_repr(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (char32_t c : characters(text)) {
    if (c == static_cast<char32_t>(quote) || c == '\\') out += '\\';
    if (is_printable(c))
      append_utf8(c, &out);
    else
      append_escape(c, &out);
  }
  return out + quote;
}

/// An integer that does not fit into int64 is a Float with its digits.
Value number_of_json(const Json& json) {
  if (json.text.find_first_of(".eE") != std::string::npos) return Value::of(json.number);
  if (std::fabs(json.number) < 0x1p63)
    return Value::of(static_cast<int64_t>(std::strtoll(json.text.c_str(), nullptr, 10)));
  Value made = Value::of(json.number);
  made.text = json.text;
  return made;
}

}  // namespace

Value Value::undefined(std::string name) {
  Value value;
  value.text = std::move(name);
  return value;
}

Value Value::none() { return of_kind(Kind::None); }

Value Value::of(bool value) {
  Value made = of_kind(Kind::Bool);
  made.integer = value ? 1 : 0;
  return made;
}

Value Value::of(int64_t value) {
  Value made = of_kind(Kind::Int);
  made.integer = value;
  return made;
}

Value Value::of(double value) {
  Value made = of_kind(Kind::Float);
  made.real = value;
  return made;
}

Value Value::of(std::string value) {
  Value made = of_kind(Kind::String);
  made.text = std::move(value);
  return made;
}

Value Value::of(List value) {
  Value made = of_kind(Kind::List);
  made.list = std::make_shared<List>(std::move(value));
  return made;
}

Value Value::tuple(List value) {
  Value made = of(std::move(value));
  made.is_tuple = true;
  return made;
}

Value Value::of(Dict value) {
  Value made = of_kind(Kind::Dict);
  made.dict = std::make_shared<Dict>(std::move(value));
  return made;
}

Value Value::of_macro(const Node* node) {
  Value made = of_kind(Kind::Macro);
  made.macro = node;
  return made;
}

Value Value::of_json(const Json& json) {
  switch (json.kind) {
    case Json::Kind::False:
    case Json::Kind::True:
      return of(json.is(Json::Kind::True));
    case Json::Kind::Number:
      return number_of_json(json);
    case Json::Kind::String:
      return of(json.text);
    case Json::Kind::Array: {
      List list;
      for (const Json& item : json.items) list.push_back(of_json(item));
      return of(std::move(list));
    }
    case Json::Kind::Object: {
      Dict dict;
      for (size_t i = 0; i < json.items.size(); ++i) dict.emplace_back(json.keys[i], of_json(json.items[i]));
      return of(std::move(dict));
    }
    default:
      return none();
  }
}

bool Value::is_true() const {
  switch (kind) {
    case Kind::Bool:
    case Kind::Int:
      return integer != 0;
    case Kind::Float:
      return real != 0;
    case Kind::String:
      return !text.empty();
    case Kind::List:
      return !list->empty();
    case Kind::Dict:
      return !dict->empty();
    default:
      return kind == Kind::Macro;
  }
}

const Value* Value::find(std::string_view key) const {
  if (dict == nullptr || kind == Kind::Macro) return nullptr;
  for (const auto& [name, value] : *dict)
    if (name == key) return &value;
  return nullptr;
}

void set_key(Value::Dict* dict, const std::string& key, Value value) {
  for (auto& [name, old] : *dict)
    if (name == key) {
      old = std::move(value);
      return;
    }
  dict->emplace_back(key, std::move(value));
}

Value::List items_of_dict(const Value& dict) {
  Value::List list;
  for (const auto& [key, value] : *dict.dict) list.push_back(Value::tuple({Value::of(key), value}));
  return list;
}

bool is_equal(const Value& a, const Value& b, int64_t* work, int depth) {
  if (--*work < 0) return false;
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.kind != b.kind || a.is_tuple != b.is_tuple || depth > kMaxDepth) return false;
  if (a.is(Kind::String)) {
    *work -= static_cast<int64_t>(std::min(a.text.size(), b.text.size()) / 16);
    return a.text == b.text;
  }
  if (a.is(Kind::List))
    return std::equal(a.list->begin(), a.list->end(), b.list->begin(), b.list->end(),
                      [&](const Value& x, const Value& y) { return is_equal(x, y, work, depth + 1); });
  if (a.is(Kind::Dict)) {
    if (a.dict->size() != b.dict->size()) return false;
    for (const auto& [key, value] : *a.dict) {
      *work -= static_cast<int64_t>(b.dict->size() / 4);
      const Value* other = b.find(key);
      if (other == nullptr || !is_equal(value, *other, work, depth + 1)) return false;
    }
  }
  return true;
}

std::string to_string(const Value& value) {
  if (value.is(Kind::String)) return value.text;
  return value.is(Kind::Undefined) ? "" : to_repr(value);
}

namespace {

void append_repr(const Value& value, int depth, std::string* out);

void append_items(const Value& value, int depth, std::string* out) {
  const bool is_list = value.is(Kind::List);
  const size_t count = is_list ? value.list->size() : value.dict->size();
  *out += value.is_tuple ? '(' : is_list ? '[' : '{';
  for (size_t i = 0; i < count && out->size() <= kMaxString; ++i) {
    if (i > 0) *out += ", ";
    if (!is_list) *out += string_repr((*value.dict)[i].first) + ": ";
    append_repr(is_list ? (*value.list)[i] : (*value.dict)[i].second, depth + 1, out);
  }
  if (value.is_tuple && count == 1) *out += ',';
  *out += value.is_tuple ? ')' : is_list ? ']' : '}';
}

/// Values share items, so a small value may have a long text: stops after kMaxString.
void append_repr(const Value& value, int depth, std::string* out) {
  switch (value.kind) {
    case Kind::Undefined:
      *out += "Undefined";
      break;
    case Kind::None:
      *out += "None";
      break;
    case Kind::Bool:
      *out += value.integer != 0 ? "True" : "False";
      break;
    case Kind::Int:
      *out += std::to_string(value.integer);
      break;
    case Kind::Float:
      *out += value.text.empty() ? float_repr(value.real) : value.text;
      break;
    case Kind::String:
      *out += string_repr(value.text);
      break;
    case Kind::List:
    case Kind::Dict:
      if (depth > kMaxDepth)
        *out += "...";
      else
        append_items(value, depth, out);
      break;
    case Kind::Macro:
      break;
  }
}

}  // namespace

std::string to_repr(const Value& value) {
  std::string out;
  append_repr(value, 0, &out);
  return out;
}

}  // namespace torchette::extension::llm::jinja
