// SPDX-License-Identifier: BSD-3-Clause
// The backend interface: a backend turns the payload of a delegate into a handle and executes the handle.
#pragma once

#include "torchette/runtime/data_map.h"
#include "torchette/runtime/kernel.h"
#include "torchette/runtime/loader.h"
#include "torchette/runtime/program.h"

namespace torchette {

/// Suffix of the name of a method's second plan, which uses no backends.
inline constexpr char kPortable[] = "@portable";

/// A compile option of the backend, as stored in the file.
struct CompileSpec {
  const char* key;
  Span<const uint8_t> value;
};

/// The backend's representation of a payload. The runtime stores the pointer and never reads through it.
using DelegateHandle = void;

class BackendInitContext : public Traced {
 public:
  BackendInitContext(MemoryAllocator* allocator, const char* method_name, const Program* program = nullptr,
                     const NamedDataMap* external = nullptr, const Traced& traced = Traced())
      : Traced(traced),
        allocator_(allocator),
        method_name_(method_name),
        program_(program),
        external_(external) {}
  /// Memory with the lifetime of the method.
  MemoryAllocator* get_runtime_allocator() const { return allocator_; }
  const char* get_method_name() const { return method_name_; }
  /// Null if the backend is used without a program.
  const Program* get_program() const { return program_; }
  /// Named data that the delegates of the program share, from the program's file and from data files. Valid
  /// as long as this context. Null if the backend is used without a program.
  const NamedDataMap* get_named_data_map() const;
  /// An identity of the named data: delegates with the same source get the same bytes for a name. Null if the
  /// bytes may differ.
  const void* get_named_data_source() const { return external_ == nullptr ? program_ : nullptr; }
  /// Bytes that the delegates of the method have planned so far.
  size_t planned_bytes() const { return planned_bytes_; }
  /// Adds the bytes that this delegate plans.
  void add_planned_bytes(size_t size) { planned_bytes_ += size; }

 private:
  MemoryAllocator* allocator_;
  const char* method_name_;
  const Program* program_;
  const NamedDataMap* external_;
  size_t planned_bytes_ = 0;
  // The map, created on first use: firmware does not link it unless a backend calls get_named_data_map().
  alignas(void*) mutable unsigned char data_[3 * sizeof(void*)];
};

/// Context of one execute() call. A backend gets scratch memory and the tracer in the same way as a kernel.
class BackendExecutionContext : public Context {
 public:
  explicit BackendExecutionContext(MemoryAllocator* temp_allocator = nullptr, const Traced& traced = Traced(),
                                   const Method* method = nullptr, Threads* threads = nullptr,
                                   const MemoryManager* memory = nullptr)
      : Context(temp_allocator, traced, threads, memory), method_(method) {}
  /// Scratch memory, valid until execute() returns. Null if there is not enough.
  void* allocate(size_t size, size_t alignment = MemoryAllocator::kDefaultAlignment) {
    return allocate_temp(size, alignment);
  }
  /// The allocator of allocate(); null if the method has none. Its memory is also valid until execute()
  /// returns.
  MemoryAllocator* get_temp_allocator() {
    if (temp_allocator_ != nullptr) release_ = reset_allocator;
    return temp_allocator_;
  }
  /// The threads of the execution. Null: only the calling thread.
  Threads* threads() const { return threads_; }
  /// Null if the backend is used without a method.
  const char* get_method_name() const;

 private:
  const Method* method_;
};

struct BackendOption;        // torchette/runtime/backend_options.h
class BackendOptionContext;  // torchette/runtime/backend_options.h

class BackendInterface {
 public:
  /// Whether this device can execute the backend's payloads.
  virtual bool is_available() const = 0;
  /// Whether init() may be called. Also true for an unavailable backend that can execute its payloads in
  /// another way.
  virtual bool can_load() const { return is_available(); }
  /// `processed` stays valid until destroy() unless the backend frees it earlier.
  virtual Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                                       Span<const CompileSpec> compile_specs) const = 0;
  /// `arguments` are the delegate's inputs, followed by its outputs.
  virtual Error execute(BackendExecutionContext& context, DelegateHandle* handle,
                        Span<Value*> arguments) const = 0;
  /// Starts execute() asynchronously and returns Ok. The backend then calls `done(argument, error)` once,
  /// from any thread, possibly before this function returns. Scratch memory stays valid until that call. The
  /// default returns NotSupported: nothing was started, and the caller uses execute(). Only ParallelMethod
  /// calls this.
  virtual Error execute_async(BackendExecutionContext& context, DelegateHandle* handle,
                              Span<Value*> arguments, void (*done)(void* argument, Error error),
                              void* argument) const {
    (void)context, (void)handle, (void)arguments, (void)done, (void)argument;
    return Error::NotSupported;
  }
  virtual void destroy(DelegateHandle* handle) const { (void)handle; }
  /// Resets state that the backend keeps between calls to its values after init(). Called by Method::reset().
  virtual Error reset(DelegateHandle* handle) const {
    (void)handle;
    return Error::Ok;
  }
  /// The number of execute()'s arguments that the backend only reads; these come first. With the default, 0,
  /// the delegate never runs concurrently with an instruction that uses one of its arguments.
  virtual size_t num_inputs(DelegateHandle* handle) const {
    (void)handle;
    return 0;
  }
  /// Sets options by key. A backend without options refuses all keys.
  virtual Error set_option(BackendOptionContext& context, const Span<BackendOption>& options) {
    (void)context;
    return options.empty() ? Error::Ok : Error::NotSupported;
  }
  /// Stores the values of the given keys in `options`.
  virtual Error get_option(BackendOptionContext& context, Span<BackendOption>& options) {
    (void)context;
    return options.empty() ? Error::Ok : Error::NotSupported;
  }

 protected:
  ~BackendInterface() = default;
};

/// A named backend. The caller owns the node and keeps it for as long as the runtime is used.
struct Backend {
  const char* name;
  BackendInterface* backend;
  Backend* next = nullptr;
};

/// Must not be called while another thread loads a program. Errors: RegistrationAlreadyRegistered,
/// InvalidArgument (no name or no backend).
Error register_backend(Backend& backend);
/// Null if no backend of that name is registered.
BackendInterface* get_backend_class(const char* name);
size_t get_num_registered_backends();
/// Error: InvalidArgument (no such index).
Result<const char*> get_backend_name(size_t index);

}  // namespace torchette
