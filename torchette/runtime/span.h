// SPDX-License-Identifier: BSD-3-Clause
// Span<T>: a pointer and a length. Optional<T>: a value that may be absent (trivial types only).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "torchette/runtime/compiler.h"

namespace torchette {

template <typename T>
class Span {
 public:
  using value_type = T;

  TORCHETTE_INLINE constexpr Span() : data_(nullptr), size_(0) {}
  TORCHETTE_INLINE constexpr Span(T* data, size_t size) : data_(data), size_(size) {}
  template <size_t N>
  TORCHETTE_INLINE constexpr Span(T (&array)[N]) : data_(array), size_(N) {}
  /// From a container with data() and size(), such as std::vector, std::array or, for Span<const T>, Span<T>.
  template <typename C,
            typename = std::enable_if_t<!std::is_same_v<std::decay_t<C>, Span> &&
                                        std::is_convertible_v<decltype(std::declval<C&>().data()), T*>>,
            typename = decltype(std::declval<C&>().size())>
  TORCHETTE_INLINE constexpr Span(C&& container) : data_(container.data()), size_(container.size()) {}

  TORCHETTE_INLINE constexpr T* data() const { return data_; }
  TORCHETTE_INLINE constexpr size_t size() const { return size_; }
  TORCHETTE_INLINE constexpr bool empty() const { return size_ == 0; }
  TORCHETTE_INLINE constexpr T* begin() const { return data_; }
  TORCHETTE_INLINE constexpr T* end() const { return data_ + size_; }
  TORCHETTE_INLINE constexpr T& operator[](size_t i) const { return data_[i]; }
  TORCHETTE_INLINE constexpr T& front() const { return data_[0]; }
  TORCHETTE_INLINE constexpr T& back() const { return data_[size_ - 1]; }

 private:
  T* data_;
  size_t size_;
};

template <typename T>
class Optional {
 public:
  TORCHETTE_INLINE constexpr Optional() : has_(false), value_() {}
  TORCHETTE_INLINE constexpr Optional(T value) : has_(true), value_(value) {}

  TORCHETTE_INLINE constexpr bool has_value() const { return has_; }
  TORCHETTE_INLINE constexpr explicit operator bool() const { return has_; }
  TORCHETTE_INLINE constexpr const T& value() const { return value_; }
  TORCHETTE_INLINE constexpr const T& operator*() const { return value_; }
  TORCHETTE_INLINE constexpr const T* operator->() const { return &value_; }
  TORCHETTE_INLINE constexpr T value_or(T other) const { return has_ ? value_ : other; }

 private:
  bool has_;
  T value_;
};

}  // namespace torchette
