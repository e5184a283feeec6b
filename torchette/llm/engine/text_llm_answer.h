// SPDX-License-Identifier: BSD-3-Clause
// The state of an answer that TextLLMRunner generates. Internal.
#pragma once

#include <memory>
#include <vector>

#include "torchette/llm/engine/text_llm_runner.h"
#include "torchette/llm/text/stop_strings.h"

namespace torchette::extension::llm {

struct TextLLMRunner::Answer {
  explicit Answer(GenerationConfig given)
      : sampler(std::move(given)), config(sampler.config()), stream(config.stop) {}

  Sampler sampler;
  const GenerationConfig& config;
  TextStream stream;
  Stats stats;
  std::vector<uint64_t> history;  // the conversation with the tokens that were dropped from the context
  size_t history_begin = 0;       // index of the answer's first token in `history`
  size_t prompt_begin = 0;        // index of the prompt's first token in the context
  int32_t max_tokens = 0;
  size_t num_kept = 0;  // first tokens of the context that are never dropped
  std::shared_ptr<Grammar> grammar;
  const Grammar::State* state = nullptr;
  double sampling_ms = 0;
  bool has_ended = false;
  bool begins_text = false;  // no token before the next one has text
  // speculative decoding: tokens that the draft model proposed, with the distribution of each
  std::vector<uint64_t> drafted;
  std::vector<Sampler::Choice> draft_choices;
  std::vector<float> rows;  // logits of the model before each drafted token and after the last one
  size_t next_row = 0;
};

}  // namespace torchette::extension::llm
