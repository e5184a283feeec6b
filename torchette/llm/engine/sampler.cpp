// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <unordered_map>

#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {

double Sampler::next_random() {
  // SplitMix64: each state of a counter, mixed
  uint64_t z = state_ += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-53;
}

void Sampler::penalize(Span<float> logits, const std::vector<uint64_t>& history, size_t answer) const {
  if (config_.repetition_penalty != 1) {
    std::vector<uint64_t> seen = history;
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    for (uint64_t token : seen)
      if (token < logits.size())
        logits[token] = logits[token] < 0 ? logits[token] * config_.repetition_penalty
                                          : logits[token] / config_.repetition_penalty;
  }
  if (config_.presence_penalty != 0 || config_.frequency_penalty != 0) {
    std::unordered_map<uint64_t, uint32_t> counts;
    for (size_t i = answer; i < history.size(); ++i) ++counts[history[i]];
    for (const auto& [token, count] : counts)
      if (token < logits.size())
        logits[token] -= config_.presence_penalty + config_.frequency_penalty * static_cast<float>(count);
  }
}

Result<Sampler::Choice> Sampler::choose(Span<float> logits, const std::vector<uint64_t>& history,
                                        size_t answer, const std::vector<bool>* allowed) {
  config_.constraints.add_biases(logits, history);
  penalize(logits, history, answer);
  for (const auto& [token, bias] : config_.logit_bias) {
    TORCHETTE_CHECK(token < logits.size(), InvalidArgument,
                    "logit_bias: token %llu is out of range: the model has %zu tokens",
                    static_cast<unsigned long long>(token), logits.size());
    logits[token] += bias;
  }
  const size_t num_next = history.size() + 1;
  const bool is_last =
      (config_.max_new_tokens >= 0 && num_next - answer == static_cast<size_t>(config_.max_new_tokens)) ||
      (config_.seq_len >= 0 && num_next == static_cast<size_t>(config_.seq_len));
  config_.constraints.restrict(logits, history, answer, is_last);
  for (size_t i = 0; i < logits.size() && allowed != nullptr; ++i)
    if (i >= allowed->size() || !(*allowed)[i]) logits[i] = -INFINITY;
  size_t likeliest = 0;
  bool has_nan = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    has_nan = has_nan || std::isnan(logits[i]);
    if (logits[i] > logits[likeliest]) likeliest = i;
  }
  const float most = logits[likeliest];
  TORCHETTE_CHECK(!has_nan && most < INFINITY, Internal,
                  "no token can be chosen: logits are NaN or infinite");
  TORCHETTE_CHECK(
      most > -INFINITY, InvalidArgument,
      "no token can be chosen: the grammar, logit_bias and generation_config.json forbid all tokens");
  Choice choice;
  choice.token = likeliest;
  if (config_.temperature <= 0) return choice;

  std::vector<double>& weights = choice.distribution;
  weights.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const double below = static_cast<double>(logits[i]) - most;
    const double scaled = config_.temperature > 1e-6 ? below / config_.temperature : below * 1e6;
    weights[i] = std::exp(scaled);
  }
  config_.constraints.cut_by_entropy(&weights);
  if (config_.top_k > 0 && static_cast<size_t>(config_.top_k) < weights.size()) {
    sorted_ = weights;
    const auto last = sorted_.begin() + (config_.top_k - 1);
    std::nth_element(sorted_.begin(), last, sorted_.end(), std::greater<>());
    for (double& weight : weights) weight = weight < *last ? 0 : weight;
  }
  if (config_.top_p < 1) {
    order_.clear();
    for (size_t i = 0; i < weights.size(); ++i)
      if (weights[i] > 0) order_.push_back(static_cast<uint32_t>(i));
    std::stable_sort(order_.begin(), order_.end(),
                     [&](uint32_t a, uint32_t b) { return weights[a] > weights[b]; });
    double total = 0, taken = 0;
    for (uint32_t i : order_) total += weights[i];
    for (uint32_t i : order_) {
      const bool is_enough = taken >= static_cast<double>(config_.top_p) * total;
      taken += weights[i];
      if (is_enough) weights[i] = 0;
    }
  }
  for (double& weight : weights) weight = weight < config_.min_p ? 0 : weight;  // the largest weight is 1
  config_.constraints.cut_unlikely(&weights);
  double sum = 0;
  for (double weight : weights) sum += weight;
  for (double& weight : weights) weight /= sum;
  return choice;
}

uint64_t Sampler::draw(const std::vector<double>& distribution) {
  double total = 0, passed = 0;
  for (double weight : distribution) total += weight;
  const double drawn = next_random() * total;
  size_t chosen = 0;
  for (size_t i = 0; i < distribution.size(); ++i) {
    passed += distribution[i];
    if (distribution[i] > 0) chosen = i;
    if (passed > drawn) break;
  }
  return chosen;
}

uint64_t Sampler::draw(const Choice& choice) {
  return choice.distribution.empty() ? choice.token : draw(choice.distribution);
}

bool Sampler::accepts(const Choice& choice, const Choice& chance, uint64_t guess, uint64_t* instead) {
  const std::vector<double>&target = choice.distribution, &proposed = chance.distribution;
  if (target.empty() || proposed.empty()) {
    *instead = draw(choice);
    return *instead == guess;
  }
  if (next_random() * proposed[guess] < target[guess]) return true;
  std::vector<double> residual(target.size());
  bool has_residual = false;
  for (size_t i = 0; i < residual.size(); ++i) {
    residual[i] = std::max(target[i] - proposed[i], 0.0);
    has_residual = has_residual || residual[i] > 0;
  }
  *instead = draw(has_residual ? residual : target);
  return false;
}

}  // namespace torchette::extension::llm
