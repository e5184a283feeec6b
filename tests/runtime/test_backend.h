// SPDX-License-Identifier: BSD-3-Clause
// The backend of the test program (make_program.py). It reads every byte of its input, so that a sanitizer
// finds bad addresses.
#pragma once

#include "torchette/runtime/backend.h"

namespace torchette {

/// Copies its first argument to its last. Reads its payload and options, and allocates a few bytes of the
/// method's memory. Reports to a tracer the copy (part 7), its halves (by name, with given times), and its
/// result.
struct TestBackend final : BackendInterface {
  mutable int live = 0;  // handles that are not destroyed
  mutable uint64_t touched = 0;
  mutable EventTracer* tracer_at_init = nullptr;

  bool is_available() const override { return true; }
  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec> compile_specs) const override {
    tracer_at_init = context.event_tracer();
    const auto* blob = static_cast<const uint8_t*>(processed->data());
    for (size_t i = 0; i < processed->size(); ++i) touched += blob[i];
    for (const CompileSpec& spec : compile_specs) {
      for (const char* c = spec.key; *c != 0; ++c) touched += static_cast<uint64_t>(*c);
      for (uint8_t byte : spec.value) touched += byte;
    }
    DelegateHandle* handle = context.get_runtime_allocator()->allocate(8);
    if (handle == nullptr) return Error::MemoryAllocationFailed;
    ++live;
    return handle;
  }
  Error execute(BackendExecutionContext& context, DelegateHandle*, Span<Value*> arguments) const override {
    for (const Value* argument : arguments)
      TORCHETTE_CHECK(argument->is_tensor() && argument->to_tensor().const_data_ptr() != nullptr,
                      InvalidArgument, "a tensor is required");
    if (arguments.size() < 2) return Error::InvalidArgument;
    const Tensor from = arguments.front()->to_tensor(), to = arguments.back()->to_tensor();
    TORCHETTE_CHECK(from.nbytes() == to.nbytes(), InvalidArgument, "the sizes differ");
    TORCHETTE_CHECK(strcmp(context.get_method_name(), "delegated") == 0, Internal, "the wrong method");
    TORCHETTE_CHECK(context.get_temp_allocator() != nullptr, InvalidArgument, "no scratch memory");
    void* scratch = context.allocate(from.nbytes() + 1);
    TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed, "no scratch memory");
    EventTracer* const tracer = context.event_tracer();
    const EventTracerEntry copy = event_tracer_start_profiling_delegate(tracer, nullptr, 7);
    memcpy(scratch, from.const_data_ptr(), from.nbytes());
    memcpy(to.mutable_data_ptr(), scratch, from.nbytes());
    event_tracer_end_profiling_delegate(tracer, copy);
    const char half[] = "half";  // destroyed when this function returns
    for (torchette_timestamp_t i = 0; i < 2; ++i)
      event_tracer_log_profiling_delegate(tracer, half, kUnsetDelegateDebugIntId, 10 * i, 10 * i + 5, "meta",
                                          4);
    event_tracer_log_output_delegate(tracer, nullptr, 7, to);
    event_tracer_log_output_delegate(tracer, half, kUnsetDelegateDebugIntId, 2);
    return Error::Ok;
  }
  void destroy(DelegateHandle*) const override { --live; }
};

/// The backend, registered as "test".
inline TestBackend& test_backend() {
  static TestBackend backend;
  static Backend node{"test", &backend};
  static const Error registered = register_backend(node);
  (void)registered;
  return backend;
}

}  // namespace torchette
