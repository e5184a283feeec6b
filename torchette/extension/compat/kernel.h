// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's names for kernels: the context, the registration, the switches over dtypes, and functions on
// dtypes and tensors. Also compiled against torch's tensors: see aten.h.
#pragma once

#include <algorithm>

#include "torchette/extension/compat/dim_order.h"
#include "torchette/extension/custom_op.h"

namespace executorch::runtime {

/// The context of a kernel call. A kernel that fails calls fail() and returns its output unchanged.
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
  /// Allocates scratch memory until the kernel returns. Error: MemoryAllocationFailed.
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

// --- Functions on dtypes and tensors
template <typename T>
struct CppTypeToScalarType {
#ifdef TORCHETTE_ATEN
  static constexpr aten::ScalarType value = c10::CppTypeToScalarType<T>::value;
#else
  static constexpr aten::ScalarType value = ::torchette::kScalarType<T>;
#endif
};
template <aten::ScalarType kType>
struct ScalarTypeToCppType;
#define TORCHETTE_DTYPE(number, name, torch_name, bytes, cpp_type) \
  template <>                                                      \
  struct ScalarTypeToCppType<aten::ScalarType::name> {             \
    using type = TORCHETTE_ELEMENT(name, cpp_type);                \
  };
#ifdef TORCHETTE_ATEN
#define TORCHETTE_ELEMENT(name, cpp_type) c10::impl::ScalarTypeToCPPTypeT<aten::ScalarType::name>
#else
using ::torchette::BFloat16, ::torchette::Half;
#define TORCHETTE_ELEMENT(name, cpp_type) cpp_type
#endif
#include "torchette/schema/dtypes.def"
#undef TORCHETTE_ELEMENT

#ifdef TORCHETTE_ATEN
using c10::canCast;
using c10::elementSize;
using c10::isFloatingType;
using c10::isIntegralType;
using c10::promoteTypes;
using c10::toString;
#else
/// Returns the name of a dtype in ScalarType.
inline const char* toString(aten::ScalarType type) {
  switch (static_cast<::torchette::ScalarType>(type)) {
#define TORCHETTE_DTYPE(number, name, torch_name, bytes, cpp_type) \
  case ::torchette::ScalarType::name:                              \
    return #name;
#define TORCHETTE_STORED_DTYPE(number, name, torch_name, bytes) \
  TORCHETTE_DTYPE(number, name, torch_name, bytes, )
#include "torchette/schema/dtypes.def"
    default:
      return "Undefined";
  }
}
inline size_t elementSize(aten::ScalarType type) {
  return ::torchette::element_size(static_cast<::torchette::ScalarType>(type));
}
inline bool isIntegralType(aten::ScalarType type, bool include_bool) {
  const auto dtype = static_cast<::torchette::ScalarType>(type);
  return ::torchette::is_integral(dtype) || (include_bool && dtype == ::torchette::ScalarType::Bool);
}
inline bool isFloatingType(aten::ScalarType type) {
  return ::torchette::is_floating(static_cast<::torchette::ScalarType>(type));
}
/// Returns whether torch converts `from` to `to` in place, which excludes a lower kind (bool < integer <
/// float).
inline bool canCast(aten::ScalarType from, aten::ScalarType to) {
  return !(isFloatingType(from) && isIntegralType(to, true)) &&
         !(from != aten::ScalarType::Bool && to == aten::ScalarType::Bool);
}
/// Returns the dtype of an operation on both, by torch's type promotion.
inline aten::ScalarType promoteTypes(aten::ScalarType a, aten::ScalarType b, bool half_to_float = false) {
  const auto is_half = [](aten::ScalarType t) { return isFloatingType(t) && elementSize(t) == 2; };
  if (half_to_float && is_half(a)) a = aten::ScalarType::Float;
  if (half_to_float && is_half(b)) b = aten::ScalarType::Float;
  if (a == b) return a;
  const auto kind = [](aten::ScalarType t) {
    return isFloatingType(t) ? 2 : isIntegralType(t, false) ? 1 : 0;
  };
  if (kind(a) != kind(b)) return kind(a) > kind(b) ? a : b;
  if (is_half(a) && is_half(b)) return aten::ScalarType::Float;
  if (elementSize(a) == elementSize(b)) return aten::ScalarType::Short;  // uint8 and int8
  return elementSize(a) > elementSize(b) ? a : b;
}
#endif

/// Real types are uint8, int8 to int64, float and double. Letters add types: H Half, B Bool, BF16 BFloat16.
inline bool isRealType(aten::ScalarType type) {
  return static_cast<int8_t>(type) <= static_cast<int8_t>(aten::ScalarType::Long) ||
         type == aten::ScalarType::Float || type == aten::ScalarType::Double;
}
inline bool isRealHType(aten::ScalarType type) { return isRealType(type) || type == aten::ScalarType::Half; }
inline bool isRealHBType(aten::ScalarType type) {
  return isRealHType(type) || type == aten::ScalarType::Bool;
}
inline bool isRealHBF16Type(aten::ScalarType type) {
  return isRealHType(type) || type == aten::ScalarType::BFloat16;
}
inline bool isRealHBBF16Type(aten::ScalarType type) {
  return isRealHBType(type) || type == aten::ScalarType::BFloat16;
}

#ifdef TORCHETTE_ATEN
inline Error resize_tensor(const aten::Tensor& t, aten::IntArrayRef sizes) {
  t.resize_(sizes);
  return Error::Ok;
}
#else
using ::torchette::resize_tensor;
/// Resizes a tensor to sizes of another integer type.
template <typename T>
Error resize_tensor(const aten::Tensor& t, Span<const T> sizes) {
  aten::SizesType converted[kTensorDimensionLimit];
  TORCHETTE_CHECK(sizes.size() <= kTensorDimensionLimit, NotSupported,
                  "%zu dimensions exceed the limit of %zu", sizes.size(), kTensorDimensionLimit);
  for (size_t d = 0; d < sizes.size(); ++d) converted[d] = static_cast<aten::SizesType>(sizes[d]);
  return ::torchette::resize_tensor(t, {converted, sizes.size()});
}
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
inline bool tensors_have_same_rank(const aten::Tensor& a, const aten::Tensor& b) {
  return a.dim() == b.dim();
}
inline bool tensors_have_same_strides(const aten::Tensor& a, const aten::Tensor& b) {
  return a.dim() == b.dim() && std::equal(a.strides().begin(), a.strides().end(), b.strides().begin());
}
inline bool tensors_have_same_shape_and_dtype(const aten::Tensor& a, const aten::Tensor& b) {
  return tensors_have_same_dtype(a, b) && tensors_have_same_shape(a, b);
}
#ifndef TORCHETTE_ATEN
inline bool tensors_have_same_dim_order(const aten::Tensor& a, const aten::Tensor& b) {
  return ::torchette::same_dim_order(a, b);
}
inline bool tensor_is_default_dim_order(const aten::Tensor& t) {
  return is_contiguous_dim_order(t.dim_order().data(), t.dim_order().size());
}
inline bool tensor_is_channels_last_dim_order(const aten::Tensor& t) {
  return is_channels_last_dim_order(t.dim_order().data(), t.dim_order().size());
}
inline bool tensor_is_default_or_channels_last_dim_order(const aten::Tensor& t) {
  return tensor_is_default_dim_order(t) || tensor_is_channels_last_dim_order(t);
}
inline bool tensor_is_contiguous(const aten::Tensor& t) { return ::torchette::is_contiguous(t); }
#else
inline bool tensor_is_contiguous(const aten::Tensor& t) { return t.is_contiguous(); }
#endif
// The same checks for three tensors.
#define TORCHETTE_OF_THREE(name)                                                          \
  inline bool name(const aten::Tensor& a, const aten::Tensor& b, const aten::Tensor& c) { \
    return name(a, b) && name(b, c);                                                      \
  }
TORCHETTE_OF_THREE(tensors_have_same_dtype)
TORCHETTE_OF_THREE(tensors_have_same_shape)
TORCHETTE_OF_THREE(tensors_have_same_shape_and_dtype)
TORCHETTE_OF_THREE(tensors_have_same_strides)
#ifndef TORCHETTE_ATEN
TORCHETTE_OF_THREE(tensors_have_same_dim_order)
#endif
#undef TORCHETTE_OF_THREE

inline bool tensor_is_type(const aten::Tensor& t, aten::ScalarType type) { return t.scalar_type() == type; }
template <typename... Types>
bool tensor_is_type(const aten::Tensor& t, aten::ScalarType type, Types... others) {
  return t.scalar_type() == type || tensor_is_type(t, others...);
}
inline bool tensor_is_bool_type(const aten::Tensor& t) { return t.scalar_type() == aten::ScalarType::Bool; }
inline bool tensor_is_integral_type(const aten::Tensor& t, bool include_bool = false) {
  return isIntegralType(t.scalar_type(), include_bool);
}
inline bool tensor_is_floating_type(const aten::Tensor& t) { return isFloatingType(t.scalar_type()); }
inline bool tensor_is_real_type(const aten::Tensor& t) { return isRealType(t.scalar_type()); }
inline bool tensor_is_realh_type(const aten::Tensor& t) { return isRealHType(t.scalar_type()); }
inline bool tensor_is_realhb_type(const aten::Tensor& t) { return isRealHBType(t.scalar_type()); }
inline bool tensor_is_realhbf16_type(const aten::Tensor& t) { return isRealHBF16Type(t.scalar_type()); }
inline bool tensor_is_realhbbf16_type(const aten::Tensor& t) { return isRealHBBF16Type(t.scalar_type()); }
inline bool tensor_can_cast_to(const aten::Tensor& t, aten::ScalarType type) {
  return canCast(t.scalar_type(), type);
}
inline bool tensor_is_scalar(const aten::Tensor& t) { return t.dim() == 0 && t.numel() == 1; }
inline bool tensor_is_rank(const aten::Tensor& t, size_t rank) {
  return static_cast<size_t>(t.dim()) == rank;
}
inline bool tensor_has_rank_greater_or_equal_to(const aten::Tensor& t, size_t rank) {
  return static_cast<size_t>(t.dim()) >= rank;
}
inline bool tensor_has_rank_smaller_or_equal_to(const aten::Tensor& t, size_t rank) {
  return static_cast<size_t>(t.dim()) <= rank;
}
inline bool dim_is_valid(int64_t dim, int64_t upper_bound) {
  return dim >= -upper_bound && dim < upper_bound;
}
inline ptrdiff_t nonzero_dim(const aten::Tensor& t) { return t.dim() == 0 ? 1 : t.dim(); }
inline ptrdiff_t nonempty_size(const aten::Tensor& t, ptrdiff_t dim) {
  return t.dim() == 0 ? 1 : t.size(dim);
}
/// A tensor without dimensions accepts the dimensions 0 and -1.
inline bool tensor_has_dim(const aten::Tensor& t, int64_t dim) { return dim_is_valid(dim, nonzero_dim(t)); }
inline bool tensor_has_non_empty_dim(const aten::Tensor& t, int64_t dim) {
  return t.size(static_cast<ptrdiff_t>(dim < 0 ? dim + t.dim() : dim)) != 0;
}
inline bool tensor_dim_has_index(const aten::Tensor& t, int64_t dim, int64_t index) {
  const ptrdiff_t size = nonempty_size(t, static_cast<ptrdiff_t>(dim < 0 ? dim + t.dim() : dim));
  return index >= -size && index < size;
}
inline bool tensors_have_same_size_at_dims(const aten::Tensor& a, size_t dim_a, const aten::Tensor& b,
                                           size_t dim_b) {
  return dim_a < static_cast<size_t>(a.dim()) && dim_b < static_cast<size_t>(b.dim()) &&
         a.size(static_cast<ptrdiff_t>(dim_a)) == b.size(static_cast<ptrdiff_t>(dim_b));
}
inline bool tensor_has_expected_size(const aten::Tensor& t, aten::ArrayRef<aten::SizesType> sizes) {
  return static_cast<size_t>(t.dim()) == sizes.size() &&
         std::equal(t.sizes().begin(), t.sizes().end(), sizes.begin());
}
/// Return the product of the sizes before `dim`, and of the sizes after it.
inline size_t getLeadingDims(const aten::Tensor& t, int64_t dim) {
  size_t count = 1;
  for (ptrdiff_t d = 0; d < dim; ++d) count *= static_cast<size_t>(t.size(d));
  return count;
}
inline size_t getTrailingDims(const aten::Tensor& t, int64_t dim) {
  size_t count = 1;
  for (ptrdiff_t d = static_cast<ptrdiff_t>(dim) + 1; d < t.dim(); ++d)
    count *= static_cast<size_t>(t.size(d));
  return count;
}
/// Convert between the index of an element in row-major order and its coordinates.
inline size_t coordinateToIndex(const aten::Tensor& t, const size_t* coordinate) {
  size_t index = 0;
  for (ptrdiff_t d = 0; d < t.dim(); ++d) index = index * static_cast<size_t>(t.size(d)) + coordinate[d];
  return index;
}
inline void indexToCoordinate(const aten::Tensor& t, size_t index, size_t* coordinate) {
  for (ptrdiff_t d = t.dim(); d-- > 0;) {
    const auto size = static_cast<size_t>(t.size(d));
    coordinate[d] = size == 0 ? 0 : index % size;
    if (size != 0) index /= size;
  }
}

}  // namespace executorch::runtime

