// SPDX-License-Identifier: BSD-3-Clause
// The operators, filters, tests, methods and functions of templates. Each kind has its own file with a table
// of names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "torchette/llm/text/jinja/tree.h"
#include "torchette/runtime/result.h"

namespace torchette::extension::llm::jinja {

class Evaluator;

/// The key of the state that a loop keeps between its iterations. A template cannot name it.
constexpr char kStateOfLoop[] = " state";

/// A call of a filter, test, method, function or macro.
struct Call {
  Evaluator& evaluator;
  int line;
  const std::string& name;
  const std::vector<Value>& arguments;       // keyword arguments are last
  const std::vector<std::string>& keywords;  // of the last arguments

  /// The argument with this keyword or at this position. Null if it is absent.
  const Value* argument(size_t position, std::string_view keyword) const;
  const Value* argument(std::string_view keyword) const;
  /// Error: the call has an argument that is not one of `parameters`, names separated by spaces. `kind` is
  /// that of the callee. "*" accepts all arguments. The last `num_keyword_only` parameters have no position.
  Error check(std::string_view kind, std::string_view parameters, size_t num_keyword_only = 0) const;
  size_t num_positional() const { return arguments.size() - keywords.size(); }
  /// The string at a position among all arguments. Null if it is absent or not a string.
  const std::string* string(size_t position) const;

  Error fail(const std::string& message) const;
  Error unsupported(std::string_view kind) const;
};

/// Errors of these functions: InvalidArgument (wrong operands or arguments; raise_exception), NotSupported
/// (an unknown name), OutOfResources.
Result<Value> apply_operator(Evaluator& evaluator, int line, Op op, const Value& a, const Value& b);
Result<Value> apply_filter(const Call& call, const Value& value);
Result<Value> apply_test(const Call& call, const Value& value);
Result<Value> call_method(const Call& call, const Value& self);
Result<Value> call_function(const Call& call);

/// Python's `form % arguments`.
Result<Value> percent_format(Evaluator& evaluator, int line, const std::string& form,
                             const Value::List& arguments);
/// Counts the work of a copy of a dict's members.
Error spend_on_members(const Call& call, const Value& dict);
/// A string with the first `count` occurrences of `from` replaced; all of them without a count.
Result<Value> replaced(const Call& call, const std::string& text, const std::string& from,
                       const std::string& to, const Value* count);

}  // namespace torchette::extension::llm::jinja
