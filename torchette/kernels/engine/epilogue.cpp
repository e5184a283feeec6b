// SPDX-License-Identifier: BSD-3-Clause
// Applies activations other than clamps to rows that have just been written.
#include "torchette/kernels/engine/epilogue.h"

namespace torchette {
namespace TORCHETTE_ISA {

void activate(Activation activation, float* rows, ptrdiff_t row, size_t count, size_t columns) {
  if (activation == Activation::none) return;
  with_activation(activation, [&](auto function) TORCHETTE_INLINED {
    for (size_t i = 0; i < count; ++i) {
      float* const p = rows + static_cast<ptrdiff_t>(i) * row;
      size_t j = 0;
      for (; j + kLanes <= columns; j += kLanes) store(p + j, function(load(p + j)));
      if (j < columns) store_partial(p + j, function(load_partial(p + j, columns - j)), columns - j);
    }
  });
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
