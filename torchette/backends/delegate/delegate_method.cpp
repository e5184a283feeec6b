// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/delegate/delegate_method.h"

#include <new>

namespace torchette {
namespace delegate {
namespace {

/// Whether a tensor of rank 0 is used as a tensor of sizes [1].
bool is_scalar_for(const Tensor& given, const Tensor& expected) {
  return given.dim() == 0 && expected.dim() == 1;
}

bool is_of_same_kind(const Tensor& a, const Tensor& b) {
  return is_floating(a.scalar_type()) == is_floating(b.scalar_type());
}

/// Copies the elements, with conversion of the dtype.
Error copy(const Tensor& from, const Tensor& to, Context& context) {
  static constexpr char kCopy[] = "aten::copy.out";
  const Kernel* const kernel = find_kernel(kCopy);
  TORCHETTE_CHECK(kernel != nullptr, OperatorMissing, "there is no kernel for %s", kCopy);
  Value values[] = {Value(to), Value(from), Value(false)};
  const int32_t index[] = {0, 1, 2, 0};
  return kernel->function(context, {values, index});
}

}  // namespace

DelegateMethod::~DelegateMethod() {
  if (has_method_) method().~Method();
  if (has_program_) program().~Program();
}

Result<DelegateMethod*> DelegateMethod::load(BackendInitContext& context, ProgramBuilder& builder,
                                             Span<const Entry* const> inputs,
                                             Span<const Entry* const> outputs, DynamicAllocator* dynamic,
                                             bool converts) {
  MemoryAllocator& allocator = *context.get_runtime_allocator();
  Span<const uint8_t> bytes;
  const uint64_t others = context.planned_bytes();
  const uint64_t available = others < kMaxPlanned ? kMaxPlanned - others : 0;
  const Error error =
      builder.write(allocator, inputs, outputs, dynamic != nullptr ? available : UINT64_MAX, &bytes);
  if (error != Error::Ok) return error;
  const size_t size = builder.planned_size();
  context.add_planned_bytes(size);
  auto* const planned = static_cast<uint8_t*>(allocator.allocate(size, 64));
  void* const memory = allocator.allocate(sizeof(DelegateMethod), alignof(DelegateMethod));
  auto** const data = allocator.allocate_list<const void*>(builder.value_count());
  void** const converted = converts ? allocator.allocate_list<void*>(inputs.size()) : nullptr;
  TORCHETTE_CHECK(
      planned != nullptr && memory != nullptr && data != nullptr && (converted != nullptr || !converts),
      MemoryAllocationFailed, "cannot allocate %zu bytes of values of a payload", size);
  for (const Entry* entry = builder.values(); entry != nullptr; entry = entry->next)
    data[entry->index] = entry->tensor == nullptr ? nullptr : entry->tensor->owner()->data;
  auto* const made = new (memory) DelegateMethod(allocator, bytes, {planned, size}, dynamic);
  made->converted_ = converted;
  for (size_t i = 0; converted != nullptr && i < inputs.size(); ++i) converted[i] = nullptr;
  made->constants_.set(data);
  Result<Program> program = Program::load(&made->loader_);
  Error failed = program.ok() ? Error::Ok : program.error();
  if (failed == Error::Ok) {
    new (made->program_) Program(std::move(*program));
    made->has_program_ = true;
    EventTracer* tracer = nullptr;
#if TORCHETTE_EVENT_TRACER
    if (context.event_tracer() != nullptr) {
      auto* const parts = allocator.allocate_list<PartTracer::Part>(builder.instruction_count());
      TORCHETTE_CHECK(parts != nullptr, MemoryAllocationFailed, "cannot allocate the trace of a payload");
      size_t i = 0;
      bool has_taps = false;
      for (const Call* call = builder.calls(); call != nullptr; call = call->next) {
        parts[i++] = {call->debug_handle, call->tap_handle, call->tap, true};
        for (const TensorValue* tensor = call->freed; tensor != nullptr; tensor = tensor->next_in_list)
          parts[i++] = {call->debug_handle, 0, TapLayout::None, false};
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

Error integer_of(size_t i, const Value& argument, int64_t* integer) {
  if (argument.is_int()) {
    *integer = argument.to_int();
    return Error::Ok;
  }
  TORCHETTE_CHECK(argument.is_tensor() && argument.to_tensor().numel() == 1 &&
                      argument.to_tensor().scalar_type() == ScalarType::Long &&
                      argument.to_tensor().const_data_ptr() != nullptr,
                  InvalidArgument, "input %zu of a delegate is not an integer", i);
  *integer = *argument.to_tensor().const_data_ptr<int64_t>();
  return Error::Ok;
}

/// The input as the program needs it, in memory that stays until the next execution.
Error DelegateMethod::set_converted(size_t i, const Tensor& given, const Tensor& expected, Context& context) {
  TORCHETTE_CHECK(given.dim() == expected.dim() && (given.numel() == 0 || given.const_data_ptr() != nullptr),
                  InvalidArgument, "input %zu of a delegate has %td dimensions or no data, its graph has %td",
                  i, given.dim(), expected.dim());
  TensorImpl row_major = *expected.unsafe_impl();
  StridesType strides[kMaxDim];
  const Result<int32_t> count = dense_strides(given.sizes(), row_major.dim_order, strides);
  TORCHETTE_CHECK(count.ok(), InvalidArgument, "input %zu of a delegate is too large", i);
  row_major.sizes = given.unsafe_impl()->sizes;
  row_major.strides = strides;
  row_major.numel = *count;
  row_major.capacity = static_cast<size_t>(*count);
  row_major.dynamism = TensorShapeDynamism::STATIC;
  converted_[i] = memory_.dynamic_allocator()->reallocate(converted_[i], Tensor(&row_major).nbytes());
  row_major.data = converted_[i];
  TORCHETTE_CHECK(row_major.data != nullptr || *count == 0, MemoryAllocationFailed,
                  "no memory to convert input %zu of a delegate", i);
  if (*count != 0) TORCHETTE_TRY(copy(given, Tensor(&row_major), context));
  return method().set_input(Value(Tensor(&row_major)), i);
}

Error DelegateMethod::set_input(size_t i, const Value& argument, Context& context) {
  if (!method().get_input(i).is_tensor()) {
    int64_t integer = 0;
    TORCHETTE_TRY(integer_of(i, argument, &integer));
    return method().set_input(Value(integer), i);
  }
  const Tensor expected = method().get_input(i).to_tensor();
  if (!argument.is_tensor()) return method().set_input(argument, i);
  const Tensor given = argument.to_tensor();
  if (!is_scalar_for(given, expected)) {
    const bool fits = given.scalar_type() == expected.scalar_type() && is_contiguous(given);
    if (converted_ == nullptr || fits || !is_of_same_kind(given, expected))
      return method().set_input(argument, i);
    return set_converted(i, given, expected, context);
  }
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
  const Tensor expected = method().get_output(i).to_tensor();
  TORCHETTE_CHECK(argument.is_tensor(), InvalidArgument, "output %zu of a delegate is not a tensor", i);
  const Tensor given = argument.to_tensor();
  TORCHETTE_CHECK(given.dim() == expected.dim() || is_scalar_for(given, expected), InvalidArgument,
                  "output %zu of a delegate has %td dimensions, its graph has %td", i, given.dim(),
                  expected.dim());
  TORCHETTE_CHECK(given.scalar_type() == expected.scalar_type(), InvalidArgument,
                  "output %zu of a delegate has dtype %d, its graph has %d", i,
                  static_cast<int>(given.scalar_type()), static_cast<int>(expected.scalar_type()));
  TensorImpl& impl = *given.unsafe_impl();
  reserve_tensor(impl, static_cast<int32_t>(expected.unsafe_impl()->capacity));
  return method().set_output_data_ptr(impl.data, impl.capacity * element_size(impl.type), i);
}

Error DelegateMethod::resize_output(size_t i, const Value& argument) {
  const Tensor expected = method().get_output(i).to_tensor(), given = argument.to_tensor();
  if (is_scalar_for(given, expected)) return Error::Ok;
  TORCHETTE_TRY(resize_tensor(given, expected.sizes()));
  TORCHETTE_CHECK(is_contiguous(given), InvalidArgument,
                  "output %zu of a delegate is not contiguous, its graph is", i);
  return Error::Ok;
}

/// Copies an output with separate memory to the caller's memory.
Error DelegateMethod::copy_output(size_t i, Value* argument, Context& context) {
  const Value& expected = method().get_output(i);
  if (!expected.is_tensor()) {
    *argument = expected;
    return Error::Ok;
  }
  const Tensor from = expected.to_tensor();
  TORCHETTE_CHECK(argument->is_tensor() && argument->to_tensor().dim() == from.dim() &&
                      is_of_same_kind(argument->to_tensor(), from),
                  InvalidArgument, "output %zu of a delegate has another type or rank than its graph", i);
  const Tensor to = argument->to_tensor();
  TORCHETTE_TRY(resize_tensor(to, from.sizes()));
  if (to.numel() == 0) return Error::Ok;
  TORCHETTE_CHECK(to.const_data_ptr() != nullptr, InvalidArgument, "output %zu of a delegate has no memory",
                  i);
  return copy(from, to, context);
}

Error DelegateMethod::execute(BackendExecutionContext& context, Span<Value*> arguments) {
  const size_t inputs = method().inputs_size(), outputs = method().outputs_size();
  TORCHETTE_CHECK(arguments.size() == inputs + outputs, InvalidArgument,
                  "a delegate received %zu arguments, its graph has %zu inputs and %zu outputs",
                  arguments.size(), inputs, outputs);
  for (size_t i = 0; i < inputs; ++i) TORCHETTE_TRY(set_input(i, *arguments[i], context));
  for (size_t i = 0; i < outputs; ++i)
    if (method().output_needs_memory(i)) TORCHETTE_TRY(set_output(i, *arguments[inputs + i]));
  new (&memory_)
      MemoryManager(&allocator_, &planned_, context.get_temp_allocator(), memory_.dynamic_allocator());
#if TORCHETTE_EVENT_TRACER
  if (is_traced_) tracer_.begin();
#endif
  method().set_threads(context.threads());
  TORCHETTE_TRY(method().execute());
  for (size_t i = 0; i < outputs; ++i) {
    Value* const argument = arguments[inputs + i];
    TORCHETTE_TRY(method().output_needs_memory(i) ? resize_output(i, *argument)
                                                  : copy_output(i, argument, context));
  }
  return Error::Ok;
}

#if TORCHETTE_EVENT_TRACER

void PartTracer::begin() {
  logged_call_ = -1;
  set_event_tracer_profiling_level(outer_->event_tracer_profiling_level());
  const bool wants_parts =
      outer_->event_tracer_debug_level() >= EventTracerDebugLogLevel::kIntermediateOutputs;
  set_event_tracer_debug_level(wants_parts && has_taps_ ? EventTracerDebugLogLevel::kIntermediateOutputs
                                                        : EventTracerDebugLogLevel::kNoLogging);
}

EventTracerEntry PartTracer::start_profiling(const char* name, ChainID chain, DebugHandle call) {
  // loading or executing all of the method
  if (chain == kUnsetChainId || !parts_[call].is_call) return {};
  is_in_call_ = true;
  return outer_->start_profiling_delegate(name, static_cast<DelegateDebugIntId>(parts_[call].debug_handle));
}

void PartTracer::end_profiling(EventTracerEntry entry) {
  if (is_in_call_) outer_->end_profiling_delegate(entry);
  is_in_call_ = false;
}

Result<bool> PartTracer::log_evalue(const EValue& value, LoggedEValueType kind) {
  if (kind != LoggedEValueType::kIntermediateOutput) return false;  // the caller's method logs its outputs
  const int64_t call = current_debug_handle();
  const Part& part = parts_[call];
  if (part.tap == TapLayout::None || !value.is_tensor() || call == logged_call_) return false;
  logged_call_ = call;
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
