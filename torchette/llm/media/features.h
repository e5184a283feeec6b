// SPDX-License-Identifier: BSD-3-Clause
// What encoders were trained on, of samples of sound and of bytes of an image.
#pragma once

#include <cstddef>
#include <vector>

#include "torchette/llm/media/image.h"

namespace torchette::extension::llm {

constexpr int kSampleRate = 16000;
constexpr int kSamplesPerFrame = 160;

/// Of samples at 16 kHz, cut or filled up to `frames` of 10 ms, the loudness of so many bands as Whisper
/// takes it: [bands, frames].
std::vector<float> log_mel(const float* samples, size_t count, size_t bands, size_t frames);
/// An image of bytes [3, height, width] in that size and range: [3, height, width].
std::vector<float> pixels(const Image& image, size_t height, size_t width, const std::vector<double>& mean,
                          const std::vector<double>& std);

}  // namespace torchette::extension::llm
