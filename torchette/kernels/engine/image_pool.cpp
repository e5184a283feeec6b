// SPDX-License-Identifier: BSD-3-Clause
// cpu::max_pool, cpu::avg_pool and cpu::adaptive_avg_pool: torchette/backends/engine/operators/image_pool.py;
// cpu::quantized_avg_pool: quantized.py there.
#include <cmath>
#include <limits>

#include "torchette/kernels/engine/image.h"
#include "torchette/kernels/engine/panels.h"
#include "torchette/kernels/engine/quantized.h"
#include "torchette/kernels/simd.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

/// The taps [from, to) of a window starting at `begin` that lie inside of `size` elements.
struct Inside {
  ptrdiff_t from, to;
  Inside(ptrdiff_t begin, ptrdiff_t kernel, ptrdiff_t dilation, ptrdiff_t size) {
    from = begin >= 0 ? 0 : (-begin + dilation - 1) / dilation;
    to = begin < size ? (size - 1 - begin) / dilation + 1 : 0;
    if (to > kernel) to = kernel;
    if (to < from) to = from;
  }
};

/// Folds the elements under a window, n channels at a time: put(fold(... fold(start, x0, n) ..., n), place,
/// n).
template <typename T, typename Fold, typename Put>
TORCHETTE_INLINE void fold_window(const Window& w, const T* image, ptrdiff_t z0, ptrdiff_t y0, ptrdiff_t x0,
                                  float start, const Fold& fold, const Put& put, T* out) {
  const Inside z(z0, w.kernel[0], w.dilation[0], w.in[0]), y(y0, w.kernel[1], w.dilation[1], w.in[1]);
  const Inside x(x0, w.kernel[2], w.dilation[2], w.in[2]);
  const auto channels = static_cast<ptrdiff_t>(w.channels);
  for (size_t c = 0; c < w.channels; c += kLanes) {
    const size_t here = w.channels - c < kLanes ? w.channels - c : kLanes;
    Vec value = broadcast(start);
    for (ptrdiff_t kz = z.from; kz < z.to; ++kz)
      for (ptrdiff_t ky = y.from; ky < y.to; ++ky) {
        const T* in =
            image +
            (((z0 + kz * w.dilation[0]) * w.in[1] + y0 + ky * w.dilation[1]) * w.in[2] + x0) * channels +
            static_cast<ptrdiff_t>(c);
        for (ptrdiff_t kx = x.from; kx < x.to; ++kx)
          value = fold(value, in + kx * w.dilation[2] * channels, here);
      }
    put(value, out + c, here);
  }
}

/// fold_window() for floats. The result is multiplied by `factor`.
template <typename Fold>
void fold_floats(const Window& w, const float* image, ptrdiff_t z0, ptrdiff_t y0, ptrdiff_t x0, float start,
                 float factor, const Fold& fold, float* out) {
  const auto element = [&](Vec value, const float* p, size_t n) TORCHETTE_INLINED {
    return fold(value, n == kLanes ? load(p) : load_partial(p, n));
  };
  const auto put = [&](Vec value, float* to, size_t n) TORCHETTE_INLINED {
    if (n == kLanes)
      store(to, value * factor);
    else
      store_partial(to, value * factor, n);
  };
  fold_window(w, image, z0, y0, x0, start, element, put, out);
}

/// Returns the number of elements along a dimension that an average counts: inside of the image, or of the
/// padded image.
ptrdiff_t counted(ptrdiff_t begin, ptrdiff_t kernel, ptrdiff_t size, ptrdiff_t padding, bool padded) {
  const ptrdiff_t first = padded || begin > 0 ? begin : 0, bound = padded ? size + padding : size;
  const ptrdiff_t last = begin + kernel < bound ? begin + kernel : bound;
  return last > first ? last - first : 0;
}

template <typename Body>
void for_windows(Context& context, const Window& w, const Body& body) {
  const size_t rows = static_cast<size_t>(w.out[0] * w.out[1]),
               row = static_cast<size_t>(w.out[2]) * w.channels;
  context.parallel_for(w.batch * rows, min_items(row * w.taps()), [&](size_t begin, size_t end, size_t) {
    for (size_t r = begin; r < end; ++r) {
      const auto position = static_cast<ptrdiff_t>(r % rows);
      for (ptrdiff_t x = 0; x < w.out[2]; ++x)
        body(r / rows, position / w.out[1] * w.stride[0] - w.padding[0],
             position % w.out[1] * w.stride[1] - w.padding[1], x * w.stride[2] - w.padding[2],
             r * row + static_cast<size_t>(x) * w.channels);
    }
  });
}

