// SPDX-License-Identifier: BSD-3-Clause
// Module: a .pte file as an object with methods. It finds the memory that they need, loads them when they are
// first called, and keeps them. For machines with a heap.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "torchette/extension/flat_tensor.h"
#include "torchette/extension/shared_arenas.h"
#include "torchette/extension/tensor_ptr.h"
#include "torchette/runtime/method.h"

namespace torchette::extension {

/// The memory of a loaded method, to find the sizes that a device needs.
struct MethodMemory {
  /// The planned buffers.
  Span<const Span<uint8_t>> planned;
  /// Bytes that the method and its backends use of the method allocator, for an allocator that starts at a
  /// multiple of any alignment.
  size_t method_bytes;
  /// The peak of the bytes that tensors of dynamic size have used at once.
  size_t dynamic_peak;
};

/// Not for use by two threads at once. Values that it returns are tensors in its own memory, valid until the
/// method's next execution.
class Module {
 public:
  /// The suffix of the name of a method's second plan, which needs no backend.
  static constexpr auto& kPortable = torchette::kPortable;

  /// The modes with a suffix are those of MmapDataLoader::MlockConfig.
  enum class LoadMode { File, Mmap, MmapUseMlock, MmapUseMlockIgnoreErrors, MmapUseMadvise };

  /// Nothing is opened before it is needed. Allocators that are not given grow on the heap. `event_tracer` is
  /// told what loading and executing methods do. With
  /// `share_memory_arenas` all methods plan their tensors into the same memory, so that only one is in use at
  /// a time: a method's outputs and its mutable buffers last until another one runs. Mutable buffers that the
  /// compiler planned for several methods (MemoryPlanningPass(share_mutable_buffers=True)) last.
  explicit Module(std::string file_path, LoadMode load_mode = LoadMode::File,
                  std::shared_ptr<EventTracer> event_tracer = nullptr,
                  std::shared_ptr<MemoryAllocator> memory_allocator = nullptr,
                  std::shared_ptr<MemoryAllocator> temp_allocator = nullptr,
                  bool share_memory_arenas = false);
  /// With .ptd files that have the weights outside the program.
  Module(std::string file_path, std::vector<std::string> data_files, LoadMode load_mode = LoadMode::File,
         std::shared_ptr<EventTracer> event_tracer = nullptr,
         std::shared_ptr<MemoryAllocator> memory_allocator = nullptr,
         std::shared_ptr<MemoryAllocator> temp_allocator = nullptr, bool share_memory_arenas = false);
  /// The same with one .ptd file.
  Module(std::string file_path, std::string data_file, LoadMode load_mode = LoadMode::File,
         std::shared_ptr<EventTracer> event_tracer = nullptr,
         std::shared_ptr<MemoryAllocator> memory_allocator = nullptr,
         std::shared_ptr<MemoryAllocator> temp_allocator = nullptr, bool share_memory_arenas = false)
      : Module(std::move(file_path), std::vector<std::string>{std::move(data_file)}, load_mode,
               std::move(event_tracer), std::move(memory_allocator), std::move(temp_allocator),
               share_memory_arenas) {}
  explicit Module(std::shared_ptr<DataLoader> data_loader,
                  std::shared_ptr<MemoryAllocator> memory_allocator = nullptr,
                  std::shared_ptr<MemoryAllocator> temp_allocator = nullptr,
                  std::shared_ptr<EventTracer> event_tracer = nullptr, bool share_memory_arenas = false);
  /// With a loader of a .ptd file.
  Module(std::shared_ptr<DataLoader> data_loader, std::shared_ptr<MemoryAllocator> memory_allocator,
         std::shared_ptr<MemoryAllocator> temp_allocator, std::shared_ptr<EventTracer> event_tracer,
         std::shared_ptr<DataLoader> data_map_loader, bool share_memory_arenas = false);
  /// Several modules may share a program; its loader must live as long as it.
  explicit Module(std::shared_ptr<Program> program,
                  std::shared_ptr<MemoryAllocator> memory_allocator = nullptr,
                  std::shared_ptr<MemoryAllocator> temp_allocator = nullptr,
                  std::shared_ptr<EventTracer> event_tracer = nullptr, bool share_memory_arenas = false);
  /// Another one on the program and the data files of `parent`, which is loaded and stays as long as it.
  explicit Module(const std::shared_ptr<Module>& parent);
  /// The same with these data instead of its parent's, which they may hand on.
  Module(const std::shared_ptr<Module>& parent, std::shared_ptr<const NamedDataMap> data);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module();

