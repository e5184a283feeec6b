// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "torchette/llm/text/jinja/limits.h"
#include "torchette/llm/text/json.h"

namespace torchette::extension::llm::jinja {
namespace {

Value of_kind(Kind kind) {
  Value value;
  value.kind = kind;
  return value;
}

/// Python's repr() of a float: the fewest digits that read back as the same value.
std::string float_repr(double value) {
  char text[40];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof(text), "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  const std::string found = text;
  return found.find_first_of(".eni") == std::string::npos ? found + ".0" : found;
}

std::string string_repr(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (char c : text) {
    if (c == quote || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else
      out += c;
  }
  return out + quote;
}

/// A string in JSON with Python's short escapes.
std::string quoted_json(const std::string& text) {
  std::string out = json_string(text);
  for (const auto& [escape, shorter] : {std::pair{"\\u000a", "\\n"},
                                        {"\\u000d", "\\r"},
                                        {"\\u0009", "\\t"},
                                        {"\\u0008", "\\b"},
                                        {"\\u000c", "\\f"}})
    for (size_t at = 0; (at = out.find(escape, at)) != std::string::npos; at += 2)
      out.replace(at, 6, shorter);
  return out;
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
      if (json.number == std::floor(json.number) && std::fabs(json.number) < 0x1p53)
        return of(static_cast<int64_t>(json.number));
      return of(json.number);
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
  if (kind != Kind::Dict) return nullptr;
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
  for (const auto& [key, value] : *dict.dict) list.push_back(Value::of(Value::List{Value::of(key), value}));
  return list;
}

bool is_equal(const Value& a, const Value& b, int depth) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.kind != b.kind || depth > kMaxDepth) return false;
  if (a.is(Kind::String)) return a.text == b.text;
  if (a.is(Kind::List))
    return std::equal(a.list->begin(), a.list->end(), b.list->begin(), b.list->end(),
                      [&](const Value& x, const Value& y) { return is_equal(x, y, depth + 1); });
  if (a.is(Kind::Dict)) {
    if (a.dict->size() != b.dict->size()) return false;
    for (const auto& [key, value] : *a.dict) {
      const Value* other = b.find(key);
      if (other == nullptr || !is_equal(value, *other, depth + 1)) return false;
    }
  }
  return true;
}

std::string to_string(const Value& value) {
  if (value.is(Kind::String)) return value.text;
  return value.is(Kind::Undefined) ? "" : to_repr(value);
}

std::string to_repr(const Value& value, int depth) {
  std::string items;
  switch (value.kind) {
    case Kind::Undefined:
      return "Undefined";
    case Kind::None:
      return "None";
    case Kind::Bool:
      return value.integer != 0 ? "True" : "False";
    case Kind::Int:
      return std::to_string(value.integer);
    case Kind::Float:
      return float_repr(value.real);
    case Kind::String:
      return string_repr(value.text);
    case Kind::List:
      if (depth > kMaxDepth) return "...";
      for (const Value& item : *value.list) items += (items.empty() ? "" : ", ") + to_repr(item, depth + 1);
      return "[" + items + "]";
    case Kind::Dict:
      if (depth > kMaxDepth) return "...";
      for (const auto& [key, item] : *value.dict)
        items += (items.empty() ? "" : ", ") + string_repr(key) + ": " + to_repr(item, depth + 1);
      return "{" + items + "}";
    case Kind::Macro:
      break;
  }
  return "";
}

std::string to_json(const Value& value, int indent, int depth) {
  if (value.is(Kind::String)) return quoted_json(value.text);
  if (value.is(Kind::Bool)) return value.integer != 0 ? "true" : "false";
  if (value.is_number()) return to_repr(value);
  if ((!value.is(Kind::List) && !value.is(Kind::Dict)) || depth > kMaxDepth) return "null";
  const bool is_list = value.is(Kind::List);
  const size_t count = is_list ? value.list->size() : value.dict->size();
  if (count == 0) return is_list ? "[]" : "{}";
  const auto new_line = [&](int level) {
    if (indent < 0) return std::string();
    return "\n" + std::string(static_cast<size_t>(indent) * static_cast<size_t>(level), ' ');
  };
  std::string out = is_list ? "[" : "{";
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += indent < 0 ? ", " : ",";
    out += new_line(depth + 1);
    if (!is_list) out += quoted_json((*value.dict)[i].first) + ": ";
    out += to_json(is_list ? (*value.list)[i] : (*value.dict)[i].second, indent, depth + 1);
  }
  return out + new_line(depth) + (is_list ? "]" : "}");
}

}  // namespace torchette::extension::llm::jinja