Error describe_pool(const char* op, const Tensor& input, Span<const int64_t> kernel,
                    Span<const int64_t> stride, Span<const int64_t> padding, Span<const int64_t> dilation,
                    bool ceil, Window& w, Tensor& out) {
  TORCHETTE_CHECK(kernel.size() <= 3 && static_cast<ptrdiff_t>(kernel.size()) == input.dim() - 2,
                  InvalidArgument, "%s: kernel has %d elements for an input of %d dimensions", op,
                  static_cast<int>(kernel.size()), static_cast<int>(input.dim()));
  SizesType window[3];
  for (size_t d = 0; d < kernel.size(); ++d) {
    TORCHETTE_CHECK(
        kernel[d] >= 1 && kernel[d] <= INT32_MAX && d < padding.size() && 2 * padding[d] <= kernel[d],
        InvalidArgument, "%s: kernel size %lld or its padding is out of range", op,
        static_cast<long long>(kernel[d]));
    window[d] = static_cast<SizesType>(kernel[d]);
  }
  TORCHETTE_TRY(describe_window(op, input, window, stride, padding, dilation, ceil, w));
  SizesType sizes[5];
  return resize_result(out, result_sizes(w, w.channels, sizes));
}

Error check_both(const char* op, const Tensor& input, const Tensor& out) {
  TORCHETTE_TRY(check_floats(op, input, "input"));
  return check_floats(op, out, "out");
}

/// Computes the maximum of the bytes under a window, kBytes channels at a time from `c`. The last ones
/// overlap the previous ones. Returns the first channel that is left, because fewer than kBytes are.
template <size_t kBytes, typename T, typename Taps>
size_t fold_channels(size_t channels, size_t c, const Taps& for_taps, T* out) {
  TORCHETTE_LANES(Bytes, T, kBytes);
  while (channels - c >= kBytes || (c < channels && channels >= kBytes)) {
    if (channels - c < kBytes) c = channels - kBytes;
    Bytes best = Bytes{} + std::numeric_limits<T>::min();
    for_taps([&](const T* pixel) TORCHETTE_INLINED {
      Bytes some;
      memcpy(&some, pixel + c, sizeof(some));
      best = TORCHETTE_SELECT(some > best, some, best);
    });
    memcpy(out + c, &best, sizeof(best));
    c += kBytes;
  }
  return c;
}

template <typename T>
void fold_bytes(const Window& w, const T* image, ptrdiff_t z0, ptrdiff_t y0, ptrdiff_t x0, T* out) {
  const Inside z(z0, w.kernel[0], w.dilation[0], w.in[0]), y(y0, w.kernel[1], w.dilation[1], w.in[1]);
  const Inside x(x0, w.kernel[2], w.dilation[2], w.in[2]);
  const auto for_taps = [&](const auto& tap) TORCHETTE_INLINED {
    for (ptrdiff_t kz = z.from; kz < z.to; ++kz)
      for (ptrdiff_t ky = y.from; ky < y.to; ++ky) {
        const ptrdiff_t row = (z0 + kz * w.dilation[0]) * w.in[1] + y0 + ky * w.dilation[1];
        for (ptrdiff_t kx = x.from; kx < x.to; ++kx)
          tap(image + (row * w.in[2] + x0 + kx * w.dilation[2]) * static_cast<ptrdiff_t>(w.channels));
      }
  };
  size_t c = 0;
  if constexpr (TORCHETTE_HAS_VECTORS) {
    if (w.channels >= sizeof(Vec)) c = fold_channels<sizeof(Vec)>(w.channels, c, for_taps, out);
    c = fold_channels<16>(w.channels, c, for_taps, out);
  }
  fold_channels<1>(w.channels, c, for_taps, out);
}

template <typename T>
Error max_pool_of_bytes(Context& context, const Window& w, const Tensor& input, const Tensor& out) {
  const T* const x = input.const_data_ptr<T>();
  T* const to = out.mutable_data_ptr<T>();
  for_windows(context, w, [&](size_t b, ptrdiff_t z0, ptrdiff_t y0, ptrdiff_t x0, size_t at) {
    fold_bytes(w, x + b * w.in_pixels() * w.channels, z0, y0, x0, to + at);
  });
  return Error::Ok;
}

}  // namespace

