// SPDX-License-Identifier: BSD-3-Clause
// Value: one slot of a method's value table (ExecuTorch's EValue), a tag and an 8-byte payload.
#pragma once

#include <string_view>
#include <type_traits>

#include "torchette/runtime/platform.h"
#include "torchette/runtime/tensor.h"

namespace torchette {

/// The codes are those of ExecuTorch.
enum class Tag : uint32_t {
  None = 0,
  Tensor = 1,
  String = 2,
  Double = 3,
  Int = 4,
  Bool = 5,
  ListBool = 6,
  ListDouble = 7,
  ListInt = 8,
  ListTensor = 9,
  ListScalar = 10,
  ListOptionalTensor = 11,
};

class Value;

/// Rounds toward zero. NaN and values outside of int64_t become the minimum int64_t, as on x86-64.
TORCHETTE_INLINE int64_t truncate(double d) {
  return d >= -0x1p63 && d < 0x1p63 ? static_cast<int64_t>(d) : INT64_MIN;
}

/// Restricts an overload to integer types other than bool, so that a literal such as 1 is not ambiguous.
template <typename T>
using IfInteger = std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, int>;

/// An integer, floating-point or boolean scalar. `is_integral()` is false for bool.
class Scalar {
 public:
  TORCHETTE_INLINE Scalar() : tag_(Tag::Int), i_(0) {}
  template <typename T, IfInteger<T> = 0>
  TORCHETTE_INLINE constexpr Scalar(T v) : tag_(Tag::Int), i_(static_cast<int64_t>(v)) {}
  TORCHETTE_INLINE constexpr Scalar(double v) : tag_(Tag::Double), d_(v) {}
  TORCHETTE_INLINE constexpr Scalar(bool v) : tag_(Tag::Bool), i_(v ? 1 : 0) {}

  TORCHETTE_INLINE bool is_floating() const { return tag_ == Tag::Double; }
  TORCHETTE_INLINE bool is_integral() const { return tag_ == Tag::Int; }
  TORCHETTE_INLINE bool is_bool() const { return tag_ == Tag::Bool; }
  TORCHETTE_INLINE double to_double() const { return is_floating() ? d_ : static_cast<double>(i_); }
  TORCHETTE_INLINE int64_t to_int() const { return is_floating() ? truncate(d_) : i_; }
  TORCHETTE_INLINE bool to_bool() const { return is_floating() ? d_ != 0 : i_ != 0; }

  // Names of at::Scalar.
  TORCHETTE_INLINE bool isFloatingPoint() const { return is_floating(); }
  TORCHETTE_INLINE bool isIntegral(bool include_bool) const {
    return is_integral() || (include_bool && is_bool());
  }
  TORCHETTE_INLINE bool isBoolean() const { return is_bool(); }
  template <typename T>
  TORCHETTE_INLINE T to() const {
    return is_floating() ? static_cast<T>(d_) : static_cast<T>(i_);
  }

 private:
  Tag tag_;
  union {
    int64_t i_;
    double d_;
  };
};

/// A list with elements that may change between executions (symbolic ints, optional tensors). Each access
/// reads the elements from the value table and copies them to `gathered`, which the method owns. `indices`
/// has table indices in place in the file, int64 in an IntList and int32 in tensor lists; -1 is None.
struct BoxedList {
  const Value* values;
  const void* indices;
  void* gathered;
  uint32_t size;
};

/// A list of doubles or bools, or a string (without its terminating zero byte), in place in the file.
struct PlainList {
  const void* data;
  uint32_t size;
};

class Value {
 public:
  TORCHETTE_INLINE constexpr Value() : tag_(Tag::None) {}
  template <typename T, IfInteger<T> = 0>
  TORCHETTE_INLINE Value(T v) : tag_(Tag::Int) {
    payload_.i = static_cast<int64_t>(v);
  }
  TORCHETTE_INLINE Value(double v) : tag_(Tag::Double) { payload_.d = v; }
  TORCHETTE_INLINE Value(bool v) : tag_(Tag::Bool) { payload_.i = v ? 1 : 0; }
  TORCHETTE_INLINE Value(Tensor t) : tag_(Tag::Tensor) { payload_.tensor = t; }
  TORCHETTE_INLINE Value(Scalar s)
      : Value(s.is_floating() ? Value(s.to_double())
              : s.is_bool()   ? Value(s.to_bool())
                              : Value(s.to_int())) {}
  /// From a smart pointer to a tensor, which keeps the ownership. A null pointer becomes None.
  template <typename P, typename = std::enable_if_t<std::is_same_v<typename P::element_type, Tensor>>>
  TORCHETTE_INLINE Value(const P& pointer) : Value() {
    if (pointer) *this = Value(*pointer);
  }
  TORCHETTE_INLINE Value(Tag tag, BoxedList* list) : tag_(tag) { payload_.boxed = list; }
  TORCHETTE_INLINE Value(Tag tag, PlainList* list) : tag_(tag) { payload_.plain = list; }

