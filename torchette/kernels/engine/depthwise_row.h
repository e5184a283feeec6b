// SPDX-License-Identifier: BSD-3-Clause
// A row of a depthwise convolution of 8-bit images: its description, and its computation with RVV.
#pragma once

#include "torchette/kernels/engine/image.h"
#include "torchette/kernels/engine/integer_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Whether accumulators are integers: ARM, RISC-V and WebAssembly have 8-bit vector multiplication, and a
// target without vectors gains nothing from floats.
#if !TORCHETTE_HAS_VECTORS || TORCHETTE_HAS_HELIUM || TORCHETTE_HAS_RVV || defined(__ARM_NEON) || \
    defined(__wasm_simd128__)
#define TORCHETTE_INTEGER_SUMS 1
#else
#define TORCHETTE_INTEGER_SUMS 0
#endif
#if !TORCHETTE_INTEGER_SUMS
typedef float TapWeight;
#elif TORCHETTE_HAS_VECTORS && !TORCHETTE_HAS_RVV
typedef int8_t TapWeight;
#else
typedef int16_t TapWeight;
#endif

struct DepthwiseRow {
  const Window* window;
  const uint8_t* image;
  const TapWeight* filter;  // [taps][kPanelWidth] of this panel
  const Requantization* how;
  uint8_t* out;
  ptrdiff_t z, y;
  int8_t flip;
  size_t channel, channels;  // of this panel
  const uint8_t* outside;    // a panel of zero points

  /// Returns pixel x of a line of the image.
  TORCHETTE_INLINE const uint8_t* pixel(const uint8_t* line, ptrdiff_t x) const {
    return x >= 0 && x < window->in[2] ? line + x * static_cast<ptrdiff_t>(window->channels) : outside;
  }
  /// Returns the line of the image under tap (kz, ky), or null outside of the image.
  TORCHETTE_INLINE const uint8_t* line(ptrdiff_t kz, ptrdiff_t ky) const {
    const Window& w = *window;
    const ptrdiff_t in_z = z + kz * w.dilation[0], in_y = y + ky * w.dilation[1];
    if (in_z < 0 || in_z >= w.in[0] || in_y < 0 || in_y >= w.in[1]) return nullptr;
    return image + (in_z * w.in[1] + in_y) * w.in[2] * static_cast<ptrdiff_t>(w.channels) +
           static_cast<ptrdiff_t>(channel);
  }
};

/// Calls tap(line, filter) for each row of taps of a window, with the filter of the row's first tap. `line`
/// is null outside of the image, where all pixels are zero points.
template <typename Tap>
TORCHETTE_INLINE void for_lines(const DepthwiseRow& row, const Tap& tap) {
  const Window& w = *row.window;
  const TapWeight* filter = row.filter;
  for (ptrdiff_t kz = 0; kz < w.kernel[0]; ++kz)
    for (ptrdiff_t ky = 0; ky < w.kernel[1];
         ++ky, filter += w.kernel[2] * static_cast<ptrdiff_t>(kPanelWidth))
      tap(row.line(kz, ky), filter);
}

#if TORCHETTE_HAS_RVV
/// Computes kCount adjacent pixels, 1 or 4. Their taps [from, to) of each line lie inside of the line. Other
/// taps read zero points, which contribute nothing. `first`: the first tap of the first pixel.
template <int kCount>
void depthwise_pixels(const DepthwiseRow& row, Span<const uint8_t* const> lines, int8_t zero, ptrdiff_t first,
                      ptrdiff_t from, ptrdiff_t to, uint8_t* out) {
  const Window& w = *row.window;
  const size_t lanes = row.channels;
  const ptrdiff_t channels = static_cast<ptrdiff_t>(w.channels), next = w.stride[2] * channels;
  const ptrdiff_t begin = (first + from * w.dilation[2]) * channels, step = w.dilation[2] * channels;
  const int8_t flip = row.flip;
  const TapWeight* filter = row.filter + static_cast<size_t>(from) * kPanelWidth;
  vint32m4_t a = __riscv_vmv_v_x_i32m4(0, lanes), b = a, c = a, d = a;
  for (const uint8_t* line : lines) {
    const TapWeight* weights = filter;
    filter += static_cast<size_t>(w.kernel[2]) * kPanelWidth;
    if (line == nullptr) continue;
    const auto* pixel = reinterpret_cast<const int8_t*>(line) + begin;
    for (ptrdiff_t left = to - from; left > 0; --left, pixel += step, weights += kPanelWidth) {
      const auto centred = [&](ptrdiff_t at) TORCHETTE_INLINED {
        const vint8m1_t x = __riscv_vxor_vx_i8m1(__riscv_vle8_v_i8m1(pixel + at, lanes), flip, lanes);
        return __riscv_vwsub_vx_i16m2(x, zero, lanes);
      };
      const vint16m2_t weight = __riscv_vle16_v_i16m2(weights, lanes), x = centred(0);
      if constexpr (kCount > 1) {
        const vint16m2_t y = centred(next), z = centred(2 * next), last = centred(3 * next);
        b = __riscv_vwmacc_vv_i32m4(b, y, weight, lanes);
        c = __riscv_vwmacc_vv_i32m4(c, z, weight, lanes);
        d = __riscv_vwmacc_vv_i32m4(d, last, weight, lanes);
      }
      a = __riscv_vwmacc_vv_i32m4(a, x, weight, lanes);
    }
  }
  int32_t sums[kCount][kPanelWidth];
  __riscv_vse32_v_i32m4(sums[0], a, lanes);
  if constexpr (kCount > 1) {
    __riscv_vse32_v_i32m4(sums[1], b, lanes);
    __riscv_vse32_v_i32m4(sums[2], c, lanes);
    __riscv_vse32_v_i32m4(sums[3], d, lanes);
  }
  for (int i = 0; i < kCount; ++i)
    requantize(row.how->from(row.channel), 0, sums[i], row.channels, out + i * channels);
}

template <bool>
void depthwise_row(const DepthwiseRow& row, float zero) {
  const Window& w = *row.window;
  const uint8_t* lines[kMaxDepthwiseTaps];
  size_t count = 0;
  for_lines(row, [&](const uint8_t* line, const TapWeight*) TORCHETTE_INLINED { lines[count++] = line; });
  const auto zero_point = static_cast<int8_t>(zero);
  const ptrdiff_t taps = w.kernel[2], last_tap = (taps - 1) * w.dilation[2];
  uint8_t* to = row.out;
  for (ptrdiff_t x = 0, at = -w.padding[2]; x < w.out[2];) {
    if (at >= 0 && x + 4 <= w.out[2] && at + 3 * w.stride[2] + last_tap < w.in[2]) {
      depthwise_pixels<4>(row, {lines, count}, zero_point, at, 0, taps, to);
      x += 4;
      at += 4 * w.stride[2];
      to += 4 * w.channels;
      continue;
    }
    ptrdiff_t first = 0, end = taps;
    while (first < taps && at + first * w.dilation[2] < 0) ++first;
    while (end > first && at + (end - 1) * w.dilation[2] >= w.in[2]) --end;
    depthwise_pixels<1>(row, {lines, count}, zero_point, at, first, end, to);
    ++x;
    at += w.stride[2];
    to += w.channels;
  }
}

/// Converts the weights of `count` channels.
void widen(const int8_t* bytes, size_t count, TapWeight* to) {
  for (size_t i = 0; i < count; ++i) to[i] = bytes[i];
}
#endif

}  // namespace
}  // namespace TORCHETTE_ISA
}  // namespace torchette
