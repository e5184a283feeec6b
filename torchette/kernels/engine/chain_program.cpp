// SPDX-License-Identifier: BSD-3-Clause
// The operations of cpu::chain, and the parser of its programs, which come from a file and may contain any
// text.
#include "torchette/kernels/engine/chain_program.h"

#include <cmath>

#include "torchette/kernels/engine/epilogue.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

TORCHETTE_INLINE Vec one_where(VecInt mask) { return select(mask, broadcast(1.0f), Vec{}); }
TORCHETTE_INLINE Vec sqrt_of(Vec x) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(x);
#else
  for (int i = 0; i < kLanes; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

template <typename Function>
TORCHETTE_INLINE void each(const Source* in, float* out, size_t n, size_t arity, Function function) {
  const Source a = in[0], b = in[arity > 1 ? 1 : 0], c = in[arity > 2 ? 2 : 0];
  for (size_t i = 0; i < n; i += kLanes)
    store(out + i, function(load(a.p + i * a.step), load(b.p + i * b.step), load(c.p + i * c.step)));
}

#define TORCHETTE_CHAIN_OPERATION(name, arity, overload, value)                     \
  void name##_loop(const Source* in, float* out, size_t n) {                        \
    each(in, out, n, arity,                                                         \
         []([[maybe_unused]] Vec a, [[maybe_unused]] Vec b, [[maybe_unused]] Vec c) \
             TORCHETTE_INLINED { return value; });                                  \
  }
#define TORCHETTE_ACTIVATION(name, value)                                         \
  void name##_loop(const Source* in, float* out, size_t n) {                      \
    each(in, out, n, 1, [](Vec x, Vec, Vec) TORCHETTE_INLINED { return value; }); \
  }
#include "torchette/schema/engine.def"

constexpr Operation kOperations[] = {
#define TORCHETTE_CHAIN_OPERATION(name, arity, overload, value) \
  {#name, sizeof(#name) - 1, arity, &name##_loop},
#define TORCHETTE_ACTIVATION(name, value) {#name, sizeof(#name) - 1, 1, &name##_loop},
#include "torchette/schema/engine.def"
};

/// Returns the next word of a text and advances past it, or an empty span at the end.
Span<const char> next_word(const char*& at, const char* end) {
  while (at < end && *at == ' ') ++at;
  const char* const begin = at;
  while (at < end && *at != ' ') ++at;
  return {begin, static_cast<size_t>(at - begin)};
}

}  // namespace

Error Program::operand(Span<const char> word, uint8_t& value) const {
  size_t slot = 0;
  bool known = word.size() == 2 || word.size() == 3;
  for (size_t i = 1; known && i < word.size(); ++i) {
    known = word[i] >= '0' && word[i] <= '9';
    slot = slot * 10 + static_cast<size_t>(word[i] - '0');
  }
  size_t before = 0;
  const struct {
    char letter;
    size_t count;
  } kinds[] = {{'i', inputs}, {'c', conditions}, {'n', scalars}, {'v', length}};
  for (const auto& kind : kinds) {
    if (known && word[0] == kind.letter && slot < kind.count) {
      value = static_cast<uint8_t>(before + slot);
      return Error::Ok;
    }
    before += kind.count;
  }
  TORCHETTE_CHECK(false, InvalidArgument, "chain: program: instruction %d has the invalid operand '%.*s'",
                  static_cast<int>(length), static_cast<int>(word.size()), word.data());
}

Error Program::parse(Span<const char> text, size_t input_count, size_t condition_count, size_t scalar_count) {
  inputs = input_count;
  conditions = condition_count;
  scalars = scalar_count;
  length = 0;
  TORCHETTE_CHECK(inputs + conditions <= kMaxChainInputs && scalars <= kMaxChainNumbers, InvalidArgument,
                  "chain: %d inputs, %d conditions and %d scalars exceed the maximum",
                  static_cast<int>(inputs), static_cast<int>(conditions), static_cast<int>(scalars));
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    const Span<const char> name = next_word(at, end);
    if (name.size() == 0) break;
    const Operation* found = nullptr;  // runs in each execution; rarely compares more than one name
    for (const Operation& operation : kOperations)
      if (operation.size == name.size() && operation.name[0] == name[0] &&
          memcmp(operation.name, name.data(), name.size()) == 0) {
        found = &operation;
        break;
      }
    TORCHETTE_CHECK(found != nullptr && length < kMaxChainInstructions, InvalidArgument,
                    "chain: program: instruction %d, '%.*s', is unknown or exceeds the maximum length",
                    static_cast<int>(length), static_cast<int>(name.size()), name.data());
    Instruction& instruction = instructions[length];
    instruction = {found, {}, 0};
    for (uint8_t i = 0; i < found->arity; ++i)
      TORCHETTE_TRY(operand(next_word(at, end), instruction.operands[i]));
    ++length;
  }
  TORCHETTE_CHECK(length > 0, InvalidArgument, "chain: the program is empty");
  assign_slots();
  return Error::Ok;
}

/// Assigns to each instruction the first slot that no later instruction reads. This may be the slot of one of
/// its own operands, because an instruction reads its operands before it writes.
void Program::assign_slots() {
  const size_t first = inputs + conditions + scalars;
  uint8_t last_reader[kMaxChainInstructions] = {}, busy_until[kMaxChainInstructions] = {};
  for (size_t i = 0; i < length; ++i)
    for (uint8_t k = 0; k < instructions[i].operation->arity; ++k)
      if (instructions[i].operands[k] >= first)
        last_reader[instructions[i].operands[k] - first] = static_cast<uint8_t>(i);
  slots = 0;
  for (size_t i = 0; i < length; ++i) {
    size_t slot = 0;
    while (slot < slots && busy_until[slot] > i) ++slot;
    if (slot == slots) ++slots;
    busy_until[slot] = last_reader[i];
    instructions[i].slot = static_cast<uint8_t>(slot);
  }
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
