// SPDX-License-Identifier: BSD-3-Clause
// Binary operators, with Python's rules. Arithmetic of int64 wraps around.
#include <algorithm>
#include <cmath>

#include "torchette/llm/text/jinja/builtins.h"
#include "torchette/llm/text/jinja/evaluator.h"

namespace torchette::extension::llm::jinja {
namespace {

struct Operation {
  Evaluator& evaluator;
  int line;
  Op op;
  const Value &a, &b;

  bool are(Kind kind) const { return a.is(kind) && b.is(kind); }
  bool are_integers() const { return a.is_integer() && b.is_integer(); }
  bool are_numbers() const { return a.is_number() && b.is_number(); }
  /// The integers as unsigned ones, which wrap around.
  uint64_t x() const { return static_cast<uint64_t>(a.integer); }
  uint64_t y() const { return static_cast<uint64_t>(b.integer); }

  Error fail(const std::string& message) const { return evaluator.fail(line, message); }
  Error mismatch() const {
    const auto described = [](const Value& value) {
      return value.is(Kind::Undefined) ? value.text + " (undefined)" : to_repr(value);
    };
    return fail("no operator for " + described(a) + " and " + described(b));
  }
};

Value wrapped(uint64_t value) { return Value::of(static_cast<int64_t>(value)); }

Result<Value> contains(const Operation& in) {
  const Value &item = in.a, &items = in.b;
  if (items.is(Kind::Dict)) {
    const Result<std::string> key = in.evaluator.text_of(in.line, item);
    if (!key.ok()) return key.error();
    return Value::of(items.find(*key) != nullptr);
  }
  if (items.is(Kind::String)) {
    if (!item.is(Kind::String)) return in.fail("the left operand of `in` must be a string for a string");
    TORCHETTE_TRY(in.evaluator.spend_on_search(items.text, item.text));
    return Value::of(items.text.find(item.text) != std::string::npos);
  }
  if (!items.is(Kind::List)) return in.fail("the right operand of `in` has no items");
  for (const Value& one : *items.list) {
    const Result<bool> found = in.evaluator.is_same(item, one);
    if (!found.ok()) return found.error();
    if (*found) return Value::of(true);
  }
  return Value::of(false);
}

Result<Value> equal(const Operation& comparison) {
  const Result<bool> found = comparison.evaluator.is_same(comparison.a, comparison.b);
  if (!found.ok()) return found.error();
  return Value::of(*found == (comparison.op == Op::Equal));
}

Result<Value> add(const Operation& sum) {
  const Value &a = sum.a, &b = sum.b;
  if (sum.are(Kind::String)) return Value::of(a.text + b.text);
  if (sum.are(Kind::List) && a.is_tuple == b.is_tuple) {
    Value::List list = *a.list;
    TORCHETTE_TRY(sum.evaluator.spend(kWorkOfItem * (list.size() + b.list->size())));
    list.insert(list.end(), b.list->begin(), b.list->end());
    return a.is_tuple ? Value::tuple(std::move(list)) : Value::of(std::move(list));
  }
  if (sum.are_integers()) return wrapped(sum.x() + sum.y());
  if (!sum.are_numbers()) return sum.mismatch();
  return Value::of(a.as_double() + b.as_double());
}

Result<Value> concatenate(const Operation& sum) {
  const Result<std::string> left = sum.evaluator.text_of(sum.line, sum.a);
  if (!left.ok()) return left.error();
  const Result<std::string> right = sum.evaluator.text_of(sum.line, sum.b);
  if (!right.ok()) return right.error();
  return Value::of(*left + *right);
}

Result<Value> subtract(const Operation& difference) {
  if (difference.are_integers()) return wrapped(difference.x() - difference.y());
  if (!difference.are_numbers()) return difference.mismatch();
  return Value::of(difference.a.as_double() - difference.b.as_double());
}

Result<Value> repeat(const Operation& product, const std::string& text, int64_t times) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  if (count > kMaxRepeated || count * text.size() > kMaxRepeated) return product.fail("a string is too long");
  TORCHETTE_TRY(product.evaluator.spend(count));
  std::string out;
  for (uint64_t i = 0; i < count; ++i) out += text;
  return Value::of(std::move(out));
}

Result<Value> repeat_items(const Operation& product, const Value& list, int64_t times) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  Value::List items;
  for (uint64_t i = 0; i < count && !list.list->empty(); ++i) {
    TORCHETTE_TRY(product.evaluator.spend(kWorkOfItem * list.list->size()));
    TORCHETTE_TRY(product.evaluator.spend_on(list));
    items.insert(items.end(), list.list->begin(), list.list->end());
  }
  return list.is_tuple ? Value::tuple(std::move(items)) : Value::of(std::move(items));
}

