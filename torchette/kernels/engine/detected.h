// SPDX-License-Identifier: BSD-3-Clause
// Instructions that the compile flags do not enable, detected at run time.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "torchette/runtime/compiler.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Whether the processor has a feature, detected once. The environment variable TORCHETTE_ISA selects exactly
/// one level and disables additional features.
template <bool (*kHas)()>
bool uses() {
  static std::atomic<int8_t> known{-1};  // a race is harmless: all threads store the same value
  int8_t found = known.load(std::memory_order_relaxed);
  if (found < 0) {
    found = getenv("TORCHETTE_ISA") == nullptr && kHas() ? 1 : 0;
    known.store(found, std::memory_order_relaxed);
  }
  return found != 0;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
