// SPDX-License-Identifier: BSD-3-Clause
// Grammar: a language in GBNF, the notation of llama.cpp, and the positions of texts in it.
//
// Characters become the bytes of their UTF-8 encoding, so that a token which ends inside of a character has a
// position too. A position is a State: a set of items, each a symbol of a rule and the Frame to return to
// when the rule ends. Calls of one rule at one position share a frame, so an ambiguous grammar costs no more
// than the number of its symbols. States, their transitions and their token masks are made on first use and
// kept.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/llm/grammar/grammar_parser.h"
#include "torchette/llm/grammar/vocabulary.h"
#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

/// Not thread-safe.
class Grammar {
 public:
  struct State;

  Grammar();
  ~Grammar();
  /// Parses a grammar; `root` names the start rule. Errors: InvalidArgument (the log names the line,
  /// the problem and the remedy), OutOfResources (too large).
  static Result<std::unique_ptr<Grammar>> parse(std::string_view text, const std::string& root = "root");

  /// Returns the state before the first byte. Error: OutOfResources (the grammar is too ambiguous).
  Result<const State*> start();
  /// Returns the state after more bytes, or null if the grammar does not allow them. If the cache is full,
  /// the call replaces it, unless `keeps_older` is set; only states of keep() then stay valid. Error: as
  /// start().
  Result<const State*> advance(const State* state, std::string_view bytes, bool keeps_older = false);
  /// Returns for each token whether the grammar allows it next. Valid until the next call. Error: as start().
  Result<const std::vector<bool>*> mask(const State* state, const GrammarVocabulary& vocabulary);
  /// Returns a reference that keeps a state valid when the cache is replaced, and after the grammar is
  /// destroyed.
  static std::shared_ptr<const State> keep(const State* state);
  /// Whether the text may end here.
  static bool accepts(const State* state);
  /// Whether the text is complete: it may end here and nothing may follow.
  static bool is_done(const State* state);
  /// Returns the number of states in the cache.
  size_t num_states() const;

 private:
  struct Frame;
  struct Cache;
  using Item = std::pair<int32_t, const Frame*>;
  using Items = std::vector<Item>;
  using Kinds = std::vector<bool>;  // by kind of byte

  Error prepare(GrammarRules rules);
  Error sort_rules(const std::vector<std::string>& names);
  void group_bytes(const std::vector<ByteSet>& sets);
  Result<State*> close(Cache* cache, Items items, bool accepts);
  Result<State*> move(State* state, uint8_t kind);
  State* renew(const State* kept);
  Error find_loops(State* state);
  Error add_allowed(State* state, const GrammarVocabulary& vocabulary, std::vector<bool>* mask);

  std::vector<int32_t> symbols_;              // of all alternatives, an end after each
  std::vector<std::vector<int32_t>> starts_;  // of each rule, the first symbols of its alternatives
  std::vector<bool> is_nullable_;             // by rule
  std::vector<size_t> rank_;                  // of a rule: after the rules that begin with it
  std::array<uint8_t, 256> kinds_ = {};       // of a byte: no set distinguishes bytes of one kind
  std::vector<ByteSet> members_;              // of a kind
  std::vector<Kinds> sets_;
  std::shared_ptr<Cache> cache_;
  int64_t work_left_ = 0;
};

}  // namespace torchette::extension::llm