  TORCHETTE_INLINE Tag tag() const { return tag_; }
  TORCHETTE_INLINE bool is_none() const { return tag_ == Tag::None; }
  TORCHETTE_INLINE bool is_tensor() const { return tag_ == Tag::Tensor; }
  TORCHETTE_INLINE bool is_int() const { return tag_ == Tag::Int; }
  TORCHETTE_INLINE bool is_double() const { return tag_ == Tag::Double; }
  TORCHETTE_INLINE bool is_bool() const { return tag_ == Tag::Bool; }
  TORCHETTE_INLINE bool is_scalar() const { return is_int() || is_double() || is_bool(); }

  // The caller of these functions has checked the tag. For kernels, load does that.
  TORCHETTE_INLINE int64_t to_int() const { return tag_ == Tag::Double ? truncate(payload_.d) : payload_.i; }
  TORCHETTE_INLINE double to_double() const {
    return tag_ == Tag::Double ? payload_.d : static_cast<double>(payload_.i);
  }
  TORCHETTE_INLINE bool to_bool() const { return payload_.i != 0; }
  /// Whether two scalars of one kind are identical. Needs no floating-point comparison.
  TORCHETTE_INLINE bool same_bits(const Value& other) const { return payload_.i == other.payload_.i; }
  TORCHETTE_INLINE Tensor to_tensor() const { return payload_.tensor; }
  TORCHETTE_INLINE Scalar to_scalar() const {
    return tag_ == Tag::Double ? Scalar(payload_.d)
           : tag_ == Tag::Bool ? Scalar(payload_.i != 0)
                               : Scalar(payload_.i);
  }
  TORCHETTE_INLINE Span<const double> to_double_list() const {
    return {static_cast<const double*>(payload_.plain->data), payload_.plain->size};
  }
  TORCHETTE_INLINE Span<const bool> to_bool_list() const {
    return {static_cast<const bool*>(payload_.plain->data), payload_.plain->size};
  }
  TORCHETTE_INLINE Span<const char> to_string() const {
    return {static_cast<const char*>(payload_.plain->data), payload_.plain->size};
  }
  TORCHETTE_INLINE Span<const int64_t> to_int_list() const {
    const BoxedList& list = *payload_.boxed;
    const auto* index = static_cast<const int64_t*>(list.indices);
    auto* out = static_cast<int64_t*>(list.gathered);
    for (uint32_t i = 0; i < list.size; ++i) out[i] = list.values[index[i]].to_int();
    return {out, list.size};
  }
  TORCHETTE_INLINE Span<const Tensor> to_tensor_list() const {
    const BoxedList& list = *payload_.boxed;
    const auto* index = static_cast<const int32_t*>(list.indices);
    auto* out = static_cast<Tensor*>(list.gathered);
    for (uint32_t i = 0; i < list.size; ++i) out[i] = list.values[index[i]].to_tensor();
    return {out, list.size};
  }
  TORCHETTE_INLINE Span<const Optional<Tensor>> to_optional_tensor_list() const {
    const BoxedList& list = *payload_.boxed;
    const auto* index = static_cast<const int32_t*>(list.indices);
    auto* out = static_cast<Optional<Tensor>*>(list.gathered);
    for (uint32_t i = 0; i < list.size; ++i) {
      const bool absent = index[i] < 0 || list.values[index[i]].is_none();
      out[i] = absent ? Optional<Tensor>() : Optional<Tensor>(list.values[index[i]].to_tensor());
    }
    return {out, list.size};
  }
  // Names of EValue: isInt() tests the kind, toInt() aborts with a message if the kind differs, and
  // tryToInt() then returns InvalidType.
#define TORCHETTE_EVALUE(Name, Type, kTag, read)                                   \
  TORCHETTE_INLINE bool is##Name() const { return tag_ == Tag::kTag; }             \
  TORCHETTE_INLINE Type to##Name() const {                                         \
    expect(Tag::kTag);                                                             \
    return read();                                                                 \
  }                                                                                \
  Result<std::remove_const_t<std::remove_reference_t<Type>>> tryTo##Name() const { \
    if (tag_ != Tag::kTag) return Error::InvalidType;                              \
    return read();                                                                 \
  }
  TORCHETTE_EVALUE(Int, int64_t, Int, to_int)
  TORCHETTE_EVALUE(Double, double, Double, to_double)
  TORCHETTE_EVALUE(Bool, bool, Bool, to_bool)
  TORCHETTE_EVALUE(Tensor, const torchette::Tensor&, Tensor, tensor)
  TORCHETTE_EVALUE(IntList, Span<const int64_t>, ListInt, to_int_list)
  TORCHETTE_EVALUE(DoubleList, Span<const double>, ListDouble, to_double_list)
  TORCHETTE_EVALUE(BoolList, Span<const bool>, ListBool, to_bool_list)
  TORCHETTE_EVALUE(TensorList, Span<const torchette::Tensor>, ListTensor, to_tensor_list)
  TORCHETTE_EVALUE(ListOptionalTensor, Span<const Optional<torchette::Tensor>>, ListOptionalTensor,
                   to_optional_tensor_list)
