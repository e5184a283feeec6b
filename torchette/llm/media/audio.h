// SPDX-License-Identifier: BSD-3-Clause
// Audio: features of audio. RawAudio: samples. The names are those of ExecuTorch.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace torchette::extension::llm {

/// Features [batch, bins, frames] in the form that the encoder requires.
class Audio {
 public:
  Audio() = default;
  Audio(std::vector<float>&& data, int32_t batch_size, int32_t n_bins, int32_t n_frames)
      : data_(std::move(data)), batch_size_(batch_size), n_bins_(n_bins), n_frames_(n_frames) {}

  const std::vector<float>& get_float_data() const { return data_; }
  int32_t get_batch_size() const { return batch_size_; }
  int32_t get_n_bins() const { return n_bins_; }
  int32_t get_n_frames() const { return n_frames_; }

 private:
  std::vector<float> data_;
  int32_t batch_size_ = 0, n_bins_ = 0, n_frames_ = 0;
};

/// Samples from -1 to 1 at the model's rate (16 kHz), float32, as bytes.
struct RawAudio {
  std::vector<uint8_t> data;
  int32_t batch_size = 1, n_channels = 1, n_samples = 0;

  static RawAudio of(const float* samples, size_t count) {
    RawAudio made;
    made.data.resize(count * sizeof(float));
    if (count > 0) std::memcpy(made.data.data(), samples, made.data.size());
    made.n_samples = static_cast<int32_t>(count);
    return made;
  }
};

}  // namespace torchette::extension::llm
