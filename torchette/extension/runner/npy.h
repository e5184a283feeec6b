// SPDX-License-Identifier: BSD-3-Clause
// Converts NumPy's .npy files to tensors and back.
#pragma once

#include <string>

#include "torchette/extension/tensor_ptr.h"

namespace torchette::extension {

/// Returns the array in the bytes of a .npy file. Returns null and sets `*why` to the reason if the bytes are
/// not a .npy file or if a tensor cannot represent the array.
TensorPtr read_npy(const std::string& bytes, std::string* reason);
/// Returns the bytes of a .npy file with the elements in row-major order, or an empty string if NumPy lacks
/// the dtype.
std::string write_npy(const Tensor& tensor);

}  // namespace torchette::extension
