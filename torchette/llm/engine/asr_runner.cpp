// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/asr_runner.h"

#include <algorithm>

#include "torchette/runtime/kernel.h"

namespace torchette::extension::asr {

AsrRunner::AsrRunner(const std::string& module_path, std::optional<const std::string> data_path,
                     const std::string& tokenizer_path)
    : module_path_(module_path), tokenizer_path_(tokenizer_path), data_path_(std::move(data_path)) {}

Error AsrRunner::load() {
  if (!runner_) {
    std::unique_ptr<llm::Tokenizer> tokenizer;
    if (!tokenizer_path_.empty()) {
      tokenizer = llm::load_tokenizer(tokenizer_path_);
      TORCHETTE_CHECK(tokenizer != nullptr, InvalidExternalData, "%s is not a tokenizer",
                      tokenizer_path_.c_str());
    }
    runner_ = llm::create_text_llm_runner(module_path_, std::move(tokenizer), data_path_);
  }
  return runner_->load();
}

Result<std::vector<int64_t>> AsrRunner::transcribe(
    const TensorPtr& features, const AsrTranscribeConfig& config,
    const std::function<void(const std::string&)>& token_callback) {
  TORCHETTE_CHECK(features != nullptr && features->scalar_type() == ScalarType::Float &&
                      features->dim() >= 1 && features->dim() <= 3 && features->numel() > 0,
                  InvalidArgument, "features must be a float32 tensor with 1 to 3 dimensions");
  const auto* data = features->const_data_ptr<float>();
  const auto count = static_cast<size_t>(features->numel());
  if (features->size(features->dim() - 1) == features->numel())
    return transcribe(llm::RawAudio::of(data, count), config, token_callback);
  const ptrdiff_t dim = features->dim();
  return transcribe(llm::Audio(std::vector<float>(data, data + count),
                               dim == 3 ? static_cast<int32_t>(features->size(0)) : 1,
                               static_cast<int32_t>(features->size(dim - 2)),
                               static_cast<int32_t>(features->size(dim - 1))),
                    config, token_callback);
}

Result<std::vector<int64_t>> AsrRunner::transcribe(
    const llm::MultimodalInput& sound, const AsrTranscribeConfig& config,
    const std::function<void(const std::string&)>& token_callback) {
  TORCHETTE_TRY(load());
  llm::GenerationConfig given;
  given.temperature = config.temperature;
  given.max_new_tokens = static_cast<int32_t>(std::clamp<int64_t>(config.max_new_tokens, 0, INT32_MAX));
  TORCHETTE_TRY(runner_->begin({sound, llm::MultimodalInput(config.prompt)}, given));
  std::vector<int64_t> tokens;
  for (bool is_last = false; !is_last;) {
    const Result<llm::AnswerPiece> piece = runner_->next();
    if (!piece.ok()) return piece.error();
    is_last = piece->is_last;
    if (piece->token) tokens.push_back(static_cast<int64_t>(*piece->token));
    if (piece->token && config.eos_token_ids.count(tokens.back()) != 0) break;
    if (token_callback && !piece->text.empty()) token_callback(piece->text);
  }
  return tokens;
}

}  // namespace torchette::extension::asr
