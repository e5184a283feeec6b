// SPDX-License-Identifier: BSD-3-Clause
// Computes the inputs of encoders from audio samples and from images of bytes.
#pragma once

#include <cstddef>
#include <vector>

#include "torchette/llm/media/image.h"

namespace torchette::extension::llm {

constexpr int kSampleRate = 16000;
constexpr int kSamplesPerFrame = 160;

/// Returns the log-mel spectrogram of Whisper, [bands, frames]. The samples have 16 kHz and are cut or padded
/// with zeros to `frames` frames of 10 ms.
std::vector<float> log_mel(const float* samples, size_t count, size_t bands, size_t frames);
/// Resizes an image of bytes and normalizes it by `mean` and `std` of each channel. Returns [3, height,
/// width].
std::vector<float> pixels(const Image& image, size_t height, size_t width, const std::vector<double>& mean,
                          const std::vector<double>& std);

}  // namespace torchette::extension::llm
