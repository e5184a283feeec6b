// SPDX-License-Identifier: BSD-3-Clause
// Factorizations and solvers of linear systems: Cholesky, LU, LDL^T, triangular systems; the matrix
// exponential. Pivots and info follow LAPACK.
#include <cmath>
#include <cstring>

#include "torchette/kernels/scientific/matrices.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// Returns an error for the first matrix of a batch that failed, if `check`; otherwise the caller inspects
/// info.
Error check_info(const char* what, const char* argument, const char* is, const Dense& info, size_t count,
                 bool check) {
  for (size_t i = 0; check && i < count; ++i)
    TORCHETTE_CHECK(info.data<int32_t>()[i] == 0, InvalidArgument,
                    "%s: %s: matrix %zu of the batch %s (info %d)", what, argument, i, is,
                    static_cast<int>(info.data<int32_t>()[i]));
  return Error::Ok;
}

// --- Cholesky

/// Overwrites a with its lower factor. Elements right of the diagonal remain unchanged. Returns info.
int32_t cholesky(double* a, size_t n) {
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j <= i; ++j) {
      const double remaining = a[i * n + j] - dot(j, a + i * n, a + j * n);
      if (i == j && !(remaining > 0)) return static_cast<int32_t>(i + 1);
      a[i * n + j] = i == j ? std::sqrt(remaining) : remaining / a[j * n + j];
    }
  return 0;
}

Error linalg_cholesky_ex_out(Context& context, const Tensor& self, bool upper, bool check_errors, Tensor& out,
                             Tensor& info) {
  constexpr const char* kName = "linalg_cholesky_ex";
  Batch batch;
  TORCHETTE_TRY(square_matrices(kName, "self", self, batch));
  TORCHETTE_TRY(same_type(self, out, "self and the result"));
  TORCHETTE_TRY(resize_result(out, self.sizes(), "L"));
  TORCHETTE_TRY(resize_batch(info, self, 0, 0, 0, "info"));
  Dense from, to, state;
  TORCHETTE_TRY(from.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(to.open(context, out, ScalarType::Double));
  TORCHETTE_TRY(state.open(context, info, ScalarType::Int));
  const size_t n = batch.rows;
  for (size_t b = 0; b < batch.count; ++b) {
    const double* a = from.data<double>() + b * n * n;
    double* l = to.data<double>() + b * n * n;
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j <= i; ++j) l[i * n + j] = upper ? a[j * n + i] : a[i * n + j];
    state.data<int32_t>()[b] = cholesky(l, n);
    for (size_t i = 0; i < n; ++i)
      for (size_t j = i + 1; j < n; ++j) {
        l[i * n + j] = upper ? l[j * n + i] : 0;
        if (upper) l[j * n + i] = 0;
      }
  }
  TORCHETTE_TRY(check_info(kName, "self", "is not positive-definite", state, batch.count, check_errors));
  TORCHETTE_TRY(state.finish());
  return to.finish();
}

// --- Triangular systems

/// Solves T X = columns in place. Element (i, j) of T is at t[i * row + j * column].
void solve_triangular(const double* t, ptrdiff_t row, ptrdiff_t column, bool upper, bool unit,
                      const Columns& x) {
  for (size_t step = 0; step < x.n; ++step) {
    const size_t i = upper ? x.n - 1 - step : step;
    const double* const line = t + static_cast<ptrdiff_t>(i) * row;
    for (size_t s = 0; s < step; ++s) {
      const size_t j = upper ? x.n - 1 - s : s;
      x.add(i, j, -line[static_cast<ptrdiff_t>(j) * column]);
    }
    const double pivot = line[static_cast<ptrdiff_t>(i) * column];
    double* at = x.at(i);
    for (size_t k = 0; !unit && k < x.m; ++k, at += x.column) *at /= pivot;
  }
}