namespace torch::executor {
using ::executorch::runtime::canCast;
using ::executorch::runtime::coordinateToIndex;
using ::executorch::runtime::CppTypeToScalarType;
using ::executorch::runtime::dim_is_valid;
using ::executorch::runtime::elementSize;
using ::executorch::runtime::getLeadingDims;
using ::executorch::runtime::getTrailingDims;
using ::executorch::runtime::indexToCoordinate;
using ::executorch::runtime::isFloatingType;
using ::executorch::runtime::isIntegralType;
using ::executorch::runtime::isRealHBBF16Type;
using ::executorch::runtime::isRealHBF16Type;
using ::executorch::runtime::isRealHBType;
using ::executorch::runtime::isRealHType;
using ::executorch::runtime::isRealType;
using ::executorch::runtime::KernelRuntimeContext;
using ::executorch::runtime::nonempty_size;
using ::executorch::runtime::nonzero_dim;
using ::executorch::runtime::promoteTypes;
using ::executorch::runtime::registry_has_op_function;
using ::executorch::runtime::resize_tensor;
using ::executorch::runtime::ScalarTypeToCppType;
using ::executorch::runtime::tensor_can_cast_to;
using ::executorch::runtime::tensor_dim_has_index;
using ::executorch::runtime::tensor_has_dim;
using ::executorch::runtime::tensor_has_expected_size;
using ::executorch::runtime::tensor_has_non_empty_dim;
using ::executorch::runtime::tensor_has_rank_greater_or_equal_to;
using ::executorch::runtime::tensor_has_rank_smaller_or_equal_to;
using ::executorch::runtime::tensor_is_bool_type;
using ::executorch::runtime::tensor_is_contiguous;
using ::executorch::runtime::tensor_is_floating_type;
using ::executorch::runtime::tensor_is_integral_type;
using ::executorch::runtime::tensor_is_rank;
using ::executorch::runtime::tensor_is_real_type;
using ::executorch::runtime::tensor_is_realh_type;
using ::executorch::runtime::tensor_is_realhb_type;
using ::executorch::runtime::tensor_is_realhbbf16_type;
using ::executorch::runtime::tensor_is_realhbf16_type;
using ::executorch::runtime::tensor_is_scalar;
using ::executorch::runtime::tensor_is_type;
using ::executorch::runtime::tensors_have_same_dtype;
using ::executorch::runtime::tensors_have_same_rank;
using ::executorch::runtime::tensors_have_same_shape;
using ::executorch::runtime::tensors_have_same_shape_and_dtype;
using ::executorch::runtime::tensors_have_same_size_at_dims;
using ::executorch::runtime::tensors_have_same_strides;
using ::executorch::runtime::toString;
#ifndef TORCHETTE_ATEN
using ::executorch::runtime::tensor_is_channels_last_dim_order;
using ::executorch::runtime::tensor_is_default_dim_order;
using ::executorch::runtime::tensor_is_default_or_channels_last_dim_order;
using ::executorch::runtime::tensors_have_same_dim_order;
#endif
using RuntimeContext = KernelRuntimeContext;
}  // namespace torch::executor