  /// Opens the program and its data files; all other functions do so when needed. Errors: those of the
  /// loaders, of Program::load() and of FlatTensorDataMap::load().
  Error load(Program::Verification verification = Program::Verification::Minimal);
  /// More weights outside of the program; of equal names the first count. Errors: InvalidState (a method is
  /// loaded), those of load().
  Error add_data(std::shared_ptr<DataLoader> loader);
  Error add_data_file(const std::string& path, LoadMode load_mode = LoadMode::File);
  /// Holds the whole file and its data files against the program's receipt; opens them if they were not.
  /// Errors: those of load() and verify_integrity(); NotSupported (the program came without its loader).
  Error verify_integrity();
  /// From now on methods of both modules, which have the same program, use the same memory for state that the
  /// program's methods share; the other memory stays separate. `other` may be *this. Errors: those of load(),
  /// InvalidState (a method of this module is loaded), InvalidArgument (two programs),
  /// MemoryAllocationFailed.
  Error share_state(Module& other);
  /// Whether share_state() or `share_memory_arenas` has found state that methods share.
  bool shares_state() const { return shared_arenas_ != nullptr && shared_arenas_->has_state(); }
  bool is_loaded() const { return program_ != nullptr; }
  std::shared_ptr<Program> program() const { return program_; }
  /// Of the program's file; null where the module was given a program.
  const DataLoader* data_loader() const { return data_loader_.get(); }
  /// Weights outside of the program; null where there are none.
  const NamedDataMap* data_map() const { return data_map_.get(); }
  EventTracer* event_tracer() const { return event_tracer_.get(); }

  /// Second plans, which need no backend, are not counted and have no names here.
  Result<size_t> num_methods();
  Result<std::unordered_set<std::string>> method_names();
  /// Whether a method of a program is another one's second plan.
  static bool is_fallback(const char* method_name);
  Result<MethodMeta> method_meta(const std::string& method_name);

  /// How many threads methods that are loaded from now on may use, for chains that may run at the same time
  /// and in backends; as many as set_num_threads() of torchette/runtime/threads.h says (the
  /// physical cores at first) where this is not called. Error: InvalidArgument (0).
  Error set_num_threads(size_t count);

  /// `planned_memory` is used instead of memory of its own. Where a backend is missing or refuses and the
  /// program was compiled with a portable fallback, that is loaded, in memory of its own, and one log line
  /// says so. `event_tracer`, which must outlive the method, hears of it instead of the module's. Errors:
  /// those of Program::load_method(), of the first plan where there are two.
  Error load_method(const std::string& method_name, HierarchicalAllocator* planned_memory = nullptr,
                    EventTracer* event_tracer = nullptr);
  Error load_forward(HierarchicalAllocator* planned_memory = nullptr, EventTracer* event_tracer = nullptr) {
    return load_method("forward", planned_memory, event_tracer);
  }
  /// Gives the mutable buffers of a method, shared ones included, the values that they had after load.
  /// Errors: those of Method::reset().
  Error reset(const std::string& method_name);
  /// Frees the method's memory, which is not shared. Returns whether it was loaded.
  bool unload_method(const std::string& method_name);
  bool unload_forward() { return unload_method("forward"); }
  bool is_method_loaded(const std::string& method_name) const { return methods_.count(method_name) != 0; }
  /// The method itself, loaded; valid until it is unloaded. Outputs that the method does not plan have
  /// memory, which the first call of this or of execute() allocates. Error: MemoryAllocationFailed.
  Result<Method*> method(const std::string& method_name);
  /// The same, for a caller that sets the memory of these outputs itself or does not execute the method.
  Result<Method*> method_without_outputs(const std::string& method_name);
  /// The memory of the method, loaded; valid until it is unloaded.
  Result<MethodMemory> method_memory(const std::string& method_name);

