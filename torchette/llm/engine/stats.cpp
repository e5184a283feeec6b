// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/stats.h"

#include <cstdio>

#include "torchette/runtime/platform.h"

namespace torchette::extension::llm {
namespace {

double per_second(int64_t count, long ms) {
  return ms > 0
             ? static_cast<double>(count) * Stats::SCALING_FACTOR_UNITS_PER_SECOND / static_cast<double>(ms)
             : 0;
}

}  // namespace

void Stats::reset(bool all_stats) {
  const Stats before = *this;
  *this = Stats();
  if (all_stats) return;
  model_load_start_ms = before.model_load_start_ms;
  model_load_end_ms = before.model_load_end_ms;
}

long time_in_ms() {
  const torchette_tick_ratio_t ratio = ticks_to_ns_multiplier();
  const double ns = static_cast<double>(current_ticks()) * static_cast<double>(ratio.numerator) /
                    static_cast<double>(ratio.denominator);
  return static_cast<long>(ns / 1e6);
}

std::string stats_to_json_string(const Stats& stats) {
  char text[512];
  std::snprintf(
      text, sizeof(text),
      "{\"prompt_tokens\":%lld,\"generated_tokens\":%lld,\"drafted_tokens\":%lld,\"accepted_tokens\":%lld,"
      "\"model_load_start_ms\":%ld,\"model_load_end_ms\":%ld,"
      "\"inference_start_ms\":%ld,\"token_encode_end_ms\":%ld,\"prompt_eval_end_ms\":%ld,"
      "\"first_token_ms\":%ld,\"inference_end_ms\":%ld,\"aggregate_sampling_time_ms\":%ld,"
      "\"finish_reason\":\"%s\"}",
      static_cast<long long>(stats.num_prompt_tokens), static_cast<long long>(stats.num_generated_tokens),
      static_cast<long long>(stats.num_drafted_tokens), static_cast<long long>(stats.num_accepted_tokens),
      stats.model_load_start_ms, stats.model_load_end_ms, stats.inference_start_ms, stats.token_encode_end_ms,
      stats.prompt_eval_end_ms, stats.first_token_ms, stats.inference_end_ms,
      stats.aggregate_sampling_time_ms, stats.finish_reason);
  return text;
}

void print_report(const Stats& stats) {
  const long prompt = stats.prompt_eval_end_ms - stats.token_encode_end_ms;
  const long answer = stats.inference_end_ms - stats.prompt_eval_end_ms;
  std::fprintf(
      stderr,
      "load: %ld ms\nprompt: %lld tokens in %ld ms, %.1f tokens/s\nanswer: %lld tokens in %ld ms, %.1f "
      "tokens/s\nfirst token after %ld ms\nended by: %s\n",
      stats.model_load_end_ms - stats.model_load_start_ms, static_cast<long long>(stats.num_prompt_tokens),
      prompt, per_second(stats.num_prompt_tokens, prompt), static_cast<long long>(stats.num_generated_tokens),
      answer, per_second(stats.num_generated_tokens, answer),
      stats.first_token_ms == 0 ? 0 : stats.first_token_ms - stats.inference_start_ms, stats.finish_reason);
}

}  // namespace torchette::extension::llm
