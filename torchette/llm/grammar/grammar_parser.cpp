// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/grammar_parser.h"

#include <algorithm>
#include <map>

#include "torchette/llm/text/unicode.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

constexpr size_t kMaxBytes = 1 << 20, kMaxSymbols = 200'000;
constexpr long kMaxRepeats = 10'000;
constexpr int kMaxDepth = 100;
constexpr char kNoSurrogates[] =
    "surrogates are not characters; write \\U and 8 digits for a character above U+FFFF";

using Ranges = std::vector<std::pair<char32_t, char32_t>>;  // of characters
using Encoding = std::vector<std::pair<uint8_t, uint8_t>>;  // a range for each byte

void add_range(uint8_t low, uint8_t high, ByteSet* to) {
  for (unsigned byte = low; byte <= high; ++byte) (*to)[byte / 64] |= uint64_t{1} << byte % 64;
}

class GrammarParser {
 public:
  explicit GrammarParser(const Text& text) : text_(text) {}

  Error parse(const std::string& root);

  GrammarRules result;

 private:
  Error refuse(const std::string& what) {
    const auto line =
        1 + std::count(text_.begin(),
                       text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size())), U'\n');
    TORCHETTE_LOG(Error, "the grammar, line %ld: %s, found '%s'", static_cast<long>(line), what.c_str(),
                  to_utf8(text_.substr(std::min(at_, text_.size()), 20)).c_str());
    return Error::InvalidArgument;
  }
  void skip_space() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#')
        at_ = std::min(text_.find(U'\n', at_), text_.size());
      else if (is_space(text_[at_]))
        ++at_;
      else
        return;
    }
  }
  bool is_at(const char* what) const {
    size_t i = 0;
    while (what[i] != 0 && at_ + i < text_.size() && text_[at_ + i] == static_cast<char32_t>(what[i])) ++i;
    return what[i] == 0;
  }
  bool skip(const char* what) {
    if (!is_at(what)) return false;
    at_ += std::char_traits<char>::length(what);
    return true;
  }
  std::string read_name() {
    const size_t start = at_;
    while (at_ < text_.size() &&
           (text_[at_] == '-' || text_[at_] == '_' || is_in(text_[at_], kLetters | kNumbers)))
      ++at_;
    return to_utf8(text_.substr(start, at_ - start));
  }
  int32_t add(const std::string& name, GrammarRule rule) {
    for (const auto& one : rule) size_ += one.size();
    ++size_;
    result.rules.push_back(std::move(rule));
    result.names.push_back(name);
    is_defined_.push_back(true);
    return static_cast<int32_t>(result.rules.size() - 1);
  }
  int32_t rule_index(const std::string& name) {
    const auto found = indices_.find(name);
    if (found != indices_.end()) return found->second;
    const int32_t index = add(name, {});
    is_defined_.back() = false;
    return indices_[name] = index;
  }
  Error limit() {
    return size_ <= kMaxSymbols ? Error::Ok
                                : refuse("the grammar needs more than 200000 symbols; use smaller repeats");
  }
  int32_t byte_set(const ByteSet& members) {
    const auto [found, is_new] = set_indices_.try_emplace(members, static_cast<int32_t>(result.sets.size()));
    if (is_new) result.sets.push_back(members);
    return ~found->second;
  }
  int32_t byte_range(uint8_t low, uint8_t high) {
    ByteSet members = {};
    add_range(low, high, &members);
    return byte_set(members);
  }

  Error alternatives(const std::string& name, GrammarRule* out) {
    do {
      skip_space();
      out->emplace_back();
      TORCHETTE_TRY(sequence(name, &out->back()));
    } while (skip("|"));
    return Error::Ok;
  }

  Error sequence(const std::string& name, GrammarSequence* out) {
    GrammarSequence last;
    bool has_last = false;
    while (at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
      const char32_t c = text_[at_];
      if (c == '*' || c == '+' || c == '?' || c == '{') {
        if (!has_last) return refuse("expected something to repeat before * + ? {");
        out->resize(out->size() - last.size());
        long min = 0, max = 0;
        TORCHETTE_TRY(bounds(&min, &max));
        TORCHETTE_TRY(repeat(name, &last, min, max));
      } else if (skip("\"")) {
        last.clear();
        while (!skip("\"")) {
          char32_t one = 0;
          TORCHETTE_TRY(character('"', &one));
          if (one >= 0xD800 && one < 0xE000)
            return refuse("surrogates are not characters; use \\U with 8 digits for characters above U+FFFF");
          for (char byte : to_utf8(&one, 1))
            last.push_back(byte_range(static_cast<uint8_t>(byte), static_cast<uint8_t>(byte)));
        }
      } else if (c == '[') {
        TORCHETTE_TRY(char_class(&last));
      } else if (skip(".")) {
        TORCHETTE_TRY(characters({{0, 0x10FFFF}}, &last));
      } else if (skip("(")) {
        if (++depth_ > kMaxDepth)
          return refuse("groups are nested more than 100 deep; write the inner groups as rules");
        GrammarRule inner;
        TORCHETTE_TRY(alternatives(name, &inner));
        last = {add(name, std::move(inner))};
        if (!skip(")")) return refuse("expected )");
        --depth_;
      } else {
        const size_t start = at_;
        const std::string other = read_name();
        if (other.empty()) return refuse("expected a string, class, name or group");
        skip_space();
        if (is_at("::=")) {  // the next rule
          at_ = start;
          break;
        }
        last = {rule_index(other)};
      }
      has_last = true;
      out->insert(out->end(), last.begin(), last.end());
      size_ += last.size();
      TORCHETTE_TRY(limit());
      skip_space();
    }
    return Error::Ok;
  }

  Error bounds(long* min, long* max) {
    const char32_t c = text_[at_++];
    *min = c == '+' ? 1 : 0;
    *max = c == '?' ? 1 : -1;
    if (c != '{') return Error::Ok;
    const auto number = [&](long* out) {
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      bool any = false;
      for (*out = 0; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_, any = true)
        *out = std::min(*out * 10 + static_cast<long>(text_[at_] - '0'), 10 * kMaxRepeats);
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      return any;
    };
    const bool has_min = number(min);
    bool has_max = has_min;
    *max = *min;
    if (skip(",")) {
      has_max = number(max);
      if (!has_max) *max = -1;
    }
    if (!skip("}") || !(has_min || has_max)) return refuse("expected a repeat: {2}, {2,} or {2,4}");
    if (std::max(*min, *max) > kMaxRepeats || (*max >= 0 && *max < *min))
      return refuse("a repeat must be ascending and at most 10000");
    return Error::Ok;
  }

  Error repeat(const std::string& name, GrammarSequence* what, long min, long max) {
    if (what->size() != 1) *what = {add(name, {*what})};
    const int32_t one = what->front();
    GrammarSequence tail;
    if (max < 0) {
      const int32_t index = add(name, {});
      result.rules[static_cast<size_t>(index)] = {{one, index}, {}};
      size_ += 2;
      tail = {index};
    }
    for (long i = min; i < max; ++i) {
      GrammarSequence next = {one};
      next.insert(next.end(), tail.begin(), tail.end());
      tail = {add(name, {std::move(next), {}})};
      TORCHETTE_TRY(limit());
    }
    size_ += static_cast<size_t>(min);
    TORCHETTE_TRY(limit());
    what->assign(static_cast<size_t>(min), one);
    what->insert(what->end(), tail.begin(), tail.end());
    return Error::Ok;
  }

  Error character(char32_t end, char32_t* out) {
    if (at_ >= text_.size() || text_[at_] == '\n')
      return refuse(std::string("expected ") + static_cast<char>(end));
    const char32_t c = text_[at_++];
    *out = c;
    if (c != '\\') return Error::Ok;
    const char32_t kind = at_ < text_.size() ? text_[at_] : U'\\';
    ++at_;
    const size_t width = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    *out = kind == 'n' ? U'\n' : kind == 'r' ? U'\r' : kind == 't' ? U'\t' : kind;
    if (width == 0) return Error::Ok;
    uint64_t code = 0;
    for (size_t i = 0; i < width; ++i, ++at_) {
      const char32_t d = at_ < text_.size() ? text_[at_] : 0;
      const int digit = d >= '0' && d <= '9'   ? static_cast<int>(d - '0')
                        : d >= 'a' && d <= 'f' ? static_cast<int>(d - 'a') + 10
                        : d >= 'A' && d <= 'F' ? static_cast<int>(d - 'A') + 10
                                               : -1;
      if (digit < 0)
        return refuse(std::to_string(width) + " hexadecimal digits of a character up to 10FFFF are expected");
      code = code * 16 + static_cast<uint64_t>(digit);
    }
    if (code > 0x10FFFF)
      return refuse(std::to_string(width) + " hexadecimal digits of a character up to 10FFFF are expected");
    *out = static_cast<char32_t>(code);
    return Error::Ok;
  }

  Error char_class(GrammarSequence* out) {
    ++at_;
    const bool negated = skip("^");
    Ranges ranges;
    while (!skip("]")) {
      char32_t low = 0, high = 0;
      TORCHETTE_TRY(character(']', &low));
      high = low;
      if (is_at("-") && !is_at("-]")) {
        ++at_;
        TORCHETTE_TRY(character(']', &high));
      }
      if (high < low) return refuse("a range must be ascending: [a-z]");
      ranges.emplace_back(low, high);
    }
    if (negated) {
      std::sort(ranges.begin(), ranges.end());
      Ranges others;
      char32_t low = 0;
      for (const auto& [first, last] : ranges) {
        if (first > low) others.emplace_back(low, first - 1);
        low = std::max<char32_t>(low, last + 1);
      }
      if (low <= 0x10FFFF) others.emplace_back(low, 0x10FFFF);
      ranges = std::move(others);
    }
    if (ranges.empty()) return refuse("the class has no character; [^x] is every character except x");
    return characters(ranges, out);
  }

  /// Adds the sequences of byte ranges that encode the characters from low to high.
  static void add_encodings(char32_t low, char32_t high, std::vector<Encoding>* out) {
    const auto split = [&](char32_t edge) {
      add_encodings(low, edge - 1, out);
      add_encodings(edge, high, out);
    };
    for (char32_t edge : {0x80u, 0x800u, 0xD800u, 0xE000u, 0x10000u})
      if (low < edge && edge <= high) return split(edge);
    if (low >= 0xD800 && high < 0xE000) return;  // surrogates have no encoding
    for (int bits = 6; high >= 0x80 && bits <= 18; bits += 6) {
      const char32_t rest = (char32_t{1} << bits) - 1;
      if ((low & ~rest) != (high & ~rest) && ((low & rest) != 0 || (high & rest) != rest))
        return split((low & rest) != 0 ? (low | rest) + 1 : high & ~rest);
    }
    const std::string first = to_utf8(&low, 1), last = to_utf8(&high, 1);
    out->emplace_back();
    for (size_t i = 0; i < first.size(); ++i)
      out->back().emplace_back(static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i]));
  }

  Error characters(const Ranges& ranges, GrammarSequence* out) {
    const auto found = classes_.find(ranges);
    if (found != classes_.end()) {
      *out = found->second;
      return Error::Ok;
    }
    std::vector<Encoding> encodings;
    for (const auto& [low, high] : ranges) add_encodings(low, high, &encodings);
    GrammarRule rule;
    ByteSet ascii = {};
    for (const Encoding& encoding : encodings) {
      if (encoding.size() == 1) {
        add_range(encoding[0].first, encoding[0].second, &ascii);
        continue;
      }
      rule.emplace_back();
      for (const auto& [low, high] : encoding) rule.back().push_back(byte_range(low, high));
    }
    if (ascii != ByteSet{}) rule.insert(rule.begin(), {byte_set(ascii)});
    if (rule.empty()) return refuse(kNoSurrogates);
    *out = rule.size() == 1 ? rule[0] : GrammarSequence{add("class", rule)};
    classes_[ranges] = *out;
    return Error::Ok;
  }

  const Text& text_;
  size_t at_ = 0, size_ = 0;
  int depth_ = 0;
  std::vector<bool> is_defined_;
  std::map<std::string, int32_t> indices_;
  std::map<ByteSet, int32_t> set_indices_;
  std::map<Ranges, GrammarSequence> classes_;
};

