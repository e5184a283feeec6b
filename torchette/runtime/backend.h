// SPDX-License-Identifier: BSD-3-Clause
// What a backend is to the runtime: an object that turns the bytes of a delegate into a handle and executes
// it.
#pragma once

#include "torchette/runtime/data_map.h"
#include "torchette/runtime/kernel.h"
#include "torchette/runtime/loader.h"
#include "torchette/runtime/program.h"

namespace torchette {

/// What the name of a method's other plan ends with, the one without backends.
inline constexpr char kPortable[] = "@portable";

/// An option of the compiler for the backend, as it stands in the file.
struct CompileSpec {
  const char* key;
  Span<const uint8_t> value;
};

/// Whatever a backend makes of its blob; the runtime only keeps it.
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
  /// Memory that lives as long as the method.
  MemoryAllocator* get_runtime_allocator() const { return allocator_; }
  const char* get_method_name() const { return method_name_; }
  /// Null where the backend is used without one.
  const Program* get_program() const { return program_; }
  /// What delegates of the program share by name, in its file or in data files; valid as long as this. Null
  /// where the backend is used without a program.
  const NamedDataMap* get_named_data_map() const;
  /// The same for all delegates of a program, which get the same bytes by name; null where they may not.
  const void* get_named_data_source() const { return external_ == nullptr ? program_ : nullptr; }

 private:
  MemoryAllocator* allocator_;
  const char* method_name_;
  const Program* program_;
  const NamedDataMap* external_;
  // the map, made when it is asked for: firmware whose backends do not ask links none of it
  alignas(void*) mutable unsigned char data_[3 * sizeof(void*)];
};

/// A backend asks for scratch memory, and for the tracer, as a kernel does.
class BackendExecutionContext : public Context {
 public:
  explicit BackendExecutionContext(MemoryAllocator* temp_allocator = nullptr, const Traced& traced = Traced(),
                                   const Method* method = nullptr, Threads* threads = nullptr,
                                   const MemoryManager* memory = nullptr)
      : Context(temp_allocator, traced, threads, memory), method_(method) {}
  /// Scratch memory that is valid until execute() returns; null when there is not enough.
  void* allocate(size_t size, size_t alignment = MemoryAllocator::kDefaultAlignment) {
    return allocate_temp(size, alignment);
  }
  /// Where it comes from, perhaps null; likewise.
  MemoryAllocator* get_temp_allocator() {
    if (temp_allocator_ != nullptr) release_ = reset_allocator;
    return temp_allocator_;
  }
  /// Of the execution; null: the thread that calls is the only one.
  Threads* threads() const { return threads_; }
  /// Null where the backend is used without a method.
  const char* get_method_name() const;

 private:
  const Method* method_;
};

struct BackendOption;        // torchette/runtime/backend_options.h
class BackendOptionContext;  // likewise

class BackendInterface {
 public:
  /// Whether this device can run it at all.
  virtual bool is_available() const = 0;
  /// Whether init() may be called: of a backend that can run its payloads in another way, too, where it is
  /// not available.
  virtual bool can_load() const { return is_available(); }
  /// `processed` stays valid until destroy(), unless the backend frees it earlier.
  virtual Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                                       Span<const CompileSpec> compile_specs) const = 0;
  /// `arguments` are the delegate's inputs, then its outputs.
  virtual Error execute(BackendExecutionContext& context, DelegateHandle* handle,
                        Span<Value*> arguments) const = 0;
  /// Starts what execute() does and returns Ok; `done(argument, error)` is then called once, from any thread,
  /// perhaps before this returns, and scratch memory stays until then. NotSupported, the default: nothing was
  /// started, and execute() is called. Asked by ParallelMethod alone, whose thread is free meanwhile.
  virtual Error execute_async(BackendExecutionContext& context, DelegateHandle* handle,
                              Span<Value*> arguments, void (*done)(void* argument, Error error),
                              void* argument) const {
    (void)context, (void)handle, (void)arguments, (void)done, (void)argument;
    return Error::NotSupported;
  }
  virtual void destroy(DelegateHandle* handle) const { (void)handle; }
  /// Gives what it keeps from call to call, if anything, the values that it had after init():
  /// Method::reset().
  virtual Error reset(DelegateHandle* handle) const {
    (void)handle;
    return Error::Ok;
  }
  /// How many of execute()'s arguments it only reads: the first ones. A backend that does not say is never
  /// run at the same time as anything that uses one of its arguments.
  virtual size_t num_inputs(DelegateHandle* handle) const {
    (void)handle;
    return 0;
  }
  /// Settings by name; a backend without any refuses all.
  virtual Error set_option(BackendOptionContext& context, const Span<BackendOption>& options) {
    (void)context;
    return options.empty() ? Error::Ok : Error::NotSupported;
  }
  /// Fills in the values of the keys that are given.
  virtual Error get_option(BackendOptionContext& context, Span<BackendOption>& options) {
    (void)context;
    return options.empty() ? Error::Ok : Error::NotSupported;
  }

 protected:
  ~BackendInterface() = default;
};

/// A backend under its name. The caller owns the node and keeps it for as long as the runtime is used.
struct Backend {
  const char* name;
  BackendInterface* backend;
  Backend* next = nullptr;
};

/// Not to be called while programs are loading in other threads. Errors: RegistrationAlreadyRegistered,
/// InvalidArgument (no name or no backend).
Error register_backend(Backend& backend);
/// Null where there is none of that name.
BackendInterface* get_backend_class(const char* name);
size_t get_num_registered_backends();
/// Error: InvalidArgument.
Result<const char*> get_backend_name(size_t index);

}  // namespace torchette
