// SPDX-License-Identifier: BSD-3-Clause
// Stats: times of an answer in milliseconds of the platform's clock, and its token counts.
#pragma once

#include <cstdint>
#include <string>

namespace torchette::extension::llm {

struct Stats {
  static constexpr long SCALING_FACTOR_UNITS_PER_SECOND = 1000;

  long model_load_start_ms = 0;
  long model_load_end_ms = 0;
  long inference_start_ms = 0;
  long token_encode_end_ms = 0;
  long prompt_eval_end_ms = 0;
  long first_token_ms = 0;  // time of the first token; 0 if there is none
  long inference_end_ms = 0;
  long aggregate_sampling_time_ms = 0;
  int64_t num_prompt_tokens = 0;  // all tokens of the conversation before the answer
  int64_t num_reused_tokens = 0;  // prompt tokens that were in the KV cache
  int64_t num_generated_tokens = 0;
  int64_t num_drafted_tokens = 0;   // tokens that the draft model proposed
  int64_t num_accepted_tokens = 0;  // proposed tokens that are in the answer
  // "stop": an end token, a stop string or a complete grammar; "length": the maximum of new tokens, or a full
  // context; "cancelled"; empty while the answer is incomplete
  const char* finish_reason = "";

  void reset(bool all_stats = false);
};

long time_in_ms();
/// Returns the statistics as one line of JSON.
std::string stats_to_json_string(const Stats& stats);
/// Prints the statistics to the standard error stream.
void print_report(const Stats& stats);

}  // namespace torchette::extension::llm
