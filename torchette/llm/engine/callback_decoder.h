// SPDX-License-Identifier: BSD-3-Clause
// CallbackDecoder: a decoder that the host language implements.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "torchette/llm/engine/decoder.h"

namespace torchette::extension::llm {

struct DecoderCallbacks {
  size_t vocab_size = 0;
  size_t max_context = 0;     // positions of the KV cache
  size_t max_tokens = 1;      // maximum number of tokens of a step
  size_t memory = 0;          // bytes, without weights
  bool has_media = false;     // whether tokens beyond the vocabulary represent images or audio
  bool is_recurrent = false;  // whether state() has recurrent parts
  /// See Decoder::step().
  std::function<Result<Decoder::Logits>(const std::vector<uint64_t>& tokens, size_t begin, size_t end)> step;
  /// See Decoder::state() and Decoder::restored().
  std::function<Result<std::vector<Decoder::Part>>()> state;
  std::function<Error()> restored;
  /// Returns a decoder with a separate state, which is not initialized.
  std::function<Result<std::unique_ptr<Decoder>>()> copy;
  /// Ends the current step, or the next one, with an error. Called from any thread.
  std::function<void()> cancel;
};

/// Error: InvalidArgument (a size is 0).
Result<std::unique_ptr<Decoder>> make_callback_decoder(DecoderCallbacks callbacks);

}  // namespace torchette::extension::llm
