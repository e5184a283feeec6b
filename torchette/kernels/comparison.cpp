// SPDX-License-Identifier: BSD-3-Clause
// Kernels of comparison.def, and kernels that select by a condition or clamp to bounds.
#include "torchette/kernels/elementwise_operator.h"

namespace torchette {
namespace TORCHETTE_ISA {

#include "torchette/kernels/comparison.def"
TORCHETTE_OP(where, 3, Same, true, true, true, false, a != 0 ? b : c)

static Error where_out(Context& context, const Tensor& condition, const Tensor& a, const Tensor& b,
                       Tensor& out) {
  TORCHETTE_CHECK(condition.scalar_type() == ScalarType::Bool || condition.scalar_type() == ScalarType::Byte,
                  InvalidType, "where: condition must be a bool tensor");
  return run(context, where_parts, out, condition, a, b);
}

static Error masked_fill_scalar_out(Context& context, const Tensor& x, const Tensor& mask,
                                    const Scalar& value, Tensor& out) {
  TORCHETTE_CHECK(mask.scalar_type() == ScalarType::Bool, InvalidType,
                  "masked_fill: mask must be a bool tensor");
  return run(context, where_parts, out, Operand(mask, 1), value, Operand(x, 0));
}

static Error masked_fill_tensor_out(Context& context, const Tensor& x, const Tensor& mask,
                                    const Tensor& value, Tensor& out) {
  TORCHETTE_CHECK(mask.scalar_type() == ScalarType::Bool && value.dim() == 0, InvalidType,
                  "masked_fill: mask must be a bool tensor and value a 0-d tensor");
  return run(context, where_parts, out, Operand(mask, 1), Operand(value, 2), Operand(x, 0));
}

template <typename Bound>
static Error clamp_operands(Context& context, const Tensor& x, const Optional<Bound>& low,
                            const Optional<Bound>& high, const Tensor& out) {
  if (low.has_value() && high.has_value()) return run(context, clamp_parts, out, x, *low, *high);
  if (low.has_value()) return run(context, at_least_parts, out, x, *low);
  TORCHETTE_CHECK(high.has_value(), InvalidArgument, "clamp: min or max is required");
  return run(context, at_most_parts, out, x, *high);
}

static Error clamp_out(Context& context, const Tensor& x, Optional<Scalar> low, Optional<Scalar> high,
                       Tensor& out) {
  return clamp_operands(context, x, low, high, out);
}

static Error clamp_tensor_out(Context& context, const Tensor& x, Optional<Tensor> low, Optional<Tensor> high,
                              Tensor& out) {
  return clamp_operands(context, x, low, high, out);
}

static Error clamp_min_out(Context& context, const Tensor& x, const Scalar& low, Tensor& out) {
  return run(context, at_least_parts, out, x, low);
}

static Error clamp_max_out(Context& context, const Tensor& x, const Scalar& high, Tensor& out) {
  return run(context, at_most_parts, out, x, high);
}

/// Converts a bound of hardtanh: the result has the type of the input, even if the input is an integer tensor
/// and the bounds are floats.
static Scalar as_type_of(const Tensor& x, const Scalar& s) {
  return is_floating(x.scalar_type()) || !s.is_floating() ? s : Scalar(s.to_int());
}

static Error hardtanh_out(Context& context, const Tensor& x, const Scalar& low, const Scalar& high,
                          Tensor& out) {
  return run(context, clamp_parts, out, x, as_type_of(x, low), as_type_of(x, high));
}

#include "torchette/kernels/elementwise_entries.h"
// clang-format off
static constexpr Kernel comparison_entries[] = {
#include "torchette/kernels/comparison.def"
    TORCHETTE_KERNEL("aten::where.self_out", where_out),
    TORCHETTE_KERNEL("aten::masked_fill.Scalar_out", masked_fill_scalar_out),
    TORCHETTE_KERNEL("aten::masked_fill.Tensor_out", masked_fill_tensor_out),
    TORCHETTE_KERNEL("aten::clamp.out", clamp_out),
    TORCHETTE_KERNEL("aten::clamp.Tensor_out", clamp_tensor_out),
    TORCHETTE_KERNEL("aten::clamp_min.out", clamp_min_out),
    TORCHETTE_KERNEL("aten::clamp_max.out", clamp_max_out),
    TORCHETTE_KERNEL("aten::hardtanh.out", hardtanh_out)};
// clang-format on
TORCHETTE_FAMILY(comparison)

}  // namespace TORCHETTE_ISA
}  // namespace torchette
