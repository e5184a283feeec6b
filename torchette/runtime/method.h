// SPDX-License-Identifier: BSD-3-Clause
// Method: one method of a program, loaded into the caller's memory. load() finds all errors of the file;
// execute() reports only errors that depend on the data.
#pragma once

#include <atomic>

#include "torchette/runtime/backend.h"
#include "torchette/runtime/kernel.h"
#include "torchette/runtime/memory.h"
#include "torchette/runtime/method_meta.h"
#include "torchette/runtime/program.h"

namespace torchette {

/// The members of a loaded method. Trivially copyable, so a move is one copy.
class MethodParts : protected Traced {
  friend class extension::ParallelMethod;
  friend class extension::SourceLines;
  friend class pybindings::LoadCheck;

 protected:
  MethodParts(const Program* program, size_t plan, MemoryManager* memory, const NamedDataMap* external);

  /// Properties of a value, determined by load.
  enum Flag : uint8_t {
    kInput = 1,
    kOutput = 2,
    kUsed = 4,           // an instruction or a list reads it
    kWritten = 8,        // an instruction writes it
    kConstant = 16,      // a tensor with its data in the file
    kCallerMemory = 32,  // an input or output tensor with its data in the caller's memory
    kUnbacked = 64,      // an internal tensor that becomes a view during execution
    kInitialised = 128,  // a planned tensor with stored initial values
  };
  /// An instruction other than a plain kernel call.
  struct Control {
    enum class Kind : uint8_t { CheckedKernel, Move, JumpFalse, Free, Delegate };
    Kind kind;
    bool defines_last;  // CheckedKernel: the kernel sets the data of the last argument, a view
    int32_t a, b;       // Move: from, to. JumpFalse: condition, next instruction. Delegate: index.
    OpFunction function;
    Span<const int32_t> arguments;
    Span<Value*> delegate_arguments;
  };
  struct Instruction {
    OpFunction function;   // null: `argument` is a Control
    const void* argument;  // a Control, or the indices of the values, in place in the file
  };
  struct Input {
    const SizesType* bound;  // in place in the file
    uint8_t step;            // sizes in `bound` per dimension; the last is the maximum
    bool has_min;            // whether the first is the minimum
    bool set;
  };
  struct Delegate {
    BackendInterface* backend = nullptr;  // null until init() has succeeded
    DelegateHandle* handle = nullptr;
    FreeableBuffer processed;
  };

  const Program* program_;
  size_t plan_;
  MemoryManager* memory_;
  const NamedDataMap* external_;  // may be null
  Span<Value> values_;
  uint8_t* flags_ = nullptr;  // Flags of each value
  Span<Instruction> instructions_;
  Span<Delegate> delegates_;
  Span<const int32_t> inputs_;  // indices of values, in place in the file
  Span<const int32_t> outputs_;
  Input* input_state_ = nullptr;
  Span<size_t> extents_;  // of each planned buffer: the bytes that tensors of static shape occupy
  size_t next_ = 0;       // index of the next instruction
  bool has_unbacked_ = false;
  uint32_t max_loop_iterations_ = UINT32_MAX;
  uint32_t loop_iterations_left_;  // remaining backward jumps of the current execution
  Threads* threads_ = nullptr;     // null: only the calling thread
#if TORCHETTE_EVENT_TRACER
  Span<const Kernel*> kernels_;  // one for each operator in the file
#endif
};

/// Not thread-safe, except for cancel(). The program, memory manager and named data must outlive the method.
class Method : private MethodParts {
 public:
  Method(Method&& other) noexcept;
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;
  Method& operator=(Method&&) = delete;
  /// Destroys the backends' handles.
  ~Method();

  /// Null if the method has no tracer.
  EventTracer* get_event_tracer() const { return event_tracer(); }
  size_t inputs_size() const { return inputs_.size(); }
  size_t outputs_size() const { return outputs_.size(); }
  MethodMeta method_meta() const { return {program_, plan_}; }

  /// Sets input `index`. A tensor with planned memory is copied there. Otherwise its data are used in place
  /// and must stay valid until execute() returns. The tensor must have the method's dtype, rank and dim
  /// order, sizes within their bounds, and no gaps in memory. A scalar or string that the program does not
  /// read was a constant of the export: the value must be equal. Error: InvalidArgument; the message has the
  /// input and both values.
  Error set_input(const Value& value, size_t index);
  Error set_inputs(Span<const Value> values);
  /// Whether output `index` is a tensor that needs set_output_data_ptr().
  bool output_needs_memory(size_t index) const;
  /// Sets the memory of output `index`: `size` bytes, enough for the maximum shape. Errors: InvalidArgument,
  /// NotSupported (the output is in planned memory, a constant or an input; copy it after the execution
  /// instead).
  Error set_output_data_ptr(void* buffer, size_t size, size_t index);
  /// Valid until the next execution. None if there is no such output.
  const Value& get_output(size_t index) const;
  const Value& get_input(size_t index) const;
  /// Stores all outputs in `values` and sets the remaining elements to None. Error: InvalidArgument (`count`
  /// is less than outputs_size()).
  Error get_outputs(Value* values, size_t count) const {
    if (count < outputs_size()) return Error::InvalidArgument;
    for (size_t i = 0; i < count; ++i) values[i] = i < outputs_size() ? get_output(i) : Value();
    return Error::Ok;
  }
  /// Whether an instruction writes to input `index`, a tensor.
  bool writes_input(size_t index) const;
  /// The tensor of that name (a mutable buffer). Error: NotFound.
  Result<Tensor> get_attribute(const char* name) const;

