// SPDX-License-Identifier: BSD-3-Clause
// The filters of templates: `value | name(arguments)`.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "torchette/llm/text/jinja/builtins.h"
#include "torchette/llm/text/jinja/evaluator.h"
#include "torchette/llm/text/jinja/strings.h"

namespace torchette::extension::llm::jinja {
namespace {

// --- Any value ---

Result<Value> default_value(const Call& call, const Value& value) {
  const Value* otherwise = call.argument(0, "default_value");
  const Value* replaces_false = call.argument(1, "boolean");
  const bool is_replaced = value.is(Kind::Undefined) ||
                           (replaces_false != nullptr && replaces_false->is_true() && !value.is_true());
  if (!is_replaced) return value;
  return otherwise != nullptr ? *otherwise : Value::of(std::string());
}

Result<Value> json(const Call& call, const Value& value) {
  constexpr int64_t kMaxIndent = 31;
  const Value* indent = call.argument(0, "indent");
  if (value.is(Kind::Undefined)) return call.fail(value.text + " is undefined");
  const bool is_indented =
      indent != nullptr && indent->is_integer() && indent->integer >= 0 && indent->integer <= kMaxIndent;
  return Value::of(to_json(value, is_indented ? static_cast<int>(indent->integer) : -1));
}

Result<Value> string(const Call&, const Value& value) { return Value::of(to_string(value)); }
Result<Value> safe(const Call&, const Value& value) { return value; }

Result<Value> length(const Call& call, const Value& value) {
  if (value.is(Kind::String)) return Value::of(characters(value.text).size());
  if (value.is(Kind::List)) return Value::of(value.list->size());
  if (value.is(Kind::Dict)) return Value::of(value.dict->size());
  if (value.is(Kind::Undefined)) return Value::of(int64_t{0});
  return call.fail(to_repr(value) + " has no length");
}

// --- Integers and floats ---

Result<Value> integer(const Call&, const Value& value) {
  if (value.is(Kind::String))
    return Value::of(static_cast<int64_t>(std::strtoll(value.text.c_str(), nullptr, 10)));
  if (!value.is_number() || std::fabs(value.as_double()) >= 0x1p62) return Value::of(int64_t{0});
  return Value::of(value.is_integer() ? value.integer : static_cast<int64_t>(value.real));
}

Result<Value> real(const Call&, const Value& value) {
  return Value::of(value.is(Kind::String) ? std::strtod(value.text.c_str(), nullptr) : value.as_double());
}

Result<Value> absolute(const Call& call, const Value& value) {
  if (!value.is_number()) return call.unsupported("filter");
  if (!value.is_integer()) return Value::of(std::fabs(value.real));
  return Value::of(std::max(value.integer, -std::max<int64_t>(value.integer, -INT64_MAX)));
}

// --- Strings ---

Result<Value> trim(const Call& call, const Value& value) {
  const Value* set = call.argument(0, "chars");
  const bool has_set = set != nullptr && set->is(Kind::String);
  return Value::of(strip(to_string(value), has_set ? &set->text : nullptr));
}

Result<Value> replace(const Call& call, const Value& value) {
  const std::string text = to_string(value);
  const Value *from = call.argument(0, "old"), *to = call.argument(1, "new");
  if (from == nullptr || to == nullptr) return call.fail("replace accepts two strings");
  const std::string replacement = to_string(*to);
  TORCHETTE_TRY(call.evaluator.spend(text.size() * (replacement.size() + 1)));
  return Value::of(replace_all(text, to_string(*from), replacement));
}

template <Case kTo>
Result<Value> to_case(const Call&, const Value& value) {
  return Value::of(change_case(to_string(value), kTo));
}

// --- Dicts and lists ---

Result<Value> items(const Call& call, const Value& value) {
  if (value.is(Kind::Undefined)) return Value::of(Value::List());
  if (!value.is(Kind::Dict)) return call.fail(to_repr(value) + " is not a dict");
  return Value::of(items_of_dict(value));
}

Result<Value> list(const Call& call, const Value& value) {
  Result<Value::List> found = call.evaluator.items(call.line, value);
  if (!found.ok()) return found.error();
  return Value::of(std::move(*found));
}

Result<Value> first(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  return list->empty() ? Value::undefined("the first item") : list->front();
}

Result<Value> last(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  return list->empty() ? Value::undefined("the last item") : list->back();
}

Result<Value> reverse(const Call& call, const Value& value) {
  Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  std::reverse(list->begin(), list->end());
  if (!value.is(Kind::String)) return Value::of(std::move(*list));
  std::string text;
  for (const Value& character : *list) text += character.text;
  return Value::of(std::move(text));
}

Result<Value> join(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  const Value *separator = call.argument(0, "d"), *attribute = call.argument(1, "attribute");
  std::string out;
  for (size_t i = 0; i < list->size(); ++i) {
    const Value& item = (*list)[i];
    const Value* part = attribute != nullptr ? item.find(to_string(*attribute)) : &item;
    if (i > 0 && separator != nullptr) out += to_string(*separator);
    if (part != nullptr) out += to_string(*part);
  }
  return Value::of(std::move(out));
}

/// The attribute of each item, or each item with a filter applied.
Result<Value> map(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  const Value* attribute = call.argument("attribute");
  const std::vector<Value> no_arguments;
  const std::vector<std::string> no_keywords;
  Value::List mapped;
  for (const Value& item : *list) {
    if (attribute != nullptr) {
      const Value* found = item.find(to_string(*attribute));
      mapped.push_back(found != nullptr ? *found : Value::undefined(to_string(*attribute)));
      continue;
    }
    if (call.arguments.empty()) return call.fail("map accepts the name of a filter, or an attribute");
    const std::string name = to_string(call.arguments[0]);
    Result<Value> one = apply_filter({call.evaluator, call.line, name, no_arguments, no_keywords}, item);
    if (!one.ok()) return one.error();
    mapped.push_back(std::move(*one));
  }
  return Value::of(std::move(mapped));
}

/// Whether a value is true, or a test holds for it. The call has the name of the test and then its arguments,
/// from `first_argument` on.
Result<bool> is_selected(const Call& call, size_t first_argument, const Value& value) {
  if (call.arguments.size() <= first_argument) return value.is_true();
  const auto rest = call.arguments.begin() + static_cast<std::ptrdiff_t>(first_argument);
  const std::string name = to_string(*rest);
  const std::vector<Value> arguments(rest + 1, call.arguments.end());
  const std::vector<std::string> no_keywords;
  const Result<Value> holds = apply_test({call.evaluator, call.line, name, arguments, no_keywords}, value);
  if (!holds.ok()) return holds.error();
  return holds->is_true();
}

/// The items for which the outcome of a test is `kKeeps`.
template <bool kKeeps>
Result<Value> select(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  Value::List kept;
  for (const Value& item : *list) {
    const Result<bool> holds = is_selected(call, 0, item);
    if (!holds.ok()) return holds.error();
    if (*holds == kKeeps) kept.push_back(item);
  }
  return Value::of(std::move(kept));
}

/// As select, by the outcome for an attribute of the items.
template <bool kKeeps>
Result<Value> select_attribute(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  Value::List kept;
  for (const Value& item : *list) {
    if (call.arguments.empty()) return call.fail(call.name + " accepts an attribute");
    const std::string attribute = to_string(call.arguments[0]);
    const Value* found = item.find(attribute);
    const Result<bool> holds = is_selected(call, 1, found != nullptr ? *found : Value::undefined(attribute));
    if (!holds.ok()) return holds.error();
    if (*holds == kKeeps) kept.push_back(item);
  }
  return Value::of(std::move(kept));
}

struct Filter {
  std::string_view name;
  Result<Value> (*apply)(const Call&, const Value&);
};

constexpr Filter kFilters[] = {
    {"abs", absolute},
    {"capitalize", to_case<Case::Capitalize>},
    {"count", length},
    {"d", default_value},
    {"default", default_value},
    {"first", first},
    {"float", real},
    {"int", integer},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", to_case<Case::Lower>},
    {"map", map},
    {"reject", select<false>},
    {"rejectattr", select_attribute<false>},
    {"replace", replace},
    {"reverse", reverse},
    {"safe", safe},
    {"select", select<true>},
    {"selectattr", select_attribute<true>},
    {"string", string},
    {"title", to_case<Case::Title>},
    {"tojson", json},
    {"trim", trim},
    {"upper", to_case<Case::Upper>},
};

}  // namespace

Result<Value> apply_filter(const Call& call, const Value& value) {
  for (const Filter& one : kFilters)
    if (one.name == call.name) return one.apply(call, value);
  return call.unsupported("filter");
}

}  // namespace torchette::extension::llm::jinja
