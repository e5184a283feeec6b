// SPDX-License-Identifier: BSD-3-Clause
// One element of a tensor of any dtype as a number, and back: for printing and converting, not for
// arithmetic.
#pragma once

#include "torchette/runtime/value.h"

namespace torchette::extension {

/// Whether elements of `type` are numbers or bools that the two functions know.
bool has_elements(ScalarType type);
/// Element `index`, counted in memory order. `has_elements(type)`.
Scalar get_element(const void* data, ScalarType type, size_t index);
/// Numbers that the type cannot hold wrap around or become infinite.
void set_element(void* data, ScalarType type, size_t index, Scalar value);

}  // namespace torchette::extension
