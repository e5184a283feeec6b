// SPDX-License-Identifier: BSD-3-Clause
// Pairwise distances in the p-norm: _cdist_forward between two sets of points, _pdist_forward within one set.
#include <cmath>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

template <typename T>
T distance(const T* a, const T* b, size_t n, double order) {
  T sum = 0;
  if (order == 2) {
    constexpr size_t kWays = 16;  // independent accumulators, which the compiler vectorizes
    T way[kWays] = {};
    size_t i = 0;
    for (; i + kWays <= n; i += kWays)
      for (size_t k = 0; k < kWays; ++k) way[k] += (a[i + k] - b[i + k]) * (a[i + k] - b[i + k]);
    for (; i < n; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
    for (const T part : way) sum += part;
    return std::sqrt(sum);
  }
  for (size_t i = 0; i < n; ++i) {
    const T d = std::fabs(a[i] - b[i]);
    if (order == 0)
      sum += d == 0 ? T(0) : d != d ? d : T(1);
    else if (order == 1)
      sum += d;
    else if (std::isinf(order))
      sum = d > sum || d != d ? d : sum;
    else
      sum += std::pow(d, static_cast<T>(order));
  }
  return order == 0 || order == 1 || std::isinf(order) ? sum : std::pow(sum, static_cast<T>(1 / order));
}

Error check_order(double order, const char* name) {
  TORCHETTE_CHECK(order >= 0, InvalidArgument, "%s: p is %g, expected at least 0", name, order);
  return Error::Ok;
}

Error cdist_forward_out(Context& context, const Tensor& a, const Tensor& b, double order, Optional<int64_t>,
                        Tensor& out) {
  constexpr const char* kName = "_cdist_forward";
  const auto rank = static_cast<size_t>(a.dim()), other = static_cast<size_t>(b.dim());
  TORCHETTE_TRY(check_order(order, kName));
  TORCHETTE_TRY(same_type(a, b, "x1 and x2"));
  TORCHETTE_TRY(same_type(a, out, "x1 and out"));
  TORCHETTE_CHECK(rank >= 2 && other >= 2 && a.sizes()[rank - 1] == b.sizes()[other - 1], InvalidArgument,
                  "%s: x1 and x2 have %zu and %zu dimensions; their last sizes must be equal", kName, rank,
                  other);
  const auto width = static_cast<size_t>(a.sizes()[rank - 1]);
  const auto rows = static_cast<size_t>(a.sizes()[rank - 2]),
             columns = static_cast<size_t>(b.sizes()[other - 2]);
  const size_t dim = rank > other ? rank : other;
  SizesType sizes[kMaxDim];
  Walk<2> batches;
  batches.rank = dim - 2;
  ptrdiff_t step[2] = {static_cast<ptrdiff_t>(rows * width), static_cast<ptrdiff_t>(columns * width)};
  for (size_t d = dim - 2; d-- > 0;) {
    const auto size_of = [&](const Tensor& t, size_t n, ptrdiff_t& stride, ptrdiff_t& walk) {
      const SizesType size = d + n < dim ? 1 : t.sizes()[d + n - dim];
      walk = size == 1 ? 0 : stride;
      stride *= size;
      return size;
    };
    const SizesType n = size_of(a, rank, step[0], batches.stride[0][d]);
    const SizesType m = size_of(b, other, step[1], batches.stride[1][d]);
    TORCHETTE_CHECK(n == m || n == 1 || m == 1, InvalidArgument,
                    "%s: batch sizes %d and %d of x1 and x2 do not broadcast", kName, n, m);
    sizes[d] = n == 1 ? m : n;
    batches.size[d] = static_cast<size_t>(sizes[d]);
  }
  sizes[dim - 2] = static_cast<SizesType>(rows);
  sizes[dim - 1] = static_cast<SizesType>(columns);
  TORCHETTE_TRY(resize_result(out, {sizes, dim}));
  if (out.numel() == 0) return Error::Ok;
  return for_compute<false>(a.scalar_type(), "_cdist_forward", "x1", [&](auto t) {
    using T = decltype(t);
    Dense x, y, to;
    TORCHETTE_TRY(x.read(context, a, kScalarType<T>));
    TORCHETTE_TRY(y.read(context, b, kScalarType<T>));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    T* result = to.data<T>();
    do {
      for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < columns; ++j)
          *result++ = distance(x.data<T>() + batches.offset[0] + i * width,
                               y.data<T>() + batches.offset[1] + j * width, width, order);
    } while (batches.next());
    return to.finish();
  });
}

Error pdist_forward_out(Context& context, const Tensor& x, double order, Tensor& out) {
  constexpr const char* kName = "_pdist_forward";
  TORCHETTE_TRY(check_order(order, kName));
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_CHECK(x.dim() == 2, InvalidArgument, "%s: self has %d dimensions, expected 2", kName,
                  static_cast<int>(x.dim()));
  const auto rows = static_cast<size_t>(x.sizes()[0]), width = static_cast<size_t>(x.sizes()[1]);
  const size_t pairs = rows == 0 ? 0 : rows * (rows - 1) / 2;
  TORCHETTE_CHECK(pairs <= INT32_MAX, InvalidArgument, "%s: self has too many pairs of rows: %zu", kName,
                  pairs);
  const auto size = static_cast<SizesType>(pairs);
  TORCHETTE_TRY(resize_result(out, {&size, 1}));
  return for_compute<false>(x.scalar_type(), "_pdist_forward", "self", [&](auto t) {
    using T = decltype(t);
    Dense from, to;
    TORCHETTE_TRY(from.read(context, x, kScalarType<T>));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    T* result = to.data<T>();
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = i + 1; j < rows; ++j)
        *result++ = distance(from.data<T>() + i * width, from.data<T>() + j * width, width, order);
    return to.finish();
  });
}

}  // namespace

TORCHETTE_KERNELS_NARROW(distance,                                                         //
                         TORCHETTE_KERNEL("aten::_cdist_forward.out", cdist_forward_out),  //
                         TORCHETTE_KERNEL("aten::_pdist_forward.out", pdist_forward_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
