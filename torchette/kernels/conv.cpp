// SPDX-License-Identifier: BSD-3-Clause
// aten::convolution. 1x1 is a GEMM on the image itself, depthwise has a direct kernel, and other convolutions
// are GEMMs with a right side that is fetched panel by panel, so that the im2col matrix is never complete.
// For channels-last images, the windows of some pixels at a time are the left side instead.
#include "torchette/kernels/conv.h"

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/gemm.h"
#include "torchette/kernels/winograd.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Returns the input position of output position `o` under tap `t` in spatial dimension `d`, or -1 if it is
/// outside.
TORCHETTE_INLINE ptrdiff_t source(const Conv& conv, int d, ptrdiff_t o, ptrdiff_t t) {
  if (!conv.transposed) {
    const ptrdiff_t i = o * conv.stride[d] - conv.padding[d] + t * conv.dilation[d];
    return i >= 0 && i < conv.in[d] ? i : -1;
  }
  const ptrdiff_t i = o + conv.padding[d] - t * conv.dilation[d];
  return i >= 0 && i % conv.stride[d] == 0 && i / conv.stride[d] < conv.in[d] ? i / conv.stride[d] : -1;
}

// --- Columns of the im2col matrix ---

/// The columns of the im2col matrix of one image. Its rows are ordered by (channel, tap).
struct ColumnSource : PanelSource {
  const Conv* conv;
  const float* image;
  size_t first_row;  // row of the im2col matrix that is row 0 of the GEMM
};

/// Copies one tap for `count` channels: `lanes` adjacent columns from `from`, every `kStep`th float, with
/// zeros at floats of the source that `mask` does not select.
template <int kStep>
static void copy_tap(const float* from, size_t from_step, uint32_t mask, float* to, size_t to_step,
                     size_t lanes, size_t count) {
  const LaneMask low = lane_mask(mask), high = lane_mask(mask >> kLanes);
  const auto get = [&](const float* p) TORCHETTE_INLINED {
    if constexpr (kStep == 1) {
      return load_masked(p, low);
    } else {
      Vec even, odd;
      deinterleave(load_masked(p, low), load_masked(p + kLanes, high), even, odd);
      return even;
    }
  };
  if (lanes == kLanes) {
    for (size_t i = 0; i < count; ++i) store(to + i * to_step, get(from + i * from_step));
  } else {
    for (size_t i = 0; i < count; ++i) store_partial(to + i * to_step, get(from + i * from_step), lanes);
  }
}

/// copy_tap() for steps above 2 and for transposed convolutions: column i is the float at place[i] of the
/// channel, or zero if place[i] is negative.
static void gather_tap(const float* channel, size_t from_step, const ptrdiff_t* position, float* to,
                       size_t to_step, size_t lanes, size_t count) {
  for (size_t i = 0; i < count; ++i)
    for (size_t j = 0; j < lanes; ++j)
      to[i * to_step + j] =
          position[j] >= 0 ? channel[i * from_step + static_cast<size_t>(position[j])] : 0.0f;
}

static ptrdiff_t fetch_columns(const PanelSource& self, size_t k0, size_t depth, size_t n0, size_t columns,
                               size_t width, float* panel, const float*& from) {
  const auto& source_of = static_cast<const ColumnSource&>(self);
  const Conv& conv = *source_of.conv;
  const size_t taps = conv.taps(), plane = conv.in_plane();
  const size_t begin = source_of.first_row + k0, end = begin + depth;
  const size_t first_channel = begin / taps, first_tap = begin % taps;
  const size_t last_channel = end / taps, last_tap = end % taps;
  if (columns < width) memset(panel, 0, depth * width * sizeof(float));
  for (size_t column = 0; column < columns;) {
    // A segment: columns of one row of the output, at most a full vector.
    const auto n = static_cast<ptrdiff_t>(n0 + column);
    const ptrdiff_t ox = n % conv.out[2], row = n / conv.out[2];
    const ptrdiff_t oy = row % conv.out[1], oz = row / conv.out[1];
    size_t lanes = columns - column < kLanes ? columns - column : kLanes;
    if (lanes > static_cast<size_t>(conv.out[2] - ox)) lanes = static_cast<size_t>(conv.out[2] - ox);
    size_t tap = 0;
    for (ptrdiff_t z = 0; z < conv.kernel[0]; ++z) {
      const ptrdiff_t iz = source(conv, 0, oz, z);
      for (ptrdiff_t y = 0; y < conv.kernel[1]; ++y) {
        const ptrdiff_t iy = source(conv, 1, oy, y);
        const bool outside = iz < 0 || iy < 0;
        const ptrdiff_t in_row = outside ? 0 : (iz * conv.in[1] + iy) * conv.in[2];
        for (ptrdiff_t x = 0; x < conv.kernel[2]; ++x, ++tap) {
          // The channels with this tap in rows [begin, end).
          const size_t channel = first_channel + (tap < first_tap ? 1 : 0);
          const size_t count = last_channel + (tap < last_tap ? 1 : 0) - channel;
          if (count == 0) continue;
          const float* image = source_of.image + channel * plane;
          float* to = panel + (channel * taps + tap - begin) * width + column;
          if (!conv.transposed && conv.stride[2] <= 2) {
            const ptrdiff_t ix = ox * conv.stride[2] - conv.padding[2] + x * conv.dilation[2];
            const uint32_t mask = outside ? 0 : inside_bits(ix, conv.in[2]);
            const float* start = mask == 0 ? image : image + in_row + ix;
            if (conv.stride[2] == 1)
              copy_tap<1>(start, plane, mask, to, taps * width, lanes, count);
            else
              copy_tap<2>(start, plane, mask, to, taps * width, lanes, count);
            continue;
          }
          ptrdiff_t position[kLanes];
          for (size_t i = 0; i < lanes; ++i) {
            const ptrdiff_t ix = outside ? -1 : source(conv, 2, ox + static_cast<ptrdiff_t>(i), x);
            position[i] = ix < 0 ? -1 : in_row + ix;
          }
          gather_tap(image, plane, position, to, taps * width, lanes, count);
        }
      }
    }
    column += lanes;
  }
  from = panel;
  return static_cast<ptrdiff_t>(width);
}