static Error max_pool_out(Context& context, const Tensor& input, Span<const int64_t> kernel,
                          Span<const int64_t> stride, Span<const int64_t> padding,
                          Span<const int64_t> dilation, bool ceil_mode, Tensor& out) {
  Window w;
  TORCHETTE_TRY(describe_pool("max_pool", input, kernel, stride, padding, dilation, ceil_mode, w, out));
  const ScalarType type = input.scalar_type();
  if (type == out.scalar_type() && is_contiguous(input) && is_contiguous(out)) {
    if (type == ScalarType::Char) return max_pool_of_bytes<int8_t>(context, w, input, out);
    if (type == ScalarType::Byte) return max_pool_of_bytes<uint8_t>(context, w, input, out);
  }
  TORCHETTE_TRY(check_both("max_pool", input, out));
  const float* const x = input.const_data_ptr<float>();
  float* const to = out.mutable_data_ptr<float>();
  const auto fold = [](Vec a, Vec b) TORCHETTE_INLINED {
    return select(b != b, b,
                  maximum(b, a));  // NaN propagates: maximum() returns its second operand if either is NaN
  };
  for_windows(context, w, [&](size_t b, ptrdiff_t z0, ptrdiff_t y0, ptrdiff_t x0, size_t at) {
    fold_floats(w, x + b * w.in_pixels() * w.channels, z0, y0, x0, -INFINITY, 1.0f, fold, to + at);
  });
  return Error::Ok;
}

static Error avg_pool_out(Context& context, const Tensor& input, Span<const int64_t> kernel,
                          Span<const int64_t> stride, Span<const int64_t> padding, bool ceil_mode,
                          bool count_include_pad, Optional<int64_t> divisor, Tensor& out) {
  Window w;
  constexpr int64_t kOnes[] = {1, 1, 1};
  TORCHETTE_TRY(describe_pool("avg_pool", input, kernel, stride, padding,
                              {kOnes, kernel.size() <= 3 ? kernel.size() : 0}, ceil_mode, w, out));
  TORCHETTE_TRY(check_both("avg_pool", input, out));
  TORCHETTE_CHECK(!divisor.has_value() || *divisor != 0, InvalidArgument, "avg_pool: divisor must not be 0");
  const float* const x = input.const_data_ptr<float>();
  float* const to = out.mutable_data_ptr<float>();
  const auto fold = [](Vec a, Vec b) TORCHETTE_INLINED { return a + b; };
  for_windows(context, w, [&](size_t b, ptrdiff_t z0, ptrdiff_t y0, ptrdiff_t x0, size_t at) {
    const ptrdiff_t begin[] = {z0, y0, x0};
    double count = 1;
    for (int d = 0; d < 3; ++d)
      count *= static_cast<double>(counted(begin[d], w.kernel[d], w.in[d], w.padding[d], count_include_pad));
    if (divisor.has_value()) count = static_cast<double>(*divisor);
    fold_floats(w, x + b * w.in_pixels() * w.channels, z0, y0, x0, 0.0f, static_cast<float>(1.0 / count),
                fold, to + at);
  });
  return Error::Ok;
}

static Error adaptive_avg_pool_out(Context& context, const Tensor& input, Span<const int64_t> output_size,
                                   Tensor& out) {
  TORCHETTE_CHECK(output_size.size() <= 3 && static_cast<ptrdiff_t>(output_size.size()) == input.dim() - 2,
                  InvalidArgument,
                  "adaptive_avg_pool: output_size has %d elements for an input of %d dimensions",
                  static_cast<int>(output_size.size()), static_cast<int>(input.dim()));
  constexpr SizesType kKernel[] = {1, 1, 1};
  constexpr int64_t kOnes[] = {1, 1, 1}, kZeros[] = {0, 0, 0};
  Window w;
  const size_t spatial = output_size.size();
  TORCHETTE_TRY(check_floats("adaptive_avg_pool", input, "input"));
  TORCHETTE_TRY(read_window("adaptive_avg_pool", input, kKernel, {kOnes, spatial}, {kZeros, spatial},
                            {kOnes, spatial}, w));
  for (size_t d = 3 - spatial; d < 3; ++d) {
    const int64_t size = output_size[d - (3 - spatial)];
    TORCHETTE_CHECK(size > 0 && size <= INT32_MAX && w.in[d] > 0, InvalidArgument,
                    "adaptive_avg_pool: input size %d or output_size %lld is out of range",
                    static_cast<int>(w.in[d]), static_cast<long long>(size));
    w.out[d] = static_cast<ptrdiff_t>(size);
  }
  SizesType sizes[5];
  TORCHETTE_TRY(check_result("adaptive_avg_pool", out, result_sizes(w, w.channels, sizes)));
  const float* const x = input.const_data_ptr<float>();
  float* const to = out.mutable_data_ptr<float>();
  const auto fold = [](Vec a, Vec b) TORCHETTE_INLINED { return a + b; };
  for_windows(context, w, [&](size_t b, ptrdiff_t z, ptrdiff_t y, ptrdiff_t x0, size_t at) {
    const ptrdiff_t position[] = {z, y, x0};
    ptrdiff_t begin[3];
    Window own = w;
    for (int d = 0; d < 3; ++d) {  // from place in / out, rounded down, to (place + 1) in / out, rounded up
      begin[d] = position[d] * w.in[d] / w.out[d];
      own.kernel[d] = ((position[d] + 1) * w.in[d] + w.out[d] - 1) / w.out[d] - begin[d];
    }
    fold_floats(own, x + b * w.in_pixels() * w.channels, begin[0], begin[1], begin[2], 0.0f,
                static_cast<float>(1.0 / static_cast<double>(own.taps())), fold, to + at);
  });
  return Error::Ok;
}

