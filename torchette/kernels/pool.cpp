// SPDX-License-Identifier: BSD-3-Clause
// Pooling of images: max_pool2d_with_indices, avg_pool2d, _adaptive_avg_pool2d. Inputs are [N, C, H, W] or
// [C, H, W] in any memory order; contiguous float maxima go a vector of outputs at a time.
#include "torchette/kernels/simd.h"
#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// A pooling window's geometry: [0] rows, [1] columns.
struct Pool {
  size_t batch, channels;
  ptrdiff_t in[2], out[2];
  ptrdiff_t kernel[2], stride[2], padding[2], dilation[2];
};

static Error spread(Span<const int64_t> list, int64_t least, const char* what, ptrdiff_t (&to)[2]) {
  TORCHETTE_CHECK(list.size() == 1 || list.size() == 2, InvalidArgument, "pooling: %s has %zu entries", what,
                  list.size());
  for (size_t d = 0; d < 2; ++d) {
    const int64_t value = list[list.size() == 1 ? 0 : d];
    TORCHETTE_CHECK(value >= least && value <= INT32_MAX / 4, InvalidArgument, "pooling: %s is %lld", what,
                    static_cast<long long>(value));
    to[d] = static_cast<ptrdiff_t>(value);
  }
  return Error::Ok;
}

static Error describe_input(const Tensor& self, Pool& pool) {
  const ptrdiff_t d = self.dim();
  TORCHETTE_CHECK(d == 3 || d == 4, InvalidArgument, "pooling of a %d-d tensor", static_cast<int>(d));
  pool.batch = d == 4 ? static_cast<size_t>(self.size(0)) : 1;
  pool.channels = static_cast<size_t>(self.size(d - 3));
  pool.in[0] = self.size(d - 2);
  pool.in[1] = self.size(d - 1);
  TORCHETTE_CHECK(pool.channels > 0 && pool.in[0] > 0 && pool.in[1] > 0, InvalidArgument,
                  "pooling: only the batch may be empty");
  return Error::Ok;
}

static Error describe(const Tensor& self, Span<const int64_t> kernel, Span<const int64_t> stride,
                      Span<const int64_t> padding, Span<const int64_t> dilation, bool ceil_mode, Pool& pool) {
  TORCHETTE_TRY(describe_input(self, pool));
  TORCHETTE_TRY(spread(kernel, 1, "kernel_size", pool.kernel));
  TORCHETTE_TRY(spread(stride.empty() ? kernel : stride, 1, "stride", pool.stride));
  TORCHETTE_TRY(spread(padding, 0, "padding", pool.padding));
  TORCHETTE_TRY(spread(dilation, 1, "dilation", pool.dilation));
  for (int d = 0; d < 2; ++d) {
    TORCHETTE_CHECK(pool.padding[d] * 2 <= pool.kernel[d], InvalidArgument,
                    "pooling: a padding of %d is more than half of the kernel's %d",
                    static_cast<int>(pool.padding[d]), static_cast<int>(pool.kernel[d]));
    const ptrdiff_t room = pool.in[d] + 2 * pool.padding[d] - pool.dilation[d] * (pool.kernel[d] - 1) - 1;
    TORCHETTE_CHECK(room >= 0 || ceil_mode, InvalidArgument,
                    "pooling: a kernel of %d does not fit an input of %d", static_cast<int>(pool.kernel[d]),
                    static_cast<int>(pool.in[d]));
    const ptrdiff_t steps = room + (ceil_mode ? pool.stride[d] - 1 : 0);
    pool.out[d] = (steps >= 0 ? steps / pool.stride[d] : -1) + 1;
    // The last window must start inside the input or its left padding.
    if (ceil_mode && (pool.out[d] - 1) * pool.stride[d] >= pool.in[d] + pool.padding[d]) --pool.out[d];
    TORCHETTE_CHECK(pool.out[d] >= 1 && pool.out[d] <= INT32_MAX, InvalidArgument,
                    "pooling: the output would be empty or too large");
  }
  return Error::Ok;
}

static Error resize_output(const Tensor& self, const Pool& pool, const Tensor& out) {
  SizesType sizes[4];
  const ptrdiff_t d = self.dim();
  for (ptrdiff_t i = 0; i < d - 2; ++i) sizes[i] = self.sizes()[static_cast<size_t>(i)];
  sizes[d - 2] = static_cast<SizesType>(pool.out[0]);
  sizes[d - 1] = static_cast<SizesType>(pool.out[1]);
  return resize_tensor(out, {sizes, static_cast<size_t>(d)});
}

/// One channel of a tensor.
template <typename T>
struct Plane {
  T* data;
  ptrdiff_t row, col;  // strides

