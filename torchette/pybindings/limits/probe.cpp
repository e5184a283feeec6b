// SPDX-License-Identifier: BSD-3-Clause
// Multiply-adds in registers and reads of memory. Compiled once per instruction-set level, like the kernels.
#include "torchette/pybindings/limits/probe.h"

#include "torchette/runtime/compiler.h"

namespace torchette::pybindings {
namespace TORCHETTE_ISA {

#if defined(__AVX512F__)
constexpr size_t kLanes = 16;
#elif defined(__AVX__)
constexpr size_t kLanes = 8;
#else
constexpr size_t kLanes = 4;
#endif
typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef float LoadedVec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

// The number of independent accumulators: more than the multiply-adds that a CPU executes at a time, and at
// most the registers that the factors leave free.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr size_t kAccumulators = 24;
#else
constexpr size_t kAccumulators = 12;
#endif

static size_t multiply_adds(size_t rounds, float* sink) {
  const Vec factor = *sink - Vec{}, summand = factor;  // 0.5: the accumulators converge to 1
  Vec accumulators[kAccumulators];
  // Different initial values: the compiler would merge equal accumulators.
  TORCHETTE_UNROLL(24)
  for (size_t i = 0; i < kAccumulators; ++i) accumulators[i] = factor * static_cast<float>(i);
  for (size_t round = 0; round < rounds; ++round) TORCHETTE_UNROLL(24)
  for (size_t i = 0; i < kAccumulators; ++i) accumulators[i] = accumulators[i] * factor + summand;
  TORCHETTE_UNROLL(24)
  for (size_t i = 1; i < kAccumulators; ++i) accumulators[0] += accumulators[i];
  *sink = accumulators[0][0];
  return rounds * kAccumulators * kLanes;
}

static void read(const float* data, size_t size, size_t rounds, float* sink) {
  constexpr size_t kUnroll = 8;
  Vec accumulators[kUnroll] = {};
  for (size_t round = 0; round < rounds; ++round)
    for (size_t i = 0; i + kStep <= size; i += kUnroll * kLanes) TORCHETTE_UNROLL(8)
  for (size_t j = 0; j < kUnroll; ++j)
    accumulators[j] += *reinterpret_cast<const LoadedVec*>(data + i + j * kLanes);
  TORCHETTE_UNROLL(8)
  for (size_t j = 1; j < kUnroll; ++j) accumulators[0] += accumulators[j];
  *sink = accumulators[0][0];
}

extern const Probe probe;
const Probe probe = {multiply_adds, read};

}  // namespace TORCHETTE_ISA
}  // namespace torchette::pybindings
