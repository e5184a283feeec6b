// SPDX-License-Identifier: BSD-3-Clause
// The generation of answers: TextLLMRunner::begin(), next(), generate() and the functions that they call.
#include <algorithm>
#include <cmath>

#include "torchette/llm/engine/options.h"
#include "torchette/llm/engine/text_llm_answer.h"
#include "torchette/llm/grammar/schema.h"
#include "torchette/llm/text/json.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

/// Sets the log-probabilities of the chosen token and of the most probable ones, in the distribution of the
/// model before penalties and temperature.
void add_logprobs(const std::vector<float>& logits, uint64_t token, size_t count, AnswerPiece* piece) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  const auto logprob = [&](size_t i) {
    return static_cast<float>(static_cast<double>(logits[i]) - max - std::log(sum));
  };
  piece->logprob = logprob(token);
  std::vector<uint32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
  count = std::min(count, order.size());
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
      [&](uint32_t a, uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  for (size_t i = 0; i < count; ++i) piece->top.push_back({order[i], logprob(order[i])});
}

/// Returns the configuration of an answer in steps, which has no `warming`: generate_pieces() implements it.
GenerationConfig without_warming(GenerationConfig config) {
  config.warming = false;
  return config;
}

}  // namespace

// --- Begin an answer ---

Error TextLLMRunner::begin(const std::string& prompt, const GenerationConfig& config) {
  return begin({MultimodalInput(prompt)}, config);
}

Error TextLLMRunner::begin(const std::vector<MultimodalInput>& inputs, const GenerationConfig& config) {
  Result<std::unique_ptr<Answer>> answer = prepare(config);
  if (!answer.ok()) return answer.error();
  const Result<Decoder::Prompt> prompt = place(inputs, config);
  if (!prompt.ok()) return prompt.error();
  if (!prompt->begins_conversation) return start(prompt->tokens, std::move(*answer));
  return start_conversation(prompt->tokens, std::move(*answer));
}

Error TextLLMRunner::begin_with(const std::vector<uint64_t>& conversation, const GenerationConfig& config) {
  Result<std::unique_ptr<Answer>> answer = prepare(config);
  if (!answer.ok()) return answer.error();
  for (uint64_t token : conversation)  // tokens() returns such tokens for images and sound
    if (token >= decoder_->vocab_size() && decoder_->has_media())
      return start_conversation(conversation, std::move(*answer));
  const Result<Decoder::Prompt> prompt = place({MultimodalInput(conversation)}, config);
  if (!prompt.ok()) return prompt.error();
  return start_conversation(prompt->tokens, std::move(*answer));
}

Error TextLLMRunner::begin_chat(std::string_view messages, std::string_view options,
                                const GenerationConfig& config) {
  GenerationConfig constrained = config;
  std::string grammar;
  const Result<std::string> prompt = render(messages, options, &grammar);
  if (!prompt.ok()) return prompt.error();
  if (!grammar.empty()) {
    TORCHETTE_CHECK(config.grammar.empty() && config.schema.empty(), InvalidArgument,
                    "tool_choice requires a call, which sets the grammar: remove grammar or schema");
    constrained.grammar = std::move(grammar);
  }
  const Result<std::vector<uint64_t>> tokens = encode(*prompt, GenerationConfig());
  return tokens.ok() ? begin_with(*tokens, constrained) : tokens.error();
}

Result<std::unique_ptr<TextLLMRunner::Answer>> TextLLMRunner::prepare(const GenerationConfig& given) {
  TORCHETTE_TRY(load());
  GenerationConfig config = given;
  if (temperature_ != -1) config.temperature = temperature_;
  TORCHETTE_TRY(check(config));
  TORCHETTE_CHECK(!config.warming, InvalidArgument,
                  "warming is not supported for an answer in steps: call generate() or chat()");
  TORCHETTE_TRY(read_constraints());
  config.constraints = *constraints_;
  if (!config.schema.empty()) {
    TORCHETTE_CHECK(config.grammar.empty(), InvalidArgument, "set grammar or schema, not both");
#ifdef __wasm__  // reduces the size of the program of a web page
    TORCHETTE_LOG(Error, "this build has no JSON schemas; make the grammar with torchette.llm.grammar_of");
    return Error::NotSupported;
#else
    Result<std::string> grammar = grammar_of(config.schema);
    if (!grammar.ok()) return grammar.error();
    config.grammar = std::move(*grammar);
#endif
  }
  if (draft_) {
    TORCHETTE_TRY(draft_->load_model());  // it needs no tokenizer
    TORCHETTE_CHECK(
        draft_.get() != this && draft_->decoder_->vocab_size() == decoder_->vocab_size() && num_draft_ > 0,
        InvalidArgument, "the draft must be another runner, of a model with the same tokens");
  }
  auto answer = std::make_unique<Answer>(std::move(config));
  answer->stats.model_load_start_ms = load_start_;
  answer->stats.model_load_end_ms = load_end_;
  answer->stats.inference_start_ms = time_in_ms();
  if (!answer->config.grammar.empty()) TORCHETTE_TRY(set_grammar(answer.get()));
  return answer;
}

