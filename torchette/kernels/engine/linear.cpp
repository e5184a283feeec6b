// SPDX-License-Identifier: BSD-3-Clause
// cpu::linear: torchette/backends/engine/operators/linear.py.
#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/packed_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

static Error linear_out(Context& context, const Tensor& input, const Tensor& weight,
                        const Optional<Tensor>& bias, const Optional<Tensor>& residual, int64_t outputs,
                        Span<const char> activation, Tensor& out) {
  TORCHETTE_TRY(check_floats("linear", input, "input"));
  TORCHETTE_CHECK(input.dim() >= 1 && input.dim() <= static_cast<ptrdiff_t>(kMaxDim), InvalidArgument,
                  "linear: input has %d dimensions, expected 1 to 16", static_cast<int>(input.dim()));
  const ptrdiff_t depth = input.size(input.dim() - 1);
  PackedProduct product = {};
  TORCHETTE_TRY(check_stored("linear", weight, product.stored, "weight", true));
  product.cut = weight.dim() == 2 && product.stored != Stored::pairs;
  const ptrdiff_t inputs = weight.dim() < 2 ? -1 : weight.size(1) * (product.stored == Stored::pairs ? 2 : 1);
  TORCHETTE_CHECK(
      outputs >= 0 && outputs <= INT32_MAX &&
          (product.cut
               ? weight.size(0) == depth && weight.size(1) == static_cast<ptrdiff_t>(outputs)
               : weight.dim() == 3 && inputs == depth &&
                     weight.size(2) == static_cast<ptrdiff_t>(kPanelWidth) &&
                     weight.size(0) == static_cast<ptrdiff_t>(panels_of(static_cast<size_t>(outputs)))),
      InvalidArgument,
      "linear: a weight of %d dimensions, the first of %d and the second of %d, does not fit %d outputs of "
      "%d "
      "inputs",
      static_cast<int>(weight.dim()), static_cast<int>(weight.dim() > 0 ? weight.size(0) : -1),
      static_cast<int>(weight.dim() > 1 ? weight.size(1) : -1), static_cast<int>(outputs),
      static_cast<int>(depth));
  SizesType sizes[kMaxDim];
  for (ptrdiff_t d = 0; d < input.dim(); ++d) sizes[d] = static_cast<SizesType>(input.size(d));
  sizes[input.dim() - 1] = static_cast<SizesType>(outputs);
  const Span<const SizesType> shape = {sizes, static_cast<size_t>(input.dim())};
  const SizesType vector[] = {static_cast<SizesType>(outputs)};
  TORCHETTE_TRY(check_operand("linear", bias, {vector, 1}, "bias"));
  TORCHETTE_TRY(check_operand("linear", residual, shape, "residual"));
  TORCHETTE_TRY(activation_of(activation, product.activation));
  TORCHETTE_TRY(check_result("linear", out, shape));
  product.n = static_cast<size_t>(outputs);
  product.k = static_cast<size_t>(depth);
  product.m = 1;
  for (ptrdiff_t d = 0; d + 1 < input.dim(); ++d) product.m *= static_cast<size_t>(sizes[d]);
  product.a = input.const_data_ptr<float>();
  product.a_row = depth;
  product.w = weight.const_data_ptr();
  product.c = out.mutable_data_ptr<float>();
  product.c_row = product.residual_row = static_cast<ptrdiff_t>(outputs);
  product.bias = floats_of(bias);
  product.residual = floats_of(residual);
  TORCHETTE_TRY(allocate_wide(context, "linear", product));
  packed_gemm(context, product);
  return Error::Ok;
}

TORCHETTE_KERNELS(linear, TORCHETTE_KERNEL("cpu::linear.out", linear_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
