// SPDX-License-Identifier: BSD-3-Clause
// Puts the families of kernels together, of the best instruction-set level that the CPU runs.
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "torchette/runtime/kernel.h"

// X(conv) ONCE(sort) ...: the build writes it from the sources that it compiles, and includes it first. X is
// a family of each level, ONCE one of the lowest level alone. A build for several levels names in X(fft) ...
// of TORCHETTE_NARROW_FAMILIES, too, what the highest level has from the one below it.
#ifndef TORCHETTE_FAMILIES
#error "TORCHETTE_FAMILIES is not defined: include the header that names the families, as CMakeLists.txt does"
#endif
#ifndef TORCHETTE_NARROW_FAMILIES
#define TORCHETTE_NARROW_FAMILIES(X)
#endif

namespace torchette {

#define TORCHETTE_DECLARE(family) extern const Kernels family##_family;
#define TORCHETTE_COUNT(family) +1
#define TORCHETTE_NOTHING(family)
constexpr size_t kFamilies =
    0 TORCHETTE_FAMILIES(TORCHETTE_COUNT, TORCHETTE_COUNT) TORCHETTE_NARROW_FAMILIES(TORCHETTE_COUNT);

namespace {
Kernels table[kFamilies];
std::atomic<bool> table_is_ready{false};
}  // namespace

// Copied on first use: a table filled at link time would need the other files' sizes, one filled at start a
// static constructor. Threads that race write the same values.
#define TORCHETTE_PUT(family) to[i++] = family##_family;
#define TORCHETTE_PUT_ONCE(family) to[i++] = TORCHETTE_LOWEST::family##_family;
#define TORCHETTE_PUT_V3(family) to[i++] = v3::family##_family;
#define TORCHETTE_LEVEL(level, DECLARE_NARROW, PUT_NARROW) \
  namespace level {                                        \
  TORCHETTE_FAMILIES(TORCHETTE_DECLARE, TORCHETTE_NOTHING) \
  TORCHETTE_NARROW_FAMILIES(DECLARE_NARROW)                \
  static void fill(Kernels* to) {                          \
    size_t i = 0;                                          \
    TORCHETTE_FAMILIES(TORCHETTE_PUT, TORCHETTE_PUT_ONCE)  \
    TORCHETTE_NARROW_FAMILIES(PUT_NARROW)                  \
  }                                                        \
  }

#ifdef TORCHETTE_ISA_LEVELS
#define TORCHETTE_LOWEST v1
#else
#define TORCHETTE_LOWEST baseline
#endif
namespace TORCHETTE_LOWEST {
TORCHETTE_FAMILIES(TORCHETTE_NOTHING, TORCHETTE_DECLARE)
}

#ifdef TORCHETTE_ISA_LEVELS
TORCHETTE_LEVEL(v1, TORCHETTE_DECLARE, TORCHETTE_PUT)
TORCHETTE_LEVEL(v3, TORCHETTE_DECLARE, TORCHETTE_PUT)
TORCHETTE_LEVEL(v4, TORCHETTE_NOTHING, TORCHETTE_PUT_V3)

/// The level of this CPU, 1, 3 or 4. The environment variable TORCHETTE_ISA (v1, v3, v4) can lower it.
static int cpu_level() {
  int level = 1;
  if (TORCHETTE_CPU_HAS("avx2") && TORCHETTE_CPU_HAS("fma") && TORCHETTE_CPU_HAS("bmi") &&
      TORCHETTE_CPU_HAS("bmi2"))
    level = 3;
  if (level == 3 && TORCHETTE_CPU_HAS("avx512f") && TORCHETTE_CPU_HAS("avx512bw") &&
      TORCHETTE_CPU_HAS("avx512cd") && TORCHETTE_CPU_HAS("avx512dq") && TORCHETTE_CPU_HAS("avx512vl"))
    level = 4;
  const char* wanted = getenv("TORCHETTE_ISA");
  if (wanted != nullptr && wanted[0] == 'v' && wanted[1] >= '1' && wanted[1] <= '4' && wanted[2] == 0 &&
      wanted[1] - '0' < level)
    level = wanted[1] - '0';
  return level;
}

static void fill(int level, Kernels* to) {
  if (level == 4)
    v4::fill(to);
  else if (level == 3)
    v3::fill(to);
  else
    v1::fill(to);
}

const char* kernel_isa() {
  const int level = cpu_level();
  return level == 4 ? "v4" : level == 3 ? "v3" : "v1";
}

Span<const Kernels> kernel_table_of(const char* isa, Span<Kernels> room) {
  const int level = isa[0] == 'v' && isa[1] != 0 && isa[2] == 0 ? isa[1] - '0' : 0;
  if ((level != 1 && level != 3 && level != 4) || level > cpu_level() || room.size() < kFamilies) return {};
  fill(level, room.data());
  return {room.data(), kFamilies};
}
#else
TORCHETTE_LEVEL(baseline, TORCHETTE_DECLARE, TORCHETTE_PUT)
static int cpu_level() { return 0; }
static void fill(int, Kernels* to) { baseline::fill(to); }
const char* kernel_isa() { return "baseline"; }

Span<const Kernels> kernel_table_of(const char* isa, Span<Kernels> room) {
  if (strcmp(isa, "baseline") != 0 || room.size() < kFamilies) return {};
  fill(0, room.data());
  return {room.data(), kFamilies};
}
#endif

Span<const Kernels> kernel_table() {
  if (!table_is_ready.load(std::memory_order_acquire)) {
    fill(cpu_level(), table);
    table_is_ready.store(true, std::memory_order_release);
  }
  return {table, kFamilies};
}

}  // namespace torchette
