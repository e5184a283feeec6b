// SPDX-License-Identifier: BSD-3-Clause
// SourceLines: maps the index of an instruction to the line of the model's source, which the compiler stores
// in the file. The core logs only the index of an instruction that fails.
#pragma once

#include <string>

#include "torchette/runtime/method.h"

namespace torchette::extension {

class SourceLines {
 public:
  /// Returns the source line of instruction `index` of a method, such as "model.py:12, in forward of
  /// layers.0", or an empty string if the file does not contain it.
  static std::string of(const Method& method, size_t index);
  /// Logs the source line of an instruction, if the file contains it.
  static void log(const Method& method, size_t index);
  /// Logs the source line of the instruction at which an execution has failed. `error` is the result of
  /// Method::execute() or step(). Returns `error`.
  static Error explain(const Method& method, Error error);
};

}  // namespace torchette::extension
