// SPDX-License-Identifier: BSD-3-Clause
// TextLLMRunner: a language model in a .pte file that goes on with a text. The file's method `forward` takes
// tokens (int64 [1, n]) and the position of the first of them (int64 [1]), keeps what it needs of them, and
// gives the logits of the last one; or it has `text_decoder` and an encoder of texts, sound or images. Names
// are ExecuTorch's; tokens are those that transformers gives.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "torchette/extension/llm/chat_template.h"
#include "torchette/extension/llm/decoder.h"
#include "torchette/extension/llm/grammar.h"
#include "torchette/extension/llm/irunner.h"
#include "torchette/extension/llm/sampler.h"
#include "torchette/extension/llm/tokenizer.h"
#include "torchette/extension/module.h"

namespace torchette::extension::llm {

/// What one token brought.
struct AnswerPiece {
  struct TokenLogprob {
    uint64_t token;
    float logprob;
  };
  std::string text;      // whole characters; empty while one is not complete, or may begin a stop text
  bool is_last = false;  // the answer has ended; its last piece may have text
  std::optional<uint64_t> token;  // none of a last piece that has only what was held back
  // where the configuration asks for them, in the model's own distribution
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

/// A conversation: each prompt goes on where the last answer ended, until reset(). Not for use by two threads
/// at once, but for stop().
class TextLLMRunner final : public IRunner {
 public:
  /// Without a tokenizer that of the file is used (its named data tokenizer.json). `temperature` other than
  /// -1 stands for that of every configuration.
  explicit TextLLMRunner(std::unique_ptr<Module> module, std::unique_ptr<Tokenizer> tokenizer = nullptr,
                         float temperature = -1);
  ~TextLLMRunner() override;

  bool is_loaded() const override { return loaded_; }
  /// Errors: those of Module::load_method(); NotFound (no tokenizer), those of make_tokenizer(), NotSupported
  /// (a method that is not as said above).
  Error load() override;

  /// Goes on with `prompt`. `token_callback` gets the answer in pieces of whole characters. Ends at a token
  /// or a text that ends it, after as many tokens as asked for, at stop(), or where the context is full.
  /// Errors: those of load(); InvalidArgument (no token at all, a prompt that is not UTF-8 or a configuration
  /// that is wrong); OutOfResources (the prompt does not fit into the context: nothing is changed then).
  Error generate(const std::string& prompt, const GenerationConfig& config, TokenCallback token_callback = {},
                 StatsCallback stats_callback = {}) override;
  /// The same of images, sound and text, in their order; `echo` has no effect. What reads a text or sound as
  /// a whole (T5, Whisper) begins anew with each; a text beside sound is what the answer begins with.
  Error generate(const std::vector<MultimodalInput>& inputs, const GenerationConfig& config,
                 TokenCallback token_callback = {}, StatsCallback stats_callback = {});
  /// The same in steps: an answer to `prompt` (which no piece echoes), of which each next() gives what one
  /// token brought, until a piece is the last. Whoever wants no more of it simply begins another one. Errors:
  /// as above; of next() InvalidState, too (no answer was begun, or it has ended).
  Error begin(const std::string& prompt, const GenerationConfig& config);
  Result<AnswerPiece> next();
  Error begin(const std::vector<MultimodalInput>& inputs, const GenerationConfig& config);
  /// An answer to a whole conversation, given as tokens: what the context has of its beginning is not run
  /// again. Errors: those of begin().
  Error begin_with(const std::vector<uint64_t>& conversation, const GenerationConfig& config);
  /// An answer to messages: render(), encode, begin_with().
  Error begin_chat(std::string_view messages, const GenerationConfig& config);
  /// Of the answer so far.
  Stats stats() const;
  /// Puts a text into the context; an answer to it begins with generate() of what follows. Errors: as above.
  Error prefill(const std::string& prompt, int32_t num_bos = 0, int32_t num_eos = 0);
  Error prefill(const std::vector<MultimodalInput>& inputs, int32_t num_bos = 0, int32_t num_eos = 0);
  /// Runs everything once, and forgets it.
  Error warmup(const std::string& prompt, int32_t max_new_tokens);

  /// Ends generate() behind the token that it is at; for other threads and callbacks.
  void stop() override { stopped_.store(true, std::memory_order_relaxed); }
  /// Begins anew.
  void reset() override { static_cast<void>(rewind(0)); }
  /// Forgets all tokens from `position` on. Error: InvalidArgument (there are not so many).
  Error rewind(size_t position);
  /// Another conversation on the same weights that goes on from here by itself. Errors: those of load();
  /// MemoryAllocationFailed.
  Result<std::unique_ptr<TextLLMRunner>> fork();

