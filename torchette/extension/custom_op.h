// SPDX-License-Identifier: BSD-3-Clause
// Defines a custom operator in one file: its schema, the shape and dtype of its result, and its kernel. The
// file is compiled into a program, or by `torchette custom build` into a library for Python's torch and the
// runtime.
#pragma once

#include <cstring>

#include "torchette/runtime/kernel_registry.h"

namespace torchette::extension {

/// The description of an operator that torchette.load_library() passes to torch.
struct CustomOp {
  const char* schema;  // of the functional operator, "my::scale(Tensor x, float by) -> Tensor"
  const char* result;  // a Python expression of the arguments; if empty, the result is like the first tensor
  CustomOp* next;
};

/// The kernels of a file. `fallback`, if not null, receives the kernel that is registered under their name.
struct KernelNode {
  KernelRegistration registration;
  OpFunction* fallback = nullptr;
  KernelNode* next = nullptr;
};

/// Registers the kernels of a node. A partial kernel takes precedence over the registered kernel of its name.
inline Error register_node(KernelNode& node) {
  if (node.fallback != nullptr) {
    const Kernel& kernel = node.registration.kernels[0];
    const Kernel* const found = find_kernel(kernel.name);
    if (found != nullptr) {
      TORCHETTE_CHECK(strcmp(found->signature, kernel.signature) == 0, InvalidArgument,
                      "a partial kernel of %s has signature %s, expected %s", kernel.name, kernel.signature,
                      found->signature);
      *node.fallback = found->function;
    }
  }
  return register_kernels(node.registration);
}

/// The contents of a library that `torchette custom build` has built: the symbol torchette_custom_library.
struct CustomLibrary {
  uint32_t layout;  // kCustomLayout of the headers that it was compiled with
  KernelNode** kernels;
  CustomOp** ops;
  bool (*register_pal)(const PalImpl& impl);
};

/// Identifies the ABI between kernels and the runtime. Changes when a shared data structure changes.
constexpr uint32_t kCustomLayout = 2u << 24 | sizeof(Value) << 16 | sizeof(TensorImpl) << 8 | sizeof(Kernel);

inline CustomOp* custom_ops = nullptr;
inline KernelNode* custom_kernels = nullptr;

/// Appends to the list, so that a partial kernel takes precedence over kernels that precede it in its file.
template <typename T>
void append(T*& list, T& node) {
  T** end = &list;
  while (*end != nullptr) end = &(*end)->next;
  *end = &node;
}

/// Registers the kernels of a file when its program starts, or adds them to the list of its library.
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

/// The name of the out variant of a functional operator: "my::scale.out", "my::scale.Scalar_out".
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

/// Reads the types of a functional operator's schema: "my::scale(Tensor x, float by=2) -> Tensor".
class SchemaReader {
 public:
  constexpr explicit SchemaReader(const char* schema) : at_(schema) {
    while (*at_ != 0 && *at_ != '(') ++at_;
  }

  /// Returns whether a kernel with this signature has the parameters of the schema.
  constexpr bool matches(const char* signature) {
    if (*signature == kAnyCode || *at_ == 0) return true;  // reported elsewhere: by Boxed, by torch
    ++at_;
    for (bool inside = start(); inside; inside = next()) {
      if (*at_ != '*' && !take(signature, false)) return false;
      skip_item();
    }
    while (*at_ != 0 && *at_ != '>') ++at_;
    if (*at_ != 0) ++at_;
    while (*at_ == ' ') ++at_;
    const bool is_list = *at_ == '(';
    if (is_list) ++at_;
    for (bool inside = start(); inside; inside = is_list && next()) {
      if (!take(signature, true)) return false;
      skip_item();
    }
    return *signature == 0;
  }

