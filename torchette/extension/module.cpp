// SPDX-License-Identifier: BSD-3-Clause
// Implements Module. A loaded method owns its data structures, its planned arenas, and the memory of outputs
// that the memory plan does not cover.
#include "torchette/extension/module.h"

#include <algorithm>
#include <cstring>

#include "torchette/extension/arena.h"
#include "torchette/extension/element.h"
#include "torchette/extension/file_data_loader.h"
#include "torchette/extension/kernel_threads.h"
#include "torchette/extension/malloc_dynamic_allocator.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/extension/measuring_allocator.h"
#include "torchette/extension/method_threads.h"
#include "torchette/extension/mmap_data_loader.h"
#include "torchette/extension/receipt.h"
#include "torchette/extension/source_lines.h"
#include "torchette/runtime/backend.h"
#include "torchette/runtime/threads.h"

namespace torchette::extension {
namespace {

/// Logs the registered backends, for a program that requires another backend.
void log_backends() {
  std::string names;
  for (size_t i = 0; i < get_num_registered_backends(); ++i)
    names += std::string(i == 0 ? "" : ", ") + *get_backend_name(i);
  TORCHETTE_LOG(Error, "registered backends: %s; link a missing backend and call register_backend()",
                names.empty() ? "none" : names.c_str());
}

/// Moves a loader to the heap.
template <typename L>
Result<std::shared_ptr<DataLoader>> keep(Result<L> loader) {
  if (!loader.ok()) return loader.error();
  return std::shared_ptr<DataLoader>(std::make_shared<L>(std::move(*loader)));
}

}  // namespace

struct Module::LoadedMethod {
  explicit LoadedMethod(MemoryAllocator* allocator)
      : method_memory(allocator != nullptr ? *allocator : memory) {}