  /// Runs all instructions. Errors: InvalidState (an input or output has no memory), OutOfResources
  /// (cancelled, or more backward jumps than set_max_loop_iterations() allows), those of kernels.
  Error execute();
  /// Runs one instruction. Error: EndOfMethod (no instruction is left).
  Error step();
  bool in_progress() const { return next_ != 0; }
  /// Stops the current execution, or the next one if none is running, before its next instruction. The
  /// execution returns OutOfResources; later executions are not affected. This function may be called from
  /// other threads, signal handlers and interrupts, for example by a timer that enforces a deadline. It adds
  /// no cost to execute().
  void cancel() { end_.store(0, std::memory_order_relaxed); }
  /// Sets the maximum number of backward jumps of one execution, over all loops; the default is 2^32 - 1.
  /// Each instruction runs at most once between two backward jumps, so this bounds the run time of any file.
  void set_max_loop_iterations(uint32_t iterations) { max_loop_iterations_ = iterations; }
  /// Sets the threads on which kernels divide their loops (Context::parallel_for). Null, the default: only
  /// the calling thread. The threads must outlive the method. Results do not depend on them, bit by bit.
  void set_threads(Threads* threads) { threads_ = threads; }
  /// Discards a started stepwise execution, and a cancel() that arrived after the end of the last execution.
  Error reset_execution();
  /// Resets mutable buffers, including those of backends, to their values after load.
  Error reset();

 private:
  friend class Program;
  friend class extension::ParallelMethod;
  friend class extension::SourceLines;
  friend class pybindings::LoadCheck;

  class Loading;

  using MethodParts::MethodParts;

  Value& value(int32_t index) const { return values_[static_cast<size_t>(index)]; }
  uint8_t& flags(int32_t index) const { return flags_[static_cast<size_t>(index)]; }
  Error start();
  Error finish();
  Error run(const Instruction& instruction, BackendExecutionContext& context);
  Error run_control(const Control& control, BackendExecutionContext& context);
  BackendExecutionContext context() const {
    return BackendExecutionContext(memory_->temp_allocator(), *this, this, threads_, memory_);
  }
  // Execution with a tracer: method_trace.cpp.
  void trace(EventTracer* event_tracer);
  Error execute_traced();
  class Records;
  Error run_traced(BackendExecutionContext& context);
  Error run_traced(BackendExecutionContext& context, Records& records);
  void log_results(const Kernel* kernel, const flat::Table& call, const Instruction& instruction) const;
  Error check_backed(const Control& control) const;
  Error move(int32_t from, int32_t to);
  /// Returns the record of instruction `at`, and stores its chain and its index in the chain.
  flat::Table find_record(flat::Reader& reader, size_t at, size_t* chain, size_t* index) const;
  Error explain(Error error) const;
  Error load_state();
  /// Initialises a mutable tensor with the stored values of its record.
  Error load_initial(flat::Reader& reader, const flat::Table& record, const TensorImpl& tensor) const;
  /// Finds the data of a tensor outside of the file, by the name in its record.
  Error find_external(const flat::Table& extra, const TensorImpl& tensor, void** data) const;

  // The number of instructions; 0 after cancel().
  std::atomic<size_t> end_{0};
};

inline Result<Method> Program::load_method(const char* method_name, MemoryManager* memory_manager,
                                           EventTracer* event_tracer,
                                           const NamedDataMap* named_data_map) const {
#if TORCHETTE_EVENT_TRACER
  return load(method_name, memory_manager, named_data_map, event_tracer);
#else
  TORCHETTE_CHECK(event_tracer == nullptr, NotSupported,
                  "this build has no tracing: set TORCHETTE_EVENT_TRACER");
  return load(method_name, memory_manager, named_data_map);
#endif
}

inline Error Method::run(const Instruction& instruction, BackendExecutionContext& context) {
  const Error error =
      TORCHETTE_LIKELY(instruction.function != nullptr)
          ? instruction.function(context, {values_.data(), static_cast<const int32_t*>(instruction.argument)})
          : run_control(*static_cast<const Control*>(instruction.argument), context);
  context.reset_temp();
  return error;
}

}  // namespace torchette
