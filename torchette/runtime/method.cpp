// SPDX-License-Identifier: BSD-3-Clause
// Executes a loaded method. An instruction is {function, arguments}; most instructions are kernel calls.
#include "torchette/runtime/method.h"

namespace torchette {
namespace {

const Value kNone;

bool is_plain(const Value& value) { return value.is_none() || value.is_scalar(); }

}  // namespace

// Not in the header: a call is less code than the initialisation of all members.
MethodParts::MethodParts(const Program* program, size_t plan, MemoryManager* memory,
                         const NamedDataMap* external)
    : program_(program), plan_(plan), memory_(memory), external_(external) {}

Method::Method(Method&& other) noexcept
    : MethodParts(other), end_(other.end_.load(std::memory_order_relaxed)) {
  other.delegates_ = {};
}

Method::~Method() {
  for (Delegate& delegate : delegates_) {
    if (delegate.backend != nullptr) delegate.backend->destroy(delegate.handle);
    delegate.processed.~FreeableBuffer();
  }
}

// --- Inputs and outputs
// --------------------------------------------------------------------------------------------

Error Method::set_input(const Value& input, size_t index) {
  TORCHETTE_CHECK(index < inputs_.size(), InvalidArgument, "input %zu does not exist, inputs: %zu", index,
                  inputs_.size());
  Value& slot = value(inputs_[index]);
  const uint8_t slot_flags = flags(inputs_[index]);
  Input& state = input_state_[index];
  if (!slot.is_tensor()) {
    // A scalar that an instruction reads is a symbolic value; any other was a constant of the export.
    if (slot.is_scalar() && input.is_scalar() && (slot_flags & kUsed) != 0) {
      TORCHETTE_CHECK(slot.tag() == input.tag(), InvalidArgument, "input %zu has kind %d, expected %d", index,
                      static_cast<int>(input.tag()), static_cast<int>(slot.tag()));
      slot = input;
      return Error::Ok;
    }
    bool same = slot.tag() == input.tag();
    if (same && slot.is_scalar()) {
      same = slot.same_bits(input);
    } else if (same && slot.tag() == Tag::String) {
      const Span<const char> a = slot.to_string(), b = input.to_string();
      same = a.size() == b.size() && memcmp(a.data(), b.data(), a.size()) == 0;
    }
    TORCHETTE_CHECK(same, InvalidArgument, "input %zu must be the value that the model was exported with",
                    index);
    return Error::Ok;
  }

  TORCHETTE_CHECK(input.is_tensor(), InvalidArgument, "input %zu must be a tensor", index);
  const Tensor source = input.to_tensor();
  const Tensor target = slot.to_tensor();
  TensorImpl& impl = *target.unsafe_impl();
  TORCHETTE_CHECK(source.scalar_type() == impl.type, InvalidArgument, "input %zu has dtype %d, expected %d",
                  index, static_cast<int>(source.scalar_type()), static_cast<int>(impl.type));
  TORCHETTE_CHECK(source.dim() == impl.dim, InvalidArgument, "input %zu has rank %zd, expected %u", index,
                  source.dim(), impl.dim);
  for (size_t d = 0; d < impl.dim; ++d) {
    const SizesType size = source.sizes()[d];
    const SizesType* range = state.bound + d * state.step;
    const SizesType min = state.has_min ? *range : 0, max = range[state.step - 1];
    TORCHETTE_CHECK(size >= min && size <= max, InvalidArgument,
                    "input %zu has size %d in dimension %zu, expected %d to %d", index,
                    static_cast<int>(size), d, static_cast<int>(min), static_cast<int>(max));
  }
  StridesType strides[kMaxDim];
  const Result<int32_t> numel = dense_strides(source.sizes(), impl.dim_order, strides);
  TORCHETTE_CHECK(numel.ok(), InvalidArgument, "input %zu is too large", index);
  for (size_t d = 0; d < impl.dim; ++d)
    TORCHETTE_CHECK(source.sizes()[d] == 1 || *numel == 0 || source.strides()[d] == strides[d],
                    InvalidArgument,
                    "input %zu has stride %d in dimension %zu, expected %d (its dim order, without gaps)",
                    index, static_cast<int>(source.strides()[d]), d, static_cast<int>(strides[d]));
  TORCHETTE_CHECK(source.const_data_ptr() != nullptr || *numel == 0, InvalidArgument, "input %zu has no data",
                  index);
  const bool is_caller_memory = (slot_flags & kCallerMemory) != 0;
  if (is_caller_memory) impl.capacity = static_cast<size_t>(*numel);
  TORCHETTE_TRY(resize_tensor(target, source.sizes()));
  if (is_caller_memory) {
    impl.data = source.mutable_data_ptr();
  } else if (impl.data != source.const_data_ptr() && *numel != 0) {
    memmove(impl.data, source.const_data_ptr(), source.nbytes());
  }
  state.set = true;
  return Error::Ok;
}

Error Method::set_inputs(Span<const Value> values) {
  TORCHETTE_CHECK(values.size() == inputs_.size(), InvalidArgument, "expected %zu inputs, got %zu",
                  inputs_.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) TORCHETTE_TRY(set_input(values[i], i));
  return Error::Ok;
}

bool Method::output_needs_memory(size_t index) const {
  return index < outputs_.size() && (flags(outputs_[index]) & (kCallerMemory | kInput)) == kCallerMemory;
}

Error Method::set_output_data_ptr(void* buffer, size_t size, size_t index) {
  TORCHETTE_CHECK(index < outputs_.size(), InvalidArgument, "output %zu does not exist, outputs: %zu", index,
                  outputs_.size());
  const Value& output = value(outputs_[index]);
  TORCHETTE_CHECK(output.is_tensor(), InvalidArgument, "output %zu is not a tensor", index);
  TORCHETTE_CHECK(output_needs_memory(index), NotSupported,
                  "output %zu has its own memory: copy it after the execution", index);
  TensorImpl& impl = *output.to_tensor().unsafe_impl();
  // The maximum shape counts, not the shape that the last execution left.
  const size_t needed = impl.capacity * element_size(impl.type);
  TORCHETTE_CHECK(size >= needed && (buffer != nullptr || needed == 0), InvalidArgument,
                  "output %zu needs %zu bytes, the buffer has %zu", index, needed, size);
  TORCHETTE_CHECK(is_aligned_for(buffer, impl.type), InvalidArgument,
                  "the buffer of output %zu is not aligned", index);
  impl.data = buffer;
  return Error::Ok;
}

const Value& Method::get_output(size_t index) const {
  return index < outputs_.size() ? value(outputs_[index]) : kNone;
}

const Value& Method::get_input(size_t index) const {
  return index < inputs_.size() ? value(inputs_[index]) : kNone;
}

bool Method::writes_input(size_t index) const {
  return index < inputs_.size() && (flags(inputs_[index]) & kWritten) != 0;
}

// --- Execution
// -----------------------------------------------------------------------------------------------------

Error Method::start() {
  for (size_t i = 0; i < inputs_.size(); ++i)
    TORCHETTE_CHECK(input_state_[i].set, InvalidState, "input %zu is not set", i);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const Value& output = value(outputs_[i]);
    if (!output.is_tensor()) continue;
    const TensorImpl& impl = *output.to_tensor().unsafe_impl();
    TORCHETTE_CHECK(impl.data != nullptr || impl.capacity == 0, InvalidState,
                    "output %zu has no memory: see set_output_data_ptr", i);
  }
  if (has_unbacked_) {
    for (size_t i = 0; i < values_.size(); ++i)
      if ((flags_[i] & kUnbacked) != 0) values_[i].to_tensor().unsafe_impl()->data = nullptr;
  }
  loop_iterations_left_ = max_loop_iterations_;
  next_ = 0;
  return Error::Ok;
}

