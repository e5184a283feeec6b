// SPDX-License-Identifier: BSD-3-Clause
// _softmax and _log_softmax along one dimension: along rows of contiguous floats in vectors, along an outer
// dimension for a vector of columns at once, every other type and layout element by element.
#include <cmath>

#include "torchette/kernels/simd.h"
#include "torchette/kernels/vecmath.h"
#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

constexpr float kLowest = -__builtin_inff();

/// One contiguous row of n > 0.
template <bool kLog>
static void softmax_row(const float* x, float* y, size_t n) {
  Vec greatest = broadcast(kLowest);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) greatest = maximum(load(x + i), greatest);
  float top = horizontal_max(greatest);
  for (; i < n; ++i) top = x[i] > top ? x[i] : top;
  const Vec shift = broadcast(top);
  // Where the greatest is not a number or infinite, the differences below turn to NaN as they do in eager.
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
    const Vec rest = broadcast(std::log(total));
    for (i = 0; i + kLanes <= n; i += kLanes) store(y + i, load(x + i) - shift - rest);
    if (i < n) store_partial(y + i, load_partial(x + i, n - i) - shift - rest, n - i);
  } else {
    const Vec factor = broadcast(1.0f / total);
    for (i = 0; i + kLanes <= n; i += kLanes) store(y + i, load(y + i) * factor);
    if (i < n) store_partial(y + i, load_partial(y + i, n - i) * factor, n - i);
  }
}

/// `lanes` neighbouring columns of n elements each, `step` apart.
template <bool kLog>
static void softmax_columns(const float* x, float* y, size_t n, ptrdiff_t step, size_t lanes) {
  const auto at = [step](size_t i) { return static_cast<ptrdiff_t>(i) * step; };
  Vec greatest = load_partial(x, lanes);
  for (size_t i = 1; i < n; ++i) greatest = maximum(load_partial(x + at(i), lanes), greatest);
  Vec sum = {};
  for (size_t i = 0; i < n; ++i) {
    const Vec e = exp_f(load_partial(x + at(i), lanes) - greatest);
    if (!kLog) store_partial(y + at(i), e, lanes);
    sum += e;
  }
  if (kLog) {
    float logs[kLanes];
    store(logs, sum);
    for (size_t j = 0; j < lanes; ++j) logs[j] = std::log(logs[j]);
    const Vec rest = load(logs);
    for (size_t i = 0; i < n; ++i)
      store_partial(y + at(i), load_partial(x + at(i), lanes) - greatest - rest, lanes);
  } else {
    const Vec factor = 1.0f / sum;
    for (size_t i = 0; i < n; ++i) store_partial(y + at(i), load_partial(y + at(i), lanes) * factor, lanes);
  }
}

template <bool kLog, typename T, typename Math>
[[gnu::cold]] static void softmax_strided(const T* x, T* y, size_t n, ptrdiff_t x_step, ptrdiff_t y_step) {
  const auto value = [&](size_t i) { return static_cast<Math>(x[static_cast<ptrdiff_t>(i) * x_step]); };
  Math top = value(0);
  for (size_t i = 1; i < n; ++i) top = value(i) > top ? value(i) : top;
  Math sum = 0;
  for (size_t i = 0; i < n; ++i) sum += std::exp(value(i) - top);
  const Math rest = kLog ? std::log(sum) : sum;
  for (size_t i = 0; i < n; ++i)
    y[static_cast<ptrdiff_t>(i) * y_step] =
        static_cast<T>(kLog ? value(i) - top - rest : std::exp(value(i) - top) / rest);
}

