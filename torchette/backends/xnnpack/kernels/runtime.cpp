// SPDX-License-Identifier: BSD-3-Clause
// The XNNPACK backend where the library is absent: a payload becomes calls of our own kernels at init, which
// run on the method's own tensors, its threads, and memory of the method.
#include <new>

#include "torchette/backends/xnnpack/kernels/program.h"
#include "torchette/runtime/backend_options.h"

namespace torchette {
namespace {

using xnnpack::Call;
using xnnpack::move_to;
using xnnpack::Program;
using xnnpack::Slot;

bool has_no_dimensions(const Tensor& tensor, const Slot& slot) {
  return tensor.dim() == 0 && slot.impl.dim == 1;
}

class XnnpackBackend final : public BackendInterface {
 public:
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec>) const override {
    void* const memory = context.get_runtime_allocator()->allocate(sizeof(Program), alignof(Program));
    if (memory == nullptr) return Error::MemoryAllocationFailed;
    auto* const program = new (memory) Program;
    const Error error = xnnpack::read_program(*processed, context, program);
    if (error != Error::Ok) {
      program->~Program();
      return error;
    }
    if (!program->needs_bytes) processed->Free();
    return static_cast<DelegateHandle*>(program);
  }

  size_t num_inputs(DelegateHandle* handle) const override {
    const Program& program = *static_cast<const Program*>(handle);
    size_t first = 0;
    while (first < program.argument_count && !program.arguments[first]->is_result) ++first;
    return first;
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle,
                Span<Value*> arguments) const override {
    const Program& program = *static_cast<const Program*>(handle);
    TORCHETTE_CHECK(arguments.size() == program.argument_count, InvalidArgument,
                    "XNNPACK is given %zu arguments, its graph has %zu", arguments.size(),
                    program.argument_count);
    for (size_t i = 0; i < arguments.size(); ++i) {
      TORCHETTE_TRY(take(*arguments[i], *program.arguments[i], i));
      if (!program.arguments[i]->is_result) tell(program, program.arguments[i], context);
    }
    for (const Call* call = program.calls; call != nullptr; call = call->next) {
      const EventTracerEntry event =
          call->kernel == nullptr
              ? EventTracerEntry()
              : event_tracer_start_profiling_delegate(context.event_tracer(), call->kernel->name,
                                                      static_cast<DelegateDebugIntId>(call->debug_handle));
      TORCHETTE_TRY(call->run(context, *call));
      context.reset_temp();
      if (call->kernel != nullptr) event_tracer_end_profiling_delegate(context.event_tracer(), event);
      tell(program, call->output, context);
    }
    for (size_t i = 0; i < arguments.size(); ++i) {
      const Slot& slot = *program.arguments[i];
      const Tensor tensor = arguments[i]->to_tensor();
      if (!slot.is_result || has_no_dimensions(tensor, slot)) continue;
      TORCHETTE_TRY(resize_tensor(tensor, {slot.impl.sizes, slot.impl.dim}));
      TORCHETTE_CHECK(is_contiguous(tensor), InvalidArgument,
                      "argument %zu of XNNPACK has another layout than its graph", i);
    }
    return Error::Ok;
  }

  void destroy(DelegateHandle* handle) const override { static_cast<Program*>(handle)->~Program(); }

  /// "library": whether XNNPACK's library computes, which has the other options.
  Error get_option(BackendOptionContext&, Span<BackendOption>& options) override {
    for (BackendOption& option : options) {
      TORCHETTE_CHECK(strcmp(option.key, "library") == 0, InvalidArgument,
                      "without its library XNNPACK has no option %.63s", option.key);
      option.value = false;
    }
    return Error::Ok;
  }

 private:
  /// Lets a value be an argument of this execution.
  static Error take(const Value& value, Slot& slot, size_t i) {
    TORCHETTE_CHECK(value.is_tensor(), InvalidArgument, "argument %zu of XNNPACK is no tensor", i);
    const Tensor tensor = value.to_tensor();
    const bool has_none = has_no_dimensions(tensor, slot);
    TORCHETTE_CHECK(tensor.dim() == slot.impl.dim || has_none, InvalidArgument,
                    "argument %zu of XNNPACK has %td dimensions, its graph has %u", i, tensor.dim(),
                    slot.impl.dim);
    TensorImpl& given = *tensor.unsafe_impl();
    if (slot.is_result) reserve_tensor(given, static_cast<int32_t>(slot.bound));
    TORCHETTE_CHECK(tensor.scalar_type() == slot.impl.type && is_contiguous(tensor) &&
                        (given.data != nullptr || tensor.numel() == 0),
                    InvalidArgument, "argument %zu of XNNPACK has another type or layout than its graph", i);
    const size_t room = given.data == nullptr ? 0 : given.capacity;
    move_to(slot.impl, given.data, slot.is_result && room < slot.bound ? room : slot.bound);
    TORCHETTE_CHECK(slot.impl.dim != 0 || room > 0, InvalidArgument, "argument %zu of XNNPACK has no room",
                    i);
    if (slot.is_result) return Error::Ok;
    constexpr SizesType kOne[] = {1};
    const Error error =
        resize_tensor(Tensor(&slot.impl), has_none ? Span<const SizesType>(kOne) : tensor.sizes());
    TORCHETTE_CHECK(error == Error::Ok, InvalidArgument,
                    "argument %zu of XNNPACK has other sizes than its graph", i);
    return Error::Ok;
  }
};

XnnpackBackend backend;

}  // namespace

Backend xnnpack_backend{"XnnpackBackend", &backend};

}  // namespace torchette
