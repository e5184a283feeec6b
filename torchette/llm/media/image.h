// SPDX-License-Identifier: BSD-3-Clause
// Image: planes of bytes, or of floats in the form that the encoder requires. The names are those of
// ExecuTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

namespace torchette::extension::llm {

class Image {
 public:
  Image() = default;
  /// `data` has the shape [channels, height, width]. Bytes are red, green and blue in any size; they are
  /// resized and normalized for the model. Floats are the input of the encoder and are not changed.
  Image(std::vector<uint8_t>&& data, int32_t width, int32_t height, int32_t channels)
      : data_(std::move(data)), width_(width), height_(height), channels_(channels) {}
  Image(std::vector<float>&& data, int32_t width, int32_t height, int32_t channels)
      : data_(std::move(data)), width_(width), height_(height), channels_(channels) {}

  int32_t width() const { return width_; }
  int32_t height() const { return height_; }
  int32_t channels() const { return channels_; }
  bool is_uint8() const { return std::holds_alternative<std::vector<uint8_t>>(data_); }
  bool is_float() const { return !is_uint8(); }
  /// The image must have the requested type.
  const std::vector<uint8_t>& get_uint8_data() const { return *std::get_if<std::vector<uint8_t>>(&data_); }
  const std::vector<float>& get_float_data() const { return *std::get_if<std::vector<float>>(&data_); }
  /// Whether the number of elements is the product of the sizes.
  bool has_valid_size() const {
    const size_t count = is_uint8() ? get_uint8_data().size() : get_float_data().size();
    return width_ > 0 && height_ > 0 && channels_ > 0 && channels_ <= 4 &&
           count / static_cast<size_t>(width_) / static_cast<size_t>(height_) ==
               static_cast<size_t>(channels_) &&
           count % (static_cast<size_t>(width_) * static_cast<size_t>(height_)) == 0;
  }

 private:
  std::variant<std::vector<uint8_t>, std::vector<float>> data_;
  int32_t width_ = 0, height_ = 0, channels_ = 0;
};

}  // namespace torchette::extension::llm