static Error conv_by_columns(Context& context, const Conv& conv, const float* input, const float* weight,
                             const float* bias, float* out) {
  GemmScratch scratch(context);
  const size_t m = conv.out_channels, n = conv.out_plane(), k = conv.in_channels * conv.taps();
  float* panels = scratch.panels(n, k);
  TORCHETTE_CHECK(panels != nullptr, MemoryAllocationFailed, "no scratch memory for a convolution");
  for (size_t b = 0; b < conv.batch; ++b) {
    for (size_t g = 0; g < conv.groups; ++g) {
      ColumnSource source = {
          {fetch_columns}, &conv, input + (b * conv.groups + g) * conv.in_channels * conv.in_plane(), 0};
      float* c = out + (b * conv.groups + g) * m * n;
      const float* start = bias != nullptr ? bias + g * m : nullptr;
      if (!conv.transposed) {
        gemm_panels({m, n, k, weight + g * m * k, static_cast<ptrdiff_t>(k), c, static_cast<ptrdiff_t>(n),
                     start, nullptr, false},
                    source, panels);
        continue;
      }
      // The weight is [in, out, taps]. Blocks of it are copied to [out, in x taps].
      float* rows = scratch.rows(m, k);
      TORCHETTE_CHECK(rows != nullptr, MemoryAllocationFailed, "no scratch memory for a convolution");
      const size_t taps = conv.taps();
      do {
        const size_t depth = next_part(k - source.first_row, kMaxDepth);
        for (size_t i = 0; i < m; i += GemmScratch::kBlockRows) {
          const size_t count = m - i < GemmScratch::kBlockRows ? m - i : GemmScratch::kBlockRows;
          for (size_t r = 0; r < count; ++r) {
            for (size_t p = 0; p < depth; ++p) {
              const size_t row = source.first_row + p;
              rows[r * depth + p] =
                  weight[((g * conv.in_channels + row / taps) * m + i + r) * taps + row % taps];
            }
          }
          gemm_panels(
              {count, n, depth, rows, static_cast<ptrdiff_t>(depth), c + i * n, static_cast<ptrdiff_t>(n),
               start != nullptr ? start + i : nullptr, nullptr, source.first_row > 0},
              source, panels);
        }
        source.first_row += depth;
      } while (source.first_row < k);
    }
  }
  return Error::Ok;
}

/// Whether Winograd supports the convolution and is faster.
static bool winograd_pays(const Conv& conv, Winograd& winograd) {
  for (int d = 0; d < 3; ++d)
    if (conv.transposed || conv.kernel[d] != (d == 0 ? 1 : 3) || conv.stride[d] != 1 ||
        conv.dilation[d] != 1 || (d == 0 && (conv.in[0] != 1 || conv.padding[0] != 0)))
      return false;
  winograd = {conv.in_channels, conv.out_channels, conv.in[1],      conv.in[2],
              conv.out[1],      conv.out[2],       conv.padding[1], conv.padding[2]};
  return winograd.pays();
}

/// Leaves `done` false if Winograd is slower or has no scratch memory, or if a result is infinite or NaN. The
/// caller then convolves directly.
static Error conv_by_winograd(Context& context, const Conv& conv, const float* input, const float* weight,
                              const float* bias, float* out, bool& done) {
  Winograd winograd;
  if (!winograd_pays(conv, winograd)) return Error::Ok;
  // A single request, so that a failure leaves no memory allocated.
  const size_t floats = winograd.weight_floats() + winograd.scratch_floats();
  auto* memory = static_cast<float*>(context.allocate_temp(floats * sizeof(float)));
  if (memory == nullptr) return Error::Ok;
  const size_t in_image = conv.in_channels * conv.in_plane(),
               out_image = conv.out_channels * conv.out_plane();
  done = true;
  for (size_t g = 0; g < conv.groups && done; ++g) {
    winograd.transform_weight(weight + g * conv.out_channels * conv.in_channels * 9, memory);
    for (size_t b = 0; b < conv.batch && done; ++b)
      done = winograd.run(input + (b * conv.groups + g) * in_image, memory,
                          bias != nullptr ? bias + g * conv.out_channels : nullptr,
                          out + (b * conv.groups + g) * out_image, memory + winograd.weight_floats());
  }
  return Error::Ok;
}

