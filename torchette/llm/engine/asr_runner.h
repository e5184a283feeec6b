// SPDX-License-Identifier: BSD-3-Clause
// AsrRunner: from sound to text, with ExecuTorch's names, on a model of Whisper's or Moonshine's kind.
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
  std::unordered_set<int64_t> eos_token_ids;  // that end it beside those of the model's file
  float temperature = 0;
  std::vector<uint64_t> prompt;  // tokens that the answer begins with; none: the model's own
};

class AsrRunner {
 public:
  /// Opens nothing yet. An empty `tokenizer_path` is the file's own tokenizer.
  explicit AsrRunner(const std::string& module_path,
                     std::optional<const std::string> data_path = std::nullopt,
                     const std::string& tokenizer_path = "");

  bool is_loaded() const { return runner_ != nullptr && runner_->is_loaded(); }
  /// Errors: InvalidExternalData (no tokenizer), those of TextLLMRunner::load().
  Error load();
  /// `features` [1, bins, frames] or samples [n] of float32, as the encoder takes them. Returns what was said
  /// as tokens, that which ends it too; `token_callback` gets the text. Errors: those of load() and
  /// TextLLMRunner::begin().
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
