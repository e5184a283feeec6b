// SPDX-License-Identifier: BSD-3-Clause
// Work with a speed that only the CPU limits, in the instructions of one level of the kernels.
#pragma once

#include <cstddef>

namespace torchette::pybindings {

struct Probe {
  /// Computes float32 multiply-adds and returns their number. Stores the result in `sink`, so that the
  /// compiler keeps them.
  size_t (*multiply_adds)(size_t rounds, float* sink);
  /// Reads `size` floats, a multiple of kStep, `rounds` times.
  void (*read)(const float* data, size_t size, size_t rounds, float* sink);
};

/// The number of floats per step of Probe::read.
constexpr size_t kStep = 128;

}  // namespace torchette::pybindings
