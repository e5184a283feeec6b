// SPDX-License-Identifier: BSD-3-Clause
// Positions of the nonzero elements of a tensor, for nonzero and for masks used as indices.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Returns the number of nonzero elements of `t`.
ptrdiff_t count_nonzero(const Tensor& t);

/// Writes coordinate `d` of the i-th of `count` nonzero elements, in row-major order, to
/// out[i * item_step + d * dim_step].
void list_nonzero(const Tensor& t, ptrdiff_t count, int64_t* out, ptrdiff_t item_step, ptrdiff_t dim_step);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
