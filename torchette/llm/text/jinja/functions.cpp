// SPDX-License-Identifier: BSD-3-Clause
// The functions that templates call by name: range, namespace, raise_exception and others.
#include <ctime>

#include "torchette/llm/text/jinja/builtins.h"
#include "torchette/llm/text/jinja/evaluator.h"

namespace torchette::extension::llm::jinja {
namespace {

/// A dict of the items of a dict and of the keyword arguments.
Result<Value> make_dict(const Call& call) {
  Value::Dict dict;
  for (size_t i = 0; i < call.num_positional(); ++i) {
    const Value& from = call.arguments[i];
    if (!from.is(Kind::Dict)) return call.fail(call.name + " accepts a dict and keyword arguments");
    TORCHETTE_TRY(spend_on_members(call, from));
    TORCHETTE_TRY(call.evaluator.spend(from.dict->size() * from.dict->size() / 4));  // set_key() searches
    for (const auto& [key, value] : *from.dict) set_key(&dict, key, value);
  }
  for (size_t i = 0; i < call.keywords.size(); ++i)
    set_key(&dict, call.keywords[i], call.arguments[call.num_positional() + i]);
  return Value::of(std::move(dict));
}

Result<Value> raise_exception(const Call& call) {
  return call.fail(call.arguments.empty() ? "the template rejects the messages"
                                          : to_string(call.arguments[0]));
}

Result<Value> range(const Call& call) {
  const size_t count = call.arguments.size();
  int64_t bounds[3] = {0, 0, 1};
  if (count == 0 || count > 3) return call.fail("range accepts 1 to 3 integers");
  for (size_t i = 0; i < count; ++i) {
    if (!call.arguments[i].is_integer()) return call.fail("range accepts integers");
    bounds[count == 1 ? 1 : i] = call.arguments[i].integer;
  }
  const auto [first, last, step] = bounds;
  if (step == 0) return call.fail("the step of range is 0");
  Value::List list;
  for (int64_t i = first; step > 0 ? i < last : i > last;) {
    TORCHETTE_TRY(call.evaluator.spend(kWorkOfItem));
    list.push_back(Value::of(i));
    const auto next = static_cast<int64_t>(static_cast<uint64_t>(i) + static_cast<uint64_t>(step));
    if ((next > i) != (step > 0)) break;  // the next value is outside int64
    i = next;
  }
  return Value::of(std::move(list));
}

/// The local time in a format of strftime.
Result<Value> strftime_now(const Call& call) {
  const std::time_t now = std::time(nullptr);
  const std::tm* local = std::localtime(&now);
  char text[256] = "";
  if (call.arguments.size() != 1 || local == nullptr) return call.fail("strftime_now accepts a format");
  const size_t size = std::strftime(text, sizeof(text), to_string(call.arguments[0]).c_str(), local);
  return Value::of(std::string(text, size));
}

struct Function {
  std::string_view name, parameters;
  Result<Value> (*apply)(const Call&);
};

constexpr Function kFunctions[] = {
    {"namespace", "*", make_dict},
    {"dict", "*", make_dict},
    {"range", "start stop step", range},
    {"raise_exception", "message", raise_exception},
    {"strftime_now", "format", strftime_now},
};

}  // namespace

Result<Value> call_function(const Call& call) {
  for (const Function& one : kFunctions) {
    if (one.name != call.name) continue;
    TORCHETTE_TRY(call.check("function", one.parameters));
    return one.apply(call);
  }
  return call.unsupported("function");
}

}  // namespace torchette::extension::llm::jinja