/// Sets the grammar of an answer. The last grammar and its states are reused.
Error TextLLMRunner::set_grammar(Answer* answer) {
  const std::string& text = answer->config.grammar;
  if (!vocabulary_) {
    std::vector<std::string> tokens(tokenizer_ ? tokenizer_->vocab_size() : 0);
    for (size_t i = 0; i < tokens.size(); ++i)
      if (ends_.count(i) == 0) tokens[i] = bytes_of(i);
    vocabulary_ = std::make_shared<GrammarVocabulary>(std::move(tokens));
  }
  if (!grammar_ || grammar_text_ != text) {
    Result<std::unique_ptr<Grammar>> grammar = Grammar::parse(text);
    if (!grammar.ok()) return grammar.error();
    grammar_ = std::move(*grammar);
    grammar_text_ = text;
  }
  answer_.reset();  // a grammar has the states of one answer
  const Result<const Grammar::State*> state = grammar_->start();
  if (!state.ok()) return state.error();
  answer->grammar = grammar_;
  answer->state = *state;
  return Error::Ok;
}

Error TextLLMRunner::start_conversation(const std::vector<uint64_t>& conversation,
                                        std::unique_ptr<Answer> answer) {
  TORCHETTE_CHECK(!conversation.empty(), InvalidArgument, "the prompt has no tokens");
  TORCHETTE_CHECK(conversation.size() <= static_cast<size_t>(max_context_), OutOfResources,
                  "the prompt has %zu tokens, the context %lld", conversation.size(),
                  static_cast<long long>(max_context_));
  size_t common = 0;
  while (common < std::min(conversation.size(), tokens_.size()) && conversation[common] == tokens_[common])
    ++common;
  TORCHETTE_TRY(rewind(common));
  const auto rest = conversation.begin() + static_cast<std::ptrdiff_t>(common);
  TORCHETTE_TRY(start({rest, conversation.end()}, std::move(answer)));
  answer_->stats.num_prompt_tokens = static_cast<int64_t>(tokens_.size());
  answer_->stats.num_reused_tokens = static_cast<int64_t>(recurrent_.discard_after(num_run_));
  return Error::Ok;
}

Error TextLLMRunner::start(const std::vector<uint64_t>& prompt, std::unique_ptr<Answer> answer) {
  const GenerationConfig& config = answer->config;
  answer->stats.token_encode_end_ms = time_in_ms();
  answer->stats.num_prompt_tokens = static_cast<int64_t>(prompt.size());
  const auto context = static_cast<size_t>(max_context_);
  TORCHETTE_CHECK(tokens_.size() + prompt.size() > 0, InvalidArgument,
                  "the prompt and the context are empty");
  const uint64_t first = tokens_.empty() ? prompt.front() : tokens_[0];
  const bool keeps_first = first == begin_ || first >= decoder_->vocab_size();
  answer->num_kept = config.keep >= 0 ? static_cast<size_t>(config.keep) : keeps_first ? 1 : 0;
  TORCHETTE_CHECK((!config.slide && config.keep < 0) || answer->num_kept + 1 < context, InvalidArgument,
                  "keep is %zu and the context %zu: no token can be dropped", answer->num_kept, context);
  if (config.slide && prompt.size() + std::min(answer->num_kept, tokens_.size()) <= context)
    while (tokens_.size() > answer->num_kept && tokens_.size() + prompt.size() > context)
      drop_oldest(answer->num_kept, 0);
  TORCHETTE_CHECK(tokens_.size() + prompt.size() <= context, OutOfResources,
                  "a prompt of %zu tokens after %zu tokens exceeds the context of %zu", prompt.size(),
                  tokens_.size(), context);
  answer->prompt_begin = tokens_.size();
  tokens_.insert(tokens_.end(), prompt.begin(), prompt.end());
  // an empty prompt runs the last token again for its logits
  num_run_ = std::min(num_run_, tokens_.size() - 1);
  recurrent_.discard_after(num_run_);
  answer->begins_text =
      std::all_of(tokens_.begin(), tokens_.end(), [&](uint64_t token) { return bytes_of(token).empty(); });
  answer->history = tokens_;
  answer->history_begin = tokens_.size();
  answer->max_tokens = config.resolve_max_new_tokens(
      static_cast<int32_t>(std::min<int64_t>(max_context_, INT32_MAX)), static_cast<int32_t>(tokens_.size()));
  if (config.seq_len < 0) {  // the last token of an answer need not fit into the context: it is not run
    const size_t room = config.slide ? INT32_MAX : context - tokens_.size() + 1;
    answer->max_tokens = static_cast<int32_t>(
        config.max_new_tokens < 0 ? room : std::min(room, static_cast<size_t>(config.max_new_tokens)));
  }
  stopped_.store(false, std::memory_order_relaxed);
  answer_ = std::move(answer);
  return Error::Ok;
}

