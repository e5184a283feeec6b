// SPDX-License-Identifier: BSD-3-Clause
// cpu::quantized_linear: torchette/backends/engine/operators/quantized.py.
#include "torchette/kernels/engine/quantized.h"

namespace torchette {
namespace TORCHETTE_ISA {

static Error quantized_linear_out(Context& context, const Tensor& input, const Tensor& weight,
                                  const Tensor& terms, int64_t input_zero, int64_t outputs, int64_t zero,
                                  int64_t low, int64_t high, Tensor& out) {
  constexpr const char* kName = "quantized_linear";
  TORCHETTE_TRY(check_bytes(kName, input, "input"));
  TORCHETTE_TRY(check_bytes(kName, weight, "weight"));
  TORCHETTE_TRY(check_input_zero(kName, input, input_zero));
  TORCHETTE_CHECK(input.dim() >= 1 && input.dim() <= static_cast<ptrdiff_t>(kMaxDim), InvalidArgument,
                  "%s: input has %d dimensions, expected 1 to 16", kName, static_cast<int>(input.dim()));
  const auto depth = static_cast<size_t>(input.size(input.dim() - 1));
  TORCHETTE_CHECK(
      outputs >= 0 && outputs <= INT32_MAX && weight.scalar_type() == ScalarType::Char && weight.dim() == 4 &&
          static_cast<size_t>(weight.size(0)) == panels_of(static_cast<size_t>(outputs)) &&
          static_cast<size_t>(weight.size(1)) == quads_of(depth) &&
          weight.size(2) == ptrdiff_t{kPanelWidth} && weight.size(3) == ptrdiff_t{kQuad},
      InvalidArgument, "%s: a weight of %d dimensions and %d elements does not fit %d outputs of %d inputs",
      kName, static_cast<int>(weight.dim()), static_cast<int>(weight.numel()), static_cast<int>(outputs),
      static_cast<int>(depth));
  SizesType sizes[kMaxDim];
  for (ptrdiff_t d = 0; d < input.dim(); ++d) sizes[d] = static_cast<SizesType>(input.size(d));
  sizes[input.dim() - 1] = static_cast<SizesType>(outputs);
  TORCHETTE_TRY(check_quantized(kName, out, {sizes, static_cast<size_t>(input.dim())}, zero, low, high));
  IntegerProduct product = {};
  TORCHETTE_TRY(read_terms(kName, terms, 1, static_cast<size_t>(outputs), zero, low, high, product.how));
  product.n = static_cast<size_t>(outputs);
  product.k = depth;
  product.m = 1;
  for (ptrdiff_t d = 0; d + 1 < input.dim(); ++d) product.m *= static_cast<size_t>(sizes[d]);
  product.a = static_cast<const uint8_t*>(input.const_data_ptr());
  product.a_row = static_cast<ptrdiff_t>(depth);
  product.w = weight.const_data_ptr<int8_t>();
  product.c = static_cast<uint8_t*>(out.mutable_data_ptr());
  product.c_row = static_cast<ptrdiff_t>(outputs);
  product.is_signed = input.scalar_type() == ScalarType::Char;
  product.input_zero = static_cast<int32_t>(input_zero);
  return integer_gemm(context, kName, product);
}

TORCHETTE_KERNELS(quantized_linear, TORCHETTE_KERNEL("cpu::quantized_linear.out", quantized_linear_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