  MallocMemoryAllocator memory;
  MeasuringAllocator method_memory;
  MallocDynamicAllocator dynamic;
  ArenaAllocator planned;
  MemoryManager manager{nullptr};
  std::unique_ptr<Method> method;
  std::unique_ptr<MethodThreads> threads;  // null if the method runs only on the caller's thread
  /// For each input, the caller's memory that an argument of execute() made it use; null if there is none.
  std::vector<const void*> borrowed;
};

namespace {

const void* memory_of(const Value& value) {
  return value.is_tensor() ? value.to_tensor().const_data_ptr() : nullptr;
}

/// The same as Method::set_input(), with dtypes by name in the message.
Error set_input_of(Method& method, const Value& value, size_t index) {
  const Value& input = index < method.inputs_size() ? method.get_input(index) : value;
  if (value.is_tensor() && input.is_tensor()) {
    const ScalarType given = value.to_tensor().scalar_type(), expected = input.to_tensor().scalar_type();
    TORCHETTE_CHECK(given == expected, InvalidArgument, "input %zu has dtype %s, expected %s", index,
                    dtype_name(given), dtype_name(expected));
  }
  return method.set_input(value, index);
}

}  // namespace

Module::Module(std::string file_path, LoadMode load_mode, std::shared_ptr<EventTracer> event_tracer,
               std::shared_ptr<MemoryAllocator> memory_allocator,
               std::shared_ptr<MemoryAllocator> temp_allocator, bool share_memory_arenas)
    : file_path_(std::move(file_path)),
      load_mode_(load_mode),
      event_tracer_(std::move(event_tracer)),
      memory_allocator_(std::move(memory_allocator)),
      temp_allocator_(std::move(temp_allocator)),
      share_memory_arenas_(share_memory_arenas) {
  if (!temp_allocator_) temp_allocator_ = std::make_shared<MallocMemoryAllocator>();
}

Module::Module(std::string file_path, std::vector<std::string> data_files, LoadMode load_mode,
               std::shared_ptr<EventTracer> event_tracer, std::shared_ptr<MemoryAllocator> memory_allocator,
               std::shared_ptr<MemoryAllocator> temp_allocator, bool share_memory_arenas)
    : Module(std::move(file_path), load_mode, std::move(event_tracer), std::move(memory_allocator),
             std::move(temp_allocator), share_memory_arenas) {
  data_files_ = std::move(data_files);
}

Module::Module(std::shared_ptr<DataLoader> data_loader, std::shared_ptr<MemoryAllocator> memory_allocator,
               std::shared_ptr<MemoryAllocator> temp_allocator, std::shared_ptr<EventTracer> event_tracer,
               bool share_memory_arenas)
    : Module(std::string(), LoadMode::File, std::move(event_tracer), std::move(memory_allocator),
             std::move(temp_allocator), share_memory_arenas) {
  data_loader_ = std::move(data_loader);
}

Module::Module(std::shared_ptr<DataLoader> data_loader, std::shared_ptr<MemoryAllocator> memory_allocator,
               std::shared_ptr<MemoryAllocator> temp_allocator, std::shared_ptr<EventTracer> event_tracer,
               std::shared_ptr<DataLoader> data_map_loader, bool share_memory_arenas)
    : Module(std::move(data_loader), std::move(memory_allocator), std::move(temp_allocator),
             std::move(event_tracer), share_memory_arenas) {
  if (data_map_loader) data_file_loaders_.push_back(std::move(data_map_loader));
}

Module::Module(std::shared_ptr<Program> program, std::shared_ptr<MemoryAllocator> memory_allocator,
               std::shared_ptr<MemoryAllocator> temp_allocator, std::shared_ptr<EventTracer> event_tracer,
               bool share_memory_arenas)
    : Module(std::string(), LoadMode::File, std::move(event_tracer), std::move(memory_allocator),
             std::move(temp_allocator), share_memory_arenas) {
  program_ = std::move(program);
}

Module::Module(const std::shared_ptr<Module>& parent)
    : Module(parent, std::shared_ptr<const NamedDataMap>(parent, parent->data_map_.get())) {}

Module::Module(const std::shared_ptr<Module>& parent, std::shared_ptr<const NamedDataMap> data)
    : Module(parent->program_) {
  data_map_ = std::move(data);
  num_threads_ = parent->num_threads_;
}

Module::~Module() = default;

Result<std::shared_ptr<DataLoader>> Module::open_file(const std::string& path, LoadMode load_mode) {
  using Lock = MmapDataLoader::MlockConfig;
  switch (load_mode) {
    case LoadMode::Mmap:
      return keep(MmapDataLoader::from(path.c_str()));
    case LoadMode::MmapUseMlock:
      return keep(MmapDataLoader::from(path.c_str(), Lock::UseMlock));
    case LoadMode::MmapUseMlockIgnoreErrors:
      return keep(MmapDataLoader::from(path.c_str(), Lock::UseMlockIgnoreErrors));
    case LoadMode::MmapUseMadvise:
      return keep(MmapDataLoader::from(path.c_str(), Lock::UseMadvise));
    default:
      return keep(FileDataLoader::from(path.c_str()));
  }
}

Error Module::open_data_files() {
  if (data_map_) return Error::Ok;
  data_maps_.clear();
  if (!data_files_.empty()) data_file_loaders_.clear();
  for (const std::string& path : data_files_) {
    Result<std::shared_ptr<DataLoader>> loader = open_file(path, load_mode_);
    if (!loader.ok()) return loader.error();
    data_file_loaders_.push_back(std::move(*loader));
  }
  if (data_file_loaders_.empty()) return Error::Ok;
  for (const std::shared_ptr<DataLoader>& loader : data_file_loaders_) {
    Result<FlatTensorDataMap> map = FlatTensorDataMap::load(loader.get());
    if (!map.ok()) return map.error();
    data_maps_.push_back(std::move(*map));
  }
  data_map_ =
      std::make_shared<MergedDataMap>(Span<const FlatTensorDataMap>(data_maps_.data(), data_maps_.size()));
  return Error::Ok;
}

Error Module::add_data(std::shared_ptr<DataLoader> loader) {
  TORCHETTE_CHECK(methods_.empty(), InvalidState,
                  "cannot add a data file after a method is loaded; add it before");
  TORCHETTE_TRY(load());
  Result<FlatTensorDataMap> map = FlatTensorDataMap::load(loader.get());
  if (!map.ok()) return map.error();
  data_map_.reset();  // it refers to the elements of data_maps_
  data_file_loaders_.push_back(std::move(loader));
  data_maps_.push_back(std::move(*map));
  data_map_ =
      std::make_shared<MergedDataMap>(Span<const FlatTensorDataMap>(data_maps_.data(), data_maps_.size()));
  return Error::Ok;
}

Error Module::add_data_file(const std::string& path, LoadMode load_mode) {
  Result<std::shared_ptr<DataLoader>> loader = open_file(path, load_mode);
  return loader.ok() ? add_data(std::move(*loader)) : loader.error();
}

Error Module::load(Program::Verification verification) {
  if (program_) return Error::Ok;
  TORCHETTE_TRY(open_data_files());
  if (!data_loader_) {
    Result<std::shared_ptr<DataLoader>> loader = open_file(file_path_, load_mode_);
    if (!loader.ok()) return loader.error();
    data_loader_ = std::move(*loader);
  }
  Result<Program> program = Program::load(data_loader_.get(), verification);
  if (!program.ok()) return program.error();
  program_ = std::make_shared<Program>(std::move(*program));
  return Error::Ok;
}

Error Module::verify_integrity() {
  TORCHETTE_TRY(load());
  if (!data_loader_) return Error::NotSupported;
  std::vector<const DataLoader*> data_files;
  for (const std::shared_ptr<DataLoader>& file : data_file_loaders_) data_files.push_back(file.get());
  return extension::verify_integrity(*program_, *data_loader_, data_files);
}

bool Module::is_fallback(const char* method_name) {
  const size_t size = strlen(method_name), end = sizeof(kPortable) - 1;
  return size > end && strcmp(method_name + size - end, kPortable) == 0;
}

Result<size_t> Module::num_methods() {
  const Result<std::unordered_set<std::string>> names = method_names();
  return names.ok() ? Result<size_t>(names->size()) : names.error();
}

Result<std::unordered_set<std::string>> Module::method_names() {
  TORCHETTE_TRY(load());
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < program_->num_methods(); ++i) {
    const Result<const char*> name = program_->get_method_name(i);
    if (!name.ok()) return name.error();
    if (!is_fallback(*name)) names.insert(*name);
  }
  return names;
}

