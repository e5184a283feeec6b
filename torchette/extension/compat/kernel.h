// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's spelling of kernels: the context that they fail through, their registration, the switches over
// dtypes, and the most used questions about tensors. Also compiled against torch's tensors: see aten.h.
#pragma once

#include "torchette/extension/compat/runtime.h"
#include "torchette/extension/custom_op.h"

namespace executorch::runtime {

/// What a kernel is given. A kernel that fails says so here and returns its output as it is.
class KernelRuntimeContext {
 public:
  explicit KernelRuntimeContext(EventTracer* event_tracer = nullptr,
                                MemoryAllocator* temp_allocator = nullptr)
      : own_(temp_allocator, ::torchette::Traced(event_tracer)), context_(own_) {}
  explicit KernelRuntimeContext(::torchette::Context& context) : context_(context) {}
  KernelRuntimeContext(const KernelRuntimeContext&) = delete;

  void fail(Error error) { error_ = error; }
  Error failure_state() const { return error_; }
  EventTracer* internal_event_tracer() const { return context_.event_tracer(); }
  /// Scratch memory until the kernel returns. Error: MemoryAllocationFailed.
  Result<void*> allocate_temp(size_t size, size_t alignment = MemoryAllocator::kDefaultAlignment) {
    void* memory = context_.allocate_temp(size, alignment);
    if (memory == nullptr) return Error::MemoryAllocationFailed;
    return memory;
  }

 private:
  ::torchette::Context own_;
  ::torchette::Context& context_;
  Error error_ = Error::Ok;
};

inline bool registry_has_op_function(const char* name) { return ::torchette::find_kernel(name) != nullptr; }

// --- Questions about types and tensors
template <typename T>
struct CppTypeToScalarType {
#ifdef TORCHETTE_ATEN
  static constexpr aten::ScalarType value = c10::CppTypeToScalarType<T>::value;
#else
  static constexpr aten::ScalarType value = ::torchette::kScalarType<T>;
#endif
};

inline bool isIntegralType(aten::ScalarType type, bool include_bool) {
  const auto own = static_cast<::torchette::ScalarType>(type);
  return ::torchette::is_integral(own) || (include_bool && own == ::torchette::ScalarType::Bool);
}
inline bool isFloatingType(aten::ScalarType type) {
  return ::torchette::is_floating(static_cast<::torchette::ScalarType>(type));
}

#ifdef TORCHETTE_ATEN
inline Error resize_tensor(const aten::Tensor& t, aten::IntArrayRef sizes) {
  t.resize_(sizes);
  return Error::Ok;
}
#else
using ::torchette::resize_tensor;
#endif

inline bool tensors_have_same_dtype(const aten::Tensor& a, const aten::Tensor& b) {
  return a.scalar_type() == b.scalar_type();
}
inline bool tensors_have_same_shape(const aten::Tensor& a, const aten::Tensor& b) {
  if (a.dim() != b.dim()) return false;
  for (ptrdiff_t d = 0; d < a.dim(); ++d)
    if (a.size(d) != b.size(d)) return false;
  return true;
}
inline bool tensors_have_same_shape_and_dtype(const aten::Tensor& a, const aten::Tensor& b) {
  return tensors_have_same_dtype(a, b) && tensors_have_same_shape(a, b);
}
inline bool tensor_is_rank(const aten::Tensor& t, size_t rank) {
  return static_cast<size_t>(t.dim()) == rank;
}
inline bool dim_is_valid(int64_t dim, int64_t upper_bound) {
  return dim >= -upper_bound && dim < upper_bound;
}
inline ptrdiff_t nonzero_dim(const aten::Tensor& t) { return t.dim() == 0 ? 1 : t.dim(); }

}  // namespace executorch::runtime

namespace torch::executor {
using ::executorch::runtime::CppTypeToScalarType;
using ::executorch::runtime::dim_is_valid;
using ::executorch::runtime::isFloatingType;
using ::executorch::runtime::isIntegralType;
using ::executorch::runtime::KernelRuntimeContext;
using ::executorch::runtime::nonzero_dim;
using ::executorch::runtime::registry_has_op_function;
using ::executorch::runtime::resize_tensor;
using ::executorch::runtime::tensor_is_rank;
using ::executorch::runtime::tensors_have_same_dtype;
using ::executorch::runtime::tensors_have_same_shape;
using ::executorch::runtime::tensors_have_same_shape_and_dtype;
using RuntimeContext = KernelRuntimeContext;
}  // namespace torch::executor

