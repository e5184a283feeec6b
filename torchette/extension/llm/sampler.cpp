// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/llm/sampler.h"

#include <algorithm>
#include <cmath>

#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {

Sampler::Sampler(const GenerationConfig& config)
    : temperature_(config.temperature),
      top_p_(config.top_p),
      min_p_(config.min_p),
      repetition_penalty_(config.repetition_penalty),
      top_k_(config.top_k > 0 ? static_cast<size_t>(config.top_k) : 0),
      state_(config.seed) {}

double Sampler::next_random() {
  // SplitMix64: each state of a counter, mixed
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53;
}

Result<uint64_t> Sampler::sample(Span<float> logits, const std::vector<uint64_t>& history) {
  if (repetition_penalty_ != 1) {
    std::vector<uint64_t> seen = history;
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    for (uint64_t token : seen)
      if (token < logits.size())
        logits[token] *= logits[token] < 0 ? repetition_penalty_ : 1 / repetition_penalty_;
  }
  candidates_.clear();
  size_t likeliest = logits.size();
  for (size_t i = 0; i < logits.size(); ++i)
    if (!std::isnan(logits[i]) && (likeliest == logits.size() || logits[i] > logits[likeliest]))
      likeliest = i;
  TORCHETTE_CHECK(likeliest < logits.size(), Internal, "none of the %zu logits is a number", logits.size());
  if (temperature_ <= 0 || !std::isfinite(logits[likeliest])) return static_cast<uint64_t>(likeliest);

  for (size_t i = 0; i < logits.size(); ++i)
    if (!std::isnan(logits[i])) candidates_.push_back({logits[i], static_cast<uint32_t>(i)});
  const auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  };
  const size_t kept = top_k_ > 0 ? std::min(top_k_, candidates_.size()) : candidates_.size();
  if (top_p_ < 1 || kept < candidates_.size())
    std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(kept),
                      candidates_.end(), likelier);
  candidates_.resize(kept);
  weights_.clear();
  double sum = 0;
  for (const Candidate& candidate : candidates_) {
    weights_.push_back(std::exp(static_cast<double>(candidate.logit - logits[likeliest]) / temperature_));
    sum += weights_.back();
  }
  if (top_p_ < 1) {
    double taken = 0;
    size_t count = 0;
    while (count < weights_.size() && (count == 0 || taken < top_p_ * sum)) taken += weights_[count++];
    weights_.resize(count);
    sum = taken;
  }
  if (min_p_ > 0) {  // the likeliest has the weight 1
    sum = 0;
    for (double& weight : weights_) sum += weight = weight < min_p_ ? 0 : weight;
  }
  double left = next_random() * sum;
  size_t chosen = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] == 0) continue;
    chosen = i;
    left -= weights_[i];
    if (left < 0) break;
  }
  return static_cast<uint64_t>(candidates_[chosen].token);
}

}  // namespace torchette::extension::llm
