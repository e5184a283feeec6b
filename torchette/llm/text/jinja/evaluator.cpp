// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/text/jinja/evaluator.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "torchette/llm/text/jinja/strings.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm::jinja {

Error Evaluator::spend(size_t work) {
  work_left_ -= static_cast<int64_t>(work) + 1;
  return work_left_ >= 0 ? Error::Ok : exhausted("its work exceeds the limit");
}

Evaluator::~Evaluator() {
  for (const auto& dict : changed_) dict->clear();
}

void Evaluator::change(const std::shared_ptr<Value::Dict>& dict, const std::string& key, Value value) {
  if (value.is(Kind::List) || value.is(Kind::Dict) || value.is(Kind::Macro)) changed_.push_back(dict);
  set_key(dict.get(), key, std::move(value));
}

Error Evaluator::spend_on(const Value& value) {
  size_t work = value.text.size() / 8;
  if (value.dict != nullptr) work += value.dict->size() / 4;
  if (value.list != nullptr) {
    work += value.list->size() / 16;
    for (const Value& item : *value.list) work += item.text.size() / 16;
  }
  return spend(work);
}

Error Evaluator::spend_on_search(const std::string& text, const std::string& part) {
  return part.size() > text.size() ? Error::Ok : spend(text.size() / 16 * (1 + part.size() / 64));
}

Result<std::string> Evaluator::text_of(int line, const Value& value) {
  std::string text = to_string(value);
  TORCHETTE_TRY(spend(text.size() / (value.is(Kind::String) ? 16 : 2)));
  if (text.size() > kMaxString) return fail(line, "a string is too long");
  return text;
}

Result<bool> Evaluator::is_same(const Value& a, const Value& b) {
  const bool found = is_equal(a, b, &work_left_);
  TORCHETTE_TRY(spend(0));
  return found;
}

Error Evaluator::fail(int line, const std::string& message) {
  if (message_.empty()) message_ = "line " + std::to_string(line) + ": " + message;
  return Error::InvalidArgument;
}

Error Evaluator::unsupported(int line, const std::string& feature) {
  static_cast<void>(fail(line, feature + " is not supported"));
  return Error::NotSupported;
}

Error Evaluator::exhausted(const char* what) {
  if (message_.empty()) message_ = what;
  return Error::OutOfResources;
}

Value* Evaluator::find(const std::string& name) {
  for (size_t i = scopes_.size(); i-- > 0;)
    for (auto& [key, value] : scopes_[i])
      if (key == name) return &value;
  return nullptr;
}

Result<Value::List> Evaluator::items(int line, const Value& value) {
  TORCHETTE_TRY(spend_on(value));
  if (value.is(Kind::List)) {
    TORCHETTE_TRY(spend(2 * value.list->size()));
    return *value.list;
  }
  Value::List found;
  if (value.is(Kind::Dict)) {
    TORCHETTE_TRY(spend(2 * value.dict->size()));
    for (const auto& [key, item] : *value.dict) found.push_back(Value::of(key));
  } else if (value.is(Kind::String)) {
    TORCHETTE_TRY(spend(kWorkOfItem * value.text.size()));
    for (char32_t c : characters(value.text)) found.push_back(Value::of(to_utf8(&c, 1)));
  } else if (!value.is(Kind::Undefined)) {
    return fail(line, to_repr(value) + " is not iterable");
  }
  return found;
}

// --- Statements ---

Error Evaluator::render(const Node& statement, std::string* out) {
  TORCHETTE_TRY(spend(0));
  switch (statement.op) {
    case Op::Text:
      *out += statement.name;
      break;
    case Op::Output:
      TORCHETTE_TRY(render_output(statement, out));
      break;
    case Op::Block:
      TORCHETTE_TRY(render_block(statement, out));
      break;
    case Op::If:
      return render_if(statement, out);
    case Op::For: {
      const Result<Value> iterable = evaluate(*statement.children[0]);
      if (!iterable.ok()) return iterable.error();
      return render_loop(statement, *iterable, 0, out);
    }
    case Op::Set:
      TORCHETTE_TRY(render_set(statement));
      break;
    case Op::With:
      TORCHETTE_TRY(render_with(statement, out));
      break;
    case Op::SetAll: {
      const Result<Value> value = evaluate(*statement.children[0]);
      if (!value.ok()) return value.error();
      TORCHETTE_TRY(bind_names(statement, *value));
      break;
    }
    case Op::Macro:
      set(statement.name, Value::of_macro(&statement));
      break;
    default:
      leave_ = statement.op == Op::Break ? Leave::Break : Leave::Continue;
  }
  return out->size() <= kMaxOutput ? Error::Ok : exhausted("it writes too much text");
}

