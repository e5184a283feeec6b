// SPDX-License-Identifier: BSD-3-Clause
// TextLLMRunner: generates text with a language model stored in a .pte file. The method `forward` of the file
// accepts tokens (int64 [1, n]) and the position of the first one (int64 [1]), updates its KV cache and
// returns the logits of the last token. Other files have the method `text_decoder` and an encoder of text,
// sound or images. The API has the names of ExecuTorch. Tokens are equal to those of transformers.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "torchette/extension/module.h"
#include "torchette/llm/engine/chat.h"
#include "torchette/llm/engine/decoder.h"
#include "torchette/llm/engine/irunner.h"
#include "torchette/llm/engine/recurrent_state.h"
#include "torchette/llm/engine/sampler.h"
#include "torchette/llm/grammar/grammar.h"
#include "torchette/llm/text/tokenizer.h"

namespace torchette::extension::llm {

/// The output of one step.
struct AnswerPiece {
  struct TokenLogprob {
    uint64_t token;
    float logprob;
  };
  // Complete characters. Empty while a character is incomplete or the text may begin a stop string.
  std::string text;
  bool is_last = false;           // the last piece of an answer may have text
  std::optional<uint64_t> token;  // absent if the last piece has only text that was held back
  // Log-probabilities in the distribution of the model, if the configuration requests them.
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

/// A conversation: each prompt continues after the last answer, until reset(). Not thread-safe, except
/// stop().
class TextLLMRunner final : public IRunner {
 public:
  /// The default tokenizer is the one of the file (its named data tokenizer.json). A `temperature` other than
  /// -1 replaces the temperature of each configuration.
  explicit TextLLMRunner(std::shared_ptr<Module> module, std::shared_ptr<Tokenizer> tokenizer = nullptr,
                         float temperature = -1);
  using NamedData = std::map<std::string, std::string>;
  /// Generates with a decoder that is not in a file. `named_data` replaces the named data of a file. `begin`
  /// is the token that begins every text, UINT64_MAX for none; `ends` are the tokens that end a text.
  TextLLMRunner(std::unique_ptr<Decoder> decoder, std::shared_ptr<Tokenizer> tokenizer, NamedData named_data,
                uint64_t begin, const std::vector<uint64_t>& ends);
  ~TextLLMRunner() override;

  bool is_loaded() const override { return loaded_; }
  /// Errors: those of Module::load_method() and make_tokenizer(); NotSupported (the methods are not those of
  /// a language model).
  Error load() override;

  /// Generates an answer to `prompt`. `token_callback` receives the answer in pieces of complete characters.
  /// The answer ends at an end token or a stop string, after the maximum of new tokens, at stop(), or when
  /// the context is full. Errors: those of load(); NotFound (no tokenizer); InvalidArgument (no token, a
  /// prompt that is not UTF-8, or an invalid configuration); InvalidExternalData (generation_config.json of
  /// the file has a member of another type); OutOfResources (the prompt does not fit into the context, which
  /// is unchanged).
  Error generate(const std::string& prompt, const GenerationConfig& config, TokenCallback token_callback = {},
                 StatsCallback stats_callback = {}) override;
  /// The same for images, sound and text, in their order; `echo` has no effect. Models that encode a whole
  /// text or sound (T5, Whisper) start a new conversation with each; a text with sound is the beginning of
  /// the answer.
  Error generate(const std::vector<MultimodalInput>& inputs, const GenerationConfig& config,
                 TokenCallback token_callback = {}, StatsCallback stats_callback = {});
  /// The same in steps: begin() starts an answer to `prompt` without an echo, and each next() returns the
  /// piece of one token, until the last one. A new begin() ends an unfinished answer. Errors: as above;
  /// InvalidArgument (begin() with `warming`), InvalidState (next() without an unfinished answer).
  Error begin(const std::string& prompt, const GenerationConfig& config);
  Result<AnswerPiece> next();
  Error begin(const std::vector<MultimodalInput>& inputs, const GenerationConfig& config);
  /// Starts an answer to the tokens of a whole conversation. Tokens at its beginning that the context has are
  /// not run again. Errors: those of begin().
  Error begin_with(const std::vector<uint64_t>& conversation, const GenerationConfig& config);
  /// Returns the tokens of a prompt with ids for images and audio, for begin_with(). Errors: those of
  /// load(); InvalidArgument (the model does not read such an input); NotFound (text without a tokenizer).
  Result<std::vector<uint64_t>> place_prompt(const std::vector<MultimodalInput>& inputs);
  /// Starts an answer to messages: render(), encode, begin_with(). If the tool_choice of `options` demands a
  /// call, the answer fits the grammar of calls. Errors: as above; InvalidArgument (and the configuration has
  /// a grammar).
  Error begin_chat(std::string_view messages, std::string_view options, const GenerationConfig& config);
  Error begin_chat(std::string_view messages, const GenerationConfig& config) {
    return begin_chat(messages, {}, config);
  }
  /// Generates the answer to messages. `echo` has no effect. Errors: those of begin_chat() and next().
  Error chat(std::string_view messages, std::string_view options, const GenerationConfig& config,
             const TokenCallback& token_callback = {}, const StatsCallback& stats_callback = {});
  /// Returns the statistics of the answer so far.
  Stats stats() const;
  /// Appends a text to the context without an answer. Errors: as above.
  Error prefill(const std::string& prompt, int32_t num_bos = 0, int32_t num_eos = 0);
  Error prefill(const std::vector<MultimodalInput>& inputs, int32_t num_bos = 0, int32_t num_eos = 0);
  /// Generates an answer once and discards it.
  Error warmup(const std::string& prompt, int32_t max_new_tokens);

