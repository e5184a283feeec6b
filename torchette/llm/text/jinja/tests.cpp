// SPDX-License-Identifier: BSD-3-Clause
// The tests of templates: `value is defined`, `value is eq(3)`.
#include <algorithm>
#include <iterator>

#include "torchette/llm/text/jinja/builtins.h"
#include "torchette/llm/text/jinja/evaluator.h"
#include "torchette/llm/text/jinja/strings.h"
#include "torchette/runtime/result.h"

namespace torchette::extension::llm::jinja {
namespace {

bool is_sequence(const Value& value) {
  return value.is(Kind::List) || value.is(Kind::Dict) || value.is(Kind::String);
}

/// Whether a value's text has a letter with case, and all of them have the given case.
bool is_cased(const Value& value, Case to) {
  const std::string text = to_string(value);
  return change_case(text, to) == text &&
         change_case(text, to == Case::Upper ? Case::Lower : Case::Upper) != text;
}

struct Predicate {
  std::string_view name;
  bool (*holds)(const Value&);
};

constexpr Predicate kPredicates[] = {
    {"defined", [](const Value& value) { return !value.is(Kind::Undefined); }},
    {"undefined", [](const Value& value) { return value.is(Kind::Undefined); }},
    {"none", [](const Value& value) { return value.is(Kind::None); }},
    {"string", [](const Value& value) { return value.is(Kind::String); }},
    {"number", [](const Value& value) { return value.is_number(); }},
    {"integer", [](const Value& value) { return value.is(Kind::Int) || value.is_big_integer(); }},
    {"float", [](const Value& value) { return value.is(Kind::Float) && !value.is_big_integer(); }},
    {"boolean", [](const Value& value) { return value.is(Kind::Bool); }},
    {"true", [](const Value& value) { return value.is(Kind::Bool) && value.integer != 0; }},
    {"false", [](const Value& value) { return value.is(Kind::Bool) && value.integer == 0; }},
    {"lower", [](const Value& value) { return is_cased(value, Case::Lower); }},
    {"upper", [](const Value& value) { return is_cased(value, Case::Upper); }},
    {"mapping", [](const Value& value) { return value.is(Kind::Dict); }},
    {"callable", [](const Value& value) { return value.is(Kind::Macro); }},
    {"sequence", is_sequence},
    {"iterable", [](const Value& value) { return is_sequence(value) || value.is(Kind::Undefined); }},
};

struct OperatorTest {
  std::string_view name;
  Op op;
};

constexpr OperatorTest kOperators[] = {
    {"equalto", Op::Equal}, {"eq", Op::Equal},        {"==", Op::Equal},        {"ne", Op::NotEqual},
    {"!=", Op::NotEqual},   {"in", Op::In},           {"gt", Op::Greater},      {"greaterthan", Op::Greater},
    {">", Op::Greater},     {"ge", Op::GreaterEqual}, {">=", Op::GreaterEqual}, {"le", Op::LessEqual},
    {"<=", Op::LessEqual},  {"lt", Op::Less},         {"lessthan", Op::Less},   {"<", Op::Less},
};

}  // namespace

Result<Value> apply_test(const Call& call, const Value& value) {
  for (const Predicate& one : kPredicates) {
    if (one.name != call.name) continue;
    TORCHETTE_TRY(call.check("test", ""));
    if (call.name == "lower" || call.name == "upper") {
      const Result<std::string> text = call.evaluator.text_of(call.line, value);
      if (!text.ok()) return text.error();
      TORCHETTE_TRY(call.evaluator.spend(2 * kWorkOfCase * text->size()));
    }
    return Value::of(one.holds(value));
  }
  if (value.is_integer() && (call.name == "even" || call.name == "odd")) {
    TORCHETTE_TRY(call.check("test", ""));
    return Value::of((value.integer % 2 != 0) == (call.name == "odd"));
  }
  const OperatorTest* const comparison =
      std::find_if(std::begin(kOperators), std::end(kOperators),
                   [&](const OperatorTest& one) { return one.name == call.name; });
  const bool is_comparison = comparison != std::end(kOperators);
  if (!is_comparison && call.name != "divisibleby") return call.unsupported("test");
  TORCHETTE_TRY(call.check("test", is_comparison ? "b" : "num"));
  if (call.arguments.size() != 1) return call.fail("the test " + call.name + " requires an argument");
  const Value& argument = call.arguments[0];
  if (is_comparison) return apply_operator(call.evaluator, call.line, comparison->op, value, argument);
  if (!value.is_integer() || !argument.is_integer() || argument.integer <= 0)
    return call.fail("divisibleby accepts positive integers");
  return Value::of(value.integer % argument.integer == 0);
}

}  // namespace torchette::extension::llm::jinja
