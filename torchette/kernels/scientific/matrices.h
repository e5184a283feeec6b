// SPDX-License-Identifier: BSD-3-Clause
// Batches of matrices, and the few loops that factorisations are made of. All of them compute in double
// precision: a float32 result is then right to its last digits, and there is one copy of the code.
#pragma once

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

constexpr double kEpsilon = 0x1p-52;

/// What the last dimensions of a tensor make of it.
struct Batch {
  size_t count, rows, columns;  // rows is 1 for a batch of vectors

  size_t size() const { return rows * columns; }
};

/// Takes the `argument` of the operator `what` as a batch of matrices.
Error matrices(const char* what, const char* argument, const Tensor& t, Batch& batch);
Error square_matrices(const char* what, const char* argument, const Tensor& t, Batch& batch);
/// Resizes `out` to the batch of `like`, whose last two dimensions are replaced by `count` sizes.
Error resize_batch(const Tensor& out, const Tensor& like, size_t first, size_t second, size_t count,
                   const char* name);

/// Refuses three tensors, called `names`, that are not of one type.
Error check_types(const char* what, const char* names, const Tensor& x, const Tensor& a, const Tensor& b);
/// Scratch memory for `count` numbers.
Error scratch(Context& context, const char* what, size_t count, double*& room);
/// The greatest magnitude in matrix `b` of the batch, 1 where all is zero; an error where one is not finite.
Error scale_of(const char* what, const char* argument, size_t b, const double* a, size_t count,
               double& scale);

/// Steps through the matrices of a result and of two operands that are broadcast to it. Offsets count
/// elements of row-major arrays.
struct BatchWalk {
  SizesType sizes[kMaxDim];  // the batch of the result
  Walk<3> walk;              // result, first operand, second operand

  /// `inner` is how many dimensions of an operand are not batch. `rows` and `columns` are those of the
  /// result.
  Error start(const char* what, const Tensor& a, size_t a_inner, const Tensor& b, size_t b_inner, size_t rows,
              size_t columns);
  Span<const SizesType> result_sizes() const { return {sizes, walk.rank + 2}; }
};

/// y += a x
void add_scaled(size_t n, double a, const double* x, ptrdiff_t x_step, double* y, ptrdiff_t y_step);
double dot(size_t n, const double* x, const double* y);
/// (x, y) = (c x - s y, s x + c y)
void rotate(size_t n, double* x, double* y, double c, double s);

/// Right-hand sides in place: element (i, k) of m columns of n rows lies at data[i * row + k * column].
struct Columns {
  double* data;
  ptrdiff_t row, column;
  size_t n, m;

  double* at(size_t i) const { return data + static_cast<ptrdiff_t>(i) * row; }
  void swap(size_t i, size_t j) const;
  /// Row i += factor * row j.
  void add(size_t i, size_t j, double factor) const { add_scaled(m, factor, at(j), column, at(i), column); }
};

/// The reflection that takes n elements to a multiple of the first unit vector, as LAPACK has it: I - tau v
/// v^T, where v[0] is 1. x[0] becomes that multiple, the others become v; returns tau.
double make_reflection(double* x, ptrdiff_t step, size_t n);
/// Applies such a reflection to the rows from `first` on, as many as v has elements. `work` has room for
/// as many numbers as c has rows, and for m.
void reflect(const double* v, ptrdiff_t step, size_t n, double tau, const Columns& c, size_t first,
             double* work);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
