// SPDX-License-Identifier: BSD-3-Clause
// The filters of templates: `value | name(arguments)`.
#include <algorithm>
#include <cmath>
#include <cstdio>
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

bool is_set(const Value* argument) { return argument != nullptr && argument->is_true(); }

/// Reads the separators between items and after keys. Error: InvalidArgument.
Error read_separators(const Call& call, const Value& given, JsonForm* form) {
  const bool is_pair = given.is(Kind::List) && given.list->size() == 2 && (*given.list)[0].is(Kind::String) &&
                       (*given.list)[1].is(Kind::String);
  if (!is_pair) return call.fail("the separators of tojson must be two strings");
  form->item_separator = (*given.list)[0].text;
  form->key_separator = (*given.list)[1].text;
  return Error::Ok;
}

/// The filter of transformers, which has the arguments of Python's json.dumps.
Result<Value> json(const Call& call, const Value& value) {
  constexpr int64_t kMaxIndent = 100;
  const Value *indent = call.argument(1, "indent"), *separators = call.argument(2, "separators");
  JsonForm form;
  form.ensure_ascii = is_set(call.argument(0, "ensure_ascii"));
  form.sort_keys = is_set(call.argument(3, "sort_keys"));
  form.is_indented = indent != nullptr && !indent->is(Kind::None);
  if (form.is_indented) {
    form.item_separator = ",";
    if (indent->is(Kind::String))
      form.indent = indent->text;
    else if (indent->is_integer() && indent->integer <= kMaxIndent)
      form.indent.assign(static_cast<size_t>(std::max<int64_t>(indent->integer, 0)), ' ');
    else
      return call.fail("the indent of tojson must be a string or an integer up to 100");
  }
  if (separators != nullptr && !separators->is(Kind::None))
    TORCHETTE_TRY(read_separators(call, *separators, &form));
  std::string out;
  if (const char* const problem = append_json(value, form, &out))
    return call.fail(std::string("tojson: the value cannot be written: ") + problem);
  TORCHETTE_TRY(call.evaluator.spend(out.size() / 2));
  return Value::of(std::move(out));
}

Result<Value> string(const Call& call, const Value& value) {
  Result<std::string> text = call.evaluator.text_of(call.line, value);
  if (!text.ok()) return text.error();
  return Value::of(std::move(*text));
}
Result<Value> safe(const Call&, const Value& value) { return value; }

Result<Value> length(const Call& call, const Value& value) {
  if (value.is(Kind::String)) return Value::of(characters(value.text).size());
  if (value.is(Kind::List)) return Value::of(value.list->size());
  if (value.is(Kind::Dict)) return Value::of(value.dict->size());
  if (value.is(Kind::Undefined)) return Value::of(int64_t{0});
  return call.fail(to_repr(value) + " has no length");
}

// --- Integers and floats ---

/// Parses a string as a decimal number, like Python's float(). Returns false if the string is not a number.
bool read_float(const std::string& text, double* out) {
  const std::string digits = strip(text, nullptr);
  char* end = nullptr;
  *out = std::strtod(digits.c_str(), &end);
  return !digits.empty() && *end == 0 && digits.find_first_of("xXpP") == std::string::npos;
}

Result<Value> integer(const Call& call, const Value& value) {
  const Value *otherwise = call.argument(0, "default"), *base = call.argument(1, "base");
  if (base != nullptr && !(base->is_integer() && base->integer == 10))
    return call.evaluator.unsupported(call.line, "a base other than 10");
  if (value.is_integer()) return Value::of(value.integer);
  double number = value.as_double();
  const bool is_read = value.is(Kind::String) ? read_float(value.text, &number) : value.is_number();
  if (!is_read || !(std::fabs(number) < 0x1p63))
    return otherwise != nullptr ? *otherwise : Value::of(int64_t{0});
  if (value.is(Kind::String) && value.text.find_first_of(".eE") == std::string::npos)
    return Value::of(static_cast<int64_t>(std::strtoll(strip(value.text, nullptr).c_str(), nullptr, 10)));
  return Value::of(static_cast<int64_t>(number));
}