static Error conv_pointwise(Context& context, const Conv& conv, const float* input, const float* weight,
                            const float* bias, float* out) {
  GemmScratch scratch(context);
  const size_t m = conv.out_channels, n = conv.out_plane(), k = conv.in_channels;
  for (size_t b = 0; b < conv.batch; ++b)
    for (size_t g = 0; g < conv.groups; ++g)
      TORCHETTE_TRY(gemm(scratch, m, n, k, {weight + g * m * k, static_cast<ptrdiff_t>(k), 1},
                         {input + (b * conv.groups + g) * k * n, static_cast<ptrdiff_t>(n), 1},
                         out + (b * conv.groups + g) * m * n, static_cast<ptrdiff_t>(n),
                         bias != nullptr ? bias + g * m : nullptr, nullptr));
  return Error::Ok;
}

// --- Depthwise ---

/// One channel of the input.
struct Plane {
  const float* data;
  ptrdiff_t height, width;
};

/// Computes kRows x kLanes outputs of a square kernel. Each row of the input is loaded once for all outputs
/// that use it. (iy, ix) is the position of the first tap of the first output, which may be outside only if
/// kEdge.
template <int kKernel, int kStride, int kRows, bool kEdge>
static TORCHETTE_INLINE void depthwise_block(const Plane& in, ptrdiff_t iy, ptrdiff_t ix, const float* weight,
                                             float bias, float* out, ptrdiff_t out_row, size_t lanes) {
  constexpr int kLoads = kStride == 1 ? kKernel : (kKernel + 1) / 2;
  uint32_t masks[kLoads];
  if (kEdge)
    for (int i = 0; i < kLoads; ++i) masks[i] = inside_bits(ix + i * kStride, in.width);
  Vec acc[kRows];
  TORCHETTE_UNROLL(4)
  for (int j = 0; j < kRows; ++j) acc[j] = broadcast(bias);
  TORCHETTE_UNROLL(12)
  for (int r = 0; r < (kRows - 1) * kStride + kKernel; ++r) {
    const bool row_inside = !kEdge || (iy + r >= 0 && iy + r < in.height);
    if (!row_inside) continue;
    const float* p = in.data + (iy + r) * in.width + ix;
    Vec v[kKernel + 1];
    TORCHETTE_UNROLL(5)
    for (int i = 0; i < kLoads; ++i) {
      const float* q = p + i * kStride;
      const Vec low = kEdge ? load_masked(q, lane_mask(masks[i])) : load(q);
      if constexpr (kStride == 1) {
        v[i] = low;
      } else {
        const Vec high = kEdge ? load_masked(q + kLanes, lane_mask(masks[i] >> kLanes)) : load(q + kLanes);
        deinterleave(low, high, v[2 * i], v[2 * i + 1]);
      }
    }
    TORCHETTE_UNROLL(4)
    for (int j = 0; j < kRows; ++j) {
      const int ky = r - j * kStride;
      if (ky < 0 || ky >= kKernel) continue;
      TORCHETTE_UNROLL(5)
      for (int kx = 0; kx < kKernel; ++kx) acc[j] = fma(broadcast(weight[ky * kKernel + kx]), v[kx], acc[j]);
    }
  }
  TORCHETTE_UNROLL(4)
  for (int j = 0; j < kRows; ++j) {
    if (lanes == kLanes)
      store(out + j * out_row, acc[j]);
    else
      store_partial(out + j * out_row, acc[j], lanes);
  }
}

template <int kKernel, int kStride, int kRows>
static void depthwise_rows(const Plane& in, ptrdiff_t pad_y, ptrdiff_t pad_x, const float* weight, float bias,
                           float* out, ptrdiff_t out_w, ptrdiff_t y) {
  const ptrdiff_t iy = y * kStride - pad_y;
  const bool rows_inside = iy >= 0 && iy + (kRows - 1) * kStride + kKernel <= in.height;
  for (ptrdiff_t x = 0; x < out_w; x += kLanes) {
    const ptrdiff_t ix = x * kStride - pad_x;
    const auto lanes = static_cast<size_t>(out_w - x < kLanes ? out_w - x : kLanes);
    // Loads of an inner block extend kLanes * kStride + kKernel - 1 (+ 1 unused) floats from ix.
    if (rows_inside && ix >= 0 && ix + kLanes * kStride + kKernel <= in.width)
      depthwise_block<kKernel, kStride, kRows, false>(in, iy, ix, weight, bias, out + y * out_w + x, out_w,
                                                      lanes);
    else
      depthwise_block<kKernel, kStride, kRows, true>(in, iy, ix, weight, bias, out + y * out_w + x, out_w,
                                                     lanes);
  }
}

/// Depthwise convolution with a square kernel of known size and dilation 1.
template <int kKernel, int kStride>
static void depthwise_plane(const Plane& in, ptrdiff_t pad_y, ptrdiff_t pad_x, const float* weight,
                            float bias, float* out, ptrdiff_t out_h, ptrdiff_t out_w) {
#ifdef __OPTIMIZE_SIZE__
  constexpr bool kOneRow = kKernel > 3;  // several rows of 25 taps would be 7 KB of code
#else
  constexpr bool kOneRow = false;
#endif
  constexpr int kRows = kOneRow ? 1 : kStride == 1 ? 4 : 2;
  if (out_h < kRows) {
    for (ptrdiff_t y = 0; y < out_h; ++y)
      depthwise_rows<kKernel, kStride, 1>(in, pad_y, pad_x, weight, bias, out, out_w, y);
    return;
  }
  for (ptrdiff_t y = 0; y < out_h; y += kRows)  // the last block may recompute rows of the previous one
    depthwise_rows<kKernel, kStride, kRows>(in, pad_y, pad_x, weight, bias, out, out_w,
                                            y + kRows <= out_h ? y : out_h - kRows);
}

