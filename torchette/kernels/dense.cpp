// SPDX-License-Identifier: BSD-3-Clause
// Implementation of dense.h.
#include "torchette/kernels/dense.h"

#include "torchette/kernels/dims.h"

namespace torchette {
namespace TORCHETTE_ISA {

Error Dense::open(Context& context, const Tensor& t, ScalarType type) {
  static constexpr DimOrderType kRowMajor[kMaxDim] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  context_ = &context;
  target_ = t;
  impl_ = *t.unsafe_impl();
  if (t.scalar_type() == type && is_contiguous(t)) return Error::Ok;
  impl_.type = type;
  impl_.dim_order = kRowMajor;
  impl_.strides = strides_;
  impl_.dynamism = TensorShapeDynamism::STATIC;
  ptrdiff_t step = 1;
  for (size_t d = impl_.dim; d-- > 0;) {
    strides_[d] = static_cast<StridesType>(step);
    step *= impl_.sizes[d] > 0 ? impl_.sizes[d] : 1;
  }
  impl_.data = nullptr;
  if (t.numel() == 0) return Error::Ok;
  const size_t bytes = static_cast<size_t>(t.numel()) * element_size(type);
  impl_.data = context.allocate_temp(bytes);
  TORCHETTE_CHECK(impl_.data != nullptr, MemoryAllocationFailed,
                  "no scratch memory for a copy of %d elements of type %d", static_cast<int>(t.numel()),
                  static_cast<int>(type));
  return Error::Ok;
}

/// Copies `from` to `to`. One of them has the layout of `permuted`. If the type and the layout both change,
/// converts and permutes in two steps, because a combined step is slow.
Error Dense::through(const Tensor& from, const Tensor& to, const Tensor& permuted, ScalarType type) {
  if (from.scalar_type() == to.scalar_type() || is_contiguous(permuted)) return assign(from, to);
  View stop(permuted);
  stop.impl.type = type;
  stop.impl.data = context_->allocate_temp(static_cast<size_t>(permuted.numel()) * element_size(type));
  if (stop.impl.data == nullptr) return assign(from, to);
  TORCHETTE_TRY(assign(from, stop.tensor()));
  return assign(stop.tensor(), to);
}

Error Dense::read(Context& context, const Tensor& t, ScalarType type) {
  TORCHETTE_TRY(open(context, t, type));
  return impl_.data == t.const_data_ptr() || t.numel() == 0 ? Error::Ok : through(t, tensor(), t, type);
}

Error Dense::finish() {
  return impl_.data == target_.const_data_ptr() || impl_.numel == 0
             ? Error::Ok
             : through(tensor(), target_, target_, impl_.type);
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
