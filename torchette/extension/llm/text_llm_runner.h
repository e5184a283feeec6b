// SPDX-License-Identifier: BSD-3-Clause
// TextLLMRunner: a language model in a .pte file that goes on with a text. The file's method `forward` takes
// tokens (int64 [1, n]) and the position of the first of them (int64 [1]), keeps what it needs of them, and
// gives the logits of the last one. Names are ExecuTorch's; tokens are those that transformers gives.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "torchette/extension/llm/irunner.h"
#include "torchette/extension/llm/tokenizer.h"
#include "torchette/extension/module.h"

namespace torchette::extension::llm {

class Sampler;

/// A conversation: each prompt goes on where the last answer ended, until reset(). Not for use by two threads
/// at once, but for stop().
class TextLLMRunner final : public IRunner {
 public:
  /// Without a tokenizer that of the file is used (its named data tokenizer.json). `temperature` other than
  /// -1 stands for that of every configuration.
  explicit TextLLMRunner(std::unique_ptr<Module> module, std::unique_ptr<Tokenizer> tokenizer = nullptr,
                         float temperature = -1);

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
  /// Puts a text into the context; an answer to it begins with generate() of what follows. Errors: as above.
  Error prefill(const std::string& prompt, int32_t num_bos = 0, int32_t num_eos = 0);
  /// Runs everything once, and forgets it.
  Error warmup(const std::string& prompt, int32_t max_new_tokens);

  /// Ends generate() behind the token that it is at; for other threads and callbacks.
  void stop() override { stopped_.store(true, std::memory_order_relaxed); }
  /// Begins anew.
  void reset() override { tokens_.clear(), num_run_ = 0; }
  /// Forgets all tokens from `position` on. Error: InvalidArgument (there are not so many).
  Error rewind(size_t position);

  /// All tokens of the conversation.
  const std::vector<uint64_t>& tokens() const { return tokens_; }
  int64_t max_context_len() const { return max_context_; }
  /// Null before load().
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  Module& module() { return *module_; }
  /// The defaults that the file has for its model (generation_config.json), where it has some. Loads.
  Result<GenerationConfig> default_config();

 private:
  Error read_metadata();
  Result<FreeableBuffer> named_data(const char* name);
  Result<std::vector<uint64_t>> encode(const std::string& prompt, const GenerationConfig& config) const;
  /// Runs what was not run yet; `*logits` are those of the last token, until the next run.
  Error run(Span<float>* logits);

  std::unique_ptr<Module> module_;
  std::unique_ptr<Tokenizer> tokenizer_;
  float temperature_;
  bool loaded_ = false;
  std::atomic<bool> stopped_{false};
  int64_t max_context_ = 0;
  int64_t max_prefill_ = 1;
  std::unordered_set<uint64_t> ends_;
  std::vector<uint64_t> tokens_;
  size_t num_run_ = 0;  // of these, those that the caches have
  long load_start_ = 0, load_end_ = 0;
};

/// ExecuTorch's way to one; opens nothing yet.
std::unique_ptr<TextLLMRunner> create_text_llm_runner(
    const std::string& model_path, std::unique_ptr<Tokenizer> tokenizer = nullptr,
    std::optional<const std::string> data_path = std::nullopt, float temperature = -1);

}  // namespace torchette::extension::llm
