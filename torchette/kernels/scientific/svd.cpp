// SPDX-License-Identifier: BSD-3-Clause
// Singular value decomposition by one-sided Jacobi rotations. The signs of the vectors follow from this
// method.
#include <cmath>

#include "torchette/kernels/scientific/matrices.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// Rotates n rows of `length` elements, and the rows of `rotated` with them, until they are pairwise
/// orthogonal (Hestenes's method). `squares` has room for n elements.
void orthogonalize(double* rows, size_t n, size_t length, double* rotated, double* squares) {
  const double small = kEpsilon * static_cast<double>(length);
  for (int sweep = 0; sweep < 60; ++sweep) {
    bool done = true;
    for (size_t i = 0; i < n; ++i) squares[i] = dot(length, rows + i * length, rows + i * length);
    for (size_t p = 0; p < n; ++p)
      for (size_t q = p + 1; q < n; ++q) {
        const double off = dot(length, rows + p * length, rows + q * length);
        if (!(std::fabs(off) > small * std::sqrt(squares[p]) * std::sqrt(squares[q]))) continue;
        done = false;
        const double half = (squares[q] - squares[p]) / (2 * off);
        const double tangent = std::copysign(1 / (std::fabs(half) + std::hypot(half, 1)), half);
        const double cosine = 1 / std::hypot(tangent, 1), sine = cosine * tangent;
        rotate(length, rows + p * length, rows + q * length, cosine, sine);
        if (rotated != nullptr) rotate(n, rotated + p * n, rotated + q * n, cosine, sine);
        squares[p] = std::fmax(squares[p] - tangent * off, 0);
        squares[q] += tangent * off;
      }
    if (done) break;
  }
}

/// Extends `have` orthonormal rows to `n` orthonormal rows.
void complete(double* rows, size_t have, size_t n, size_t length) {
  for (; have < n; ++have) {
    // Selects the unit vector with the smallest projection onto the rows, and subtracts the projection.
    size_t best = 0;
    double smallest = 2;
    for (size_t i = 0; i < length; ++i) {
      double contained = 0;
      for (size_t j = 0; j < have; ++j) contained += rows[j * length + i] * rows[j * length + i];
      if (contained < smallest) smallest = contained, best = i;
    }
    double* const row = rows + have * length;
    for (size_t i = 0; i < length; ++i) row[i] = i == best ? 1 : 0;
    for (int pass = 0; pass < 2; ++pass)
      for (size_t j = 0; j < have; ++j)
        add_scaled(length, -dot(length, row, rows + j * length), rows + j * length, 1, row, 1);
    const double norm = std::sqrt(dot(length, row, row));
    for (size_t i = 0; i < length; ++i) row[i] /= norm;
  }
}

Error linalg_svd_out(Context& context, const Tensor& self, bool full_matrices, bool compute_uv,
                     Optional<Span<const char>>, Tensor& u, Tensor& s, Tensor& vh) {
  constexpr const char* kName = "_linalg_svd";
  static constexpr SizesType kNone[1] = {0};
  Batch batch;
  TORCHETTE_TRY(matrices(kName, "A", self, batch));
  TORCHETTE_TRY(check_types(kName, "A, U and Vh", self, u, vh));
  TORCHETTE_TRY(same_type(self, s, "A and S"));
  const size_t m = batch.rows, n = batch.columns;
  const bool tall = m >= n;
  const size_t min_dim = tall ? n : m, length = tall ? m : n, kept = full_matrices ? length : min_dim;
  const size_t u_columns = tall ? kept : m, v_rows = tall ? n : kept;
  TORCHETTE_TRY(resize_batch(s, self, min_dim, 0, 1, "S"));
  TORCHETTE_TRY(compute_uv ? resize_batch(u, self, m, u_columns, 2, "U") : resize_result(u, {kNone, 1}, "U"));
  TORCHETTE_TRY(compute_uv ? resize_batch(vh, self, v_rows, n, 2, "Vh")
                           : resize_result(vh, {kNone, 1}, "Vh"));
  Dense from, left, values, right;
  double* long_rows;
  TORCHETTE_TRY(from.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(left.open(context, u, ScalarType::Double));
  TORCHETTE_TRY(values.open(context, s, ScalarType::Double));
  TORCHETTE_TRY(right.open(context, vh, ScalarType::Double));
  TORCHETTE_TRY(
      scratch(context, kName, kept * length + (compute_uv ? min_dim * min_dim : 0) + min_dim, long_rows));
  double* const squares = long_rows + kept * length;
  double* const short_rows = compute_uv ? squares + min_dim : nullptr;
  for (size_t b = 0; b < batch.count; ++b) {
    const double* const a = from.data<double>() + b * m * n;
    double scale;  // prevents overflow and underflow of squares
    TORCHETTE_TRY(scale_of(kName, "A", b, a, m * n, scale));
    for (size_t i = 0; i < min_dim; ++i)
      for (size_t j = 0; j < length; ++j)
        long_rows[i * length + j] = (tall ? a[j * n + i] : a[i * n + j]) / scale;
    for (size_t i = 0; compute_uv && i < min_dim * min_dim; ++i)
      short_rows[i] = i % (min_dim + 1) == 0 ? 1 : 0;
    orthogonalize(long_rows, min_dim, length, short_rows, squares);
    for (size_t i = 0; i < min_dim; ++i)
      squares[i] = dot(length, long_rows + i * length, long_rows + i * length);
    size_t rank = 0;
    for (size_t i = 0; i < min_dim; ++i) {  // in descending order
      size_t max_index = i;
      for (size_t j = i + 1; j < min_dim; ++j)
        if (squares[j] > squares[max_index]) max_index = j;
      const double value = std::sqrt(squares[max_index]);
      squares[max_index] = squares[i];
      values.data<double>()[b * min_dim + i] = value * scale;
      if (!compute_uv) continue;
      const auto swap = [&](double* rows, size_t size) {
        Columns{rows, static_cast<ptrdiff_t>(size), 1, min_dim, size}.swap(i, max_index);
      };
      swap(long_rows, length);
      swap(short_rows, min_dim);
      if (value > 0) ++rank;
      for (size_t j = 0; value > 0 && j < length; ++j) long_rows[i * length + j] /= value;
    }
    if (!compute_uv) continue;
    complete(long_rows, rank, kept, length);
    const auto write = [&](double* to, bool transposed, const double* rows, size_t count, size_t size) {
      for (size_t i = 0; i < count; ++i)
        for (size_t j = 0; j < size; ++j) to[transposed ? j * count + i : i * size + j] = rows[i * size + j];
    };
    write(left.data<double>() + b * m * u_columns, true, tall ? long_rows : short_rows, u_columns, m);
    write(right.data<double>() + b * v_rows * n, false, tall ? short_rows : long_rows, v_rows, n);
  }
  TORCHETTE_TRY(left.finish());
  TORCHETTE_TRY(right.finish());
  return values.finish();
}

}  // namespace

TORCHETTE_KERNELS_NARROW(svd, TORCHETTE_KERNEL("aten::_linalg_svd.U", linalg_svd_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