/// Depthwise convolution with any kernel, stride and dilation.
static void depthwise_any(const Conv& conv, const Plane& in, const float* weight, float bias, float* out) {
  const ptrdiff_t out_w = conv.out[2], step = conv.stride[2];
  for (ptrdiff_t y = 0; y < conv.out[1]; ++y) {
    for (ptrdiff_t x = 0; x < out_w; x += kLanes) {
      const auto lanes = static_cast<size_t>(out_w - x < kLanes ? out_w - x : kLanes);
      Vec acc = broadcast(bias);
      for (ptrdiff_t ky = 0; ky < conv.kernel[1]; ++ky) {
        const ptrdiff_t iy = source(conv, 1, y, ky);
        if (iy < 0) continue;
        for (ptrdiff_t kx = 0; kx < conv.kernel[2]; ++kx) {
          const ptrdiff_t ix = x * step - conv.padding[2] + kx * conv.dilation[2];
          const float* p = in.data + iy * in.width + ix;
          Vec v;
          if (step == 1) {
            v = load_masked(p, lane_mask(inside_bits(ix, in.width)));
          } else {
            float gathered[kLanes] = {};
            for (ptrdiff_t i = 0; i < static_cast<ptrdiff_t>(lanes); ++i)
              if (ix + i * step >= 0 && ix + i * step < in.width) gathered[i] = p[i * step];
            v = load(gathered);
          }
          acc = fma(broadcast(weight[ky * conv.kernel[2] + kx]), v, acc);
        }
      }
      store_partial(out + y * out_w + x, acc, lanes);
    }
  }
}

static void conv_depthwise(const Conv& conv, const float* input, const float* weight, const float* bias,
                           float* out) {
  const bool square = conv.kernel[1] == conv.kernel[2] && conv.stride[1] == conv.stride[2] &&
                      conv.dilation[1] == 1 && conv.dilation[2] == 1;
  const int shape = square ? static_cast<int>(conv.kernel[1] * 10 + conv.stride[1]) : 0;
  for (size_t b = 0; b < conv.batch; ++b) {
    for (size_t g = 0; g < conv.groups; ++g) {
      const Plane in = {input + (b * conv.groups + g) * conv.in_plane(), conv.in[1], conv.in[2]};
      for (size_t m = 0; m < conv.out_channels; ++m) {
        const size_t o = g * conv.out_channels + m;
        const float* w = weight + o * conv.taps();
        const float start = bias != nullptr ? bias[o] : 0.0f;
        float* to = out + (b * conv.groups * conv.out_channels + o) * conv.out_plane();
        const ptrdiff_t py = conv.padding[1], px = conv.padding[2], oh = conv.out[1], ow = conv.out[2];
        switch (shape) {
          case 31:
            depthwise_plane<3, 1>(in, py, px, w, start, to, oh, ow);
            break;
          case 32:
            depthwise_plane<3, 2>(in, py, px, w, start, to, oh, ow);
            break;
          case 51:
            depthwise_plane<5, 1>(in, py, px, w, start, to, oh, ow);
            break;
          case 52:
            depthwise_plane<5, 2>(in, py, px, w, start, to, oh, ow);
            break;
          default:
            depthwise_any(conv, in, w, start, to);
        }
      }
    }
  }
}

// --- Channels last

/// Whether an image is channels last: a pixel is a contiguous run of all channels.
static bool is_channels_last(const Tensor& t) {
  const auto rank = static_cast<size_t>(t.dim());
  ptrdiff_t step = t.sizes()[1];
  if (t.sizes()[1] > 1 && t.strides()[1] != 1) return false;
  for (size_t d = rank; d-- > 2;) {
    if (t.sizes()[d] > 1 && t.strides()[d] != step) return false;
    step *= t.sizes()[d];
  }
  return t.sizes()[0] <= 1 || t.strides()[0] == step;
}

/// 1x1 convolution: pixels times the transposed weight.
static Error conv_pixels(Context& context, const Conv& conv, const float* input, const float* weight,
                         const float* bias, float* out) {
  GemmScratch scratch(context);
  const size_t pixels = conv.batch * conv.in_plane(), n = conv.out_channels, k = conv.in_channels;
  for (size_t g = 0; g < conv.groups; ++g)
    TORCHETTE_TRY(gemm(scratch, pixels, n, k, {input + g * k, static_cast<ptrdiff_t>(conv.groups * k), 1},
                       {weight + g * n * k, 1, static_cast<ptrdiff_t>(k)}, out + g * n,
                       static_cast<ptrdiff_t>(conv.groups * n), nullptr,
                       bias != nullptr ? bias + g * n : nullptr));
  return Error::Ok;
}

/// The taps of a window that are inside of the image in one dimension, and the position of the first of them.
struct TapRange {
  ptrdiff_t begin, end, position;
};
static TapRange taps_inside(const Conv& conv, int d, ptrdiff_t o) {
  const ptrdiff_t start = o * conv.stride[d] - conv.padding[d], step = conv.dilation[d];
  TapRange taps = {0, conv.kernel[d], start};
  for (; taps.begin < taps.end && taps.position < 0; ++taps.begin) taps.position += step;
  while (taps.begin < taps.end && start + (taps.end - 1) * step >= conv.in[d]) --taps.end;
  return taps;
}

