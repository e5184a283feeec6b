// SPDX-License-Identifier: BSD-3-Clause
// Implementation of matrices.h.
#include "torchette/kernels/scientific/matrices.h"

#include <cmath>

namespace torchette {
namespace TORCHETTE_ISA {

Error matrices(const char* what, const char* argument, const Tensor& t, Batch& batch) {
  TORCHETTE_CHECK(t.dim() >= 2, InvalidArgument, "%s: %s has %d dimensions, expected at least 2", what,
                  argument, static_cast<int>(t.dim()));
  TORCHETTE_CHECK(is_floating(t.scalar_type()), InvalidType, "%s: %s is of type %d, expected a floating type",
                  what, argument, static_cast<int>(t.scalar_type()));
  const auto rank = static_cast<size_t>(t.dim());
  batch = {1, static_cast<size_t>(t.sizes()[rank - 2]), static_cast<size_t>(t.sizes()[rank - 1])};
  for (size_t d = 0; d + 2 < rank; ++d) batch.count *= static_cast<size_t>(t.sizes()[d]);
  return Error::Ok;
}

Error square_matrices(const char* what, const char* argument, const Tensor& t, Batch& batch) {
  TORCHETTE_TRY(matrices(what, argument, t, batch));
  TORCHETTE_CHECK(batch.rows == batch.columns, InvalidArgument,
                  "%s: %s has %zu rows and %zu columns, expected a square matrix", what, argument, batch.rows,
                  batch.columns);
  return Error::Ok;
}

Error resize_batch(const Tensor& out, const Tensor& like, size_t first, size_t second, size_t count,
                   const char* name) {
  SizesType sizes[kMaxDim];
  const auto batch = static_cast<size_t>(like.dim()) - 2;
  for (size_t d = 0; d < batch; ++d) sizes[d] = like.sizes()[d];
  sizes[batch] = static_cast<SizesType>(first);
  sizes[batch + 1] = static_cast<SizesType>(second);
  return resize_result(out, {sizes, batch + count}, name);
}

Error check_types(const char* what, const char* names, const Tensor& x, const Tensor& a, const Tensor& b) {
  TORCHETTE_CHECK(x.scalar_type() == a.scalar_type() && x.scalar_type() == b.scalar_type(), InvalidType,
                  "%s: %s are of types %d, %d and %d, expected one type", what, names,
                  static_cast<int>(x.scalar_type()), static_cast<int>(a.scalar_type()),
                  static_cast<int>(b.scalar_type()));
  return Error::Ok;
}

Error scratch(Context& context, const char* what, size_t count, double*& room) {
  room = static_cast<double*>(context.allocate_temp((count + 1) * sizeof(double)));
  TORCHETTE_CHECK(room != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %zu elements", what,
                  count);
  return Error::Ok;
}

Error scale_of(const char* what, const char* argument, size_t b, const double* a, size_t count,
               double& scale) {
  double largest = 0;
  bool finite = true;
  for (size_t i = 0; i < count; ++i) {
    largest = std::fmax(largest, std::fabs(a[i]));
    finite = finite && std::isfinite(a[i]);
  }
  TORCHETTE_CHECK(finite, InvalidArgument, "%s: %s: matrix %zu of the batch has infinite or NaN elements",
                  what, argument, b);
  scale = largest > 0 ? largest : 1;
  return Error::Ok;
}

Error BatchWalk::start(const char* what, const Tensor& a, size_t a_inner, const Tensor& b, size_t b_inner,
                       size_t rows, size_t columns) {
  const size_t ranks[2] = {static_cast<size_t>(a.dim()) - a_inner, static_cast<size_t>(b.dim()) - b_inner};
  const Tensor* operands[2] = {&a, &b};
  const size_t inner[2] = {a_inner, b_inner};
  const size_t rank = walk.rank = ranks[0] > ranks[1] ? ranks[0] : ranks[1];
  ptrdiff_t steps[3] = {static_cast<ptrdiff_t>(rows * columns), 1, 1};
  for (size_t t = 0; t < 2; ++t)
    for (size_t i = 0; i < inner[t]; ++i) steps[t + 1] *= operands[t]->sizes()[ranks[t] + i];
  sizes[rank] = static_cast<SizesType>(rows);
  sizes[rank + 1] = static_cast<SizesType>(columns);
  for (size_t d = rank; d-- > 0;) {
    SizesType size[2];
    for (size_t t = 0; t < 2; ++t) {
      const bool has = d + ranks[t] >= rank;
      size[t] = has ? operands[t]->sizes()[d + ranks[t] - rank] : 1;
      walk.stride[t + 1][d] = size[t] == 1 ? 0 : steps[t + 1];
      steps[t + 1] *= size[t];
    }
    sizes[d] = size[0] == 1 ? size[1] : size[0];
    TORCHETTE_CHECK(size[1] == 1 || size[1] == sizes[d], InvalidArgument,
                    "%s: B: batch sizes %d and %d do not broadcast", what, size[0], size[1]);
    walk.size[d] = static_cast<size_t>(sizes[d]);
    walk.stride[0][d] = steps[0];
    steps[0] *= sizes[d];
  }
  return Error::Ok;
}

void add_scaled(size_t n, double a, const double* x, ptrdiff_t x_step, double* y, ptrdiff_t y_step) {
  if (x_step == 1 && y_step == 1) {
    for (size_t i = 0; i < n; ++i) y[i] += a * x[i];
    return;
  }
  for (size_t i = 0; i < n; ++i, x += x_step, y += y_step) *y += a * *x;
}

double dot(size_t n, const double* x, const double* y) {
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (size_t j = 0; j < 8; ++j) sums[j] += x[i + j] * y[i + j];
  for (; i < n; ++i) sums[0] += x[i] * y[i];
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

void rotate(size_t n, double* x, double* y, double c, double s) {
  for (size_t i = 0; i < n; ++i) {
    const double a = x[i], b = y[i];
    x[i] = c * a - s * b;
    y[i] = s * a + c * b;
  }
}

void Columns::swap(size_t i, size_t j) const {
  if (i == j) return;
  double *a = at(i), *b = at(j);
  for (size_t k = 0; k < m; ++k, a += column, b += column) {
    const double kept = *a;
    *a = *b;
    *b = kept;
  }
}

double make_reflection(double* x, ptrdiff_t step, size_t n) {
  double largest = 0;
  for (size_t i = 1; i < n; ++i) largest = std::fmax(largest, std::fabs(x[static_cast<ptrdiff_t>(i) * step]));
  if (largest == 0) return 0;
  largest = std::fmax(largest, std::fabs(x[0]));
  double squares = 0;
  for (size_t i = 0; i < n; ++i) {
    const double scaled = x[static_cast<ptrdiff_t>(i) * step] / largest;
    squares += scaled * scaled;
  }
  const double first = x[0], beta = -std::copysign(largest * std::sqrt(squares), first);
  for (size_t i = 1; i < n; ++i) x[static_cast<ptrdiff_t>(i) * step] /= first - beta;
  x[0] = beta;
  return (beta - first) / beta;
}

void reflect(const double* v, ptrdiff_t step, size_t n, double tau, const Columns& c, size_t first,
             double* work) {
  if (tau == 0) return;
  if (c.row == 1) {  // columns are contiguous
    for (size_t i = 0; i < n; ++i) work[i] = i == 0 ? 1 : v[static_cast<ptrdiff_t>(i) * step];
    for (size_t k = 0; k < c.m; ++k) {
      double* const run = c.at(first) + static_cast<ptrdiff_t>(k) * c.column;
      add_scaled(n, -tau * dot(n, work, run), work, 1, run, 1);
    }
    return;
  }
  for (size_t k = 0; k < c.m; ++k) work[k] = c.at(first)[static_cast<ptrdiff_t>(k) * c.column];
  for (size_t i = 1; i < n; ++i)
    add_scaled(c.m, v[static_cast<ptrdiff_t>(i) * step], c.at(first + i), c.column, work, 1);
  add_scaled(c.m, -tau, work, 1, c.at(first), c.column);
  for (size_t i = 1; i < n; ++i)
    add_scaled(c.m, -tau * v[static_cast<ptrdiff_t>(i) * step], work, 1, c.at(first + i), c.column);
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
