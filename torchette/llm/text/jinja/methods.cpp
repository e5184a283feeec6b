// SPDX-License-Identifier: BSD-3-Clause
// The methods of strings and dicts.
#include <algorithm>

#include "torchette/llm/text/jinja/builtins.h"
#include "torchette/llm/text/jinja/errors.h"
#include "torchette/llm/text/jinja/evaluator.h"
#include "torchette/llm/text/jinja/strings.h"

namespace torchette::extension::llm::jinja {
namespace {

struct Method {
  std::string_view name;
  Result<Value> (*apply)(const Call&, const Value& self);
  size_t min_arguments = 0;
};

// --- Strings ---

template <bool kLeft, bool kRight>
Result<Value> strip_string(const Call& call, const Value& self) {
  return Value::of(strip(self.text, call.string(0), kLeft, kRight));
}

/// Whether the string begins, or ends, with the argument or with an item of it.
template <bool kAtEnd>
Result<Value> has_affix(const Call& call, const Value& self) {
  const std::string& text = self.text;
  const auto is_affix = [&](const std::string& part) {
    return text.size() >= part.size() &&
           text.compare(kAtEnd ? text.size() - part.size() : 0, part.size(), part) == 0;
  };
  if (const std::string* one = call.string(0)) return Value::of(is_affix(*one));
  if (call.arguments.empty() || !call.arguments[0].is(Kind::List)) return Value::of(false);
  const Value::List& parts = *call.arguments[0].list;
  return Value::of(
      std::any_of(parts.begin(), parts.end(), [&](const Value& part) { return is_affix(to_string(part)); }));
}

Result<Value> replace(const Call& call, const Value& self) {
  const std::string *from = call.string(0), *to = call.string(1);
  if (from == nullptr || to == nullptr) return call.unsupported("method");
  TORCHETTE_TRY(call.evaluator.spend(self.text.size() * (to->size() + 1)));
  return Value::of(replace_all(self.text, *from, *to));
}

Value::List split_at_spaces(const std::string& text) {
  Value::List parts;
  std::string part;
  for (char32_t c : characters(text)) {
    if (!is_space(c)) {
      append_utf8(c, &part);
    } else if (!part.empty()) {
      parts.push_back(Value::of(part));
      part.clear();
    }
  }
  if (!part.empty()) parts.push_back(Value::of(part));
  return parts;
}

/// The parts of a string between separators, or between whitespace without one.
Result<Value> split(const Call& call, const Value& self) {
  const std::string& text = self.text;
  const bool has_limit = call.arguments.size() > 1 && call.arguments[1].is_integer();
  int64_t splits_left = has_limit ? call.arguments[1].integer : -1;  // negative: no limit
  TORCHETTE_TRY(call.evaluator.spend(text.size()));
  const std::string* separator = call.string(0);
  if (separator == nullptr) return Value::of(split_at_spaces(text));
  if (separator->empty()) return call.fail("the separator of split is empty");
  Value::List parts;
  size_t at = 0;
  for (size_t found; splits_left != 0 && (found = text.find(*separator, at)) != std::string::npos;
       at = found + separator->size()) {
    parts.push_back(Value::of(text.substr(at, found - at)));
    --splits_left;
  }
  parts.push_back(Value::of(text.substr(at)));
  return Value::of(std::move(parts));
}

Result<Value> rsplit(const Call& call, const Value& self) {
  const bool has_limit = call.arguments.size() > 1 && call.arguments[1].is_integer();
  if (has_limit && call.arguments[1].integer >= 0)
    return unsupported_error(call.line, "rsplit with a maximum of splits");
  return split(call, self);
}

/// The position of a part in characters, or -1.
Result<Value> find(const Call& call, const Value& self) {
  const std::string* part = call.string(0);
  if (part == nullptr) return call.unsupported("method");
  const size_t found = self.text.find(*part);
  if (found == std::string::npos) return Value::of(int64_t{-1});
  return Value::of(characters(self.text.substr(0, found)).size());
}

template <Case kTo>
Result<Value> to_case(const Call&, const Value& self) {
  return Value::of(change_case(self.text, kTo));
}

constexpr Method kStringMethods[] = {
    {"strip", strip_string<true, true>},
    {"lstrip", strip_string<true, false>},
    {"rstrip", strip_string<false, true>},
    {"startswith", has_affix<false>},
    {"endswith", has_affix<true>},
    {"replace", replace},
    {"split", split},
    {"rsplit", rsplit},
    {"find", find},
    {"upper", to_case<Case::Upper>},
    {"lower", to_case<Case::Lower>},
    {"capitalize", to_case<Case::Capitalize>},
    {"title", to_case<Case::Title>},
};

// --- Dicts ---

Result<Value> get(const Call& call, const Value& self) {
  if (const Value* found = self.find(to_string(call.arguments[0]))) return *found;
  return call.arguments.size() > 1 ? call.arguments[1] : Value::none();
}

Result<Value> keys(const Call&, const Value& self) {
  Value::List list;
  for (const auto& [key, value] : *self.dict) list.push_back(Value::of(key));
  return Value::of(std::move(list));
}

Result<Value> values(const Call&, const Value& self) {
  Value::List list;
  for (const auto& [key, value] : *self.dict) list.push_back(value);
  return Value::of(std::move(list));
}

Result<Value> items(const Call&, const Value& self) { return Value::of(items_of_dict(self)); }

constexpr Method kDictMethods[] = {
    {"get", get, 1},
    {"items", items},
    {"keys", keys},
    {"values", values},
};

template <size_t kCount>
const Method* find_method(const Method (&methods)[kCount], const Call& call) {
  for (const Method& one : methods)
    if (one.name == call.name && call.arguments.size() >= one.min_arguments) return &one;
  return nullptr;
}

}  // namespace

Result<Value> call_method(const Call& call, const Value& self) {
  if (self.is(Kind::Undefined)) return call.fail(self.text + " is undefined");
  const Method* found = self.is(Kind::String) ? find_method(kStringMethods, call)
                        : self.is(Kind::Dict) ? find_method(kDictMethods, call)
                                              : nullptr;
  if (found != nullptr) return found->apply(call, self);
  if (const Value* member = self.find(call.name)) return call.evaluator.call(call, *member);
  return call.unsupported("method");
}

}  // namespace torchette::extension::llm::jinja
