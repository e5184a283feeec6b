// SPDX-License-Identifier: BSD-3-Clause
// GraphReader: turns a payload into a program of kernel calls, if no device can execute the payload. It does
// not use Vulkan.
#pragma once

#include "torchette/backends/delegate/delegate_method.h"
#include "torchette/backends/vulkan/payload.h"
#include "torchette/extension/malloc_dynamic_allocator.h"

namespace torchette {
namespace vulkan {

using delegate::Argument;
using delegate::Entry;
using delegate::TensorValue;

constexpr size_t kMaxArguments = 24;   // of a kernel
constexpr size_t kMaxTemporaries = 5;  // of a recipe

enum class OperandKind : uint8_t {
  Required,  // no value: the call must have the argument
  None,
  Bool,
  Int,
  Double,
  Text,
  Ints,
  LastSize,      // the last size of argument `index`
  LastSizeList,  // a list of it
  Scale,         // 1 / sqrt(the last size of argument `index`)
  Channels,      // the size of dimension 1 of argument `index`
  Result,        // result `index` of the call
  Temporary,     // tensor `index` of the recipe
  Changed,       // argument `index`, a state that the kernel changes
};

/// An argument of a kernel in a recipe: argument `argument` of the payload's call or, if the call does not
/// have it, the value that `kind` describes.
struct Operand {
  OperandKind kind = OperandKind::Required;
  int8_t argument = -1;
  int8_t index = 0;
  int8_t rank = -1;                     // of a temporary that is written; -1: of the first result
  ScalarType type = ScalarType::Float;  // of a temporary that is written
  double number = 0;
  const char* text = nullptr;
  Span<const int64_t> ints;

  constexpr Operand(int of_call) : argument(static_cast<int8_t>(of_call)) {}
  constexpr Operand(OperandKind given, int which = 0, double value = 0)
      : kind(given), index(static_cast<int8_t>(which)), number(value) {}
  constexpr Operand(const char* value) : kind(OperandKind::Text), text(value) {}
  constexpr Operand(const int64_t* items, size_t count) : kind(OperandKind::Ints), ints(items, count) {}
  constexpr Operand with_rank(int value) const {
    Operand made = *this;
    made.rank = static_cast<int8_t>(value);
    return made;
  }
  constexpr Operand of(ScalarType value) const {
    Operand made = *this;
    made.type = value;
    return made;
  }
};
constexpr Operand or_else(int argument, Operand other) {
  other.argument = static_cast<int8_t>(argument);
  return other;
}

/// A kernel call of a recipe.
struct Stage {
  const char* kernel;
  std::initializer_list<Operand> operands;
};

constexpr size_t kAnyRank = SIZE_MAX;

/// The kernel calls that compute an operator which has no kernel of the same name and arguments.
struct Recipe {
  const char* name;
  std::initializer_list<Stage> stages;
  size_t rank = kAnyRank;  // of the first result
};
/// The recipe if the first result has that rank; null if there is none.
const Recipe* recipe_of(const char* name, size_t rank);

/// A tensor of the payload or of a recipe.
struct PayloadTensor {
  ScalarType type = ScalarType::Float;
  uint8_t rank = 0;
  bool is_defined = false, is_constant = false, is_state = false;
  Span<const uint32_t> dims;    // of the payload's: upper bounds; of constants exact
  void* data = nullptr;         // of a constant of the payload
  TensorValue* values[2] = {};  // in the two programs
  TensorValue* made = nullptr;  // the value of the first program that has the elements of this constant
};

/// A value of the payload, or of a recipe.
struct Item {
  fb::GraphTypes type = fb::GraphTypes::NONE;
  bool is_written = false;  // a call computes it
  int64_t integer = 0;      // also the value of a boolean
  double real = 0;
  Span<const int64_t> ints;
  Span<const double> reals;
  Span<const uint8_t> flags;
  Span<const int32_t> list;  // indices of values
  Span<const char> text;
  PayloadTensor* tensor = nullptr;
  const Entry* slot = nullptr;  // of an integer that changes

