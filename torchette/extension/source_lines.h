// SPDX-License-Identifier: BSD-3-Clause
// The compiler stores, beside the instructions, the line of the model that each comes from. The core knows an
// instruction's number alone; here the number becomes the line, for people who read why an execution failed.
#pragma once

#include <string>

#include "torchette/runtime/method.h"

namespace torchette::extension {

class SourceLines {
 public:
  /// The line of the model that instruction `index` of a method comes from, such as "model.py:12, in forward
  /// of layers.0"; empty where the file does not have it.
  static std::string of(const Method& method, size_t index);
  /// Logs the line of that instruction, if the file has it.
  static void log(const Method& method, size_t index);
  /// Logs the line at which an execution has failed. Takes the error of Method::execute() or step(), and
  /// returns it.
  static Error explain(const Method& method, Error error);
};

}  // namespace torchette::extension
