// SPDX-License-Identifier: BSD-3-Clause
// Inputs to try a method with, where nothing better is at hand.
#pragma once

#include <memory>
#include <vector>

#include "torchette/extension/tensor_ptr.h"
#include "torchette/runtime/method.h"

namespace torchette::extension {

/// The inputs' tensors; must live until the method has run.
using PreparedInputs = std::vector<TensorPtr>;

/// Sets every input that is a tensor to ones, at its upper bounds; numbers are left as they were exported.
/// Errors: those of Method::set_input(), NotSupported (a dtype without numbers).
Result<PreparedInputs> prepare_input_tensors(Method& method);

}  // namespace torchette::extension