  /// Ends the answer, in the middle of a step if one runs; for other threads and callbacks.
  void stop() override;
  /// Starts a new conversation.
  void reset() override { static_cast<void>(rewind(0)); }
  /// Removes all tokens from `position` on. A model with a recurrent state then continues from the last
  /// prompt before `position`, or from the start: it computes the tokens between again. Error:
  /// InvalidArgument (the position is beyond the end).
  Error rewind(size_t position);
  /// Returns a copy of the conversation that continues independently on the same weights. Errors: those of
  /// load(); MemoryAllocationFailed.
  Result<std::unique_ptr<TextLLMRunner>> fork() { return fork(true); }
  /// Returns an empty conversation on the same weights. Errors: as above.
  Result<std::unique_ptr<TextLLMRunner>> new_conversation() { return fork(false); }

  /// Saves and restores the conversation, in the format of torchette.llm.Session.save. Files are written
  /// atomically. Errors: those of load(), NotSupported (the bytes of the file are not available),
  /// InvalidExternalData (not a state of this model and adapter; the conversation is unchanged),
  /// AccessFailed.
  Result<std::vector<uint8_t>> state();
  Error set_state(Span<const uint8_t> bytes);
  Error save_state(const std::string& path);
  Error load_state(const std::string& path);

  /// Uses a LoRA adapter, the .ptd file of a model that was exported with one; an empty path: no adapter.
  /// Starts a new conversation; forks do not change. Errors: those of load(), InvalidArgument (the model has
  /// no adapters), InvalidExternalData (the file has other tensors).
  Error set_adapter(const std::string& path);
  /// Uses a small model with the same tokens for speculative decoding, with `num_tokens` proposals per step.
  /// The distribution of answers does not change; greedy answers are equal. Null removes the draft. Until
  /// then only this runner may use it.
  void set_draft(std::shared_ptr<TextLLMRunner> draft, int32_t num_tokens = 4) {
    draft_ = std::move(draft);
    num_draft_ = num_tokens;
  }

  /// All tokens of the conversation. Tokens beyond the vocabulary represent images and sound.
  const std::vector<uint64_t>& tokens() const { return tokens_; }
  /// The number of first tokens() that are in the KV cache.
  size_t num_cached() const { return num_run_; }
  int64_t max_context_len() const { return max_context_; }
  size_t vocab_size() const { return decoder_ ? decoder_->vocab_size() : 0; }
  /// Returns the memory of the conversation in bytes, without weights. Errors: those of load().
  Result<size_t> memory();
  const Decoder* decoder() const { return decoder_.get(); }
  /// UINT64_MAX if no token begins every text, or ends one.
  uint64_t begin_token() const { return begin_; }
  uint64_t end_token() const { return end_; }
  /// All tokens that end a text.
  const std::unordered_set<uint64_t>& ends() const { return ends_; }
  /// Null before load().
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  Module& module() { return *module_; }
  /// Returns the defaults of the file for its options (generation_config.json). Fields that are not options,
  /// such as suppress_tokens, apply to every answer. Errors: those of load() and Json::parse().
  Result<GenerationConfig> default_config();
  /// Renders messages, a JSON list of {"role": ..., "content": ...}, with the template of the file. `options`
  /// is a JSON object: tools, tool_choice, and template, further variables such as enable_thinking. Errors:
  /// those of load(), ChatFormat and Json::parse(); NotFound (the file has no template).
  Result<std::string> render(std::string_view messages, std::string_view options = {});
  bool has_template() const;

