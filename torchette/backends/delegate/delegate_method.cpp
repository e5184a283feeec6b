// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/delegate/delegate_method.h"

#include <new>

namespace torchette {
namespace delegate {
namespace {

/// Whether a tensor without dimensions stands for one of the sizes [1].
bool is_scalar_for(const Tensor& given, const Tensor& own) { return given.dim() == 0 && own.dim() == 1; }

}  // namespace

DelegateMethod::~DelegateMethod() {
  if (has_method_) method().~Method();
  if (has_program_) program().~Program();
}

Result<DelegateMethod*> DelegateMethod::load(BackendInitContext& context, ProgramBuilder& builder,
                                             Span<TensorValue* const> inputs,
                                             Span<TensorValue* const> outputs) {
  MemoryAllocator& allocator = *context.get_runtime_allocator();
  Span<const uint8_t> bytes;
  const Error error = builder.write(allocator, inputs, outputs, &bytes);
  if (error != Error::Ok) return error;
  const size_t size = builder.planned_size();
  auto* const planned = static_cast<uint8_t*>(allocator.allocate(size, 64));
  void* const memory = allocator.allocate(sizeof(DelegateMethod), alignof(DelegateMethod));
  auto** const data = allocator.allocate_list<const void*>(builder.value_count());
  TORCHETTE_CHECK(planned != nullptr && memory != nullptr && data != nullptr, MemoryAllocationFailed,
                  "no memory for %zu bytes of values of a payload", size);
  for (const Entry* entry = builder.values(); entry != nullptr; entry = entry->next)
    data[entry->index] = entry->tensor == nullptr ? nullptr : entry->tensor->owner()->data;
  auto* const made = new (memory) DelegateMethod(allocator, bytes, {planned, size});
  made->constants_.set(data);
  Result<Program> program = Program::load(&made->loader_);
  Error failed = program.ok() ? Error::Ok : program.error();
  if (failed == Error::Ok) {
    new (made->program_) Program(std::move(*program));
    made->has_program_ = true;
    EventTracer* tracer = nullptr;
#if TORCHETTE_EVENT_TRACER
    if (context.event_tracer() != nullptr) {
      auto* const parts = allocator.allocate_list<PartTracer::Part>(builder.call_count());
      TORCHETTE_CHECK(parts != nullptr, MemoryAllocationFailed, "no memory for the trace of a payload");
      size_t i = 0;
      bool has_taps = false;
      for (const Call* call = builder.calls(); call != nullptr; call = call->next) {
        parts[i++] = {call->debug_handle, call->tap_handle, call->tap};
        has_taps |= call->tap != TapLayout::None;
      }
      tracer = &made->tracer_;
      made->is_traced_ = true;
      made->tracer_.set(context.event_tracer(), parts, has_taps);
      made->tracer_.begin();
    }
#endif
    Result<Method> method =
        made->program().load_method(kMethodName, &made->memory_, tracer, &made->constants_);
    if (method.ok()) {
      new (made->method_) Method(std::move(*method));
      made->has_method_ = true;
      return made;
    }
    failed = method.error();
  }
  made->~DelegateMethod();
  return failed;
}

Error DelegateMethod::set_input(size_t i, const Value& argument) {
  const Tensor own = method().get_input(i).to_tensor();
  if (!argument.is_tensor() || !is_scalar_for(argument.to_tensor(), own))
    return method().set_input(argument, i);
  static constexpr SizesType kSizes[] = {1};
  static constexpr StridesType kStrides[] = {1};
  static constexpr DimOrderType kOrder[] = {0};
  TensorImpl row = *argument.to_tensor().unsafe_impl();
  row.sizes = const_cast<SizesType*>(kSizes);
  row.strides = const_cast<StridesType*>(kStrides);
  row.dim_order = kOrder;
  row.dim = 1;
  return method().set_input(Value(Tensor(&row)), i);
}

Error DelegateMethod::set_output(size_t i, const Value& argument) {
  const Tensor own = method().get_output(i).to_tensor();
  TORCHETTE_CHECK(argument.is_tensor(), InvalidArgument, "output %zu of a delegate is not a tensor", i);
  const Tensor given = argument.to_tensor();
  TORCHETTE_CHECK(given.dim() == own.dim() || is_scalar_for(given, own), InvalidArgument,
                  "output %zu of a delegate has %td dimensions, its graph has %td", i, given.dim(),
                  own.dim());
  TORCHETTE_CHECK(given.scalar_type() == own.scalar_type(), InvalidArgument,
                  "output %zu of a delegate has dtype %d, its graph has %d", i,
                  static_cast<int>(given.scalar_type()), static_cast<int>(own.scalar_type()));
  TensorImpl& impl = *given.unsafe_impl();
  reserve_tensor(impl, static_cast<int32_t>(own.unsafe_impl()->capacity));
  return method().set_output_data_ptr(impl.data, impl.capacity * element_size(impl.type), i);
}

Error DelegateMethod::take_sizes(size_t i, const Value& argument) {
  const Tensor own = method().get_output(i).to_tensor(), given = argument.to_tensor();
  if (is_scalar_for(given, own)) return Error::Ok;
  TORCHETTE_TRY(resize_tensor(given, own.sizes()));
  TORCHETTE_CHECK(is_contiguous(given), InvalidArgument,
                  "output %zu of a delegate is not contiguous, its graph is", i);
  return Error::Ok;
}

Error DelegateMethod::execute(BackendExecutionContext& context, Span<Value*> arguments) {
  const size_t inputs = method().inputs_size(), outputs = method().outputs_size();
  TORCHETTE_CHECK(arguments.size() == inputs + outputs, InvalidArgument,
                  "a delegate is given %zu arguments, its graph has %zu inputs and %zu outputs",
                  arguments.size(), inputs, outputs);
  for (size_t i = 0; i < inputs; ++i) TORCHETTE_TRY(set_input(i, *arguments[i]));
  for (size_t i = 0; i < outputs; ++i) TORCHETTE_TRY(set_output(i, *arguments[inputs + i]));
  new (&memory_) MemoryManager(&allocator_, &planned_, context.get_temp_allocator());
#if TORCHETTE_EVENT_TRACER
  if (is_traced_) tracer_.begin();
#endif
  method().set_threads(context.threads());
  TORCHETTE_TRY(method().execute());
  for (size_t i = 0; i < outputs; ++i) TORCHETTE_TRY(take_sizes(i, *arguments[inputs + i]));
  return Error::Ok;
}

#if TORCHETTE_EVENT_TRACER

void PartTracer::begin() {
  set_event_tracer_profiling_level(outer_->event_tracer_profiling_level());
  const bool wants_parts =
      outer_->event_tracer_debug_level() >= EventTracerDebugLogLevel::kIntermediateOutputs;
  set_event_tracer_debug_level(wants_parts && has_taps_ ? EventTracerDebugLogLevel::kIntermediateOutputs
                                                        : EventTracerDebugLogLevel::kNoLogging);
}

EventTracerEntry PartTracer::start_profiling(const char* name, ChainID chain, DebugHandle call) {
  if (chain == kUnsetChainId) return {};  // loading or executing all of the method
  is_in_call_ = true;
  return outer_->start_profiling_delegate(name, static_cast<DelegateDebugIntId>(parts_[call].debug_handle));
}

void PartTracer::end_profiling(EventTracerEntry entry) {
  if (is_in_call_) outer_->end_profiling_delegate(entry);
  is_in_call_ = false;
}

Result<bool> PartTracer::log_evalue(const EValue& value, LoggedEValueType) {
  const Part& part = parts_[current_debug_handle()];
  if (part.tap == TapLayout::None || !value.is_tensor()) return false;
  const Tensor tensor = value.to_tensor();
  const auto handle = static_cast<DelegateDebugIntId>(part.tap_handle);
  if (part.tap == TapLayout::Same) return outer_->log_intermediate_output_delegate(nullptr, handle, tensor);
  // Traces contain contiguous values: the channels move before the rows and columns.
  const TensorImpl& from = *tensor.unsafe_impl();
  const auto images = static_cast<size_t>(from.sizes[0]), channels = static_cast<size_t>(from.sizes[3]),
             pixels = static_cast<size_t>(from.sizes[1]) * static_cast<size_t>(from.sizes[2]);
  const size_t item = element_size(from.type);
  auto* const bytes = static_cast<uint8_t*>(platform_allocate(images * pixels * channels * item + 1));
  if (bytes == nullptr) return Error::MemoryAllocationFailed;
  const auto* source = static_cast<const uint8_t*>(from.data);
  for (size_t n = 0; n < images; ++n)
    for (size_t p = 0; p < pixels; ++p)
      for (size_t c = 0; c < channels; ++c, source += item)
        memcpy(bytes + ((n * channels + c) * pixels + p) * item, source, item);
  static constexpr DimOrderType kOrder[] = {0, 1, 2, 3};
  SizesType sizes[4];
  StridesType strides[4];
  size_t rank = 0;
  for (const size_t d : {0, 3, 1, 2})
    if (d != 1 || part.tap == TapLayout::ImageToChannelsFirst) sizes[rank++] = from.sizes[d];
  bool is_logged = false;
  if (dense_strides({sizes, rank}, kOrder, strides).ok()) {
    TensorImpl moved = from;
    moved.data = bytes;
    moved.sizes = sizes;
    moved.strides = strides;
    moved.dim_order = kOrder;
    moved.dim = static_cast<uint8_t>(rank);
    const Result<bool> logged = outer_->log_intermediate_output_delegate(nullptr, handle, Tensor(&moved));
    is_logged = logged.ok() && *logged;
  }
  platform_free(bytes);
  return is_logged;
}

#endif

}  // namespace delegate
}  // namespace torchette