Error Method::reset_execution() {
  next_ = 0;
  end_.store(instructions_.size(), std::memory_order_relaxed);
  return Error::Ok;
}

Error Method::execute() {
#if TORCHETTE_EVENT_TRACER
  if (event_tracer() != nullptr) return execute_traced();
#endif
  TORCHETTE_TRY(start());
  BackendExecutionContext context = this->context();
  while (next_ < end_.load(std::memory_order_relaxed)) {
    const Error error = run(instructions_[next_++], context);
    if (TORCHETTE_UNLIKELY(error != Error::Ok)) return explain(error);
  }
  return finish();
}

/// Ends an execution that has reached end_: the last instruction, or 0 after cancel().
Error Method::finish() {
  const bool complete = next_ >= instructions_.size();
  TORCHETTE_TRY(reset_execution());
  TORCHETTE_CHECK(complete, OutOfResources, "the execution was cancelled");
  return Error::Ok;
}

Error Method::step() {
  if (next_ == 0) TORCHETTE_TRY(start());
  if (next_ >= end_.load(std::memory_order_relaxed))
    return next_ < instructions_.size() ? finish() : Error::EndOfMethod;
  BackendExecutionContext context = this->context();
#if TORCHETTE_EVENT_TRACER
  if (event_tracer() != nullptr) return run_traced(context);
#endif
  const Error error = run(instructions_[next_++], context);
  return error == Error::Ok ? error : explain(error);
}