 private:
  struct Answer;

  Error read_metadata();
  Result<Json> generation_json() const;  // generation_config.json; null if the file has none
  Error read_constraints();
  Error load_model();
  Result<FreeableBuffer> named_data(const char* name) const;
  Result<std::string> render(std::string_view messages, std::string_view options, std::string* grammar);
  Result<std::vector<uint64_t>> encode(const std::string& prompt, const GenerationConfig& config) const;
  /// A prompt for the decoder, with the tokens of each text.
  Result<Decoder::Prompt> place(const std::vector<MultimodalInput>& inputs, const GenerationConfig& config);
  Error make_decoder(std::shared_ptr<DataLoader> adapter);
  Result<std::string> identity();
  size_t num_in_state(size_t num_tokens) const;
  /// Runs the first `end` tokens, except those that ran before. `*logits` are those of the last one and are
  /// valid until the next run.
  Error run(size_t end, Span<float>* logits);
  /// The same for the tokens of a prompt. Copies a recurrent state before the last token, so that the prompt
  /// can have another answer or continuation.
  Error run_prompt(Span<float>* logits);
  /// One step of the decoder, which stop() can end.
  Result<Decoder::Logits> step(const std::vector<uint64_t>& tokens, size_t begin, size_t end);
  Result<std::unique_ptr<TextLLMRunner>> fork(bool with_state);
  std::string bytes_of(uint64_t token) const;
  /// The same for all of `tokens`, which become the conversation.
  Error run_all(const std::vector<uint64_t>& tokens, Span<float>* logits);

  // text_llm_generation.cpp
  Result<std::unique_ptr<Answer>> prepare(const GenerationConfig& given);
  Error set_grammar(Answer* answer);
  Error start(const std::vector<uint64_t>& prompt, std::unique_ptr<Answer> answer);
  Error start_conversation(const std::vector<uint64_t>& conversation, std::unique_ptr<Answer> answer);
  void drop_oldest(size_t num_kept, size_t num_newest);
  Error next_logits(Span<float>* logits);
  Error choose_token(Span<float> logits, AnswerPiece* piece);
  Result<Sampler::Choice> distribution(Span<float> logits, const Grammar::State* state,
                                       const std::vector<uint64_t>& history);
  Result<AnswerPiece> add_text(AnswerPiece piece);
  AnswerPiece finish(const char* reason, AnswerPiece last = {});
  void end(const char* reason, AnswerPiece* last);
  Error draft_tokens();
  Error run_draft(const std::vector<uint64_t>& tokens);
  Error generate_pieces(const GenerationConfig& config, const TokenCallback& token_callback,
                        const StatsCallback& stats_callback);

  struct Identity;

  std::shared_ptr<Module> root_, module_;        // forks share their parent's program and tokenizer
  std::shared_ptr<const NamedData> named_data_;  // of a decoder that is not in a file
  std::shared_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Decoder> decoder_;
  std::shared_ptr<Identity> identity_;  // of the file; forks share it
  std::string adapter_;                 // identifies the adapter
  float temperature_;
  bool loaded_ = false;
  uint64_t begin_ = UINT64_MAX, end_ = UINT64_MAX;
  std::atomic<bool> stopped_{false};
  enum class Step : uint8_t { None, Running, Cancelling, Cancelled };
  std::atomic<Step> step_{Step::None};
  int64_t max_context_ = 0;
  std::unordered_set<uint64_t> ends_;
  std::vector<uint64_t> tokens_;
  // Tokens in the KV cache, the first ones of tokens_. run() lowers it to a position of a recurrent state.
  size_t num_run_ = 0;
  RecurrentState recurrent_;
  long load_start_ = 0, load_end_ = 0;
  std::unique_ptr<Answer> answer_;
  std::shared_ptr<const ChatFormat> template_;
  std::shared_ptr<const TokenConstraints> constraints_;  // of generation_config.json, for every answer
  std::shared_ptr<const GrammarVocabulary> vocabulary_;  // made by the first grammar
  std::shared_ptr<Grammar> grammar_;                     // of the last answer with one
  std::string grammar_text_;
  std::shared_ptr<TextLLMRunner> draft_;
  int32_t num_draft_ = 4;
};

/// Makes a runner, as in ExecuTorch. Opens no file.
std::unique_ptr<TextLLMRunner> create_text_llm_runner(
    const std::string& model_path, std::unique_ptr<Tokenizer> tokenizer = nullptr,
    std::optional<const std::string> data_path = std::nullopt, float temperature = -1);

}  // namespace torchette::extension::llm
