// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/callback_decoder.h"

#include <algorithm>
#include <utility>

#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

class CallbackDecoder final : public Decoder {
 public:
  explicit CallbackDecoder(DecoderCallbacks callbacks)
      : Decoder(nullptr, "step", callbacks.max_context), callbacks_(std::move(callbacks)) {
    vocab_size_ = callbacks_.vocab_size;
    max_tokens_ = std::min(callbacks_.max_tokens, max_context_);
  }

  Result<Logits> step(const std::vector<uint64_t>& tokens, size_t begin, size_t end) override {
    Result<Logits> logits = callbacks_.step(tokens, begin, end);
    // The host cannot undo a cancel() that came too late: it ends the next step, which then runs again.
    const bool is_late = std::exchange(is_late_, is_late_ && logits.ok());
    return logits.ok() || !is_late ? std::move(logits) : callbacks_.step(tokens, begin, end);
  }
  Result<std::vector<Part>> state() override { return callbacks_.state(); }
  Error restored() override { return callbacks_.restored(); }
  Result<std::unique_ptr<Decoder>> on(std::shared_ptr<Module>) const override { return callbacks_.copy(); }
  bool has_media() const override { return callbacks_.has_media; }
  Result<bool> is_recurrent() override { return callbacks_.is_recurrent; }
  void cancel() override { callbacks_.cancel(); }
  void undo_cancel() override { is_late_ = true; }
  Result<size_t> memory() override { return callbacks_.memory; }

 private:
  DecoderCallbacks callbacks_;
  bool is_late_ = false;
};

}  // namespace

Result<std::unique_ptr<Decoder>> make_callback_decoder(DecoderCallbacks callbacks) {
  TORCHETTE_CHECK(
      callbacks.vocab_size > 0 && callbacks.max_context > 0 && callbacks.max_tokens > 0, InvalidArgument,
      "a decoder with vocab_size %zu, max_context %zu and max_tokens %zu; each must be at least 1",
      callbacks.vocab_size, callbacks.max_context, callbacks.max_tokens);
  return std::unique_ptr<Decoder>(new CallbackDecoder(std::move(callbacks)));
}

}  // namespace torchette::extension::llm
