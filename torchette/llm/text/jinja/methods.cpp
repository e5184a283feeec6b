// SPDX-License-Identifier: BSD-3-Clause
// The methods of strings and dicts.
#include <algorithm>
#include <utility>

#include "torchette/llm/text/jinja/builtins.h"
#include "torchette/llm/text/jinja/evaluator.h"
#include "torchette/llm/text/jinja/strings.h"

namespace torchette::extension::llm::jinja {
namespace {

struct Method {
  std::string_view name, parameters;
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
  return Value::of(std::any_of(parts.begin(), parts.end(), [&](const Value& part) {
    return part.is(Kind::String) && is_affix(part.text);
  }));
}

/// The string without the argument at its beginning, or end.
template <bool kAtEnd>
Result<Value> remove_affix(const Call& call, const Value& self) {
  const Result<Value> has = has_affix<kAtEnd>(call, self);
  const std::string* affix = call.string(0);
  if (affix == nullptr) return call.fail(call.name + " accepts a string");
  if (!has->is_true()) return self;
  const size_t size = self.text.size() - affix->size();
  return Value::of(self.text.substr(kAtEnd ? 0 : affix->size(), size));
}

Result<Value> replace(const Call& call, const Value& self) {
  const std::string *from = call.string(0), *to = call.string(1);
  if (from == nullptr || to == nullptr) return call.fail("replace accepts two strings");
  return replaced(call, self.text, *from, *to, call.argument(2, "count"));
}

/// The words of a string. After `limit` words from a side, the rest is one part.
Result<Value> split_at_whitespace(const Call& call, const Value& self, int64_t limit, bool from_right) {
  TORCHETTE_TRY(call.evaluator.spend(self.text.size() * kWorkOfItem / 2));
  Text text = characters(self.text);
  if (from_right) std::reverse(text.begin(), text.end());
  Value::List parts;
  for (size_t at = 0; at < text.size(); --limit) {
    while (at < text.size() && is_space(text[at])) ++at;
    size_t end = at;
    while (end < text.size() && (limit == 0 || !is_space(text[end]))) ++end;
    Text part = text.substr(at, end - at);
    if (from_right) std::reverse(part.begin(), part.end());
    if (!part.empty()) parts.push_back(Value::of(to_utf8(part)));
    at = end;
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return Value::of(std::move(parts));
}

/// The parts of a string between separators, or between whitespace without one. `maxsplit` is the maximum of
/// splits, from the left or from the right.
template <bool kFromRight>
Result<Value> split(const Call& call, const Value& self) {
  const Value *sep = call.argument(0, "sep"), *limit = call.argument(1, "maxsplit");
  if (limit != nullptr && !limit->is_integer()) return call.fail("maxsplit must be an integer");
  int64_t splits_left = limit != nullptr ? limit->integer : -1;  // negative: no limit
  TORCHETTE_TRY(call.evaluator.spend(self.text.size()));
  if (sep == nullptr || sep->is(Kind::None)) return split_at_whitespace(call, self, splits_left, kFromRight);
  if (!sep->is(Kind::String) || sep->text.empty())
    return call.fail("the separator of split must be a string, not empty");
  TORCHETTE_TRY(call.evaluator.spend_on_search(self.text, sep->text));
  std::string_view rest = self.text;
  Value::List parts;
  for (size_t at; splits_left != 0 &&
                  (at = kFromRight ? rest.rfind(sep->text) : rest.find(sep->text)) != std::string_view::npos;
       --splits_left) {
    const std::string_view before = rest.substr(0, at), after = rest.substr(at + sep->text.size());
    parts.push_back(Value::of(std::string(kFromRight ? after : before)));
    rest = kFromRight ? before : after;
  }
  parts.push_back(Value::of(std::string(rest)));
  if (kFromRight) std::reverse(parts.begin(), parts.end());
  return Value::of(std::move(parts));
}

Result<Value> splitlines(const Call& call, const Value& self) {
  TORCHETTE_TRY(call.evaluator.spend(self.text.size()));
  Value::List lines;
  std::string line;
  const Text text = characters(self.text);
  constexpr std::u32string_view kBreaks = U"\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029";
  for (size_t i = 0; i < text.size(); ++i) {
    if (kBreaks.find(text[i]) == std::u32string_view::npos) {
      append_utf8(text[i], &line);
      if (i + 1 < text.size()) continue;
    } else if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') {
      ++i;
    }
    lines.push_back(Value::of(std::exchange(line, {})));
  }
  return Value::of(std::move(lines));
}

/// The text before a separator, the separator, and the text after it.
template <bool kFromRight>
Result<Value> partition(const Call& call, const Value& self) {
  const std::string* sep = call.string(0);
  if (sep == nullptr || sep->empty())
    return call.fail("the separator of partition must be a string, not empty");
  TORCHETTE_TRY(call.evaluator.spend_on_search(self.text, *sep));
  const size_t at = kFromRight ? self.text.rfind(*sep) : self.text.find(*sep);
  if (at == std::string::npos) {
    Value::List parts(3, Value::of(std::string()));
    parts[kFromRight ? 2 : 0] = self;
    return Value::tuple(std::move(parts));
  }
  return Value::tuple(
      {Value::of(self.text.substr(0, at)), Value::of(*sep), Value::of(self.text.substr(at + sep->size()))});
}

Result<Value> join(const Call& call, const Value& self) {
  const Result<Value::List> list = call.evaluator.items(call.line, call.arguments[0]);
  if (!list.ok()) return list.error();
  std::string out;
  for (size_t i = 0; i < list->size(); ++i) {
    if (!(*list)[i].is(Kind::String)) return call.fail("join accepts strings");
    out += (i > 0 ? self.text : "") + (*list)[i].text;
    if (out.size() > kMaxString) return call.fail("a string is too long");
  }
  return Value::of(std::move(out));
}

Result<Value> count(const Call& call, const Value& self) {
  const std::string* part = call.string(0);
  if (part == nullptr || part->empty()) return call.fail("count accepts a string that is not empty");
  TORCHETTE_TRY(call.evaluator.spend_on_search(self.text, *part));
  int64_t found = 0;
  for (size_t at = 0; (at = self.text.find(*part, at)) != std::string::npos; at += part->size()) ++found;
  return Value::of(found);
}

/// Whether there are characters, and all of them are in the categories.
template <uint32_t kCategories>
Result<Value> are_all(const Call&, const Value& self) {
  const Text text = characters(self.text);
  return Value::of(!text.empty() &&
                   std::all_of(text.begin(), text.end(), [](char32_t c) { return is_in(c, kCategories); }));
}

Result<Value> are_spaces(const Call&, const Value& self) {
  return Value::of(!self.text.empty() && strip(self.text, nullptr).empty());
}

/// The position of a part in characters, or -1.
template <bool kFromRight>
Result<Value> find(const Call& call, const Value& self) {
  const std::string* part = call.string(0);
  if (part == nullptr) return call.fail(call.name + " accepts a string");
  TORCHETTE_TRY(call.evaluator.spend_on_search(self.text, *part));
  const size_t found = kFromRight ? self.text.rfind(*part) : self.text.find(*part);
  if (found == std::string::npos) return Value::of(int64_t{-1});
  return Value::of(characters(self.text.substr(0, found)).size());
}

/// As find, but a part that is absent is an error.
template <bool kFromRight>
Result<Value> position(const Call& call, const Value& self) {
  Result<Value> found = find<kFromRight>(call, self);
  if (found.ok() && found->integer < 0) return call.fail("the string does not have this part");
  return found;
}

/// Fills a string to a width on one or both sides.
template <int kLeft, int kRight>
Result<Value> justify(const Call& call, const Value& self) {
  const Value *width = call.argument(0, "width"), *fill = call.argument(1, "fillchar");
  const bool has_fill = fill != nullptr && fill->is(Kind::String) && fill->text.size() == 1;
  if (!width->is_integer() || width->integer > static_cast<int64_t>(kMaxRepeated) ||
      (fill != nullptr && !has_fill))
    return call.fail(call.name + " accepts a width and an ASCII character");
  return Value::of(padded(self.text, width->integer, has_fill ? fill->text[0] : ' ', kLeft, kRight));
}

Result<Value> zfill(const Call& call, const Value& self) {
  if (!call.arguments[0].is_integer() || call.arguments[0].integer > static_cast<int64_t>(kMaxRepeated))
    return call.fail("zfill accepts a width");
  const size_t sign = !self.text.empty() && (self.text[0] == '-' || self.text[0] == '+') ? 1 : 0;
  const int64_t width = call.arguments[0].integer - static_cast<int64_t>(sign);
  return Value::of(self.text.substr(0, sign) + padded(self.text.substr(sign), width, '0', 1, 0));
}

template <Case kTo>
Result<Value> to_case(const Call& call, const Value& self) {
  TORCHETTE_TRY(call.evaluator.spend(kWorkOfCase * self.text.size()));
  return Value::of(change_case(self.text, kTo));
}

constexpr Method kStringMethods[] = {
    {"strip", "chars", strip_string<true, true>},
    {"lstrip", "chars", strip_string<true, false>},
    {"rstrip", "chars", strip_string<false, true>},
    {"startswith", "prefix", has_affix<false>, 1},
    {"endswith", "suffix", has_affix<true>, 1},
    {"removeprefix", "prefix", remove_affix<false>, 1},
    {"removesuffix", "suffix", remove_affix<true>, 1},
    {"replace", "old new count", replace, 2},
    {"split", "sep maxsplit", split<false>},
    {"rsplit", "sep maxsplit", split<true>},
    {"splitlines", "", splitlines},
    {"partition", "sep", partition<false>, 1},
    {"rpartition", "sep", partition<true>, 1},
    {"join", "iterable", join, 1},
    {"find", "sub", find<false>, 1},
    {"rfind", "sub", find<true>, 1},
    {"count", "sub", count, 1},
    {"isdigit", "", are_all<mask(Category::Nd)>},
    {"isalpha", "", are_all<kLetters>},
    {"isspace", "", are_spaces},
    {"index", "sub", position<false>, 1},
    {"rindex", "sub", position<true>, 1},
    {"ljust", "width fillchar", justify<0, 1>, 1},
    {"rjust", "width fillchar", justify<1, 0>, 1},
    {"center", "width fillchar", justify<1, 1>, 1},
    {"zfill", "width", zfill, 1},
    {"upper", "", to_case<Case::Upper>},
    {"lower", "", to_case<Case::Lower>},
    {"capitalize", "", to_case<Case::Capitalize>},
    {"title", "", to_case<Case::Title>},
};

// --- Dicts ---

Result<Value> get(const Call& call, const Value& self) {
  const Result<std::string> key = call.evaluator.text_of(call.line, call.arguments[0]);
  if (!key.ok()) return key.error();
  if (const Value* found = self.find(*key)) return *found;
  return call.arguments.size() > 1 ? call.arguments[1] : Value::none();
}

Result<Value> keys(const Call& call, const Value& self) {
  Value::List list;
  TORCHETTE_TRY(spend_on_members(call, self));
  for (const auto& [key, value] : *self.dict) list.push_back(Value::of(key));
  return Value::of(std::move(list));
}

Result<Value> values(const Call& call, const Value& self) {
  Value::List list;
  TORCHETTE_TRY(spend_on_members(call, self));
  for (const auto& [key, value] : *self.dict) list.push_back(value);
  return Value::of(std::move(list));
}

Result<Value> items(const Call& call, const Value& self) {
  TORCHETTE_TRY(spend_on_members(call, self));
  return Value::of(items_of_dict(self));
}

/// An argument of loop.cycle() by the index of the iteration.
Result<Value> cycle(const Call& call, const Value& self) {
  const Value* const index = self.find("index0");
  if (index == nullptr || !index->is_integer() || index->integer < 0) return call.unsupported("method");
  return call.arguments[static_cast<size_t>(index->integer) % call.arguments.size()];
}

/// Whether the arguments of loop.changed() are not those of the last iteration.
Result<Value> changed(const Call& call, const Value& self) {
  const Value* const state = self.find(kStateOfLoop);
  if (state == nullptr) return call.unsupported("method");
  const Value now = Value::tuple(call.arguments);
  if (const Value* const last = state->find(kStateOfLoop)) {
    const Result<bool> same = call.evaluator.is_same(*last, now);
    if (!same.ok()) return same.error();
    if (*same) return Value::of(false);
  }
  call.evaluator.change(state->dict, kStateOfLoop, now);
  return Value::of(true);
}

constexpr Method kDictMethods[] = {
    {"changed", "*", changed}, {"cycle", "*", cycle, 1}, {"get", "key default", get, 1},
    {"items", "", items},      {"keys", "", keys},       {"values", "", values},
};

// --- Lists ---

Result<Value> index(const Call& call, const Value& self) {
  const Value::List& list = *self.list;
  for (size_t i = 0; i < list.size(); ++i) {
    const Result<bool> found = call.evaluator.is_same(list[i], call.arguments[0]);
    if (!found.ok()) return found.error();
    if (*found) return Value::of(i);
  }
  return call.fail("the list does not have " + to_repr(call.arguments[0]));
}

Result<Value> count_items(const Call& call, const Value& self) {
  int64_t count = 0;
  for (const Value& one : *self.list) {
    const Result<bool> found = call.evaluator.is_same(one, call.arguments[0]);
    if (!found.ok()) return found.error();
    count += *found ? 1 : 0;
  }
  return Value::of(count);
}

constexpr Method kListMethods[] = {
    {"index", "value", index, 1},
    {"count", "value", count_items, 1},
};

template <size_t kCount>
const Method* find_method(const Method (&methods)[kCount], const Call& call) {
  for (const Method& one : methods)
    if (one.name == call.name) return &one;
  return nullptr;
}

}  // namespace

Error spend_on_members(const Call& call, const Value& dict) {
  size_t work = 4 * dict.dict->size();
  for (const auto& [key, value] : *dict.dict) work += (key.size() + value.text.size()) / 16;
  return call.evaluator.spend(work);
}

Result<Value> call_method(const Call& call, const Value& self) {
  if (self.is(Kind::Undefined)) return call.fail(self.text + " is undefined");
  const Method* found = self.is(Kind::String) ? find_method(kStringMethods, call)
                        : self.is(Kind::Dict) ? find_method(kDictMethods, call)
                        : self.is(Kind::List) ? find_method(kListMethods, call)
                                              : nullptr;
  if (found != nullptr) {
    TORCHETTE_TRY(call.check("method", found->parameters));
    if (call.arguments.size() < found->min_arguments)
      return call.fail("the method " + call.name + " requires the arguments " +
                       std::string(found->parameters));
    return found->apply(call, self);
  }
  if (const Value* member = self.find(call.name)) return call.evaluator.call(call, *member);
  return call.unsupported("method");
}

}  // namespace torchette::extension::llm::jinja