#define ET_NORMALIZE_IX(index, upper_bound) ((index) < 0 ? (index) + (upper_bound) : (index))
#define ET_KERNEL_CHECK_MSG(context, condition, error, result, ...) \
  do {                                                              \
    if (TORCHETTE_UNLIKELY(!(condition))) {                         \
      TORCHETTE_LOG(Error, __VA_ARGS__);                            \
      (context).fail(::torchette::Error::error);                    \
      return result;                                                \
    }                                                               \
  } while (0)
#define ET_KERNEL_CHECK(context, condition, error, result) \
  ET_KERNEL_CHECK_MSG(context, condition, error, result, "%s does not hold", #condition)

// --- Switches over dtypes: the last argument, a lambda, is called with its alias naming the C++ type.
#define TORCHETTE_CASE(kType, type, ALIAS, ...) \
  case ::executorch::aten::ScalarType::kType: { \
    using ALIAS [[maybe_unused]] = type;        \
    __VA_ARGS__();                              \
    break;                                      \
  }
#define TORCHETTE_CASE_INT(...)               \
  TORCHETTE_CASE(Byte, uint8_t, __VA_ARGS__)  \
  TORCHETTE_CASE(Char, int8_t, __VA_ARGS__)   \
  TORCHETTE_CASE(Short, int16_t, __VA_ARGS__) \
  TORCHETTE_CASE(Int, int32_t, __VA_ARGS__)   \
  TORCHETTE_CASE(Long, int64_t, __VA_ARGS__)
#define TORCHETTE_CASE_FLOAT(...)           \
  TORCHETTE_CASE(Float, float, __VA_ARGS__) \
  TORCHETTE_CASE(Double, double, __VA_ARGS__)
#define TORCHETTE_CASE_BOOL(...) TORCHETTE_CASE(Bool, bool, __VA_ARGS__)
#define TORCHETTE_CASE_H(...) TORCHETTE_CASE(Half, ::executorch::aten::Half, __VA_ARGS__)
#define TORCHETTE_CASE_BF16(...) TORCHETTE_CASE(BFloat16, ::executorch::aten::BFloat16, __VA_ARGS__)
#define TORCHETTE_SWITCH(type, context, name, ...)                                                     \
  do {                                                                                                 \
    const auto torchette_type = type;                                                                  \
    switch (torchette_type) {                                                                          \
      __VA_ARGS__                                                                                      \
      default:                                                                                         \
        TORCHETTE_LOG(Error, "%s has no kernel for dtype %d", name, static_cast<int>(torchette_type)); \
        (context).fail(::torchette::Error::InvalidArgument);                                           \
    }                                                                                                  \
  } while (0)
#define ET_SWITCH_INT_TYPES(t, c, n, ...) TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_INT(__VA_ARGS__))
#define ET_SWITCH_FLOAT_TYPES(t, c, n, ...) TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_FLOAT(__VA_ARGS__))
#define ET_SWITCH_FLOATH_TYPES(t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_FLOAT(__VA_ARGS__) TORCHETTE_CASE_H(__VA_ARGS__))
#define ET_SWITCH_FLOATHBF16_TYPES(t, c, n, ...)                                   \
  TORCHETTE_SWITCH(t, c, n,                                                        \
                   TORCHETTE_CASE_FLOAT(__VA_ARGS__) TORCHETTE_CASE_H(__VA_ARGS__) \
                       TORCHETTE_CASE_BF16(__VA_ARGS__))
#define ET_SWITCH_REAL_TYPES(t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_INT(__VA_ARGS__) TORCHETTE_CASE_FLOAT(__VA_ARGS__))
#define ET_SWITCH_REALB_TYPES(t, c, n, ...)                                          \
  TORCHETTE_SWITCH(t, c, n,                                                          \
                   TORCHETTE_CASE_INT(__VA_ARGS__) TORCHETTE_CASE_FLOAT(__VA_ARGS__) \
                       TORCHETTE_CASE_BOOL(__VA_ARGS__))
#define ET_SWITCH_REALH_TYPES(t, c, n, ...)                                          \
  TORCHETTE_SWITCH(t, c, n,                                                          \
                   TORCHETTE_CASE_INT(__VA_ARGS__) TORCHETTE_CASE_FLOAT(__VA_ARGS__) \
                       TORCHETTE_CASE_H(__VA_ARGS__))
#define ET_SWITCH_REALHB_TYPES(t, c, n, ...)                                         \
  TORCHETTE_SWITCH(t, c, n,                                                          \
                   TORCHETTE_CASE_INT(__VA_ARGS__) TORCHETTE_CASE_FLOAT(__VA_ARGS__) \
                       TORCHETTE_CASE_H(__VA_ARGS__) TORCHETTE_CASE_BOOL(__VA_ARGS__))
#define ET_SWITCH_REALHBF16_TYPES(t, c, n, ...)                                      \
  TORCHETTE_SWITCH(t, c, n,                                                          \
                   TORCHETTE_CASE_INT(__VA_ARGS__) TORCHETTE_CASE_FLOAT(__VA_ARGS__) \
                       TORCHETTE_CASE_H(__VA_ARGS__) TORCHETTE_CASE_BF16(__VA_ARGS__))
#define ET_SWITCH_REALHBBF16_TYPES(t, c, n, ...)                                      \
  TORCHETTE_SWITCH(t, c, n,                                                           \
                   TORCHETTE_CASE_INT(__VA_ARGS__) TORCHETTE_CASE_FLOAT(__VA_ARGS__)  \
                       TORCHETTE_CASE_H(__VA_ARGS__) TORCHETTE_CASE_BF16(__VA_ARGS__) \
                           TORCHETTE_CASE_BOOL(__VA_ARGS__))

// --- Registration
#ifndef TORCHETTE_ATEN
namespace torchette {

template <>
struct From<std::string_view> {
  static constexpr char kCode[] = "S";
  static TORCHETTE_INLINE std::string_view get(const Value& v) {
    return {v.to_string().data(), v.to_string().size()};
  }
};
template <>
struct From<ScalarType> {
  static constexpr char kCode[] = "i";
  static TORCHETTE_INLINE ScalarType get(const Value& v) { return static_cast<ScalarType>(v.to_int()); }
};
template <typename T>
struct From<std::optional<T>> : private From<Optional<T>> {
  using From<Optional<T>>::kCode;
  static TORCHETTE_INLINE std::optional<T> get(const Value& v) {
    if (v.is_none()) return std::nullopt;
    return T(From<T>::get(v));
  }
};
template <typename T>
struct From<const std::optional<T>&> : From<std::optional<T>> {};

/// Turns a kernel that fails through its context, or knows none, into one that returns its error.
template <auto Fn, typename = decltype(Fn)>
struct Unboxed;
template <auto Fn, typename R, typename... A>
struct Unboxed<Fn, R (*)(executorch::runtime::KernelRuntimeContext&, A...)> {
  static Error call(Context& context, A... arguments) {
    executorch::runtime::KernelRuntimeContext given(context);
    Fn(given, static_cast<A>(arguments)...);
    return given.failure_state();
  }
};
template <auto Fn, typename R, typename... A>
struct Unboxed<Fn, R (*)(A...)> {
  static Error call(Context&, A... arguments) {
    Fn(static_cast<A>(arguments)...);
    return Error::Ok;
  }
};

}  // namespace torchette

#define TORCHETTE_LIBRARY_KERNEL(name, fn) TORCHETTE_KERNEL(name, ::torchette::Unboxed<fn>::call)

#else

#include <exception>
#include <tuple>

namespace torchette {

/// An argument of a program as a kernel on torch's tensors takes it. finish() brings results back.
template <typename T>
struct AtenFrom {
  static constexpr auto& kCode = From<T>::kCode;
  T value;
  explicit AtenFrom(const Value& v) : value(From<T>::get(v)) {}
  T& get() { return value; }
  Error finish() { return Error::Ok; }
};
template <>
struct AtenFrom<const at::Tensor&> {
  static constexpr auto& kCode = From<const Tensor&>::kCode;
  at::Tensor value;
  explicit AtenFrom(const Value& v) : value(view(v.to_tensor())) {}
  static at::Tensor view(const Tensor& t) {
    const std::vector<int64_t> sizes(t.sizes().begin(), t.sizes().end());
    const std::vector<int64_t> strides(t.strides().begin(), t.strides().end());
    return at::from_blob(t.mutable_data_ptr(), sizes, strides, static_cast<c10::ScalarType>(t.scalar_type()));
  }
  const at::Tensor& get() { return value; }
  Error finish() { return Error::Ok; }
};
template <>
struct AtenFrom<at::Tensor&> : private AtenFrom<const at::Tensor&> {
  static constexpr auto& kCode = Written<Tensor&>::kCode;
  Tensor own;
  explicit AtenFrom(const Value& v) : AtenFrom<const at::Tensor&>(v), own(v.to_tensor()) {
    // torch resizes no memory that is not its own
    if (own.shape_dynamism() != TensorShapeDynamism::STATIC) value = at::empty_like(value);
  }
  at::Tensor& get() { return value; }
  Error finish() {
    const std::vector<SizesType> sizes(value.sizes().begin(), value.sizes().end());
    TORCHETTE_TRY(resize_tensor(own, {sizes.data(), sizes.size()}));
    if (value.data_ptr() != own.mutable_data_ptr()) view(own).copy_(value);
    return Error::Ok;
  }
};
template <>
struct AtenFrom<const at::Scalar&> {
  static constexpr auto& kCode = From<const Scalar&>::kCode;
  at::Scalar value;
  explicit AtenFrom(const Value& v) {
    const Scalar own = From<const Scalar&>::get(v);
    value = own.is_bool()       ? at::Scalar(own.to_bool())
            : own.is_integral() ? at::Scalar(own.to_int())
                                : at::Scalar(own.to_double());
  }
  const at::Scalar& get() { return value; }
  Error finish() { return Error::Ok; }
};
template <>
struct AtenFrom<at::IntArrayRef> : AtenFrom<Span<const int64_t>> {
  using AtenFrom<Span<const int64_t>>::AtenFrom;
  at::IntArrayRef get() { return {value.data(), value.size()}; }
};
template <typename T>
struct AtenFrom<std::optional<T>> {
  using Present = AtenFrom<std::conditional_t<std::is_same_v<T, at::Tensor>, const at::Tensor&, T>>;
  static constexpr char kCode[] = {'?', Present::kCode[0], 0};
  std::optional<T> value;
  explicit AtenFrom(const Value& v) {
    if (!v.is_none()) value = Present(v).get();
  }
  std::optional<T>& get() { return value; }
  Error finish() { return Error::Ok; }
};
template <typename T>
struct AtenFrom<const std::optional<T>&> : AtenFrom<std::optional<T>> {
  using AtenFrom<std::optional<T>>::AtenFrom;
};

/// A kernel on torch's tensors as one of a program's; what it throws is its error.
template <auto Fn, typename = decltype(Fn)>
struct AtenBoxed;
template <auto Fn, typename R, typename... A>
struct AtenBoxed<Fn, R (*)(executorch::runtime::KernelRuntimeContext&, A...)> {
  template <size_t... I>
  static Error call(Context& context, Args args, std::index_sequence<I...>) {
    std::tuple<AtenFrom<A>...> held(args[I]...);
    executorch::runtime::KernelRuntimeContext given(context);
    Fn(given, std::get<I>(held).get()...);
    Error error = given.failure_state();
    ((error = error == Error::Ok ? std::get<I>(held).finish() : error), ...);
    return error;
  }
  static Error run(Context& context, Args args) {
    try {
      return call(context, args, std::index_sequence_for<A...>{});
    } catch (const std::exception& fault) {
      TORCHETTE_LOG(Error, "a kernel on torch's tensors: %s", fault.what());
      return Error::Internal;
    }
  }
  struct Signature {
    char text[2 * sizeof...(A) + 1] = {};
    constexpr Signature() {
      size_t n = 0;
      for (const char* code : {AtenFrom<A>::kCode...})
        while (*code != 0) text[n++] = *code++;
    }
  };
  static constexpr Signature kSignature{};
};
template <auto Fn, typename R, typename... A>
struct AtenBoxed<Fn, R (*)(A...)> : AtenBoxed<+[](executorch::runtime::KernelRuntimeContext&,
                                                  A... arguments) { Fn(static_cast<A>(arguments)...); }> {};

}  // namespace torchette

#define TORCHETTE_LIBRARY_KERNEL(name, fn) \
  {name, &::torchette::AtenBoxed<fn>::run, ::torchette::AtenBoxed<fn>::kSignature.text}
#endif

/// EXECUTORCH_LIBRARY(my_ops, "mul4.out", mul4_out); at namespace scope. The program starts with the kernel
/// registered; where one of that name is there already, it stays, and the log says so.
#define EXECUTORCH_LIBRARY(ns, name, fn) TORCHETTE_LIBRARY(ns, name, fn, __LINE__)
#define TORCHETTE_LIBRARY(ns, name, fn, line) TORCHETTE_LIBRARY_AT(ns, name, fn, line)
#define TORCHETTE_LIBRARY_AT(ns, name, fn, line)                                                      \
  static const ::torchette::Kernel torchette_kernel_##line[] = {                                      \
      TORCHETTE_LIBRARY_KERNEL(#ns "::" name, fn)};                                                   \
  static ::torchette::extension::KernelNode torchette_registration_##line{{torchette_kernel_##line}}; \
  [[maybe_unused]] static const ::torchette::Error torchette_registered_##line =                      \
      ::torchette::extension::add_kernels(torchette_registration_##line);