#define ET_NORMALIZE_IX(index, upper_bound) ((index) < 0 ? (index) + (upper_bound) : (index))
#define ET_MIN2(a, b) (std::min(a, b))
#define ET_MIN3(a, b, c) (std::min(a, std::min(b, c)))
#define ET_LOG_MSG_AND_RETURN_IF_FALSE ET_CHECK_OR_RETURN_FALSE
#define ET_LOG_AND_RETURN_IF_FALSE(condition) \
  ET_CHECK_OR_RETURN_FALSE(condition, "%s does not hold", #condition)
#define ET_CHECK_VALID_IX(index, upper_bound)                                                   \
  ET_CHECK_MSG(::executorch::runtime::dim_is_valid(index, static_cast<int64_t>(upper_bound)),   \
               "%s is %lld, out of range [-%lld, %lld)", #index, static_cast<long long>(index), \
               static_cast<long long>(upper_bound), static_cast<long long>(upper_bound))
#define ET_CHECK_VALID_DIM(dim, upper_bound) ET_CHECK_VALID_IX(dim, upper_bound)
#define ET_CHECK_SAME_SHAPE2(a, b) ET_CHECK(::executorch::runtime::tensors_have_same_shape(a, b))
#define ET_CHECK_SAME_SHAPE3(a, b, c) ET_CHECK(::executorch::runtime::tensors_have_same_shape(a, b, c))
#define ET_CHECK_SAME_DTYPE2(a, b) ET_CHECK(::executorch::runtime::tensors_have_same_dtype(a, b))
#define ET_CHECK_SAME_DTYPE3(a, b, c) ET_CHECK(::executorch::runtime::tensors_have_same_dtype(a, b, c))
#define ET_CHECK_SAME_SHAPE_AND_DTYPE2(a, b) \
  ET_CHECK(::executorch::runtime::tensors_have_same_shape_and_dtype(a, b))
#define ET_CHECK_SAME_SHAPE_AND_DTYPE3(a, b, c) \
  ET_CHECK(::executorch::runtime::tensors_have_same_shape_and_dtype(a, b, c))
#define ET_CHECK_CONTIGUOUS(t) ET_CHECK(::executorch::runtime::tensor_is_contiguous(t))
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

// --- Switches over dtypes: they call the last argument, a lambda, in which the alias is the C++ type.
#define TORCHETTE_CASE(kType, ALIAS, ...)                                                        \
  case ::executorch::aten::ScalarType::kType: {                                                  \
    using ALIAS [[maybe_unused]] =                                                               \
        ::executorch::runtime::ScalarTypeToCppType<::executorch::aten::ScalarType::kType>::type; \
    __VA_ARGS__();                                                                               \
    break;                                                                                       \
  }
#define TORCHETTE_CASE_INT(...)      \
  TORCHETTE_CASE(Byte, __VA_ARGS__)  \
  TORCHETTE_CASE(Char, __VA_ARGS__)  \
  TORCHETTE_CASE(Short, __VA_ARGS__) \
  TORCHETTE_CASE(Int, __VA_ARGS__)   \
  TORCHETTE_CASE(Long, __VA_ARGS__)
#define TORCHETTE_CASE_UINT(...)      \
  TORCHETTE_CASE(UInt16, __VA_ARGS__) \
  TORCHETTE_CASE(UInt32, __VA_ARGS__) \
  TORCHETTE_CASE(UInt64, __VA_ARGS__)
#define TORCHETTE_CASE_FLOAT(...)    \
  TORCHETTE_CASE(Float, __VA_ARGS__) \
  TORCHETTE_CASE(Double, __VA_ARGS__)
#define TORCHETTE_CASE_REAL(...) TORCHETTE_CASE_INT(__VA_ARGS__) TORCHETTE_CASE_FLOAT(__VA_ARGS__)
#define TORCHETTE_SWITCH(type, context, name, ...)                      \
  do {                                                                  \
    const auto torchette_type = type;                                   \
    switch (torchette_type) {                                           \
      __VA_ARGS__                                                       \
      default:                                                          \
        TORCHETTE_LOG(Error, "%s has no kernel for dtype %s", name,     \
                      ::executorch::runtime::toString(torchette_type)); \
        (context).fail(::torchette::Error::InvalidArgument);            \
    }                                                                   \
  } while (0)
#define TORCHETTE_CASE2(T1, T2, ...) TORCHETTE_CASE(T1, __VA_ARGS__) TORCHETTE_CASE(T2, __VA_ARGS__)
#define TORCHETTE_CASE3(T1, T2, T3, ...) TORCHETTE_CASE2(T1, T2, __VA_ARGS__) TORCHETTE_CASE(T3, __VA_ARGS__)
#define ET_SWITCH_INT_TYPES(t, c, n, ...) TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_INT(__VA_ARGS__))
#define ET_SWITCH_INT_TYPES_AND(T1, t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_INT(__VA_ARGS__) TORCHETTE_CASE(T1, __VA_ARGS__))
#define ET_SWITCH_FLOAT_TYPES(t, c, n, ...) TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_FLOAT(__VA_ARGS__))
#define ET_SWITCH_FLOAT_TYPES_AND(T1, t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_FLOAT(__VA_ARGS__) TORCHETTE_CASE(T1, __VA_ARGS__))
#define ET_SWITCH_FLOAT_TYPES_AND2(T1, T2, t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_FLOAT(__VA_ARGS__) TORCHETTE_CASE2(T1, T2, __VA_ARGS__))
#define ET_SWITCH_FLOAT_TYPES_AND3(T1, T2, T3, t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_FLOAT(__VA_ARGS__) TORCHETTE_CASE3(T1, T2, T3, __VA_ARGS__))
#define ET_SWITCH_REAL_TYPES(t, c, n, ...) TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_REAL(__VA_ARGS__))
#define ET_SWITCH_REAL_TYPES_AND(T1, t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_REAL(__VA_ARGS__) TORCHETTE_CASE(T1, __VA_ARGS__))
#define ET_SWITCH_REAL_TYPES_AND2(T1, T2, t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_REAL(__VA_ARGS__) TORCHETTE_CASE2(T1, T2, __VA_ARGS__))
#define ET_SWITCH_REAL_TYPES_AND3(T1, T2, T3, t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE_REAL(__VA_ARGS__) TORCHETTE_CASE3(T1, T2, T3, __VA_ARGS__))
#define ET_SWITCH_TWO_TYPES(T1, T2, t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE2(T1, T2, __VA_ARGS__))
#define ET_SWITCH_THREE_TYPES(T1, T2, T3, t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE3(T1, T2, T3, __VA_ARGS__))
#define ET_SWITCH_FOUR_TYPES(T1, T2, T3, T4, t, c, n, ...) \
  TORCHETTE_SWITCH(t, c, n, TORCHETTE_CASE2(T1, T2, __VA_ARGS__) TORCHETTE_CASE2(T3, T4, __VA_ARGS__))
#define ET_SWITCH_FLOATH_TYPES(...) ET_SWITCH_FLOAT_TYPES_AND(Half, __VA_ARGS__)
#define ET_SWITCH_FLOATHBF16_TYPES(...) ET_SWITCH_FLOAT_TYPES_AND2(Half, BFloat16, __VA_ARGS__)
#define ET_SWITCH_REALB_TYPES(...) ET_SWITCH_REAL_TYPES_AND(Bool, __VA_ARGS__)
#define ET_SWITCH_REALH_TYPES(...) ET_SWITCH_REAL_TYPES_AND(Half, __VA_ARGS__)
#define ET_SWITCH_REALHB_TYPES(...) ET_SWITCH_REAL_TYPES_AND2(Half, Bool, __VA_ARGS__)
#define ET_SWITCH_REALHBF16_TYPES(...) ET_SWITCH_REAL_TYPES_AND2(Half, BFloat16, __VA_ARGS__)
#define ET_SWITCH_REALHBBF16_TYPES(...) ET_SWITCH_REAL_TYPES_AND3(Half, Bool, BFloat16, __VA_ARGS__)
#define ET_SWITCH_FLOATHBF16_TYPES_AND(T1, ...) ET_SWITCH_FLOAT_TYPES_AND3(Half, BFloat16, T1, __VA_ARGS__)
#define ET_SWITCH_REALHBBF16_AND_UINT_TYPES(t, c, n, ...)                                      \
  TORCHETTE_SWITCH(t, c, n,                                                                    \
                   TORCHETTE_CASE_REAL(__VA_ARGS__) TORCHETTE_CASE(Half, __VA_ARGS__)          \
                       TORCHETTE_CASE(Bool, __VA_ARGS__) TORCHETTE_CASE(BFloat16, __VA_ARGS__) \
                           TORCHETTE_CASE_UINT(__VA_ARGS__))
// The types of a Scalar.
#define ET_SWITCH_SCALAR_OBJ_TYPES(...) ET_SWITCH_THREE_TYPES(Bool, Long, Double, __VA_ARGS__)
#define ET_SWITCH_SCALAR_OBJ_REAL_TYPES(...) ET_SWITCH_TWO_TYPES(Long, Double, __VA_ARGS__)
#define ET_SWITCH_SCALAR_OBJ_INTB_TYPES(...) ET_SWITCH_TWO_TYPES(Bool, Long, __VA_ARGS__)
#define ET_SWITCH_SCALAR_OBJ_FLOATB_TYPES(...) ET_SWITCH_TWO_TYPES(Bool, Double, __VA_ARGS__)

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

/// Wraps a kernel that fails through its context, or has no context, as a kernel that returns its error.
template <auto Fn, typename = decltype(Fn)>
struct Unboxed;
template <auto Fn, typename R, typename... A>
struct Unboxed<Fn, R (*)(executorch::runtime::KernelRuntimeContext&, A...)> {
  static Error call(Context& context, A... arguments) {
    executorch::runtime::KernelRuntimeContext kernel_context(context);
    Fn(kernel_context, static_cast<A>(arguments)...);
    return kernel_context.failure_state();
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

/// Converts an argument of a program for a kernel on torch tensors. finish() copies results back.
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
  Tensor out;
  explicit AtenFrom(const Value& v) : AtenFrom<const at::Tensor&>(v), out(v.to_tensor()) {
    // torch cannot resize memory that it does not own.
    if (out.shape_dynamism() != TensorShapeDynamism::STATIC) value = at::empty_like(value);
  }
  at::Tensor& get() { return value; }
  Error finish() {
    const std::vector<SizesType> sizes(value.sizes().begin(), value.sizes().end());
    TORCHETTE_TRY(resize_tensor(out, {sizes.data(), sizes.size()}));
    if (value.data_ptr() != out.mutable_data_ptr()) view(out).copy_(value);
    return Error::Ok;
  }
};
template <>
struct AtenFrom<const at::Scalar&> {
  static constexpr auto& kCode = From<const Scalar&>::kCode;
  at::Scalar value;
  explicit AtenFrom(const Value& v) {
    const Scalar scalar = From<const Scalar&>::get(v);
    value = scalar.is_bool()       ? at::Scalar(scalar.to_bool())
            : scalar.is_integral() ? at::Scalar(scalar.to_int())
                                   : at::Scalar(scalar.to_double());
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

/// Wraps a kernel on torch tensors as a kernel of a program. An exception becomes an error.
template <auto Fn, typename = decltype(Fn)>
struct AtenBoxed;
template <auto Fn, typename R, typename... A>
struct AtenBoxed<Fn, R (*)(executorch::runtime::KernelRuntimeContext&, A...)> {
  template <size_t... I>
  static Error call(Context& context, Args args, std::index_sequence<I...>) {
    std::tuple<AtenFrom<A>...> converted(args[I]...);
    executorch::runtime::KernelRuntimeContext kernel_context(context);
    Fn(kernel_context, std::get<I>(converted).get()...);
    Error error = kernel_context.failure_state();
    ((error = error == Error::Ok ? std::get<I>(converted).finish() : error), ...);
    return error;
  }
  static Error run(Context& context, Args args) {
    try {
      return call(context, args, std::index_sequence_for<A...>{});
    } catch (const std::exception& fault) {
      TORCHETTE_LOG(Error, "a kernel on torch tensors failed: %s", fault.what());
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

/// EXECUTORCH_LIBRARY(my_ops, "mul4.out", mul4_out) at namespace scope registers a kernel when the program
/// starts. If a kernel of that name is registered, it remains, and the log has a line.
#define EXECUTORCH_LIBRARY(ns, name, fn) TORCHETTE_LIBRARY(ns, name, fn, __LINE__)
#define TORCHETTE_LIBRARY(ns, name, fn, line) TORCHETTE_LIBRARY_AT(ns, name, fn, line)
#define TORCHETTE_LIBRARY_AT(ns, name, fn, line)                                                      \
  static const ::torchette::Kernel torchette_kernel_##line[] = {                                      \
      TORCHETTE_LIBRARY_KERNEL(#ns "::" name, fn)};                                                   \
  static ::torchette::extension::KernelNode torchette_registration_##line{{torchette_kernel_##line}}; \
  [[maybe_unused]] static const ::torchette::Error torchette_registered_##line =                      \
      ::torchette::extension::add_kernels(torchette_registration_##line);
