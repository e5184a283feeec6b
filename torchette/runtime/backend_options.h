// SPDX-License-Identifier: BSD-3-Clause
// Run-time options of a backend, by name. Names and sizes are those of ExecuTorch.
#pragma once

#include <array>
#include <cstring>
#include <variant>

#include "torchette/runtime/backend.h"

namespace torchette {

constexpr size_t kMaxOptionKeyLength = 64;
constexpr size_t kMaxOptionValueLength = 256;

using OptionValue = std::variant<bool, int, std::array<char, kMaxOptionValueLength>>;

struct BackendOption {
  char key[kMaxOptionKeyLength]{};
  OptionValue value{};
};

/// Context of set_option() and get_option(). Empty; ExecuTorch's signatures have it.
class BackendOptionContext {};

/// Errors: NotFound (no such backend), those of the backend.
inline Error set_option(const char* backend_name, Span<BackendOption> options) {
  BackendInterface* backend = get_backend_class(backend_name);
  BackendOptionContext context;
  return backend == nullptr ? Error::NotFound : backend->set_option(context, options);
}
inline Error get_option(const char* backend_name, Span<BackendOption> options) {
  BackendInterface* backend = get_backend_class(backend_name);
  BackendOptionContext context;
  return backend == nullptr ? Error::NotFound : backend->get_option(context, options);
}

/// Up to `Capacity` options for the functions above.
template <size_t Capacity>
class BackendOptions {
 public:
  Span<BackendOption> view() { return {options_.data(), size_}; }
  size_t size() const { return size_; }

  /// Errors: InvalidArgument (the capacity is used up, or a key or text is too long).
  Error set_option(const char* key, bool value) { return store(key, value); }
  Error set_option(const char* key, int value) { return store(key, value); }
  Error set_option(const char* key, const char* value) {
    std::array<char, kMaxOptionValueLength> text{};
    if (strlen(value) >= text.size()) return Error::InvalidArgument;
    memcpy(text.data(), value, strlen(value));
    return store(key, text);
  }

  /// Errors: NotFound, InvalidArgument (a value of another type).
  template <class T>
  Error get_option(const char* key, T& out) const {
    for (size_t i = 0; i < size_; ++i) {
      if (strcmp(options_[i].key, key) != 0) continue;
      if constexpr (std::is_same_v<T, const char*>) {
        const auto* text = std::get_if<std::array<char, kMaxOptionValueLength>>(&options_[i].value);
        if (text == nullptr) return Error::InvalidArgument;
        out = text->data();
      } else {
        const T* value = std::get_if<T>(&options_[i].value);
        if (value == nullptr) return Error::InvalidArgument;
        out = *value;
      }
      return Error::Ok;
    }
    return Error::NotFound;
  }

 private:
  Error store(const char* key, OptionValue value) {
    const size_t length = strlen(key);
    if (length >= kMaxOptionKeyLength) return Error::InvalidArgument;
    size_t i = 0;
    while (i < size_ && strcmp(options_[i].key, key) != 0) ++i;
    if (i == Capacity) return Error::InvalidArgument;
    if (i == size_) memcpy(options_[size_++].key, key, length + 1);
    options_[i].value = value;
    return Error::Ok;
  }

  std::array<BackendOption, Capacity> options_{};
  size_t size_ = 0;
};

}  // namespace torchette
