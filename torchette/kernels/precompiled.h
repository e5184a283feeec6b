// SPDX-License-Identifier: BSD-3-Clause
// Headers that most kernels include, parsed once for all of them: immintrin.h alone takes 0.6 s. Each kernel
// includes what it uses nevertheless. No header here may include torchette/runtime/selected.h, which differs
// between the kernels of a build.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "torchette/kernels/simd.h"
