// SPDX-License-Identifier: BSD-3-Clause
// Sampler: from logits to the next token.
#pragma once

#include <vector>

#include "torchette/extension/llm/irunner.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette::extension::llm {

class Sampler {
 public:
  explicit Sampler(const GenerationConfig& config);

  /// The next token; `history` are those that the repetition penalty is for. `logits` are changed. Error:
  /// Internal (no logit is a number).
  Result<uint64_t> sample(Span<float> logits, const std::vector<uint64_t>& history);

 private:
  struct Candidate {
    float logit;
    uint32_t token;
  };
  double next_random();  // 0 <= x < 1

  float temperature_, top_p_, min_p_, repetition_penalty_;
  size_t top_k_;
  uint64_t state_;
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace torchette::extension::llm
