// SPDX-License-Identifier: BSD-3-Clause
// Precompiled header with the includes that most kernels share: immintrin.h alone costs 0.6 s per file.
// Kernels still include the headers that they use. A header listed here must not include
// torchette/runtime/selected.h, which differs between the kernels of a build.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "torchette/kernels/simd.h"