Result<Value> real(const Call& call, const Value& value) {
  const Value* otherwise = call.argument(0, "default");
  double number = value.as_double();
  if (value.is(Kind::String) ? read_float(value.text, &number) : value.is_number()) return Value::of(number);
  return otherwise != nullptr ? *otherwise : Value::of(0.0);
}

/// Rounds to a number of decimals: to the nearest value, or up or down.
Result<Value> round(const Call& call, const Value& value) {
  const Value *precision = call.argument(0, "precision"), *method = call.argument(1, "method");
  const int64_t decimals = precision != nullptr && precision->is_integer() ? precision->integer : 0;
  const std::string name = method != nullptr ? to_string(*method) : "common";
  if (!value.is_number() || decimals < 0 || decimals > 15)
    return call.fail("round accepts a number and 0 to 15 decimals");
  const double scale = std::pow(10, static_cast<double>(decimals)), number = value.as_double();
  if (name == "ceil") return Value::of(std::ceil(number * scale) / scale);
  if (name == "floor") return Value::of(std::floor(number * scale) / scale);
  if (name != "common") return call.fail("the method of round must be common, ceil or floor");
  if (!(std::fabs(number) < 1e18)) return Value::of(number);
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", static_cast<int>(decimals), number);
  const Value rounded = Value::of(std::strtod(text, nullptr));
  return value.is_integer() ? value : rounded;
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
  const Result<std::string> text = call.evaluator.text_of(call.line, value);
  if (!text.ok()) return text.error();
  return Value::of(strip(*text, has_set ? &set->text : nullptr));
}

Result<Value> replace_text(const Call& call, const Value& value) {
  const Value *from = call.argument(0, "old"), *to = call.argument(1, "new");
  if (from == nullptr || to == nullptr) return call.fail("replace accepts two strings");
  Result<std::string> texts[] = {call.evaluator.text_of(call.line, value),
                                 call.evaluator.text_of(call.line, *from),
                                 call.evaluator.text_of(call.line, *to)};
  for (const Result<std::string>& text : texts)
    if (!text.ok()) return text.error();
  return replaced(call, *texts[0], *texts[1], *texts[2], call.argument(2, "count"));
}

/// Indents the lines after the first one. `first` and `blank` select the first line and empty lines.
Result<Value> indent(const Call& call, const Value& value) {
  const Value* width = call.argument(0, "width");
  const bool with_first = is_set(call.argument(1, "first")), with_blank = is_set(call.argument(2, "blank"));
  std::string space(4, ' ');
  if (width != nullptr && width->is(Kind::String))
    space = width->text;
  else if (width != nullptr && width->is_integer() && width->integer >= 0 && width->integer <= 1000)
    space.assign(static_cast<size_t>(width->integer), ' ');
  else if (width != nullptr)
    return call.fail("the width of indent must be a string or an integer of 0 to 1000");
  const Result<std::string> converted = call.evaluator.text_of(call.line, value);
  if (!converted.ok()) return converted.error();
  const std::string& text = *converted;
  TORCHETTE_TRY(call.evaluator.spend(text.size() * (space.size() + 1) / 4));
  std::string out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const bool is_indented = at == 0 ? with_first : with_blank || end > at;
    out += (at > 0 ? "\n" : "") + (is_indented ? space : std::string()) + text.substr(at, end - at);
    at = end + 1;
  }
  return Value::of(std::move(out));
}

Result<Value> format(const Call& call, const Value& value) {
  const Result<std::string> text = call.evaluator.text_of(call.line, value);
  if (!text.ok()) return text.error();
  if (!call.keywords.empty()) return call.evaluator.unsupported(call.line, "a keyword argument of format");
  return percent_format(call.evaluator, call.line, *text, call.arguments);
}

Result<Value> center(const Call& call, const Value& value) {
  const Value* width = call.argument(0, "width");
  const bool has_width = width != nullptr && width->is_integer();
  if (width != nullptr && (!has_width || width->integer > static_cast<int64_t>(kMaxRepeated)))
    return call.fail("center accepts a width");
  const Result<std::string> text = call.evaluator.text_of(call.line, value);
  if (!text.ok()) return text.error();
  return Value::of(padded(*text, has_width ? width->integer : 80, ' ', 1, 1));
}

