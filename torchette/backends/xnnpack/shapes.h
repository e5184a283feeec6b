// SPDX-License-Identifier: BSD-3-Clause
// The sizes of all values of a graph follow from those of its inputs. The library computes them too, but
// believes that they fit its nodes (its release builds check nothing): a kernel larger than its image, or
// channels that are not there, would be read beyond the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "torchette/runtime/error.h"

namespace torchette {
namespace xnnpack {

using Dims = std::vector<size_t>;

/// What a node does to sizes.
struct Step {
  enum class Kind {
    Same,         // of the input
    Broadcast,    // of both inputs
    Concatenate,  // axis
    Convolution,  // Window, channels of the input, of the output; no channels: those of the input
    Transposed,   // Window, adjustments, channels of the input, of the output
    Linear,       // whether the weights, the second input, are transposed; the third is added
    Product,      // whether the second is transposed
    Attention,    // query, key, value, scale, mask
    Transpose,    // the order of the dimensions
    Reshape,      // the new sizes; one may be 0: what is left
    Slice,        // offsets, then sizes, 0 for all
    Pad,          // before each dimension, then behind
    Resize,       // height, width
    Mean,         // how many dimensions behind the first become 1
  };
  /// The first numbers of those that have one: kernel, stride, dilation, padding before, padding behind; of
  /// height, then of width.
  static constexpr size_t kWindow = 10;

  Kind kind;
  std::vector<uint32_t> inputs;
  uint32_t output;
  std::vector<uint64_t> numbers;
};

/// Fills in the sizes of what the steps make, in their order. `sizes` has those of inputs and constants; of
/// each of the others `bounds`, which the file gives, has as many dimensions and at least as many elements.
/// Error: InvalidArgument (something does not fit).
Error find_sizes(const std::vector<Step>& steps, const std::vector<Dims>& bounds, std::vector<Dims>& sizes);

}  // namespace xnnpack
}  // namespace torchette
