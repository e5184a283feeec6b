// SPDX-License-Identifier: BSD-3-Clause
// Values of templates as JSON, in the form of Python's json.dumps.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "torchette/llm/text/jinja/limits.h"
#include "torchette/llm/text/jinja/value.h"

namespace torchette::extension::llm::jinja {
namespace {

std::string float_text(const Value& value) {
  if (std::isnan(value.real)) return "NaN";
  if (std::isinf(value.real) && value.text.empty()) return value.real < 0 ? "-Infinity" : "Infinity";
  return to_repr(value);
}

/// The order of the members: that of the dict, or by key.
std::vector<size_t> member_order(const Value::Dict& dict, bool by_key) {
  std::vector<size_t> order(dict.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (by_key)
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return dict[a].first < dict[b].first; });
  return order;
}

const char* append_items(const Value& value, const JsonForm& form, std::string* out, int depth) {
  if (depth > kMaxDepth) return "it is nested too deeply";
  const bool is_list = value.is(Kind::List);
  std::vector<size_t> order;
  if (!is_list) order = member_order(*value.dict, form.sort_keys);
  const size_t count = is_list ? value.list->size() : order.size();
  const auto new_line = [&](int level) {
    *out += '\n';
    for (int i = 0; i < level; ++i) *out += form.indent;
  };
  *out += is_list ? '[' : '{';
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) *out += form.item_separator;
    if (form.is_indented) new_line(depth + 1);
    if (!is_list) *out += json_string((*value.dict)[order[i]].first, form.ensure_ascii) + form.key_separator;
    const Value& item = is_list ? (*value.list)[i] : (*value.dict)[order[i]].second;
    if (const char* const problem = append_json(item, form, out, depth + 1)) return problem;
  }
  if (form.is_indented && count > 0) new_line(depth);
  *out += is_list ? ']' : '}';
  return nullptr;
}

}  // namespace

const char* append_json(const Value& value, const JsonForm& form, std::string* out, int depth) {
  if (out->size() > kMaxString) return "its text is too long";  // values share items
  switch (value.kind) {
    case Kind::None:
      *out += "null";
      return nullptr;
    case Kind::Bool:
      *out += value.integer != 0 ? "true" : "false";
      return nullptr;
    case Kind::Int:
      *out += to_repr(value);
      return nullptr;
    case Kind::Float:
      *out += float_text(value);
      return nullptr;
    case Kind::String:
      *out += json_string(value.text, form.ensure_ascii);
      return nullptr;
    case Kind::List:
    case Kind::Dict:
      return append_items(value, form, out, depth);
    default:
      return value.is(Kind::Undefined) ? "it has an undefined value" : "it has a macro";
  }
}

}  // namespace torchette::extension::llm::jinja