Result<MethodMeta> Module::method_meta(const std::string& method_name) {
  TORCHETTE_TRY(load());
  return program_->method_meta(method_name.c_str());
}

Error Module::set_num_threads(size_t count) {
  TORCHETTE_CHECK(count != 0, InvalidArgument, "the number of threads must be at least 1, got 0");
  num_threads_ = count;
  return Error::Ok;
}

Error Module::plan(const MethodMeta& meta, SharedArenas* shared, ArenaAllocator* planned) {
  for (size_t id = 0; id < meta.num_memory_planned_buffers(); ++id) {
    if (shared != nullptr && !shared->arena(id).empty()) {
      planned->add(*shared);
      continue;
    }
    const Result<int64_t> size = meta.memory_planned_buffer_size(id);
    if (!size.ok()) return size.error();
    Result<Arena> arena =
        SharedArenas::allocate_arena(*program_, meta.name(), id, static_cast<size_t>(*size));
    if (!arena.ok()) return arena.error();
    planned->add(std::move(*arena));
  }
  return Error::Ok;
}

Error Module::share_state(Module& other) {
  TORCHETTE_CHECK(methods_.empty(), InvalidState,
                  "cannot share state after a method is loaded; share it before");
  TORCHETTE_TRY(other.load());
  TORCHETTE_CHECK(program_ == other.program_, InvalidArgument,
                  "cannot share state: the modules have different programs");
  TORCHETTE_TRY(other.make_shared_arenas(SharedArenas::Kind::State));
  shared_arenas_ = other.shared_arenas_;
  return Error::Ok;
}

Error Module::make_shared_arenas(SharedArenas::Kind kind) {
  if (shared_arenas_ != nullptr) return Error::Ok;
  Result<std::unique_ptr<SharedArenas>> shared = SharedArenas::make(*program_, kind);
  if (!shared.ok()) return shared.error();
  shared_arenas_ = std::move(*shared);
  return Error::Ok;
}

Error Module::load_plan(const char* name, HierarchicalAllocator* planned_memory, EventTracer* event_tracer,
                        std::unique_ptr<LoadedMethod>* out) {
  const Result<MethodMeta> meta = program_->method_meta(name);
  if (!meta.ok()) return meta.error();
  auto loaded = std::make_unique<LoadedMethod>(memory_allocator_.get());
  SharedArenas* shared = nullptr;
  if (planned_memory == nullptr) {
    if (share_memory_arenas_) TORCHETTE_TRY(make_shared_arenas(SharedArenas::Kind::All));
    if (!is_fallback(name)) shared = shared_arenas_.get();
    TORCHETTE_TRY(plan(*meta, shared, &loaded->planned));
    planned_memory = &loaded->planned;
  }
  loaded->manager =
      MemoryManager(&loaded->method_memory, planned_memory, temp_allocator_.get(), &loaded->dynamic);
#ifdef __wasm__  // WebAssembly has no threads
  const NumThreadsScope scope(num_threads_);
#else
  const NumThreadsScope scope(num_threads_ != 0 ? num_threads_ : default_num_threads());
#endif
  const auto load = [&] {
    Result<Method> method = program_->load_method(name, &loaded->manager, event_tracer, data_map_.get());
    if (method.ok()) {
      loaded->method = std::make_unique<Method>(std::move(*method));
      loaded->borrowed.resize(loaded->method->inputs_size());
    }
    return method.error();
  };
  TORCHETTE_TRY(shared != nullptr ? shared->load(name, load) : load());
#ifndef __wasm__
  loaded->threads = MethodThreads::make(*loaded->method, num_threads());
  loaded->method->set_threads(kernel_threads(num_threads()));
#endif
  *out = std::move(loaded);
  return Error::Ok;
}

