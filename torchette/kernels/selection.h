// SPDX-License-Identifier: BSD-3-Clause
// The places of a tensor's elements that are not zero: what nonzero gives, and what a mask as an index means.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// How many elements of `t` are not zero.
ptrdiff_t count_places(const Tensor& t);

/// Coordinate `d` of the i-th of `count` elements that are not zero, in row-major order, goes to
/// out[i * place_step + d * dim_step].
void list_places(const Tensor& t, ptrdiff_t count, int64_t* out, ptrdiff_t place_step, ptrdiff_t dim_step);

}  // namespace TORCHETTE_ISA
}  // namespace torchette