/// The entities of HTML for its special characters.
Result<Value> escape(const Call& call, const Value& value) {
  constexpr std::string_view kFrom = "&<>\"'";
  constexpr std::string_view kTo[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
  const Result<std::string> text = call.evaluator.text_of(call.line, value);
  if (!text.ok()) return text.error();
  TORCHETTE_TRY(call.evaluator.spend(text->size()));
  std::string out;
  for (char c : *text) {
    const size_t at = kFrom.find(c);
    if (at != std::string_view::npos)
      out += kTo[at];
    else
      out += c;
  }
  return Value::of(std::move(out));
}

template <Case kTo>
Result<Value> to_case(const Call& call, const Value& value) {
  const Result<std::string> text = call.evaluator.text_of(call.line, value);
  if (!text.ok()) return text.error();
  TORCHETTE_TRY(call.evaluator.spend(kWorkOfCase * text->size()));
  return Value::of(change_case(*text, kTo));
}

// --- Dicts and lists ---

/// Lists of `linecount` items. `fill_with` completes the last list.
Result<Value> batch(const Call& call, const Value& value) {
  const Value *count = call.argument(0, "linecount"), *fill = call.argument(1, "fill_with");
  if (count == nullptr || !count->is_integer() || count->integer < 1)
    return call.fail("batch accepts a positive integer");
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  const auto size = static_cast<size_t>(count->integer);
  Value::List lines;
  for (size_t at = 0; at < list->size();) {
    Value::List line;
    for (; line.size() < size && at < list->size(); ++at) line.push_back((*list)[at]);
    for (; fill != nullptr && !fill->is(Kind::None) && line.size() < size; line.push_back(*fill))
      TORCHETTE_TRY(call.evaluator.spend(kWorkOfItem + fill->text.size() / 16));
    lines.push_back(Value::of(std::move(line)));
  }
  return Value::of(std::move(lines));
}

Result<Value> items(const Call& call, const Value& value) {
  if (value.is(Kind::Undefined)) return Value::of(Value::List());
  if (!value.is(Kind::Dict)) return call.fail(to_repr(value) + " is not a dict");
  TORCHETTE_TRY(spend_on_members(call, value));
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

/// The attribute of a value at a path, such as `function.name` or 0.
Result<Value> attribute_at(const Call& call, const Value& value, const Value& path) {
  if (!path.is(Kind::String) && !path.is_integer())
    return call.fail("an attribute must be a string or an integer");
  const std::string names = to_string(path);
  TORCHETTE_TRY(call.evaluator.spend(names.size() / 2));
  Value found = value;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find('.', at), names.size());
    const std::string name = names.substr(at, end - at);
    at = end + 1;
    const size_t index = static_cast<size_t>(std::strtoul(name.c_str(), nullptr, 10));
    const bool is_index = !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
    if (found.dict != nullptr) TORCHETTE_TRY(call.evaluator.spend(found.dict->size() / 4));
    const Value* member = found.find(name);
    if (found.is(Kind::List) && is_index && index < found.list->size()) member = &(*found.list)[index];
    found = member != nullptr ? Value(*member) : Value::undefined(name);
  }
  return found;
}

Result<Value> join(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  const Value *separator = call.argument(0, "d"), *attribute = call.argument(1, "attribute");
  const Result<std::string> between =
      call.evaluator.text_of(call.line, separator != nullptr ? *separator : Value());
  if (!between.ok()) return between.error();
  std::string out;
  for (size_t i = 0; i < list->size(); ++i) {
    if (i > 0) out += *between;
    const Result<Value> item =
        attribute != nullptr ? attribute_at(call, (*list)[i], *attribute) : Result<Value>((*list)[i]);
    if (!item.ok()) return item.error();
    const Result<std::string> text = call.evaluator.text_of(call.line, *item);
    if (!text.ok()) return text.error();
    out += *text;
    if (out.size() > kMaxString) return call.fail("a string is too long");
  }
  return Value::of(std::move(out));
}

