// SPDX-License-Identifier: BSD-3-Clause
// TokenConstraints: the fields of a model's generation_config.json that change the tokens of answers, without
// those that are options of requests. Names and meanings are those of transformers.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "torchette/llm/text/json.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette::extension::llm {

struct TokenConstraints {
  using Tokens = std::vector<uint64_t>;

  Tokens suppress_tokens;        // never chosen
  Tokens begin_suppress_tokens;  // not chosen as the first token of an answer
  // Added to the logit of a sequence's last token after the tokens before it; -infinity for bad_words_ids.
  std::vector<std::pair<Tokens, float>> sequence_bias;
  std::optional<uint64_t> forced_bos_token_id;  // the second token of a conversation
  Tokens forced_eos_token_id;                   // one of them is the last token of the maximum
  int32_t no_repeat_ngram_size = 0;             // a sequence of this length occurs at most once; 0: no limit
  int32_t min_length = 0;                       // minimum of tokens of the conversation before an end token
  int32_t min_new_tokens = 0;                   // minimum of tokens of the answer before an end token
  // exponential_decay_length_penalty: end tokens become likelier with each token of the answer after the
  // first `decay_start`; negative: no decay.
  int32_t decay_start = -1;
  float decay_factor = 1;
  Tokens end_tokens;  // of the model; the limits above are about them

  // Filters that are applied after the options of a request; these defaults have no effect.
  float top_h = 1;           // the likeliest tokens that have this part of the entropy
  float typical_p = 1;       // tokens of about the expected information that have this probability together
  float epsilon_cutoff = 0;  // tokens of at least this probability
  float eta_cutoff = 0;      // the same, and less if the entropy is large

  /// Reads the members of generation_config.json. Error: InvalidExternalData (a member has another type; the
  /// log names it).
  static Result<TokenConstraints> from(const Json& generation_config);

  /// Adds `sequence_bias`. `history` are all tokens of the conversation.
  void add_biases(Span<float> logits, const Tokens& history) const;
  /// Excludes and forces tokens. `answer` is the index of the answer's first token in `history`;
  /// `is_last` is true if the answer has room for only one more token.
  void restrict(Span<float> logits, const Tokens& history, size_t answer, bool is_last) const;
  /// Sets the weights of tokens that are not drawn to 0, before top_k of a request. `*weights` are positive
  /// multiples of probabilities.
  void cut_by_entropy(std::vector<double>* weights) const;
  /// The same after the options of a request have set weights to 0.
  void cut_unlikely(std::vector<double>* weights) const;
};

}  // namespace torchette::extension::llm