Error GrammarParser::parse(const std::string& root) {
  rule_index(root);
  skip_space();
  while (at_ < text_.size()) {
    const std::string name = read_name();
    skip_space();
    if (name.empty() || !skip("::=")) return refuse("expected a rule: name ::= ...");
    const auto index = static_cast<size_t>(rule_index(name));
    if (is_defined_[index])
      return refuse("rule '" + name + "' is defined twice; separate alternatives with |");
    skip_space();
    GrammarRule rule;
    TORCHETTE_TRY(alternatives(name, &rule));
    result.rules[index] = std::move(rule);
    is_defined_[index] = true;
  }
  std::string missing;
  for (size_t i = 0, count = 0; i < is_defined_.size(); ++i)
    if (!is_defined_[i] && count++ < 5) missing += (missing.empty() ? "'" : ", '") + result.names[i] + "'";
  TORCHETTE_CHECK(missing.empty(), InvalidArgument,
                  "the grammar has no rule %s; each name that is used needs a line: name ::= ...",
                  missing.c_str());
  return Error::Ok;
}

}  // namespace

Result<GrammarRules> parse_grammar(std::string_view text, const std::string& root) {
  TORCHETTE_CHECK(text.size() <= kMaxBytes, OutOfResources,
                  "the grammar has %zu bytes, at most %zu are supported; write what repeats as one rule",
                  text.size(), kMaxBytes);
  const Result<Text> characters = to_text(text);
  if (!characters.ok()) return characters.error();
  GrammarParser parser(*characters);
  TORCHETTE_TRY(parser.parse(root));
  return std::move(parser.result);
}

}  // namespace torchette::extension::llm