Error Method::run_control(const Control& control, BackendExecutionContext& context) {
  switch (control.kind) {
    case Control::Kind::CheckedKernel:
      TORCHETTE_TRY(check_backed(control));
      // Without this, the kernel could write through a view that an earlier loop iteration created.
      if (control.defines_last)
        value(control.arguments[control.arguments.size() - 1]).to_tensor().unsafe_impl()->data = nullptr;
      return control.function(context, {values_.data(), control.arguments.data()});
    case Control::Kind::Move:
      return move(control.a, control.b);
    case Control::Kind::JumpFalse: {
      const Value& condition = value(control.a);
      bool holds = true;
      if (condition.is_tensor()) {
        const Tensor tensor = condition.to_tensor();
        TORCHETTE_CHECK(tensor.const_data_ptr() != nullptr || tensor.numel() == 0, InvalidState,
                        "a jump depends on a tensor without memory");
        const auto* bytes = tensor.const_data_ptr<uint8_t>();
        for (ptrdiff_t i = 0; i < tensor.numel(); ++i) holds = holds && bytes[i] != 0;
      } else {
        holds = condition.to_bool();
      }
      if (holds) return Error::Ok;
      const auto target = static_cast<size_t>(control.b);
      if (target < next_) {
        TORCHETTE_CHECK(loop_iterations_left_ != 0, OutOfResources,
                        "the loops reached %u iterations: see set_max_loop_iterations",
                        static_cast<unsigned>(max_loop_iterations_));
        --loop_iterations_left_;
      }
      next_ = target;
      return Error::Ok;
    }
    case Control::Kind::Free:
      if (value(control.a).is_tensor()) reserve_tensor(*value(control.a).to_tensor().unsafe_impl(), 0);
      return Error::Ok;
    case Control::Kind::Delegate: {
      const Delegate& delegate = delegates_[static_cast<size_t>(control.a)];
      return delegate.backend->execute(context, delegate.handle, control.delegate_arguments);
    }
  }
  return Error::Internal;
}

/// Checks that the arguments have data. A view has no data until its own instruction has run, and jumps may
/// skip it.
Error Method::check_backed(const Control& control) const {
  const auto backed = [](const Value& v) {
    const TensorImpl* impl = v.is_tensor() ? v.to_tensor().unsafe_impl() : nullptr;
    return impl == nullptr || impl->data != nullptr || impl->numel == 0;
  };
  const size_t n = control.arguments.size() - (control.defines_last ? 1 : 0);
  for (size_t i = 0; i < n; ++i) {
    const Value& argument = value(control.arguments[i]);
    bool ok = backed(argument);
    if (argument.tag() == Tag::ListTensor || argument.tag() == Tag::ListOptionalTensor) {
      const BoxedList& list = *argument.boxed_list();
      const auto* index = static_cast<const int32_t*>(list.indices);
      for (uint32_t k = 0; k < list.size; ++k) ok = ok && (index[k] < 0 || backed(value(index[k])));
    }
    TORCHETTE_CHECK(ok, InvalidState, "argument %zu is a tensor without memory", i);
  }
  return Error::Ok;
}

Error Method::move(int32_t from, int32_t to) {
  Value& target = value(to);
  const Value& source = value(from);
  if (is_plain(target)) {
    target = source;
    return Error::Ok;
  }
  const Tensor a = source.to_tensor(), b = target.to_tensor();
  TORCHETTE_CHECK(a.const_data_ptr() != nullptr || a.numel() == 0, InvalidState,
                  "a move reads a tensor without memory");
  TORCHETTE_TRY(resize_tensor(b, a.sizes()));
  if (b.const_data_ptr() == nullptr) {
    b.unsafe_impl()->data = a.mutable_data_ptr();
  } else if (a.numel() != 0) {
    memmove(b.mutable_data_ptr(), a.const_data_ptr(), a.nbytes());
  }
  return Error::Ok;
}

const char* BackendExecutionContext::get_method_name() const {
  return method_ == nullptr ? nullptr : method_->method_meta().name();
}

}  // namespace torchette
