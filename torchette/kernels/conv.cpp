// SPDX-License-Identifier: BSD-3-Clause
// aten::convolution: 1x1 as a matrix product on the image itself, depthwise directly, everything else as a
// matrix product whose right side is fetched from the image panel by panel (never the whole im2col matrix).
#include "torchette/kernels/gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// One convolution, always with three spatial dimensions (missing ones are of size 1).
struct Conv {
  size_t batch, groups;
  size_t in_channels, out_channels;  // of one group
  ptrdiff_t in[3], out[3], kernel[3];
  ptrdiff_t stride[3], padding[3], dilation[3];
  bool transposed;

  size_t in_plane() const { return static_cast<size_t>(in[0] * in[1] * in[2]); }
  size_t out_plane() const { return static_cast<size_t>(out[0] * out[1] * out[2]); }
  size_t taps() const { return static_cast<size_t>(kernel[0] * kernel[1] * kernel[2]); }
};

/// Source position of output position `o` under tap `t` in spatial dimension `d`, or -1 when there is none.
TORCHETTE_INLINE ptrdiff_t source(const Conv& conv, int d, ptrdiff_t o, ptrdiff_t t) {
  if (!conv.transposed) {
    const ptrdiff_t i = o * conv.stride[d] - conv.padding[d] + t * conv.dilation[d];
    return i >= 0 && i < conv.in[d] ? i : -1;
  }
  const ptrdiff_t i = o + conv.padding[d] - t * conv.dilation[d];
  return i >= 0 && i % conv.stride[d] == 0 && i / conv.stride[d] < conv.in[d] ? i / conv.stride[d] : -1;
}

/// Bits [0, n), n clamped to [0, 32].
TORCHETTE_INLINE uint32_t low_bits(ptrdiff_t n) { return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1u; }
/// The bits i of 32 for which `from + i` is a place of a row of `width`.
TORCHETTE_INLINE uint32_t inside(ptrdiff_t from, ptrdiff_t width) {
  return low_bits(width - from) & ~low_bits(-from);
}

constexpr uint32_t kAllLanes = kLanes == 32 ? ~0u : (1u << kLanes) - 1u;

// --- Panels of the im2col matrix
// ------------------------------------------------------------------------------

/// How one tap of the kernel fills one segment of a panel's row: lane i comes from offset + i * step of the
/// channel's image where bit i (of the source, for steps of 1 and 2) of the mask is set.
struct Gather {
  ptrdiff_t offset;
  uint32_t mask;
};

/// Part of a panel's row that lies in one row of the output and fits a vector.
struct Segment {
  uint16_t column;  // in the panel
  uint16_t lanes;
};

/// Fills panels with columns of the im2col matrix, rows ordered (channel, tap). The places of a panel are
/// worked out once and serve all channels.
class Im2col {
 public:
  static constexpr size_t kMaxColumns = kMaxVectors * kLanes;

  Im2col(const Conv& conv, Gather* table)
      : conv_(conv), table_(table), segments_(0), first_(SIZE_MAX), count_(0) {}
  static size_t table_size(const Conv& conv) { return conv.taps() * kMaxColumns; }

  void fill(const float* image, size_t k0, size_t depth, size_t n0, size_t columns, size_t width,
            float* panel) {
    if (first_ != n0 || count_ != columns) plan(n0, columns);
    if (columns < width) memset(panel, 0, depth * width * sizeof(float));
    const ptrdiff_t step = conv_.transposed ? 0 : conv_.stride[2];
    if (step == 1)
      copy<1>(image, k0, depth, width, panel);
    else if (step == 2)
      copy<2>(image, k0, depth, width, panel);
    else
      copy<0>(image, k0, depth, width, panel);
  }

 private:
  void plan(size_t n0, size_t columns) {
    first_ = n0;
    count_ = columns;
    segments_ = 0;
    const auto out_w = static_cast<size_t>(conv_.out[2]);
    for (size_t c = 0; c < columns;) {
      const size_t x = (n0 + c) % out_w;
      size_t lanes = out_w - x < columns - c ? out_w - x : columns - c;
      if (lanes > kLanes) lanes = kLanes;
      segment_[segments_] = {static_cast<uint16_t>(c), static_cast<uint16_t>(lanes)};
      ++segments_;
      c += lanes;
    }
    size_t tap = 0;
    for (ptrdiff_t z = 0; z < conv_.kernel[0]; ++z)
      for (ptrdiff_t y = 0; y < conv_.kernel[1]; ++y)
        for (ptrdiff_t x = 0; x < conv_.kernel[2]; ++x, ++tap)
          for (size_t s = 0; s < segments_; ++s) table_[tap * segments_ + s] = gather(z, y, x, s);
  }

