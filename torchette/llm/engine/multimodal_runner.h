// SPDX-License-Identifier: BSD-3-Clause
// MultimodalRunner: ExecuTorch's name for a runner that accepts images, audio and text. It calls a
// TextLLMRunner; text_runner() returns it, for steps, forks, states and grammars.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torchette/llm/engine/text_llm_runner.h"

namespace torchette::extension::llm {

class MultimodalRunner final : public IRunner {
 public:
  explicit MultimodalRunner(std::unique_ptr<TextLLMRunner> text_runner) : runner_(std::move(text_runner)) {}

  bool is_loaded() const override { return runner_->is_loaded(); }
  Error load() override { return runner_->load(); }
  Error generate(const std::string& prompt, const GenerationConfig& config, TokenCallback token_callback = {},
                 StatsCallback stats_callback = {}) override {
    return runner_->generate(prompt, config, std::move(token_callback), std::move(stats_callback));
  }
  Error generate(const std::vector<MultimodalInput>& inputs, const GenerationConfig& config,
                 TokenCallback token_callback = {}, StatsCallback stats_callback = {}) {
    return runner_->generate(inputs, config, std::move(token_callback), std::move(stats_callback));
  }
  Error prefill(const std::vector<MultimodalInput>& inputs, int32_t num_bos = 0, int32_t num_eos = 0) {
    return runner_->prefill(inputs, num_bos, num_eos);
  }
  void stop() override { runner_->stop(); }
  void reset() override { runner_->reset(); }
  TextLLMRunner& text_runner() { return *runner_; }

 private:
  std::unique_ptr<TextLLMRunner> runner_;
};

inline std::unique_ptr<MultimodalRunner> create_multimodal_runner(
    const std::string& model_path, std::unique_ptr<Tokenizer> tokenizer = nullptr,
    std::optional<const std::string> data_path = std::nullopt) {
  return std::make_unique<MultimodalRunner>(
      create_text_llm_runner(model_path, std::move(tokenizer), std::move(data_path)));
}

}  // namespace torchette::extension::llm
