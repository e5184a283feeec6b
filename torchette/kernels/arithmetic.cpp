// SPDX-License-Identifier: BSD-3-Clause
// Kernels of arithmetic.def, and arithmetic kernels with further arguments: alpha, a rounding mode, scalars.
#include "torchette/kernels/elementwise_operator.h"

namespace torchette {
namespace TORCHETTE_ISA {

#include "torchette/kernels/arithmetic.def"
TORCHETTE_DIVISION(div_floor, quotient_toward_floor)
TORCHETTE_OP(div_trunc, 2, Same, true, true, false, true, quotient_toward_zero(a, b))
TORCHETTE_OP(bitwise_not, 1, Same, false, true, false, false, ~x)
TORCHETTE_OP(shift_left, 2, Same, false, true, false, false, shifted_left(a, b))
TORCHETTE_OP(shift_right, 2, Same, false, true, false, false, shifted_right(a, b))

static bool is_one(const Scalar& s) { return s.is_floating() ? s.to_double() == 1 : s.to_int() == 1; }

/// The alpha of add and sub must be an integer if the result has integers.
static Error check_alpha(const Operand* in, const Scalar& alpha) {
  TORCHETTE_CHECK(!alpha.is_floating() || is_floating(promote_operands(in, 2)), InvalidType,
                  "alpha must be an integer if the operands are integers");
  return Error::Ok;
}

static Error add_operands(Context& context, const Operand& a, const Operand& b, const Scalar& alpha,
                          const Tensor& out) {
  if (is_one(alpha)) {
    const Operand in[] = {a, b};
    return run_elementwise(context, add_parts, in, out);
  }
  const Operand in[] = {a, b, alpha};
  TORCHETTE_TRY(check_alpha(in, alpha));
  return run_elementwise(context, add_scaled_parts, in, out);
}

static Error sub_operands(Context& context, const Operand& a, const Operand& b, const Scalar& alpha,
                          const Tensor& out) {
  const Operand in[] = {a, b};
  if (is_one(alpha)) return run_elementwise(context, sub_parts, in, out);
  TORCHETTE_TRY(check_alpha(in, alpha));
  return add_operands(context, a, b,
                      alpha.is_floating() ? Scalar(-alpha.to_double()) : Scalar(-alpha.to_int()), out);
}

static Error add_out(Context& context, const Tensor& a, const Tensor& b, const Scalar& alpha, Tensor& out) {
  return is_one(alpha) ? run(context, add_parts, out, a, b) : add_operands(context, a, b, alpha, out);
}

static Error add_scalar_out(Context& context, const Tensor& a, const Scalar& b, const Scalar& alpha,
                            Tensor& out) {
  return add_operands(context, a, b, alpha, out);
}

static Error sub_out(Context& context, const Tensor& a, const Tensor& b, const Scalar& alpha, Tensor& out) {
  return is_one(alpha) ? run(context, sub_parts, out, a, b) : sub_operands(context, a, b, alpha, out);
}

static Error sub_scalar_out(Context& context, const Tensor& a, const Scalar& b, const Scalar& alpha,
                            Tensor& out) {
  return sub_operands(context, a, b, alpha, out);
}

static Error rsub_scalar_out(Context& context, const Tensor& a, const Scalar& b, const Scalar& alpha,
                             Tensor& out) {
  return sub_operands(context, b, {a, 0}, alpha, out);
}

static Error mul_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, mul_parts, out, a, b);
}

static Error mul_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  return run(context, mul_parts, out, a, b);
}

static Error div_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, div_parts, out, a, b);
}

static Error div_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  return run(context, div_parts, out, a, b);
}

static Error div_operands(Context& context, const Operand& a, const Operand& b,
                          const Optional<Span<const char>>& mode, const Tensor& out) {
  if (!mode.has_value()) return run(context, div_parts, out, a, b);
  if (equal(*mode, "floor")) return run(context, div_floor_parts, out, a, b);
  TORCHETTE_CHECK(equal(*mode, "trunc"), InvalidArgument, "div: rounding_mode must be floor or trunc");
  return run(context, div_trunc_parts, out, a, b);
}

static Error div_mode_out(Context& context, const Tensor& a, const Tensor& b, Optional<Span<const char>> mode,
                          Tensor& out) {
  return div_operands(context, a, b, mode, out);
}