/// Computes one vector of channels of kPixels adjacent outputs, which are `apart` floats apart in the image.
template <int kPixels, typename Get>
static TORCHETTE_INLINE void depthwise_pixels(const float* image, const float* weight, const float* bias,
                                              const TapRange& rows, const TapRange& columns, ptrdiff_t width,
                                              ptrdiff_t step_y, ptrdiff_t step_x, ptrdiff_t apart,
                                              ptrdiff_t channels, Vec (&sums)[kPixels], Get get) {
  TORCHETTE_UNROLL(4)
  for (int i = 0; i < kPixels; ++i) sums[i] = bias != nullptr ? get(bias) : Vec{};
  for (ptrdiff_t ky = rows.begin; ky < rows.end; ++ky, image += step_y) {
    const float* from = image;
    const float* w = weight + (ky * width + columns.begin) * channels;
    for (ptrdiff_t kx = columns.begin; kx < columns.end; ++kx, from += step_x, w += channels) {
      const Vec factor = get(w);
      TORCHETTE_UNROLL(4)
      for (int i = 0; i < kPixels; ++i) sums[i] = fma(get(from + i * apart), factor, sums[i]);
    }
  }
}

/// Depthwise with equal numbers of inputs and outputs: one vector of channels at a time, for four pixels at a
/// time inside of the image.
static Error conv_depthwise_pixels(Context& context, const Conv& conv, const float* input,
                                   const float* weight, const float* bias, float* out) {
  constexpr int kPixels = 4;
  const auto channels = static_cast<ptrdiff_t>(conv.groups), taps = static_cast<ptrdiff_t>(conv.taps());
  auto* transposed_weight =
      static_cast<float*>(context.allocate_temp(conv.taps() * conv.groups * sizeof(float)));
  TORCHETTE_CHECK(transposed_weight != nullptr, MemoryAllocationFailed,
                  "no scratch memory for a convolution");
  for (ptrdiff_t c = 0; c < channels; ++c)
    for (ptrdiff_t t = 0; t < taps; ++t) transposed_weight[t * channels + c] = weight[c * taps + t];
  const ptrdiff_t step_y = conv.dilation[1] * conv.in[2] * channels, step_x = conv.dilation[2] * channels;
  const ptrdiff_t apart = conv.stride[2] * channels;
  for (size_t b = 0; b < conv.batch; ++b, input += conv.in[1] * conv.in[2] * channels) {
    for (ptrdiff_t y = 0; y < conv.out[1]; ++y) {
      const TapRange rows = taps_inside(conv, 1, y);
      for (ptrdiff_t x = 0; x < conv.out[2];) {
        const TapRange columns = taps_inside(conv, 2, x);
        const float* image = input + (rows.position * conv.in[2] + columns.position) * channels;
        bool inside = columns.begin == 0 && x + kPixels <= conv.out[2];
        if (inside) inside = taps_inside(conv, 2, x + kPixels - 1).end == conv.kernel[2];
        const int pixels = inside ? kPixels : 1;
        for (ptrdiff_t c = 0; c < channels; c += kLanes) {
          const float* start = bias != nullptr ? bias + c : nullptr;
          const auto some = [&](auto count, auto get, const auto& put) TORCHETTE_INLINED {
            Vec sums[count.value];
            depthwise_pixels<count.value>(image + c, transposed_weight + c, start, rows, columns,
                                          conv.kernel[2], step_y, step_x, apart, channels, sums, get);
            TORCHETTE_UNROLL(4)
            for (int i = 0; i < count.value; ++i) put(out + i * channels + c, sums[i]);
          };
          const auto all = [](const float* p) TORCHETTE_INLINED { return load(p); };
          const auto put_all = [](float* p, Vec v) TORCHETTE_INLINED { store(p, v); };
          const auto remaining = static_cast<size_t>(channels - c);
          const auto part = [remaining](const float* p)
                                TORCHETTE_INLINED { return load_partial(p, remaining); };
          const auto put_part = [remaining](float* p, Vec v)
                                    TORCHETTE_INLINED { store_partial(p, v, remaining); };
          using One = std::integral_constant<int, 1>;
          using Four = std::integral_constant<int, kPixels>;
          if (remaining >= kLanes && inside)
            some(Four(), all, put_all);
          else if (remaining >= kLanes)
            some(One(), all, put_all);
          else if (inside)
            some(Four(), part, put_part);
          else
            some(One(), part, put_part);
        }
        x += pixels;
        out += pixels * channels;
      }
    }
  }
  return Error::Ok;
}

/// Blocking of a channels-last convolution. `run` floats of the image are contiguous under the `width` taps
/// of a row of the window. A block is `rows` windows of `k` floats; `depth` floats at a time are multiplied
/// by the same number of rows of the transposed weight.
struct Windows {
  const Conv& conv;
  ptrdiff_t width;
  size_t run, rows, k, row;

  explicit Windows(const Conv& of)
      : conv(of),
        width(of.groups == 1 && of.dilation[2] == 1 ? of.kernel[2] : 1),
        run(static_cast<size_t>(width) * of.in_channels),
        rows(GemmScratch::kBlockRows),
        k(of.in_channels * of.taps()),
        row(round_to_vectors(next_part(k, kMaxDepth) + kLanes - 1)) {}

