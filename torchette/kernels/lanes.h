// SPDX-License-Identifier: BSD-3-Clause
// SIMD vector types: a fixed number of lanes of one element type, with the arithmetic operators of that type.
// GCC and Clang provide vector extensions, which compile to the processor's vector registers. For other
// compilers, the type is a struct with loops that computes the same values, but slower.
#pragma once

#include <utility>

#include "torchette/runtime/compiler.h"

#ifndef TORCHETTE_ISA
#define TORCHETTE_ISA baseline
#endif

#if TORCHETTE_GNU
// Every function that passes a vector is inlined, so the ABI change that GCC warns about has no effect.
#pragma GCC diagnostic ignored "-Wpsabi"
#elif defined(__AVX__)
#error "kernels need GCC or Clang for AVX: compile without AVX, or with clang-cl"
#endif

namespace torchette {
namespace TORCHETTE_ISA {

#if TORCHETTE_GNU

/// Declares a vector type of `count` lanes. Comparisons return a vector of integers of the same size: -1 or
/// 0.
#define TORCHETTE_LANES(name, T, count) typedef T name __attribute__((vector_size((count) * sizeof(T))))
/// The same type for unaligned memory that may alias elements of type T.
#define TORCHETTE_LANES_IN_MEMORY(name, T, count) \
  typedef T name __attribute__((vector_size((count) * sizeof(T)), aligned(alignof(T)), may_alias))
/// Selects lanes from the concatenation of a and b by index.
#define TORCHETTE_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
/// Selects a if the mask is set, otherwise b. The mask is a vector (selected per lane) or a boolean.
#define TORCHETTE_SELECT(mask, a, b) ((mask) ? (a) : (b))
#if defined(__clang__)
/// Rounds float lanes to the nearest integers.
#define TORCHETTE_RINT(x) __builtin_elementwise_rint(x)
#endif

/// Converts each lane to the element type of To.
template <typename To, typename From>
TORCHETTE_INLINE To convert_lanes(From from) {
  return __builtin_convertvector(from, To);
}

#else

template <size_t kSize>
struct IntegerOf;
template <>
struct IntegerOf<1> {
  typedef int8_t type;
};
template <>
struct IntegerOf<2> {
  typedef int16_t type;
};
template <>
struct IntegerOf<4> {
  typedef int32_t type;
};
template <>
struct IntegerOf<8> {
  typedef int64_t type;
};

template <typename T, size_t kCount>
struct Lanes {
  typedef Lanes<typename IntegerOf<sizeof(T)>::type, kCount> Mask;
  typedef T Element;
  static constexpr size_t kLanes = kCount;
  T lane[kCount];

  Lanes() = default;
  /// Broadcasts a scalar to all lanes, as the operators of vector extensions do.
  template <typename Any, typename = decltype(static_cast<T>(std::declval<Any>()))>
  TORCHETTE_INLINE Lanes(Any value) {
    for (T& index : lane) index = static_cast<T>(value);
  }
  template <typename... More>
  TORCHETTE_INLINE Lanes(T first, T second, More... more) : lane{first, second, static_cast<T>(more)...} {}

  TORCHETTE_INLINE T& operator[](size_t i) { return lane[i]; }
  TORCHETTE_INLINE const T& operator[](size_t i) const { return lane[i]; }

#define TORCHETTE_EACH(Type, expression)                                                            \
  Type to;                                                                                          \
  for (size_t i = 0; i < kCount; ++i) to.lane[i] = static_cast<typename Type::Element>(expression); \
  return to
#define TORCHETTE_OPERATOR(op)                                                \
  friend TORCHETTE_INLINE Lanes operator op(const Lanes& a, const Lanes& b) { \
    TORCHETTE_EACH(Lanes, a.lane[i] op b.lane[i]);                            \
  }                                                                           \
  TORCHETTE_INLINE Lanes& operator op## = (const Lanes& b) { return *this = *this op b; }
#define TORCHETTE_COMPARISON(op)                                             \
  friend TORCHETTE_INLINE Mask operator op(const Lanes& a, const Lanes& b) { \
    TORCHETTE_EACH(Mask, a.lane[i] op b.lane[i] ? -1 : 0);                   \
  }
  TORCHETTE_OPERATOR(+)
  TORCHETTE_OPERATOR(-)
  TORCHETTE_OPERATOR(*)
  TORCHETTE_OPERATOR(/)
  TORCHETTE_OPERATOR(&)
  TORCHETTE_OPERATOR(|)
  TORCHETTE_OPERATOR(^)
  TORCHETTE_OPERATOR(<<)
  TORCHETTE_OPERATOR(>>)
  TORCHETTE_COMPARISON(==)
  TORCHETTE_COMPARISON(!=)
  TORCHETTE_COMPARISON(<)
  TORCHETTE_COMPARISON(<=)
  TORCHETTE_COMPARISON(>)
  TORCHETTE_COMPARISON(>=)
  friend TORCHETTE_INLINE Lanes operator-(const Lanes& a) { TORCHETTE_EACH(Lanes, -a.lane[i]); }
  friend TORCHETTE_INLINE Lanes operator~(const Lanes& a) { TORCHETTE_EACH(Lanes, ~a.lane[i]); }
  friend TORCHETTE_INLINE Lanes select(const Mask& mask, const Lanes& a, const Lanes& b) {
    TORCHETTE_EACH(Lanes, mask.lane[i] != 0 ? a.lane[i] : b.lane[i]);
  }
#undef TORCHETTE_EACH
#undef TORCHETTE_OPERATOR
#undef TORCHETTE_COMPARISON
};

template <typename To, typename From>
TORCHETTE_INLINE To convert_lanes(const From& from) {
  static_assert(To::kLanes == From::kLanes, "To and From have different lane counts");
  To to;
  for (size_t i = 0; i < To::kLanes; ++i) to.lane[i] = static_cast<typename To::Element>(from.lane[i]);
  return to;
}

template <int... kIndices, typename T, size_t kCount>
TORCHETTE_INLINE Lanes<T, sizeof...(kIndices)> shuffle(const Lanes<T, kCount>& a, const Lanes<T, kCount>& b) {
  constexpr int indices[] = {kIndices...};
  Lanes<T, sizeof...(kIndices)> to;
  for (size_t i = 0; i < sizeof...(kIndices); ++i) {
    const auto index = static_cast<size_t>(indices[i]);
    to.lane[i] = index < kCount ? a.lane[index] : b.lane[index - kCount];
  }
  return to;
}

#define TORCHETTE_LANES(name, T, count) typedef ::torchette::TORCHETTE_ISA::Lanes<T, (count)> name
#define TORCHETTE_LANES_IN_MEMORY(name, T, count) TORCHETTE_LANES(name, T, count)
#define TORCHETTE_SELECT(mask, a, b) select(mask, a, b)
#define TORCHETTE_SHUFFLE(a, b, ...) shuffle<__VA_ARGS__>(a, b)

#endif

template <typename Mask, typename V>
TORCHETTE_INLINE V select(Mask mask, V a, V b) {
  return mask ? a : b;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