/// The attribute of each item, or each item with a filter applied.
Result<Value> map(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  const Value *attribute = call.argument("attribute"), *otherwise = call.argument("default");
  const bool has_filter = call.num_positional() > 0;
  const size_t num_known = (attribute != nullptr) + (otherwise != nullptr);
  if (has_filter == (attribute != nullptr) || (!has_filter && call.keywords.size() != num_known))
    return call.fail("map accepts the name of a filter and its arguments, or an attribute and a default");
  const std::string name = has_filter ? to_string(call.arguments[0]) : "";
  const std::vector<Value> arguments(call.arguments.begin() + (has_filter ? 1 : 0), call.arguments.end());
  const Call filter{call.evaluator, call.line, name, arguments, call.keywords};
  Value::List mapped;
  for (const Value& item : *list) {
    Result<Value> one = has_filter ? apply_filter(filter, item) : attribute_at(call, item, *attribute);
    if (!one.ok()) return one.error();
    const bool is_missing = !has_filter && one->is(Kind::Undefined) && otherwise != nullptr;
    mapped.push_back(is_missing ? *otherwise : std::move(*one));
    TORCHETTE_TRY(call.evaluator.spend_on(mapped.back()));
  }
  return Value::of(std::move(mapped));
}

/// The items for which the outcome of a test is `keeps`. The arguments of the call are an attribute of the
/// items, if they have one; the name of the test, without which a value is tested for truth; and its
/// arguments.
Result<Value> selected(const Call& call, const Value& value, bool has_attribute, bool keeps) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  if (has_attribute && call.num_positional() == 0) return call.fail(call.name + " requires an attribute");
  const size_t num_own = has_attribute ? 1 : 0;
  const bool has_test = call.arguments.size() > num_own;
  const std::string name = has_test ? to_string(call.arguments[num_own]) : "";
  const size_t num_skipped = num_own + (has_test ? 1 : 0);
  const std::vector<Value> arguments(call.arguments.begin() + static_cast<std::ptrdiff_t>(num_skipped),
                                     call.arguments.end());
  const Call test{call.evaluator, call.line, name, arguments, call.keywords};
  Value::List kept;
  for (const Value& item : *list) {
    const Result<Value> tested =
        has_attribute ? attribute_at(call, item, call.arguments[0]) : Result<Value>(item);
    if (!tested.ok()) return tested.error();
    const Result<Value> holds = has_test ? apply_test(test, *tested) : Result<Value>(*tested);
    if (!holds.ok()) return holds.error();
    if (holds->is_true() == keeps) kept.push_back(item);
  }
  return Value::of(std::move(kept));
}

template <bool kHasAttribute, bool kKeeps>
Result<Value> select(const Call& call, const Value& value) {
  return selected(call, value, kHasAttribute, kKeeps);
}

// --- Order ---

/// An item and its sort key: its attribute, in lower case unless the order is case-sensitive.
struct Keyed {
  Value key, item;
};

Result<std::vector<Keyed>> keyed_items(const Call& call, const Value::List& list, const Value* attribute,
                                       bool case_sensitive, const Value* otherwise = nullptr) {
  std::vector<Keyed> keyed;
  for (const Value& item : list) {
    Result<Value> key = attribute != nullptr ? attribute_at(call, item, *attribute) : Result<Value>(item);
    if (!key.ok()) return key.error();
    if (key->is(Kind::Undefined) && otherwise != nullptr) *key = *otherwise;
    TORCHETTE_TRY(call.evaluator.spend(8 + kWorkOfCase * key->text.size()));  // also of comparisons
    if (key->is(Kind::String) && !case_sensitive) *key = Value::of(change_case(key->text, Case::Lower));
    keyed.push_back({std::move(*key), item});
  }
  return keyed;
}

bool is_before(const Value& a, const Value& b) {
  return a.is(Kind::String) ? a.text < b.text : a.as_double() < b.as_double();
}

