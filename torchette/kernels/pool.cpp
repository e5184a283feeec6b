// SPDX-License-Identifier: BSD-3-Clause
// Max and average pooling over one to three dimensions, with sliding or adaptive windows, and their
// gradients. Contiguous float max pooling computes a vector of outputs at a time, channels-last images a
// vector of channels.
#include <cmath>
#include <cstring>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/simd.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// The windows of a pooling, always over three dimensions: missing dimensions come first and have size 1.
struct Pool {
  const char* name;
  size_t spatial;  // number of spatial dimensions
  bool adaptive = false;
  size_t batch = 0, channels = 0;
  ptrdiff_t in[3] = {}, out[3] = {};
  ptrdiff_t kernel[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, padding[3] = {}, dilation[3] = {1, 1, 1};

  /// Computes the bounds of window `o` of dimension `d` within the input, and its length including padding.
  TORCHETTE_INLINE void window(size_t d, ptrdiff_t o, ptrdiff_t& begin, ptrdiff_t& end,
                               ptrdiff_t& padded) const {
    if (adaptive) {
      begin = o * in[d] / out[d];
      end = ((o + 1) * in[d] + out[d] - 1) / out[d];
      padded = end - begin;
      return;
    }
    begin = o * stride[d] - padding[d];
    end = begin + (kernel[d] - 1) * dilation[d] + 1;
    padded = (end < in[d] + padding[d] ? end : in[d] + padding[d]) - begin;
    if (begin < 0) begin += (-begin + dilation[d] - 1) / dilation[d] * dilation[d];
    if (end > in[d]) end = in[d];
  }
};

/// One window, clipped to the input.
struct Window {
  ptrdiff_t begin[3], end[3];
  ptrdiff_t padded = 1, counted = 1;  // number of elements with and without padding
};

/// A quarter of the int32 range: the sum of a size, two paddings and a window does not overflow.
constexpr int64_t kMaxExtent = INT32_MAX / 4;

static Error spread(const Pool& pool, Span<const int64_t> list, int64_t min_value, const char* what,
                    ptrdiff_t (&to)[3]) {
  TORCHETTE_CHECK(list.size() == 1 || list.size() == pool.spatial, InvalidArgument, "%s: %s has %zu elements",
                  pool.name, what, list.size());
  for (size_t i = 0; i < pool.spatial; ++i) {
    const int64_t value = list[list.size() == 1 ? 0 : i];
    TORCHETTE_CHECK(value >= min_value && value <= kMaxExtent, InvalidArgument, "%s: %s %lld is out of range",
                    pool.name, what, static_cast<long long>(value));
    to[3 - pool.spatial + i] = static_cast<ptrdiff_t>(value);
  }
  return Error::Ok;
}

static Error describe_input(const Tensor& self, Pool& pool) {
  const auto rank = static_cast<size_t>(self.dim());
  TORCHETTE_CHECK(rank == pool.spatial + 1 || rank == pool.spatial + 2, InvalidArgument,
                  "%s: self has %zu dimensions, expected the spatial ones plus 1 or 2", pool.name, rank);
  const size_t first = rank - pool.spatial;
  pool.batch = first == 2 ? static_cast<size_t>(self.size(0)) : 1;
  pool.channels = static_cast<size_t>(self.sizes()[first - 1]);
  TORCHETTE_CHECK(pool.channels > 0, InvalidArgument, "%s: self is empty in a dimension other than the batch",
                  pool.name);
  for (size_t i = 0; i < 3; ++i) {
    const size_t missing = 3 - pool.spatial;
    pool.in[i] = i < missing ? 1 : self.sizes()[first + i - missing];
    pool.out[i] = 1;
    TORCHETTE_CHECK(pool.in[i] > 0, InvalidArgument, "%s: self is empty in a dimension other than the batch",
                    pool.name);
  }
  return Error::Ok;
}

static Error describe(const Tensor& self, Span<const int64_t> kernel, Span<const int64_t> stride,
                      Span<const int64_t> padding, Span<const int64_t> dilation, bool ceil_mode, Pool& pool) {
  TORCHETTE_TRY(describe_input(self, pool));
  TORCHETTE_TRY(spread(pool, kernel, 1, "kernel_size", pool.kernel));
  TORCHETTE_TRY(spread(pool, stride.empty() ? kernel : stride, 1, "stride", pool.stride));
  TORCHETTE_TRY(spread(pool, padding, 0, "padding", pool.padding));
  TORCHETTE_TRY(spread(pool, dilation, 1, "dilation", pool.dilation));
  for (size_t d = 3 - pool.spatial; d < 3; ++d) {
    TORCHETTE_CHECK(pool.padding[d] * 2 <= pool.kernel[d], InvalidArgument,
                    "%s: padding %td is more than half of kernel_size %td", pool.name, pool.padding[d],
                    pool.kernel[d]);
    const int64_t reach = int64_t{pool.dilation[d]} * (pool.kernel[d] - 1);  // ptrdiff_t may be 32-bit
    const int64_t room = int64_t{pool.in[d]} + 2 * int64_t{pool.padding[d]} - reach - 1;
    TORCHETTE_CHECK(reach <= kMaxExtent && (room >= 0 || ceil_mode), InvalidArgument,
                    "%s: kernel_size %td with dilation %td does not fit a size of %td", pool.name,
                    pool.kernel[d], pool.dilation[d], pool.in[d]);
    const int64_t steps = room + (ceil_mode ? pool.stride[d] - 1 : 0);
    pool.out[d] = static_cast<ptrdiff_t>((steps >= 0 ? steps / pool.stride[d] : -1) + 1);
    // The last window must start inside the input or its left padding.
    if (ceil_mode && (pool.out[d] - 1) * pool.stride[d] >= pool.in[d] + pool.padding[d]) --pool.out[d];
    TORCHETTE_CHECK(pool.out[d] >= 1 && pool.out[d] <= INT32_MAX, InvalidArgument,
                    "%s: kernel_size, stride and padding yield an empty or too large result", pool.name);
  }
  return Error::Ok;
}

static Error describe_adaptive(const Tensor& self, Span<const int64_t> output_size, Pool& pool) {
  pool.adaptive = true;
  TORCHETTE_TRY(describe_input(self, pool));
  return spread(pool, output_size, 0, "output_size", pool.out);
}

/// Checks that `out` has type `type`, and resizes it to the pooled sizes.
static Error prepare_output(const Tensor& self, const Pool& pool, ScalarType type, const Tensor& out,
                            const char* name = "out") {
  TORCHETTE_CHECK(out.scalar_type() == type, InvalidType, "%s: %s is of type %d, but self requires %d",
                  pool.name, name, static_cast<int>(out.scalar_type()), static_cast<int>(type));
  SizesType sizes[5];
  const auto rank = static_cast<size_t>(self.dim());
  const size_t first = rank - pool.spatial;
  for (size_t d = 0; d < first; ++d) sizes[d] = self.sizes()[d];
  for (size_t i = 0; i < pool.spatial; ++i)
    sizes[first + i] = static_cast<SizesType>(pool.out[3 - pool.spatial + i]);
  return resize_result(out, {sizes, rank}, name);
}

/// A tensor as a batch of three-dimensional channels, accessed as T: in place if it has this type.
template <typename T>
struct Image {
  T* data;
  ptrdiff_t batch, channel, step[3] = {};
  bool converted;
  Dense dense;

