// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/llm/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_map>

#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {

Sampler::Sampler(const GenerationConfig& config)
    : temperature_(config.temperature),
      top_p_(config.top_p),
      min_p_(config.min_p),
      repetition_penalty_(config.repetition_penalty),
      presence_penalty_(config.presence_penalty),
      frequency_penalty_(config.frequency_penalty),
      top_k_(config.top_k > 0 ? static_cast<size_t>(config.top_k) : 0),
      state_(config.seed),
      logit_bias_(config.logit_bias) {}

double Sampler::next_random() {
  // SplitMix64: each state of a counter, mixed
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53;
}

Result<uint64_t> Sampler::sample(Span<float> logits, const std::vector<uint64_t>& history, size_t answer,
                                 const std::vector<bool>* allowed) {
  if (repetition_penalty_ != 1) {
    std::vector<uint64_t> seen = history;
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    for (uint64_t token : seen)
      if (token < logits.size())
        logits[token] =
            logits[token] < 0 ? logits[token] * repetition_penalty_ : logits[token] / repetition_penalty_;
  }
  if (presence_penalty_ != 0 || frequency_penalty_ != 0) {
    std::unordered_map<uint64_t, uint32_t> counts;
    for (size_t i = answer; i < history.size(); ++i) ++counts[history[i]];
    for (const auto& [token, count] : counts)
      if (token < logits.size())
        logits[token] -= presence_penalty_ + frequency_penalty_ * static_cast<float>(count);
  }
  for (const auto& [token, bias] : logit_bias_) {
    TORCHETTE_CHECK(token < logits.size(), InvalidArgument, "logit_bias: there is no token %llu of %zu",
                    static_cast<unsigned long long>(token), logits.size());
    logits[token] += bias;
  }
  for (size_t i = 0; i < logits.size() && allowed != nullptr; ++i)
    if (i >= allowed->size() || !(*allowed)[i]) logits[i] = -INFINITY;
  size_t likeliest = logits.size();
  for (size_t i = 0; i < logits.size(); ++i)
    if (!std::isnan(logits[i]) && (likeliest == logits.size() || logits[i] > logits[likeliest]))
      likeliest = i;
  TORCHETTE_CHECK(likeliest < logits.size(), Internal, "none of the %zu logits is a number", logits.size());
  const float most = logits[likeliest];
  TORCHETTE_CHECK(most > -INFINITY, InvalidArgument,
                  "no token is left that the grammar and logit_bias allow");
  if (temperature_ <= 0 || !std::isfinite(most)) return static_cast<uint64_t>(likeliest);

  // As torchette/llm/sampling.py does it, number by number: the same seed finds the same token.
  weights_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double below = static_cast<double>(logits[i]) - most;
    const double scaled = temperature_ > 1e-6 ? below / temperature_ : below * 1e6;
    weights_[i] = std::isnan(below) ? 0 : std::exp(scaled);
  }
  if (top_k_ > 0 && top_k_ < weights_.size()) {
    sorted_ = weights_;
    const auto last = sorted_.begin() + static_cast<std::ptrdiff_t>(top_k_ - 1);
    std::nth_element(sorted_.begin(), last, sorted_.end(), std::greater<>());
    for (double& weight : weights_) weight = weight < *last ? 0 : weight;
  }
  if (top_p_ < 1) {
    order_.clear();
    for (size_t i = 0; i < weights_.size(); ++i)
      if (weights_[i] > 0) order_.push_back(static_cast<uint32_t>(i));
    std::stable_sort(order_.begin(), order_.end(),
                     [&](uint32_t a, uint32_t b) { return weights_[a] > weights_[b]; });
    double total = 0, taken = 0;
    for (uint32_t i : order_) total += weights_[i];
    for (uint32_t i : order_) {
      const bool is_enough = taken >= static_cast<double>(top_p_) * total;
      taken += weights_[i];
      if (is_enough) weights_[i] = 0;
    }
  }
  double sum = 0;
  for (double& weight : weights_) sum += weight = weight < min_p_ ? 0 : weight;  // the likeliest's is 1
  double total = 0;
  for (double& weight : weights_) total += weight /= sum;
  const double drawn = next_random() * total;
  double passed = 0;
  for (size_t i = 0; i < weights_.size(); ++i) {
    passed += weights_[i];
    if (weights_[i] > 0) likeliest = i;
    if (passed > drawn) break;
  }
  return static_cast<uint64_t>(likeliest);
}

}  // namespace torchette::extension::llm
