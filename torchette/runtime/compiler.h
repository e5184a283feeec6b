// SPDX-License-Identifier: BSD-3-Clause
// What compilers offer beyond C++17, under one spelling. GCC, Clang and clang-cl take the first branch,
// Microsoft's compiler the second; TORCHETTE_PLAIN gives the second to any of them, so that it can be tested.
// Vectors have a header of their own, torchette/kernels/lanes.h; tests/build/test_compilers.py allows neither
// elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if (defined(__GNUC__) || defined(__clang__)) && !defined(TORCHETTE_PLAIN)

#define TORCHETTE_GNU 1
/// Kernels are compiled once per instruction-set level; a function that the linker could merge across levels
/// must be inlined, or a CPU could be given instructions that it lacks. tests/kernels/test_isa.py checks the
/// objects.
#define TORCHETTE_INLINE __attribute__((always_inline)) inline
/// The same of a lambda, behind its parameters.
#define TORCHETTE_INLINED __attribute__((always_inline))
#define TORCHETTE_NOINLINE __attribute__((noinline))
/// A program's own definition takes the place of this one.
#if defined(_WIN32)
#define TORCHETTE_WEAK  // whose linkers find none in a library: a program defines all, or calls
                        // register_pal()
#else
#define TORCHETTE_WEAK __attribute__((weak))
#endif
/// In front of the declaration of such a function: a program that hides its symbols shows this one to the
/// shared library.
#if defined(__ELF__)
#define TORCHETTE_REPLACEABLE __attribute__((visibility("default")))
#else
#define TORCHETTE_REPLACEABLE
#endif
/// Other libraries may call it.
#define TORCHETTE_EXPORT __attribute__((visibility("default")))
#if defined(__MINGW32__) && \
    !defined(__clang__)  // where printf is the one without %zu, which C++ does not use
#define TORCHETTE_FORMAT(text, first) __attribute__((format(gnu_printf, text, first)))
#else
#define TORCHETTE_FORMAT(text, first) __attribute__((format(printf, text, first)))
#endif
#define TORCHETTE_PRAGMA(text) _Pragma(#text)
/// In front of a loop: so many rounds at a time.
#define TORCHETTE_UNROLL(rounds) TORCHETTE_PRAGMA(GCC unroll rounds)
/// In front of a loop: places of the same index are all that its operands may share, as in calls in place.
#if defined(__clang__)
#define TORCHETTE_IVDEP TORCHETTE_PRAGMA(clang loop vectorize(assume_safety))
#define TORCHETTE_FOR_SPEED
#else
#define TORCHETTE_IVDEP TORCHETTE_PRAGMA(GCC ivdep)
/// A function of a source that is built for size.
#define TORCHETTE_FOR_SPEED __attribute__((optimize("O2", "tree-vectorize")))
#endif
/// In a loop: it stays one of numbers.
#define TORCHETTE_NO_VECTORS() asm("")
/// A function with instructions that the processor is asked for first.
#define TORCHETTE_TARGET(features) __attribute__((target(features)))
#define TORCHETTE_LIKELY(condition) __builtin_expect(condition, 1)
#define TORCHETTE_UNLIKELY(condition) __builtin_expect(condition, 0)
#define TORCHETTE_TRAP() __builtin_trap()
/// Starts to read memory that is wanted soon.
#define TORCHETTE_PREFETCH(place) __builtin_prefetch(place)
/// Whether this processor has a feature; on x86.
#define TORCHETTE_CPU_HAS(feature) __builtin_cpu_supports(feature)

namespace torchette {

template <typename To, typename From>
TORCHETTE_INLINE To bit_cast(From from) {
  return __builtin_bit_cast(To, from);
}
/// a * b in `product`; whether that is too large for it.
TORCHETTE_INLINE bool multiply_overflows(size_t a, size_t b, size_t* product) {
  return __builtin_mul_overflow(a, b, product);
}
/// Tells the processor that a loop waits.
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

namespace torchette {

template <typename To, typename From>
TORCHETTE_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
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
