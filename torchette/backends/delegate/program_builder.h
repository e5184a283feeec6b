// SPDX-License-Identifier: BSD-3-Clause
// ProgramBuilder: writes a program with one method. A backend without its library or device turns its payload
// into such a program; the runtime verifies, loads, executes and profiles it like a program from a file.
#pragma once

#include "torchette/runtime/kernel_registry.h"
#include "torchette/runtime/loader.h"
#include "torchette/schema/program.h"

namespace torchette {
namespace delegate {

constexpr size_t kMaxRank = 8;
/// Bytes that the delegates of a method plan together. A delegate that would exceed it allocates its tensors
/// by their sizes; compare MAX_PLANNED_BYTES of torchette/exir/config.py.
constexpr uint64_t kMaxPlanned = uint64_t{1} << 30;
constexpr char kMethodName[] = "forward";

/// The memory of a tensor.
enum class Role : uint8_t {
  Planned,   // in memory that the builder plans
  View,      // in the memory of another tensor, `base`
  Input,     // in memory of the caller
  Output,    // in memory of the caller
  Constant,  // at `data`
  Dynamic,  // allocated when a kernel sets its sizes, freed after its last use; a tensor of rank 0 is planned
  State,    // planned for all executions; begins with the elements at `data`
};

struct Call;
struct Entry;

/// A tensor of the program.
struct TensorValue {
  SizesType sizes[kMaxRank] =
      {};  // upper bounds; of a constant and a state exact; of a dynamic tensor unused
  uint8_t rank = 0;
  ScalarType type = ScalarType::Float;
  Role role = Role::Planned;
  const DimOrderType* dim_order = nullptr;  // null: row-major
  size_t numel = 0;
  void* data = nullptr;         // Constant, State
  TensorValue* base = nullptr;  // View; not a view itself

  const Entry* entry = nullptr;  // in the value table; null until a call or the signature names it
  uint32_t first = 0, last = 0;  // the calls that use it, counted from 1
  uint64_t offset = 0, size = 0;
  Call* writer = nullptr;       // the last call with this tensor as result
  Call* last_call = nullptr;    // that uses this tensor
  bool is_output = false;       // of the program
  TensorValue* next = nullptr;  // of the planned or dynamic tensors, in the order of their first uses
  TensorValue* next_in_list =
      nullptr;  // during planning: the next tensor by offset, or the next that a call frees

  /// Sets sizes and type. Error: DelegateInvalidCompatibility (2^31 elements or more).
  Error set(Span<const uint32_t> new_sizes, ScalarType new_type);
  /// The tensor with the memory of this one.
  TensorValue* owner() { return role == Role::View ? base : this; }
  const TensorValue* owner() const { return role == Role::View ? base : this; }
};

/// A row of the value table.
struct Entry {
  schema::KernelTypes type = schema::KernelTypes::NONE;
  int32_t index = 0;
  Entry* next = nullptr;
  int64_t integer = 0;  // also of a boolean
  double real = 0;
  TensorValue* tensor = nullptr;
  const int32_t* items = nullptr;         // of a list: indices of values, -1 for None
  TensorValue* const* tensors = nullptr;  // of a list of tensors: those that are not None
  uint32_t tensor_count = 0;
  const void* data = nullptr;  // of a string or a list of doubles or booleans
  uint32_t count = 0;          // of items or characters
};

/// An argument of a call: None, a number, a tensor or a list.
class Argument {
 public:
  Argument() = default;
  Argument(int64_t value) : type_(schema::KernelTypes::Int), integer_(value) {}
  Argument(double value) : type_(schema::KernelTypes::Double), real_(value) {}
  Argument(bool value) : type_(schema::KernelTypes::Bool), integer_(value) {}
  /// None if the pointer is null.
  Argument(TensorValue* tensor)
      : type_(tensor == nullptr ? schema::KernelTypes::NONE : schema::KernelTypes::Tensor), tensor_(tensor) {}
  Argument(const Entry* entry) : entry_(entry) {}

 private:
  friend class ProgramBuilder;

  schema::KernelTypes type_ = schema::KernelTypes::NONE;
  int64_t integer_ = 0;
  double real_ = 0;
  TensorValue* tensor_ = nullptr;
  const Entry* entry_ = nullptr;
};

/// How a result of the payload is shown to a tracer.
enum class TapLayout : uint8_t { None, Same, ImageToRows, ImageToChannelsFirst };

/// A call of a kernel.
struct Call {
  uint32_t op;
  uint32_t count;
  const int32_t* arguments;
  uint32_t debug_handle;
  TapLayout tap;
  uint32_t tap_handle;
  TensorValue* freed;  // the dynamic tensors that no later call uses
  Call* next;
};

/// Memory that is given back when the object dies: blocks of the platform or, if the platform has no memory,
/// memory of `other`, which keeps it.
class ScratchAllocator final : public MemoryAllocator {
 public:
  explicit ScratchAllocator(MemoryAllocator& other) : MemoryAllocator(0, nullptr), other_(other) {}
  ~ScratchAllocator();
  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override;

