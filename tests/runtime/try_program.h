// SPDX-License-Identifier: BSD-3-Clause
// Opens arbitrary bytes, reads their metadata, loads and executes them, in blocks of exactly the required
// sizes. mutate.cpp and fuzz_program.cpp call this with sanitizers.
#pragma once

#include <cstdlib>
#include <new>
#include <vector>

#include "test_backend.h"
#include "test_kernels.h"
#include "torchette/extension/backends.h"
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/bundled_program.h"
#include "torchette/extension/flat_tensor.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/runtime/method.h"

#ifndef TORCHETTE_REAL_KERNELS  // otherwise the kernels of the library, and the file is a model
namespace torchette {

Span<const Kernels> kernel_table() { return test_table(); }

}  // namespace torchette
#endif

/// Copies each load into a block of its own and frees it with its FreeableBuffer, as a loader of a file does,
/// so that the sanitizer finds each access to bytes that were freed.
class CopyingDataLoader final : public torchette::DataLoader {
 public:
  CopyingDataLoader(const uint8_t* data, size_t size) : buffer_(data, size) {}

  torchette::Result<torchette::FreeableBuffer> load(size_t offset, size_t size,
                                                    const SegmentInfo& info) const override {
    constexpr std::align_val_t kAlignment{16};
    void* const block = ::operator new(size, kAlignment, std::nothrow);
    if (block == nullptr) return torchette::Error::MemoryAllocationFailed;
    torchette::FreeableBuffer bytes(block, size,
                                    [](void*, void* data, size_t) { ::operator delete(data, kAlignment); });
    const torchette::Error error = buffer_.load_into(offset, size, info, block);
    if (error != torchette::Error::Ok) return error;
    return bytes;
  }
  torchette::Error load_into(size_t offset, size_t size, const SegmentInfo& info, void* to) const override {
    return buffer_.load_into(offset, size, info, to);
  }
  torchette::Result<size_t> size() const override { return buffer_.size(); }

 private:
  torchette::extension::BufferDataLoader buffer_;
};

/// The last successful step; the minimum over several methods.
enum class Outcome { NotOpened, NotLoaded, Failed, Ran };

inline Outcome try_method(const torchette::Program& program, const char* name,
                          const torchette::NamedDataMap* data = nullptr,
                          const torchette::extension::BundledProgram* bundle = nullptr) {
  using namespace torchette;
  constexpr size_t kMaxArenaBytes = 1 << 20;
  const Result<MethodMeta> meta = program.method_meta(name);
  if (!meta.ok()) return Outcome::NotLoaded;
  for (size_t i = 0; i < meta->num_inputs() && i < 100; ++i) (void)meta->input_tensor_meta(i).ok();
  for (size_t i = 0; i < meta->num_outputs() && i < 100; ++i) (void)meta->output_tensor_meta(i).ok();
  (void)meta->num_attributes();
  (void)meta->attribute_tensor_meta(0).ok();
  (void)meta->num_instructions();
  (void)meta->uses_backend("none");
  // Exactly of the size in the file, so that the sanitizer finds each access after the end.
  std::vector<std::vector<uint64_t>> buffers;
  std::vector<Span<uint8_t>> spans;
  for (size_t i = 0; i < meta->num_memory_planned_buffers() && i < 100; ++i) {
    const Result<int64_t> bytes = meta->memory_planned_buffer_size(i);
    if (!bytes.ok() || static_cast<size_t>(*bytes) > kMaxArenaBytes) return Outcome::NotLoaded;
    buffers.emplace_back((static_cast<size_t>(*bytes) + 7) / 8);
    spans.emplace_back(reinterpret_cast<uint8_t*>(buffers.back().data()), static_cast<size_t>(*bytes));
  }
  HierarchicalAllocator planned({spans.data(), spans.size()});
  extension::MallocMemoryAllocator method_memory, temp;
  MemoryManager manager(&method_memory, &planned, &temp);
  Result<Method> method = program.load_method(name, &manager, nullptr, data);
  if (!method.ok()) return Outcome::NotLoaded;

  // Each input has its maximum shape and its own memory.
  std::vector<std::vector<uint64_t>> inputs(method->inputs_size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    Value value = method->get_input(i);
    TensorImpl impl;
    if (value.is_tensor()) {
      impl = *value.to_tensor().unsafe_impl();
      const size_t bytes = static_cast<size_t>(impl.numel) * element_size(impl.type);
      if (bytes > kMaxArenaBytes) return Outcome::Failed;
      inputs[i].resize((bytes + 7) / 8);
      impl.data = inputs[i].data();
      value = Value(Tensor(&impl));
    }
    if (method->set_input(value, i) != Error::Ok) return Outcome::Failed;
  }
  std::vector<std::vector<uint64_t>> outputs(method->outputs_size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!method->output_needs_memory(i)) continue;
    const TensorImpl& output = *method->get_output(i).to_tensor().unsafe_impl();
    const size_t bytes = output.capacity * element_size(output.type);
    if (bytes > kMaxArenaBytes) return Outcome::Failed;
    outputs[i].resize((bytes + 7) / 8 + 1);
    if (method->set_output_data_ptr(outputs[i].data(), bytes, i) != Error::Ok) return Outcome::Failed;
  }
  method->set_max_loop_iterations(20);
  // The cases of a bundled program, or one execution with the inputs above.
  const size_t cases = bundle == nullptr ? 0 : bundle->num_cases(name);
  for (size_t i = 0; i < cases && i < 10; ++i) {
    if (bundle->load_bundled_input(*method, i) != Error::Ok || method->execute() != Error::Ok)
      return Outcome::Failed;
    (void)bundle->compare(*method, i, 0, 0.01, 0.01).ok();
    (void)bundle->verify_method_outputs(*method, i);
  }
  if (cases == 0 && method->execute() != Error::Ok) return Outcome::Failed;
  for (size_t i = 0; i < method->outputs_size(); ++i) {
    const Value& output = method->get_output(i);
    if (output.is_tensor() && output.to_tensor().const_data_ptr() != nullptr) touch(output.to_tensor());
  }
  return method->reset() == Error::Ok ? Outcome::Ran : Outcome::Failed;
}

