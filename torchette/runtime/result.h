// SPDX-License-Identifier: BSD-3-Clause
// Result<T>: a value, or the Error of the function that failed to produce it. No exceptions, no heap.
#pragma once

#include <new>
#include <type_traits>
#include <utility>

#include "torchette/runtime/error.h"

namespace torchette {

/// The members of a Result. Trivially copyable if T is, so that small results are returned in registers.
template <typename T, bool kPlain = std::is_trivially_copyable_v<T>>
struct ResultParts {
  Error error_;
  union {
    T value_;
  };

  explicit ResultParts(Error given) : error_(given) {}
  explicit ResultParts(const T& given) : error_(Error::Ok), value_(given) {}
  ResultParts(const ResultParts&) = default;
};

template <typename T>
struct ResultParts<T, false> {
  Error error_;
  union {
    T value_;
  };

  explicit ResultParts(Error given) : error_(given) {}
  explicit ResultParts(const T& given) : error_(Error::Ok), value_(given) {}
  explicit ResultParts(T&& given) : error_(Error::Ok), value_(std::move(given)) {}
  ResultParts(ResultParts&& other) noexcept : error_(other.error_) {
    if (error_ == Error::Ok) new (&value_) T(std::move(other.value_));
  }
  ~ResultParts() {
    if (error_ == Error::Ok) value_.~T();
  }
};

template <typename T>
class [[nodiscard]] Result : private ResultParts<T> {
  using Parts = ResultParts<T>;

 public:
  using value_type = T;

  Result(Error error) : Parts(error == Error::Ok ? Error::Internal : error) {}
  Result(const T& value) : Parts(value) {}
  Result(T&& value) : Parts(std::move(value)) {}
  Result(Result&&) noexcept = default;
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  Result& operator=(Result&&) = delete;

  bool ok() const { return this->error_ == Error::Ok; }
  Error error() const { return this->error_; }

  /// The value. Requires ok().
  T& get() { return this->value_; }
  const T& get() const { return this->value_; }
  T& operator*() { return this->value_; }
  const T& operator*() const { return this->value_; }
  /// Destroys the value and stores an error, so that a function that builds its result in place has one
  /// return.
  void fail(Error error) {
    this->value_.~T();
    this->error_ = error;
  }
  T* operator->() { return &this->value_; }
  const T* operator->() const { return &this->value_; }
};

}  // namespace torchette
