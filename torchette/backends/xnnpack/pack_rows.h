// SPDX-License-Identifier: BSD-3-Clause
// Weights of products in the order in which the library's kernels read them.
#pragma once

#include <cstddef>

namespace torchette {
namespace xnnpack {

/// Whether `pack_rows` can make tiles of so many rows.
bool can_pack_rows(size_t tile);

/// Packs `count` rows of `inputs` numbers in tiles of `tile` rows: their biases (0 where `bias` is null),
/// then column by column their numbers. In a last tile that is not whole the places of rows beyond are 0.
/// What is written goes around the caches where the processor can do that: `to` is far too large for
/// them, and whoever packs does not read it. It is aligned to 16 bytes, and to 64 where `tile` is a multiple
/// of 16.
void pack_rows(const float* rows, const float* bias, size_t count, size_t inputs, size_t tile, float* to);

}  // namespace xnnpack
}  // namespace torchette