Error Evaluator::render_output(const Node& node, std::string* out) {
  const Result<Value> value = evaluate(*node.children[0]);
  if (!value.ok()) return value.error();
  const Result<std::string> text = text_of(node.line, *value);
  if (!text.ok()) return text.error();
  *out += *text;
  return Error::Ok;
}

Error Evaluator::render_block(const Node& node, std::string* out) {
  for (const NodePtr& child : node.children) {
    TORCHETTE_TRY(render(*child, out));
    if (leave_ != Leave::No) break;
  }
  return Error::Ok;
}

Error Evaluator::render_if(const Node& node, std::string* out) {
  for (size_t i = 0; i < node.children.size(); i += 2) {
    if (i + 1 == node.children.size()) return render(*node.children[i], out);
    const Result<Value> condition = evaluate(*node.children[i]);
    if (!condition.ok()) return condition.error();
    if (condition->is_true()) return render(*node.children[i + 1], out);
  }
  return Error::Ok;
}

Error Evaluator::render_set(const Node& node) {
  Result<Value> value = evaluate(*node.children[0]);
  if (!value.ok()) return value.error();
  if (node.names.empty()) {
    set(node.name, std::move(*value));
    return Error::Ok;
  }
  const Value* name_space = find(node.name);
  if (name_space == nullptr || !name_space->is(Kind::Dict))
    return fail(node.line, node.name + " is not a namespace");
  change(name_space->dict, node.names[0], std::move(*value));
  return Error::Ok;
}

/// The expressions see the variables around the block.
Error Evaluator::render_with(const Node& node, std::string* out) {
  Value::Dict scope;
  for (size_t i = 0; i < node.names.size(); ++i) {
    Result<Value> value = evaluate(*node.children[i]);
    if (!value.ok()) return value.error();
    set_key(&scope, node.names[i], std::move(*value));
  }
  scopes_.push_back(std::move(scope));
  TORCHETTE_TRY(render(*node.children.back(), out));
  scopes_.pop_back();
  return Error::Ok;
}

namespace {

/// The variable `loop` of an iteration.
Value loop_of(const Value::List& list, size_t i) {
  const size_t count = list.size();
  return Value::of(Value::Dict{{"index", Value::of(i + 1)},
                               {"index0", Value::of(i)},
                               {"revindex", Value::of(count - i)},
                               {"revindex0", Value::of(count - i - 1)},
                               {"first", Value::of(i == 0)},
                               {"last", Value::of(i + 1 == count)},
                               {"length", Value::of(count)},
                               {"previtem", i > 0 ? list[i - 1] : Value::undefined("previtem")},
                               {"nextitem", i + 1 < count ? list[i + 1] : Value::undefined("nextitem")}});
}

}  // namespace

/// `depth` counts the calls of a recursive loop.
Error Evaluator::render_loop(const Node& node, const Value& iterable, int64_t depth, std::string* out) {
  scopes_.emplace_back();
  const Result<Value::List> list = loop_items(node, iterable);
  if (!list.ok()) return list.error();
  const size_t count = list->size();
  const Value state = Value::of(Value::Dict());
  for (size_t i = 0; i < count; ++i) {
    scopes_.back().clear();
    TORCHETTE_TRY(spend_on((*list)[i]));  // copied three times: see loop_of()
    TORCHETTE_TRY(bind_names(node, (*list)[i]));
    Value loop = loop_of(*list, i);
    loop.dict->insert(loop.dict->end(), {{"depth", Value::of(depth + 1)}, {"depth0", Value::of(depth)}});
    loop.dict->emplace_back(kStateOfLoop, state);
    if (node.value.is_true()) loop.macro = &node;
    set("loop", std::move(loop));
    TORCHETTE_TRY(render(*node.children[2], out));
    const bool is_left = leave_ == Leave::Break;
    leave_ = Leave::No;
    if (is_left) break;
  }
  scopes_.pop_back();
  return count == 0 && node.children.size() > 3 ? render(*node.children[3], out) : Error::Ok;
}

