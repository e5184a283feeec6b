// SPDX-License-Identifier: BSD-3-Clause
// AsrRunner: transcribes audio with a model such as Whisper or Moonshine. The names are those of ExecuTorch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "torchette/llm/engine/text_llm_runner.h"

namespace torchette::extension::asr {

struct AsrTranscribeConfig {
  int64_t max_new_tokens = 128;
  std::unordered_set<int64_t> eos_token_ids;  // end tokens, in addition to those of the model's file
  float temperature = 0;
  std::vector<uint64_t> prompt;  // first tokens of the answer; empty: those of the model
};

class AsrRunner {
 public:
  /// load() opens the files. An empty `tokenizer_path` selects the tokenizer of the model's file.
  explicit AsrRunner(const std::string& module_path,
                     std::optional<const std::string> data_path = std::nullopt,
                     const std::string& tokenizer_path = "");

  bool is_loaded() const { return runner_ != nullptr && runner_->is_loaded(); }
  /// Errors: InvalidExternalData (no tokenizer), those of TextLLMRunner::load().
  Error load();
  /// Transcribes features [1, bins, frames] or samples [n], float32, in the form that the encoder requires.
  /// Returns the tokens of the text, including the end token; `token_callback` receives the text in pieces.
  /// Errors: those of load() and TextLLMRunner::begin().
  Result<std::vector<int64_t>> transcribe(const TensorPtr& features, const AsrTranscribeConfig& config = {},
                                          const std::function<void(const std::string&)>& token_callback = {});
  Result<std::vector<int64_t>> transcribe(const llm::MultimodalInput& sound,
                                          const AsrTranscribeConfig& config = {},
                                          const std::function<void(const std::string&)>& token_callback = {});

 private:
  std::string module_path_, tokenizer_path_;
  std::optional<const std::string> data_path_;
  std::unique_ptr<llm::TextLLMRunner> runner_;
};

}  // namespace torchette::extension::asr