/// Sorts by the keys. Error: InvalidArgument (the keys are neither all numeric nor all strings).
Error sort_keyed(const Call& call, bool is_reversed, std::vector<Keyed>* keyed) {
  for (const Keyed& one : *keyed) {
    const Value& first = keyed->front().key;
    if (first.is(Kind::String) ? !one.key.is(Kind::String) : !one.key.is_number() || !first.is_number())
      return call.fail(call.name + " requires items that are all numeric or all strings");
  }
  std::stable_sort(keyed->begin(), keyed->end(), [&](const Keyed& a, const Keyed& b) {
    return is_reversed ? is_before(b.key, a.key) : is_before(a.key, b.key);
  });
  return Error::Ok;
}

Result<Value> items_of(std::vector<Keyed> keyed) {
  Value::List list;
  for (Keyed& one : keyed) list.push_back(std::move(one.item));
  return Value::of(std::move(list));
}

Result<Value> sort(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  Result<std::vector<Keyed>> keyed =
      keyed_items(call, *list, call.argument(2, "attribute"), is_set(call.argument(1, "case_sensitive")));
  if (!keyed.ok()) return keyed.error();
  TORCHETTE_TRY(sort_keyed(call, is_set(call.argument(0, "reverse")), &*keyed));
  return items_of(std::move(*keyed));
}

/// The items with the same attribute, as tuples with the attributes `grouper` and `list`, in their order.
Result<Value> groupby(const Call& call, const Value& value) {
  const Value *attribute = call.argument(0, "attribute"), *otherwise = call.argument(1, "default");
  if (attribute == nullptr) return call.fail("groupby requires an attribute");
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  Result<std::vector<Keyed>> keyed =
      keyed_items(call, *list, attribute, is_set(call.argument(2, "case_sensitive")), otherwise);
  if (!keyed.ok()) return keyed.error();
  TORCHETTE_TRY(sort_keyed(call, false, &*keyed));
  Value::List groups;
  for (size_t i = 0; i < keyed->size();) {
    Result<Value> grouper = attribute_at(call, (*keyed)[i].item, *attribute);
    if (!grouper.ok()) return grouper.error();
    if (grouper->is(Kind::Undefined) && otherwise != nullptr) *grouper = *otherwise;
    Value::List members;
    const Value& first = (*keyed)[i].key;
    for (; i < keyed->size() && !is_before(first, (*keyed)[i].key); ++i) members.push_back((*keyed)[i].item);
    Value group = Value::tuple({*grouper, Value::of(std::move(members))});
    const Value::List& parts = *group.list;
    group.dict = std::make_shared<Value::Dict>(Value::Dict{{"grouper", parts[0]}, {"list", parts[1]}});
    groups.push_back(std::move(group));
  }
  return Value::of(std::move(groups));
}

/// The [key, value] pairs of a dict in order.
Result<Value> dictsort(const Call& call, const Value& value) {
  if (!value.is(Kind::Dict)) return call.fail(to_repr(value) + " is not a dict");
  const Value* by = call.argument(1, "by");
  const std::string name = by != nullptr ? to_string(*by) : "key";
  if (name != "key" && name != "value") return call.fail("dictsort sorts by key or value");
  const Value position = Value::of(int64_t{name == "value"});
  TORCHETTE_TRY(spend_on_members(call, value));
  Result<std::vector<Keyed>> keyed =
      keyed_items(call, items_of_dict(value), &position, is_set(call.argument(0, "case_sensitive")));
  if (!keyed.ok()) return keyed.error();
  TORCHETTE_TRY(sort_keyed(call, is_set(call.argument(2, "reverse")), &*keyed));
  return items_of(std::move(*keyed));
}

/// The smallest, or largest, item; undefined without items.
template <bool kIsLargest>
Result<Value> extreme(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  Result<std::vector<Keyed>> keyed =
      keyed_items(call, *list, call.argument(1, "attribute"), is_set(call.argument(0, "case_sensitive")));
  if (!keyed.ok()) return keyed.error();
  TORCHETTE_TRY(sort_keyed(call, kIsLargest, &*keyed));
  return keyed->empty() ? Value::undefined("the " + call.name + " of no items") : keyed->front().item;
}

