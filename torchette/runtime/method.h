// SPDX-License-Identifier: BSD-3-Clause
// Method: one method of a program, loaded into the caller's memory and executed. Everything that can be wrong
// with the file is found by load; execute only meets what data can break.
#pragma once

#include <atomic>

#include "torchette/runtime/backend.h"
#include "torchette/runtime/kernel.h"
#include "torchette/runtime/memory.h"
#include "torchette/runtime/method_meta.h"
#include "torchette/runtime/program.h"

namespace torchette {

/// What a loaded method consists of: plain data, which moves with one copy.
class MethodParts : protected Traced {
  friend class extension::ParallelMethod;
  friend class extension::SourceLines;

 protected:
  MethodParts(const Program* program, size_t plan, MemoryManager* memory, const NamedDataMap* external);

  /// What load finds out about each value.
  enum Flag : uint8_t {
    kInput = 1,
    kOutput = 2,
    kUsed = 4,           // an instruction or a list reads it
    kWritten = 8,        // an instruction writes it
    kConstant = 16,      // a tensor whose bytes are the file's
    kCallerMemory = 32,  // an input or output tensor whose bytes are the caller's
    kUnbacked = 64,      // a tensor inside of the method that becomes a view while executing
    kInitialised = 128,  // a planned tensor that starts with stored bytes
  };
  /// An instruction that is not just a kernel call.
  struct Control {
    enum class Kind : uint8_t { CheckedKernel, Move, JumpFalse, Free, Delegate };
    Kind kind;
    bool defines_last;  // CheckedKernel: the last argument is the view that becomes backed
    int32_t a, b;       // Move: from, to. JumpFalse: condition, next instruction. Delegate: which
    OpFunction function;
    Span<const int32_t> arguments;
    Span<Value*> delegate_arguments;
  };
  struct Instruction {
    OpFunction function;   // null: `argument` is a Control
    const void* argument;  // indices of values, in place in the file
  };
  struct Input {
    const SizesType* bound;  // in place in the file
    uint8_t step;            // numbers in `bound` for each dimension; the last is the greatest size
    bool has_least;          // the first is the least size
    bool set;
  };
  struct Delegate {
    BackendInterface* backend = nullptr;  // until it has taken it
    DelegateHandle* handle = nullptr;
    FreeableBuffer processed;
  };

  const Program* program_;
  size_t plan_;
  MemoryManager* memory_;
  const NamedDataMap* external_;  // null where there is none
  Span<Value> values_;
  uint8_t* flags_ = nullptr;  // of each value
  Span<Instruction> instructions_;
  Span<Delegate> delegates_;
  Span<const int32_t> inputs_;  // indices of values, in place in the file
  Span<const int32_t> outputs_;
  Input* input_state_ = nullptr;
  Span<size_t> extents_;  // bytes of each planned buffer in which tensors of sizes that stay lie
  size_t next_ = 0;       // instruction
  bool any_unbacked_ = false;
  uint32_t max_turns_ = UINT32_MAX;
  uint32_t turns_left_;         // of the execution that runs
  Threads* threads_ = nullptr;  // null: the one that executes is alone
#if TORCHETTE_EVENT_TRACER
  Span<const Kernel*> kernels_;  // of each operator that the file names
#endif
};

/// Not for use by two threads at once. Program, memory manager and named data must outlive it.
class Method : private MethodParts {
 public:
  Method(Method&& other) noexcept;
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;
  Method& operator=(Method&&) = delete;
  /// Gives handles back to the backends.
  ~Method();

  /// Null where nobody traces.
  EventTracer* get_event_tracer() const { return event_tracer(); }
  size_t inputs_size() const { return inputs_.size(); }
  size_t outputs_size() const { return outputs_.size(); }
  MethodMeta method_meta() const { return {program_, plan_}; }