 private:
  constexpr bool start() {
    while (*at_ == ' ') ++at_;
    return *at_ != 0 && *at_ != ')';
  }
  constexpr bool next() { return *at_ == ',' && (++at_, start()); }
  /// Skips the name and the default of a parameter.
  constexpr void skip_item() {
    int depth = 0;
    for (char quote = 0; *at_ != 0; ++at_) {
      if (quote != 0) {
        if (*at_ == quote) quote = 0;
      } else if (*at_ == '\'' || *at_ == '"') {
        quote = *at_;
      } else if (depth == 0 && (*at_ == ',' || *at_ == ')')) {
        return;
      } else if (*at_ == '(' || *at_ == '[') {
        ++depth;
      } else if (*at_ == ')' || *at_ == ']') {
        --depth;
      }
    }
  }
  /// Compares the type at the position with the next code of the signature, and moves after both.
  constexpr bool take(const char*& signature, bool is_result) {
    char type[32] = {};
    size_t size = 0;
    bool is_known = true;
    for (; *at_ != 0 && *at_ != ' ' && *at_ != ',' && *at_ != ')'; ++at_) {
      if (*at_ == '(') {  // an alias annotation
        while (*at_ != 0 && *at_ != ')') is_known = *at_++ != '!' && is_known;
        if (*at_ == 0) break;
        continue;
      }
      if (*at_ >= '0' && *at_ <= '9') continue;  // the length of a list
      if (size + 1 < sizeof(type)) type[size++] = *at_;
    }
    const bool is_optional = size != 0 && type[size - 1] == '?';
    if (is_optional) type[size - 1] = 0;
    if (*signature == 0) return false;
    if (is_optional != (*signature == '?') && *signature != kAnyCode) return false;
    if (*signature == '?') ++signature;
    const char given = *signature++;
    const char expected = is_result && equal(type, "Tensor") ? 't' : code_of(type);
    return given == kAnyCode || !is_known || expected == 0 || given == expected;
  }
  static constexpr bool equal(const char* a, const char* b) {
    for (; *a != 0 && *a == *b; ++a) ++b;
    return *a == *b;
  }
  /// Returns the code of a schema type, 0 for a type without code, such as ScalarType.
  static constexpr char code_of(const char* type) {
    if (equal(type, "SymInt")) return 'i';
    if (equal(type, "SymInt[]")) return 'I';
#define TORCHETTE_CODE(letter, cpp_type, schema_type, ...) \
  if (equal(type, #schema_type)) return letter;
#include "torchette/schema/kernels.def"
    return 0;
  }

  const char* at_;
};

/// Wraps a kernel for results of dynamic size, so that a result does not keep the sizes of an earlier call.
/// If `kAsFirst`, resizes each result to the sizes of the first tensor before the call. Otherwise the kernel
/// must resize each result; returns InvalidState if it does not.
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
                    "a custom kernel did not resize its result: call resize_tensor(out, ...) first");
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

/// Defines a custom operator at namespace scope: TORCHETTE_OP("my::scale(Tensor x, float by) -> Tensor",
/// scale_out). The parameters of `fn` are a Context&, the arguments of the schema in order and a Tensor& for
/// each result: Error fn(Context&, const Tensor& x, double by, Tensor& out). An optional third argument is a
/// Python expression of the arguments that describes the results: "x.new_empty(x.shape[0])", several
/// separated by commas. up_to(bound) is a size that depends on the data: "x.new_empty(up_to(x.numel()))".
/// Without the expression, each result has the shape and dtype of the first tensor.
#define TORCHETTE_OP(schema, ...) TORCHETTE_OP_ON(__LINE__, schema, __VA_ARGS__, "")
#define TORCHETTE_OP_ON(line, ...) TORCHETTE_OP_AT(line, __VA_ARGS__, "")
#define TORCHETTE_OP_AT(line, schema, fn, result, ...)                                                      \
  static_assert(                                                                                            \
      ::torchette::extension::SchemaReader(schema).matches(::torchette::Boxed<fn>::kSignature.text),        \
      "the parameters of the kernel " #fn " differ from its schema, see docs/custom-kernels.md");           \
  static constexpr ::torchette::extension::OutName torchette_op_name_##line(schema);                        \
  static constexpr ::torchette::Kernel torchette_op_kernel_##line[] = {                                     \
      {torchette_op_name_##line.text, &::torchette::extension::Sized<fn, sizeof(result) == 1>::run,         \
       ::torchette::Boxed<fn>::kSignature.text}};                                                           \
  static ::torchette::extension::KernelNode torchette_op_registration_##line{{torchette_op_kernel_##line}}; \
  static ::torchette::extension::CustomOp torchette_op_##line{schema, result, nullptr};                     \
  [[maybe_unused]] static const ::torchette::Error torchette_op_added_##line =                              \
      ::torchette::extension::add_op(torchette_op_##line, torchette_op_registration_##line);
