// SPDX-License-Identifier: BSD-3-Clause
// Between torch's tensors and ours, without copying; and kernels of ours as functions on torch's tensors.
// Needs the headers and libraries of an installed torch, which nothing else here does.
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

/// torch's view of a tensor's memory, which must outlive it.
inline at::Tensor to_aten(const Tensor& tensor) {
  const std::vector<int64_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
  const std::vector<int64_t> strides(tensor.strides().begin(), tensor.strides().end());
  const auto type = static_cast<c10::ScalarType>(tensor.scalar_type());
  return at::from_blob(tensor.mutable_data_ptr(), sizes, strides, at::TensorOptions(type));
}

/// A tensor over torch's memory, which it keeps alive. Null, with the reason in the log, for a tensor that is
/// not a dense CPU tensor.
inline TensorPtr from_aten(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided) {
    TORCHETTE_LOG(Error, "only dense tensors of the CPU have memory that can be shared");
    return nullptr;
  }
  std::vector<SizesType> sizes;
  std::vector<StridesType> strides;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > INT32_MAX || tensor.stride(d) > INT32_MAX) {
      TORCHETTE_LOG(Error, "a size or stride is more than 2^31 - 1");
      return nullptr;
    }
    sizes.push_back(static_cast<SizesType>(tensor.size(d)));
    strides.push_back(static_cast<StridesType>(tensor.stride(d)));
  }
  return make_tensor_ptr(std::move(sizes), tensor.data_ptr(), {}, std::move(strides),
                         static_cast<ScalarType>(tensor.scalar_type()), TensorShapeDynamism::DYNAMIC_BOUND,
                         [tensor](void*) {});
}

/// What a kernel's parameter is on torch's side, and how an argument of it becomes ours. Numbers are what
/// they are.
template <typename T>
struct AtenArgument {
  using type = T;
  T value;
  explicit AtenArgument(T given) : value(given) {}
  T get() { return value; }
};
template <>
struct AtenArgument<const Tensor&> {
  using type = const at::Tensor&;
  TensorPtr tensor;
  // a gap in memory is what only torch's tensors have
  explicit AtenArgument(const at::Tensor& given)
      : tensor(from_aten(given.is_non_overlapping_and_dense() ? given : given.contiguous())) {
    TORCH_CHECK(tensor != nullptr, "this tensor cannot be used by a kernel of Torchette");
  }
  const Tensor& get() { return *tensor; }
};
template <>
struct AtenArgument<Tensor&> {
  using type = at::Tensor&;
  at::Tensor& given;
  TensorPtr tensor;
  explicit AtenArgument(at::Tensor& output) : given(output), tensor(from_aten(output)) {
    TORCH_CHECK(tensor != nullptr, "this output cannot be written by a kernel of Torchette");
  }
  // a kernel that has resized its output has done so within its memory
  ~AtenArgument() {
    const std::vector<int64_t> sizes(tensor->sizes().begin(), tensor->sizes().end());
    if (given.sizes() != at::IntArrayRef(sizes)) given.resize_(sizes);
  }
  Tensor& get() { return *tensor; }
};
template <>
struct AtenArgument<const Scalar&> {
  using type = const at::Scalar&;
  Scalar value;
  explicit AtenArgument(const at::Scalar& given)
      : value(given.isFloatingPoint() ? Scalar(given.toDouble())
              : given.isBoolean()     ? Scalar(given.toBool())
                                      : Scalar(given.toLong())) {}
  const Scalar& get() { return value; }
};
template <>
struct AtenArgument<Span<const int64_t>> {
  using type = at::IntArrayRef;
  Span<const int64_t> value;
  explicit AtenArgument(at::IntArrayRef given) : value(given.data(), given.size()) {}
  Span<const int64_t> get() { return value; }
};
template <>
struct AtenArgument<const std::optional<Tensor>&> {
  using type = const std::optional<at::Tensor>&;
  std::optional<AtenArgument<const Tensor&>> held;
  std::optional<Tensor> value;
  explicit AtenArgument(const std::optional<at::Tensor>& given) {
    if (!given.has_value()) return;
    held.emplace(*given);
    value = held->get();
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

/// A kernel of ours as a function on torch's tensors, for TORCH_LIBRARY and for tests. `out_index` counts its
/// arguments after the context; that one is returned. A failing kernel throws c10::Error.
#define WRAP_TO_ATEN(fn, out_index) &::torchette::extension::AtenFunction<fn, out_index>::call