  bool is_none() const { return type <= fb::GraphTypes::Null; }
  bool is_number() const {
    return type == fb::GraphTypes::Int || type == fb::GraphTypes::SymInt || type == fb::GraphTypes::Bool ||
           type == fb::GraphTypes::Double;
  }
  Argument number() const {
    if (type == fb::GraphTypes::Double) return real;
    if (type == fb::GraphTypes::Bool) return integer != 0;
    return integer;
  }
};

/// A payload that became a method.
struct KernelMethod {
  extension::MallocDynamicAllocator memory;
  delegate::DelegateMethod* folded = nullptr;  // has computed constants of `method`
  delegate::DelegateMethod* method = nullptr;
  Span<FreeableBuffer> constants;  // that `method` reads
  bool needs_bytes = false;        // whether `method` reads constants in the payload

  KernelMethod() = default;
  KernelMethod(const KernelMethod&) = delete;
  KernelMethod& operator=(const KernelMethod&) = delete;
  ~KernelMethod();
};

class GraphReader {
 public:
  explicit GraphReader(BackendInitContext& context)
      : context_(context),
        memory_(*context.get_runtime_allocator()),
        scratch_(memory_),
        folding_(scratch_),
        main_(scratch_) {}
  GraphReader(const GraphReader&) = delete;
  GraphReader& operator=(const GraphReader&) = delete;
  ~GraphReader();

  /// Adds the calls and loads the method. Executes the calls that depend only on constants. `bytes` must
  /// outlive `out`. Errors: DelegateInvalidCompatibility, NotSupported (the kernels do not support an
  /// operator or type), OperatorMissing, those of memory, of named data and of kernels.
  Error load(const void* bytes, size_t size, KernelMethod* out);

 private:
  /// The two programs. A call is in the first if it reads only constants.
  enum Part : size_t { kFolded, kMain };
  struct Node;
  /// A constant or an initial state of the second program that the first one computes.
  struct Folded {
    TensorValue *made, *read;
    Folded* next;
  };

  Error allocate();
  Error read_written();
  Error read_value(size_t i);
  Error read_tensor(size_t i, const flat::Table& record);
  Error read_constant(size_t i, uint32_t constant, ScalarType stored);
  Error read_inputs();
  Error read_call(size_t i);
  Error call_kernel(const Kernel& kernel, Node& n);
  Error call_kernel(const Kernel& kernel, Span<const Operand> operands, Node& n);
  Error read_outputs();
  Error fold(KernelMethod* out);
  Error keep_constants(KernelMethod* out);

  bool find_operand(const Operand& operand, const Node& n, Item* out) const;
  bool note_reads(const Item& item, Node& n) const;
  Error find_result(const Operand& operand, char code, Node& n, Item* out);
  bool argument(const Item& item, char code, bool is_optional, const Node& n, Part part, Argument* out);
  bool list(const Item& item, char code, Part part, Argument* out);
  int64_t size_of(const Node& n, int argument, int dim) const;
  delegate::ProgramBuilder& builder_of(Part part) { return part == kFolded ? folding_ : main_; }
  TensorValue* value(PayloadTensor& tensor, Part part);
  PayloadTensor* temporary(ScalarType type, size_t rank);
  bool spend(size_t count);

  BackendInitContext& context_;
  MemoryAllocator& memory_;  // of the method
  delegate::ScratchAllocator scratch_;
  delegate::ProgramBuilder folding_, main_;
  Payload payload_;
  Item* items_ = nullptr;              // the values of the payload
  FreeableBuffer* buffers_ = nullptr;  // of constants that are named data
  size_t count_ = 0;                   // of both
  const Entry **inputs_ = nullptr, **outputs_ = nullptr;
  Folded* folded_ = nullptr;
  size_t folded_count_ = 0;
  size_t budget_ = 0;  // arguments that may still be added; it bounds the memory for a small file
};

Kernels payload_kernels();

}  // namespace vulkan
}  // namespace torchette
