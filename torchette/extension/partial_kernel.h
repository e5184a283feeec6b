// SPDX-License-Identifier: BSD-3-Clause
// Partial kernels: a partial kernel runs if the tensors of a call have the dtypes and dim orders that it
// supports. Other calls use the kernel that was registered before.
#pragma once

#include "torchette/extension/custom_op.h"

namespace torchette::extension {

/// Returns whether the tensors of a call match `key`. A key contains the dtype code and the dim order of each
/// tensor argument, including outputs: "6;0,1|6;0,1|6;0,1". The format is that of ExecuTorch, with or without
/// its prefix "v1/". An empty key matches every call.
inline bool matches_key(const char* key, const char* signature, Args arguments) {
  if (key[0] == 'v' && key[1] == '1' && key[2] == '/') key += 3;
  if (*key == 0) return true;
  const auto number = [&key] {
    int n = 0;
    for (; *key >= '0' && *key <= '9'; ++key) n = 10 * n + *key - '0';
    return n;
  };
  bool first = true;
  for (size_t i = 0; *signature != 0; ++i, ++signature) {
    if (*signature == '?') ++signature;
    if (*signature != 'T' && *signature != 't') continue;
    if (!arguments[i].is_tensor()) return false;
    if (!first && *key++ != '|') return false;
    first = false;
    const Tensor tensor = arguments[i].to_tensor();
    if (number() != static_cast<int>(tensor.scalar_type()) || *key++ != ';') return false;
    size_t dim = 0;
    for (; *key != 0 && *key != '|'; ++dim) {
      if (dim == tensor.dim_order().size() || number() != tensor.dim_order()[dim]) return false;
      if (*key == ',') ++key;
    }
    if (dim != tensor.dim_order().size()) return false;
  }
  return *key == 0;
}

/// A kernel for calls that match `key`. `Id` distinguishes partial kernels of the same function.
template <auto Fn, int Id>
struct Partial {
  static inline const char* key = "";
  static inline OpFunction fallback = nullptr;

  static Error run(Context& context, Args arguments) {
    if (matches_key(key, Boxed<Fn>::kSignature.text, arguments)) return Boxed<Fn>::run(context, arguments);
    TORCHETTE_CHECK(
        fallback != nullptr, NotSupported,
        "no kernel supports the dtypes and dim orders of this call; the partial kernel requires %s", key);
    return fallback(context, arguments);
  }
};

}  // namespace torchette::extension

/// Defines a partial kernel at namespace scope: TORCHETTE_PARTIAL_KERNEL("aten::add.out",
/// "6;0,1|6;0,1|6;0,1", fast_add_out). The file is compiled into a program or by `torchette custom build`.
/// `fn` has the parameters of the operator's kernel.
#define TORCHETTE_PARTIAL_KERNEL(name, key, fn) TORCHETTE_PARTIAL_ON(__LINE__, name, key, fn)
#define TORCHETTE_PARTIAL_ON(line, name, key, fn) TORCHETTE_PARTIAL_AT(line, name, key, fn)
#define TORCHETTE_PARTIAL_AT(line, name, kernel_key, fn)                                                 \
  static const ::torchette::Kernel torchette_partial_kernel_##line[] = {                                 \
      {name, &::torchette::extension::Partial<fn, line>::run, ::torchette::Boxed<fn>::kSignature.text}}; \
  static ::torchette::extension::KernelNode torchette_partial_##line{                                    \
      {torchette_partial_kernel_##line, nullptr, true},                                                  \
      &::torchette::extension::Partial<fn, line>::fallback};                                             \
  [[maybe_unused]] static const ::torchette::Error torchette_partial_added_##line =                      \
      (::torchette::extension::Partial<fn, line>::key = kernel_key,                                      \
       ::torchette::extension::add_kernels(torchette_partial_##line));
