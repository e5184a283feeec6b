// SPDX-License-Identifier: BSD-3-Clause
// MultimodalInput: one part of a prompt: text, tokens, an image or audio. The names are those of ExecuTorch.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "torchette/llm/media/audio.h"
#include "torchette/llm/media/image.h"

namespace torchette::extension::llm {

class MultimodalInput {
 public:
  using Tokens = std::vector<uint64_t>;

  MultimodalInput(std::string text) : data_(std::move(text)) {}
  MultimodalInput(Tokens tokens) : data_(std::move(tokens)) {}
  MultimodalInput(Image image) : data_(std::move(image)) {}
  MultimodalInput(Audio audio) : data_(std::move(audio)) {}
  MultimodalInput(RawAudio raw_audio) : data_(std::move(raw_audio)) {}

  bool is_text() const { return is<std::string>(); }
  bool is_tokens() const { return is<Tokens>(); }
  bool is_image() const { return is<Image>(); }
  bool is_audio() const { return is<Audio>(); }
  bool is_raw_audio() const { return is<RawAudio>(); }
  /// The input must have the requested type.
  const std::string& get_text() const { return *std::get_if<std::string>(&data_); }
  const Tokens& get_tokens() const { return *std::get_if<Tokens>(&data_); }
  const Image& get_image() const { return *std::get_if<Image>(&data_); }
  const Audio& get_audio() const { return *std::get_if<Audio>(&data_); }
  const RawAudio& get_raw_audio() const { return *std::get_if<RawAudio>(&data_); }

 private:
  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }
  std::variant<std::string, Tokens, Image, Audio, RawAudio> data_;
};

inline MultimodalInput make_text_input(std::string text) { return MultimodalInput(std::move(text)); }
inline MultimodalInput make_token_input(std::vector<uint64_t> tokens) {
  return MultimodalInput(std::move(tokens));
}
inline MultimodalInput make_image_input(Image image) { return MultimodalInput(std::move(image)); }
inline MultimodalInput make_audio_input(Audio audio) { return MultimodalInput(std::move(audio)); }
inline MultimodalInput make_raw_audio_input(RawAudio raw_audio) {
  return MultimodalInput(std::move(raw_audio));
}

}  // namespace torchette::extension::llm
