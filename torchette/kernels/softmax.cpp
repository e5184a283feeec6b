// SPDX-License-Identifier: BSD-3-Clause
// _softmax and _log_softmax along one dimension. Floats are vectorized along contiguous rows, or over
// adjacent columns if the dimension is an outer one; doubles are computed element by element.
#include <cmath>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/simd.h"
#include "torchette/kernels/vecmath.h"

namespace torchette {
namespace TORCHETTE_ISA {

constexpr float kLowest = -INFINITY;
// Minimum number of elements for a thread, about 20 microseconds.
constexpr size_t kMinWork = size_t{1} << 14;

/// Computes one contiguous row of n > 0 elements.
template <bool kLog>
static void softmax_row(const float* x, float* y, size_t n) {
  Vec max_value = broadcast(kLowest);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) max_value = maximum(load(x + i), max_value);
  float top = horizontal_max(max_value);
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  const Vec shift = broadcast(top);
  // If the maximum is NaN or infinite, the differences below are NaN, as in eager mode.
  Vec sum[2] = {};
  for (i = 0; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const Vec a = exp_f(load(x + i) - shift), b = exp_f(load(x + i + kLanes) - shift);
    if (!kLog) {
      store(y + i, a);
      store(y + i + kLanes, b);
    }
    sum[0] += a;
    sum[1] += b;
  }
  float total = 0;
  for (; i < n; i += kLanes) {
    const size_t here = n - i < kLanes ? n - i : kLanes;
    const Vec a = exp_f(load_partial(x + i, here) - shift);
    if (!kLog) store_partial(y + i, a, here);
    float lanes[kLanes];
    store(lanes, a);
    for (size_t j = 0; j < here; ++j) total += lanes[j];
  }
  total += horizontal_sum(sum[0] + sum[1]);
  if (kLog) {
    const Vec log_sum = broadcast(std::log(total));
    for (i = 0; i + kLanes <= n; i += kLanes) store(y + i, load(x + i) - shift - log_sum);
    if (i < n) store_partial(y + i, load_partial(x + i, n - i) - shift - log_sum, n - i);
  } else {
    const Vec factor = broadcast(1.0f / total);
    for (i = 0; i + kLanes <= n; i += kLanes) store(y + i, load(y + i) * factor);
    if (i < n) store_partial(y + i, load_partial(y + i, n - i) * factor, n - i);
  }
}

/// Computes all `columns` columns of n elements if kLanes is a multiple of `columns`: a vector contains the
/// elements of several rows.
template <bool kLog>
static void softmax_narrow(const float* x, float* y, size_t n, size_t columns) {
  const size_t count = n * columns, full = count / kLanes * kLanes, left = count - full;
  // Folds all lanes of each column, and the elements after the last full vector, into each lane of the
  // column.
  const auto of_columns = [&](Vec v, Vec tail, auto fold) {
    float lanes[kLanes], last[kLanes];
    store(lanes, v);
    store(last, tail);
    for (size_t j = columns; j < kLanes; ++j) lanes[j % columns] = fold(lanes[j], lanes[j % columns]);
    for (size_t j = 0; j < left; ++j) lanes[j % columns] = fold(last[j], lanes[j % columns]);
    for (size_t j = columns; j < kLanes; ++j) lanes[j] = lanes[j - columns];
    return load(lanes);
  };
  Vec max_value = broadcast(kLowest), sum = {};
  for (size_t i = 0; i < full; i += kLanes) max_value = maximum(load(x + i), max_value);
  const Vec shift =
      of_columns(max_value, load_partial(x + full, left), [](float a, float b) { return a > b ? a : b; });
  for (size_t i = 0; i < full; i += kLanes) {
    const Vec e = exp_f(load(x + i) - shift);
    if (!kLog) store(y + i, e);
    sum += e;
  }
  const Vec tail = exp_f(load_partial(x + full, left) - shift);
  sum = of_columns(sum, tail, [](float a, float b) { return a + b; });
  if (kLog) {
    float logs[kLanes];
    store(logs, sum);
    for (size_t j = 0; j < kLanes; ++j) logs[j] = std::log(logs[j]);
    const Vec log_sum = load(logs);
    for (size_t i = 0; i < full; i += kLanes) store(y + i, load(x + i) - shift - log_sum);
    store_partial(y + full, load_partial(x + full, left) - shift - log_sum, left);
  } else {
    const Vec factor = 1.0f / sum;
    for (size_t i = 0; i < full; i += kLanes) store(y + i, load(y + i) * factor);
    store_partial(y + full, tail * factor, left);
  }
}

/// Computes `lanes` adjacent columns of n elements with row stride `step`.
template <bool kLog>
static void softmax_columns(const float* x, float* y, size_t n, ptrdiff_t step, size_t lanes) {
  const auto at = [step](size_t i) { return static_cast<ptrdiff_t>(i) * step; };
  Vec max_value = load_partial(x, lanes);
  for (size_t i = 1; i < n; ++i) max_value = maximum(load_partial(x + at(i), lanes), max_value);
  Vec sum = {};
  for (size_t i = 0; i < n; ++i) {
    const Vec e = exp_f(load_partial(x + at(i), lanes) - max_value);
    if (!kLog) store_partial(y + at(i), e, lanes);
    sum += e;
  }
  if (kLog) {
    float logs[kLanes];
    store(logs, sum);
    for (size_t j = 0; j < lanes; ++j) logs[j] = std::log(logs[j]);
    const Vec log_sum = load(logs);
    for (size_t i = 0; i < n; ++i)
      store_partial(y + at(i), load_partial(x + at(i), lanes) - max_value - log_sum, lanes);
  } else {
    const Vec factor = 1.0f / sum;
    for (size_t i = 0; i < n; ++i) store_partial(y + at(i), load_partial(y + at(i), lanes) * factor, lanes);
  }
}

/// Computes one line of doubles with stride `step`.
template <bool kLog>
static void softmax_line(const double* x, double* y, size_t n, size_t step) {
  double top = x[0], sum = 0;
  for (size_t i = 1; i < n; ++i) top = x[i * step] > top ? x[i * step] : top;
  for (size_t i = 0; i < n; ++i) {
    const double e = std::exp(x[i * step] - top);
    if (!kLog) y[i * step] = e;
    sum += e;
  }
  const double log_sum = std::log(sum);
  for (size_t i = 0; i < n; ++i) y[i * step] = kLog ? x[i * step] - top - log_sum : y[i * step] / sum;
}

template <bool kLog>
static Error softmax(Context& context, const Tensor& self, int64_t dim, bool half_to_float,
                     const Tensor& out) {
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(self.dim())));
  TORCHETTE_CHECK(!half_to_float && self.scalar_type() == out.scalar_type(), InvalidType,
                  "softmax: self is of type %d and out of type %d, which is not supported",
                  static_cast<int>(self.scalar_type()), static_cast<int>(out.scalar_type()));
  TORCHETTE_TRY(resize_result(out, self.sizes()));
  if (self.numel() == 0) return Error::Ok;
  size_t n = 1, inner = 1;
  for (size_t d = static_cast<size_t>(dim); d < static_cast<size_t>(self.dim()); ++d)
    (d == static_cast<size_t>(dim) ? n : inner) *= static_cast<size_t>(self.sizes()[d]);
  const size_t outer = static_cast<size_t>(self.numel()) / (n * inner);
  return for_compute<false>(self.scalar_type(), "softmax", "self", [&](auto t) {
    using T = decltype(t);
    Dense from, to;
    TORCHETTE_TRY(from.read(context, self, kScalarType<T>));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    const T* x = from.data<T>();
    T* y = to.data<T>();
    // Independent work items: rows, all of a few columns, vectors of adjacent columns, or single columns.
    const size_t width = kScalarType<T> == ScalarType::Float && inner > 1 ? size_t{kLanes} : size_t{1};
    const bool narrow = inner > 1 && inner < kLanes && kLanes % inner == 0 && n > kLanes / inner;
    const size_t lines = (inner + width - 1) / width;
    context.parallel_for(outer * lines, kMinWork / (n * width) + 1, [&](size_t begin, size_t end, size_t) {
      for (size_t i = begin; i < end; ++i) {
        const size_t column = i % lines * width, at = i / lines * n * inner + column;
        if constexpr (kScalarType<T> == ScalarType::Float) {
          if (inner == 1)
            softmax_row<kLog>(x + at, y + at, n);
          else if (narrow)
            softmax_narrow<kLog>(x + at, y + at, n, inner);
          else
            softmax_columns<kLog>(x + at, y + at, n, static_cast<ptrdiff_t>(inner),
                                  inner - column < width ? inner - column : width);
        } else {
          softmax_line<kLog>(x + at, y + at, n, inner);
        }
      }
    });
    return to.finish();
  });
}

static Error softmax_out(Context& context, const Tensor& self, int64_t dim, bool half_to_float, Tensor& out) {
  return softmax<false>(context, self, dim, half_to_float, out);
}

static Error log_softmax_out(Context& context, const Tensor& self, int64_t dim, bool half_to_float,
                             Tensor& out) {
  return softmax<true>(context, self, dim, half_to_float, out);
}

TORCHETTE_KERNELS(softmax, TORCHETTE_KERNEL("aten::_softmax.out", softmax_out),
                  TORCHETTE_KERNEL("aten::_log_softmax.out", log_softmax_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