/// The items for which the condition of the loop is true. The innermost scope is that of the loop.
Result<Value::List> Evaluator::loop_items(const Node& node, const Value& iterable) {
  Result<Value::List> all = items(node.line, iterable);
  if (!all.ok() || !node.children[1]) return all;
  Value::List kept;
  for (const Value& item : *all) {
    TORCHETTE_TRY(spend_on(item));
    TORCHETTE_TRY(bind_names(node, item));
    const Result<Value> condition = evaluate(*node.children[1]);
    if (!condition.ok()) return condition.error();
    if (condition->is_true()) kept.push_back(item);
  }
  return kept;
}

Error Evaluator::bind_names(const Node& node, const Value& item) {
  if (node.names.size() == 1) {
    set(node.names[0], item);
    return Error::Ok;
  }
  if (!item.is(Kind::List) || item.list->size() != node.names.size())
    return fail(node.line, "an item does not have " + std::to_string(node.names.size()) + " parts");
  for (size_t i = 0; i < node.names.size(); ++i) set(node.names[i], (*item.list)[i]);
  return Error::Ok;
}

// --- Expressions ---

Result<Value> Evaluator::evaluate(const Node& node) {
  TORCHETTE_TRY(spend(0));
  if (++depth_ > 4 * kMaxDepth) return fail(node.line, "values are nested too deeply");
  Result<Value> found = evaluate_unguarded(node);
  --depth_;
  if (found.ok() && found->is(Kind::String)) {
    TORCHETTE_TRY(spend(found->text.size() / 16));
    if (found->text.size() > kMaxString) return fail(node.line, "a string is too long");
  }
  return found;
}

/// The value of a node without the limits on work, depth and size.
Result<Value> Evaluator::evaluate_unguarded(const Node& node) {
  switch (node.op) {
    case Op::Constant:
      return node.value;
    case Op::Name: {
      const Value* found = find(node.name);
      return found != nullptr ? *found : Value::undefined(node.name);
    }
    case Op::List:
    case Op::Tuple: {
      Result<std::vector<Value>> list = evaluate_all(node, 0);
      if (!list.ok()) return list.error();
      return node.op == Op::List ? Value::of(std::move(*list)) : Value::tuple(std::move(*list));
    }
    case Op::Dict:
      return evaluate_dict(node);
    case Op::And:
    case Op::Or:
      return evaluate_logical(node);
    case Op::Conditional:
      return evaluate_conditional(node);
    case Op::Capture:
      return evaluate_capture(node);
    case Op::Caller:
      return evaluate_caller(node);
    case Op::Slice:
      return evaluate_slice(node);
    default:
      return evaluate_operation(node);
  }
}

/// The value of a node with a first operand that is always evaluated.
Result<Value> Evaluator::evaluate_operation(const Node& node) {
  const Result<Value> first = evaluate(*node.children[0]);
  if (!first.ok()) return first.error();
  TORCHETTE_TRY(spend_on(*first));
  switch (node.op) {
    case Op::Not:
      return Value::of(!first->is_true());
    case Op::Negate:
      return negate(node, *first);
    case Op::Attribute:
      return evaluate_attribute(node, *first);
    case Op::Item:
      return evaluate_item(node, *first);
    case Op::Call:
    case Op::Method:
    case Op::Filter:
    case Op::Test:
      return evaluate_call(node, *first);
    default: {
      const Result<Value> second = evaluate(*node.children[1]);
      if (!second.ok()) return second.error();
      TORCHETTE_TRY(spend_on(*second));
      return apply_operator(*this, node.line, node.op, *first, *second);
    }
  }
}