/// Drops half of the tokens between the first `num_kept` and the last `num_newest`.
void TextLLMRunner::drop_oldest(size_t num_kept, size_t num_newest) {
  const auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(num_kept);
  const size_t count = tokens_.size() - num_newest - num_kept;
  tokens_.erase(first, first + static_cast<std::ptrdiff_t>((count + 1) / 2));
  num_run_ = std::min(num_run_, num_kept);
  recurrent_.discard_after(num_run_);
}

// --- The next token ---

Result<AnswerPiece> TextLLMRunner::next() {
  TORCHETTE_CHECK(answer_ != nullptr && !answer_->has_ended, InvalidState,
                  "there is no answer to continue; begin() begins one");
  Answer& answer = *answer_;
  const GenerationConfig& config = answer.config;
  Stats& stats = answer.stats;
  if (answer.max_tokens == 0) return finish("length");
  Span<float> logits;
  const Error error = next_logits(&logits);
  if (error != Error::Ok) {
    // a prompt that failed is not part of the conversation
    static_cast<void>(rewind(stats.num_generated_tokens == 0 ? answer.prompt_begin : tokens_.size()));
    return error;
  }
  if (stats.prompt_eval_end_ms == 0) stats.prompt_eval_end_ms = time_in_ms();
  if (stopped_.load(std::memory_order_relaxed)) return finish("cancelled");
  AnswerPiece piece;
  TORCHETTE_TRY(choose_token(logits, &piece));
  if (!config.ignore_eos && ends_.count(*piece.token) != 0) return finish("stop", std::move(piece));
  Result<AnswerPiece> with_text = add_text(std::move(piece));
  if (!with_text.ok() || with_text->is_last || stats.num_generated_tokens < answer.max_tokens)
    return with_text;
  return finish("length", std::move(*with_text));
}

/// The logits for the next token, from the model or from the rows that a verified draft left.
Error TextLLMRunner::next_logits(Span<float>* logits) {
  Answer& answer = *answer_;
  if (tokens_.size() > static_cast<size_t>(max_context_)) drop_oldest(answer.num_kept, 1);
  if (answer.drafted.empty()) num_run_ = std::min(num_run_, tokens_.size() - 1);  // state() runs all tokens
  if (answer.drafted.empty() && draft_ && answer.stats.num_generated_tokens > 0)
    TORCHETTE_TRY(draft_tokens());
  if (answer.stats.num_generated_tokens == 0) return run_prompt(logits);
  if (answer.drafted.empty()) return run(tokens_.size(), logits);
  const size_t size = decoder_->vocab_size();
  *logits = {answer.rows.data() + answer.next_row * size, size};
  return Error::Ok;
}