  Gather gather(ptrdiff_t z, ptrdiff_t y, ptrdiff_t x, size_t s) const {
    const auto n = static_cast<ptrdiff_t>(first_ + segment_[s].column);
    const ptrdiff_t ox = n % conv_.out[2], oy = n / conv_.out[2] % conv_.out[1],
                    oz = n / conv_.out[2] / conv_.out[1];
    const ptrdiff_t iz = source(conv_, 0, oz, z), iy = source(conv_, 1, oy, y);
    if (iz < 0 || iy < 0) return {0, 0};
    const ptrdiff_t row = (iz * conv_.in[1] + iy) * conv_.in[2];
    if (conv_.transposed) {
      // Lane i comes from (ox + i - shift) / stride: the offset counts in lanes, copy<0> divides.
      uint32_t mask = 0;
      ptrdiff_t first = -1;
      for (int i = 0; i < segment_[s].lanes; ++i) {
        const ptrdiff_t ix = source(conv_, 2, ox + i, x);
        if (ix < 0) continue;
        if (first < 0) first = ix;
        mask |= 1u << i;
      }
      return {row + first, mask};
    }
    const ptrdiff_t ix = ox * conv_.stride[2] - conv_.padding[2] + x * conv_.dilation[2];
    if (conv_.stride[2] <= 2) {
      const uint32_t wanted = low_bits((segment_[s].lanes - 1) * conv_.stride[2] + 1);
      return {row + ix, inside(ix, conv_.in[2]) & wanted};
    }
    uint32_t mask = 0;
    for (int i = 0; i < segment_[s].lanes; ++i) {
      const ptrdiff_t at = ix + i * conv_.stride[2];
      if (at >= 0 && at < conv_.in[2]) mask |= 1u << i;
    }
    return {row + ix, mask};
  }

  template <int kStep>
  void copy(const float* image, size_t k0, size_t depth, size_t width, float* panel) const {
    const size_t taps = conv_.taps(), plane = conv_.in_plane();
    const ptrdiff_t step = conv_.stride[2];
    const float* channel = image + k0 / taps * plane;
    size_t tap = k0 % taps;
    for (size_t p = 0; p < depth; ++p, panel += width) {
      const Gather* g = table_ + tap * segments_;
      for (size_t s = 0; s < segments_; ++s) {
        // Whole vectors are stored: what is behind the segment is overwritten by the next one or the next
        // row.
        float* to = panel + segment_[s].column;
        const float* from = channel + g[s].offset;
        const uint32_t mask = g[s].mask;
        if constexpr (kStep == 1) {
          store(to, load_masked(from, mask));
        } else if constexpr (kStep == 2) {
          Vec even, odd;
          deinterleave(load_masked(from, mask & kAllLanes), load_masked(from + kLanes, mask >> kLanes), even,
                       odd);
          store(to, even);
        } else if (conv_.transposed) {
          for (int i = 0; i < segment_[s].lanes; ++i) to[i] = (mask >> i & 1u) != 0 ? *from++ : 0.0f;
        } else {
          for (int i = 0; i < segment_[s].lanes; ++i) to[i] = (mask >> i & 1u) != 0 ? from[i * step] : 0.0f;
        }
      }
      if (++tap == taps) {
        tap = 0;
        channel += plane;
      }
    }
  }

  const Conv& conv_;
  Gather* table_;
  size_t segments_;
  Segment segment_[kMaxColumns];
  size_t first_, count_;  // the columns that the table is for
};

