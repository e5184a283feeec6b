// SPDX-License-Identifier: BSD-3-Clause
// Resampling tables: the input elements and weights of each output element, per dimension.
#pragma once

#include <cmath>

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

enum class Filter : uint8_t { Nearest, NearestExact, Linear, Cubic, LinearAntialiased, CubicAntialiased };

/// Keys's cubic convolution kernel at distance `x`.
template <typename T>
inline T cubic(T x, T a) {
  x = std::fabs(x);
  if (x >= 2) return 0;
  return x >= 1 ? (((x - 5) * x + 8) * x - 4) * a : ((a + 2) * x - (a + 3)) * x * x + 1;  // NaN propagates
}

/// For each of `out` elements along a dimension: the indices of its `taps` input elements and their weights.
template <typename T>
struct Taps {
  size_t taps;
  int32_t* index;
  T* weight;

  Error make(Context& context, Filter filter, bool align_corners, ptrdiff_t in, ptrdiff_t out, double scale) {
    // Distance between the source positions of adjacent output elements.
    const bool nearest = filter == Filter::Nearest || filter == Filter::NearestExact;
    const float narrow_step =
        scale > 0 ? static_cast<float>(1.0 / scale) : static_cast<float>(in) / static_cast<float>(out);
    T step = scale > 0 ? static_cast<T>(1.0 / scale) : static_cast<T>(in) / static_cast<T>(out);
    if (align_corners && !nearest) step = out > 1 ? static_cast<T>(in - 1) / static_cast<T>(out - 1) : T(0);
    TORCHETTE_CHECK(narrow_step < 0x1p31f, InvalidArgument, "output_size: cannot resize an image by scale %g",
                    scale);
    const bool spreads = filter == Filter::LinearAntialiased || filter == Filter::CubicAntialiased;
    const T half = filter == Filter::CubicAntialiased ? T(2) : T(1);
    const T support = step >= 1 ? half * step : half;
    TORCHETTE_CHECK(!spreads || support < static_cast<T>(1 << 20), InvalidArgument,
                    "output_size: an antialiased image cannot be reduced by this factor");
    taps = nearest                    ? 1
           : filter == Filter::Linear ? 2
           : filter == Filter::Cubic  ? 4
                                      : 2 * static_cast<size_t>(std::ceil(support)) + 1;
    const size_t count = static_cast<size_t>(out) * taps;
    index = static_cast<int32_t*>(context.allocate_temp(count * sizeof(int32_t)));
    weight = static_cast<T*>(context.allocate_temp(count * sizeof(T)));
    TORCHETTE_CHECK(index != nullptr && weight != nullptr, MemoryAllocationFailed,
                    "no scratch memory to resize an image");
    // A NaN position selects element 0.
    const auto inside = [in](double i) {
      const auto last = static_cast<double>(in - 1);
      return static_cast<int32_t>(i > 0 ? (i < last ? i : last) : 0);
    };
    for (ptrdiff_t o = 0; o < out; ++o) {
      int32_t* i = index + static_cast<size_t>(o) * taps;
      T* w = weight + static_cast<size_t>(o) * taps;
      if (nearest) {
        const auto position = static_cast<float>(o);
        w[0] = 1;
        i[0] = filter == Filter::NearestExact ? inside(std::floor((position + 0.5f) * narrow_step))
               : in == out                    ? static_cast<int32_t>(o)
               : out == 2 * in                ? static_cast<int32_t>(o / 2)
                                              : inside(std::floor(position * narrow_step));
        continue;
      }
      if (spreads) {
        const T center = step * (static_cast<T>(o) + T(0.5)), inverse = step >= 1 ? 1 / step : T(1);
        const T low = center - support + T(0.5), high = center + support + T(0.5);
        const auto first = static_cast<ptrdiff_t>(low > 0 ? low : 0);
        const ptrdiff_t end = high < static_cast<T>(in) ? static_cast<ptrdiff_t>(high) : in;
        T total = 0;
        for (size_t k = 0; k < taps; ++k) {
          const ptrdiff_t at = first + static_cast<ptrdiff_t>(k);
          const T x = (static_cast<T>(at) - center + T(0.5)) * inverse;
          const T f = filter == Filter::CubicAntialiased ? cubic(x, T(-0.5)) : 1 - std::fabs(x);
          i[k] = inside(static_cast<double>(at));
          w[k] = at < end && (f > 0 || filter == Filter::CubicAntialiased) ? f : T(0);
          total += w[k];
        }
        for (size_t k = 0; k < taps; ++k) w[k] /= total;
        continue;
      }
      T position = align_corners ? step * static_cast<T>(o) : step * (static_cast<T>(o) + T(0.5)) - T(0.5);
      if (filter == Filter::Linear && position < 0) position = 0;
      const T base = std::floor(position), part = position - base;
      if (filter == Filter::Linear) {
        i[0] = inside(static_cast<double>(base));
        i[1] = inside(static_cast<double>(base) + 1);
        w[1] = part < 1 ? part : T(1);
        w[0] = 1 - w[1];
        continue;
      }
      for (int k = 0; k < 4; ++k) {
        i[k] = inside(static_cast<double>(base) - 1 + k);
        w[k] = cubic(static_cast<T>(k - 1) - part, T(-0.75));
      }
    }
    return Error::Ok;
  }
};

}  // namespace TORCHETTE_ISA
}  // namespace torchette