static Error quantized_avg_pool_out(Context& context, const Tensor& input, Span<const int64_t> kernel,
                                    Span<const int64_t> stride, Span<const int64_t> padding,
                                    double multiplier, int64_t input_zero, int64_t zero, int64_t low,
                                    int64_t high, Tensor& out) {
  constexpr const char* kName = "quantized_avg_pool";
  constexpr int64_t kOnes[] = {1, 1, 1};
  Window w;
  TORCHETTE_TRY(check_bytes(kName, input, "input"));
  TORCHETTE_TRY(check_input_zero(kName, input, input_zero));
  TORCHETTE_TRY(describe_pool(kName, input, kernel, stride, padding,
                              {kOnes, kernel.size() <= 3 ? kernel.size() : 0}, false, w, out));
  TORCHETTE_TRY(check_quantized(kName, out, out.sizes(), zero, low, high));
  TORCHETTE_CHECK(input.scalar_type() == out.scalar_type(), InvalidType, "%s: out and input differ in type",
                  kName);
  for (int d = 0; d < 3; ++d)
    TORCHETTE_CHECK(static_cast<size_t>(w.kernel[d]) <= kMaxPoolElements, InvalidArgument,
                    "%s: window size %lld exceeds the maximum", kName, static_cast<long long>(w.kernel[d]));
  TORCHETTE_CHECK(w.taps() <= kMaxPoolElements, InvalidArgument,
                  "%s: a window of %lld elements exceeds the maximum", kName,
                  static_cast<long long>(w.taps()));
  const int8_t flip = static_cast<int8_t>(input.scalar_type() == ScalarType::Char ? 0 : INT8_MIN);
  const auto zero_point = static_cast<float>(input_zero + flip), factor = static_cast<float>(multiplier);
  const ToBytes bytes(static_cast<int32_t>(zero), static_cast<int32_t>(low), static_cast<int32_t>(high));
  const auto* const from = static_cast<const uint8_t*>(input.const_data_ptr());
  auto* const to = static_cast<uint8_t*>(out.mutable_data_ptr());
  const auto fold = [&](Vec sum, const uint8_t* p, size_t n)
                        TORCHETTE_INLINED { return sum + (floats_of(p, flip, n) - zero_point); };
  const auto put = [&](Vec sum, uint8_t* position, size_t n) TORCHETTE_INLINED {
    const Vec scaled[1] = {sum * factor};
    bytes.put(scaled, n, position);
  };
  for_windows(context, w, [&](size_t b, ptrdiff_t z0, ptrdiff_t y0, ptrdiff_t x0, size_t at) {
    fold_window(w, from + b * w.in_pixels() * w.channels, z0, y0, x0, 0.0f, fold, put, to + at);
  });
  return Error::Ok;
}

TORCHETTE_KERNELS(image_pool, TORCHETTE_KERNEL("cpu::max_pool.out", max_pool_out),
                  TORCHETTE_KERNEL("cpu::avg_pool.out", avg_pool_out),
                  TORCHETTE_KERNEL("cpu::adaptive_avg_pool.out", adaptive_avg_pool_out),
                  TORCHETTE_KERNEL("cpu::quantized_avg_pool.out", quantized_avg_pool_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
