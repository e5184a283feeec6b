// SPDX-License-Identifier: BSD-3-Clause
// The parameters of a convolution, read from the operator's arguments and validated.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// A convolution with three spatial dimensions; missing ones have size 1.
struct Conv {
  size_t batch, groups;
  size_t in_channels, out_channels;  // per group
  ptrdiff_t in[3], out[3], kernel[3];
  ptrdiff_t stride[3], padding[3], dilation[3];
  bool transposed;

  size_t in_plane() const { return static_cast<size_t>(in[0] * in[1] * in[2]); }
  size_t out_plane() const { return static_cast<size_t>(out[0] * out[1] * out[2]); }
  size_t taps() const { return static_cast<size_t>(kernel[0] * kernel[1] * kernel[2]); }
};

/// Reads and checks the arguments. Errors: InvalidArgument if sizes do not match or values are out of range.
Error describe_convolution(const Tensor& input, const Tensor& weight, const Optional<Tensor>& bias,
                           Span<const int64_t> stride, Span<const int64_t> padding,
                           Span<const int64_t> dilation, bool transposed, Span<const int64_t> output_padding,
                           int64_t groups, Conv& conv);

/// The two images that a convolution's weight connects: each element of `small` with the elements of `big`
/// under its window. `big` is the input of a convolution, or the output of a transposed convolution.
template <typename T>
struct Sides {
  const T *small, *big, *weight;
  T *small_grad, *big_grad, *weight_grad;  // null if not requested
};

template <typename T>
void connect(const Conv& conv, const Sides<T>& sides) {
  const bool is_transposed = conv.transposed;
  const ptrdiff_t* small = is_transposed ? conv.in : conv.out;
  const ptrdiff_t* big = is_transposed ? conv.out : conv.in;
  const size_t small_channels = is_transposed ? conv.in_channels : conv.out_channels;
  const size_t big_channels = is_transposed ? conv.out_channels : conv.in_channels;
  const size_t small_plane = is_transposed ? conv.in_plane() : conv.out_plane();
  const size_t big_plane = is_transposed ? conv.out_plane() : conv.in_plane();
  for (size_t b = 0; b < conv.batch; ++b)
    for (size_t g = 0; g < conv.groups; ++g)
      for (size_t sc = 0; sc < small_channels; ++sc) {
        const size_t small_channel = g * small_channels + sc;
        const size_t small_at = (b * conv.groups * small_channels + small_channel) * small_plane;
        for (size_t bc = 0; bc < big_channels; ++bc) {
          const size_t big_at = ((b * conv.groups + g) * big_channels + bc) * big_plane;
          size_t tap = (small_channel * big_channels + bc) * conv.taps();
          for (ptrdiff_t kz = 0; kz < conv.kernel[0]; ++kz)
            for (ptrdiff_t ky = 0; ky < conv.kernel[1]; ++ky)
              for (ptrdiff_t kx = 0; kx < conv.kernel[2]; ++kx, ++tap) {
                const T w = sides.weight[tap];
                T sum = 0;
                // The range of positions in the last dimension with this tap inside.
                const ptrdiff_t start = kx * conv.dilation[2] - conv.padding[2], step = conv.stride[2];
                const ptrdiff_t from = start >= 0 ? 0 : (-start + step - 1) / step;
                ptrdiff_t to = big[2] > start ? (big[2] - 1 - start) / step + 1 : 0;
                if (to > small[2]) to = small[2];
                for (ptrdiff_t z = 0; z < small[0]; ++z) {
                  const ptrdiff_t bz = z * conv.stride[0] - conv.padding[0] + kz * conv.dilation[0];
                  if (bz < 0 || bz >= big[0]) continue;
                  for (ptrdiff_t y = 0; y < small[1]; ++y) {
                    const ptrdiff_t by = y * conv.stride[1] - conv.padding[1] + ky * conv.dilation[1];
                    if (by < 0 || by >= big[1]) continue;
                    const size_t s = small_at + static_cast<size_t>((z * small[1] + y) * small[2]);
                    const ptrdiff_t a = static_cast<ptrdiff_t>(big_at) + (bz * big[1] + by) * big[2] + start;
                    if (sides.weight_grad != nullptr)
                      for (ptrdiff_t x = from; x < to; ++x)
                        sum += sides.small[s + static_cast<size_t>(x)] * sides.big[a + x * step];
                    if (sides.big_grad != nullptr)
                      for (ptrdiff_t x = from; x < to; ++x)
                        sides.big_grad[a + x * step] += w * sides.small[s + static_cast<size_t>(x)];
                    if (sides.small_grad != nullptr)
                      for (ptrdiff_t x = from; x < to; ++x)
                        sides.small_grad[s + static_cast<size_t>(x)] += w * sides.big[a + x * step];
                  }
                }
                if (sides.weight_grad != nullptr) sides.weight_grad[tap] += sum;
              }
        }
      }
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
