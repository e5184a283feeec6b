// SPDX-License-Identifier: BSD-3-Clause
// Cumulative operators along a dimension: cumsum, cumprod, logcumsumexp, cummax, cummin. Sums accumulate in
// double precision.
#include <cmath>
#include <cstring>

#include "torchette/kernels/dims.h"
#include "torchette/kernels/elementwise.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// All lines of `x` along a dimension, with the strides of up to two outputs.
struct Lines {
  Walk<3> walk;
  size_t count = 1;
  ptrdiff_t step[3] = {1, 1, 1};

  Lines(const Tensor& x, size_t along, const Tensor& a, const Tensor& b) {
    walk.rank = static_cast<size_t>(x.dim());
    for (size_t d = 0; d < walk.rank; ++d) {
      walk.size[d] = d == along ? 1 : static_cast<size_t>(x.sizes()[d]);
      const ptrdiff_t strides[] = {x.strides()[d], a.strides()[d], b.strides()[d]};
      for (size_t t = 0; t < 3; ++t) {
        walk.stride[t][d] = strides[t];
        if (d == along) step[t] = strides[t];
      }
      if (d == along) count = static_cast<size_t>(x.sizes()[d]);
    }
  }
};

/// Stores `n` values of `size` bytes as elements with stride `step`.
void put(Convert store, const char* values, size_t size, char* to, ptrdiff_t step, ptrdiff_t element,
         size_t n) {
  if (step == 1) return store(values, 1, to, n);
  for (size_t k = 0; k < n; ++k, to += step * element) store(values + size * k, 1, to, 1);
}

double log_of_sum(double a, double b) {
  if (a != a || b != b) return a + b;
  const double high = a > b ? a : b, low = a > b ? b : a;
  return std::isinf(high) ? high : high + std::log1p(std::exp(low - high));
}

enum class Running : uint8_t { Sum, Product, LogSum };

/// Folds each of `n` values into the accumulator and stores the running result.
template <typename T, typename Sum, typename Fold>
void run(T* x, size_t n, Sum& total, Fold fold) {
  Sum sum = total;
  for (size_t i = 0; i < n; ++i) x[i] = static_cast<T>(sum = fold(sum, static_cast<Sum>(x[i])));
  total = sum;
}
/// Sum is the accumulator type for T, in which integers wrap around.
template <typename T, typename Sum>
void run(Running kind, T* x, size_t n, Sum& sum) {
  const auto add = [](Sum a, Sum b) { return a + b; };
  const auto multiply = [](Sum a, Sum b) { return a * b; };
  if (kind == Running::Sum)
    run(x, n, sum, add);
  else if (kind == Running::Product)
    run(x, n, sum, multiply);
  else if constexpr (static_cast<Sum>(0.5) != 0)
    run(x, n, sum, log_of_sum);
}

Error accumulate(Running kind, const Tensor& x, int64_t dim, const Tensor& out) {
  TORCHETTE_CHECK(is_real(x.scalar_type()) && is_real(out.scalar_type()), InvalidType,
                  "self is of type %d and out of type %d, expected real types",
                  static_cast<int>(x.scalar_type()), static_cast<int>(out.scalar_type()));
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  if (x.numel() == 0) return Error::Ok;
  Lines lines(x, static_cast<size_t>(dim), out, out);
  const bool is_integer = compute_type(out.scalar_type()) == kI64;
  const Compute wide = is_integer ? kI64 : kF64;
  const Convert load = load_as(x.scalar_type(), wide), store = store_as(wide, out.scalar_type());
  const ptrdiff_t element = x.element_size(), out_element = out.element_size();
  do {
    double sum = kind == Running::Sum ? 0 : kind == Running::Product ? 1 : -INFINITY;
    uint64_t int_sum = kind == Running::Product ? 1 : 0;
    const char* from = static_cast<const char*>(x.const_data_ptr()) + lines.walk.offset[0] * element;
    char* to = static_cast<char*>(out.mutable_data_ptr()) + lines.walk.offset[1] * out_element;
    alignas(64) char buffer[kChunk * 8];
    for (size_t i = 0, n; i < lines.count; i += n) {
      n = lines.count - i < kChunk ? lines.count - i : kChunk;
      load(from + static_cast<ptrdiff_t>(i) * lines.step[0] * element, lines.step[0], buffer, n);
      if (is_integer)
        run(kind, reinterpret_cast<int64_t*>(buffer), n, int_sum);
      else
        run(kind, reinterpret_cast<double*>(buffer), n, sum);
      put(store, buffer, 8, to + static_cast<ptrdiff_t>(i) * lines.step[1] * out_element, lines.step[1],
          out_element, n);
    }
  } while (lines.walk.next());
  return Error::Ok;
}