  Plane(const Tensor& t, size_t index, size_t channels) {
    const ptrdiff_t d = t.dim();
    const auto strides = t.strides();
    const auto n = static_cast<ptrdiff_t>(index / channels), c = static_cast<ptrdiff_t>(index % channels);
    data = static_cast<T*>(t.mutable_data_ptr()) + (d == 4 ? n * strides[0] : 0) +
           c * strides[static_cast<size_t>(d) - 3];
    row = strides[static_cast<size_t>(d) - 2];
    col = strides[static_cast<size_t>(d) - 1];
  }
  T& at(ptrdiff_t y, ptrdiff_t x) const { return data[y * row + x * col]; }
};

/// Calls `body` with a value of the type of a dtype that can be pooled: floating, int64, and if `kNarrow` the
/// smaller integers, which have maxima but no means.
template <bool kNarrow, typename Body>
static Error for_pooled(ScalarType type, const Body& body) {
  switch (type) {
    case ScalarType::Float:
      body(float());
      return Error::Ok;
    case ScalarType::Double:
      body(double());
      return Error::Ok;
    case ScalarType::Half:
      body(Half(0.0f));
      return Error::Ok;
    case ScalarType::BFloat16:
      body(BFloat16(0.0f));
      return Error::Ok;
    case ScalarType::Long:
      body(int64_t());
      return Error::Ok;
    default:
      break;
  }
  if constexpr (kNarrow) {
    switch (type) {
      case ScalarType::Int:
        body(int32_t());
        return Error::Ok;
      case ScalarType::Short:
        body(int16_t());
        return Error::Ok;
      case ScalarType::Char:
        body(int8_t());
        return Error::Ok;
      case ScalarType::Byte:
        body(uint8_t());
        return Error::Ok;
      default:
        break;
    }
  }
  TORCHETTE_CHECK(false, InvalidType, "no pooling of dtype %d", static_cast<int>(type));
}

// --- Maxima ---

/// First place of a window that begins at `start` which lies inside the input.
static ptrdiff_t first_inside(ptrdiff_t start, ptrdiff_t dilation) {
  return start >= 0 ? start : start + (-start + dilation - 1) / dilation * dilation;
}

template <typename T>
[[gnu::cold]] static void max_pool_plane(const Pool& pool, const Plane<T>& in, const Plane<T>& out,
                                         const Plane<int64_t>& indices) {
  for (ptrdiff_t y = 0; y < pool.out[0]; ++y) {
    for (ptrdiff_t x = 0; x < pool.out[1]; ++x) {
      const ptrdiff_t y0 = y * pool.stride[0] - pool.padding[0], x0 = x * pool.stride[1] - pool.padding[1];
      const ptrdiff_t y_from = first_inside(y0, pool.dilation[0]),
                      x_from = first_inside(x0, pool.dilation[1]);
      ptrdiff_t index = y_from * pool.in[1] + x_from;
      T best = in.at(y_from, x_from);
      for (ptrdiff_t iy = y_from; iy < y0 + pool.kernel[0] * pool.dilation[0] && iy < pool.in[0];
           iy += pool.dilation[0]) {
        for (ptrdiff_t ix = x_from; ix < x0 + pool.kernel[1] * pool.dilation[1] && ix < pool.in[1];
             ix += pool.dilation[1]) {
          const T value = in.at(iy, ix);
          if (value > best || value != value) {
            best = value;
            index = iy * pool.in[1] + ix;
          }
        }
      }
      out.at(y, x) = best;
      indices.at(y, x) = index;
    }
  }
}

/// Contiguous rows, column strides of 1 and 2: kLanes outputs at a time.
template <int kStride>
static void max_pool_rows(const Pool& pool, const float* in, float* out, int64_t* indices) {
  VecInt lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  const auto width = static_cast<int32_t>(pool.in[1]);
  for (ptrdiff_t y = 0; y < pool.out[0]; ++y) {
    const ptrdiff_t y0 = y * pool.stride[0] - pool.padding[0];
    const ptrdiff_t y_from = first_inside(y0, pool.dilation[0]);
    for (ptrdiff_t x = 0; x < pool.out[1]; x += kLanes) {
      const ptrdiff_t x0 = x * kStride - pool.padding[1];
      const auto lanes = static_cast<size_t>(pool.out[1] - x < kLanes ? pool.out[1] - x : kLanes);
      Vec best = broadcast(-__builtin_inff());
      VecInt index = broadcast(static_cast<int32_t>(-1));
      for (ptrdiff_t iy = y_from; iy < y0 + pool.kernel[0] * pool.dilation[0] && iy < pool.in[0];
           iy += pool.dilation[0]) {
        for (ptrdiff_t k = 0; k < pool.kernel[1]; ++k) {
          const ptrdiff_t ix = x0 + k * pool.dilation[1];
          const VecInt place = lane * kStride + static_cast<int32_t>(ix);
          const float* p = in + iy * pool.in[1] + ix;
          const uint32_t mask = inside_bits(ix, pool.in[1]);
          if (mask == 0) continue;
          Vec value = load_masked(p, lane_mask(mask));
          if (kStride == 2) {
            Vec odd;
            deinterleave(value, load_masked(p + kLanes, lane_mask(mask >> kLanes)), value, odd);
          }
          const VecInt inside = (place >= 0) & (place < width);
          // The first place inside counts even if it holds minus infinity.
          const VecInt better = inside & ((value > best) | (value != value) | (index < 0));
          best = select(better, value, best);
          index = select(better, place + static_cast<int32_t>(iy * pool.in[1]), index);
        }
      }
      store_partial(out + y * pool.out[1] + x, best, lanes);
      for (size_t i = 0; i < lanes; ++i) indices[y * pool.out[1] + x + static_cast<ptrdiff_t>(i)] = index[i];
    }
  }
}

