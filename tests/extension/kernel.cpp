// SPDX-License-Identifier: BSD-3-Clause
// A kernel that is written for ExecuTorch: other * (self + alpha); `other` is optional. The same source is
// compiled for Torchette tensors and, with TORCHETTE_ATEN, for torch tensors.
#include <executorch/runtime/kernel/kernel_includes.h>

namespace torch {
namespace executor {
namespace native {

using Tensor = executorch::aten::Tensor;
using Scalar = executorch::aten::Scalar;
using executorch::aten::optional;

Tensor& scale_out(KernelRuntimeContext& context, const Tensor& self, const optional<Tensor>& other,
                  const Scalar& alpha, Tensor& out) {
  ET_KERNEL_CHECK_MSG(context, resize_tensor(out, self.sizes()) == Error::Ok, InvalidArgument, out,
                      "cannot resize the output");
  ET_KERNEL_CHECK(context, tensors_have_same_dtype(self, out), InvalidArgument, out);
  if (other.has_value())
    ET_KERNEL_CHECK(context, tensors_have_same_shape_and_dtype(self, other.value()), InvalidArgument, out);

  ET_SWITCH_REALHBF16_TYPES(self.scalar_type(), context, "scale.out", CTYPE, [&]() {
    const CTYPE addend = alpha.to<CTYPE>();
    const CTYPE* a = self.const_data_ptr<CTYPE>();
    const CTYPE* b = other.has_value() ? other.value().const_data_ptr<CTYPE>() : nullptr;
    CTYPE* result = out.mutable_data_ptr<CTYPE>();
    for (ssize_t i = 0; i < self.numel(); ++i)
      result[i] = static_cast<CTYPE>((a[i] + addend) * (b != nullptr ? b[i] : static_cast<CTYPE>(1)));
  });
  return out;
}

}  // namespace native
}  // namespace executor
}  // namespace torch
