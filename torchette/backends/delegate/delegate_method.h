// SPDX-License-Identifier: BSD-3-Clause
// DelegateMethod: a payload that became a method of the runtime. The executor, its checks, its threads and
// its tracing are those of any other method.
#pragma once

#include "torchette/backends/delegate/program_builder.h"
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/runtime/method.h"

namespace torchette {
namespace delegate {

/// The elements of a program's constants.
class Constants final : public NamedDataMap {
 public:
  void set(const void* const* data) { data_ = data; }

  Result<FreeableBuffer> get_data(const char*) const override { return Error::NotFound; }
  Result<uint32_t> get_num_keys() const override { return uint32_t{0}; }
  Result<const char*> get_key(uint32_t) const override { return Error::InvalidArgument; }
  Error get_tensor(const char* key, const TensorImpl&, void** data) const override {
    *data = const_cast<void*>(data_[index_of_constant(key)]);
    return Error::Ok;
  }

 private:
  const void* const* data_ = nullptr;  // by index of the value
};

#if TORCHETTE_EVENT_TRACER
/// Tells the tracer of the calling method about the calls as about parts of a delegate.
class PartTracer final : public EventTracer {
 public:
  struct Part {
    uint32_t debug_handle;
    uint32_t tap_handle;
    TapLayout tap;
    bool is_call;  // not an instruction that frees a tensor
  };

  void set(EventTracer* outer, const Part* parts, bool has_taps) {
    outer_ = outer;
    parts_ = parts;
    has_taps_ = has_taps;
  }
  /// Copies the levels of the other tracer, which may change between executions.
  void begin();

  void create_event_block(const char*) override {}
  EventTracerEntry start_profiling(const char* name, ChainID chain, DebugHandle call) override;
  void end_profiling(EventTracerEntry entry) override;
  EventTracerEntry start_profiling_delegate(const char* name, DelegateDebugIntId id) override {
    return outer_->start_profiling_delegate(name, id);
  }
  void end_profiling_delegate(EventTracerEntry entry, const void* metadata, size_t size) override {
    outer_->end_profiling_delegate(entry, metadata, size);
  }
  void log_profiling_delegate(const char* name, DelegateDebugIntId id, torchette_timestamp_t start,
                              torchette_timestamp_t end, const void* metadata, size_t size) override {
    outer_->log_profiling_delegate(name, id, start, end, metadata, size);
  }
  AllocatorID track_allocator(const char* name) override { return outer_->track_allocator(name); }
  void track_allocation(AllocatorID id, size_t size) override { outer_->track_allocation(id, size); }
  Result<bool> log_evalue(const EValue& value, LoggedEValueType kind) override;
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId id,
                                                const Tensor& output) override {
    return outer_->log_intermediate_output_delegate(name, id, output);
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId id,
                                                Span<const Tensor> output) override {
    return outer_->log_intermediate_output_delegate(name, id, output);
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId id,
                                                const int& output) override {
    return outer_->log_intermediate_output_delegate(name, id, output);
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId id,
                                                const bool& output) override {
    return outer_->log_intermediate_output_delegate(name, id, output);
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId id,
                                                const double& output) override {
    return outer_->log_intermediate_output_delegate(name, id, output);
  }
  void set_delegation_intermediate_output_filter(EventTracerFilterBase* filter) override {
    outer_->set_delegation_intermediate_output_filter(filter);
  }
  void operator delete(void*) {}  // lives in the memory of the method

 private:
  EventTracer* outer_ = nullptr;
  const Part* parts_ = nullptr;  // by instruction
  bool has_taps_ = false, is_in_call_ = false;
  int64_t logged_call_ = -1;  // of which the first result has been logged
};
#endif

class DelegateMethod {
 public:
  DelegateMethod(const DelegateMethod&) = delete;
  DelegateMethod& operator=(const DelegateMethod&) = delete;
  ~DelegateMethod();

  /// Loads the program of `builder` into the memory of the method that has the delegate. Dynamic tensors, a
  /// plan that is too large (ProgramBuilder::write) and `converts` need `dynamic`, which must outlive the
  /// method. `converts`: whether execute() converts arguments. Errors: those of Program::load_method,
  /// MemoryAllocationFailed.
  static Result<DelegateMethod*> load(BackendInitContext& context, ProgramBuilder& builder,
                                      Span<const Entry* const> inputs, Span<const Entry* const> outputs,
                                      DynamicAllocator* dynamic, bool converts);
  size_t num_inputs() const { return method().inputs_size(); }
  /// Executes the method. `arguments` are its inputs, then its outputs. A tensor of rank 0 is accepted
  /// for a tensor of the sizes [1]. If the method converts arguments, floating-point arguments of other
  /// dtypes and integers of other dtypes are converted, and so are tensors that are not contiguous. Errors:
  /// InvalidArgument, those of Method::execute().
  Error execute(BackendExecutionContext& context, Span<Value*> arguments);
  /// Executes a method that has no inputs, in this thread. The outputs keep their values.
  Error execute() { return method().execute(); }
  const Value& output(size_t i) const { return method().get_output(i); }
  Error reset() { return method().reset(); }

 private:
  DelegateMethod(MemoryAllocator& allocator, Span<const uint8_t> program, Span<uint8_t> planned,
                 DynamicAllocator* dynamic)
      : allocator_(allocator),
        loader_(program.data(), program.size()),
        buffer_(planned),
        planned_({&buffer_, 1}),
        memory_(&allocator_, &planned_, nullptr, dynamic) {}

  Method& method() const { return *reinterpret_cast<Method*>(const_cast<uint8_t*>(method_)); }
  Program& program() { return *reinterpret_cast<Program*>(program_); }
  Error set_input(size_t i, const Value& argument, Context& context);
  Error set_converted(size_t i, const Tensor& given, const Tensor& expected, Context& context);
  Error set_output(size_t i, const Value& argument);
  Error resize_output(size_t i, const Value& argument);
  Error copy_output(size_t i, Value* argument, Context& context);

  MemoryAllocator& allocator_;
  extension::BufferDataLoader loader_;
  Span<uint8_t> buffer_;
  HierarchicalAllocator planned_;
  MemoryManager memory_;
  Constants constants_;
  void** converted_ = nullptr;  // memory of each input that was converted; null if it converts none
#if TORCHETTE_EVENT_TRACER
  PartTracer tracer_;
  bool is_traced_ = false;
#endif
  // constructed by load()
  bool has_program_ = false, has_method_ = false;
  alignas(Program) uint8_t program_[sizeof(Program)];
  alignas(Method) uint8_t method_[sizeof(Method)];
};

/// The integer that input `i` of a delegate is: a number, or a tensor of one int64. Error: InvalidArgument.
Error integer_of(size_t i, const Value& argument, int64_t* integer);

}  // namespace delegate
}  // namespace torchette
