// SPDX-License-Identifier: BSD-3-Clause
// The fused epilogue of the engine's operators: an activation, identified by its name in the file.
#pragma once

#include <cmath>

#include "torchette/kernels/simd.h"
#include "torchette/kernels/vecmath.h"
#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

enum class Activation : uint8_t {
#define TORCHETTE_ACTIVATION(name, value) name,
#include "torchette/schema/engine.def"
};

/// Looks up an activation by its name in a file. Errors: InvalidArgument.
inline Error activation_of(Span<const char> name, Activation& activation) {
#define TORCHETTE_ACTIVATION(known, value)                                                  \
  if (name.size() == sizeof(#known) - 1 && memcmp(name.data(), #known, name.size()) == 0) { \
    activation = Activation::known;                                                         \
    return Error::Ok;                                                                       \
  }
#include "torchette/schema/engine.def"
  TORCHETTE_CHECK(false, InvalidArgument, "unknown activation %.*s", static_cast<int>(name.size()),
                  name.data());
}

/// Calls `body` once with the vector function of the activation, so that the dispatch is outside of its
/// loops.
template <typename Body>
TORCHETTE_INLINE void with_activation(Activation activation, const Body& body) {
  switch (activation) {
#define TORCHETTE_ACTIVATION(name, value)                \
  case Activation::name:                                 \
    body([](Vec x) TORCHETTE_INLINED { return value; }); \
    return;
#include "torchette/schema/engine.def"
  }
}

/// Splits an activation into a clamp, which is free while a result is in registers, and the remaining
/// activation.
inline Activation split_activation(Activation activation, float& low, float& high) {
  low = -INFINITY;
  high = INFINITY;
  if (activation != Activation::relu && activation != Activation::relu6) return activation;
  low = 0.0f;
  if (activation == Activation::relu6) high = 6.0f;
  return Activation::none;
}

/// Clamps to [low, high]. NaN propagates.
template <typename V>
TORCHETTE_INLINE V clamp(V x, V low, V high) {
  x = TORCHETTE_SELECT(low > x, low, x);
  return TORCHETTE_SELECT(high < x, high, x);
}

/// Applies an activation to rows of floats, which should be in the cache.
void activate(Activation activation, float* rows, ptrdiff_t row, size_t count, size_t columns);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
