// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/schema_pattern.h"

#include <vector>

#include "torchette/llm/grammar/schema_gbnf.h"
#include "torchette/llm/grammar/schema_json.h"
#include "torchette/llm/text/unicode.h"

namespace torchette::extension::llm::schema {

const char kEscapedCharacters[] = R"("\\\x00-\x1f\x7f)";

namespace {

/// Spaces beyond ASCII.
constexpr char kSpaces[] = "\\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff";

/// The members of \d, \w or \s that JSON writes without an escape; also for the negated letters.
const char* class_members(char32_t letter) {
  switch (letter) {
    case 'd':
    case 'D':
      return "0-9";
    case 'w':
    case 'W':
      return "0-9A-Za-z_";
    case 's':
    case 'S':
      return " ";
    default:
      return nullptr;
  }
}

bool is_positive_class(char32_t letter) { return letter == 'd' || letter == 'w' || letter == 's'; }
bool is_alphanumeric(char32_t c) { return is_in(c, kLetters | kNumbers); }

/// A character as JSON writes it.
std::string literal(char32_t c, bool ensure_ascii) {
  const std::string text = dump_string(to_utf8(Text(1, c)), ensure_ascii);
  return quoted(std::string_view(text).substr(1, text.size() - 2));
}

class PatternConverter {
 public:
  PatternConverter(Text text, std::string* reason) : text_(std::move(text)), reason_(reason) {}

  std::optional<std::string> run();

 private:
  bool is_at(size_t at, char32_t c) const { return at < text_.size() && text_[at] == c; }
  bool fail(const std::string& reason) {
    *reason_ = reason;
    return false;
  }
  bool add(std::string part) {
    parts_.push_back(std::move(part));
    return true;
  }
  void remove_anchors(std::string* before, std::string* after);
  bool convert_next();
  bool convert_escape();
  bool convert_class();
  bool convert_class_members(const Text& members);
  bool convert_group();
  bool convert_repeat(char32_t c);
  size_t bounds_size() const;

  Text text_;
  std::string* reason_;
  size_t at_ = 0;
  int depth_ = 0;  // of groups
  bool is_anchored_ = false;
  std::vector<std::string> parts_;
};

std::optional<std::string> PatternConverter::run() {
  std::string before = "char* (", after = ") char*";
  remove_anchors(&before, &after);
  parts_ = {before};
  while (at_ < text_.size())
    if (!convert_next()) return std::nullopt;
  if (depth_ != 0) return fail("a ( without a )"), std::nullopt;
  parts_.push_back(after);
  return join(parts_, " ");
}

void PatternConverter::remove_anchors(std::string* before, std::string* after) {
  const size_t size = text_.size();
  if (is_at(0, '^')) text_.erase(0, 1), *before = "(";
  if (!text_.empty() && text_.back() == '$') {
    size_t num_backslashes = 0;
    while (num_backslashes + 1 < text_.size() && text_[text_.size() - 2 - num_backslashes] == '\\')
      ++num_backslashes;
    if (num_backslashes % 2 == 0) text_.pop_back(), *after = ")";
  }
  is_anchored_ = text_.size() != size;
}

bool PatternConverter::convert_next() {
  const char32_t c = text_[at_++];
  switch (c) {
    case '\\':
      return convert_escape();
    case '[':
      return convert_class();
    case '(':
      return convert_group();
    case ')':
      return --depth_ < 0 ? fail("a ) without a (") : add(")");
    case '*':
    case '+':
    case '?':
    case '{':
      return convert_repeat(c);
    case '|':
      return depth_ == 0 && is_anchored_ ? fail("^ or $ of one alternative") : add("|");
    case '^':
    case '$':
      return fail(std::string(1, static_cast<char>(c)) + " inside");
    case '.':
      return add("char");
    default:
      return add(literal(c, false));
  }
}

bool PatternConverter::convert_escape() {
  if (at_ >= text_.size()) return fail("\\");
  const char32_t c = text_[at_++];
  const char* members = class_members(c);
  if (members != nullptr && is_positive_class(c)) return add(std::string("[") + members + "]");
  if (members != nullptr)
    return add(std::string("[^") + members + kEscapedCharacters + (c == 'S' ? kSpaces : "") + "]");
  if (is_alphanumeric(c)) return fail("\\" + to_utf8(Text(1, c)));
  return add(literal(c, true));
}

bool PatternConverter::convert_class() {
  size_t end = at_ + is_at(at_, '^');
  end += is_at(end, ']');  // a first ] is a member
  while (end < text_.size() && text_[end] != ']') end += text_[end] == '\\' ? 2 : 1;
  if (end >= text_.size()) return fail("a class without an end");
  const Text members = text_.substr(at_, end - at_);
  at_ = end + 1;
  return convert_class_members(members);
}

bool PatternConverter::convert_class_members(const Text& members) {
  const bool is_negated = !members.empty() && members[0] == '^';
  const size_t begin = is_negated ? 1 : 0;
  std::string found;
  for (size_t at = begin; at < members.size();) {
    char32_t c = members[at++];
    if (c == '\\') {
      if (at >= members.size()) return fail("\\ in a class");
      c = members[at++];
      if (is_positive_class(c)) {
        found += class_members(c);
        continue;
      }
      if (is_alphanumeric(c)) return fail("\\" + to_utf8(Text(1, c)) + " in a class");
    }
    const bool is_inside = at > begin + 1 && at < members.size();
    if (c == '-' && is_inside && members[at - 2] != '\\') {
      found += "-";
    } else if (c == '"' || c == '\\' || c < ' ') {
      if (!is_negated) return fail(dump_string(to_utf8(Text(1, c))) + " in a class");
    } else {
      found += class_member(c);
    }
  }
  return add(std::string("[") + (is_negated ? "^" : "") + found + (is_negated ? kEscapedCharacters : "") +
             "]");
}

bool PatternConverter::convert_group() {
  const bool is_unnamed = is_at(at_, '?') && is_at(at_ + 1, ':');
  if (is_at(at_, '?') && !is_unnamed) return fail(to_utf8(text_.substr(at_ - 1, 3)));
  at_ += is_unnamed ? 2 : 0;
  ++depth_;
  return add("(");
}

bool PatternConverter::convert_repeat(char32_t c) {
  if (c != '{') {
    if (is_at(at_, '?') || is_at(at_, '+')) ++at_;  // lazy and possessive: the same strings match
    return add(std::string(1, static_cast<char>(c)));
  }
  const size_t size = bounds_size();
  if (size == 0) return add(literal(c, false));
  at_ += size;
  return add("{" + to_utf8(text_.substr(at_ - size, size)));
}

/// The size of `3}`, `3,}` or `3,5}` at the current position; 0 if there are no bounds.
size_t PatternConverter::bounds_size() const {
  size_t at = at_;
  const auto skip_digits = [&] {
    const size_t begin = at;
    while (at < text_.size() && text_[at] >= '0' && text_[at] <= '9') ++at;
    return at > begin;
  };
  if (!skip_digits()) return 0;
  if (is_at(at, ',')) ++at, skip_digits();
  return is_at(at, '}') ? at + 1 - at_ : 0;
}

}  // namespace

std::optional<std::string> pattern_expression(const std::string& pattern, std::string* reason) {
  const Result<Text> text = to_text(pattern);
  if (!text.ok()) {
    *reason = "pattern is no UTF-8";
    return std::nullopt;
  }
  std::optional<std::string> found = PatternConverter(*text, reason).run();
  if (!found) *reason = "pattern " + dump_string(pattern) + ": " + *reason + " cannot be held by a grammar";
  return found;
}

}  // namespace torchette::extension::llm::schema