  size_t channels() const { return conv.groups * conv.in_channels; }
  size_t weight_floats() const { return round_to_vectors(k * conv.out_channels); }
  size_t scratch_floats() const { return weight_floats() + rows * row + panel_floats(conv.out_channels, k); }

  /// Transposes the weight of a group from [out, in, taps] to [taps x in, out].
  void transpose_weight(const float* weight, float* transposed_weight) const {
    const size_t n = conv.out_channels, taps = conv.taps();
    for (size_t j = 0; j < n; ++j)
      for (size_t c = 0; c < conv.in_channels; ++c)
        for (size_t t = 0; t < taps; ++t)
          transposed_weight[(t * conv.in_channels + c) * n + j] =
              weight[(j * conv.in_channels + c) * taps + t];
  }

  /// Fetches the floats [begin, begin + depth) of the windows of `count` output pixels from `first` on, as
  /// rows with stride `row`. Floats written after a run are overwritten by the next run or are beyond the end
  /// of the row.
  void fetch(const float* input, const float* end, size_t first, size_t count, size_t begin, size_t depth,
             float* block) const {
    for (size_t at = begin; at < begin + depth;) {
      const size_t tap_row = at / run, skipped = at % run;
      const size_t taken = run - skipped < begin + depth - at ? run - skipped : begin + depth - at;
      ptrdiff_t tap = static_cast<ptrdiff_t>(tap_row) * width;
      const ptrdiff_t kx = tap % conv.kernel[2], ky = tap / conv.kernel[2] % conv.kernel[1];
      const ptrdiff_t kz = tap / conv.kernel[2] / conv.kernel[1];
      float* to = block + (at - begin);
      for (size_t i = 0; i < count;) {
        const auto pixel = static_cast<ptrdiff_t>(first + i);
        ptrdiff_t ox = pixel % conv.out[2], line = pixel / conv.out[2];
        const ptrdiff_t iy = source(conv, 1, line % conv.out[1], ky);
        line /= conv.out[1];
        const ptrdiff_t iz = source(conv, 0, line % conv.out[0], kz), b = line / conv.out[0];
        const bool outside = iy < 0 || iz < 0;
        const float* image = input + ((b * conv.in[0] + iz) * conv.in[1] + iy) * conv.in[2] *
                                         static_cast<ptrdiff_t>(channels());
        for (; i < count && ox < conv.out[2]; ++i, ++ox, to += row) {
          const ptrdiff_t ix = ox * conv.stride[2] - conv.padding[2] + kx * conv.dilation[2];
          if (!outside && ix >= 0 && ix + width <= conv.in[2]) {
            copy_run(image + static_cast<size_t>(ix) * channels() + skipped, end, to, taken);
            continue;
          }
          for (size_t j = 0; j < taken; j += kLanes) store(to + j, Vec{});
          // The taps of the run that are inside of the image.
          const ptrdiff_t low = ix < 0 ? -ix : 0, high = conv.in[2] - ix < width ? conv.in[2] - ix : width;
          if (outside || low >= high) continue;
          size_t from = static_cast<size_t>(low) * conv.in_channels,
                 until = static_cast<size_t>(high) * conv.in_channels;
          if (from < skipped) from = skipped;
          if (until > skipped + taken) until = skipped + taken;
          for (size_t j = from; j < until; ++j)
            to[j - skipped] = image[ix * static_cast<ptrdiff_t>(channels()) + static_cast<ptrdiff_t>(j)];
        }
      }
      at += taken;
    }
  }

  static TORCHETTE_INLINE void copy_run(const float* from, const float* end, float* to, size_t count) {
    size_t j = 0;
    if (static_cast<size_t>(end - from) >= round_to_vectors(count)) {
      for (; j < count; j += kLanes) store(to + j, load(from + j));
      return;
    }
    for (; j + kLanes <= count; j += kLanes) store(to + j, load(from + j));
    if (j < count) store(to + j, load_partial(from + j, count - j));
  }
};

/// Multiplies windows of the image, block by block, by the transposed weight. Leaves `done` false if the
/// memory is not available.
static Error conv_by_windows(Context& context, const Conv& conv, const float* input, const float* weight,
                             const float* bias, float* out, bool& done) {
  const Windows windows(conv);
  // A single request, so that a failure leaves no memory allocated.
  auto* transposed_weight =
      static_cast<float*>(context.allocate_temp(windows.scratch_floats() * sizeof(float)));
  if (transposed_weight == nullptr) return Error::Ok;
  done = true;
  float* const block = transposed_weight + windows.weight_floats();
  float* const panels = block + windows.rows * windows.row;
  const size_t pixels = conv.batch * conv.out_plane(), n = conv.out_channels;
  const float* const end = input + conv.batch * conv.in_plane() * windows.channels();
  for (size_t g = 0; g < conv.groups; ++g) {
    windows.transpose_weight(weight + g * n * windows.k, transposed_weight);
    for (size_t first = 0; first < pixels; first += windows.rows) {
      const size_t count = pixels - first < windows.rows ? pixels - first : windows.rows;
      for (size_t k0 = 0; k0 < windows.k;) {
        const size_t depth = next_part(windows.k - k0, kMaxDepth);
        windows.fetch(input + g * conv.in_channels, end, first, count, k0, depth, block);
        gemm_of_rows({count, n, depth, block, static_cast<ptrdiff_t>(windows.row),
                      out + (first * conv.groups + g) * n, static_cast<ptrdiff_t>(conv.groups * n), nullptr,
                      bias != nullptr ? bias + g * n : nullptr, k0 > 0},
                     transposed_weight + k0 * n, static_cast<ptrdiff_t>(n), panels);
        k0 += depth;
      }
    }
  }
  return Error::Ok;
}