/// The first item of each key.
Result<Value> unique(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  const Result<std::vector<Keyed>> keyed =
      keyed_items(call, *list, call.argument(1, "attribute"), is_set(call.argument(0, "case_sensitive")));
  if (!keyed.ok()) return keyed.error();
  Value::List kept, seen;
  for (const Keyed& one : *keyed) {
    bool was_seen = false;
    for (size_t i = 0; i < seen.size() && !was_seen; ++i) {
      const Result<bool> found = call.evaluator.is_same(seen[i], one.key);
      if (!found.ok()) return found.error();
      was_seen = *found;
    }
    if (was_seen) continue;
    seen.push_back(one.key);
    kept.push_back(one.item);
  }
  return Value::of(std::move(kept));
}

Result<Value> sum(const Call& call, const Value& value) {
  const Result<Value::List> list = call.evaluator.items(call.line, value);
  if (!list.ok()) return list.error();
  const Value *attribute = call.argument(0, "attribute"), *start = call.argument(1, "start");
  Value total = start != nullptr ? *start : Value::of(int64_t{0});
  for (const Value& item : *list) {
    const bool has_attribute = attribute != nullptr && !attribute->is(Kind::None);
    const Result<Value> one = has_attribute ? attribute_at(call, item, *attribute) : Result<Value>(item);
    if (!one.ok()) return one.error();
    Result<Value> next = apply_operator(call.evaluator, call.line, Op::Add, total, *one);
    if (!next.ok()) return next.error();
    TORCHETTE_TRY(call.evaluator.spend_on(*next));
    total = std::move(*next);
  }
  return total;
}

struct Filter {
  std::string_view name, parameters;
  Result<Value> (*apply)(const Call&, const Value&);
};

constexpr Filter kFilters[] = {
    {"abs", "", absolute},
    {"batch", "linecount fill_with", batch},
    {"capitalize", "", to_case<Case::Capitalize>},
    {"center", "width", center},
    {"count", "", length},
    {"d", "default_value boolean", default_value},
    {"default", "default_value boolean", default_value},
    {"dictsort", "case_sensitive by reverse", dictsort},
    {"e", "", escape},
    {"escape", "", escape},
    {"first", "", first},
    {"float", "default", real},
    {"format", "*", format},
    {"groupby", "attribute default case_sensitive", groupby},
    {"indent", "width first blank", indent},
    {"int", "default base", integer},
    {"items", "", items},
    {"join", "d attribute", join},
    {"last", "", last},
    {"length", "", length},
    {"list", "", list},
    {"lower", "", to_case<Case::Lower>},
    {"map", "*", map},
    {"max", "case_sensitive attribute", extreme<true>},
    {"min", "case_sensitive attribute", extreme<false>},
    {"reject", "*", select<false, false>},
    {"rejectattr", "*", select<true, false>},
    {"replace", "old new count", replace_text},
    {"reverse", "", reverse},
    {"round", "precision method", round},
    {"safe", "", safe},
    {"select", "*", select<false, true>},
    {"selectattr", "*", select<true, true>},
    {"sort", "reverse case_sensitive attribute", sort},
    {"string", "", string},
    {"sum", "attribute start", sum},
    {"title", "", to_case<Case::Title>},
    {"tojson", "ensure_ascii indent separators sort_keys", json},
    {"trim", "chars", trim},
    {"unique", "case_sensitive attribute", unique},
    {"upper", "", to_case<Case::Upper>},
};

}  // namespace

Result<Value> replaced(const Call& call, const std::string& text, const std::string& from,
                       const std::string& to, const Value* count) {
  if (count != nullptr && !count->is_integer() && !count->is(Kind::None))
    return call.fail("the count of replace must be an integer");
  TORCHETTE_TRY(call.evaluator.spend(text.size() * (to.size() + 1)));
  TORCHETTE_TRY(call.evaluator.spend_on_search(text, from));
  return Value::of(replace(text, from, to, count != nullptr && count->is_integer() ? count->integer : -1));
}

Result<Value> apply_filter(const Call& call, const Value& value) {
  for (const Filter& one : kFilters) {
    if (one.name != call.name) continue;
    TORCHETTE_TRY(call.check("filter", one.parameters));
    return one.apply(call, value);
  }
  return call.unsupported("filter");
}

}  // namespace torchette::extension::llm::jinja
