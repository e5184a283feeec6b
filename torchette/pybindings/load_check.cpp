// SPDX-License-Identifier: BSD-3-Clause
// Binds the check of a program that the compiler has serialized: the steps of Program::load() and
// Program::load_method() that need no weights, planned memory or backends.
#include <vector>

#include "torchette/extension/malloc_dynamic_allocator.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/program.h"
#include "torchette/pybindings/values.h"
#include "torchette/runtime/method_load_instructions.h"
#include "torchette/runtime/method_load_values.h"

namespace torchette::pybindings {
namespace {

/// The address of bytes that are not in memory. It is aligned like that of a mapped file, and never read.
uint8_t* unread_address(size_t offset = 0) {
  constexpr uintptr_t kBase = uintptr_t{1} << 16;
  return reinterpret_cast<uint8_t*>(kBase + offset);
}

/// Loads a file of which only the part before the first segment, the head, is in memory.
class HeadLoader final : public DataLoader {
 public:
  HeadLoader(Span<const uint8_t> head, size_t file_size) : head_(head), file_size_(file_size) {}

  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo&) const override {
    TORCHETTE_CHECK(offset <= file_size_ && size <= file_size_ - offset, InvalidArgument,
                    "%zu bytes at offset %zu exceed the file of %zu bytes", size, offset, file_size_);
    const bool is_in_head = offset <= head_.size() && size <= head_.size() - offset;
    return FreeableBuffer(is_in_head ? head_.data() + offset : unread_address(offset), size, nullptr);
  }
  Error load_into(size_t, size_t, const SegmentInfo&, void*) const override { return Error::NotSupported; }
  Result<size_t> size() const override { return file_size_; }

 private:
  Span<const uint8_t> head_;
  size_t file_size_;
};

/// Represents data files (.ptd) that contain every tensor.
class UnreadData final : public NamedDataMap {
 public:
  Result<FreeableBuffer> get_data(const char*) const override { return Error::NotFound; }
  Result<uint32_t> get_num_keys() const override { return uint32_t{0}; }
  Result<const char*> get_key(uint32_t) const override { return Error::InvalidArgument; }
  Error get_tensor(const char*, const TensorImpl&, void** data) const override {
    *data = unread_address();
    return Error::Ok;
  }
};

}  // namespace

class LoadCheck {
 public:
  /// Returns (method, error code, log) of each method that does not load. The method is empty if the program
  /// itself does not load.
  static nb::list check(nb::handle head, size_t file_size) {
    take_log();
    const View view(head);
    Memory copy;
    const void* data = view.get().buf;
    const auto size = static_cast<size_t>(view.get().len);
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0) {
      copy = allocate_memory(size);
      data = memcpy(copy.get(), data, size);
    }
    HeadLoader loader({static_cast<const uint8_t*>(data), size}, file_size);
    nb::list faults;
    const Result<Program> program = Program::load(&loader, Program::Verification::InternalConsistency);
    if (!program.ok()) {
      add_fault(faults, "", program.error());
      return faults;
    }
    for (size_t i = 0; i < program->num_methods(); ++i) {
      const Result<const char*> name = program->get_method_name(i);
      const Error error = name.ok() ? check_method(*program, *name) : name.error();
      if (error != Error::Ok) add_fault(faults, name.ok() ? *name : "", error);
    }
    return faults;
  }

 private:
  static void add_fault(nb::list& faults, const char* method, Error error) {
    const std::string log = take_log();
    faults.append(
        nb::make_tuple(text_of(method), static_cast<uint32_t>(error), text_of({log.data(), log.size()})));
  }

  static Error check_method(const Program& program, const char* method_name) {
    const Result<MethodMeta> meta = program.method_meta(method_name);
    if (!meta.ok()) return meta.error();
    std::vector<Span<uint8_t>> arenas;
    for (size_t id = 0; id < meta->num_memory_planned_buffers(); ++id) {
      const Result<int64_t> size = meta->memory_planned_buffer_size(id);
      if (!size.ok()) return size.error();
      arenas.emplace_back(unread_address(), static_cast<size_t>(*size));
    }
    extension::MallocMemoryAllocator method_memory;
    extension::MallocDynamicAllocator dynamic_memory;
    HierarchicalAllocator planned_memory({arenas.data(), arenas.size()});
    MemoryManager memory(&method_memory, &planned_memory, nullptr, &dynamic_memory);
    const UnreadData external_data;
    const Result<size_t> plan = program.find_plan(method_name);
    if (!plan.ok()) return plan.error();
    Method method(&program, *plan, &memory, &external_data);
    flat::Reader reader = program.reader();
    return Method::Loading(method, program, reader).check();
  }
};

void bind_load_check(nb::module_& m) {
  m.def("check_load", &LoadCheck::check, nb::arg("head"), nb::arg("file_size"));
}

}  // namespace torchette::pybindings

namespace torchette {

Error Method::Loading::check() {
  TORCHETTE_TRY(load_signature());
  for (size_t i = 0; i < method_.values_.size(); ++i) {
    const Error error = load_entry(i);
    if (error == Error::Ok) continue;
    TORCHETTE_LOG(Error, "value %zu is refused", i);
    return error;
  }
  TORCHETTE_TRY(check_lists());
  TORCHETTE_TRY(find_kernels());
  return load_instructions();
}

}  // namespace torchette