inline Outcome try_program(const uint8_t* data, size_t size, const torchette::NamedDataMap* map = nullptr,
                           const torchette::extension::BundledProgram* bundle = nullptr) {
  using namespace torchette;
  CopyingDataLoader loader(data, size);
  const Result<Program> program = Program::load(&loader, Program::Verification::InternalConsistency);
  if (!program.ok()) return Outcome::NotOpened;
  Outcome worst = program->num_methods() == 0 ? Outcome::NotOpened : Outcome::Ran;
  for (uint32_t i = 0; i < *program->get_num_keys() && i < 10; ++i) {
    const Result<const char*> key = program->get_key(i);
    if (key.ok()) (void)program->get_data(*key).ok();
  }
  for (size_t i = 0; i < program->num_methods() && i < 10; ++i) {
    const Result<const char*> name = program->get_method_name(i);
    const Outcome outcome = name.ok() ? try_method(*program, *name, map, bundle) : Outcome::NotOpened;
    if (outcome < worst) worst = outcome;
  }
  return worst;
}

/// A .ptd file: reads all its data, and then executes the program that has its weights in it.
inline Outcome try_data_file(const uint8_t* data, size_t size, const std::vector<uint8_t>& program) {
  using namespace torchette;
  extension::BufferDataLoader loader(data, size);
  const Result<extension::FlatTensorDataMap> map = extension::FlatTensorDataMap::load(&loader);
  if (!map.ok()) return Outcome::NotOpened;
  static volatile uint8_t sink;
  for (uint32_t i = 0; i < *map->get_num_keys() && i < 100; ++i) {
    const Result<const char*> key = map->get_key(i);
    if (!key.ok()) return Outcome::NotOpened;
    const Result<FreeableBuffer> bytes = map->get_data(*key);
    if (bytes.ok())
      for (size_t k = 0; k < bytes->size(); ++k) sink = static_cast<const uint8_t*>(bytes->data())[k];
    (void)map->get_tensor_layout(*key).ok();
  }
  return try_program(program.data(), program.size(), &*map);
}

/// A bundled program: executes the program with its cases.
inline Outcome try_bundle(const uint8_t* data, size_t size) {
  using namespace torchette;
  const Result<extension::BundledProgram> bundle = extension::BundledProgram::load(data, size);
  if (!bundle.ok()) return Outcome::NotOpened;
  return try_program(bundle->program().data(), bundle->program().size(), nullptr, &*bundle);
}

/// Call it first. Registers backends and turns off the log, which would dominate the run time.
inline void prepare() {
#ifdef TORCHETTE_REAL_BACKENDS
  (void)torchette::register_all_backends();
#else
  torchette::test_backend();
#endif
  torchette::PalImpl quiet;
  quiet.emit_log_message = [](torchette_timestamp_t, torchette_log_level_t, const char*, const char*, size_t,
                              const char*, size_t) {};
  torchette::register_pal(quiet);
}
