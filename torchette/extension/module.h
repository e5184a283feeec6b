// SPDX-License-Identifier: BSD-3-Clause
// Module: a .pte file as an object with methods. It allocates the memory of a method, loads the method at its
// first call and keeps it loaded. Requires a heap.
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

/// The memory use of a loaded method, to determine the buffer sizes for a device.
struct MethodMemory {
  /// The planned buffers.
  Span<const Span<uint8_t>> planned;
  /// Bytes of the method allocator that the method and its backends use, if the allocator's start satisfies
  /// every alignment.
  size_t method_bytes;
  /// Peak bytes that tensors of dynamic size have used at the same time.
  size_t dynamic_peak;
};

/// Only one thread at a time may use a module. The tensors that it returns are in the module's memory and
/// valid until the method's next execution.
class Module {
 public:
  /// The name suffix of a method's portable fallback, which needs no backend.
  static constexpr auto& kPortable = torchette::kPortable;

  /// File copies the file into memory. Mmap maps it: pages are read when they are first used, and the file
  /// must not change while the module exists. The modes with a suffix are those of
  /// MmapDataLoader::MlockConfig.
  enum class LoadMode { File, Mmap, MmapUseMlock, MmapUseMlockIgnoreErrors, MmapUseMadvise };

  /// Opens the file when it is first needed. Null allocators are replaced by allocators that grow on the
  /// heap. `event_tracer` receives the events of loading and executing methods. If `share_memory_arenas` is
  /// true, all methods plan their tensors into the same memory, so only one method is in use at a time: its
  /// outputs and mutable buffers are valid until another method runs. Mutable buffers that the compiler
  /// planned for several methods (MemoryPlanningPass(share_mutable_buffers=True)) keep their values.
  explicit Module(std::string file_path, LoadMode load_mode = LoadMode::Mmap,
                  std::shared_ptr<EventTracer> event_tracer = nullptr,
                  std::shared_ptr<MemoryAllocator> memory_allocator = nullptr,
                  std::shared_ptr<MemoryAllocator> temp_allocator = nullptr,
                  bool share_memory_arenas = false);
  /// Opens a program with .ptd files that contain weights outside the program.
  Module(std::string file_path, std::vector<std::string> data_files, LoadMode load_mode = LoadMode::Mmap,
         std::shared_ptr<EventTracer> event_tracer = nullptr,
         std::shared_ptr<MemoryAllocator> memory_allocator = nullptr,
         std::shared_ptr<MemoryAllocator> temp_allocator = nullptr, bool share_memory_arenas = false);
  /// Opens a program with one .ptd file.
  Module(std::string file_path, std::string data_file, LoadMode load_mode = LoadMode::Mmap,
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
  /// Opens a program with a loader of a .ptd file.
  Module(std::shared_ptr<DataLoader> data_loader, std::shared_ptr<MemoryAllocator> memory_allocator,
         std::shared_ptr<MemoryAllocator> temp_allocator, std::shared_ptr<EventTracer> event_tracer,
         std::shared_ptr<DataLoader> data_map_loader, bool share_memory_arenas = false);
  /// Uses an open program, which several modules may share. The program's loader must outlive the program.
  explicit Module(std::shared_ptr<Program> program,
                  std::shared_ptr<MemoryAllocator> memory_allocator = nullptr,
                  std::shared_ptr<MemoryAllocator> temp_allocator = nullptr,
                  std::shared_ptr<EventTracer> event_tracer = nullptr, bool share_memory_arenas = false);
  /// Uses the program and the data files of `parent`, which must be loaded. The module keeps it alive.
  explicit Module(const std::shared_ptr<Module>& parent);
  /// Uses the program of `parent` with `data` instead of the parent's data files. `data` may forward to them.
  Module(const std::shared_ptr<Module>& parent, std::shared_ptr<const NamedDataMap> data);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  ~Module();

  /// Opens the program and its data files. All other functions do so if they are not open. Errors: those of
  /// the loaders, of Program::load() and of FlatTensorDataMap::load().
  Error load(Program::Verification verification = Program::Verification::Minimal);
  /// Adds weights that are stored outside the program. If two files contain the same name, the first file is
  /// used. Errors: InvalidState (a method is loaded), those of load().
  Error add_data(std::shared_ptr<DataLoader> loader);
  Error add_data_file(const std::string& path, LoadMode load_mode = LoadMode::Mmap);
  /// Compares the file and its data files with the checksums in the program's receipt. Opens them if they are
  /// not open. Errors: those of load() and verify_integrity(), NotSupported (the module has no loader of the
  /// program).
  Error verify_integrity();
  /// Makes the methods of both modules use the same memory for state that the program's methods share. Other
  /// memory remains separate. Both modules must have the same program. `other` may be *this. Errors: those of
  /// load(), InvalidState (a method of this module is loaded), InvalidArgument (the programs differ),
  /// MemoryAllocationFailed.
  Error share_state(Module& other);
  /// Returns whether share_state() or `share_memory_arenas` has found state that methods share.
  bool shares_state() const { return shared_arenas_ != nullptr && shared_arenas_->has_state(); }
  bool is_loaded() const { return program_ != nullptr; }
  std::shared_ptr<Program> program() const { return program_; }
  /// Returns the loader of the program's file, or null if the module was created from a Program.
  const DataLoader* data_loader() const { return data_loader_.get(); }
  /// Returns the weights outside the program, or null if there are none.
  const NamedDataMap* data_map() const { return data_map_.get(); }
  EventTracer* event_tracer() const { return event_tracer_.get(); }

  /// num_methods() and method_names() exclude portable fallbacks.
  Result<size_t> num_methods();
  Result<std::unordered_set<std::string>> method_names();
  /// Returns whether a method of a program is the portable fallback of another method.
  static bool is_fallback(const char* method_name);
  Result<MethodMeta> method_meta(const std::string& method_name);

  /// Sets the number of threads that methods loaded after the call may use, for chains that may run in
  /// parallel and in backends. The default is that of set_num_threads() in torchette/runtime/threads.h,
  /// initially the number of physical cores. Error: InvalidArgument (`count` is 0).
  Error set_num_threads(size_t count);

  /// Loads a method. `planned_memory` replaces the planned memory that the module would allocate.
  /// If a backend is missing or rejects the method and the program has a portable fallback, loads the
  /// fallback into separate memory and writes one log line. `event_tracer`, which must outlive the method,
  /// replaces the tracer of the module. Errors: those of Program::load_method() for the method itself, not
  /// its fallback.
  Error load_method(const std::string& method_name, HierarchicalAllocator* planned_memory = nullptr,
                    EventTracer* event_tracer = nullptr);
  Error load_forward(HierarchicalAllocator* planned_memory = nullptr, EventTracer* event_tracer = nullptr) {
    return load_method("forward", planned_memory, event_tracer);
  }
  /// Resets the mutable buffers of a method, including shared ones, to the values that they had after load.
  /// Errors: those of Method::reset().
  Error reset(const std::string& method_name);
  /// Frees the method's memory except shared memory. Returns whether the method was loaded.
  bool unload_method(const std::string& method_name);
  bool unload_forward() { return unload_method("forward"); }
  bool is_method_loaded(const std::string& method_name) const { return methods_.count(method_name) != 0; }
  /// Loads a method if needed and returns it, valid until it is unloaded. The first call of this function or
  /// of execute() allocates memory for outputs without planned memory. Errors: those of load_method(),
  /// MemoryAllocationFailed.
  Result<Method*> method(const std::string& method_name);
  /// Same as method(), but does not allocate these outputs, for a caller that sets their memory or does not
  /// execute the method.
  Result<Method*> method_without_outputs(const std::string& method_name);
  /// Loads a method if needed and returns its memory use, valid until it is unloaded.
  Result<MethodMemory> method_memory(const std::string& method_name);

  /// Runs a method. An input that is missing or None keeps the value of set_input(). A tensor is copied, or
  /// used in place if the method plans no memory for it; it must stay valid until the method has run. Errors:
  /// those of Method::set_input() and Method::execute(), InvalidArgument (an input that an earlier call used
  /// in place is missing).
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
  /// Runs a method and returns the first output. Errors: those of execute(), InvalidArgument (the method has
  /// no outputs).
  Result<Value> get(const std::string& method_name, const std::vector<Value>& inputs = {});
  Result<Value> get(const std::string& method_name, const Value& input) {
    return get(method_name, std::vector<Value>{input});
  }

  /// Sets an input, or all inputs, for the next executions. Errors: those of load_method() and
  /// Method::set_input().
  Error set_input(const std::string& method_name, const Value& value, size_t index);
  Error set_input(const Value& value, size_t index) { return set_input("forward", value, index); }
  Error set_inputs(const std::string& method_name, const std::vector<Value>& values);
  Error set_inputs(const std::vector<Value>& values) { return set_inputs("forward", values); }
  /// Makes the method write an output to the memory of the tensor `value`. Errors: those of
  /// Method::set_output_data_ptr().
  Error set_output(const std::string& method_name, const Value& value, size_t index = 0);
  Error set_output(const Value& value, size_t index = 0) { return set_output("forward", value, index); }
  Error set_outputs(const std::string& method_name, const std::vector<Value>& values);
  Error set_outputs(const std::vector<Value>& values) { return set_outputs("forward", values); }
  /// Returns the outputs of the last execution, or one of them. Errors: those of load_method(),
  /// InvalidArgument (`index` is out of range).
  Result<std::vector<Value>> get_outputs(const std::string& method_name = "forward");
  Result<Value> get_output(const std::string& method_name, size_t index = 0);
  Result<Value> get_output(size_t index = 0) { return get_output("forward", index); }

 private:
  struct LoadedMethod;

  static Result<std::shared_ptr<DataLoader>> open_file(const std::string& path, LoadMode load_mode);
  Error open_data_files();
  Result<LoadedMethod*> load_if_needed(const std::string& method_name);
  /// Allocates memory for each output without memory that the method does not plan. Load does not allocate
  /// it, because a damaged file may contain a large output.
  static Error allocate_outputs(LoadedMethod& loaded);
  Error plan(const MethodMeta& meta, SharedArenas* shared, ArenaAllocator* planned);
  Error load_plan(const char* name, HierarchicalAllocator* planned_memory, EventTracer* event_tracer,
                  std::unique_ptr<LoadedMethod>* out);
  Error make_shared_arenas(SharedArenas::Kind kind);

  std::string file_path_;
  LoadMode load_mode_ = LoadMode::File;
  std::vector<std::string> data_files_;
  std::shared_ptr<DataLoader> data_loader_;
  std::vector<std::shared_ptr<DataLoader>> data_file_loaders_;
  std::vector<FlatTensorDataMap> data_maps_;
  std::shared_ptr<const NamedDataMap> data_map_;  // null without data files; keeps a parent module alive
  std::shared_ptr<Program> program_;
  std::shared_ptr<EventTracer> event_tracer_;
  std::shared_ptr<MemoryAllocator> memory_allocator_;
  std::shared_ptr<MemoryAllocator> temp_allocator_;
  bool share_memory_arenas_;
  size_t num_threads_ = 0;  // 0: the runtime's setting
  // Null before share_state(), and before the first method is loaded if `share_memory_arenas_` is set.
  std::shared_ptr<SharedArenas> shared_arenas_;
  std::unordered_map<std::string, std::unique_ptr<LoadedMethod>> methods_;
};

}  // namespace torchette::extension
