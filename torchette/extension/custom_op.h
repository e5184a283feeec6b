// SPDX-License-Identifier: BSD-3-Clause
// An operator of one's own in one file: its schema, the look of its result, its kernel. The file is compiled
// into a program, or by `torchette custom build` into a library that Python's torch and every runtime load.
#pragma once

#include <cstring>

#include "torchette/runtime/kernel_registry.h"

namespace torchette::extension {

/// What torchette.load_library() tells torch about an operator.
struct CustomOp {
  const char* schema;  // of the functional operator, "my::scale(Tensor x, float by) -> Tensor"
  const char* result;  // a Python expression of the arguments; empty: as the first tensor
  CustomOp* next;
};

/// Kernels of a file. `otherwise`, if not null, receives the kernel that was registered before them.
struct KernelNode {
  KernelRegistration registration;
  OpFunction* otherwise = nullptr;
  KernelNode* next = nullptr;
};

/// Registers a node's kernels; those that are partial come before the ones of their name.
inline Error register_node(KernelNode& node) {
  if (node.otherwise != nullptr) {
    const Kernel& kernel = node.registration.kernels[0];
    const Kernel* const found = find_kernel(kernel.name);
    if (found != nullptr) {
      TORCHETTE_CHECK(strcmp(found->signature, kernel.signature) == 0, InvalidArgument,
                      "a partial kernel of %s takes %s, the operator takes %s", kernel.name, kernel.signature,
                      found->signature);
      *node.otherwise = found->function;
    }
  }
  return register_kernels(node.registration);
}

/// The contents of a library of `torchette custom build`, under the symbol torchette_custom_library.
struct CustomLibrary {
  uint32_t layout;  // kCustomLayout of the headers that it was compiled with
  KernelNode** kernels;
  CustomOp** ops;
  bool (*register_pal)(const PalImpl& impl);
};

/// Changes with everything on which kernels and the runtime must agree.
constexpr uint32_t kCustomLayout = 2u << 24 | sizeof(Value) << 16 | sizeof(TensorImpl) << 8 | sizeof(Kernel);

inline CustomOp* custom_ops = nullptr;
inline KernelNode* custom_kernels = nullptr;

/// Last in the list: a partial kernel comes before those that its file has above it.
template <typename T>
void append(T*& list, T& node) {
  T** end = &list;
  while (*end != nullptr) end = &(*end)->next;
  *end = &node;
}

/// Registers the kernels of a file while its program starts, or puts them on the list of its library.
inline Error add_kernels(KernelNode& node) {
#ifdef TORCHETTE_CUSTOM_LIBRARY
  append(custom_kernels, node);
  return Error::Ok;
#else
  return register_node(node);
#endif
}
inline Error add_op(CustomOp& op, KernelNode& kernels) {
  append(custom_ops, op);
  return add_kernels(kernels);
}

/// The name of a functional operator's out variant: "my::scale.out", "my::scale.Scalar_out".
template <size_t N>
struct OutName {
  char text[N + 5] = {};
  constexpr OutName(const char (&schema)[N]) {
    size_t n = 0;
    bool overload = false;
    while (schema[n] != 0 && schema[n] != '(') {
      overload |= schema[n] == '.';
      text[n] = schema[n];
      ++n;
    }
    for (const char c : {overload ? '_' : '.', 'o', 'u', 't'}) text[n++] = c;
  }
};

/// A kernel with varying sizes: its results have none from an earlier call. One that looks like the first
/// tensor is given that one's sizes before; of another, the kernel must have given sizes to each.
template <auto Fn, bool kAsFirst>
struct Sized {
  static Error run(Context& context, Args arguments) {
    constexpr const char* kSignature = Boxed<Fn>::kSignature.text;
    const TensorImpl* first = nullptr;
    TORCHETTE_TRY(for_each_tensor(kSignature, arguments, [&first](char code, const TensorImpl& t) {
      if (code == 'T' && first == nullptr) first = &t;
      return Error::Ok;
    }));
    TORCHETTE_TRY(for_each_tensor(kSignature, arguments, [first](char code, TensorImpl& t) {
      if (code != 't' || t.dynamism == TensorShapeDynamism::STATIC || t.dim == 0) return Error::Ok;
      if (kAsFirst && first != nullptr && first->dim == t.dim)
        return resize_tensor(Tensor(&t), {first->sizes, first->dim});
      t.sizes[0] = kNone;
      t.numel = 0;
      return Error::Ok;
    }));
    const Error error = Boxed<Fn>::run(context, arguments);
    const Error sizes = for_each_tensor(kSignature, arguments, [](char code, TensorImpl& t) {
      if (code != 't' || t.dim == 0 || t.sizes[0] != kNone) return Error::Ok;
      t.sizes[0] = 0;
      return Error::InvalidState;
    });
    TORCHETTE_CHECK(error != Error::Ok || sizes == Error::Ok, InvalidState,
                    "a kernel of one's own gave a result no sizes: resize_tensor(out, ...) comes first");
    return error != Error::Ok ? error : sizes;
  }

 private:
  static constexpr SizesType kNone = -1;

  template <typename F>
  static Error for_each_tensor(const char* code, Args arguments, F f) {
    Error result = Error::Ok;
    for (size_t i = 0; *code != 0; ++i, ++code) {
      if (*code == '?') ++code;
      if (!arguments[i].is_tensor()) continue;
      const Error error = f(*code, *arguments[i].to_tensor().unsafe_impl());
      if (result == Error::Ok) result = error;
    }
    return result;
  }
};

}  // namespace torchette::extension

/// TORCHETTE_OP("my::scale(Tensor x, float by) -> Tensor", scale_out); at namespace scope. `fn` takes a
/// Context&, the arguments of the schema in their order and, last, a Tensor& for each result: Error
/// fn(Context&, const Tensor& x, double by, Tensor& out). A third argument says what the results look like,
/// as Python would make them of the arguments: "x.new_empty(x.shape[0])", with a comma between several;
/// without it, each is as the first tensor.
#define TORCHETTE_OP(schema, ...) TORCHETTE_OP_ON(__LINE__, schema, __VA_ARGS__, "")
#define TORCHETTE_OP_ON(line, ...) TORCHETTE_OP_AT(line, __VA_ARGS__, "")
#define TORCHETTE_OP_AT(line, schema, fn, result, ...)                                                      \
  static constexpr ::torchette::extension::OutName torchette_op_name_##line(schema);                        \
  static constexpr ::torchette::Kernel torchette_op_kernel_##line[] = {                                     \
      {torchette_op_name_##line.text, &::torchette::extension::Sized<fn, sizeof(result) == 1>::run,         \
       ::torchette::Boxed<fn>::kSignature.text}};                                                           \
  static ::torchette::extension::KernelNode torchette_op_registration_##line{{torchette_op_kernel_##line}}; \
  static ::torchette::extension::CustomOp torchette_op_##line{schema, result, nullptr};                     \
  [[maybe_unused]] static const ::torchette::Error torchette_op_added_##line =                              \
      ::torchette::extension::add_op(torchette_op_##line, torchette_op_registration_##line);
