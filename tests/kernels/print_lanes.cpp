// SPDX-License-Identifier: BSD-3-Clause
// Prints the bits of vector operations and vector math functions. tests/build/test_compilers.py compiles this
// file with the compiler's vector extensions and with the struct fallback.
#include <cstdio>

#include "torchette/kernels/simd.h"
#include "torchette/kernels/vecmath.h"

using namespace torchette;
using namespace torchette::TORCHETTE_ISA;

static_assert(TORCHETTE_GNU == EXPECTED_GNU, "the branch that the test asked for");

static void print(const char* name, Vec v) {
  std::printf("%s", name);
  for (int i = 0; i < kLanes; ++i) {
    const float x = v[i];
    // The bits of a NaN are not specified.
    std::printf(" %08x", static_cast<unsigned>(x != x ? 0x7fc00000 : torchette::bit_cast<int32_t>(x)));
  }
  std::printf("\n");
}
static void print(const char* name, VecInt v) {
  std::printf("%s", name);
  for (int i = 0; i < kLanes; ++i) std::printf(" %d", static_cast<int>(v[i]));
  std::printf("\n");
}

int main() {
  const float numbers[] = {0.0f,   -0.0f, 1.0f,     -1.5f,   0.3f,    1e-3f, 20.0f,     -20.0f,
                           1e-39f, 95.0f, INFINITY, -700.0f, 0.9999f, 3.5f,  -INFINITY, NAN};
  for (int at = 0; at + kLanes <= 16; at += kLanes) {
    const Vec x = load(numbers + at), y = load(numbers + (at + 4) % 16);
    print("arithmetic", (x + 2) * y - x / 3.0f);
    print("compared", (x < y) | (x == y) | (x >= 1.0f));
    print("selected", select(x != y, x, -y));
    print("maximum", maximum(x, y));
    print("minimum", minimum(x, y));
    print("exp", exp_f(x));
    print("expm1", expm1_f(x));
    print("log", log_f(abs_f(x)));
    print("log1p", log1p_f(x));
    print("tanh", tanh_f(x));
    print("erf", erf_f(x));
    print("gelu", gelu_f(x));
    print("sigmoid", sigmoid_f(x));
    print("sinh", sinh_f(x));
    Vec low, high;
    interleave(x, y, low, high);
    print("low", low), print("high", high);
    deinterleave(x, y, low, high);
    print("even", low), print("odd", high);
    Vec square[kLanes];
    for (int i = 0; i < kLanes; ++i) square[i] = load(numbers + (at + i) % (16 - kLanes));
    transpose(square);
    for (const Vec& row : square) print("transposed", row);
    const Vec small = select(x < y, y * 0.0f + 2.0f, broadcast(-3.7f));
    std::printf("sums %.9g %.9g\n", static_cast<double>(horizontal_sum(small)),
                static_cast<double>(horizontal_max(small)));
    const VecInt whole = to_ints(small);
    print("whole", ((whole << 3) ^ 5) & ~(whole >> 1));
    print("floats", to_floats(-whole * 7));
    print("partial", load_partial(numbers + at, 3));
    print("masked", load_masked(numbers + at, lane_mask(5)));
    float stored[kLanes] = {};
    store_partial(stored, x, 2);
    print("stored", load(stored));
  }
  uint16_t bits[16];
  for (int i = 0; i < 16; ++i) bits[i] = static_cast<uint16_t>(i * 4093 + 1);
  for (int at = 0; at + kLanes <= 16; at += kLanes) {
    print("half", load(reinterpret_cast<const Half*>(bits + at)));
    print("bfloat16", load(reinterpret_cast<const BFloat16*>(bits + at)));
  }
  return 0;
}