Error Module::allocate_outputs(LoadedMethod& loaded) {
  Method& method = *loaded.method;
  for (size_t i = 0; i < method.outputs_size(); ++i) {
    if (!method.output_needs_memory(i)) continue;
    const TensorImpl& output = *method.get_output(i).to_tensor().unsafe_impl();
    if (output.data != nullptr) continue;
    const size_t size = output.capacity * element_size(output.type);
    void* bytes = loaded.memory.allocate(size, Arena::kAlignment);
    TORCHETTE_CHECK(bytes != nullptr, MemoryAllocationFailed, "cannot allocate %zu bytes for output %zu",
                    size, i);
    TORCHETTE_TRY(method.set_output_data_ptr(bytes, size, i));
  }
  return Error::Ok;
}

Error Module::load_method(const std::string& method_name, HierarchicalAllocator* planned_memory,
                          EventTracer* event_tracer) {
  if (is_method_loaded(method_name)) return Error::Ok;
  if (event_tracer == nullptr) event_tracer = event_tracer_.get();
  TORCHETTE_TRY(load());
  std::unique_ptr<LoadedMethod> loaded;
  const Error error = load_plan(method_name.c_str(), planned_memory, event_tracer, &loaded);
  if (error != Error::Ok) {
    const std::string portable = method_name + kPortable;
    size_t i = 0;
    while (i < program_->num_methods() && portable != *program_->get_method_name(i)) ++i;
    if (i == program_->num_methods()) {
      if (error == Error::NotSupported) log_backends();
      return error;
    }
    if (load_plan(portable.c_str(), nullptr, event_tracer, &loaded) != Error::Ok) return error;
    TORCHETTE_LOG(Error, "method %s runs on the portable kernels", method_name.c_str());
  }
  methods_.emplace(method_name, std::move(loaded));
  return Error::Ok;
}

Error Module::reset(const std::string& method_name) {
  const Result<Method*> found = method_without_outputs(method_name);
  if (!found.ok()) return found.error();
  const auto reset = [&] { return (*found)->reset(); };
  return shared_arenas_ != nullptr ? shared_arenas_->reset(method_name, reset) : reset();
}

bool Module::unload_method(const std::string& method_name) { return methods_.erase(method_name) != 0; }

Result<Module::LoadedMethod*> Module::load_if_needed(const std::string& method_name) {
  auto found = methods_.find(method_name);
  if (found == methods_.end()) {
    TORCHETTE_TRY(load_method(method_name));
    found = methods_.find(method_name);
  }
  return found->second.get();
}

Result<Method*> Module::method(const std::string& method_name) {
  const Result<LoadedMethod*> found = load_if_needed(method_name);
  if (!found.ok()) return found.error();
  TORCHETTE_TRY(allocate_outputs(**found));
  return (*found)->method.get();
}

Result<Method*> Module::method_without_outputs(const std::string& method_name) {
  const Result<LoadedMethod*> found = load_if_needed(method_name);
  if (!found.ok()) return found.error();
  return (*found)->method.get();
}

Result<MethodMemory> Module::method_memory(const std::string& method_name) {
  const Result<LoadedMethod*> found = load_if_needed(method_name);
  if (!found.ok()) return found.error();
  return MethodMemory{(*found)->manager.planned_memory()->buffers(), (*found)->method_memory.used(),
                      (*found)->dynamic.peak()};
}

Error Module::set_input(const std::string& method_name, const Value& value, size_t index) {
  const Result<LoadedMethod*> found = load_if_needed(method_name);
  if (!found.ok()) return found.error();
  TORCHETTE_TRY(set_input_of(*(*found)->method, value, index));
  (*found)->borrowed[index] = nullptr;
  return Error::Ok;
}