Result<std::vector<Value>> Evaluator::evaluate_all(const Node& node, size_t first) {
  std::vector<Value> values;
  for (size_t i = first; i < node.children.size(); ++i) {
    Result<Value> value = evaluate(*node.children[i]);
    if (!value.ok()) return value.error();
    values.push_back(std::move(*value));
  }
  return values;
}

Result<Value> Evaluator::evaluate_dict(const Node& node) {
  const Result<std::vector<Value>> items = evaluate_all(node, 0);
  if (!items.ok()) return items.error();
  Value::Dict dict;
  for (size_t i = 0; i + 1 < items->size(); i += 2) {
    const Result<std::string> key = text_of(node.line, (*items)[i]);
    if (!key.ok()) return key.error();
    dict.emplace_back(*key, (*items)[i + 1]);
  }
  return Value::of(std::move(dict));
}

Result<Value> Evaluator::evaluate_logical(const Node& node) {
  Result<Value> left = evaluate(*node.children[0]);
  if (!left.ok() || left->is_true() == (node.op == Op::Or)) return left;
  return evaluate(*node.children[1]);
}

Result<Value> Evaluator::evaluate_conditional(const Node& node) {
  const Result<Value> condition = evaluate(*node.children[0]);
  if (!condition.ok()) return condition.error();
  if (condition->is_true()) return evaluate(*node.children[1]);
  if (node.children.size() > 2) return evaluate(*node.children[2]);
  return Value::undefined("the value without else");
}

Result<Value> Evaluator::evaluate_capture(const Node& node) {
  std::string text;
  scopes_.emplace_back();
  TORCHETTE_TRY(render(*node.children[0], &text));
  scopes_.pop_back();
  return Value::of(std::move(text));
}

/// The macro of a call block, with the variables that its body sees.
Result<Value> Evaluator::evaluate_caller(const Node& node) {
  Value::Dict variables;
  for (size_t i = 1; i < scopes_.size(); ++i)
    for (const auto& [name, value] : scopes_[i]) {
      if (name == node.name) continue;  // that of a macro around the block
      TORCHETTE_TRY(spend(kWorkOfItem + value.text.size() / 16));
      set_key(&variables, name, value);
    }
  Value made = Value::of_macro(&node);
  made.dict = std::make_shared<Value::Dict>(std::move(variables));
  return made;
}

Result<Value> Evaluator::evaluate_attribute(const Node& node, const Value& object) {
  if (object.is(Kind::Undefined)) return fail(node.line, object.text + " is undefined");
  const Value* found = object.find(node.name);
  return found != nullptr ? *found : Value::undefined(node.name);
}

Result<Value> Evaluator::evaluate_item(const Node& node, const Value& object) {
  const Result<Value> index = evaluate(*node.children[1]);
  if (!index.ok()) return index.error();
  if (object.is(Kind::Undefined)) return fail(node.line, object.text + " is undefined");
  const Result<std::string> name = text_of(node.line, *index);
  if (!name.ok()) return name.error();
  if (object.is(Kind::Dict) || !index->is_integer()) {
    const Value* found = object.find(*name);
    return found != nullptr ? *found : Value::undefined(*name);
  }
  const Text text = object.is(Kind::String) ? characters(object.text) : Text();
  const auto size = static_cast<int64_t>(object.is(Kind::List) ? object.list->size() : text.size());
  const int64_t at = index->integer < 0 ? index->integer + size : index->integer;
  if (at < 0 || at >= size) return Value::undefined("item " + *name);
  if (object.is(Kind::List)) return (*object.list)[static_cast<size_t>(at)];
  return Value::of(to_utf8(&text[static_cast<size_t>(at)], 1));
}