static Error max_pool2d_with_indices_out(Context&, const Tensor& self, Span<const int64_t> kernel_size,
                                         Span<const int64_t> stride, Span<const int64_t> padding,
                                         Span<const int64_t> dilation, bool ceil_mode, Tensor& out,
                                         Tensor& indices) {
  Pool pool;
  TORCHETTE_TRY(describe(self, kernel_size, stride, padding, dilation, ceil_mode, pool));
  TORCHETTE_CHECK(out.scalar_type() == self.scalar_type() && indices.scalar_type() == ScalarType::Long,
                  InvalidType, "max_pool2d of dtype %d into dtypes %d and %d",
                  static_cast<int>(self.scalar_type()), static_cast<int>(out.scalar_type()),
                  static_cast<int>(indices.scalar_type()));
  TORCHETTE_TRY(resize_output(self, pool, out));
  TORCHETTE_TRY(resize_output(self, pool, indices));
  for (int d = 0; d < 2; ++d)
    TORCHETTE_CHECK((pool.out[d] - 1) * pool.stride[d] - pool.padding[d] < pool.in[d] &&
                        first_inside(-pool.padding[d], pool.dilation[d]) < pool.in[d],
                    InvalidArgument, "max_pool2d: a window lies outside of the input");
  const bool rows = self.scalar_type() == ScalarType::Float && pool.stride[1] <= 2 && is_contiguous(self) &&
                    is_contiguous(out) && is_contiguous(indices);
  return for_pooled<true>(self.scalar_type(), [&](auto t) {
    using T = decltype(t);
    for (size_t i = 0; i < pool.batch * pool.channels; ++i) {
      const Plane<T> from(self, i, pool.channels), to(out, i, pool.channels);
      const Plane<int64_t> places(indices, i, pool.channels);
      if constexpr (kScalarType<T> == ScalarType::Float) {
        if (rows && pool.stride[1] == 1) {
          max_pool_rows<1>(pool, from.data, to.data, places.data);
          continue;
        }
        if (rows) {
          max_pool_rows<2>(pool, from.data, to.data, places.data);
          continue;
        }
      }
      max_pool_plane<T>(pool, from, to, places);
    }
  });
}

// --- Means ---

/// The type in which elements of T are summed up.
template <typename T>
struct SumType {
  using Type = float;
};
template <>
struct SumType<double> {
  using Type = double;
};
template <>
struct SumType<int64_t> {
  using Type = int64_t;
};

/// Sum over [y0, y1) x [x0, x1).
template <typename T>
[[gnu::noinline]] static typename SumType<T>::Type window_sum(const Plane<T>& in, ptrdiff_t y0, ptrdiff_t y1,
                                                              ptrdiff_t x0, ptrdiff_t x1) {
  typename SumType<T>::Type sum = 0;
  if constexpr (kScalarType<T> == ScalarType::Float) {
    // Whole rows of a contiguous image are one run.
    const bool run = in.col == 1 && x1 - x0 == in.row;
    if (in.col == 1 && (run || x1 - x0 >= kLanes)) {
      const ptrdiff_t length = run ? (y1 - y0) * in.row : x1 - x0;
      Vec sums[2] = {};
      for (ptrdiff_t y = y0; y < (run ? y0 + 1 : y1); ++y) {
        const float* p = in.data + y * in.row + x0;
        ptrdiff_t i = 0;
        for (; i + 2 * kLanes <= length; i += 2 * kLanes) {
          sums[0] += load(p + i);
          sums[1] += load(p + i + kLanes);
        }
        for (; i < length; i += kLanes)
          sums[0] += load_partial(p + i, static_cast<size_t>(length - i < kLanes ? length - i : kLanes));
      }
      return horizontal_sum(sums[0] + sums[1]);
    }
  }
  for (ptrdiff_t y = y0; y < y1; ++y)
    for (ptrdiff_t x = x0; x < x1; ++x) sum += static_cast<typename SumType<T>::Type>(in.at(y, x));
  return sum;
}