/// Whether conv_by_windows() is faster than transposing the image twice: if the weight is small and the image
/// large.
static bool windows_pay(const Conv& conv) {
  const size_t image =
      conv.batch * conv.groups * (conv.in_channels * conv.in_plane() + conv.out_channels * conv.out_plane());
  const size_t weight = conv.groups * conv.out_channels * conv.in_channels * conv.taps();
  return !conv.transposed && 2 * weight < image && (conv.groups == 1 || conv.in_channels >= kLanes);
}

// --- The operator ---

/// Expands a list of one or `spatial` values to the last of three dimensions.
static Error spread(Span<const int64_t> list, ptrdiff_t spatial, int64_t min_value, int64_t missing,
                    const char* what, ptrdiff_t (&to)[3]) {
  TORCHETTE_CHECK(list.size() == 1 || list.size() == static_cast<size_t>(spatial), InvalidArgument,
                  "convolution: %s has %zu elements for %d dimensions", what, list.size(),
                  static_cast<int>(spatial));
  for (ptrdiff_t d = 0; d < 3; ++d) {
    const ptrdiff_t i = d - (3 - spatial);
    const int64_t value = i < 0 ? missing : list[list.size() == 1 ? 0 : static_cast<size_t>(i)];
    TORCHETTE_CHECK(value >= min_value && value <= INT32_MAX, InvalidArgument,
                    "convolution: %s %lld is out of range", what, static_cast<long long>(value));
    to[d] = static_cast<ptrdiff_t>(value);
  }
  return Error::Ok;
}

Error describe_convolution(const Tensor& input, const Tensor& weight, const Optional<Tensor>& bias,
                           Span<const int64_t> stride, Span<const int64_t> padding,
                           Span<const int64_t> dilation, bool transposed, Span<const int64_t> output_padding,
                           int64_t groups, Conv& conv) {
  const ptrdiff_t spatial = input.dim() - 2;
  TORCHETTE_CHECK(spatial >= 1 && spatial <= 3 && weight.dim() == input.dim(), InvalidArgument,
                  "convolution: input has %d dimensions, weight has %d", static_cast<int>(input.dim()),
                  static_cast<int>(weight.dim()));
  conv.transposed = transposed;
  TORCHETTE_TRY(spread(stride, spatial, 1, 1, "stride", conv.stride));
  TORCHETTE_TRY(spread(padding, spatial, 0, 0, "padding", conv.padding));
  TORCHETTE_TRY(spread(dilation, spatial, 1, 1, "dilation", conv.dilation));
  ptrdiff_t extra[3] = {};
  if (transposed) TORCHETTE_TRY(spread(output_padding, spatial, 0, 0, "output_padding", extra));
  TORCHETTE_CHECK(
      groups >= 1 && groups <= INT32_MAX && input.size(1) % groups == 0 && weight.size(0) % groups == 0,
      InvalidArgument, "convolution: input of %d channels and weight of %d filters do not fit groups %lld",
      static_cast<int>(input.size(1)), static_cast<int>(weight.size(0)), static_cast<long long>(groups));
  conv.batch = static_cast<size_t>(input.size(0));
  conv.groups = static_cast<size_t>(groups);
  conv.in_channels = static_cast<size_t>(input.size(1) / groups);
  const ptrdiff_t expected = transposed ? input.size(1) : input.size(1) / groups;
  TORCHETTE_CHECK(weight.size(transposed ? 0 : 1) == expected, InvalidArgument,
                  "convolution: weight is for %d channels, input has %d",
                  static_cast<int>(weight.size(transposed ? 0 : 1)), static_cast<int>(expected));
  conv.out_channels = static_cast<size_t>(transposed ? weight.size(1) : weight.size(0) / groups);
  const uint64_t channels = static_cast<uint64_t>(conv.groups) * conv.out_channels;
  TORCHETTE_CHECK(channels <= INT32_MAX, InvalidArgument,
                  "convolution: weight has too many output channels: %llu",
                  static_cast<unsigned long long>(channels));
  TORCHETTE_CHECK(
      !bias.has_value() || (bias->dim() == 1 && bias->scalar_type() == input.scalar_type() &&
                            static_cast<size_t>(bias->size(0)) == conv.groups * conv.out_channels),
      InvalidArgument, "convolution: bias must have %zu elements and the type of input",
      conv.groups * conv.out_channels);
  for (ptrdiff_t d = 0; d < 3; ++d) {
    const ptrdiff_t i = d - (3 - spatial);
    conv.in[d] = i < 0 ? 1 : input.size(2 + i);
    conv.kernel[d] = i < 0 ? 1 : weight.size(2 + i);
    // The kernels compute positions up to `extent` in a ptrdiff_t, which may be 32-bit.
    const int64_t in = conv.in[d], stride_d = conv.stride[d], both = 2 * int64_t{conv.padding[d]};
    const int64_t reach = int64_t{conv.dilation[d]} * (conv.kernel[d] - 1) + 1;
    const int64_t extent = transposed ? (in - 1) * stride_d + reach + extra[d] : in + both;
    const int64_t out = transposed ? extent - both : (extent - reach) / stride_d + 1;
    conv.out[d] = static_cast<ptrdiff_t>(out);
    TORCHETTE_CHECK(
        conv.kernel[d] >= 1 && out >= 1 && extent <= INT32_MAX && in + both >= (transposed ? 1 : reach),
        InvalidArgument, "convolution: dilated weight of size %d does not fit an input of %d with padding %d",
        static_cast<int>(reach), static_cast<int>(in), static_cast<int>(conv.padding[d]));
  }
  return Error::Ok;
}