/// Python's slices.
Result<Value> Evaluator::evaluate_slice(const Node& node) {
  const Result<Value> object = evaluate(*node.children[0]);
  if (!object.ok()) return object.error();
  int64_t given[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (!node.children[i + 1]) continue;
    const Result<Value> bound = evaluate(*node.children[i + 1]);
    if (!bound.ok()) return bound.error();
    if (!bound->is_integer()) return fail(node.line, "the bounds of a slice must be integers");
    given[i] = bound->integer;
  }
  const bool is_list = object->is(Kind::List);
  if (!is_list && !object->is(Kind::String)) return fail(node.line, "only lists and strings have slices");
  const Text text = is_list ? Text() : characters(object->text);
  const auto size = static_cast<int64_t>(is_list ? object->list->size() : text.size());
  const int64_t step = node.children[3] ? std::clamp<int64_t>(given[2], -(1 << 30), 1 << 30) : 1;
  if (step == 0) return fail(node.line, "the step of a slice is 0");
  const auto bound = [&](size_t i, int64_t otherwise) {
    if (!node.children[i + 1]) return otherwise;
    const int64_t at = given[i] < 0 ? given[i] + size : given[i];
    return step > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t first = bound(0, step > 0 ? 0 : size - 1), last = bound(1, step > 0 ? size : -1);
  Value::List list;
  Text part;
  const int64_t count = (step > 0 ? last - first : first - last) / std::abs(step);
  if (is_list && count > 0) TORCHETTE_TRY(spend(2 * static_cast<size_t>(count)));
  for (int64_t at = first; step > 0 ? at < last : at > last; at += step)
    if (is_list)
      list.push_back((*object->list)[static_cast<size_t>(at)]);
    else
      part += text[static_cast<size_t>(at)];
  if (object->is_tuple) return Value::tuple(std::move(list));
  return is_list ? Value::of(std::move(list)) : Value::of(to_utf8(part));
}

Result<Value> Evaluator::negate(const Node& node, const Value& operand) {
  if (operand.is_integer())  // the least int64 has no opposite and stays
    return Value::of(static_cast<int64_t>(0 - static_cast<uint64_t>(operand.integer)));
  if (operand.is_number()) return Value::of(-operand.real);
  return fail(node.line, "the operand of - is not a number");
}

// --- Calls ---

Result<Value> Evaluator::evaluate_call(const Node& node, const Value& callee) {
  const std::string unnamed = "this value";
  const Result<std::vector<Value>> arguments = evaluate_all(node, 1);
  if (!arguments.ok()) return arguments.error();
  for (const Value& argument : *arguments) TORCHETTE_TRY(spend_on(argument));
  const Node& first = *node.children[0];
  const std::string& name = node.op != Op::Call ? node.name : first.op == Op::Name ? first.name : unnamed;
  const Call made{*this, node.line, name, *arguments, node.names};
  if (node.op == Op::Filter) return apply_filter(made, callee);
  if (node.op == Op::Test) return apply_test(made, callee);
  if (node.op == Op::Method) return call_method(made, callee);
  return call(made, callee);
}

Result<Value> Evaluator::call(const Call& call, const Value& callee) {
  if (callee.is(Kind::Macro)) return call_macro(call, callee);
  if (callee.is(Kind::Dict) && callee.macro != nullptr) return call_loop(call, callee);
  if (!callee.is(Kind::Undefined)) return call.fail(call.name + " cannot be called");
  return call_function(call);
}

/// The text of a recursive loop over the argument.
Result<Value> Evaluator::call_loop(const Call& call, const Value& loop) {
  TORCHETTE_TRY(call.check("recursive loop", "iterable"));
  if (call.arguments.empty()) return call.fail("a recursive loop requires an iterable");
  if (++depth_ > kMaxDepth) return call.fail("calls of loops are nested too deeply");
  const Value* const depth = loop.find("depth");
  std::string text;
  TORCHETTE_TRY(render_loop(*loop.macro, call.arguments[0], depth != nullptr ? depth->integer : 0, &text));
  --depth_;
  return Value::of(std::move(text));
}

/// The text of a macro. Its body sees global variables and its parameters; that of a Caller also sees the
/// variables around it.
Result<Value> Evaluator::call_macro(const Call& call, const Value& callee) {
  const Node& macro = *callee.macro;
  Result<Value::Dict> parameters = bind_parameters(call, macro);
  if (!parameters.ok()) return parameters.error();
  if (++depth_ > kMaxDepth) return call.fail("calls of macros are nested too deeply");
  std::vector<Value::Dict> callers(std::make_move_iterator(scopes_.begin() + 1),
                                   std::make_move_iterator(scopes_.end()));
  scopes_.resize(1);
  if (callee.dict != nullptr) {
    for (const auto& [name, value] : *callee.dict) TORCHETTE_TRY(spend_on(value));
    scopes_.push_back(*callee.dict);
  }
  scopes_.push_back(std::move(*parameters));
  std::string text;
  TORCHETTE_TRY(render(*macro.children[0], &text));
  scopes_.resize(1);
  for (Value::Dict& one : callers) scopes_.push_back(std::move(one));
  --depth_;
  return Value::of(std::move(text));
}

Result<Value::Dict> Evaluator::bind_parameters(const Call& call, const Node& macro) {
  Value::Dict scope;
  std::string parameters;
  for (const std::string& name : macro.names) parameters += (parameters.empty() ? "" : " ") + name;
  const Value* const caller = macro.value.is_true() ? call.argument("caller") : nullptr;
  if (caller != nullptr) parameters += parameters.empty() ? "caller" : " caller";
  TORCHETTE_TRY(call.check("macro", parameters, caller != nullptr ? 1 : 0));
  if (caller != nullptr) scope.emplace_back("caller", *caller);
  for (size_t i = 0; i < macro.names.size(); ++i) {
    const Value* given = call.argument(i, macro.names[i]);
    const Node* otherwise = macro.children[i + 1].get();
    if (given == nullptr && otherwise != nullptr) {
      const Result<Value> value = evaluate(*otherwise);
      if (!value.ok()) return value.error();
      scope.emplace_back(macro.names[i], *value);
    } else {
      scope.emplace_back(macro.names[i], given != nullptr ? *given : Value::undefined(macro.names[i]));
    }
  }
  return scope;
}

const Value* Call::argument(std::string_view keyword) const {
  for (size_t i = 0; i < keywords.size(); ++i)
    if (keywords[i] == keyword) return &arguments[arguments.size() - keywords.size() + i];
  return nullptr;
}

const Value* Call::argument(size_t position, std::string_view keyword) const {
  if (const Value* found = argument(keyword)) return found;
  return position < num_positional() ? &arguments[position] : nullptr;
}

Error Call::check(std::string_view kind, std::string_view parameters, size_t num_keyword_only) const {
  if (parameters == "*") return Error::Ok;
  std::vector<std::string_view> names;
  for (size_t at = 0; at < parameters.size();) {
    const size_t end = std::min(parameters.find(' ', at), parameters.size());
    names.push_back(parameters.substr(at, end - at));
    at = end + 1;
  }
  const std::string callee = "the " + std::string(kind) + " " + name;
  const size_t max_positional = names.size() - num_keyword_only;
  if (num_positional() > max_positional)
    return fail(callee + " accepts " + std::to_string(max_positional) + " arguments, the call has " +
                std::to_string(num_positional()));
  for (const std::string& keyword : keywords) {
    const auto at = std::find(names.begin(), names.end(), keyword) - names.begin();
    if (at == static_cast<std::ptrdiff_t>(names.size())) return fail(callee + " has no argument " + keyword);
    if (at < static_cast<std::ptrdiff_t>(num_positional()))
      return fail(callee + " gets the argument " + keyword + " twice");
  }
  return Error::Ok;
}

const std::string* Call::string(size_t position) const {
  return position < arguments.size() && arguments[position].is(Kind::String) ? &arguments[position].text
                                                                             : nullptr;
}

Error Call::fail(const std::string& message) const { return evaluator.fail(line, message); }

Error Call::unsupported(std::string_view kind) const {
  return evaluator.unsupported(line, "the " + std::string(kind) + " " + name);
}

}  // namespace torchette::extension::llm::jinja
