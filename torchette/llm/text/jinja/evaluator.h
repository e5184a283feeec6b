// SPDX-License-Identifier: BSD-3-Clause
// The evaluator: renders a syntax tree with values of its variables. Its work is bounded.
#pragma once

#include <string>
#include <vector>

#include "torchette/llm/text/jinja/builtins.h"
#include "torchette/llm/text/jinja/limits.h"
#include "torchette/llm/text/jinja/tree.h"
#include "torchette/runtime/result.h"

namespace torchette::extension::llm::jinja {

class Evaluator {
 public:
  explicit Evaluator(Value::Dict variables) { scopes_.push_back(std::move(variables)); }
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Appends the rendered text of a statement. Errors: InvalidArgument (the template fails with these
  /// values), NotSupported, OutOfResources.
  Error render(const Node& statement, std::string* out);

  // for builtins.h
  /// Counts work. Error: OutOfResources (the budget is exhausted).
  Error spend(size_t work);
  /// Counts the work on a value's bytes and items, but not on those of its items.
  Error spend_on(const Value& value);
  /// Sets the value of a key in a dict, which other values may share.
  void change(const std::shared_ptr<Value::Dict>& dict, const std::string& key, Value value);
  /// Counts the work of a search for a string in another one.
  Error spend_on_search(const std::string& text, const std::string& part);
  /// Python's str(). Errors: OutOfResources, InvalidArgument (it is too long).
  Result<std::string> text_of(int line, const Value& value);
  /// Python's ==. Error: OutOfResources.
  Result<bool> is_same(const Value& a, const Value& b);
  /// The template fails with these values. Keeps the message and returns InvalidArgument.
  Error fail(int line, const std::string& message);
  /// The template uses a part of Jinja that is not implemented. Keeps the message and returns NotSupported.
  Error unsupported(int line, const std::string& feature);
  /// The reason of the first error.
  const std::string& message() const { return message_; }
  /// The items of a list, the keys of a dict, the characters of a string; empty for undefined values.
  Result<Value::List> items(int line, const Value& value);
  /// Calls a macro, or the builtin function that has the call's name if the callee is undefined.
  Result<Value> call(const Call& call, const Value& callee);

 private:
  enum class Leave : uint8_t { No, Break, Continue };

  Error render_output(const Node& node, std::string* out);
  Error render_block(const Node& node, std::string* out);
  Error render_if(const Node& node, std::string* out);
  Error render_set(const Node& node);
  Error render_with(const Node& node, std::string* out);
  Error render_loop(const Node& node, const Value& iterable, int64_t depth, std::string* out);
  Result<Value::List> loop_items(const Node& node, const Value& iterable);
  Error bind_names(const Node& node, const Value& item);

  Result<Value> evaluate(const Node& node);
  Result<Value> evaluate_unguarded(const Node& node);
  Result<Value> evaluate_operation(const Node& node);
  Result<Value> evaluate_dict(const Node& node);
  Result<Value> evaluate_logical(const Node& node);
  Result<Value> evaluate_conditional(const Node& node);
  Result<Value> evaluate_capture(const Node& node);
  Result<Value> evaluate_caller(const Node& node);
  Result<Value> evaluate_slice(const Node& node);
  Result<Value> evaluate_attribute(const Node& node, const Value& object);
  Result<Value> evaluate_item(const Node& node, const Value& object);
  Result<Value> evaluate_call(const Node& node, const Value& callee);
  Result<Value> negate(const Node& node, const Value& operand);
  Result<std::vector<Value>> evaluate_all(const Node& node, size_t first);
  Result<Value> call_loop(const Call& call, const Value& loop);
  Result<Value> call_macro(const Call& call, const Value& callee);
  Result<Value::Dict> bind_parameters(const Call& call, const Node& macro);

  Value* find(const std::string& name);
  void set(const std::string& name, Value value) { set_key(&scopes_.back(), name, std::move(value)); }

  Error exhausted(const char* what);

  std::string message_;
  std::vector<Value::Dict> scopes_;                    // the innermost is last
  std::vector<std::shared_ptr<Value::Dict>> changed_;  // dicts that may contain themselves
  int64_t work_left_ = kMaxWork;
  int depth_ = 0;
  Leave leave_ = Leave::No;  // the loop that is left by break or continue
};

}  // namespace torchette::extension::llm::jinja
