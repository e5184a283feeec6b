// SPDX-License-Identifier: BSD-3-Clause
// GenerationConfig: how a text goes on; IRunner: what continues texts. Names and defaults are ExecuTorch's
// where it has them.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "torchette/llm/engine/stats.h"
#include "torchette/runtime/error.h"

namespace torchette::extension::llm {

struct GenerationConfig {
  bool echo = true;             // the prompt is the first piece
  bool ignore_eos = false;      // tokens that end a text do not
  int32_t max_new_tokens = -1;  // -1: as many as there is room for
  bool warming = false;         // pieces are not given out
  int32_t seq_len = -1;         // prompt and answer together; -1: the model's context
  float temperature = 0.8f;     // 0: always the likeliest token
  int32_t num_bos = 0;          // tokens for a text's beginning that are put before the prompt
  int32_t num_eos = 0;

  // What ExecuTorch's has not:
  bool add_special_tokens = false;  // those that the tokenizer's file adds, instead of num_bos and num_eos
  int32_t top_k = 0;                // only so many of the likeliest tokens; 0: all
  float top_p = 1;                  // only the likeliest tokens that together have this probability
  float min_p = 0;                  // only tokens with this part of the likeliest one's probability
  float repetition_penalty = 1;     // logits of tokens that the conversation has are divided by it
  float presence_penalty = 0;       // subtracted from logits of tokens that the answer has
  float frequency_penalty = 0;      // likewise, as often as it has them
  std::vector<std::pair<uint64_t, float>> logit_bias;  // added to logits; -infinity forbids a token
  uint64_t seed = 0;                                   // the same seed gives the same tokens
  std::vector<std::string> stop;                       // texts that end the answer and are not given out
  std::string grammar;                                 // GBNF: what the answer keeps to
  std::string schema;                                  // the same as a JSON schema
  bool slide = false;     // a full context forgets half of what is behind its first `keep` tokens
  int32_t keep = -1;      // -1: the token that begins every text, where the conversation has it
  int32_t logprobs = -1;  // pieces have log-probabilities, of so many of the likeliest tokens, too; -1: none

  /// How many tokens may come where `occupied` positions of the context are taken.
  int32_t resolve_max_new_tokens(int32_t max_context_len, int32_t occupied) const {
    int32_t room = (seq_len < 0 || seq_len > max_context_len ? max_context_len : seq_len) - occupied;
    if (max_new_tokens >= 0 && max_new_tokens < room) room = max_new_tokens;
    return room > 0 ? room : 0;
  }
};

class IRunner {
 public:
  using TokenCallback = std::function<void(const std::string&)>;
  using StatsCallback = std::function<void(const Stats&)>;

  virtual ~IRunner() = default;
  virtual bool is_loaded() const = 0;
  virtual Error load() = 0;
  virtual Error generate(const std::string& prompt, const GenerationConfig& config,
                         TokenCallback token_callback = {}, StatsCallback stats_callback = {}) = 0;
  virtual void stop() = 0;
  virtual void reset() = 0;
};

}  // namespace torchette::extension::llm
