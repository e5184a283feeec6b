// SPDX-License-Identifier: BSD-3-Clause
// Compiler extensions to C++17 under portable names. GCC, Clang and clang-cl use the first branch;
// Microsoft's compiler uses the second. TORCHETTE_PLAIN selects the second branch on any compiler, for tests.
// Vector types are in torchette/kernels/lanes.h. tests/build/test_compilers.py allows extensions in these two
// headers only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if (defined(__GNUC__) || defined(__clang__)) && !defined(TORCHETTE_PLAIN)

#define TORCHETTE_GNU 1
/// Kernels are compiled once per instruction-set level. A function that the linker could merge across levels
/// must be inlined: otherwise a CPU could run instructions that it does not support.
/// tests/kernels/test_isa.py checks the object files.
#define TORCHETTE_INLINE __attribute__((always_inline)) inline
/// TORCHETTE_INLINE for a lambda; written after its parameters.
#define TORCHETTE_INLINED __attribute__((always_inline))
#define TORCHETTE_NOINLINE __attribute__((noinline))
/// A program may define the function itself; the linker then uses that definition.
#if defined(_WIN32)
// Linkers on Windows find no weak definitions in a library: a program defines all platform functions or calls
// register_pal().
#define TORCHETTE_WEAK
#else
#define TORCHETTE_WEAK __attribute__((weak))
#endif
/// Before the declaration of a weak function: also exports it from a program that hides its symbols, so that
/// the shared library uses the program's definition.
#if defined(__ELF__)
#define TORCHETTE_REPLACEABLE __attribute__((visibility("default")))
#else
#define TORCHETTE_REPLACEABLE
#endif
/// Exports a symbol for other libraries.
#define TORCHETTE_EXPORT __attribute__((visibility("default")))
#if defined(__MINGW32__) && !defined(__clang__)  // plain printf lacks %zu there; C++ code uses the other one
#define TORCHETTE_FORMAT(text, first) __attribute__((format(gnu_printf, text, first)))
#else
#define TORCHETTE_FORMAT(text, first) __attribute__((format(printf, text, first)))
#endif
#define TORCHETTE_PRAGMA(text) _Pragma(#text)
/// Before a loop: unrolls it by `rounds`.
#define TORCHETTE_UNROLL(rounds) TORCHETTE_PRAGMA(GCC unroll rounds)
/// Before a loop: its operands alias only at equal indices, as in an in-place operation.
#if defined(__clang__)
#define TORCHETTE_IVDEP TORCHETTE_PRAGMA(clang loop vectorize(assume_safety))
#define TORCHETTE_FOR_SPEED
#else
#define TORCHETTE_IVDEP TORCHETTE_PRAGMA(GCC ivdep)
/// Optimizes one function for speed in a source that is built for size.
#define TORCHETTE_FOR_SPEED __attribute__((optimize("O2", "tree-vectorize")))
#endif
/// Inside a loop: prevents vectorization.
#define TORCHETTE_NO_VECTORS() asm("")
/// A function that uses CPU features beyond the build's baseline. The caller checks for them first.
#define TORCHETTE_TARGET(features) __attribute__((target(features)))
#define TORCHETTE_LIKELY(condition) __builtin_expect(condition, 1)
#define TORCHETTE_UNLIKELY(condition) __builtin_expect(condition, 0)
#define TORCHETTE_TRAP() __builtin_trap()
/// Prefetches memory that is read soon.
#define TORCHETTE_PREFETCH(place) __builtin_prefetch(place)
/// Prefetches memory that is read later, into the second-level cache.
#define TORCHETTE_PREFETCH_L2(place) __builtin_prefetch(place, 0, 2)
/// Whether this CPU has a feature (x86 only).
#define TORCHETTE_CPU_HAS(feature) __builtin_cpu_supports(feature)

namespace torchette {

template <typename To, typename From>
TORCHETTE_INLINE To bit_cast(From from) {
  return __builtin_bit_cast(To, from);
}
/// Stores a * b in `product`. Returns true on overflow.
TORCHETTE_INLINE bool multiply_overflows(size_t a, size_t b, size_t* product) {
  return __builtin_mul_overflow(a, b, product);
}
/// A hint to the CPU inside a spin loop.
TORCHETTE_INLINE void pause_processor() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

}  // namespace torchette

#else

#define TORCHETTE_GNU 0
#define TORCHETTE_REPLACEABLE
#if defined(_WIN32)
#define TORCHETTE_INLINE __forceinline
#define TORCHETTE_NOINLINE __declspec(noinline)
#define TORCHETTE_EXPORT __declspec(dllexport)
#else
#define TORCHETTE_INLINE inline
#define TORCHETTE_NOINLINE
#define TORCHETTE_EXPORT
#endif
#define TORCHETTE_INLINED
#define TORCHETTE_WEAK  // a program calls register_pal() instead
#define TORCHETTE_FORMAT(text, first)
#define TORCHETTE_PRAGMA(text)
#define TORCHETTE_UNROLL(rounds)
#define TORCHETTE_IVDEP
#define TORCHETTE_FOR_SPEED
#define TORCHETTE_NO_VECTORS() static_cast<void>(0)
#define TORCHETTE_LIKELY(condition) (condition)
#define TORCHETTE_UNLIKELY(condition) (condition)
#define TORCHETTE_TRAP() static_cast<void>(0)
#define TORCHETTE_PREFETCH(place) static_cast<void>(place)
#define TORCHETTE_PREFETCH_L2(place) static_cast<void>(place)

namespace torchette {

template <typename To, typename From>
TORCHETTE_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "the sizes must be equal");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}
TORCHETTE_INLINE bool multiply_overflows(size_t a, size_t b, size_t* product) {
  *product = a * b;
  return a != 0 && *product / a != b;
}
TORCHETTE_INLINE void pause_processor() {}

}  // namespace torchette

#endif
