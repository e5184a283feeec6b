// SPDX-License-Identifier: BSD-3-Clause
// Loading of a method: what method_load_values.h and method_load_instructions.h share. The file is hostile
// until they have returned Ok: every index, offset, size, type and jump target is checked there, so that
// nothing of it needs a check while executing.
#pragma once

#include "torchette/runtime/method.h"
#include "torchette/schema/program.h"

namespace torchette {

using flat::CursorOf;
using flat::Reader;
using flat::Table;
using flat::Tables;

/// Whether a tensor's bytes stand outside of the file, under its name.
inline bool is_external(const Table& extra) {
  return extra.get<schema::TensorDataLocation>(schema::ExtraTensorInfo::kLocation) ==
         schema::TensorDataLocation::EXTERNAL;
}

inline bool is_number(const Value& v) { return v.is_none() || v.is_scalar(); }

struct ListKind;  // how a list stands in the file

/// What is allocated here, torchette/devtools/device_memory.py counts ahead of time: a change of one is a
/// change of both. A function that one file alone uses is defined there, inline, since it has one caller.
class Method::Loading {
 public:
  Loading(Method& method, const Program& program, Reader& reader)
      : method_(method),
        program_(program),
        reader_(reader),
        plan_(Table::at(&reader, method.plan_)),
        records_(plan_.tables(schema::ExecutionPlan::kValues)),
        entry_(reader),
        tensor_(reader),
        allocation_(reader),
        arena_(*method.memory_->method_allocator()),
        list_budget_(16 * reader.size()) {}

  Error load();

 private:
  using Types = schema::KernelTypes;
  struct Rules;

  static uint32_t rule_of(char code);

  TORCHETTE_NOINLINE void* room(size_t count, size_t size, size_t alignment) {
    size_t bytes;
    void* const found = multiply_overflows(count, size, &bytes) ? nullptr : arena_.allocate(bytes, alignment);
    if (found == nullptr)
      TORCHETTE_LOG(Error, "the method allocator has no room for %zu items of %zu bytes", count, size);
    return found;
  }
  template <typename T>
  Error allocate(size_t count, Span<T>* out) {
    auto* const items = static_cast<T*>(room(count, sizeof(T), alignof(T)));
    *out = {items, count};
    return items == nullptr ? Error::MemoryAllocationFailed : Error::Ok;
  }
  template <typename T>
  Error allocate(T** out) {
    *out = static_cast<T*>(room(1, sizeof(T), alignof(T)));
    return *out == nullptr ? Error::MemoryAllocationFailed : Error::Ok;
  }
  /// Shared vectors could make a small file ask for a lot of memory; files that were written in earnest
  /// cannot.
  Error spend(size_t items) {
    TORCHETTE_CHECK(items <= list_budget_, InvalidProgram, "the lists of the file are too long for its size");
    list_budget_ -= items;
    return Error::Ok;
  }
  Error in_range(int32_t index) const {
    // a negative number becomes a larger one than there are values
    TORCHETTE_CHECK(static_cast<size_t>(index) < method_.values_.size(), InvalidProgram,
                    "value %d is named, there are %zu", static_cast<int>(index), method_.values_.size());
    return Error::Ok;
  }
  Error intact(const char* what, size_t index) const {
    TORCHETTE_CHECK(reader_.ok(), InvalidProgram, "%s %zu of the method is not inside of the file", what,
                    index);
    return Error::Ok;
  }

  // --- Values: method_load_values.h

  Error signature();
  /// The buffers are as large as the file says, so that a small one is named with what it needs.
  Error planned_sizes(Span<const Span<uint8_t>> buffers) const;
  Error values();
  /// Value `i`, of the kinds that a file has few of.
  Error other(Types type, const Table& record, size_t i);
  /// Value `i`, whose record has one field, the items.
  Error list(const ListKind& kind, const Table& record, size_t i);
  /// After all values are known: what the lists name.
  Error lists();
  /// The tensor under the cursor is value `index`.
  Error tensor(size_t index);
  /// A function by itself, so that the address of `info` is not computed again and again.
  Error make_tensor(const TensorInfo& info, bool stays, size_t index);
  /// Gives the tensor under the cursor, which is value `index`, its bytes.
  TORCHETTE_INLINE Error place(size_t index, size_t nbytes, bool owned, const Table& extra, TensorImpl* impl);
  /// Gives a tensor the address that is planned under the cursor. What starts as zeros has a size that stays:
  /// the rest is not touched before it is written, so that a room for the greatest sizes costs no memory that
  /// no run needs.
  Error planned(size_t nbytes, TensorImpl& tensor);

  // --- Instructions: method_load_instructions.h

  /// Each operator is looked up once, however often it is called. All that are missing are named.
  Error operators();
  Error instructions();
  Error control(schema::InstructionArguments kind, const Table& args, size_t start, size_t count,
                Instruction* out);
  Error make_control(Control::Kind kind, Control** control, Instruction* out);
  Error kernel_call(const CursorOf<schema::KernelCall>& call, Instruction* out);
  /// How many of the next arguments need no closer look, most often all. A function by itself and without
  /// calls, so that all of it is in registers.
  size_t count_usual(const char* code, const int32_t* indices, size_t count) const;
  Error unusual(const Kernel& kernel, const char* code, int32_t index);
#ifdef TORCHETTE_SELECTED_DTYPES
  /// A selective build has no code for other dtypes than it was told of.
  Error dtypes_are_built(const Kernel& kernel, Span<const int32_t> indices);
#endif
  /// Constants stand in read-only memory, and a view of the caller's memory or of a constant may.
  static Error read_only([[maybe_unused]] const Kernel& kernel, [[maybe_unused]] int32_t index);
  Error move(int32_t from, int32_t to, Instruction* out);
  Error delegate_call(const Table& args, Instruction* out);
  /// Last, since backends may take their time and must be destroyed again.
  Error delegates();

  Method& method_;
  const Program& program_;
  Reader& reader_;
  Table plan_;
  Tables records_;  // of the values
  CursorOf<schema::EValue> entry_;
  CursorOf<schema::Tensor> tensor_;
  CursorOf<schema::AllocationDetails> allocation_;
  MemoryAllocator& arena_;
  size_t list_budget_;
  Span<const Kernel*> kernels_;
  TensorInfo last_[2];                     // tensors read: one whose sizes may change, one whose sizes stay
  StridesType* shared_strides_ = nullptr;  // of tensors like the latter
  unsigned unbacked_;                      // of the kernel call that is judged: not 0 where an argument is
  bool defines_last_;                      // and whether its last argument is the view that becomes backed
  bool first_ = true;                      // of the walks over the instructions
  bool unsure_ = false;  // whether the verdict on an argument depends on instructions that come later
};

}  // namespace torchette
