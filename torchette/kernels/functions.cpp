// SPDX-License-Identifier: BSD-3-Clause
// Kernels of functions.def, and functions with further arguments.
#include "torchette/kernels/dims.h"
#include "torchette/kernels/elementwise_operator.h"
#include "torchette/kernels/scientific/special.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Computes a special function in double precision, also for floats.
template <typename F, typename T, typename... More>
static TORCHETTE_INLINE T wide(F function, T x, More... more) {
  return static_cast<T>(function(static_cast<double>(x), more...));
}
template <int kOrder>
static double bessel_i(double x) {
  return special::bessel_i(kOrder, x);
}
template <int kOrder>
static double scaled_bessel_i(double x) {
  return special::scaled_bessel_i(kOrder, x);
}

static TORCHETTE_INLINE float erfinv(float x) {
  return static_cast<float>(special::erfinv(static_cast<double>(x), 0));
}
static TORCHETTE_INLINE double erfinv(double x) { return special::erfinv(x, 1); }

#include "torchette/kernels/functions.def"
TORCHETTE_OP(gelu, 1, Same, true, false, false, false, gelu(x))
TORCHETTE_OP(gelu_tanh, 1, Same, true, false, false, false, gelu_tanh(x))
TORCHETTE_OP(leaky_relu, 2, Same, true, false, false, false, a < 0 ? a * b : a)
TORCHETTE_OP(elu, 4, Same, true, false, false, false, a < 0 ? expm1(a * d) * b * c : a * c)

static Error leaky_relu_out(Context& context, const Tensor& x, const Scalar& slope, Tensor& out) {
  return run(context, leaky_relu_parts, out, x, slope);
}

static Error elu_out(Context& context, const Tensor& x, const Scalar& alpha, const Scalar& scale,
                     const Scalar& input_scale, Tensor& out) {
  return run(context, elu_parts, out, x, alpha, scale, input_scale);
}

static Error gelu_out(Context& context, const Tensor& x, Span<const char> approximate, Tensor& out) {
  if (equal(approximate, "none")) return run(context, gelu_parts, out, x);
  TORCHETTE_CHECK(equal(approximate, "tanh"), InvalidArgument, "gelu: approximate must be none or tanh");
  return run(context, gelu_tanh_parts, out, x);
}

static Error logit_out(Context& context, const Tensor& x, Optional<double> eps, Tensor& out) {
  if (!eps.has_value()) return run(context, logit_parts, out, x);
  return run(context, logit_within_parts, out, x, Scalar(*eps), Scalar(1 - *eps));
}

static Error atan2_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, atan2_parts, out, a, b);
}

static Error copysign_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  return run(context, copysign_parts, out, a, b);
}

static Error polygamma_out(Context& context, int64_t n, const Tensor& x, Tensor& out) {
  TORCHETTE_CHECK(n >= 0, InvalidArgument, "polygamma: n is %lld, expected at least 0",
                  static_cast<long long>(n));
  return run(context, polygamma_parts, out, Scalar(static_cast<double>(n)), x);
}

/// Multiplies the first half along a dimension by the sigmoid of the second half.
static Error glu_out(Context& context, const Tensor& x, int64_t dim, Tensor& out) {
  TORCHETTE_CHECK(x.dim() > 0, InvalidArgument, "glu: self is a 0-d tensor");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  const auto d = static_cast<size_t>(dim);
  TORCHETTE_CHECK(x.sizes()[d] % 2 == 0 && is_floating(x.scalar_type()), InvalidArgument,
                  "glu: self has size %d in dimension %zu and type %d, expected an even size and floats",
                  x.sizes()[d], d, static_cast<int>(x.scalar_type()));
  View first(x), second(x);
  first.cut(d, x.sizes()[d] / 2);
  second.cut(d, x.sizes()[d] / 2);
  second.advance(d, x.sizes()[d] / 2);
  return run(context, glu_parts, out, first.tensor(), second.tensor());
}

#include "torchette/kernels/elementwise_entries.h"
// clang-format off
static constexpr Kernel functions_entries[] = {
#include "torchette/kernels/functions.def"
    TORCHETTE_KERNEL("aten::leaky_relu.out", leaky_relu_out),
    TORCHETTE_KERNEL("aten::elu.out", elu_out),
    TORCHETTE_KERNEL("aten::gelu.out", gelu_out),
    TORCHETTE_KERNEL("aten::logit.out", logit_out),
    TORCHETTE_KERNEL("aten::copysign.Scalar_out", copysign_scalar_out),
    TORCHETTE_KERNEL("aten::polygamma.out", polygamma_out),
    TORCHETTE_KERNEL("aten::glu.out", glu_out),
    TORCHETTE_KERNEL("aten::atan2.out", atan2_out)};
// clang-format on
TORCHETTE_FAMILY(functions)

}  // namespace TORCHETTE_ISA
}  // namespace torchette
