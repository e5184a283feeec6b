// SPDX-License-Identifier: BSD-3-Clause
// Fault: an error of the runtime, which Python converts to an exception of torchette.errors.
#pragma once

#include <string>
#include <utility>

#include "torchette/pybindings/log.h"
#include "torchette/runtime/result.h"

namespace torchette::pybindings {

/// An error of the runtime with its log lines, or a value that is not valid for input `input`. Python
/// converts it to an exception of torchette.errors.
struct Fault {
  enum class Kind { Runtime, InputValue, InputType };
  Kind kind;
  Error error;
  std::string text;
  size_t input;
};

inline Fault runtime_fault(Error error) { return {Fault::Kind::Runtime, error, take_log(), 0}; }
inline Fault input_fault(size_t input, std::string text) {
  return {Fault::Kind::InputValue, Error::InvalidArgument, std::move(text), input};
}
inline Fault input_type_fault(size_t input, std::string text) {
  return {Fault::Kind::InputType, Error::InvalidType, std::move(text), input};
}

inline void check(Error error) {
  if (error != Error::Ok) throw runtime_fault(error);
}

template <typename T>
T unwrap(Result<T>&& result) {
  if (!result.ok()) throw runtime_fault(result.error());
  return std::move(*result);
}

}  // namespace torchette::pybindings
