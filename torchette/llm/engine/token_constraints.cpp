// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/token_constraints.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

using Tokens = TokenConstraints::Tokens;

// --- Reading ---

/// Reads members of a JSON object. The first error stays.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  Error error() const { return error_; }

  void number(const char* name, float* out) {
    const Json& given = object_[name];
    if (given.is(Json::Kind::Null)) return;
    if (!given.is(Json::Kind::Number)) return refuse(name, "a number");
    *out = static_cast<float>(given.number);
  }

  void count(const char* name, int32_t* out) {
    const Json& given = object_[name];
    if (given.is(Json::Kind::Null)) return;
    if (given.index() < 0) return refuse(name, "an integer of 0 or more");
    *out = static_cast<int32_t>(given.index());
  }

  /// A token, or a list of tokens.
  void tokens(const char* name, Tokens* out) {
    const Json& given = object_[name];
    if (given.is(Json::Kind::Null)) return;
    const bool is_one = given.is(Json::Kind::Number);
    if (is_one ? !add(given, out) : !add_all(given, out)) refuse(name, "a list of token IDs");
  }

  /// bad_words_ids: sequences that must not occur. A sequence of an end token alone has no effect.
  void bad_words(const char* name, const Tokens& ends, TokenConstraints* out) {
    const Json& given = object_[name];
    if (given.is(Json::Kind::Null)) return;
    if (!given.is(Json::Kind::Array)) return refuse(name, "a list of lists of token IDs");
    for (const Json& item : given.items) {
      Tokens sequence;
      if (!add_all(item, &sequence) || sequence.empty()) return refuse(name, "a list of lists of token IDs");
      const bool is_end = sequence.size() == 1 && std::count(ends.begin(), ends.end(), sequence[0]) > 0;
      if (!is_end) out->sequence_bias.emplace_back(std::move(sequence), -INFINITY);
    }
  }

  /// sequence_bias: pairs of a sequence and a number.
  void biases(const char* name, TokenConstraints* out) {
    const Json& given = object_[name];
    if (given.is(Json::Kind::Null)) return;
    const char* expected = "a list of pairs of token IDs and a number";
    if (!given.is(Json::Kind::Array)) return refuse(name, expected);
    for (const Json& item : given.items) {
      Tokens sequence;
      const bool is_pair = item.is(Json::Kind::Array) && item.items.size() == 2 &&
                           item.items[1].is(Json::Kind::Number) && add_all(item.items[0], &sequence) &&
                           !sequence.empty();
      if (!is_pair) return refuse(name, expected);
      out->sequence_bias.emplace_back(std::move(sequence), static_cast<float>(item.items[1].number));
    }
  }

  void decay(const char* name, TokenConstraints* out) {
    const Json& given = object_[name];
    if (given.is(Json::Kind::Null)) return;
    const bool is_pair = given.is(Json::Kind::Array) && given.items.size() == 2 &&
                         given.items[0].index() >= 0 && given.items[1].is(Json::Kind::Number);
    if (!is_pair) return refuse(name, "a number of tokens and a factor");
    out->decay_start = static_cast<int32_t>(given.items[0].index());
    out->decay_factor = static_cast<float>(given.items[1].number);
  }

 private:
  static bool add(const Json& token, Tokens* out) {
    if (!token.is(Json::Kind::Number)) return false;
    if (token.index() >= 0) out->push_back(static_cast<uint64_t>(token.index()));  // -1 stands for no token
    return true;
  }

  static bool add_all(const Json& list, Tokens* out) {
    return list.is(Json::Kind::Array) && std::all_of(list.items.begin(), list.items.end(),
                                                     [&](const Json& token) { return add(token, out); });
  }

  void refuse(const char* name, const char* expected) {
    if (error_ == Error::Ok) TORCHETTE_LOG(Error, "generation_config.json: %s must be %s", name, expected);
    error_ = Error::InvalidExternalData;
  }

  const Json& object_;
  Error error_ = Error::Ok;
};

// --- Logits ---

void exclude(Span<float> logits, const Tokens& tokens) {
  for (uint64_t token : tokens)
    if (token < logits.size()) logits[token] = -INFINITY;
}

void force(Span<float> logits, const Tokens& tokens) {
  if (std::none_of(tokens.begin(), tokens.end(), [&](uint64_t token) { return token < logits.size(); }))
    return;
  std::fill(logits.begin(), logits.end(), -INFINITY);
  for (uint64_t token : tokens)
    if (token < logits.size()) logits[token] = 0;
}

/// Excludes each token that would complete a sequence of `size` tokens which `history` has.
void exclude_repeated(Span<float> logits, const Tokens& history, size_t size) {
  if (history.size() + 1 < size) return;
  const auto tail = history.end() - static_cast<std::ptrdiff_t>(size - 1);
  for (auto at = history.begin(); history.end() - at >= static_cast<std::ptrdiff_t>(size); ++at) {
    const uint64_t next = *(at + static_cast<std::ptrdiff_t>(size - 1));
    if (next < logits.size() && std::equal(tail, history.end(), at)) logits[next] = -INFINITY;
  }
}

double entropy_of(const std::vector<double>& weights, double sum) {
  double entropy = 0;
  for (double weight : weights)
    if (weight > 0) entropy -= weight / sum * std::log(weight / sum);
  return entropy;
}

/// Indices of positive weights in the order of `before`.
template <typename F>
std::vector<uint32_t> sorted(const std::vector<double>& weights, F before) {
  std::vector<uint32_t> order;
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] > 0) order.push_back(static_cast<uint32_t>(i));
  std::stable_sort(order.begin(), order.end(), before);
  return order;
}

