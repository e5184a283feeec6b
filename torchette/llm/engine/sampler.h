// SPDX-License-Identifier: BSD-3-Clause
// Sampler: draws the next token from logits.
#pragma once

#include <utility>
#include <vector>

#include "torchette/llm/engine/irunner.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette::extension::llm {

class Sampler {
 public:
  /// The next token or, if it is drawn at random, the distribution.
  struct Choice {
    uint64_t token = 0;                // used if `distribution` is empty
    std::vector<double> distribution;  // its sum is 1
  };

  explicit Sampler(GenerationConfig config) : config_(std::move(config)), state_(config_.seed) {}

  const GenerationConfig& config() const { return config_; }
  /// Returns the distribution of the next token. `history` are all tokens of the conversation, those from
  /// index `answer` on are the answer. Null as `allowed` allows every token. `logits` are changed. Errors:
  /// Internal (a logit is NaN, or the greatest is infinite), InvalidArgument (a bias for no token, or no
  /// token is allowed).
  Result<Choice> choose(Span<float> logits, const std::vector<uint64_t>& history, size_t answer,
                        const std::vector<bool>* allowed = nullptr);
  uint64_t draw(const Choice& choice);
  /// Decides whether `guess`, drawn from `chance`, is accepted as a token drawn from `choice`. If not, sets
  /// `*instead` to a token drawn from `choice`.
  bool accepts(const Choice& choice, const Choice& chance, uint64_t guess, uint64_t* instead);

 private:
  /// Applies the penalties of the options to the logits of tokens in `history`.
  void penalize(Span<float> logits, const std::vector<uint64_t>& history, size_t answer) const;
  double next_random();  // 0 <= x < 1
  uint64_t draw(const std::vector<double>& distribution);

  const GenerationConfig config_;
  uint64_t state_;  // state of the random generator
  std::vector<double> sorted_;
  std::vector<uint32_t> order_;
};

}  // namespace torchette::extension::llm