  /// Runs a method on these inputs; those that are missing or None are what set_input() gave. Tensors are
  /// copied, or used in place where the method plans no memory for them: they must stay until it has run.
  /// Errors: those of Method::set_input() and Method::execute().
  Result<std::vector<Value>> execute(const std::string& method_name, const std::vector<Value>& inputs);
  Result<std::vector<Value>> execute(const std::string& method_name, const Value& input) {
    return execute(method_name, std::vector<Value>{input});
  }
  Result<std::vector<Value>> execute(const std::string& method_name) {
    return execute(method_name, std::vector<Value>{});
  }
  Result<std::vector<Value>> forward(const std::vector<Value>& inputs) { return execute("forward", inputs); }
  Result<std::vector<Value>> forward(const Value& input) { return execute("forward", input); }
  Result<std::vector<Value>> forward() { return execute("forward"); }
  /// Only the first output. Error: InvalidArgument (the method has none).
  Result<Value> get(const std::string& method_name, const std::vector<Value>& inputs = {});
  Result<Value> get(const std::string& method_name, const Value& input) {
    return get(method_name, std::vector<Value>{input});
  }

  Error set_input(const std::string& method_name, const Value& value, size_t index);
  Error set_input(const Value& value, size_t index) { return set_input("forward", value, index); }
  Error set_inputs(const std::string& method_name, const std::vector<Value>& values);
  Error set_inputs(const std::vector<Value>& values) { return set_inputs("forward", values); }
  /// Makes the output write into the tensor's memory. Errors: those of Method::set_output_data_ptr().
  Error set_output(const std::string& method_name, const Value& value, size_t index = 0);
  Error set_output(const Value& value, size_t index = 0) { return set_output("forward", value, index); }
  Error set_outputs(const std::string& method_name, const std::vector<Value>& values);
  Error set_outputs(const std::vector<Value>& values) { return set_outputs("forward", values); }
  Result<std::vector<Value>> get_outputs(const std::string& method_name = "forward");
  Result<Value> get_output(const std::string& method_name, size_t index = 0);
  Result<Value> get_output(size_t index = 0) { return get_output("forward", index); }

 private:
  struct Loaded;
  using Arenas = std::vector<Span<uint8_t>>;

  static Result<std::shared_ptr<DataLoader>> open_file(const std::string& path, LoadMode load_mode);
  Error open_data_files();
  Result<Loaded*> loaded(const std::string& method_name);
  /// Gives memory to each output that the method does not plan and that has none. Not at load: a damaged file
  /// may claim a large output.
  static Error allocate_outputs(Loaded& loaded);
  static Error plan(const MethodMeta& meta, MemoryAllocator& memory, const SharedArenas* shared,
                    Arenas* arenas);
  Error load_plan(const char* name, HierarchicalAllocator* planned_memory, EventTracer* event_tracer,
                  std::unique_ptr<Loaded>* out);
  Error make_shared_arenas(SharedArenas::Kind kind);

  std::string file_path_;
  LoadMode load_mode_ = LoadMode::File;
  std::vector<std::string> data_files_;
  std::shared_ptr<DataLoader> data_loader_;
  std::vector<std::shared_ptr<DataLoader>> data_file_loaders_;
  std::vector<FlatTensorDataMap> data_maps_;
  std::shared_ptr<const NamedDataMap> data_map_;  // null without data files; a parent's keeps the parent
  std::shared_ptr<Program> program_;
  std::shared_ptr<EventTracer> event_tracer_;
  std::shared_ptr<MemoryAllocator> memory_allocator_;
  std::shared_ptr<MemoryAllocator> temp_allocator_;
  bool share_memory_arenas_;
  size_t num_threads_ = 0;  // 0: as many as the runtime is told
  // Null before share_state(), and before the first method is loaded if `share_memory_arenas_` is set.
  std::shared_ptr<SharedArenas> shared_arenas_;
  std::unordered_map<std::string, std::unique_ptr<Loaded>> methods_;
};

}  // namespace torchette::extension
