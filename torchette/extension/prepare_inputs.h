// SPDX-License-Identifier: BSD-3-Clause
// Creates inputs for a trial run of a method.
#pragma once

#include <memory>
#include <vector>

#include "torchette/extension/tensor_ptr.h"
#include "torchette/runtime/method.h"

namespace torchette::extension {

/// The tensors of the inputs. They must outlive the run of the method.
using PreparedInputs = std::vector<TensorPtr>;

/// Sets every tensor input to ones, with the sizes of its upper bounds. Scalar inputs keep the exported
/// values. Errors: those of Method::set_input(), NotSupported (the dtype of an input is not supported).
Result<PreparedInputs> prepare_input_tensors(Method& method);

}  // namespace torchette::extension