/// Chooses the next token and appends it to the conversation. A drafted token is accepted or replaced.
Error TextLLMRunner::choose_token(Span<float> logits, AnswerPiece* piece) {
  Answer& answer = *answer_;
  Stats& stats = answer.stats;
  const torchette_timestamp_t begin = current_ticks();
  std::vector<float> unchanged;  // the sampler changes the logits
  if (answer.config.logprobs >= 0) unchanged.assign(logits.begin(), logits.end());
  const Result<Sampler::Choice> choice = distribution(logits, answer.state, answer.history);
  if (!choice.ok()) return choice.error();
  uint64_t token = 0;
  bool is_accepted = false;
  if (answer.next_row < answer.drafted.size()) {
    const uint64_t drafted = answer.drafted[answer.next_row];
    is_accepted = answer.sampler.accepts(*choice, answer.draft_choices[answer.next_row], drafted, &token);
    if (is_accepted) token = drafted;
  } else {
    token = answer.sampler.draw(*choice);
  }
  ++answer.next_row;
  if (!is_accepted) answer.drafted.clear();
  if (answer.config.logprobs >= 0)
    add_logprobs(unchanged, token, static_cast<size_t>(answer.config.logprobs), piece);
  const torchette_tick_ratio_t ratio = ticks_to_ns_multiplier();
  answer.sampling_ms += static_cast<double>(current_ticks() - begin) * static_cast<double>(ratio.numerator) /
                        static_cast<double>(ratio.denominator) / 1e6;
  if (stats.num_generated_tokens == 0) stats.first_token_ms = time_in_ms();
  tokens_.push_back(token);
  if (is_accepted) num_run_ = tokens_.size(), ++stats.num_accepted_tokens;
  answer.history.push_back(token);
  ++stats.num_generated_tokens;
  piece->token = token;
  return Error::Ok;
}

/// The distribution of a token that the grammar of the answer allows.
Result<Sampler::Choice> TextLLMRunner::distribution(Span<float> logits, const Grammar::State* state,
                                                    const std::vector<uint64_t>& history) {
  Answer& answer = *answer_;
  if (!answer.grammar) return answer.sampler.choose(logits, history, answer.history_begin, nullptr);
  const Result<const std::vector<bool>*> mask = answer.grammar->mask(state, *vocabulary_);
  if (!mask.ok()) return mask.error();
  std::vector<bool> allowed = **mask;
  for (uint64_t end : ends_) {
    if (end >= allowed.size()) allowed.resize(std::min<size_t>(end + 1, logits.size()));
    if (end < allowed.size()) allowed[end] = Grammar::accepts(state);
  }
  return answer.sampler.choose(logits, history, answer.history_begin, &allowed);
}

/// Completes a piece with the text of its token. Ends the answer at a stop string and after the last
/// character that the grammar allows.
Result<AnswerPiece> TextLLMRunner::add_text(AnswerPiece piece) {
  Answer& answer = *answer_;
  const uint64_t token = *piece.token;
  bool is_stopped = false;
  std::string bytes = bytes_of(token);
  if (answer.begins_text && !bytes.empty()) {
    answer.begins_text = false;
    // a decoder may remove the space before the first word of a text
    const Result<std::string> alone = tokenizer_->decode({token});
    if (bytes[0] == ' ' && alone.ok() && (alone->empty() || (*alone)[0] != ' ')) bytes.erase(0, 1);
  }
  piece.text = answer.stream.push(bytes, false, &is_stopped);
  if (is_stopped) {
    end("stop", &piece);
    return piece;
  }
  if (!answer.grammar || ends_.count(token) != 0) return piece;
  const Result<const Grammar::State*> state =
      answer.grammar->advance(answer.state, vocabulary_->tokens()[token]);
  if (!state.ok()) return state.error();
  TORCHETTE_CHECK(*state != nullptr, Internal, "the grammar rejects a token that it allowed");
  answer.state = *state;
  return Grammar::is_done(*state) ? finish("stop", std::move(piece)) : std::move(piece);
}

/// Ends the answer with the text that was held back. The reason is "stop" if that text has a stop string.
AnswerPiece TextLLMRunner::finish(const char* reason, AnswerPiece last) {
  bool is_stopped = false;
  last.text += answer_->stream.push({}, true, &is_stopped);
  end(is_stopped ? "stop" : reason, &last);
  return last;
}

void TextLLMRunner::end(const char* reason, AnswerPiece* last) {
  Answer& answer = *answer_;
  Stats& stats = answer.stats;
  stats.finish_reason = reason;
  answer.has_ended = last->is_last = true;
  stats.aggregate_sampling_time_ms = static_cast<long>(answer.sampling_ms);
  stats.inference_end_ms = time_in_ms();
  if (stats.prompt_eval_end_ms == 0) stats.prompt_eval_end_ms = stats.inference_end_ms;
}

// --- Speculative decoding ---