/// Replaces each of `n` elements by the maximum (or minimum) so far, and stores its index, the later one of
/// equal elements. `first` is the index of the first element. NaN propagates.
template <bool kIsMax, typename T>
void extremes(T* x, size_t n, size_t first, uint64_t& state, int64_t& at, int64_t* indices, ptrdiff_t step) {
  T best = x[0];
  if (first != 0) memcpy(&best, &state, sizeof(T));
  for (size_t i = 0; i < n; ++i, indices += step) {
    if ((kIsMax ? x[i] >= best : x[i] <= best) || x[i] != x[i]) {
      best = x[i];
      at = static_cast<int64_t>(first + i);
    }
    x[i] = best;
    *indices = at;
  }
  memcpy(&state, &best, sizeof(T));
}

template <bool kIsMax>
Error extremes_so_far(const Tensor& x, int64_t dim, const Tensor& values, const Tensor& indices) {
  TORCHETTE_TRY(same_type(x, values, "self and values"));
  TORCHETTE_CHECK(is_real(x.scalar_type()) && indices.scalar_type() == ScalarType::Long, InvalidType,
                  "self is of type %d and indices of type %d, expected a real type and int64",
                  static_cast<int>(x.scalar_type()), static_cast<int>(indices.scalar_type()));
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  TORCHETTE_TRY(resize_result(values, x.sizes(), "values"));
  TORCHETTE_TRY(resize_result(indices, x.sizes(), "indices"));
  if (x.numel() == 0) return Error::Ok;
  Lines lines(x, static_cast<size_t>(dim), values, indices);
  const ptrdiff_t element = x.element_size();
  const Compute type = compute_type(x.scalar_type());
  const Convert load = load_as(x.scalar_type(), type), store = store_as(type, x.scalar_type());
  do {
    const char* from = static_cast<const char*>(x.const_data_ptr()) + lines.walk.offset[0] * element;
    char* to = static_cast<char*>(values.mutable_data_ptr()) + lines.walk.offset[1] * element;
    int64_t* index = indices.mutable_data_ptr<int64_t>() + lines.walk.offset[2];
    alignas(64) char buffer[kChunk * 8];
    uint64_t best = 0;
    int64_t at = 0;
    for (size_t i = 0, n; i < lines.count; i += n) {
      n = lines.count - i < kChunk ? lines.count - i : kChunk;
      load(from + static_cast<ptrdiff_t>(i) * lines.step[0] * element, lines.step[0], buffer, n);
      int64_t* const here = index + static_cast<ptrdiff_t>(i) * lines.step[2];
      if (type == kF32)
        extremes<kIsMax>(reinterpret_cast<float*>(buffer), n, i, best, at, here, lines.step[2]);
      else if (type == kF64)
        extremes<kIsMax>(reinterpret_cast<double*>(buffer), n, i, best, at, here, lines.step[2]);
      else
        extremes<kIsMax>(reinterpret_cast<int64_t*>(buffer), n, i, best, at, here, lines.step[2]);
      put(store, buffer, compute_size(type), to + static_cast<ptrdiff_t>(i) * lines.step[1] * element,
          lines.step[1], element, n);
    }
  } while (lines.walk.next());
  return Error::Ok;
}

Error cumsum_out(Context&, const Tensor& x, int64_t dim, Optional<int64_t>, Tensor& out) {
  return accumulate(Running::Sum, x, dim, out);
}
Error cumprod_out(Context&, const Tensor& x, int64_t dim, Optional<int64_t>, Tensor& out) {
  return accumulate(Running::Product, x, dim, out);
}
Error logcumsumexp_out(Context&, const Tensor& x, int64_t dim, Tensor& out) {
  TORCHETTE_CHECK(is_floating(x.scalar_type()) && is_floating(out.scalar_type()), InvalidType,
                  "logcumsumexp: self is of type %d and out of type %d, expected floating types",
                  static_cast<int>(x.scalar_type()), static_cast<int>(out.scalar_type()));
  return accumulate(Running::LogSum, x, dim, out);
}
Error cummax_out(Context&, const Tensor& x, int64_t dim, Tensor& values, Tensor& indices) {
  return extremes_so_far<true>(x, dim, values, indices);
}
Error cummin_out(Context&, const Tensor& x, int64_t dim, Tensor& values, Tensor& indices) {
  return extremes_so_far<false>(x, dim, values, indices);
}

}  // namespace

TORCHETTE_KERNELS_ONCE(running,                                                       //
                       TORCHETTE_KERNEL("aten::cumsum.out", cumsum_out),              //
                       TORCHETTE_KERNEL("aten::cumprod.out", cumprod_out),            //
                       TORCHETTE_KERNEL("aten::logcumsumexp.out", logcumsumexp_out),  //
                       TORCHETTE_KERNEL("aten::cummax.out", cummax_out),              //
                       TORCHETTE_KERNEL("aten::cummin.out", cummin_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