static Error avg_pool2d_out(Context&, const Tensor& self, Span<const int64_t> kernel_size,
                            Span<const int64_t> stride, Span<const int64_t> padding, bool ceil_mode,
                            bool count_include_pad, Optional<int64_t> divisor_override, Tensor& out) {
  Pool pool;
  const int64_t one[] = {1};
  TORCHETTE_TRY(describe(self, kernel_size, stride, padding, {one, 1}, ceil_mode, pool));
  TORCHETTE_CHECK(out.scalar_type() == self.scalar_type(), InvalidType, "avg_pool2d of dtype %d into %d",
                  static_cast<int>(self.scalar_type()), static_cast<int>(out.scalar_type()));
  TORCHETTE_CHECK(!divisor_override.has_value() || *divisor_override != 0, InvalidArgument,
                  "avg_pool2d: the divisor must not be 0");
  TORCHETTE_TRY(resize_output(self, pool, out));
  return for_pooled<false>(self.scalar_type(), [&](auto t) {
    using T = decltype(t);
    using Sum = typename SumType<T>::Type;
    for (size_t i = 0; i < pool.batch * pool.channels; ++i) {
      const Plane<T> from(self, i, pool.channels), to(out, i, pool.channels);
      for (ptrdiff_t y = 0; y < pool.out[0]; ++y) {
        for (ptrdiff_t x = 0; x < pool.out[1]; ++x) {
          ptrdiff_t begin[2] = {y * pool.stride[0] - pool.padding[0], x * pool.stride[1] - pool.padding[1]};
          ptrdiff_t end[2], padded = 1, counted = 1;
          for (int d = 0; d < 2; ++d) {
            end[d] = begin[d] + pool.kernel[d];
            if (end[d] > pool.in[d] + pool.padding[d]) end[d] = pool.in[d] + pool.padding[d];
            padded *= end[d] - begin[d];
            if (begin[d] < 0) begin[d] = 0;
            if (end[d] > pool.in[d]) end[d] = pool.in[d];
            counted *= end[d] > begin[d] ? end[d] - begin[d] : 0;
          }
          const int64_t divisor = divisor_override.has_value() ? *divisor_override
                                  : count_include_pad          ? padded
                                                               : counted;
          to.at(y, x) = counted == 0 ? static_cast<T>(Sum(0))
                                     : static_cast<T>(window_sum(from, begin[0], end[0], begin[1], end[1]) /
                                                      static_cast<Sum>(divisor));
        }
      }
    }
  });
}

static Error adaptive_avg_pool2d_out(Context&, const Tensor& self, Span<const int64_t> output_size,
                                     Tensor& out) {
  Pool pool;
  TORCHETTE_TRY(describe_input(self, pool));
  TORCHETTE_TRY(spread(output_size, 0, "output_size", pool.out));
  TORCHETTE_CHECK(out.scalar_type() == self.scalar_type() && is_floating(self.scalar_type()), InvalidType,
                  "adaptive_avg_pool2d of dtype %d into %d", static_cast<int>(self.scalar_type()),
                  static_cast<int>(out.scalar_type()));
  TORCHETTE_TRY(resize_output(self, pool, out));
  return for_pooled<false>(self.scalar_type(), [&](auto t) {
    using T = decltype(t);
    using Sum = typename SumType<T>::Type;
    const auto begin = [&](int d, ptrdiff_t o) { return o * pool.in[d] / pool.out[d]; };
    const auto end = [&](int d, ptrdiff_t o) {
      return ((o + 1) * pool.in[d] + pool.out[d] - 1) / pool.out[d];
    };
    for (size_t i = 0; i < pool.batch * pool.channels; ++i) {
      const Plane<T> from(self, i, pool.channels), to(out, i, pool.channels);
      for (ptrdiff_t y = 0; y < pool.out[0]; ++y) {
        for (ptrdiff_t x = 0; x < pool.out[1]; ++x) {
          const ptrdiff_t y0 = begin(0, y), y1 = end(0, y), x0 = begin(1, x), x1 = end(1, x);
          to.at(y, x) =
              static_cast<T>(window_sum(from, y0, y1, x0, x1) / static_cast<Sum>((y1 - y0) * (x1 - x0)));
        }
      }
    }
  });
}

TORCHETTE_KERNELS(pool, TORCHETTE_KERNEL("aten::max_pool2d_with_indices.out", max_pool2d_with_indices_out),
                  TORCHETTE_KERNEL("aten::avg_pool2d.out", avg_pool2d_out),
                  TORCHETTE_KERNEL("aten::_adaptive_avg_pool2d.out", adaptive_avg_pool2d_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