/// Proposes tokens with the draft model, and computes the model's logits for all of them.
Error TextLLMRunner::draft_tokens() {
  Answer& answer = *answer_;
  answer.next_row = 0;
  std::vector<uint64_t> tokens = tokens_;
  for (uint64_t token : tokens)
    if (token >= decoder_->vocab_size()) return Error::Ok;  // the draft model has no media
  const auto context = static_cast<int64_t>(std::min(max_context_, draft_->max_context_));
  const bool is_bounded = answer.config.max_new_tokens >= 0 || answer.config.seq_len >= 0;
  const int64_t room = std::min({context - static_cast<int64_t>(tokens.size()), int64_t{num_draft_},
                                 answer.max_tokens - answer.stats.num_generated_tokens - is_bounded});
  const Grammar::State* state = answer.state;
  std::vector<uint64_t> history = answer.history;
  while (static_cast<int64_t>(answer.drafted.size()) < room) {
    Span<float> logits;
    TORCHETTE_TRY(draft_->run_all(tokens, &logits));
    if (answer.drafted.empty())
      TORCHETTE_TRY(draft_->recurrent_.snapshot(*draft_->decoder_, RecurrentState::Kind::Draft));
    Result<Sampler::Choice> choice = distribution(logits, state, history);
    if (!choice.ok()) return choice.error();
    const uint64_t token = answer.sampler.draw(*choice);
    answer.drafted.push_back(token);
    answer.draft_choices.resize(answer.drafted.size());
    answer.draft_choices.back() = std::move(*choice);
    ++answer.stats.num_drafted_tokens;
    tokens.push_back(token);
    history.push_back(token);
    if (ends_.count(token) != 0) break;
    if (!answer.grammar) continue;
    const Result<const Grammar::State*> following =
        answer.grammar->advance(state, vocabulary_->tokens()[token], true);
    if (!following.ok()) return following.error();
    state = *following;
    if (state == nullptr || Grammar::is_done(state)) break;
  }
  return answer.drafted.empty() ? Error::Ok : run_draft(tokens);
}

/// Runs the last token and the drafted tokens, the end of `tokens`, and keeps the logits of each.
Error TextLLMRunner::run_draft(const std::vector<uint64_t>& tokens) {
  Span<float> last;
  TORCHETTE_TRY(run(tokens_.size() - 1, &last));  // tokens before the last one are run again after a drop
  TORCHETTE_TRY(recurrent_.snapshot(*decoder_, RecurrentState::Kind::Draft));
  std::vector<float>& rows = answer_->rows;
  rows.clear();
  bool is_single = false;
  for (size_t at = num_run_; at < tokens.size();) {
    const size_t end = is_single ? at + 1 : std::min(decoder_->max_step_end(tokens, at), tokens.size());
    const Result<Decoder::Logits> logits = step(tokens, at, end);
    if (!logits.ok() && stopped_) return Error::Ok;
    if (!logits.ok()) return logits.error();
    if (logits->rows < end - at) {  // the model returns logits of the last token only
      is_single = true;
      continue;
    }
    rows.insert(rows.end(), logits->data, logits->data + logits->rows * logits->size);
    at = end;
  }
  num_run_ = tokens_.size();
  return Error::Ok;
}

// --- Whole answers ---

Error TextLLMRunner::generate(const std::string& prompt, const GenerationConfig& config,
                              TokenCallback token_callback, StatsCallback stats_callback) {
  TORCHETTE_TRY(begin(prompt, without_warming(config)));
  if (config.echo && token_callback && !config.warming && !prompt.empty()) token_callback(prompt);
  return generate_pieces(config, token_callback, stats_callback);
}

Error TextLLMRunner::generate(const std::vector<MultimodalInput>& inputs, const GenerationConfig& config,
                              TokenCallback token_callback, StatsCallback stats_callback) {
  TORCHETTE_TRY(begin(inputs, without_warming(config)));
  return generate_pieces(config, token_callback, stats_callback);
}

Error TextLLMRunner::chat(std::string_view messages, std::string_view options, const GenerationConfig& config,
                          const TokenCallback& token_callback, const StatsCallback& stats_callback) {
  TORCHETTE_TRY(begin_chat(messages, options, without_warming(config)));
  return generate_pieces(config, token_callback, stats_callback);
}

Error TextLLMRunner::generate_pieces(const GenerationConfig& config, const TokenCallback& token_callback,
                                     const StatsCallback& stats_callback) {
  for (bool is_last = false; !is_last;) {
    const Result<AnswerPiece> piece = next();
    if (!piece.ok()) return piece.error();
    if (token_callback && !config.warming && !piece->text.empty()) token_callback(piece->text);
    is_last = piece->is_last;
  }
  if (stats_callback && !config.warming) stats_callback(answer_->stats);
  return Error::Ok;
}

}  // namespace torchette::extension::llm
