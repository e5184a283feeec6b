// SPDX-License-Identifier: BSD-3-Clause
// Result<T>: a value or the Error that kept it from being made. No exceptions, no heap.
#pragma once

#include <new>
#include <utility>

#include "torchette/runtime/error.h"

namespace torchette {

template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(Error error)
      : error_(error == Error::Ok ? Error::Internal : error) {}       // NOLINT: implicit on purpose
  Result(const T& value) : error_(Error::Ok), value_(value) {}        // NOLINT
  Result(T&& value) : error_(Error::Ok), value_(std::move(value)) {}  // NOLINT
  Result(Result&& other) noexcept : error_(other.error_) {
    if (ok()) new (&value_) T(std::move(other.value_));
  }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  Result& operator=(Result&&) = delete;
  ~Result() {
    if (ok()) value_.~T();
  }

  bool ok() const { return error_ == Error::Ok; }
  Error error() const { return error_; }

  /// The value. Only to be called when ok().
  T& get() { return value_; }
  const T& get() const { return value_; }
  T& operator*() { return value_; }
  const T& operator*() const { return value_; }
  T* operator->() { return &value_; }
  const T* operator->() const { return &value_; }

 private:
  Error error_;
  union {
    T value_;
  };
};

}  // namespace torchette
