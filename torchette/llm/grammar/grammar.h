// SPDX-License-Identifier: BSD-3-Clause
// Grammar: GBNF, the notation of llama.cpp, and where a text stands in it. As torchette/llm/grammar.py, which
// says more: characters are bytes of UTF-8; a state is a set of places in rules, each with the frame to
// return to.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

/// The bytes of tokens by number, in order; empty ones are never allowed.
class GrammarVocabulary {
 public:
  explicit GrammarVocabulary(std::vector<std::string> tokens);
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  friend class Grammar;
  std::vector<std::string> tokens_;
  std::vector<uint32_t> order_;   // of those that have bytes
  std::vector<uint32_t> common_;  // bytes that each has in common with the one before
};

class Grammar {
 public:
  struct State;

  Grammar();
  ~Grammar();
  /// Errors: InvalidArgument (the log says what is wrong and in which line), OutOfResources (too large).
  static Result<std::unique_ptr<Grammar>> parse(std::string_view text);

  /// Where a text begins; it forgets every other state.
  Result<const State*> start();
  /// The state behind more bytes; null where they are not allowed. Older states are gone, unless they are
  /// kept. Error: OutOfResources (too many readings).
  Result<const State*> advance(const State* state, std::string_view bytes, bool keeps_older = false);
  /// For each token, whether it may come. Error: as above.
  Result<const std::vector<bool>*> mask(const State* state, const GrammarVocabulary& vocabulary);
  /// Whether the text may end there, and whether nothing may follow.
  static bool accepts(const State* state);
  static bool is_done(const State* state);

 private:
  friend class GrammarParser;
  struct Frame;
  using Item = std::pair<int32_t, const Frame*>;
  using Items = std::vector<Item>;
  using Bytes = std::array<uint64_t, 4>;

  Error prepare(std::vector<std::vector<std::vector<int32_t>>> rules, const std::vector<std::string>& names,
                const std::vector<Bytes>& sets);
  const Frame* frame(Items returns);
  Result<State*> close(Items items, bool accepts);
  Result<State*> move(State* state, uint8_t kind);
  State* intern(Items items, bool accepts);
  State* renew(const State* kept);

  std::vector<int32_t> symbols_;              // of all alternatives, each with its end
  std::vector<std::vector<int32_t>> starts_;  // of each rule's alternatives
  std::vector<bool> nullable_;
  std::vector<size_t> rank_;
  std::array<uint8_t, 256> kinds_ = {};  // bytes that no set tells apart
  std::vector<std::vector<bool>> sets_;  // by kind
  size_t num_kinds_ = 0;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::vector<std::unique_ptr<State>> states_;
  std::map<Items, const Frame*> frame_of_;
  std::map<std::pair<Items, bool>, State*> state_of_;
  int64_t left_ = 0;
};

}  // namespace torchette::extension::llm
