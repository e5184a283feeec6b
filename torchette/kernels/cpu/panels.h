// SPDX-License-Identifier: BSD-3-Clause
// The layout of packed weights, and the checks that a kernel makes of them: the file may hold anything.
#pragma once

#include "torchette/kernels/simd.h"
#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Outputs of a panel: torchette/backends/cpu/pack.py.
constexpr size_t kPanel = 16;
/// Vectors of a row of a panel.
constexpr size_t kPanelVectors = kPanel / kLanes;

constexpr size_t panels_of(size_t outputs) { return (outputs + kPanel - 1) / kPanel; }
/// Columns of the last panel, where it is cut behind the last output.
constexpr size_t cut_columns(size_t outputs) { return outputs % kPanel == 0 ? kPanel : outputs % kPanel; }

/// With fewer multiply-adds a part is not worth a thread: some 20 microseconds.
constexpr size_t kLeastWork = size_t{1} << 18;

/// How many of `count` items, of `work` multiply-adds each, a part has at least.
TORCHETTE_INLINE size_t least_items(size_t work) {
  return work >= kLeastWork ? 1 : kLeastWork / (work + 1) + 1;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