 private:
  struct Block {
    Block* next;
  };
  MemoryAllocator& other_;
  Block* blocks_ = nullptr;
};

/// Memory of the builder comes from `scratch` and is needed until the program is loaded. So is the text of
/// strings, and are the items of lists of doubles and booleans.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(MemoryAllocator& scratch) : scratch_(scratch) {}
  ProgramBuilder(const ProgramBuilder&) = delete;
  ProgramBuilder& operator=(const ProgramBuilder&) = delete;

  /// What follows comes from a node of the payload with this handle.
  void set_debug_handle(uint32_t handle) { debug_handle_ = handle; }

  // Values. Null if memory is exhausted; the next call then fails with MemoryAllocationFailed.
  /// A number that calls and the caller of the program may change.
  const Entry* number(const Argument& value);
  const Entry* integers(Span<const int64_t> numbers);
  /// A list of integers that `items` are.
  const Entry* integers(Span<const Argument> items);
  const Entry* doubles(Span<const double> numbers) { return plain(schema::KernelTypes::DoubleList, numbers); }
  const Entry* booleans(Span<const bool> flags) { return plain(schema::KernelTypes::BoolList, flags); }
  const Entry* tensors(TensorValue* const* tensors, size_t count);
  /// The same for kernels that accept None as an item: a null pointer.
  const Entry* optional_tensors(TensorValue* const* tensors, size_t count);
  const Entry* text(Span<const char> text) { return plain(schema::KernelTypes::String, text); }
  const Entry* entry(TensorValue* tensor);

  /// Adds a call. Errors: NotSupported (this build has no such kernel),
  /// MemoryAllocationFailed.
  Error call(const char* kernel, std::initializer_list<Argument> arguments);
  Error call(const Kernel& kernel, Span<const Argument> arguments);
  /// Shows `tensor`, the only or first result of a kernel, to tracers under `handle` when the last call that
  /// writes it has run.
  static void tap(const TensorValue* tensor, uint32_t handle, TapLayout layout);

  /// Plans memory and writes the program to memory of `allocator`. If the plan and the outputs need more than
  /// `max_planned` bytes, the tensors become dynamic. Error: MemoryAllocationFailed.
  Error write(MemoryAllocator& allocator, Span<const Entry* const> inputs, Span<const Entry* const> outputs,
              uint64_t max_planned, Span<const uint8_t>* program);
  /// Bytes of planned memory.
  size_t planned_size() const { return static_cast<size_t>(planned_size_); }
  const Call* calls() const { return calls_; }
  size_t call_count() const { return call_count_; }
  /// Calls, and instructions that free a tensor, which write() adds.
  size_t instruction_count() const { return call_count_ + free_count_; }
  const Entry* values() const { return values_; }
  size_t value_count() const { return value_count_; }

  /// Scratch memory for the reader of the payload.
  template <typename T>
  T* allocate(size_t count = 1) {
    T* const items = scratch_.allocate_list<T>(count);
    is_full_ |= items == nullptr;
    return items;
  }
  /// Makes the next call fail with MemoryAllocationFailed.
  void set_full() { is_full_ = true; }

 private:
  struct Operator {
    const Kernel* kernel;
    Operator* next;
  };
  class Writer;

  Entry* add(const Entry& entry);
  template <typename T>
  const Entry* plain(schema::KernelTypes type, Span<const T> items) {
    Entry entry;
    entry.type = type;
    entry.data = items.data();
    entry.count = static_cast<uint32_t>(items.size());
    return add(entry);
  }
  const Entry* tensor_list(schema::KernelTypes type, TensorValue* const* tensors, size_t count);
  int32_t index_of(const Argument& argument);
  Error find(const Kernel& kernel, uint32_t* op);
  void use(TensorValue* tensor, Call* call);
  void free_unused();
  void make_dynamic();
  void assign_offset(TensorValue* tensor, TensorValue** live);
  void plan();
  struct Vtables;
  static void emit_tensor(Writer& w, const Vtables& of, const Entry& entry);
  static void emit_value(Writer& w, const Vtables& of, const Entry& entry);
  void emit_calls(Writer& w, const Vtables& of, size_t plan) const;
  void emit(Writer& w, Span<const Entry* const> inputs, Span<const Entry* const> outputs) const;

  static constexpr int64_t kMaxCached = 16;  // integers less than this are stored once

  MemoryAllocator& scratch_;
  Entry *values_ = nullptr, **last_value_ = &values_;
  size_t value_count_ = 0;
  Call *calls_ = nullptr, **last_call_ = &calls_;
  size_t call_count_ = 0;
  Operator *operators_ = nullptr, **last_operator_ = &operators_;
  size_t operator_count_ = 0;
  TensorValue *planned_ = nullptr, **last_planned_ = &planned_;
  TensorValue *dynamic_ = nullptr, **last_dynamic_ = &dynamic_;
  size_t free_count_ = 0;
  uint64_t planned_size_ = 0;
  uint32_t debug_handle_ = 0;
  int32_t integers_[kMaxCached] = {};  // index + 1 of each small integer
  int32_t none_ = 0;                   // index + 1
  bool is_full_ = false;
};

/// Programs name a constant by its index in the value table.
void name_of_constant(int32_t index, char (&name)[9]);
int32_t index_of_constant(const char* name);

}  // namespace delegate
}  // namespace torchette
