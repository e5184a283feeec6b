// SPDX-License-Identifier: BSD-3-Clause
// Work that nothing but the processor limits, with the instructions of a level of the kernels.
#pragma once

#include <cstddef>

namespace torchette::pybindings {

struct Probe {
  /// Float32 multiply-adds; returns how many. Their result goes to `sink`, so that they are made.
  size_t (*multiply_adds)(size_t rounds, float* sink);
  /// Reads `size` floats, a multiple of kStep, `rounds` times.
  void (*read)(const float* data, size_t size, size_t rounds, float* sink);
};

/// Floats that Probe::read takes at once.
constexpr size_t kStep = 128;

}  // namespace torchette::pybindings
