// SPDX-License-Identifier: BSD-3-Clause
// numpy's .npy files as tensors and back.
#pragma once

#include <string>

#include "torchette/extension/tensor_ptr.h"

namespace torchette::extension {

/// The array of a file's bytes; null, with the reason in `why`, where there is none that a tensor can hold.
TensorPtr read_npy(const std::string& bytes, std::string* why);
/// The bytes of the file, elements in row-major order; empty where numpy has no such dtype.
std::string write_npy(const Tensor& tensor);
/// numpy's name of a dtype such as "float32"; "bfloat16" too. Null for others.
const char* dtype_name(ScalarType type);

}  // namespace torchette::extension