  Error open(Context& context, const Pool& pool, const Tensor& t, bool reads) {
    converted = t.scalar_type() != kScalarType<T>;
    if (converted)
      TORCHETTE_TRY(reads ? dense.read(context, t, kScalarType<T>) : dense.open(context, t, kScalarType<T>));
    data = converted ? dense.data<T>() : t.mutable_data_ptr<T>();
    ptrdiff_t run = 1;
    const auto rank = static_cast<size_t>(t.dim());
    const auto stride_of = [&](size_t back) {  // `back` counts from the last dimension
      if (back >= rank) return ptrdiff_t{0};
      const ptrdiff_t own = converted ? run : t.strides()[rank - 1 - back];
      run *= t.sizes()[rank - 1 - back];
      return own;
    };
    for (size_t i = 0; i < pool.spatial; ++i) step[2 - i] = stride_of(i);
    channel = stride_of(pool.spatial);
    batch = stride_of(pool.spatial + 1);
    return Error::Ok;
  }
  Error finish() { return converted ? dense.finish() : Error::Ok; }
  T* plane(size_t n, size_t c) const {
    return data + static_cast<ptrdiff_t>(n) * batch + static_cast<ptrdiff_t>(c) * channel;
  }
  ptrdiff_t at(ptrdiff_t z, ptrdiff_t y, ptrdiff_t x) const {
    return z * step[0] + y * step[1] + x * step[2];
  }
};

/// Calls body(window, z, y, x) for each position of the output.
template <typename Body>
static TORCHETTE_INLINE void for_windows(const Pool& pool, const Body& body) {
  Window w;
  ptrdiff_t padded[3];
  const auto cut = [&](size_t d, ptrdiff_t o) { pool.window(d, o, w.begin[d], w.end[d], padded[d]); };
  for (ptrdiff_t z = 0; z < pool.out[0]; ++z) {
    cut(0, z);
    for (ptrdiff_t y = 0; y < pool.out[1]; ++y) {
      cut(1, y);
      for (ptrdiff_t x = 0; x < pool.out[2]; ++x) {
        cut(2, x);
        w.padded = padded[0] * padded[1] * padded[2];
        w.counted = 1;
        for (size_t d = 0; d < 3; ++d) w.counted *= w.end[d] > w.begin[d] ? w.end[d] - w.begin[d] : 0;
        body(w, z, y, x);
      }
    }
  }
}

// --- Max pooling

template <typename T>
[[gnu::cold]] static void max_pool_plane(const Pool& pool, const Image<T>& in, const T* from,
                                         const Image<T>& out, T* to, const Image<int64_t>& indices,
                                         int64_t* positions) {
  for_windows(pool, [&](const Window& w, ptrdiff_t z, ptrdiff_t y, ptrdiff_t x) {
    ptrdiff_t index = -1;
    T best{};
    for (ptrdiff_t iz = w.begin[0]; iz < w.end[0]; iz += pool.dilation[0])
      for (ptrdiff_t iy = w.begin[1]; iy < w.end[1]; iy += pool.dilation[1])
        for (ptrdiff_t ix = w.begin[2]; ix < w.end[2]; ix += pool.dilation[2]) {
          const T value = from[in.at(iz, iy, ix)];
          if (index < 0 || value > best || value != value) {
            best = value;
            index = (iz * pool.in[1] + iy) * pool.in[2] + ix;
          }
        }
    to[out.at(z, y, x)] = best;
    positions[indices.at(z, y, x)] = index;
  });
}

/// Contiguous rows, column strides 1 and 2: kLanes outputs at a time.
template <int kStride>
static void max_pool_rows(const Pool& pool, const float* in, float* out, int64_t* indices) {
  VecInt lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  const auto width = static_cast<int32_t>(pool.in[2]);
  Window w;
  ptrdiff_t padded;
  for (ptrdiff_t row = 0; row < pool.out[0] * pool.out[1]; ++row) {
    pool.window(0, row / pool.out[1], w.begin[0], w.end[0], padded);
    pool.window(1, row % pool.out[1], w.begin[1], w.end[1], padded);
    for (ptrdiff_t x = 0; x < pool.out[2]; x += kLanes) {
      const ptrdiff_t x0 = x * kStride - pool.padding[2];
      const auto lanes = static_cast<size_t>(pool.out[2] - x < kLanes ? pool.out[2] - x : kLanes);
      Vec best = broadcast(-INFINITY);
      VecInt index = broadcast(static_cast<int32_t>(-1));
      for (ptrdiff_t iz = w.begin[0]; iz < w.end[0]; iz += pool.dilation[0]) {
        for (ptrdiff_t iy = w.begin[1]; iy < w.end[1]; iy += pool.dilation[1]) {
          const ptrdiff_t in_row = (iz * pool.in[1] + iy) * pool.in[2];
          for (ptrdiff_t k = 0; k < pool.kernel[2]; ++k) {
            const ptrdiff_t ix = x0 + k * pool.dilation[2];
            const VecInt position = lane * kStride + static_cast<int32_t>(ix);
            const float* p = in + in_row + ix;
            const uint32_t mask = inside_bits(ix, pool.in[2]);
            if (mask == 0) continue;
            Vec value = load_masked(p, lane_mask(mask));
            if (kStride == 2) {
              Vec odd;
              deinterleave(value, load_masked(p + kLanes, lane_mask(mask >> kLanes)), value, odd);
            }
            const VecInt inside = (position >= 0) & (position < width);
            // The first position inside counts even if its value is minus infinity.
            const VecInt better = inside & ((value > best) | (value != value) | (index < 0));
            best = select(better, value, best);
            index = select(better, position + static_cast<int32_t>(in_row), index);
          }
        }
      }
      store_partial(out + row * pool.out[2] + x, best, lanes);
      for (size_t i = 0; i < lanes; ++i)
        indices[row * pool.out[2] + x + static_cast<ptrdiff_t>(i)] = index[i];
    }
  }
}

/// Channels last: kLanes channels at a time. `from` and `to` point to the first channel.
static void max_pool_channels(const Pool& pool, const Image<float>& in, const float* from,
                              const Image<float>& out, float* to, const Image<int64_t>& indices,
                              int64_t* positions) {
  for_windows(pool, [&](const Window& w, ptrdiff_t z, ptrdiff_t y, ptrdiff_t x) {
    for (size_t c = 0; c < pool.channels; c += kLanes) {
      const size_t lanes = pool.channels - c < kLanes ? pool.channels - c : kLanes;
      Vec best = broadcast(-INFINITY);
      VecInt index = broadcast(static_cast<int32_t>(-1));
      for (ptrdiff_t iz = w.begin[0]; iz < w.end[0]; iz += pool.dilation[0])
        for (ptrdiff_t iy = w.begin[1]; iy < w.end[1]; iy += pool.dilation[1])
          for (ptrdiff_t ix = w.begin[2]; ix < w.end[2]; ix += pool.dilation[2]) {
            const Vec value = load_partial(from + in.at(iz, iy, ix) + c, lanes);
            const VecInt better = (value > best) | (value != value) | (index < 0);
            best = select(better, value, best);
            index = select(better, broadcast(static_cast<int32_t>((iz * pool.in[1] + iy) * pool.in[2] + ix)),
                           index);
          }
      store_partial(to + out.at(z, y, x) + c, best, lanes);
      for (size_t i = 0; i < lanes; ++i)
        positions[indices.at(z, y, x) + static_cast<ptrdiff_t>(c + i) * indices.channel] = index[i];
    }
  });
}

static Error max_pool(Context& context, const Pool& pool, const Tensor& self, const Tensor& out,
                      const Tensor& indices) {
  TORCHETTE_TRY(prepare_output(self, pool, self.scalar_type(), out));
  TORCHETTE_TRY(prepare_output(self, pool, ScalarType::Long, indices, "indices"));
  if (out.numel() == 0) return Error::Ok;
  for (size_t d = 0; d < 3; ++d) {
    for (const ptrdiff_t o : {ptrdiff_t{0}, pool.out[d] - 1}) {
      ptrdiff_t begin, end, padded;
      pool.window(d, o, begin, end, padded);
      TORCHETTE_CHECK(begin < end, InvalidArgument, "%s: a window is outside of self", pool.name);
    }
  }
  return for_compute<true>(self.scalar_type(), pool.name, "self", [&](auto t) {
    using T = decltype(t);
    Image<T> from, to;
    Image<int64_t> positions;
    TORCHETTE_TRY(from.open(context, pool, self, true));
    TORCHETTE_TRY(to.open(context, pool, out, false));
    TORCHETTE_TRY(positions.open(context, pool, indices, false));
    for (size_t n = 0; n < pool.batch; ++n) {
      if constexpr (kScalarType<T> == ScalarType::Float) {
        if (from.channel == 1 && to.channel == 1 && pool.channels > 1) {
          max_pool_channels(pool, from, from.plane(n, 0), to, to.plane(n, 0), positions,
                            positions.plane(n, 0));
          continue;
        }
      }
      for (size_t c = 0; c < pool.channels; ++c) {
        if constexpr (kScalarType<T> == ScalarType::Float) {
          const bool rows = !pool.adaptive && pool.stride[2] <= 2 && is_contiguous(indices) &&
                            (from.converted || is_contiguous(self)) && (to.converted || is_contiguous(out));
          if (rows && pool.stride[2] == 1) {
            max_pool_rows<1>(pool, from.plane(n, c), to.plane(n, c), positions.plane(n, c));
            continue;
          }
          if (rows) {
            max_pool_rows<2>(pool, from.plane(n, c), to.plane(n, c), positions.plane(n, c));
            continue;
          }
        }
        max_pool_plane<T>(pool, from, from.plane(n, c), to, to.plane(n, c), positions, positions.plane(n, c));
      }
    }
    return to.finish();
  });
}

static constexpr int64_t kOne[] = {1};

template <size_t kSpatial>
static Error max_pool_with_indices_out(Context& context, const Tensor& self, Span<const int64_t> kernel_size,
                                       Span<const int64_t> stride, Span<const int64_t> padding,
                                       Span<const int64_t> dilation, bool ceil_mode, Tensor& out,
                                       Tensor& indices) {
  Pool pool{kSpatial == 2 ? "max_pool2d_with_indices" : "max_pool3d_with_indices", kSpatial};
  TORCHETTE_TRY(describe(self, kernel_size, stride, padding, dilation, ceil_mode, pool));
  return max_pool(context, pool, self, out, indices);
}
template <size_t kSpatial>
static Error adaptive_max_pool_out(Context& context, const Tensor& self, Span<const int64_t> output_size,
                                   Tensor& out, Tensor& indices) {
  Pool pool{kSpatial == 2 ? "adaptive_max_pool2d" : "adaptive_max_pool3d", kSpatial};
  TORCHETTE_TRY(describe_adaptive(self, output_size, pool));
  return max_pool(context, pool, self, out, indices);
}

/// Adds the gradient of each output to the input element of its maximum.
template <size_t kSpatial>
static Error max_pool_backward_out(Context& context, const Tensor& grad, const Tensor& self,
                                   Span<const int64_t> kernel_size, Span<const int64_t> stride,
                                   Span<const int64_t> padding, Span<const int64_t> dilation, bool ceil_mode,
                                   const Tensor& indices, Tensor& out) {
  Pool pool{kSpatial == 2 ? "max_pool2d_with_indices_backward" : "max_pool3d_with_indices_backward",
            kSpatial};
  TORCHETTE_TRY(describe(self, kernel_size, stride, padding, dilation, ceil_mode, pool));
  TORCHETTE_TRY(prepare_output(self, pool, self.scalar_type(), grad, "grad_output"));
  TORCHETTE_TRY(prepare_output(self, pool, ScalarType::Long, indices, "indices"));
  TORCHETTE_CHECK(out.scalar_type() == self.scalar_type(), InvalidType,
                  "%s: grad_input or out is of type %d, which differs from self", pool.name,
                  static_cast<int>(out.scalar_type()));
  TORCHETTE_TRY(resize_result(out, self.sizes(), "grad_input or out"));
  return for_compute<false>(self.scalar_type(), pool.name, "self", [&](auto t) {
    using T = decltype(t);
    Dense from, positions, to;
    TORCHETTE_TRY(from.read(context, grad, kScalarType<T>));
    TORCHETTE_TRY(positions.read(context, indices, ScalarType::Long));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    const auto in_plane = pool.in[0] * pool.in[1] * pool.in[2],
               out_plane = pool.out[0] * pool.out[1] * pool.out[2];
    const auto total = static_cast<ptrdiff_t>(pool.batch * pool.channels) * out_plane;
    for (ptrdiff_t i = 0; i < out.numel(); ++i) to.data<T>()[i] = 0;
    for (ptrdiff_t i = 0; i < total; ++i) {
      const int64_t position = positions.data<int64_t>()[i];
      TORCHETTE_CHECK(position >= 0 && position < in_plane, InvalidArgument,
                      "%s: indices contain %lld, which is out of range for %td elements", pool.name,
                      static_cast<long long>(position), in_plane);
      to.data<T>()[i / out_plane * in_plane + position] += from.data<T>()[i];
    }
    return to.finish();
  });
}

// --- Average pooling

/// Sums the elements of a window. `in` is one channel.
template <typename T>
[[gnu::noinline]] static T window_sum(const Image<T>& in, const T* from, const Window& w) {
  T sum = 0;
  for (ptrdiff_t z = w.begin[0]; z < w.end[0]; ++z) {
    if constexpr (kScalarType<T> == ScalarType::Float) {
      // Full rows of a contiguous image form a single run.
      const ptrdiff_t columns = w.end[2] - w.begin[2];
      const bool run = in.step[2] == 1 && columns == in.step[1];
      if (in.step[2] == 1 && (run || columns >= kLanes)) {
        const ptrdiff_t length = run ? (w.end[1] - w.begin[1]) * columns : columns;
        Vec sums[2] = {};
        for (ptrdiff_t y = w.begin[1]; y < (run ? w.begin[1] + 1 : w.end[1]); ++y) {
          const float* p = from + in.at(z, y, w.begin[2]);
          ptrdiff_t i = 0;
          for (; i + 2 * kLanes <= length; i += 2 * kLanes) {
            sums[0] += load(p + i);
            sums[1] += load(p + i + kLanes);
          }
          for (; i < length; i += kLanes)
            sums[0] += load_partial(p + i, static_cast<size_t>(length - i < kLanes ? length - i : kLanes));
        }
        sum += horizontal_sum(sums[0] + sums[1]);
        continue;
      }
    }
    for (ptrdiff_t y = w.begin[1]; y < w.end[1]; ++y)
      for (ptrdiff_t x = w.begin[2]; x < w.end[2]; ++x) sum += from[in.at(z, y, x)];
  }
  return sum;
}

/// Divisor of the sum of a window.
struct Divisor {
  int64_t given = 0;
  bool counts_padding = false;
  TORCHETTE_INLINE int64_t of(const Window& w) const {
    return given != 0 ? given : counts_padding ? w.padded : w.counted;
  }
};

/// Channels last.
static void avg_pool_channels(const Pool& pool, const Divisor& divisor, const Image<float>& in,
                              const float* from, const Image<float>& out, float* to) {
  for_windows(pool, [&](const Window& w, ptrdiff_t z, ptrdiff_t y, ptrdiff_t x) {
    const auto count = static_cast<float>(divisor.of(w));
    for (size_t c = 0; c < pool.channels; c += kLanes) {
      const size_t lanes = pool.channels - c < kLanes ? pool.channels - c : kLanes;
      Vec sum = {};
      for (ptrdiff_t iz = w.begin[0]; iz < w.end[0]; ++iz)
        for (ptrdiff_t iy = w.begin[1]; iy < w.end[1]; ++iy)
          for (ptrdiff_t ix = w.begin[2]; ix < w.end[2]; ++ix)
            sum += load_partial(from + in.at(iz, iy, ix) + c, lanes);
      store_partial(to + out.at(z, y, x) + c, w.counted == 0 ? Vec{} : sum / count, lanes);
    }
  });
}

static Error avg_pool(Context& context, const Pool& pool, const Divisor& divisor, const Tensor& self,
                      const Tensor& out) {
  TORCHETTE_CHECK(
      is_floating(self.scalar_type()) || (self.scalar_type() == ScalarType::Long && !pool.adaptive),
      InvalidType, "%s: self is of unsupported type %d", pool.name, static_cast<int>(self.scalar_type()));
  TORCHETTE_TRY(prepare_output(self, pool, self.scalar_type(), out));
  if (out.numel() == 0) return Error::Ok;
  return for_compute<true>(self.scalar_type(), pool.name, "self", [&](auto t) {
    using T = decltype(t);
    Image<T> from, to;
    TORCHETTE_TRY(from.open(context, pool, self, true));
    TORCHETTE_TRY(to.open(context, pool, out, false));
    for (size_t n = 0; n < pool.batch; ++n) {
      if constexpr (kScalarType<T> == ScalarType::Float) {
        if (from.channel == 1 && to.channel == 1 && pool.channels > 1) {
          avg_pool_channels(pool, divisor, from, from.plane(n, 0), to, to.plane(n, 0));
          continue;
        }
      }
      for (size_t c = 0; c < pool.channels; ++c) {
        const T* source = from.plane(n, c);
        T* target = to.plane(n, c);
        for_windows(pool, [&](const Window& w, ptrdiff_t z, ptrdiff_t y, ptrdiff_t x) {
          target[to.at(z, y, x)] =
              w.counted == 0 ? T(0) : window_sum(from, source, w) / static_cast<T>(divisor.of(w));
        });
      }
    }
    return to.finish();
  });
}

static Error describe_means(const Tensor& self, Span<const int64_t> kernel_size, Span<const int64_t> stride,
                            Span<const int64_t> padding, bool ceil_mode, bool counts_padding,
                            const Optional<int64_t>& given, Pool& pool, Divisor& divisor) {
  TORCHETTE_TRY(describe(self, kernel_size, stride, padding, {kOne, 1}, ceil_mode, pool));
  TORCHETTE_CHECK(!given.has_value() || *given != 0, InvalidArgument, "%s: divisor_override must not be 0",
                  pool.name);
  divisor = {given.value_or(0), counts_padding};
  return Error::Ok;
}
static Error avg_pool1d_out(Context& context, const Tensor& self, Span<const int64_t> kernel_size,
                            Span<const int64_t> stride, Span<const int64_t> padding, bool ceil_mode,
                            bool count_include_pad, Tensor& out) {
  Pool pool{"avg_pool1d", 1};
  Divisor divisor;
  TORCHETTE_TRY(
      describe_means(self, kernel_size, stride, padding, ceil_mode, count_include_pad, {}, pool, divisor));
  return avg_pool(context, pool, divisor, self, out);
}
template <size_t kSpatial>
static Error avg_pool_out(Context& context, const Tensor& self, Span<const int64_t> kernel_size,
                          Span<const int64_t> stride, Span<const int64_t> padding, bool ceil_mode,
                          bool count_include_pad, Optional<int64_t> divisor_override, Tensor& out) {
  Pool pool{kSpatial == 2 ? "avg_pool2d" : "avg_pool3d", kSpatial};
  Divisor divisor;
  TORCHETTE_TRY(describe_means(self, kernel_size, stride, padding, ceil_mode, count_include_pad,
                               divisor_override, pool, divisor));
  return avg_pool(context, pool, divisor, self, out);
}
template <size_t kSpatial>
static Error adaptive_avg_pool_out(Context& context, const Tensor& self, Span<const int64_t> output_size,
                                   Tensor& out) {
  Pool pool{kSpatial == 1   ? "adaptive_avg_pool1d"
            : kSpatial == 2 ? "_adaptive_avg_pool2d"
                            : "_adaptive_avg_pool3d",
            kSpatial};
  TORCHETTE_TRY(describe_adaptive(self, output_size, pool));
  return avg_pool(context, pool, {}, self, out);
}

/// Distributes the gradient of a window evenly to its elements.
[[gnu::cold]] static Error avg_pool_backward(Context& context, const Pool& pool, const Divisor& divisor,
                                             const Tensor& grad, const Tensor& self, const Tensor& out) {
  TORCHETTE_TRY(prepare_output(self, pool, self.scalar_type(), grad, "grad_output"));
  TORCHETTE_CHECK(out.scalar_type() == self.scalar_type(), InvalidType,
                  "%s: grad_input or out is of type %d, which differs from self", pool.name,
                  static_cast<int>(out.scalar_type()));
  TORCHETTE_TRY(resize_result(out, self.sizes(), "grad_input or out"));
  return for_compute<false>(self.scalar_type(), pool.name, "self", [&](auto t) {
    using T = decltype(t);
    Dense from, to;
    TORCHETTE_TRY(from.read(context, grad, kScalarType<T>));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    for (ptrdiff_t i = 0; i < out.numel(); ++i) to.data<T>()[i] = 0;
    T* target = to.data<T>();
    const T* source = from.data<T>();
    for (size_t i = 0; i < pool.batch * pool.channels; ++i) {
      for_windows(pool, [&](const Window& w, ptrdiff_t, ptrdiff_t, ptrdiff_t) {
        const T share = *source++ / static_cast<T>(divisor.of(w));
        for (ptrdiff_t z = w.begin[0]; z < w.end[0]; ++z)
          for (ptrdiff_t y = w.begin[1]; y < w.end[1]; ++y)
            for (ptrdiff_t x = w.begin[2]; x < w.end[2]; ++x)
              target[(z * pool.in[1] + y) * pool.in[2] + x] += share;
      });
      target += pool.in[0] * pool.in[1] * pool.in[2];
    }
    return to.finish();
  });
}
template <size_t kSpatial>
static Error avg_pool_backward_out(Context& context, const Tensor& grad, const Tensor& self,
                                   Span<const int64_t> kernel_size, Span<const int64_t> stride,
                                   Span<const int64_t> padding, bool ceil_mode, bool count_include_pad,
                                   Optional<int64_t> divisor_override, Tensor& out) {
  Pool pool{kSpatial == 2 ? "avg_pool2d_backward" : "avg_pool3d_backward", kSpatial};
  Divisor divisor;
  TORCHETTE_TRY(describe_means(self, kernel_size, stride, padding, ceil_mode, count_include_pad,
                               divisor_override, pool, divisor));
  return avg_pool_backward(context, pool, divisor, grad, self, out);
}
template <size_t kSpatial>
static Error adaptive_avg_pool_backward_out(Context& context, const Tensor& grad, const Tensor& self,
                                            Tensor& out) {
  Pool pool{kSpatial == 2 ? "_adaptive_avg_pool2d_backward" : "_adaptive_avg_pool3d_backward", kSpatial};
  int64_t sizes[kSpatial];
  TORCHETTE_CHECK(static_cast<size_t>(grad.dim()) >= kSpatial, InvalidArgument,
                  "%s: grad_output has %d dimensions, which is too few", pool.name,
                  static_cast<int>(grad.dim()));
  for (size_t i = 0; i < kSpatial; ++i)
    sizes[i] = grad.sizes()[static_cast<size_t>(grad.dim()) - kSpatial + i];
  TORCHETTE_TRY(describe_adaptive(self, {sizes, kSpatial}, pool));
  return avg_pool_backward(context, pool, {}, grad, self, out);
}

TORCHETTE_KERNELS_NARROW(
    pool,                                                                                 //
    TORCHETTE_KERNEL("aten::max_pool2d_with_indices.out", max_pool_with_indices_out<2>),  //
    TORCHETTE_KERNEL("aten::max_pool3d_with_indices.out", max_pool_with_indices_out<3>),  //
    TORCHETTE_KERNEL("aten::max_pool2d_with_indices_backward.grad_input",                 //
                     max_pool_backward_out<2>),                                           //
    TORCHETTE_KERNEL("aten::max_pool3d_with_indices_backward.grad_input",                 //
                     max_pool_backward_out<3>),                                           //
    TORCHETTE_KERNEL("aten::adaptive_max_pool2d.out", adaptive_max_pool_out<2>),          //
    TORCHETTE_KERNEL("aten::adaptive_max_pool3d.out", adaptive_max_pool_out<3>),          //
    TORCHETTE_KERNEL("aten::avg_pool1d.out", avg_pool1d_out),                             //
    TORCHETTE_KERNEL("aten::avg_pool2d.out", avg_pool_out<2>),                            //
    TORCHETTE_KERNEL("aten::avg_pool3d.out", avg_pool_out<3>),                            //
    TORCHETTE_KERNEL("aten::avg_pool2d_backward.grad_input", avg_pool_backward_out<2>),   //
    TORCHETTE_KERNEL("aten::avg_pool3d_backward.grad_input", avg_pool_backward_out<3>),   //
    TORCHETTE_KERNEL("aten::adaptive_avg_pool1d.out", adaptive_avg_pool_out<1>),          //
    TORCHETTE_KERNEL("aten::_adaptive_avg_pool2d.out", adaptive_avg_pool_out<2>),         //
    TORCHETTE_KERNEL("aten::_adaptive_avg_pool3d.out", adaptive_avg_pool_out<3>),         //
    TORCHETTE_KERNEL("aten::_adaptive_avg_pool2d_backward.out",                           //
                     adaptive_avg_pool_backward_out<2>),                                  //
    TORCHETTE_KERNEL("aten::_adaptive_avg_pool3d_backward.out",                           //
                     adaptive_avg_pool_backward_out<3>))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
