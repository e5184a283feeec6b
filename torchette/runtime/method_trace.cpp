// SPDX-License-Identifier: BSD-3-Clause
// Executes a method with a tracer: the loop of method.cpp, with one event per instruction. A separate loop,
// so that a method without a tracer pays one comparison per execution.
#include "torchette/runtime/method.h"
#include "torchette/schema/program.h"

#if TORCHETTE_EVENT_TRACER

namespace torchette {

using Arguments = schema::InstructionArguments;

namespace {

/// ExecuTorch's event names. A kernel call has the name of its kernel.
const char* name_of(Arguments kind) {
  switch (kind) {
    case Arguments::DelegateCall:
      return "DELEGATE_CALL";
    case Arguments::MoveCall:
      return "MOVE_CALL";
    case Arguments::JumpFalseCall:
      return "JF_CALL";
    default:
      return "FREE_CALL";
  }
}

}  // namespace

/// Sequential access to the instruction records. Finding each record from the start of the file could cost
/// more than the event.
class Method::Records {
 public:
  explicit Records(const Method& method)
      : method_(method), reader_(method.program_->reader()), instruction_(reader_), kernel_call_(reader_) {}
  Records(const Records&) = delete;

  /// Moves to instruction `at` of the method.
  void seek(size_t at) {
    if (at - first_ >= records_.size()) {
      size_t index;
      method_.find_record(reader_, at, &chain_, &index);
      first_ = at - index;
      const flat::Tables chains =
          flat::Table::at(&reader_, method_.plan_).tables(schema::ExecutionPlan::kChains);
      records_ = chains[chain_].tables(schema::Chain::kInstructions);
    }
    instruction_.seek(records_, at - first_);
  }
  size_t chain() const { return chain_; }
  /// The index in the method of the chain's first instruction.
  size_t first() const { return first_; }
  Arguments kind() const { return instruction_.get<Arguments>(schema::Instruction::kInstrArgsType); }
  flat::Table call() const { return instruction_.table(schema::Instruction::kInstrArgs); }
  /// Null if the instruction is not a kernel call.
  const Kernel* kernel() {
    if (kind() != Arguments::KernelCall) return nullptr;
    kernel_call_.seek(instruction_.follow(schema::Instruction::kInstrArgs));
    return method_.kernels_[kernel_call_.get<uint32_t>(schema::KernelCall::kOpIndex)];
  }

 private:
  const Method& method_;
  flat::Reader reader_;
  flat::Tables records_;
  size_t chain_ = 0, first_ = 0;
  flat::CursorOf<schema::Instruction> instruction_;
  flat::CursorOf<schema::KernelCall> kernel_call_;
};

void Method::trace(EventTracer* event_tracer) {
  static_cast<Traced&>(*this) = Traced(event_tracer, event_tracer->track_allocator("temp"));
}

Error Method::execute_traced() {
  EventTracer& tracer = *event_tracer();
  tracer.create_event_block("Execute");
  const EventTracerProfileScope scope(&tracer, "Method::execute");
  TORCHETTE_TRY(start());
  BackendExecutionContext context = this->context();
  Records records(*this);
  while (next_ < end_.load(std::memory_order_relaxed)) TORCHETTE_TRY(run_traced(context, records));
  TORCHETTE_TRY(finish());
  if (tracer.event_tracer_debug_level() >= EventTracerDebugLogLevel::kProgramOutputs)
    for (int32_t output : outputs_)
      (void)tracer.log_evalue(value(output), LoggedEValueType::kProgramOutput).ok();
  return Error::Ok;
}

Error Method::run_traced(BackendExecutionContext& context) {
  Records records(*this);
  return run_traced(context, records);
}

/// Runs the next instruction inside its event. The event contains nothing else.
Error Method::run_traced(BackendExecutionContext& context, Records& records) {
  EventTracer& tracer = *event_tracer();
  records.seek(next_);
  const Kernel* const kernel = records.kernel();
  const auto chain = static_cast<ChainID>(records.chain());
  const auto handle = static_cast<DebugHandle>(next_ - records.first());
  const Instruction& instruction = instructions_[next_++];
  const bool all = tracer.event_tracer_profiling_level() == EventTracerProfilingLevel::kProfileAllEvents;
  tracer.set_chain_debug_handle(chain, handle);
  Error error;
  {
    const EventTracerProfileScope scope(
        all ? &tracer : nullptr, kernel != nullptr ? kernel->name : name_of(records.kind()), chain, handle);
    error = run(instruction, context);
  }
  if (error == Error::Ok &&
      tracer.event_tracer_debug_level() >= EventTracerDebugLogLevel::kIntermediateOutputs)
    log_results(kernel, records.call(), instruction);
  tracer.set_chain_debug_handle(kUnsetChainId, kUnsetDebugHandle);
  return error == Error::Ok ? error : explain(error);
}

/// Logs the values that the instruction has written.
void Method::log_results(const Kernel* kernel, const flat::Table& call,
                         const Instruction& instruction) const {
  const auto log = [this](const Value& value) {
    if (!value.isString())
      (void)event_tracer()->log_evalue(value, LoggedEValueType::kIntermediateOutput).ok();
  };
  if (kernel != nullptr) {
    const Span<const int32_t> arguments = call.vector<int32_t>(schema::KernelCall::kArgs);
    const char* code = kernel->signature;
    for (size_t i = 0; *code != 0; ++i, ++code) {
      if (*code == '?') ++code;
      if (is_written(code)) log(value(arguments[i]));
    }
    return;
  }
  const auto& control = *static_cast<const Control*>(instruction.argument);
  if (control.kind == Control::Kind::Move) log(value(control.b));
  if (control.kind != Control::Kind::Delegate) return;
  const Delegate& delegate = delegates_[static_cast<size_t>(control.a)];
  for (size_t i = delegate.backend->num_inputs(delegate.handle); i < control.delegate_arguments.size(); ++i)
    log(*control.delegate_arguments[i]);
}

}  // namespace torchette

#endif
