// SPDX-License-Identifier: BSD-3-Clause
// Sampler: from logits to the next token.
#pragma once

#include <utility>
#include <vector>

#include "torchette/llm/engine/irunner.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette::extension::llm {

class Sampler {
 public:
  /// The next token, or how likely each is to be it.
  struct Choice {
    uint64_t token = 0;                // where there is no distribution
    std::vector<double> distribution;  // sums up to 1
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
  /// Whether `guess`, drawn from `chance`, stands as one drawn from `choice`; if not, `*instead` does.
  bool accepts(const Choice& choice, const Choice& chance, uint64_t guess, uint64_t* instead);

 private:
  /// Applies the penalties of the options to the logits of tokens in `history`.
  void penalize(Span<float> logits, const std::vector<uint64_t>& history, size_t answer) const;
  double next_random();  // 0 <= x < 1
  uint64_t draw(const std::vector<double>& distribution);

  const GenerationConfig config_;
  uint64_t state_;  // of the random numbers
  std::vector<double> sorted_;
  std::vector<uint32_t> order_;
};

}  // namespace torchette::extension::llm