/// Keeps the tokens with the information nearest to the entropy, until they have the probability `mass`.
void keep_typical(std::vector<double>* weights, double mass, double sum) {
  const double entropy = entropy_of(*weights, sum);
  const auto distance = [&](uint32_t i) { return std::fabs(-std::log((*weights)[i] / sum) - entropy); };
  const std::vector<uint32_t> order =
      sorted(*weights, [&](uint32_t a, uint32_t b) { return distance(a) < distance(b); });
  double taken = 0, last = -1;
  for (uint32_t i : order) {
    const double here = distance(i);
    if (last >= 0 && here > last)
      (*weights)[i] = 0;
    else if ((taken += (*weights)[i] / sum) >= mass && last < 0)
      last = here;
  }
}

}  // namespace

Result<TokenConstraints> TokenConstraints::from(const Json& generation_config) {
  TokenConstraints out;
  Reader read(generation_config);
  read.tokens("eos_token_id", &out.end_tokens);
  read.tokens("suppress_tokens", &out.suppress_tokens);
  read.tokens("begin_suppress_tokens", &out.begin_suppress_tokens);
  read.biases("sequence_bias", &out);
  read.bad_words("bad_words_ids", out.end_tokens, &out);
  Tokens first;
  read.tokens("forced_bos_token_id", &first);
  if (!first.empty()) out.forced_bos_token_id = first[0];
  read.tokens("forced_eos_token_id", &out.forced_eos_token_id);
  read.count("no_repeat_ngram_size", &out.no_repeat_ngram_size);
  read.count("min_length", &out.min_length);
  read.count("min_new_tokens", &out.min_new_tokens);
  read.decay("exponential_decay_length_penalty", &out);
  if (generation_config.flag("do_sample")) {
    read.number("top_h", &out.top_h);
    read.number("typical_p", &out.typical_p);
    read.number("epsilon_cutoff", &out.epsilon_cutoff);
    read.number("eta_cutoff", &out.eta_cutoff);
  }
  if (read.error() != Error::Ok) return read.error();
  return out;
}

void TokenConstraints::add_biases(Span<float> logits, const Tokens& history) const {
  for (const auto& [sequence, bias] : sequence_bias) {
    if (sequence.size() > history.size() + 1 || sequence.back() >= logits.size()) continue;
    if (std::equal(sequence.rbegin() + 1, sequence.rend(), history.rbegin())) logits[sequence.back()] += bias;
  }
}

void TokenConstraints::restrict(Span<float> logits, const Tokens& history, size_t answer,
                                bool is_last) const {
  const size_t num_new = history.size() - answer;
  if (no_repeat_ngram_size > 0) exclude_repeated(logits, history, static_cast<size_t>(no_repeat_ngram_size));
  if (history.size() < static_cast<size_t>(min_length) || num_new < static_cast<size_t>(min_new_tokens))
    exclude(logits, end_tokens);
  if (forced_bos_token_id && history.size() == 1) force(logits, {*forced_bos_token_id});
  if (is_last) force(logits, forced_eos_token_id);
  if (decay_start >= 0 && num_new > static_cast<size_t>(decay_start)) {
    const double factor = std::pow(static_cast<double>(decay_factor),
                                   static_cast<double>(num_new - static_cast<size_t>(decay_start)));
    for (uint64_t token : end_tokens)
      if (token < logits.size() && std::isfinite(logits[token]))
        logits[token] += std::fabs(logits[token]) * static_cast<float>(factor - 1);
  }
  exclude(logits, suppress_tokens);
  // After a forced token, begin_suppress_tokens apply to the token that follows it.
  const size_t begin = forced_bos_token_id && answer <= 1 ? 1 : 0;
  if (num_new == begin) exclude(logits, begin_suppress_tokens);
}

void TokenConstraints::cut_by_entropy(std::vector<double>* weights) const {
  if (top_h >= 1) return;
  constexpr size_t kMaxTokens = 100;
  const std::vector<uint32_t> order =
      sorted(*weights, [&](uint32_t a, uint32_t b) { return (*weights)[a] > (*weights)[b]; });
  std::vector<double> likeliest;
  double sum = 0;
  for (size_t i = 0; i < std::min(order.size(), kMaxTokens); ++i) {
    likeliest.push_back((*weights)[order[i]]);
    sum += likeliest.back();
  }
  const double limit = entropy_of(likeliest, sum) * static_cast<double>(top_h);
  double entropy = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i < likeliest.size()) entropy -= likeliest[i] / sum * std::log(likeliest[i] / sum);
    if (i > 0 && (i >= likeliest.size() || entropy > limit)) (*weights)[order[i]] = 0;
  }
}

void TokenConstraints::cut_unlikely(std::vector<double>* weights) const {
  const auto sum_of = [&] {
    double sum = 0;
    for (double weight : *weights) sum += weight;
    return sum;
  };
  const auto cut = [&](double probability, double sum) {
    const double most = *std::max_element(weights->begin(), weights->end());
    for (double& weight : *weights)
      if (weight < most && weight / sum < probability) weight = 0;
  };
  if (typical_p < 1) keep_typical(weights, static_cast<double>(typical_p), sum_of());
  if (epsilon_cutoff > 0) cut(static_cast<double>(epsilon_cutoff), sum_of());
  if (eta_cutoff > 0) {
    const double sum = sum_of(), epsilon = static_cast<double>(eta_cutoff);
    cut(std::min(epsilon, std::sqrt(epsilon) * std::exp(-entropy_of(*weights, sum))), sum);
  }
}

}  // namespace torchette::extension::llm