/// All rows along `dim` of tensors of any strides.
template <bool kLog, typename T, typename Math>
[[gnu::cold]] static void softmax_any(const Tensor& self, const Tensor& out, ptrdiff_t dim) {
  const ptrdiff_t d = self.dim();
  const size_t n = d == 0 ? 1 : static_cast<size_t>(self.size(dim));
  for (size_t row = 0; row < static_cast<size_t>(self.numel()) / n; ++row) {
    ptrdiff_t from = 0, to = 0;
    size_t rest = row;
    for (ptrdiff_t i = d - 1; i >= 0; --i) {
      if (i == dim) continue;
      const auto at = static_cast<ptrdiff_t>(rest % static_cast<size_t>(self.size(i)));
      rest /= static_cast<size_t>(self.size(i));
      from += at * self.strides()[i];
      to += at * out.strides()[i];
    }
    softmax_strided<kLog, T, Math>(self.const_data_ptr<T>() + from, out.mutable_data_ptr<T>() + to, n,
                                   d == 0 ? 0 : self.strides()[dim], d == 0 ? 0 : out.strides()[dim]);
  }
}

template <bool kLog>
static Error softmax(const Tensor& self, int64_t dim, bool half_to_float, Tensor& out) {
  const ptrdiff_t d = self.dim();
  const ptrdiff_t most = d == 0 ? 1 : d;
  TORCHETTE_CHECK(dim >= -most && dim < most, InvalidArgument, "softmax along dimension %lld of %d",
                  static_cast<long long>(dim), static_cast<int>(d));
  TORCHETTE_CHECK(!half_to_float && self.scalar_type() == out.scalar_type(), InvalidType,
                  "softmax of dtype %d into %d", static_cast<int>(self.scalar_type()),
                  static_cast<int>(out.scalar_type()));
  TORCHETTE_TRY(resize_tensor(out, self.sizes()));
  if (self.numel() == 0) return Error::Ok;
  const ptrdiff_t along = dim < 0 ? static_cast<ptrdiff_t>(dim) + most : static_cast<ptrdiff_t>(dim);
  switch (self.scalar_type()) {
    case ScalarType::Float: {
      if (!is_contiguous(self) || !is_contiguous(out)) {
        softmax_any<kLog, float, float>(self, out, along);
        return Error::Ok;
      }
      const size_t n = d == 0 ? 1 : static_cast<size_t>(self.size(along));
      size_t inner = 1;
      for (ptrdiff_t i = along + 1; i < d; ++i) inner *= static_cast<size_t>(self.size(i));
      const auto* x = self.const_data_ptr<float>();
      auto* y = out.mutable_data_ptr<float>();
      const size_t outer = static_cast<size_t>(self.numel()) / (n * inner);
      for (size_t o = 0; o < outer; ++o, x += n * inner, y += n * inner) {
        if (inner == 1) {
          softmax_row<kLog>(x, y, n);
          continue;
        }
        for (size_t j = 0; j < inner; j += kLanes)
          softmax_columns<kLog>(x + j, y + j, n, static_cast<ptrdiff_t>(inner),
                                inner - j < kLanes ? inner - j : kLanes);
      }
      return Error::Ok;
    }
    case ScalarType::Double:
      softmax_any<kLog, double, double>(self, out, along);
      return Error::Ok;
    case ScalarType::Half:
      softmax_any<kLog, Half, float>(self, out, along);
      return Error::Ok;
    case ScalarType::BFloat16:
      softmax_any<kLog, BFloat16, float>(self, out, along);
      return Error::Ok;
    default:
      TORCHETTE_CHECK(false, InvalidType, "no softmax of dtype %d", static_cast<int>(self.scalar_type()));
  }
}

static Error softmax_out(Context&, const Tensor& self, int64_t dim, bool half_to_float, Tensor& out) {
  return softmax<false>(self, dim, half_to_float, out);
}

static Error log_softmax_out(Context&, const Tensor& self, int64_t dim, bool half_to_float, Tensor& out) {
  return softmax<true>(self, dim, half_to_float, out);
}

TORCHETTE_KERNELS(softmaxes, TORCHETTE_KERNEL("aten::_softmax.out", softmax_out),
                  TORCHETTE_KERNEL("aten::_log_softmax.out", log_softmax_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
