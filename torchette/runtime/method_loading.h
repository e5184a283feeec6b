// SPDX-License-Identifier: BSD-3-Clause
// State of loading a method, shared by method_load_values.h and method_load_instructions.h. The file is
// untrusted: load checks every index, offset, size, type and jump target, so that execution needs no checks
// of them.
#pragma once

#include "torchette/runtime/method.h"
#include "torchette/schema/program.h"

namespace torchette {

using flat::CursorOf;
using flat::Reader;
using flat::Table;
using flat::Tables;

/// Whether a tensor's data are outside of the file, under the tensor's name.
inline bool is_external(const Table& extra) {
  return extra.get<schema::TensorDataLocation>(schema::ExtraTensorInfo::kLocation) ==
         schema::TensorDataLocation::EXTERNAL;
}

inline bool is_number(const Value& v) { return v.is_none() || v.is_scalar(); }

struct ListKind;  // encoding of a list in the file

/// torchette/devtools/device_memory.py computes the allocations of this class ahead of time: change both
/// together. Functions that only one file calls are defined in that file, inline.
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
  /// The steps of load() that do not access weights, planned memory and backends: pybindings/load_check.cpp.
  Error check();

 private:
  using Types = schema::KernelTypes;
  struct Rules;

  static uint32_t rule_of(char code);

  TORCHETTE_NOINLINE void* allocate_bytes(size_t count, size_t size, size_t alignment) {
    size_t bytes;
    void* const found = multiply_overflows(count, size, &bytes) ? nullptr : arena_.allocate(bytes, alignment);
    if (found == nullptr)
      TORCHETTE_LOG(Error, "the method allocator has no room for %zu items of %zu bytes", count, size);
    return found;
  }
  template <typename T>
  Error allocate(size_t count, Span<T>* out) {
    auto* const items = static_cast<T*>(allocate_bytes(count, sizeof(T), alignof(T)));
    *out = {items, count};
    return items == nullptr ? Error::MemoryAllocationFailed : Error::Ok;
  }
  template <typename T>
  Error allocate(T** out) {
    *out = static_cast<T*>(allocate_bytes(1, sizeof(T), alignof(T)));
    return *out == nullptr ? Error::MemoryAllocationFailed : Error::Ok;
  }
  /// Limits the total number of list items. Lists may share vectors, so a small damaged file could otherwise
  /// request much memory. Valid files stay far below the limit.
  Error use_list_budget(size_t items) {
    TORCHETTE_CHECK(items <= list_budget_, InvalidProgram, "the lists of the file are too long for its size");
    list_budget_ -= items;
    return Error::Ok;
  }
  Error in_range(int32_t index) const {
    // A negative index becomes larger than the number of values.
    TORCHETTE_CHECK(static_cast<size_t>(index) < method_.values_.size(), InvalidProgram,
                    "value %d does not exist, values: %zu", static_cast<int>(index), method_.values_.size());
    return Error::Ok;
  }
  Error check_record(const char* what, size_t index) const {
    TORCHETTE_CHECK(reader_.ok(), InvalidProgram, "%s %zu of the method is outside the file", what, index);
    return Error::Ok;
  }

  // --- Values: method_load_values.h

  Error load_signature();
  /// Checks the planned buffers against the sizes in the file. Names the buffer that is too small and its
  /// size.
  Error check_planned_sizes(Span<const Span<uint8_t>> buffers) const;
  Error load_values();
  Error load_entry(size_t i);
  /// Loads value `i`, which is not a tensor.
  Error load_value(Types type, const Table& record, size_t i);
  /// Loads value `i`, a list or string. The record has one field, the items.
  Error load_list(const ListKind& kind, const Table& record, size_t i);
  /// Checks the elements of all lists. Runs after all values are loaded.
  Error check_lists();
  /// Loads the tensor under the cursor as value `index`.
  Error load_tensor(size_t index);
  /// A separate function, so that the address of `info` is computed once.
  Error make_tensor(const TensorInfo& info, bool is_static, size_t index);
  /// Sets the memory of the tensor under the cursor, which is value `index`.
  TORCHETTE_INLINE Error set_memory(size_t index, size_t nbytes, bool owned, const Table& extra,
                                    TensorImpl* impl);
  /// Sets the planned address of a tensor. Only the extent of tensors of static shape is set to zero later:
  /// memory reserved for maximum sizes is not touched before a kernel writes it, so unused pages cost
  /// nothing.
  Error set_planned_memory(size_t nbytes, TensorImpl& tensor);

  // --- Instructions: method_load_instructions.h

  /// Finds the kernel of each operator. Logs all operators without a kernel.
  Error find_kernels();
  Error load_instructions();
  Error load_control(schema::InstructionArguments kind, const Table& args, size_t start, size_t count,
                     Instruction* out);
  Error allocate_control(Control::Kind kind, Control** control, Instruction* out);
  Error load_kernel_call(const CursorOf<schema::KernelCall>& call, Instruction* out);
  /// Checks arguments until one needs the full check, and returns their number; usually all. A separate
  /// function without calls, so that its state stays in registers.
  size_t count_checked_arguments(const char* code, const int32_t* indices, size_t count) const;
  Error check_argument(const Kernel& kernel, const char* code, int32_t index);
#ifdef TORCHETTE_SELECTED_DTYPES
  /// Checks that the build contains kernels for the dtypes of the arguments.
  Error check_dtypes(const Kernel& kernel, Span<const int32_t> indices);
#endif
  /// The error of writing to read-only memory: constants are there, and views of constants or of the caller's
  /// memory may be there.
  static Error read_only_error([[maybe_unused]] const Kernel& kernel, [[maybe_unused]] int32_t index);
  Error load_move(int32_t from, int32_t to, Instruction* out);
  Error load_delegate_call(const Table& args, Instruction* out);
  /// Last, since init() of a backend may be slow, and each handle must be destroyed if a later step fails.
  Error load_delegates();

  Method& method_;
  const Program& program_;
  Reader& reader_;
  Table plan_;
  Tables records_;  // records of the values
  CursorOf<schema::EValue> entry_;
  CursorOf<schema::Tensor> tensor_;
  CursorOf<schema::AllocationDetails> allocation_;
  MemoryAllocator& arena_;
  size_t list_budget_;
  Span<const Kernel*> kernels_;
  TensorInfo infos_[2];                    // the tensors read last: [0] of dynamic shape, [1] of static shape
  StridesType* shared_strides_ = nullptr;  // strides of infos_[1]; consecutive equal shapes share them
  unsigned unbacked_flags_;                // not 0 if the current kernel call has an argument without data
  bool defines_last_;                      // whether its last argument is the view that it creates
  bool is_first_pass_ = true;              // of the passes over the instructions
  bool needs_second_pass_ = false;         // whether a check depends on later instructions
};

}  // namespace torchette
