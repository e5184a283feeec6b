// SPDX-License-Identifier: BSD-3-Clause
// Batches of matrices and the loops shared by the factorizations. All of them compute in double precision, so
// float32 results are accurate to the last digits and one implementation serves both types.
#pragma once

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

constexpr double kEpsilon = 0x1p-52;

/// The shape of a batch of matrices.
struct Batch {
  size_t count, rows, columns;  // rows is 1 for a batch of vectors

  size_t size() const { return rows * columns; }
};

/// Interprets `argument` of the operator `what` as a batch of matrices.
Error matrices(const char* what, const char* argument, const Tensor& t, Batch& batch);
Error square_matrices(const char* what, const char* argument, const Tensor& t, Batch& batch);
/// Resizes `out` to the batch dimensions of `like`, followed by `first` and `second`, of which `count` are
/// used.
Error resize_batch(const Tensor& out, const Tensor& like, size_t first, size_t second, size_t count,
                   const char* name);

/// Checks that three tensors, called `names` in errors, have the same type.
Error check_types(const char* what, const char* names, const Tensor& x, const Tensor& a, const Tensor& b);
/// Allocates scratch memory for `count` doubles.
Error scratch(Context& context, const char* what, size_t count, double*& room);
/// Computes the maximum magnitude in matrix `b` of the batch, or 1 if all elements are zero. Errors:
/// InvalidArgument if an element is not finite.
Error scale_of(const char* what, const char* argument, size_t b, const double* a, size_t count,
               double& scale);

/// Iterates over the matrices of a result and of two operands that are broadcast to it. Offsets are element
/// indices of row-major arrays.
struct BatchWalk {
  SizesType sizes[kMaxDim];  // the batch of the result
  Walk<3> walk;              // result, first operand, second operand

  /// `a_inner` and `b_inner` are the numbers of trailing dimensions that are not batch dimensions. `rows` and
  /// `columns` are the sizes of the result.
  Error start(const char* what, const Tensor& a, size_t a_inner, const Tensor& b, size_t b_inner, size_t rows,
              size_t columns);
  Span<const SizesType> result_sizes() const { return {sizes, walk.rank + 2}; }
};

/// y += a x
void add_scaled(size_t n, double a, const double* x, ptrdiff_t x_step, double* y, ptrdiff_t y_step);
double dot(size_t n, const double* x, const double* y);
/// (x, y) = (c x - s y, s x + c y)
void rotate(size_t n, double* x, double* y, double c, double s);

/// Right-hand sides, solved in place: m columns of n rows, with element (i, k) at data[i * row + k * column].
struct Columns {
  double* data;
  ptrdiff_t row, column;
  size_t n, m;

  double* at(size_t i) const { return data + static_cast<ptrdiff_t>(i) * row; }
  void swap(size_t i, size_t j) const;
  /// Row i += factor * row j.
  void add(size_t i, size_t j, double factor) const { add_scaled(m, factor, at(j), column, at(i), column); }
};

/// Computes the Householder reflection I - tau v v^T, with v[0] = 1 as in LAPACK, that maps n elements to a
/// multiple of the first unit vector. x[0] becomes that multiple, the other elements become v. Returns tau.
double make_reflection(double* x, ptrdiff_t step, size_t n);
/// Applies the reflection to the n rows from `first` on. `work` has room for m elements.
void reflect(const double* v, ptrdiff_t step, size_t n, double tau, const Columns& c, size_t first,
             double* work);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
