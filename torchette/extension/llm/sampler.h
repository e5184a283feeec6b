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

  /// The next token; `history` are those that the repetition penalty is for, those from `answer` on the
  /// other penalties. Null as `allowed` allows every token. `logits` are changed. Errors: Internal (no logit
  /// is a number), InvalidArgument (a bias for no token, or nothing is allowed).
  Result<uint64_t> sample(Span<float> logits, const std::vector<uint64_t>& history, size_t answer,
                          const std::vector<bool>* allowed = nullptr);

 private:
  double next_random();  // 0 <= x < 1

  float temperature_, top_p_, min_p_, repetition_penalty_, presence_penalty_, frequency_penalty_;
  size_t top_k_;
  uint64_t state_;
  std::vector<std::pair<uint64_t, float>> logit_bias_;
  std::vector<double> weights_, sorted_;
  std::vector<uint32_t> order_;
};

}  // namespace torchette::extension::llm