static Error div_scalar_mode_out(Context& context, const Tensor& a, const Scalar& b,
                                 Optional<Span<const char>> mode, Tensor& out) {
  return div_operands(context, a, b, mode, out);
}

static Error floor_divide_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, div_floor_parts, out, a, b);
}

static Error pow_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, pow_parts, out, a, b);
}

static Error pow_base_out(Context& context, const Scalar& a, const Tensor& b, Tensor& out) {
  return run(context, pow_parts, out, a, b);
}

static Error pow_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  const double exponent = b.to_double();
  const Operand in[] = {a, b};
  const bool floating = is_floating(promote_operands(in, 2)) && is_floating(a.scalar_type());
  if (exponent == 2 && (floating || !b.is_floating())) return run(context, square_parts, out, a);
  if (exponent == 3 && (floating || !b.is_floating())) return run(context, cube_parts, out, a);
  // torch computes powers of float16 without roots: infinity for -infinity and 0.5.
  const bool roots = floating && a.scalar_type() != ScalarType::Half;
  if (roots && exponent == 0.5) return run(context, sqrt_parts, out, a);
  if (roots && exponent == -0.5) return run(context, rsqrt_parts, out, a);
  if (floating && exponent == -1) return run(context, reciprocal_parts, out, a);
  TORCHETTE_CHECK(is_floating(promote_operands(in, 2)) || b.to_int() >= 0, InvalidArgument,
                  "exponent: integers cannot be raised to a negative integer power");
  return run(context, pow_parts, out, a, b);
}

static Error bitwise_not_out(Context& context, const Tensor& x, Tensor& out) {
  return run(context, x.scalar_type() == ScalarType::Bool ? logical_not_parts : bitwise_not_parts, out, x);
}

static Error shift_left_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, shift_left_parts, out, a, b);
}

static Error shift_left_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  return run(context, shift_left_parts, out, a, b);
}

static Error shift_right_out(Context& context, const Tensor& a, const Tensor& b, Tensor& out) {
  return run(context, shift_right_parts, out, a, b);
}

static Error shift_right_scalar_out(Context& context, const Tensor& a, const Scalar& b, Tensor& out) {
  return run(context, shift_right_parts, out, a, b);
}

#include "torchette/kernels/elementwise_entries.h"
// clang-format off
static constexpr Kernel arithmetic_entries[] = {
#include "torchette/kernels/arithmetic.def"
    TORCHETTE_KERNEL("aten::add.out", add_out),
    TORCHETTE_KERNEL("aten::add.Scalar_out", add_scalar_out),
    TORCHETTE_KERNEL("aten::sub.out", sub_out),
    TORCHETTE_KERNEL("aten::sub.Scalar_out", sub_scalar_out),
    TORCHETTE_KERNEL("aten::rsub.Scalar_out", rsub_scalar_out),
    TORCHETTE_KERNEL("aten::mul.out", mul_out),
    TORCHETTE_KERNEL("aten::mul.Scalar_out", mul_scalar_out),
    TORCHETTE_KERNEL("aten::div.out", div_out),
    TORCHETTE_KERNEL("aten::div.Scalar_out", div_scalar_out),
    TORCHETTE_KERNEL("aten::div.out_mode", div_mode_out),
    TORCHETTE_KERNEL("aten::div.Scalar_mode_out", div_scalar_mode_out),
    TORCHETTE_KERNEL("aten::floor_divide.out", floor_divide_out),
    TORCHETTE_KERNEL("aten::pow.Tensor_Tensor_out", pow_out),
    TORCHETTE_KERNEL("aten::pow.Tensor_Scalar_out", pow_scalar_out),
    TORCHETTE_KERNEL("aten::pow.Scalar_out", pow_base_out),
    TORCHETTE_KERNEL("aten::bitwise_not.out", bitwise_not_out),
    TORCHETTE_KERNEL("aten::bitwise_left_shift.Tensor_out", shift_left_out),
    TORCHETTE_KERNEL("aten::bitwise_left_shift.Tensor_Scalar_out", shift_left_scalar_out),
    TORCHETTE_KERNEL("aten::bitwise_right_shift.Tensor_out", shift_right_out),
    TORCHETTE_KERNEL("aten::bitwise_right_shift.Tensor_Scalar_out", shift_right_scalar_out)};
// clang-format on
TORCHETTE_FAMILY(arithmetic)

}  // namespace TORCHETTE_ISA
}  // namespace torchette
