// SPDX-License-Identifier: BSD-3-Clause
// QR by Householder reflections, as in LAPACK: geqrf, and ormqr, which multiplies a matrix by the result of
// geqrf.
#include <cstring>

#include "torchette/kernels/scientific/matrices.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

Error geqrf_out(Context& context, const Tensor& self, Tensor& out, Tensor& tau) {
  constexpr const char* kName = "geqrf";
  Batch batch;
  TORCHETTE_TRY(matrices(kName, "self", self, batch));
  TORCHETTE_TRY(check_types(kName, "self, a and tau", self, out, tau));
  const size_t m = batch.rows, n = batch.columns, min_dim = m < n ? m : n;
  TORCHETTE_TRY(resize_result(out, self.sizes(), "a"));
  TORCHETTE_TRY(resize_batch(tau, self, min_dim, 0, 1, "tau"));
  if (self.numel() == 0) return Error::Ok;
  Dense from, to, factors;
  double* work;
  TORCHETTE_TRY(from.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(to.open(context, out, ScalarType::Double));
  TORCHETTE_TRY(factors.open(context, tau, ScalarType::Double));
  TORCHETTE_TRY(scratch(context, kName, m > n ? m : n, work));
  memmove(to.data<double>(), from.data<double>(), batch.count * batch.size() * sizeof(double));
  const auto width = static_cast<ptrdiff_t>(n);
  for (size_t b = 0; b < batch.count; ++b)
    for (size_t k = 0; k < min_dim; ++k) {
      double* const corner = to.data<double>() + b * m * n + k * n + k;
      const double factor = make_reflection(corner, width, m - k);
      factors.data<double>()[b * min_dim + k] = factor;
      reflect(corner, width, m - k, factor, {corner + 1, width, 1, m - k, n - k - 1}, 0, work);
    }
  TORCHETTE_TRY(factors.finish());
  return to.finish();
}

/// Multiplies a matrix by the reflections that geqrf returns.
Error ormqr_out(Context& context, const Tensor& self, const Tensor& tau, const Tensor& other, bool left,
                bool transpose, Tensor& out) {
  constexpr const char* kName = "ormqr";
  Batch of_v, of_c;
  TORCHETTE_TRY(matrices(kName, "self", self, of_v));
  TORCHETTE_TRY(matrices(kName, "input3", other, of_c));
  TORCHETTE_TRY(check_types(kName, "self, input2 and input3", self, tau, other));
  TORCHETTE_TRY(check_types(kName, "self, input3 and out", self, other, out));
  const size_t n = of_v.rows;
  TORCHETTE_CHECK(
      tau.dim() == self.dim() - 1 && other.dim() == self.dim() && of_v.count == of_c.count &&
          (left ? of_c.rows : of_c.columns) == n,
      InvalidArgument,
      "%s: self has reflections of %zu elements, which do not fit input3 of %zu rows and %zu columns, "
      "or input2 does not have one dimension less than self",
      kName, n, of_c.rows, of_c.columns);
  const auto count = static_cast<size_t>(tau.sizes()[static_cast<size_t>(tau.dim()) - 1]);
  TORCHETTE_CHECK(
      count <= of_v.columns && count <= n && static_cast<size_t>(tau.numel()) == of_v.count * count,
      InvalidArgument, "%s: input2 has %zu elements, which does not fit %zu columns", kName, count,
      of_v.columns);
  TORCHETTE_TRY(resize_result(out, other.sizes()));
  if (out.numel() == 0) return Error::Ok;
  Dense vectors, factors, from, to;
  double* work;
  TORCHETTE_TRY(vectors.read(context, self, ScalarType::Double));
  TORCHETTE_TRY(factors.read(context, tau, ScalarType::Double));
  TORCHETTE_TRY(from.read(context, other, ScalarType::Double));
  TORCHETTE_TRY(to.open(context, out, ScalarType::Double));
  memmove(to.data<double>(), from.data<double>(), of_c.count * of_c.size() * sizeof(double));
  const auto width = static_cast<ptrdiff_t>(of_c.columns);
  Columns c = left ? Columns{to.data<double>(), width, 1, of_c.rows, of_c.columns}
                   : Columns{to.data<double>(), 1, width, of_c.columns, of_c.rows};
  TORCHETTE_TRY(scratch(context, kName, c.m > c.n ? c.m : c.n, work));
  for (size_t b = 0; b < of_c.count; ++b, c.data += of_c.size())
    for (size_t i = 0; i < count; ++i) {
      const size_t k = transpose == left ? i : count - 1 - i;
      reflect(vectors.data<double>() + (b * n + k) * of_v.columns + k, static_cast<ptrdiff_t>(of_v.columns),
              n - k, factors.data<double>()[b * count + k], c, k, work);
    }
  return to.finish();
}

}  // namespace

TORCHETTE_KERNELS_NARROW(qr, TORCHETTE_KERNEL("aten::geqrf.a", geqrf_out),
                         TORCHETTE_KERNEL("aten::ormqr.out", ormqr_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
