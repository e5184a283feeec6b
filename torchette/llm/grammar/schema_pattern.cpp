// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/schema_pattern.h"

#include <algorithm>
#include <vector>

#include "torchette/llm/grammar/schema_gbnf.h"
#include "torchette/llm/grammar/schema_json.h"
#include "torchette/llm/text/unicode.h"

namespace torchette::extension::llm::schema {

const char kEscapedCharacters[] = R"("\\\x00-\x1f\x7f)";

namespace {

constexpr char32_t kMaxCharacter = 0x10FFFF;
constexpr int kMaxDepth = 40, kMaxRepeats = 10'000;

// --- Sets of characters ---
using CharSet = std::vector<std::pair<char32_t, char32_t>>;

/// In order, without ranges that overlap.
CharSet normalized(CharSet set) {
  std::sort(set.begin(), set.end());
  CharSet merged;
  for (const auto& [low, high] : set)
    if (!merged.empty() && low <= merged.back().second + 1)
      merged.back().second = std::max(merged.back().second, high);
    else
      merged.emplace_back(low, high);
  return merged;
}

CharSet complement(const CharSet& set) {
  CharSet others;
  char32_t low = 0;
  for (const auto& [first, last] : normalized(set)) {
    if (first > low) others.emplace_back(low, first - 1);
    low = last + 1;
  }
  if (low <= kMaxCharacter) others.emplace_back(low, kMaxCharacter);
  return others;
}

bool contains(const CharSet& set, char32_t c) {
  return std::any_of(set.begin(), set.end(),
                     [&](const auto& range) { return range.first <= c && c <= range.second; });
}

/// Texts are UTF-8, which has no surrogates.
CharSet without_surrogates(const CharSet& set) {
  CharSet others = complement(set);
  others.emplace_back(0xD800, 0xDFFF);
  return complement(others);
}

/// The set of \d, \w, \s or of their complements; empty for another letter.
CharSet class_of_letter(char32_t letter) {
  switch (letter) {
    case 'd':
      return {{'0', '9'}};
    case 'w':
      return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    case 's':
      return {{0x09, 0x0D},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
              {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    case 'D':
      return complement(class_of_letter('d'));
    case 'W':
      return complement(class_of_letter('w'));
    case 'S':
      return complement(class_of_letter('s'));
    default:
      return {};
  }
}
CharSet not_line_terminators() { return complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}); }

std::string class_expression(const CharSet& set) {
  std::string members;
  for (const auto& [low, high] : set)
    members += class_member(low) + (high > low ? "-" + class_member(high) : std::string());
  return "[" + members + "]";
}

/// How a grammar writes the characters of a text: as they are, or as in a JSON string.
enum class Writing { Plain, Json };

/// One of a set of characters.
std::string set_expression(const CharSet& set, Writing writing) {
  if (writing == Writing::Plain) return class_expression(without_surrogates(set));
  if (set.size() == 1 && set[0] == CharSet::value_type(0, kMaxCharacter)) return "char";
  CharSet plain = complement(set), letters;
  for (const auto& range : CharSet{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0xD800, 0xDFFF}})
    plain.push_back(range);
  plain = complement(plain);
  for (const auto& [c, letter] :
       {std::pair{'"', '"'}, {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'}, {'\n', 'n'}, {'\r', 'r'}, {'\t', 't'}})
    if (contains(set, static_cast<char32_t>(c))) letters.emplace_back(letter, letter);
  std::vector<std::string> parts;
  if (!plain.empty()) parts.push_back(class_expression(plain));
  if (!letters.empty()) parts.push_back(R"("\\" )" + class_expression(letters));
  for (const char32_t high : {U'0', U'1'}) {
    CharSet digits;
    for (char32_t low = 0; low < 16; ++low) {
      if (!contains(set, (high - '0') * 16 + low)) continue;
      const char32_t digit = low < 10 ? '0' + low : 'a' + low - 10;
      digits.emplace_back(digit, digit);
      if (low >= 10) digits.emplace_back('A' + low - 10, 'A' + low - 10);
    }
    if (!digits.empty())
      parts.push_back(std::string(R"("\\u00)") + static_cast<char>(high) + "\" " + class_expression(digits));
  }
  return parts.size() == 1 && !plain.empty() ? parts[0] : "(" + join(parts, " | ") + ")";
}

// --- Syntax ---
struct Node {
  enum class Kind { Set, Sequence, Alternatives, Repeat, Start, End };
  Kind kind;
  size_t at;  // the position in the pattern
  CharSet set = {};
  std::vector<Node> children = {};
  int min = 1, max = 1;  // of a repeat; a negative maximum is none
};
using Kind = Node::Kind;

class PatternParser {
 public:
  PatternParser(const Text& text, std::string* reason) : text_(text), reason_(reason) {}

  bool parse(Node* out) {
    if (!alternatives(out, 0)) return false;
    return at_ == text_.size() || fail("a ) without a (", at_);
  }

 private:
  bool is_at(char32_t c, size_t ahead = 0) const {
    return at_ + ahead < text_.size() && text_[at_ + ahead] == c;
  }
  bool skip(char32_t c) {
    if (!is_at(c)) return false;
    ++at_;
    return true;
  }
  bool fail(const std::string& what, size_t at) {
    *reason_ = what + " at character " + std::to_string(at + 1);
    return false;
  }
  bool alternatives(Node* out, int depth) {
    *out = {Kind::Alternatives, at_};
    if (depth > kMaxDepth) return fail("groups that are nested more than 40 deep", at_);
    do {
      Node sequence = {Kind::Sequence, at_};
      while (at_ < text_.size() && !is_at('|') && !is_at(')')) {
        Node term = {Kind::Set, at_};
        if (!atom(&term, depth) || !repeats(&term)) return false;
        sequence.children.push_back(std::move(term));
      }
      out->children.push_back(std::move(sequence));
    } while (skip('|'));
    return true;
  }
  bool atom(Node* out, int depth);
  bool group(Node* out, int depth);
  bool repeats(Node* term);
  bool bounds(int* min, int* max, bool* found);
  bool escape(Node* out);
  bool character_escape(char32_t* out);
  bool hexadecimal(size_t num_digits, char32_t* out);
  bool char_class(Node* out);
  bool class_member_of(CharSet* out, bool* is_character);

  const Text& text_;
  std::string* reason_;
  size_t at_ = 0;
};

bool PatternParser::atom(Node* out, int depth) {
  const size_t at = at_;
  const char32_t c = text_[at_++];
  int min, max;
  bool is_repeat = c == '*' || c == '+' || c == '?';
  switch (c) {
    case '^':
      out->kind = Kind::Start;
      return true;
    case '$':
      out->kind = Kind::End;
      return true;
    case '(':
      return group(out, depth);
    case '[':
      return char_class(out);
    case '\\':
      return escape(out);
    case '.':
      out->set = not_line_terminators();
      return true;
    case '{':
      if (!bounds(&min, &max, &is_repeat)) return false;
      break;
    default:
      break;
  }
  if (is_repeat) return fail("a repeat of nothing", at);
  out->set = {{c, c}};
  return true;
}

bool PatternParser::group(Node* out, int depth) {
  const size_t at = at_ - 1;
  if (skip('?')) {
    if (is_at('=') || is_at('!')) return fail("lookahead", at);
    if (is_at('<') && (is_at('=', 1) || is_at('!', 1))) return fail("lookbehind", at);
    if (skip('<')) {
      while (at_ < text_.size() && !is_at('>')) ++at_;
      if (!skip('>')) return fail("a group name without a >", at);
    } else if (!skip(':')) {
      return fail("the flags of (?" + to_utf8(text_.substr(at_, 1)), at);
    }
  }
  if (!alternatives(out, depth + 1)) return false;
  return skip(')') || fail("a ( without a )", at);
}

/// Reads `3}`, `3,}` or `3,5}`. If there are no bounds, sets `*found` to false and reads nothing: { is then
/// an ordinary character.
bool PatternParser::bounds(int* min, int* max, bool* found) {
  const size_t begin = at_;
  const auto number = [&](int* out) {
    const size_t first = at_;
    for (*out = 0; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      *out = std::min(*out * 10 + static_cast<int>(text_[at_] - '0'), 10 * kMaxRepeats);
    return at_ > first;
  };
  *found = number(min);
  *max = *min;
  if (*found && skip(',') && !number(max)) *max = -1;
  *found = *found && skip('}');
  if (!*found) {
    at_ = begin;
    return true;
  }
  if (std::max(*min, *max) > kMaxRepeats) return fail("a repeat of more than 10000", begin);
  return *max < 0 || *max >= *min || fail("a repeat with a maximum below its minimum", begin);
}

bool PatternParser::repeats(Node* term) {
  const size_t at = at_;
  int min = 0, max = -1;
  bool found = true;
  if (skip('+'))
    min = 1;
  else if (skip('?'))
    max = 1;
  else if (is_at('{')) {
    ++at_;
    if (!bounds(&min, &max, &found)) return false;
    if (!found) --at_;
  } else if (!skip('*')) {
    found = false;
  }
  if (!found) return true;
  if (term->kind == Kind::Start || term->kind == Kind::End) return fail("a repeat of ^ or $", at);
  skip('?');  // lazy: the same strings match
  Node repeat = {Kind::Repeat, term->at};
  repeat.min = min;
  repeat.max = max;
  repeat.children.push_back(std::move(*term));
  *term = std::move(repeat);
  return true;
}

bool PatternParser::escape(Node* out) {
  const size_t at = at_ - 1;
  if (at_ >= text_.size()) return fail("a \\ without a character", at);
  const char32_t c = text_[at_];
  out->set = class_of_letter(c);
  if (!out->set.empty()) return ++at_, true;
  if (c == 'b' || c == 'B') return fail("the word boundary \\" + to_utf8(Text(1, c)), at);
  if ((c >= '1' && c <= '9') || c == 'k')
    return fail("the reference \\" + to_utf8(Text(1, c)) + " to a group", at);
  char32_t character = 0;
  if (!character_escape(&character)) return false;
  out->set = {{character, character}};
  return true;
}

/// Reads an escape of one character, after its backslash.
bool PatternParser::character_escape(char32_t* out) {
  const size_t at = at_ - 1;
  const char32_t c = text_[at_++];
  constexpr std::u32string_view kNames = U"fnrtv", kControls = U"\f\n\r\t\v";
  if (const size_t i = kNames.find(c); i != std::u32string_view::npos) return *out = kControls[i], true;
  const std::string name = "the escape \\" + to_utf8(Text(1, c));
  const bool is_digit_next = at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9';
  if (c == '0') return *out = 0, !is_digit_next || fail("an octal escape", at);
  if (c == 'c') {
    const char32_t letter = at_ < text_.size() ? text_[at_++] | 0x20 : 0;
    *out = letter & 31;
    return (letter >= 'a' && letter <= 'z') || fail(name + " without a letter", at);
  }
  if (c == 'x') return hexadecimal(2, out) || fail(name + " without 2 hexadecimal digits", at);
  if (c == 'u') {
    if (skip('{')) {
      size_t size = 0;
      while (at_ + size < text_.size() && !is_at('}', size)) ++size;
      if (size == 0 || size > 8 || !hexadecimal(size, out) || *out > kMaxCharacter || !skip('}'))
        return fail(name + "{ without a code point", at);
      return *out < 0xD800 || *out > 0xDFFF || fail("half of a surrogate pair", at);
    }
    if (!hexadecimal(4, out)) return fail(name + " without 4 hexadecimal digits", at);
    if (*out < 0xD800 || *out > 0xDFFF) return true;
    char32_t low = 0;
    if (*out > 0xDBFF || !skip('\\') || !skip('u') || !hexadecimal(4, &low) || low < 0xDC00 || low > 0xDFFF)
      return fail("half of a surrogate pair", at);
    *out = 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00);
    return true;
  }
  *out = c;
  const bool is_plain = c != '_' && !is_in(c, extension::llm::kLetters | kNumbers);
  return is_plain || fail(c == 'p' || c == 'P' ? "the property " + name.substr(11) : name, at);
}

bool PatternParser::hexadecimal(size_t num_digits, char32_t* out) {
  *out = 0;
  for (size_t i = 0; i < num_digits; ++i, ++at_) {
    const char32_t c = at_ < text_.size() ? text_[at_] : 0, lower = c | 0x20;
    if (c >= '0' && c <= '9')
      *out = *out * 16 + (c - '0');
    else if (lower >= 'a' && lower <= 'f')
      *out = *out * 16 + (lower - 'a' + 10);
    else
      return false;
  }
  return true;
}

bool PatternParser::char_class(Node* out) {
  const size_t at = at_ - 1;
  const bool is_negated = skip('^');
  CharSet set;
  while (!is_at(']')) {
    if (at_ >= text_.size()) return fail("a class without an end", at);
    CharSet first, last;
    bool is_range = false, is_end = false;
    if (!class_member_of(&first, &is_range)) return false;
    if (is_at('-') && !is_at(']', 1) && at_ + 1 < text_.size()) {
      ++at_;
      if (!class_member_of(&last, &is_end)) return false;
      if (is_range && is_end) {
        if (last[0].first < first[0].first) return fail("a range that goes down", at);
        first[0].second = last[0].first;
      } else {  // next to a class such as \w a - is a character
        set.emplace_back('-', '-');
        set.insert(set.end(), last.begin(), last.end());
      }
    }
    set.insert(set.end(), first.begin(), first.end());
  }
  ++at_;
  out->set = is_negated ? complement(set) : normalized(set);
  return !without_surrogates(out->set).empty() || fail("a class without characters", at);
}

bool PatternParser::class_member_of(CharSet* out, bool* is_character) {
  char32_t c = text_[at_++];
  if (c == '\\') {
    if (at_ >= text_.size()) return fail("a \\ without a character", at_ - 1);
    *out = class_of_letter(text_[at_]);
    if (!out->empty()) return ++at_, true;
    if (skip('b'))
      c = '\b';
    else if (!character_escape(&c))
      return false;
  }
  *is_character = true;
  *out = {{c, c}};
  return true;
}

// --- Grammar ---
bool has_anchor(const Node& node) {
  return node.kind == Kind::Start || node.kind == Kind::End ||
         std::any_of(node.children.begin(), node.children.end(), has_anchor);
}

/// The strings that a node without anchors matches.
std::string match_expression(const Node& node, Writing writing) {
  std::vector<std::string> parts;
  for (const Node& child : node.children) parts.push_back(match_expression(child, writing));
  switch (node.kind) {
    case Kind::Set:
      return set_expression(node.set, writing);
    case Kind::Repeat:
      return "(" + parts[0] + "){" + std::to_string(node.min) + "," +
             (node.max < 0 ? std::string() : std::to_string(node.max)) + "}";
    case Kind::Alternatives:
      return parts.size() == 1 ? parts[0] : "(" + join(parts, " | ") + ")";
    default:
      return parts.empty() ? "\"\"" : join(parts, " ");
  }
}

/// The position of a side of a node. Open: at the side of the pattern, and more text may be there. Anchored:
/// at the side of the text. Inside: next to another part of the pattern.
enum class Side { Open, Anchored, Inside };

/// The texts in which a node with anchors matches. Returns nothing and sets `*reason` if an anchor is inside.
std::optional<std::string> search_expression(const Node& node, Side left, Side right, Writing writing,
                                             std::string* reason) {
  const auto refuse = [&](const Node& at, const char* what) {
    *reason = std::string(what) + " at character " + std::to_string(at.at + 1);
    return std::nullopt;
  };
  std::vector<std::string> parts;
  if (node.kind == Kind::Start || node.kind == Kind::End)
    return refuse(node, node.kind == Kind::Start ? "a ^ inside of the pattern" : "a $ inside of the pattern");
  if (node.kind == Kind::Repeat && (node.min > 1 || node.max != 1)) return refuse(node, "a repeat of ^ or $");
  if (node.kind != Kind::Sequence) {
    for (const Node& child : node.children) {
      const std::optional<std::string> part = search_expression(child, left, right, writing, reason);
      if (!part) return std::nullopt;
      parts.push_back(*part);
    }
    if (node.kind == Kind::Repeat && node.min == 0)
      parts.push_back(left == Side::Open || right == Side::Open ? "char*" : "\"\"");
    return "(" + join(parts, " | ") + ")";
  }
  size_t begin = 0, end = node.children.size();
  for (; begin < end && node.children[begin].kind == Kind::Start && left != Side::Inside; ++begin)
    left = Side::Anchored;
  for (; end > begin && node.children[end - 1].kind == Kind::End && right != Side::Inside; --end)
    right = Side::Anchored;
  if (begin == end) return left == Side::Open || right == Side::Open ? "char*" : "\"\"";
  for (size_t i = begin; i < end; ++i) {
    const Node& child = node.children[i];
    const Side before = i == begin ? left : Side::Inside, after = i + 1 == end ? right : Side::Inside;
    if (has_anchor(child)) {
      const std::optional<std::string> part = search_expression(child, before, after, writing, reason);
      if (!part) return std::nullopt;
      parts.push_back(*part);
      continue;
    }
    if (before == Side::Open) parts.emplace_back("char*");
    parts.push_back(match_expression(child, writing));
    if (after == Side::Open) parts.emplace_back("char*");
  }
  return join(parts, " ");
}

std::optional<std::string> expression_of(const std::string& pattern, Side side, Writing writing,
                                         std::string* reason) {
  const Result<Text> text = to_text(pattern);
  Node node = {Kind::Alternatives, 0};
  std::optional<std::string> found;
  if (!text.ok())
    *reason = "bytes that are not UTF-8";
  else if (PatternParser(*text, reason).parse(&node))
    found = search_expression(node, side, side, writing, reason);
  if (!found) *reason = "a grammar cannot express " + *reason + " of pattern " + json_string(pattern);
  return found;
}

}  // namespace

std::optional<std::string> pattern_expression(const std::string& pattern, std::string* reason) {
  return expression_of(pattern, Side::Open, Writing::Json, reason);
}

std::optional<std::string> text_expression(const std::string& pattern, std::string* reason) {
  return expression_of(pattern, Side::Anchored, Writing::Plain, reason);
}

}  // namespace torchette::extension::llm::schema
