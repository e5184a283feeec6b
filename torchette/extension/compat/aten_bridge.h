// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's names of the functions that share memory between torch tensors and Torchette tensors.
#pragma once

#include <c10/core/ScalarTypeToTypeMeta.h>

#include "torchette/extension/aten.h"

namespace executorch::extension {

inline ::torchette::ScalarType torch_to_executorch_scalar_type(caffe2::TypeMeta type) {
  return static_cast<::torchette::ScalarType>(c10::typeMetaToScalarType(type));
}
inline c10::ScalarType executorch_to_torch_scalar_type(::torchette::ScalarType type) {
  return static_cast<c10::ScalarType>(type);
}
/// Makes the Torchette tensor `mutable_et` use the memory of the torch tensor. Throws c10::Error if dtypes,
/// sizes or layouts differ.
inline void alias_etensor_to_attensor(at::Tensor& aten_tensor, ::torchette::Tensor& mutable_et) {
  TORCH_CHECK(aten_tensor.device().is_cpu() && aten_tensor.is_contiguous(),
              "the tensor is not a contiguous CPU tensor");
  TORCH_CHECK(::torchette::is_contiguous(mutable_et), "the Torchette tensor is not contiguous");
  TORCH_CHECK(static_cast<::torchette::ScalarType>(aten_tensor.scalar_type()) == mutable_et.scalar_type(),
              "torch's tensor has dtype ", aten_tensor.scalar_type(), ", ours has dtype ",
              static_cast<int>(mutable_et.scalar_type()));
  const std::vector<int64_t> sizes(mutable_et.sizes().begin(), mutable_et.sizes().end());
  TORCH_CHECK(aten_tensor.sizes() == at::IntArrayRef(sizes), "torch's tensor has sizes ", aten_tensor.sizes(),
              ", ours has sizes ", at::IntArrayRef(sizes));
  mutable_et.unsafe_impl()->data = aten_tensor.mutable_data_ptr();
}
/// Returns a torch tensor that shares the Torchette tensor's memory, which must outlive it.
inline at::Tensor alias_attensor_to_etensor(const ::torchette::Tensor& et) {
  return ::torchette::extension::to_aten(et);
}
inline ::torchette::extension::TensorPtr alias_tensor_ptr_to_attensor(at::Tensor& tensor) {
  return ::torchette::extension::from_aten(tensor);
}

}  // namespace executorch::extension

// Older names, from before the namespace executorch.
namespace torch {
namespace executor::util {
using ::executorch::extension::alias_attensor_to_etensor;
using ::executorch::extension::alias_etensor_to_attensor;
inline ::torchette::ScalarType torchToExecuTorchScalarType(caffe2::TypeMeta type) {
  return ::executorch::extension::torch_to_executorch_scalar_type(type);
}
inline c10::ScalarType execuTorchtoTorchScalarType(::torchette::ScalarType type) {
  return ::executorch::extension::executorch_to_torch_scalar_type(type);
}
}  // namespace executor::util
namespace util {
using ::torch::executor::util::alias_attensor_to_etensor;
using ::torch::executor::util::alias_etensor_to_attensor;
using ::torch::executor::util::execuTorchtoTorchScalarType;
using ::torch::executor::util::torchToExecuTorchScalarType;
}  // namespace util
}  // namespace torch