  /// The conversation as bytes, and back: those of torchette.llm.Session.save. Errors: those of load(),
  /// NotSupported (the file's bytes are not at hand), InvalidExternalData (no state, or another model's or
  /// adapter's: the conversation stays as it was), AccessFailed (of files, which are written whole or not at
  /// all).
  Result<std::vector<uint8_t>> state();
  Error set_state(Span<const uint8_t> bytes);
  Error save_state(const std::string& path);
  Error load_state(const std::string& path);

  /// Goes on with a LoRA adapter, the .ptd file of a model that was exported with one; empty: without. The
  /// conversation begins anew; forks stay as they are. Errors: those of load(), InvalidArgument (the model
  /// takes none), InvalidExternalData (a file of other tensors).
  Error set_adapter(const std::string& path);
  /// A runner of a small model with the same tokens, which proposes so many at a time: answers are of the
  /// same distribution; greedy, they are the same. Null takes it away. It is this one's until then.
  void set_draft(std::shared_ptr<TextLLMRunner> draft, int32_t num_tokens = 4) {
    draft_ = std::move(draft);
    num_draft_ = num_tokens;
  }

  /// All tokens of the conversation; numbers beyond the vocabulary stand for what is no text.
  const std::vector<uint64_t>& tokens() const { return tokens_; }
  int64_t max_context_len() const { return max_context_; }
  /// Null before load().
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  Module& module() { return *module_; }
  /// The defaults that the file has for its model (generation_config.json), where it has some. Loads.
  Result<GenerationConfig> default_config();
  /// The prompt that the file's template makes of messages, a list of {"role": ..., "content": ...} in JSON.
  /// Errors: those of load(), ChatTemplate and Json::parse(); NotFound (the file has no template).
  Result<std::string> render(std::string_view messages);
  bool has_template() const;

 private:
  struct Answer;

  Error read_metadata();
  Error load_model();
  Result<FreeableBuffer> named_data(const char* name) const;
  Result<std::vector<uint64_t>> encode(const std::string& prompt, const GenerationConfig& config) const;
  /// Texts as tokens.
  Result<Decoder::Prompt> place(const std::vector<MultimodalInput>& inputs, const GenerationConfig& config);
  Error make_decoder(std::shared_ptr<DataLoader> adapter);
  Result<std::string> identity();
  /// Runs what was not run yet of the first `end` tokens; `*logits` are those of the last one, until the next
  /// run.
  Error run(size_t end, Span<float>* logits);
  /// Of these tokens, what is not run yet; they become the conversation.
  Error run_all(const std::vector<uint64_t>& tokens, Span<float>* logits);
  Result<std::vector<bool>> allowed(Grammar& grammar, const Grammar::State* state, size_t size);
  /// What the draft model would say next, and the model's logits behind the last token and each of that.
  Error guess();
  Error give(const GenerationConfig& config, const TokenCallback& token_callback,
             const StatsCallback& stats_callback);
  Error start(const std::vector<uint64_t>& prompt, std::unique_ptr<Answer> answer);
  Error start_whole(const std::vector<uint64_t>& conversation, std::unique_ptr<Answer> answer);
  Result<std::unique_ptr<Answer>> prepare(const GenerationConfig& given);
  void end(const char* reason, AnswerPiece* last);
  void forget(size_t keep, size_t newest);

  struct Identity;

  std::shared_ptr<Module> root_, module_;  // forks share their parent's program and tokenizer
  std::shared_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Decoder> decoder_;
  std::shared_ptr<Identity> identity_;  // of the file; forks share it
  std::string adapter_;                 // what tells it from others
  float temperature_;
  bool loaded_ = false;
  uint64_t begin_ = UINT64_MAX, end_ = UINT64_MAX;
  std::atomic<bool> stopped_{false};
  int64_t max_context_ = 0;
  std::unordered_set<uint64_t> ends_;
  std::vector<uint64_t> tokens_;
  size_t num_run_ = 0;  // of these, those that the caches have
  long load_start_ = 0, load_end_ = 0;
  std::unique_ptr<Answer> answer_;
  std::shared_ptr<const ChatTemplate> template_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;  // made where a grammar asks first
  std::shared_ptr<Grammar> grammar_;                     // of the last answer that had one
  std::string grammar_text_;
  std::shared_ptr<TextLLMRunner> draft_;
  int32_t num_draft_ = 4;
};

/// ExecuTorch's way to one; opens nothing yet.
std::unique_ptr<TextLLMRunner> create_text_llm_runner(
    const std::string& model_path, std::unique_ptr<Tokenizer> tokenizer = nullptr,
    std::optional<const std::string> data_path = std::nullopt, float temperature = -1);

}  // namespace torchette::extension::llm