static Error conv_by_panels(Context& context, const Conv& conv, const float* input, const float* weight,
                            const float* bias, float* out) {
  GemmScratch scratch(context);
  float* panel = scratch.panel();
  auto* table = static_cast<Gather*>(context.allocate_temp(Im2col::table_size(conv) * sizeof(Gather)));
  TORCHETTE_CHECK(panel != nullptr && table != nullptr, MemoryAllocationFailed,
                  "no scratch memory for a convolution");
  const size_t m = conv.out_channels, n = conv.out_plane(), k = conv.in_channels * conv.taps();
  Im2col columns(conv, table);
  for (size_t b = 0; b < conv.batch; ++b) {
    for (size_t g = 0; g < conv.groups; ++g) {
      const float* image = input + (b * conv.groups + g) * conv.in_channels * conv.in_plane();
      float* c = out + (b * conv.groups + g) * m * n;
      const float* start = bias != nullptr ? bias + g * m : nullptr;
      const auto fetch_from = [&](size_t base) {
        return [&, base](size_t k0, size_t depth, size_t n0, size_t count, int vectors, float* to,
                         const float*& from) {
          const auto width = static_cast<size_t>(vectors) * kLanes;
          columns.fill(image, base + k0, depth, n0, count, width, to);
          from = to;
          return static_cast<ptrdiff_t>(width);
        };
      };
      if (!conv.transposed) {
        gemm_panels(m, n, k, weight + g * m * k, static_cast<ptrdiff_t>(k), c, static_cast<ptrdiff_t>(n),
                    start, nullptr, false, panel, fetch_from(0));
        continue;
      }
      // The weight is [in, out, taps]: blocks of it are copied to [out, in x taps].
      float* rows = scratch.rows();
      TORCHETTE_CHECK(rows != nullptr, MemoryAllocationFailed, "no scratch memory for a convolution");
      const size_t taps = conv.taps();
      size_t k0 = 0;
      do {
        const size_t depth = next_part(k - k0, kMaxDepth);
        for (size_t i = 0; i < m; i += GemmScratch::kBlockRows) {
          const size_t count = m - i < GemmScratch::kBlockRows ? m - i : GemmScratch::kBlockRows;
          for (size_t r = 0; r < count; ++r)
            for (size_t p = 0; p < depth; ++p)
              rows[r * depth + p] =
                  weight[((g * conv.in_channels + (k0 + p) / taps) * m + i + r) * taps + (k0 + p) % taps];
          gemm_panels(count, n, depth, rows, static_cast<ptrdiff_t>(depth), c + i * n,
                      static_cast<ptrdiff_t>(n), start != nullptr ? start + i : nullptr, nullptr, k0 > 0,
                      panel, fetch_from(k0));
        }
        k0 += depth;
      } while (k0 < k);
    }
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

// --- Depthwise
// ------------------------------------------------------------------------------------------------

/// One channel of the input and where its rows are.
struct Plane {
  const float* data;
  ptrdiff_t height, width;
};

/// kRows x kLanes outputs of a square kernel: every row of the input is loaded once for all outputs that it
/// serves. `iy`, `ix`: the place of the first tap of the first output, perhaps outside (only if kEdge).
template <int kKernel, int kStride, int kRows, bool kEdge>
static TORCHETTE_INLINE void depthwise_block(const Plane& in, ptrdiff_t iy, ptrdiff_t ix, const float* weight,
                                             float bias, float* out, ptrdiff_t out_row, size_t lanes) {
  constexpr int kLoads = kStride == 1 ? kKernel : (kKernel + 1) / 2;
  uint32_t masks[kLoads];
  if (kEdge)
    for (int i = 0; i < kLoads; ++i) masks[i] = inside(ix + i * kStride, in.width);
  Vec acc[kRows];
#pragma GCC unroll 4
  for (int j = 0; j < kRows; ++j) acc[j] = broadcast(bias);
#pragma GCC unroll 12
  for (int r = 0; r < (kRows - 1) * kStride + kKernel; ++r) {
    const bool row_inside = !kEdge || (iy + r >= 0 && iy + r < in.height);
    if (!row_inside) continue;
    const float* p = in.data + (iy + r) * in.width + ix;
    Vec v[kKernel + 1];
#pragma GCC unroll 5
    for (int i = 0; i < kLoads; ++i) {
      const float* q = p + i * kStride;
      const Vec low = kEdge ? load_masked(q, masks[i] & kAllLanes) : load(q);
      if constexpr (kStride == 1) {
        v[i] = low;
      } else {
        const Vec high = kEdge ? load_masked(q + kLanes, masks[i] >> kLanes) : load(q + kLanes);
        deinterleave(low, high, v[2 * i], v[2 * i + 1]);
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
      const int ky = r - j * kStride;
      if (ky < 0 || ky >= kKernel) continue;
#pragma GCC unroll 5
      for (int kx = 0; kx < kKernel; ++kx) acc[j] = fma(broadcast(weight[ky * kKernel + kx]), v[kx], acc[j]);
    }
  }
#pragma GCC unroll 4
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
    // Loads of an inner block reach kLanes * kStride + kKernel - 1 (+ 1 unused) floats behind ix.
    if (rows_inside && ix >= 0 && ix + kLanes * kStride + kKernel <= in.width)
      depthwise_block<kKernel, kStride, kRows, false>(in, iy, ix, weight, bias, out + y * out_w + x, out_w,
                                                      lanes);
    else
      depthwise_block<kKernel, kStride, kRows, true>(in, iy, ix, weight, bias, out + y * out_w + x, out_w,
                                                     lanes);
  }
}

/// A square kernel of known size, dilation 1.
template <int kKernel, int kStride>
static void depthwise_plane(const Plane& in, ptrdiff_t pad_y, ptrdiff_t pad_x, const float* weight,
                            float bias, float* out, ptrdiff_t out_h, ptrdiff_t out_w) {
  constexpr int kRows = kStride == 1 ? 4 : 2;
  if (out_h < kRows) {
    for (ptrdiff_t y = 0; y < out_h; ++y)
      depthwise_rows<kKernel, kStride, 1>(in, pad_y, pad_x, weight, bias, out, out_w, y);
    return;
  }
  for (ptrdiff_t y = 0; y < out_h; y += kRows)  // the last block may redo rows of the one before
    depthwise_rows<kKernel, kStride, kRows>(in, pad_y, pad_x, weight, bias, out, out_w,
                                            y + kRows <= out_h ? y : out_h - kRows);
}

/// Any kernel, stride and dilation.
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
            v = load_masked(p, inside(ix, in.width) & kAllLanes);
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

// --- Any dtype, any memory order
// ------------------------------------------------------------------------------

template <typename T, typename Sum>
static void conv_strided(const Conv& conv, const Tensor& input, const Tensor& weight,
                         const Optional<Tensor>& bias, const Tensor& out) {
  // Spatial strides, missing dimensions in front.
  ptrdiff_t in_step[3] = {}, out_step[3] = {}, w_step[3] = {};
  const ptrdiff_t spatial = input.dim() - 2;
  for (ptrdiff_t d = 0; d < spatial; ++d) {
    in_step[3 - spatial + d] = input.strides()[2 + d];
    out_step[3 - spatial + d] = out.strides()[2 + d];
    w_step[3 - spatial + d] = weight.strides()[2 + d];
  }
  const auto* in_data = input.const_data_ptr<T>();
  const auto* w_data = weight.const_data_ptr<T>();
  auto* out_data = out.mutable_data_ptr<T>();
  for (size_t b = 0; b < conv.batch; ++b) {
    for (size_t o = 0; o < conv.groups * conv.out_channels; ++o) {
      const size_t g = o / conv.out_channels;
      for (size_t at = 0; at < conv.out_plane(); ++at) {
        const auto n = static_cast<ptrdiff_t>(at);
        const ptrdiff_t place[3] = {n / conv.out[2] / conv.out[1], n / conv.out[2] % conv.out[1],
                                    n % conv.out[2]};
        Sum sum = bias.has_value() ? static_cast<Sum>(bias->const_data_ptr<T>()[o]) : Sum(0);
        for (size_t c = 0; c < conv.in_channels; ++c) {
          const T* from = in_data + static_cast<ptrdiff_t>(b) * input.strides()[0] +
                          static_cast<ptrdiff_t>(g * conv.in_channels + c) * input.strides()[1];
          const size_t row = conv.transposed ? g * conv.in_channels + c : o;
          const size_t col = conv.transposed ? o % conv.out_channels : c;
          const T* w = w_data + static_cast<ptrdiff_t>(row) * weight.strides()[0] +
                       static_cast<ptrdiff_t>(col) * weight.strides()[1];
          for (ptrdiff_t z = 0; z < conv.kernel[0]; ++z) {
            const ptrdiff_t iz = source(conv, 0, place[0], z);
            if (iz < 0) continue;
            for (ptrdiff_t y = 0; y < conv.kernel[1]; ++y) {
              const ptrdiff_t iy = source(conv, 1, place[1], y);
              if (iy < 0) continue;
              for (ptrdiff_t x = 0; x < conv.kernel[2]; ++x) {
                const ptrdiff_t ix = source(conv, 2, place[2], x);
                if (ix < 0) continue;
                sum += static_cast<Sum>(from[iz * in_step[0] + iy * in_step[1] + ix * in_step[2]]) *
                       static_cast<Sum>(w[z * w_step[0] + y * w_step[1] + x * w_step[2]]);
              }
            }
          }
        }
        out_data[static_cast<ptrdiff_t>(b) * out.strides()[0] + static_cast<ptrdiff_t>(o) * out.strides()[1] +
                 place[0] * out_step[0] + place[1] * out_step[1] + place[2] * out_step[2]] =
            static_cast<T>(sum);
      }
    }
  }
}

// --- The operator
// ---------------------------------------------------------------------------------------------

/// Spreads a list of one or `spatial` numbers over the last of three dimensions.
static Error spread(Span<const int64_t> list, ptrdiff_t spatial, int64_t least, int64_t missing,
                    const char* what, ptrdiff_t (&to)[3]) {
  TORCHETTE_CHECK(list.size() == 1 || list.size() == static_cast<size_t>(spatial), InvalidArgument,
                  "convolution's %s has %zu entries for %d dimensions", what, list.size(),
                  static_cast<int>(spatial));
  for (ptrdiff_t d = 0; d < 3; ++d) {
    const ptrdiff_t i = d - (3 - spatial);
    const int64_t value = i < 0 ? missing : list[list.size() == 1 ? 0 : static_cast<size_t>(i)];
    TORCHETTE_CHECK(value >= least && value <= INT32_MAX, InvalidArgument, "convolution's %s is %lld", what,
                    static_cast<long long>(value));
    to[d] = static_cast<ptrdiff_t>(value);
  }
  return Error::Ok;
}

static Error describe(const Tensor& input, const Tensor& weight, const Optional<Tensor>& bias,
                      Span<const int64_t> stride, Span<const int64_t> padding, Span<const int64_t> dilation,
                      bool transposed, Span<const int64_t> output_padding, int64_t groups, Conv& conv) {
  const ptrdiff_t spatial = input.dim() - 2;
  TORCHETTE_CHECK(spatial >= 1 && spatial <= 3 && weight.dim() == input.dim(), InvalidArgument,
                  "convolution of a %d-d input with a %d-d weight", static_cast<int>(input.dim()),
                  static_cast<int>(weight.dim()));
  conv.transposed = transposed;
  TORCHETTE_TRY(spread(stride, spatial, 1, 1, "stride", conv.stride));
  TORCHETTE_TRY(spread(padding, spatial, 0, 0, "padding", conv.padding));
  TORCHETTE_TRY(spread(dilation, spatial, 1, 1, "dilation", conv.dilation));
  ptrdiff_t extra[3] = {};
  if (transposed) TORCHETTE_TRY(spread(output_padding, spatial, 0, 0, "output_padding", extra));
  TORCHETTE_CHECK(groups >= 1 && input.size(1) % groups == 0 && weight.size(0) % groups == 0, InvalidArgument,
                  "convolution of %d channels by %d filters in %lld groups", static_cast<int>(input.size(1)),
                  static_cast<int>(weight.size(0)), static_cast<long long>(groups));
  conv.batch = static_cast<size_t>(input.size(0));
  conv.groups = static_cast<size_t>(groups);
  conv.in_channels = static_cast<size_t>(input.size(1) / groups);
  const ptrdiff_t expected = transposed ? input.size(1) : input.size(1) / groups;
  TORCHETTE_CHECK(weight.size(transposed ? 0 : 1) == expected, InvalidArgument,
                  "convolution's weight is for %d channels, the input has %d",
                  static_cast<int>(weight.size(transposed ? 0 : 1)), static_cast<int>(expected));
  conv.out_channels = static_cast<size_t>(transposed ? weight.size(1) : weight.size(0) / groups);
  TORCHETTE_CHECK(
      !bias.has_value() || (bias->dim() == 1 && bias->scalar_type() == input.scalar_type() &&
                            static_cast<size_t>(bias->size(0)) == conv.groups * conv.out_channels),
      InvalidArgument, "convolution wants a bias of %zu elements", conv.groups * conv.out_channels);
  for (ptrdiff_t d = 0; d < 3; ++d) {
    const ptrdiff_t i = d - (3 - spatial);
    conv.in[d] = i < 0 ? 1 : input.size(2 + i);
    conv.kernel[d] = i < 0 ? 1 : weight.size(2 + i);
    const ptrdiff_t reach = conv.dilation[d] * (conv.kernel[d] - 1) + 1;
    conv.out[d] = transposed ? (conv.in[d] - 1) * conv.stride[d] - 2 * conv.padding[d] + reach + extra[d]
                             : (conv.in[d] + 2 * conv.padding[d] - reach) / conv.stride[d] + 1;
    TORCHETTE_CHECK(conv.kernel[d] >= 1 && conv.out[d] >= 1 &&
                        conv.in[d] + 2 * conv.padding[d] >= (transposed ? 1 : reach),
                    InvalidArgument,
                    "convolution: a kernel that spans %d does not fit an input of %d with padding %d",
                    static_cast<int>(reach), static_cast<int>(conv.in[d]), static_cast<int>(conv.padding[d]));
  }
  return Error::Ok;
}

static Error convolution_out(Context& context, const Tensor& input, const Tensor& weight,
                             Optional<Tensor> bias, Span<const int64_t> stride, Span<const int64_t> padding,
                             Span<const int64_t> dilation, bool transposed,
                             Span<const int64_t> output_padding, int64_t groups, Tensor& out) {
  Conv conv;
  TORCHETTE_TRY(
      describe(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, conv));
  const ScalarType type = input.scalar_type();
  TORCHETTE_CHECK(weight.scalar_type() == type && out.scalar_type() == type, InvalidType,
                  "convolution of dtypes %d and %d into %d", static_cast<int>(type),
                  static_cast<int>(weight.scalar_type()), static_cast<int>(out.scalar_type()));
  const ptrdiff_t spatial = input.dim() - 2;
  SizesType sizes[5] = {static_cast<SizesType>(conv.batch),
                        static_cast<SizesType>(conv.groups * conv.out_channels)};
  for (ptrdiff_t d = 0; d < spatial; ++d) sizes[2 + d] = static_cast<SizesType>(conv.out[3 - spatial + d]);
  TORCHETTE_TRY(resize_tensor(out, {sizes, static_cast<size_t>(input.dim())}));
  if (out.numel() == 0) return Error::Ok;

  if (type == ScalarType::Float && is_contiguous(input) && is_contiguous(weight) && is_contiguous(out)) {
    const auto* x = input.const_data_ptr<float>();
    const auto* w = weight.const_data_ptr<float>();
    const float* b = bias.has_value() ? bias->const_data_ptr<float>() : nullptr;
    auto* y = out.mutable_data_ptr<float>();
    bool plain = !transposed && conv.taps() == 1;
    for (int d = 0; d < 3; ++d) plain = plain && conv.stride[d] == 1 && conv.padding[d] == 0;
    if (plain) return conv_pointwise(context, conv, x, w, b, y);
    if (!transposed && conv.in_channels == 1 && conv.groups > 1 && conv.kernel[0] == 1 && conv.in[0] == 1 &&
        conv.padding[0] == 0 && conv.stride[0] == 1) {
      conv_depthwise(conv, x, w, b, y);
      return Error::Ok;
    }
    return conv_by_panels(context, conv, x, w, b, y);
  }
  switch (type) {
    case ScalarType::Float:
      conv_strided<float, float>(conv, input, weight, bias, out);
      return Error::Ok;
    case ScalarType::Double:
      conv_strided<double, double>(conv, input, weight, bias, out);
      return Error::Ok;
    case ScalarType::Half:
      conv_strided<Half, float>(conv, input, weight, bias, out);
      return Error::Ok;
    case ScalarType::BFloat16:
      conv_strided<BFloat16, float>(conv, input, weight, bias, out);
      return Error::Ok;
    case ScalarType::Long:
      conv_strided<int64_t, int64_t>(conv, input, weight, bias, out);
      return Error::Ok;
    default:
      TORCHETTE_CHECK(false, InvalidType, "no convolution of dtype %d", static_cast<int>(type));
  }
}

TORCHETTE_KERNELS(conv, TORCHETTE_KERNEL("aten::convolution.out", convolution_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