Result<Value> multiply(const Operation& product) {
  const Value &a = product.a, &b = product.b;
  if (product.are_integers()) return wrapped(product.x() * product.y());
  if (a.is(Kind::String) && b.is_integer()) return repeat(product, a.text, b.integer);
  if (a.is_integer() && b.is(Kind::String)) return repeat(product, b.text, a.integer);
  if (a.is(Kind::List) && b.is_integer()) return repeat_items(product, a, b.integer);
  if (a.is_integer() && b.is(Kind::List)) return repeat_items(product, b, a.integer);
  if (!product.are_numbers()) return product.mismatch();
  return Value::of(a.as_double() * b.as_double());
}

/// Integers by squaring, which wraps around; all others as floats.
Result<Value> power(const Operation& power) {
  if (!power.are_numbers()) return power.mismatch();
  if (!power.are_integers() || power.b.integer < 0)
    return Value::of(std::pow(power.a.as_double(), power.b.as_double()));
  uint64_t result = 1, base = power.x();
  for (uint64_t exponent = power.y(); exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 != 0) result *= base;
  return wrapped(result);
}

template <typename T>
bool is_ordered(Op op, const T& a, const T& b) {
  return op == Op::Less ? a < b : op == Op::LessEqual ? a <= b : op == Op::Greater ? a > b : a >= b;
}

Result<Value> order(const Operation& comparison) {
  const Value &a = comparison.a, &b = comparison.b;
  if (comparison.are(Kind::String)) return Value::of(is_ordered(comparison.op, a.text, b.text));
  if (!comparison.are_numbers()) return comparison.mismatch();
  return Value::of(is_ordered(comparison.op, a.as_double(), b.as_double()));
}

/// Quotients and remainders are rounded down, as in Python.
Result<Value> divide(const Operation& division) {
  const Value &a = division.a, &b = division.b;
  if (a.is(Kind::String) && division.op == Op::Modulo)
    return percent_format(division.evaluator, division.line, a.text,
                          b.is(Kind::List) && b.is_tuple ? *b.list : Value::List{b});
  if (!division.are_numbers()) return division.mismatch();
  const double p = a.as_double(), q = b.as_double();
  const bool is_floor = division.op == Op::FloorDivide;
  if (q == 0) return division.fail("division by 0");
  if (division.op == Op::Divide) return Value::of(p / q);
  if (!division.are_integers()) {
    const double quotient = std::floor(p / q);
    return Value::of(is_floor ? quotient : p - quotient * q);
  }
  // INT64_MIN / -1 overflows
  if (b.integer == -1) return is_floor ? wrapped(0 - division.x()) : Value::of(int64_t{0});
  int64_t quotient = a.integer / b.integer, remainder = a.integer % b.integer;
  if (remainder != 0 && (remainder < 0) != (b.integer < 0)) --quotient, remainder += b.integer;
  return Value::of(is_floor ? quotient : remainder);
}

}  // namespace

Result<Value> apply_operator(Evaluator& evaluator, int line, Op op, const Value& a, const Value& b) {
  const Operation operation{evaluator, line, op, a, b};
  switch (op) {
    case Op::Concat:
      return concatenate(operation);
    case Op::Equal:
    case Op::NotEqual:
      return equal(operation);
    case Op::In:
      return contains(operation);
    case Op::Add:
      return add(operation);
    case Op::Subtract:
      return subtract(operation);
    case Op::Multiply:
      return multiply(operation);
    case Op::Power:
      return power(operation);
    case Op::Less:
    case Op::LessEqual:
    case Op::Greater:
    case Op::GreaterEqual:
      return order(operation);
    default:
      return divide(operation);
  }
}

}  // namespace torchette::extension::llm::jinja
