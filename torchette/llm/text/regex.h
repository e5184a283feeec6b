// SPDX-License-Identifier: BSD-3-Clause
// Regular expressions of tokenizers: Unicode classes, groups, alternatives, greedy, lazy and possessive
// repetition, lookahead. Matching needs bounded time and memory for any text.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/llm/text/unicode.h"

namespace torchette::extension::llm {

/// A set of characters: ranges, general categories and other sets.
struct CharSet {
  bool negated = false;
  bool space = false;
  bool word = false;
  bool ignore_case = false;
  uint32_t categories = 0;
  std::vector<std::pair<char32_t, char32_t>> ranges;
  std::vector<CharSet> nested;       // sets that are added (union)
  std::vector<CharSet> intersected;  // sets that every character must also be in (intersection)
  uint64_t ascii[2] = {};            // a bit for each ASCII character; see frozen()

  bool contains(char32_t c) const;
  bool holds(char32_t c) const { return c < 128 ? (ascii[c / 64] >> c % 64 & 1) != 0 : contains(c); }

 private:
  bool has(char32_t c) const;
};

class Regex {
 public:
  /// Oniguruma (tokenizer.json): ^ and $ match at every line. Rust (tiktoken): they match at the ends of the
  /// text only.
  enum class Dialect : uint8_t { Oniguruma, Rust };

  /// Errors: NotSupported (an unknown construct; the log names it), InvalidExternalData (the pattern is
  /// invalid).
  static Result<Regex> compile(std::string_view pattern, Dialect dialect = Dialect::Oniguruma);
  /// Returns an expression that matches exactly `text`.
  static Regex literal(const Text& text);

  /// Finds the first match that begins at `from` or later: [start, end), or start == Text::npos. Error:
  /// OutOfResources (too many steps for this text).
  Error search(const Text& text, size_t from, size_t* start, size_t* end) const;

 private:
  friend class RegexParser;
  friend class RegexMatcher;
  enum class Op : uint8_t {
    Set,         // `min` to `max` characters of `set`
    Split,       // one of `branches`, in this order
    Atomic,      // the first match of branch 0, without backtracking into it
    Look,        // branch 0 matches here, or with `negated` does not
    LookBehind,  // the character before is in `set`
    LineStart,
    LineEnd,
    TextStart,
    TextEnd,
    WordEdge,  // between a character of `set` and one that is not
    Accept,
  };
  struct Node {
    Op op;
    bool negated = false;
    bool lazy = false;
    bool possessive = false;
    uint32_t min = 1, max = 1;
    uint32_t set = 0;
    uint32_t next = 0;
    std::vector<uint32_t> branches;
  };

  std::vector<Node> nodes_;
  std::vector<CharSet> sets_;
  uint32_t start_ = 0;
};

}  // namespace torchette::extension::llm