  /// Sets input `index`. A tensor is copied into the planned memory where it has a place there; otherwise its
  /// data are used in place and must stay until execute() has returned. It must have the method's dtype and
  /// rank, each size within its own bound, and lie in memory without gaps in the method's dim order. A number
  /// or string that the program does not use was fixed when the model was exported: it must be equal. Errors:
  /// InvalidArgument; the message names the input and both sides.
  Error set_input(const Value& value, size_t index);
  Error set_inputs(Span<const Value> values);
  /// Whether output `index` is a tensor that set_output_data_ptr() takes memory for.
  bool output_needs_memory(size_t index) const;
  /// Makes output `index` write to `buffer` of `size` bytes, which must hold the output at its upper bound.
  /// Errors: InvalidArgument, NotSupported (the output's memory is planned, is a constant's or an input's:
  /// copy it instead).
  Error set_output_data_ptr(void* buffer, size_t size, size_t index);
  /// Valid until the next execution; empty where there is no such output.
  const Value& get_output(size_t index) const;
  const Value& get_input(size_t index) const;
  /// All of them; what `values` has room for beyond them becomes None. Error: InvalidArgument (no room).
  Error get_outputs(Value* values, size_t count) const {
    if (count < outputs_size()) return Error::InvalidArgument;
    for (size_t i = 0; i < count; ++i) values[i] = i < outputs_size() ? get_output(i) : Value();
    return Error::Ok;
  }
  /// Whether some instruction writes to input `index`, a tensor.
  bool writes_input(size_t index) const;
  /// The tensor of that name (a mutable buffer). Error: NotFound.
  Result<Tensor> get_attribute(const char* name) const;

  /// Runs all instructions. Errors: InvalidState (an input or output has no memory yet), OutOfResources
  /// (cancelled, or more turns of loops than set_max_turns() allows), those of kernels.
  Error execute();
  /// Runs one instruction. EndOfMethod when none is left.
  Error step();
  bool in_progress() const { return next_ != 0; }
  /// Ends the execution that runs, or else the next one, before its next instruction, with OutOfResources;
  /// the one after that is an ordinary one. The one function of a method that may be called from another
  /// thread, a signal handler or an interrupt at any time, so that a timer makes a deadline of it. Costs
  /// nothing where it is not used.
  void cancel() { end_.store(0, std::memory_order_relaxed); }
  /// How often one execution may jump back, over all loops: it bounds what a file can make of an execution,
  /// since between two jumps back each instruction runs once. 2^32 - 1 where it is not set.
  void set_max_turns(uint32_t turns) { max_turns_ = turns; }
  /// Gives kernels threads for their loops (Context::parallel_for); null, as at first, takes them away. They
  /// must outlive the method. Results are the same, bit by bit.
  void set_threads(Threads* threads) { threads_ = threads; }
  /// Forgets a started stepwise execution, and a cancel() that came too late for the last one.
  Error reset_execution();
  /// Gives mutable buffers, those that backends keep included, the values that they had after load.
  Error reset();

 private:
  friend class Program;
  friend class extension::ParallelMethod;
  friend class extension::SourceLines;

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
  // with a tracer: method_trace.cpp
  void trace(EventTracer* event_tracer);
  Error execute_traced();
  class Records;
  Error run_traced(BackendExecutionContext& context);
  Error run_traced(BackendExecutionContext& context, Records& records);
  void log_results(const Kernel* kernel, const flat::Table& call, const Instruction& instruction) const;
  Error check_backed(const Control& control) const;
  Error move(int32_t from, int32_t to);
  /// Instruction `at` of the method in the file, and where it stands there.
  flat::Table find_record(flat::Reader& reader, size_t at, size_t* chain, size_t* index) const;
  Error explain(Error error) const;
  Error load_state();
  /// Fills a mutable tensor with the first value that its record names.
  Error load_initial(flat::Reader& reader, const flat::Table& record, const TensorImpl& tensor) const;
  /// The bytes of a tensor that stands outside of the file, by the name in its record.
  Error find_external(const flat::Table& extra, const TensorImpl& tensor, void** data) const;

  // where the walk ends: after the last instruction, or at once where it is cancelled
  std::atomic<size_t> end_{0};
};

inline Result<Method> Program::load_method(const char* method_name, MemoryManager* memory_manager,
                                           EventTracer* event_tracer,
                                           const NamedDataMap* named_data_map) const {
#if TORCHETTE_EVENT_TRACER
  return load(method_name, memory_manager, named_data_map, event_tracer);
#else
  TORCHETTE_CHECK(event_tracer == nullptr, NotSupported,
                  "this build takes no tracer: set TORCHETTE_EVENT_TRACER");
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