#undef TORCHETTE_EVALUE
  TORCHETTE_INLINE bool isNone() const { return is_none(); }
  TORCHETTE_INLINE bool isScalar() const { return is_scalar(); }
  TORCHETTE_INLINE bool isString() const { return tag_ == Tag::String; }
  TORCHETTE_INLINE std::string_view toString() const {
    expect(Tag::String);
    return {to_string().data(), to_string().size()};
  }
  Result<std::string_view> tryToString() const {
    if (!isString()) return Error::InvalidType;
    return toString();
  }
  /// A dtype is stored as its integer code.
  TORCHETTE_INLINE ScalarType toScalarType() const { return static_cast<ScalarType>(toInt()); }
  Result<ScalarType> tryToScalarType() const {
    if (!isInt()) return Error::InvalidType;
    return toScalarType();
  }
  TORCHETTE_INLINE torchette::Tensor& toTensor() {
    expect(Tag::Tensor);
    return payload_.tensor;
  }
  TORCHETTE_INLINE Scalar toScalar() const {
    if (!is_scalar()) expect(Tag::Int);
    return to_scalar();
  }
  Result<Scalar> tryToScalar() const {
    if (!is_scalar()) return Error::InvalidType;
    return to_scalar();
  }

  TORCHETTE_INLINE const PlainList* plain_list() const { return payload_.plain; }
  TORCHETTE_INLINE const BoxedList* boxed_list() const { return payload_.boxed; }

 private:
  TORCHETTE_INLINE const torchette::Tensor& tensor() const { return payload_.tensor; }
  TORCHETTE_INLINE void expect(Tag expected) const {
    if (tag_ == expected) return;
    TORCHETTE_LOG(Fatal, "a value of kind %u is read as kind %u", static_cast<unsigned>(tag_),
                  static_cast<unsigned>(expected));
    runtime_abort();
  }

  union Payload {
    int64_t i;
    double d;
    Tensor tensor;
    BoxedList* boxed;
    PlainList* plain;
    TORCHETTE_INLINE constexpr Payload() : i(0) {}
  } payload_;
  Tag tag_;
};

/// Name in ExecuTorch.
using EValue = Value;

static_assert(sizeof(Value) == 16, "a method has thousands of these");

}  // namespace torchette