Error Module::set_inputs(const std::string& method_name, const std::vector<Value>& values) {
  const Result<LoadedMethod*> found = load_if_needed(method_name);
  if (!found.ok()) return found.error();
  Method& method = *(*found)->method;
  TORCHETTE_CHECK(values.size() == method.inputs_size(), InvalidArgument,
                  "method %s has %zu inputs, got %zu values", method_name.c_str(), method.inputs_size(),
                  values.size());
  for (size_t i = 0; i < values.size(); ++i) TORCHETTE_TRY(set_input_of(method, values[i], i));
  std::fill((*found)->borrowed.begin(), (*found)->borrowed.end(), nullptr);
  return Error::Ok;
}

Error Module::set_output(const std::string& method_name, const Value& value, size_t index) {
  const Result<Method*> found = method_without_outputs(method_name);
  if (!found.ok()) return found.error();
  TORCHETTE_CHECK(value.is_tensor(), InvalidType, "the value for output %zu must be a tensor", index);
  const Tensor& tensor = value.toTensor();
  return (*found)->set_output_data_ptr(tensor.mutable_data_ptr(), tensor.nbytes(), index);
}

Error Module::set_outputs(const std::string& method_name, const std::vector<Value>& values) {
  const Result<Method*> found = method_without_outputs(method_name);
  if (!found.ok()) return found.error();
  TORCHETTE_CHECK(values.size() == (*found)->outputs_size(), InvalidArgument,
                  "method %s has %zu outputs, got %zu values", method_name.c_str(), (*found)->outputs_size(),
                  values.size());
  for (size_t i = 0; i < values.size(); ++i) TORCHETTE_TRY(set_output(method_name, values[i], i));
  return Error::Ok;
}

Result<std::vector<Value>> Module::execute(const std::string& method_name, const std::vector<Value>& inputs) {
  const Result<LoadedMethod*> found = load_if_needed(method_name);
  if (!found.ok()) return found.error();
  TORCHETTE_TRY(allocate_outputs(**found));
  Method& method = *(*found)->method;
  std::vector<const void*>& borrowed = (*found)->borrowed;
  for (size_t i = 0; i < inputs.size() || i < borrowed.size(); ++i) {
    if (i < inputs.size() && !inputs[i].is_none()) {
      TORCHETTE_TRY(set_input_of(method, inputs[i], i));
      const void* const memory = memory_of(inputs[i]);
      borrowed[i] = memory_of(method.get_input(i)) == memory ? memory : nullptr;
    } else if (i < borrowed.size() && borrowed[i] != nullptr) {
      TORCHETTE_CHECK(memory_of(method.get_input(i)) != borrowed[i], InvalidArgument,
                      "input %zu of method %s is missing: pass it, or keep it for all calls with set_input()",
                      i, method_name.c_str());
      borrowed[i] = nullptr;  // it was replaced through method()
    }
  }
  MethodThreads* const threads = (*found)->threads.get();
  TORCHETTE_TRY(SourceLines::explain(method, threads != nullptr ? threads->execute() : method.execute()));
  std::vector<Value> outputs(method.outputs_size());
  TORCHETTE_TRY(method.get_outputs(outputs.data(), outputs.size()));
  return outputs;
}

Result<Value> Module::get(const std::string& method_name, const std::vector<Value>& inputs) {
  Result<std::vector<Value>> outputs = execute(method_name, inputs);
  if (!outputs.ok()) return outputs.error();
  TORCHETTE_CHECK(!outputs->empty(), InvalidArgument, "method %s has no outputs", method_name.c_str());
  return outputs->front();
}

Result<std::vector<Value>> Module::get_outputs(const std::string& method_name) {
  const Result<Method*> found = method(method_name);
  if (!found.ok()) return found.error();
  std::vector<Value> outputs((*found)->outputs_size());
  TORCHETTE_TRY((*found)->get_outputs(outputs.data(), outputs.size()));
  return outputs;
}

Result<Value> Module::get_output(const std::string& method_name, size_t index) {
  const Result<Method*> found = method(method_name);
  if (!found.ok()) return found.error();
  TORCHETTE_CHECK(index < (*found)->outputs_size(), InvalidArgument,
                  "output index %zu is out of range: method %s has %zu outputs", index, method_name.c_str(),
                  (*found)->outputs_size());
  return (*found)->get_output(index);
}

}  // namespace torchette::extension
