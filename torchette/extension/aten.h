// SPDX-License-Identifier: BSD-3-Clause
// Converts between torch tensors and Torchette tensors without copying, and wraps Torchette kernels as
// functions on torch tensors. Requires the headers and libraries of an installed torch.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "torchette/extension/compat/kernel.h"
#include "torchette/extension/error_name.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/extension/tensor_ptr.h"

namespace torchette::extension {

/// Returns a torch tensor that shares the memory of `tensor`. The memory must outlive the result.
inline at::Tensor to_aten(const Tensor& tensor) {
  const std::vector<int64_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
  const std::vector<int64_t> strides(tensor.strides().begin(), tensor.strides().end());
  const auto type = static_cast<c10::ScalarType>(tensor.scalar_type());
  return at::from_blob(tensor.mutable_data_ptr(), sizes, strides, at::TensorOptions(type));
}

/// Returns a tensor that shares the memory of a torch tensor and keeps it alive. Returns null and logs the
/// reason if `tensor` is not a dense CPU tensor or if a size or stride exceeds 2^31 - 1.
inline TensorPtr from_aten(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided) {
    TORCHETTE_LOG(Error, "cannot share the memory of a tensor that is undefined, sparse or not on the CPU");
    return nullptr;
  }
  std::vector<SizesType> sizes;
  std::vector<StridesType> strides;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > INT32_MAX || tensor.stride(d) > INT32_MAX) {
      TORCHETTE_LOG(Error, "a size or stride of dimension %d exceeds 2^31 - 1", static_cast<int>(d));
      return nullptr;
    }
    sizes.push_back(static_cast<SizesType>(tensor.size(d)));
    strides.push_back(static_cast<StridesType>(tensor.stride(d)));
  }
  return make_tensor_ptr(std::move(sizes), tensor.data_ptr(), {}, std::move(strides),
                         static_cast<ScalarType>(tensor.scalar_type()), TensorShapeDynamism::DYNAMIC_BOUND,
                         [tensor](void*) {});
}

/// The torch type of a kernel parameter of type T, and the conversion of an argument from torch. Scalars need
/// no conversion.
template <typename T>
struct AtenArgument {
  using type = T;
  T value;
  explicit AtenArgument(T argument) : value(argument) {}
  T get() { return value; }
};
template <>
struct AtenArgument<const Tensor&> {
  using type = const at::Tensor&;
  TensorPtr tensor;
  // Copies a tensor with gaps or overlapping elements, which the runtime does not support.
  explicit AtenArgument(const at::Tensor& argument)
      : tensor(from_aten(argument.is_non_overlapping_and_dense() ? argument : argument.contiguous())) {
    TORCH_CHECK(tensor != nullptr,
                "a Torchette kernel cannot read this tensor: it must be dense and on the CPU");
  }
  const Tensor& get() { return *tensor; }
};
template <>
struct AtenArgument<Tensor&> {
  using type = at::Tensor&;
  at::Tensor& argument;
  TensorPtr tensor;
  explicit AtenArgument(at::Tensor& output) : argument(output), tensor(from_aten(output)) {
    TORCH_CHECK(tensor != nullptr,
                "a Torchette kernel cannot write this output: it must be dense and on the CPU");
  }
  // A kernel resizes an output only within its memory.
  ~AtenArgument() {
    const std::vector<int64_t> sizes(tensor->sizes().begin(), tensor->sizes().end());
    if (argument.sizes() != at::IntArrayRef(sizes)) argument.resize_(sizes);
  }
  Tensor& get() { return *tensor; }
};
template <>
struct AtenArgument<const Scalar&> {
  using type = const at::Scalar&;
  Scalar value;
  explicit AtenArgument(const at::Scalar& argument)
      : value(argument.isFloatingPoint() ? Scalar(argument.toDouble())
              : argument.isBoolean()     ? Scalar(argument.toBool())
                                         : Scalar(argument.toLong())) {}
  const Scalar& get() { return value; }
};
template <>
struct AtenArgument<Span<const int64_t>> {
  using type = at::IntArrayRef;
  Span<const int64_t> value;
  explicit AtenArgument(at::IntArrayRef argument) : value(argument.data(), argument.size()) {}
  Span<const int64_t> get() { return value; }
};
template <>
struct AtenArgument<const std::optional<Tensor>&> {
  using type = const std::optional<at::Tensor>&;
  std::optional<AtenArgument<const Tensor&>> tensor;
  std::optional<Tensor> value;
  explicit AtenArgument(const std::optional<at::Tensor>& argument) {
    if (!argument.has_value()) return;
    tensor.emplace(*argument);
    value = tensor->get();
  }
  const std::optional<Tensor>& get() { return value; }
};

template <auto Fn, size_t kOut, typename = decltype(Fn)>
struct AtenFunction;
template <auto Fn, size_t kOut, typename... A>
struct AtenFunction<Fn, kOut, Tensor& (*)(executorch::runtime::KernelRuntimeContext&, A...)> {
  static at::Tensor& call(typename AtenArgument<A>::type... arguments) {
    at::Tensor& out = std::get<kOut>(std::forward_as_tuple(arguments...));
    MallocMemoryAllocator scratch;
    executorch::runtime::KernelRuntimeContext context(nullptr, &scratch);
    Fn(context, AtenArgument<A>(arguments).get()...);
    TORCH_CHECK(context.failure_state() == Error::Ok, "the kernel failed with ",
                error_name(context.failure_state()));
    return out;
  }
};

}  // namespace torchette::extension

/// Wraps a Torchette kernel as a function on torch tensors, for TORCH_LIBRARY and for tests. The function
/// returns the argument at `out_index`, counted after the context. If the kernel fails, it throws c10::Error.
#define WRAP_TO_ATEN(fn, out_index) &::torchette::extension::AtenFunction<fn, out_index>::call