static Error convolution_out(Context& context, const Tensor& input, const Tensor& weight,
                             Optional<Tensor> bias, Span<const int64_t> stride, Span<const int64_t> padding,
                             Span<const int64_t> dilation, bool transposed,
                             Span<const int64_t> output_padding, int64_t groups, Tensor& out) {
  Conv conv;
  TORCHETTE_TRY(describe_convolution(input, weight, bias, stride, padding, dilation, transposed,
                                     output_padding, groups, conv));
  const ScalarType type = input.scalar_type();
  TORCHETTE_CHECK(weight.scalar_type() == type && out.scalar_type() == type, InvalidType,
                  "convolution: input, weight and out are of types %d, %d and %d", static_cast<int>(type),
                  static_cast<int>(weight.scalar_type()), static_cast<int>(out.scalar_type()));
  const ptrdiff_t spatial = input.dim() - 2;
  SizesType sizes[5] = {static_cast<SizesType>(conv.batch),
                        static_cast<SizesType>(conv.groups * conv.out_channels)};
  for (ptrdiff_t d = 0; d < spatial; ++d) sizes[2 + d] = static_cast<SizesType>(conv.out[3 - spatial + d]);
  TORCHETTE_TRY(resize_result(out, {sizes, static_cast<size_t>(input.dim())}));
  if (out.numel() == 0) return Error::Ok;

  bool plain = !transposed && conv.taps() == 1;
  for (int d = 0; d < 3; ++d) plain = plain && conv.stride[d] == 1 && conv.padding[d] == 0;
  const bool depthwise = !transposed && conv.in_channels == 1 && conv.groups > 1 && conv.kernel[0] == 1 &&
                         conv.in[0] == 1 && conv.padding[0] == 0 && conv.stride[0] == 1;
  return for_compute<true>(type, "convolution", "input", [&](auto t) {
    using T = decltype(t);
    TORCHETTE_CHECK(is_floating(type) || type == ScalarType::Long, InvalidType,
                    "convolution: input is of unsupported type %d", static_cast<int>(type));
    // Integers wrap around.
    using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
    Dense filters, start, from, to;
    TORCHETTE_TRY(filters.read(context, weight, kScalarType<T>));
    if (bias.has_value()) TORCHETTE_TRY(start.read(context, *bias, kScalarType<T>));
    const Sum* w = filters.data<Sum>();
    const Sum* b = bias.has_value() ? start.data<Sum>() : nullptr;
    if constexpr (kScalarType<T> == ScalarType::Float) {
      const bool pixels =
          type == ScalarType::Float && input.size(1) > 1 && is_channels_last(input) && is_channels_last(out);
      if (pixels && plain)
        return conv_pixels(context, conv, input.const_data_ptr<float>(), w, b, out.mutable_data_ptr<float>());
      if (pixels && depthwise && conv.out_channels == 1)
        return conv_depthwise_pixels(context, conv, input.const_data_ptr<float>(), w, b,
                                     out.mutable_data_ptr<float>());
      Winograd winograd;
      if (pixels && !winograd_pays(conv, winograd) && windows_pay(conv)) {
        bool done = false;
        TORCHETTE_TRY(conv_by_windows(context, conv, input.const_data_ptr<float>(), w, b,
                                      out.mutable_data_ptr<float>(), done));
        if (done) return Error::Ok;
      }
    }
    TORCHETTE_TRY(from.read(context, input, kScalarType<T>));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    const Sum* x = from.data<Sum>();
    Sum* y = to.data<Sum>();
    if constexpr (kScalarType<T> == ScalarType::Float) {
      bool done = false;
      if (plain) {
        TORCHETTE_TRY(conv_pointwise(context, conv, x, w, b, y));
      } else if (depthwise) {
        conv_depthwise(conv, x, w, b, y);
      } else {
        TORCHETTE_TRY(conv_by_winograd(context, conv, x, w, b, y, done));
        if (!done) TORCHETTE_TRY(conv_by_columns(context, conv, x, w, b, y));
      }
    } else {
      const size_t channels = conv.groups * conv.out_channels;
      for (size_t row = 0; row < conv.batch * channels; ++row)
        for (size_t i = 0; i < conv.out_plane(); ++i)
          y[row * conv.out_plane() + i] = b != nullptr ? b[row % channels] : Sum(0);
      connect<Sum>(conv, transposed ? Sides<Sum>{x, nullptr, w, nullptr, y, nullptr}
                                    : Sides<Sum>{nullptr, x, w, y, nullptr, nullptr});
    }
    return to.finish();
  });
}

// Wide vector levels use the engine's convolutions; these kernels serve the portable plan.
TORCHETTE_KERNELS_NARROW(conv, TORCHETTE_KERNEL("aten::convolution.out", convolution_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
