// SPDX-License-Identifier: BSD-3-Clause
// Programs of cpu::chain: parses the text in the file into validated instructions and assigns each
// instruction a slot among the blocks of intermediate results.
#pragma once

#include "torchette/kernels/engine/panels.h"
#include "torchette/kernels/simd.h"
#include "torchette/kernels/vecmath.h"
#include "torchette/runtime/kernel.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Location of an operand: element i is p[i * step]. `step` is 1, or 0 for a single vector that is broadcast.
struct Source {
  const float* p;
  size_t step;
};

/// Computes full vectors of results, `n` floats.
using Loop = void (*)(const Source* operands, float* out, size_t n);

struct Operation {
  const char* name;
  uint8_t size;  // length of the name
  uint8_t arity;
  Loop loop;
};

struct Instruction {
  const Operation* operation;
  uint8_t operands[3];  // inputs, then conditions, numbers, earlier instructions
  uint8_t slot;         // the slot that stores its result until the last use
};

struct Program {
  size_t inputs, conditions, scalars, length, slots;
  Instruction instructions[kMaxChainInstructions];

  /// Parses a program for the given numbers of operands. Errors: InvalidArgument.
  Error parse(Span<const char> text, size_t input_count, size_t condition_count, size_t scalar_count);

 private:
  Error operand(Span<const char> word, uint8_t& value) const;
  void assign_slots();
};

inline bool is_word(Span<const char> word, const char* known) {
  return word.size() == strlen(known) && memcmp(word.data(), known, word.size()) == 0;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