/// Returns the right-hand sides of A X = B or, if not `left`, of X A = B.
Columns columns_of(double* b, size_t rows, size_t columns, bool left) {
  const auto width = static_cast<ptrdiff_t>(columns);
  return left ? Columns{b, width, 1, rows, columns} : Columns{b, 1, width, columns, rows};
}

Error check_sides(const char* what, const Batch& a, const Batch& b, bool left) {
  TORCHETTE_CHECK((left ? b.rows : b.columns) == a.rows, InvalidArgument,
                  "%s: B of %zu rows and %zu columns does not fit a matrix of size %zu", what, b.rows,
                  b.columns, a.rows);
  return Error::Ok;
}

Error linalg_solve_triangular_out(Context& context, const Tensor& self, const Tensor& b, bool upper,
                                  bool left, bool unitriangular, Tensor& out) {
  constexpr const char* kName = "linalg_solve_triangular";
  Batch of_a, of_b;
  BatchWalk at;
  TORCHETTE_TRY(square_matrices(kName, "self", self, of_a));
  TORCHETTE_TRY(matrices(kName, "B", b, of_b));
  TORCHETTE_TRY(check_sides(kName, of_a, of_b, left));
  TORCHETTE_TRY(same_type(self, b, "self and B"));
  TORCHETTE_TRY(same_type(self, out, "self and the result"));
  TORCHETTE_TRY(at.start(kName, self, 2, b, 2, of_b.rows, of_b.columns));
  TORCHETTE_TRY(resize_result(out, at.result_sizes()));
  if (out.numel() == 0) return Error::Ok;
  Dense from, right, to;
  TORCHETTE_TRY(from.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(right.read(context, b, ScalarType::Double));
  TORCHETTE_TRY(to.open(context, out, ScalarType::Double));
  const auto n = static_cast<ptrdiff_t>(of_a.rows);
  do {
    double* x = to.data<double>() + at.walk.offset[0];
    memmove(x, right.data<double>() + at.walk.offset[2], of_b.size() * sizeof(double));
    solve_triangular(from.data<double>() + at.walk.offset[1], left ? n : 1, left ? 1 : n, upper == left,
                     unitriangular, columns_of(x, of_b.rows, of_b.columns, left));
  } while (at.walk.next());
  return to.finish();
}

// --- LU

/// Overwrites a with its LU factors, using partial pivoting. Returns info.
int32_t factor_lu(double* a, size_t rows, size_t columns, bool pivot, int32_t* pivots) {
  const Columns lines{a, static_cast<ptrdiff_t>(columns), 1, rows, columns};
  int32_t info = 0;
  for (size_t k = 0; k < rows && k < columns; ++k) {
    size_t largest = k;
    for (size_t i = k + 1; pivot && i < rows; ++i)
      if (std::fabs(a[i * columns + k]) > std::fabs(a[largest * columns + k])) largest = i;
    pivots[k] = static_cast<int32_t>(largest + 1);
    lines.swap(k, largest);
    const double* const line = a + k * columns;
    if (line[k] == 0) {
      if (info == 0) info = static_cast<int32_t>(k + 1);
      continue;
    }
    for (size_t i = k + 1; i < rows; ++i) {
      double* const other = a + i * columns;
      other[k] /= line[k];
      add_scaled(columns - k - 1, -other[k], line + k + 1, 1, other + k + 1, 1);
    }
  }
  return info;
}

/// Common part of lu_factor and ldl_factor. `factor` receives a copy of a matrix and an array for its pivots,
/// and returns info.
template <typename Factor>
Error factor_with_pivots(Context& context, const char* what, const Tensor& self, const Batch& batch,
                         bool check_errors, Tensor& out, Tensor& pivots, Tensor& info, const Factor& factor) {
  TORCHETTE_TRY(same_type(self, out, "A or self, and the factors"));
  TORCHETTE_CHECK(is_real(pivots.scalar_type()) && is_real(info.scalar_type()), InvalidType,
                  "%s: pivots or info is of unsupported type %d or %d", what,
                  static_cast<int>(pivots.scalar_type()), static_cast<int>(info.scalar_type()));
  const size_t min_dim = batch.rows < batch.columns ? batch.rows : batch.columns;
  TORCHETTE_TRY(resize_result(out, self.sizes(), "LU or LD"));
  TORCHETTE_TRY(resize_batch(pivots, self, min_dim, 0, 1, "pivots"));
  TORCHETTE_TRY(resize_batch(info, self, 0, 0, 0, "info"));
  Dense from, to, chosen, state;
  TORCHETTE_TRY(from.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(to.open(context, out, ScalarType::Double));
  TORCHETTE_TRY(chosen.open(context, pivots, ScalarType::Int));
  TORCHETTE_TRY(state.open(context, info, ScalarType::Int));
  if (self.numel() > 0)
    memmove(to.data<double>(), from.data<double>(), batch.count * batch.size() * sizeof(double));
  for (size_t b = 0; b < batch.count; ++b)
    state.data<int32_t>()[b] =
        factor(to.data<double>() + b * batch.size(), chosen.data<int32_t>() + b * min_dim);
  TORCHETTE_TRY(check_info(what, "A or self", "is singular", state, batch.count, check_errors));
  TORCHETTE_TRY(state.finish());
  TORCHETTE_TRY(chosen.finish());
  return to.finish();
}

Error linalg_lu_factor_ex_out(Context& context, const Tensor& self, bool pivot, bool check_errors,
                              Tensor& out, Tensor& pivots, Tensor& info) {
  constexpr const char* kName = "linalg_lu_factor_ex";
  Batch batch;
  TORCHETTE_TRY(matrices(kName, "A", self, batch));
  return factor_with_pivots(
      context, kName, self, batch, check_errors, out, pivots, info,
      [&](double* a, int32_t* rows) { return factor_lu(a, batch.rows, batch.columns, pivot, rows); });
}

/// Copies n pivots and checks that each is a row number. Pivots of 2x2 blocks are negative and come in pairs.
Error read_pivots(const char* what, const int32_t* from, int32_t* to, size_t n, bool blocks) {
  for (size_t i = 0; i < n; ++i) {
    to[i] = from[i];
    const int32_t row = blocks && to[i] < 0 ? -(to[i] + 1) : to[i] - 1;
    TORCHETTE_CHECK(to[i] != INT32_MIN && row >= 0 && static_cast<size_t>(row) < n, InvalidArgument,
                    "%s: pivots contain %d, which is out of range for a matrix of size %zu", what,
                    static_cast<int>(to[i]), n);
  }
  for (size_t i = 0; i < n; ++i)
    if (to[i] < 0) {
      TORCHETTE_CHECK(i + 1 < n && to[i + 1] == to[i], InvalidArgument,
                      "%s: pivots: element %zu of a 2x2 block has no matching element", what, i);
      ++i;
    }
  return Error::Ok;
}

/// Common part of lu_solve and ldl_solve. `solve` receives a matrix, its pivots and its right-hand sides.
template <typename Solve>
Error solve_with_pivots(Context& context, const char* what, const Tensor& factors, const Tensor& pivots,
                        const Tensor& b, bool left, bool blocks, Tensor& out, const Solve& solve) {
  Batch of_a, of_b;
  BatchWalk at;
  TORCHETTE_TRY(square_matrices(what, blocks ? "LD" : "LU", factors, of_a));
  TORCHETTE_TRY(matrices(what, "B", b, of_b));
  TORCHETTE_TRY(check_sides(what, of_a, of_b, left));
  TORCHETTE_TRY(same_type(factors, b, blocks ? "LD and B" : "LU and B"));
  TORCHETTE_TRY(same_type(factors, out, blocks ? "LD and out" : "LU and out"));
  const size_t n = of_a.rows;
  TORCHETTE_CHECK(pivots.dim() == factors.dim() - 1 && pivots.scalar_type() == ScalarType::Int &&
                      static_cast<size_t>(pivots.numel()) == of_a.count * n,
                  InvalidArgument, "%s: pivots must be int32 with one element per row of %s", what,
                  blocks ? "LD" : "LU");
  TORCHETTE_TRY(at.start(what, factors, 2, b, 2, of_b.rows, of_b.columns));
  TORCHETTE_TRY(resize_result(out, at.result_sizes()));
  if (out.numel() == 0) return Error::Ok;
  Dense from, chosen, right, to;
  TORCHETTE_TRY(from.read(context, factors, ScalarType::Double));
  TORCHETTE_TRY(chosen.read(context, pivots, ScalarType::Int));
  TORCHETTE_TRY(right.read(context, b, ScalarType::Double));
  TORCHETTE_TRY(to.open(context, out, ScalarType::Double));
  auto* const own = static_cast<int32_t*>(context.allocate_temp(n * sizeof(int32_t)));
  TORCHETTE_CHECK(own != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %zu pivots", what, n);
  do {
    const auto matrix = static_cast<size_t>(at.walk.offset[1]) / (n * n);
    TORCHETTE_TRY(read_pivots(what, chosen.data<int32_t>() + matrix * n, own, n, blocks));
    double* x = to.data<double>() + at.walk.offset[0];
    memmove(x, right.data<double>() + at.walk.offset[2], of_b.size() * sizeof(double));
    solve(from.data<double>() + at.walk.offset[1], own, columns_of(x, of_b.rows, of_b.columns, left));
  } while (at.walk.next());
  return to.finish();
}

Error linalg_lu_solve_out(Context& context, const Tensor& factors, const Tensor& pivots, const Tensor& b,
                          bool left, bool adjoint, Tensor& out) {
  return solve_with_pivots(context, "linalg_lu_solve", factors, pivots, b, left, false, out,
                           [&](const double* lu, const int32_t* chosen, const Columns& x) {
                             const auto n = static_cast<ptrdiff_t>(x.n);
                             // X A = B is A^T X^T = B^T.
                             if (adjoint == left) {
                               solve_triangular(lu, 1, n, false, false, x);
                               solve_triangular(lu, 1, n, true, true, x);
                               for (size_t i = x.n; i-- > 0;) x.swap(i, static_cast<size_t>(chosen[i] - 1));
                             } else {
                               for (size_t i = 0; i < x.n; ++i) x.swap(i, static_cast<size_t>(chosen[i] - 1));
                               solve_triangular(lu, n, 1, false, true, x);
                               solve_triangular(lu, n, 1, true, false, x);
                             }
                           });
}

Error lu_unpack_out(Context& context, const Tensor& factors, const Tensor& pivots, bool unpack_data,
                    bool unpack_pivots, Tensor& p, Tensor& l, Tensor& u) {
  constexpr const char* kName = "lu_unpack";
  Batch batch;
  TORCHETTE_TRY(matrices(kName, "LU_data", factors, batch));
  const size_t m = batch.rows, n = batch.columns, min_dim = m < n ? m : n;
  for (const Tensor* out : {&p, &l, &u})
    TORCHETTE_TRY(same_type(factors, *out, "LU_data and one of P, L and U"));
  static constexpr SizesType kNone[1] = {0};
  Dense from, chosen, permutation, lower, upper;
  if (unpack_pivots) {
    TORCHETTE_CHECK(pivots.scalar_type() == ScalarType::Int && pivots.dim() == factors.dim() - 1 &&
                        static_cast<size_t>(pivots.numel()) == batch.count * min_dim,
                    InvalidArgument, "%s: LU_pivots must be int32 with one element per pivot of LU_data",
                    kName);
    TORCHETTE_TRY(resize_batch(p, factors, m, m, 2, "P"));
    TORCHETTE_TRY(chosen.read(context, pivots, ScalarType::Int));
    TORCHETTE_TRY(permutation.open(context, p, ScalarType::Double));
    auto* const rows = static_cast<int32_t*>(context.allocate_temp(m * sizeof(int32_t) + 1));
    TORCHETTE_CHECK(rows != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %zu rows", kName, m);
    for (size_t b = 0; b < batch.count; ++b) {
      for (size_t i = 0; i < m; ++i) rows[i] = static_cast<int32_t>(i);
      for (size_t i = 0; i < min_dim; ++i) {
        const int64_t other = int64_t{chosen.data<int32_t>()[b * min_dim + i]} - 1;
        TORCHETTE_CHECK(other >= 0 && static_cast<size_t>(other) < m, InvalidArgument,
                        "%s: LU_pivots contain %lld, which is out of range for %zu rows", kName,
                        static_cast<long long>(other + 1), m);
        const int32_t kept = rows[i];
        rows[i] = rows[other];
        rows[other] = kept;
      }
      double* const to = permutation.data<double>() + b * m * m;
      for (size_t i = 0; i < m * m; ++i) to[i] = 0;
      for (size_t i = 0; i < m; ++i) to[static_cast<size_t>(rows[i]) * m + i] = 1;
    }
    TORCHETTE_TRY(permutation.finish());
  } else {
    TORCHETTE_TRY(resize_result(p, {kNone, 1}, "P"));
  }
  if (!unpack_data) {
    TORCHETTE_TRY(resize_result(l, {kNone, 1}, "L"));
    return resize_result(u, {kNone, 1}, "U");
  }
  TORCHETTE_TRY(resize_batch(l, factors, m, min_dim, 2, "L"));
  TORCHETTE_TRY(resize_batch(u, factors, min_dim, n, 2, "U"));
  TORCHETTE_TRY(from.read(context, factors, ScalarType::Double));
  TORCHETTE_TRY(lower.open(context, l, ScalarType::Double));
  TORCHETTE_TRY(upper.open(context, u, ScalarType::Double));
  for (size_t b = 0; b < batch.count; ++b) {
    const double* const lu = from.data<double>() + b * m * n;
    for (size_t i = 0; i < m; ++i)
      for (size_t j = 0; j < min_dim; ++j)
        lower.data<double>()[(b * m + i) * min_dim + j] = i > j ? lu[i * n + j] : i == j;
    for (size_t i = 0; i < min_dim; ++i)
      for (size_t j = 0; j < n; ++j)
        upper.data<double>()[(b * min_dim + i) * n + j] = i > j ? 0 : lu[i * n + j];
  }
  TORCHETTE_TRY(lower.finish());
  return upper.finish();
}

// --- LDL^T

/// Overwrites the lower triangle of a symmetric matrix with its factors, using Bunch-Kaufman pivoting (Golub
/// and van Loan, 4.4.4). A 2x2 block has its row twice, as a negative value. Returns info.
int32_t factor_ldl(double* a, size_t n, int32_t* pivots) {
  const double alpha = (1 + std::sqrt(17.0)) / 8;
  const auto at = [&](size_t i, size_t j) -> double& { return a[i * n + j]; };
  const auto swap = [](double& x, double& y) {
    const double kept = x;
    x = y;
    y = kept;
  };
  int32_t info = 0;
  for (size_t k = 0, width; k < n; k += width) {
    width = 1;
    const double diagonal = std::fabs(at(k, k));
    size_t below = k;
    double in_column = 0;
    for (size_t i = k + 1; i < n; ++i)
      if (std::fabs(at(i, k)) > in_column) in_column = std::fabs(at(below = i, k));
    size_t pivot = k;
    const bool zero = diagonal == 0 && in_column == 0;
    if (zero) {
      if (info == 0) info = static_cast<int32_t>(k + 1);
    } else if (diagonal < alpha * in_column) {
      double in_row = 0;
      for (size_t j = k; j < n; ++j)
        if (j != below) in_row = std::fmax(in_row, std::fabs(j < below ? at(below, j) : at(j, below)));
      if (diagonal < alpha * in_column * (in_column / in_row)) {
        pivot = below;
        if (std::fabs(at(below, below)) < alpha * in_row) width = 2;
      }
    }
    const size_t last = k + width - 1;
    if (pivot != last) {
      for (size_t i = pivot + 1; i < n; ++i) swap(at(i, last), at(i, pivot));
      for (size_t j = last + 1; j < pivot; ++j) swap(at(j, last), at(pivot, j));
      swap(at(last, last), at(pivot, pivot));
      if (width == 2) swap(at(k + 1, k), at(pivot, k));
    }
    const auto row = static_cast<int32_t>(pivot + 1);
    for (size_t i = k; i <= last; ++i) pivots[i] = width == 2 ? -row : row;
    if (width == 1 && !zero) {
      for (size_t j = k + 1; j < n; ++j) {
        const double factor = at(j, k) / at(k, k);
        for (size_t i = j; i < n; ++i) at(i, j) -= factor * at(i, k);
      }
      for (size_t i = k + 1; i < n; ++i) at(i, k) /= at(k, k);
    } else if (width == 2) {
      const double off = at(k + 1, k), d1 = at(k + 1, k + 1) / off, d2 = at(k, k) / off;
      const double scale = 1 / (off * (d1 * d2 - 1));
      for (size_t j = k + 2; j < n; ++j) {
        const double first = scale * (d1 * at(j, k) - at(j, k + 1));
        const double second = scale * (d2 * at(j, k + 1) - at(j, k));
        for (size_t i = j; i < n; ++i) at(i, j) -= at(i, k) * first + at(i, k + 1) * second;
        at(j, k) = first;
        at(j, k + 1) = second;
      }
    }
  }
  return info;
}

Error linalg_ldl_factor_ex_out(Context& context, const Tensor& self, bool, bool check_errors, Tensor& out,
                               Tensor& pivots, Tensor& info) {
  constexpr const char* kName = "linalg_ldl_factor_ex";
  Batch batch;
  TORCHETTE_TRY(square_matrices(kName, "self", self, batch));
  return factor_with_pivots(context, kName, self, batch, check_errors, out, pivots, info,
                            [n = batch.rows](double* a, int32_t* rows) {
                              for (size_t i = 0; i < n; ++i)
                                for (size_t j = i + 1; j < n; ++j) a[i * n + j] = 0;
                              return factor_ldl(a, n, rows);
                            });
}

Error linalg_ldl_solve_out(Context& context, const Tensor& factors, const Tensor& pivots, const Tensor& b,
                           bool, Tensor& out) {
  return solve_with_pivots(context, "linalg_ldl_solve", factors, pivots, b, true, true, out,
                           [](const double* a, const int32_t* chosen, const Columns& x) {
                             const size_t n = x.n;
                             const auto row = [&](size_t i) {
                               return static_cast<size_t>(chosen[i] < 0 ? -(chosen[i] + 1) : chosen[i] - 1);
                             };
                             for (size_t k = 0, width; k < n; k += width) {
                               width = chosen[k] < 0 ? 2 : 1;
                               const size_t last = k + width - 1;
                               x.swap(last, row(k));
                               for (size_t i = last + 1; i < n; ++i)
                                 for (size_t j = k; j <= last; ++j) x.add(i, j, -a[i * n + j]);
                               double *first = x.at(k), *second = x.at(last);
                               const double off = a[last * n + k];
                               for (size_t c = 0; c < x.m; ++c, first += x.column, second += x.column) {
                                 if (width == 1) {
                                   *first /= off;
                                   continue;
                                 }
                                 const double d1 = a[k * n + k] / off, d2 = a[last * n + last] / off,
                                              scale = off * (d1 * d2 - 1);
                                 const double kept = *first;
                                 *first = (d2 * kept - *second) / scale;
                                 *second = (d1 * *second - kept) / scale;
                               }
                             }
                             for (size_t k = n; k-- > 0;) {
                               const size_t first = chosen[k] < 0 ? k - 1 : k;
                               for (size_t j = first; j <= k; ++j)
                                 for (size_t i = k + 1; i < n; ++i) x.add(j, i, -a[i * n + j]);
                               x.swap(k, row(k));
                               k = first;
                             }
                           });
}

// --- The matrix exponential

/// c = a b + unit * identity
void multiply(const double* a, const double* b, double* c, size_t n, double unit) {
  for (size_t i = 0; i < n; ++i) {
    double* const line = c + i * n;
    for (size_t j = 0; j < n; ++j) line[j] = i == j ? unit : 0;
    for (size_t k = 0; k < n; ++k) add_scaled(n, a[i * n + k], b + k * n, 1, line, 1);
  }
}

/// Taylor series of a / 2^s, scaled to a norm of at most 1/2, followed by s squarings. `x` and `y` have room
/// for one matrix each.
void exponential(const double* a, double* result, size_t n, double* x, double* y) {
  constexpr int kDegree = 14;  // 1/2^15/15! is below one ulp
  double norm = 0;
  for (size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (size_t j = 0; j < n; ++j) sum += std::fabs(a[i * n + j]);
    norm = sum > norm || sum != sum ? sum : norm;
  }
  const int squarings = norm > 0.5 && std::isfinite(norm) ? std::ilogb(norm) + 2 : 0;
  for (size_t i = 0; i < n * n; ++i) {
    x[i] = std::isfinite(norm) ? std::ldexp(a[i], -squarings) : norm - norm;
    result[i] = x[i] / kDegree;
  }
  for (size_t i = 0; i < n; ++i) result[i * n + i] += 1;
  for (int k = kDegree - 1; k > 0; --k) {
    multiply(x, result, y, n, k);
    for (size_t i = 0; i < n * n; ++i) result[i] = y[i] / k;
  }
  for (int k = 0; k < squarings; ++k) {
    multiply(result, result, y, n, 0);
    memcpy(result, y, n * n * sizeof(double));
  }
}

Error linalg_matrix_exp_out(Context& context, const Tensor& self, Tensor& out) {
  constexpr const char* kName = "linalg_matrix_exp";
  Batch batch;
  TORCHETTE_TRY(square_matrices(kName, "self", self, batch));
  TORCHETTE_TRY(same_type(self, out, "self and the result"));
  TORCHETTE_TRY(resize_result(out, self.sizes()));
  if (out.numel() == 0) return Error::Ok;
  Dense from, to;
  TORCHETTE_TRY(from.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(to.open(context, out, ScalarType::Double));
  const size_t size = batch.size();
  auto* const room = static_cast<double*>(context.allocate_temp(2 * size * sizeof(double)));
  TORCHETTE_CHECK(room != nullptr, MemoryAllocationFailed, "%s: no scratch memory for two matrices", kName);
  for (size_t b = 0; b < batch.count; ++b)
    exponential(from.data<double>() + b * size, to.data<double>() + b * size, batch.rows, room, room + size);
  return to.finish();
}

}  // namespace

TORCHETTE_KERNELS_NARROW(linalg,                                                                  //
                         TORCHETTE_KERNEL("aten::linalg_cholesky_ex.L", linalg_cholesky_ex_out),  //
                         TORCHETTE_KERNEL("aten::linalg_solve_triangular.out",
                                          linalg_solve_triangular_out),                                 //
                         TORCHETTE_KERNEL("aten::linalg_lu_factor_ex.out", linalg_lu_factor_ex_out),    //
                         TORCHETTE_KERNEL("aten::linalg_lu_solve.out", linalg_lu_solve_out),            //
                         TORCHETTE_KERNEL("aten::lu_unpack.out", lu_unpack_out),                        //
                         TORCHETTE_KERNEL("aten::linalg_ldl_factor_ex.out", linalg_ldl_factor_ex_out),  //
                         TORCHETTE_KERNEL("aten::linalg_ldl_solve.out", linalg_ldl_solve_out),          //
                         TORCHETTE_KERNEL("aten::linalg_matrix_exp.out", linalg_matrix_exp_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
