// SPDX-License-Identifier: BSD-3-Clause
// Gathers the windows of a convolution as rows of a matrix.
#pragma once

#include "torchette/kernels/engine/image.h"
#include "torchette/kernels/simd.h"

namespace torchette {
namespace TORCHETTE_ISA {

// The last vector overlaps the previous one, which costs less than a partial vector.
TORCHETTE_INLINE void copy_run(float* to, const float* from, size_t count) {
  if (count < kLanes) {
    if (count > 0) store_partial(to, load_partial(from, count), count);
    return;
  }
  for (size_t i = 0; i < count - kLanes; i += kLanes) store(to + i, load(from + i));
  store(to + count - kLanes, load(from + count - kLanes));
}
/// Copies short runs in pieces, of which the last two overlap, without a function call.
TORCHETTE_INLINE void copy_run(uint8_t* to, const uint8_t* from, size_t count) {
  struct Piece {
    uint8_t of[16];
  };
  if (count >= 64) {
    memcpy(to, from, count);
  } else if (count >= sizeof(Piece)) {
    for (size_t i = 0; i + sizeof(Piece) < count; i += sizeof(Piece)) memcpy(to + i, from + i, sizeof(Piece));
    memcpy(to + count - sizeof(Piece), from + count - sizeof(Piece), sizeof(Piece));
  } else if (count >= 8) {
    uint64_t first, last;
    memcpy(&first, from, 8);
    memcpy(&last, from + count - 8, 8);
    memcpy(to, &first, 8);
    memcpy(to + count - 8, &last, 8);
  } else if (count >= 4) {
    uint32_t first, last;
    memcpy(&first, from, 4);
    memcpy(&last, from + count - 4, 4);
    memcpy(to, &first, 4);
    memcpy(to + count - 4, &last, 4);
  } else {
    for (size_t i = 0; i < count; ++i) to[i] = from[i];
  }
}
TORCHETTE_INLINE void fill_run(float* to, float value, size_t count) {
  if (count < kLanes) {
    if (count > 0) store_partial(to, broadcast(value), count);
    return;
  }
  for (size_t i = 0; i < count - kLanes; i += kLanes) store(to + i, broadcast(value));
  store(to + count - kLanes, broadcast(value));
}
TORCHETTE_INLINE void fill_run(uint8_t* to, uint8_t value, size_t count) { memset(to, value, count); }

/// Gathers the windows of pixels [first, first + count) of the result as rows [kernel, channels of a group].
/// Elements outside of the image are `outside`; `skipped` elements separate the rows.
template <typename T>
void gather_windows(const Window& w, const T* image, size_t group, size_t channels, size_t first,
                    size_t count, T outside, T* to, size_t skipped = 0) {
  const ptrdiff_t c = static_cast<ptrdiff_t>(channels), all = static_cast<ptrdiff_t>(w.channels);
  const auto position = static_cast<ptrdiff_t>(first);
  ptrdiff_t out_z = position / (w.out[1] * w.out[2]), out_y = position / w.out[2] % w.out[1],
            out_x = position % w.out[2];
  // Whether adjacent pixels of an image row are contiguous in memory.
  const bool joined = w.dilation[2] == 1 && channels == w.channels;
  for (size_t i = 0; i < count; ++i, to += skipped) {
    const ptrdiff_t z0 = out_z * w.stride[0] - w.padding[0], y0 = out_y * w.stride[1] - w.padding[1];
    const ptrdiff_t x0 = out_x * w.stride[2] - w.padding[2];
    if (++out_x == w.out[2]) {
      out_x = 0;
      if (++out_y == w.out[1]) out_y = 0, ++out_z;
    }
    for (ptrdiff_t kz = 0; kz < w.kernel[0]; ++kz) {
      const ptrdiff_t z = z0 + kz * w.dilation[0];
      for (ptrdiff_t ky = 0; ky < w.kernel[1]; ++ky, to += w.kernel[2] * c) {
        const ptrdiff_t y = y0 + ky * w.dilation[1];
        if (z < 0 || z >= w.in[0] || y < 0 || y >= w.in[1]) {
          fill_run(to, outside, static_cast<size_t>(w.kernel[2] * c));
          continue;
        }
        const T* row = image + ((z * w.in[1] + y) * w.in[2]) * all + static_cast<ptrdiff_t>(group) * c;
        if (joined && x0 >= 0 && x0 + w.kernel[2] <= w.in[2]) {
          copy_run(to, row + x0 * all, static_cast<size_t>(w.kernel[2] * c));
          continue;
        }
        for (ptrdiff_t kx = 0; kx < w.kernel[2]; ++kx) {
          const ptrdiff_t x = x0 + kx * w.dilation[2];
          if (x < 0 || x >= w.in[2])
            fill_run(to + kx * c, outside, channels);
          else
            copy_run(to + kx * c, row + x * all, channels);
        }
      }
    }
  }
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
