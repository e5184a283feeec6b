// SPDX-License-Identifier: BSD-3-Clause
// Executes a method that has a tracer: the same walk as in method.cpp, and each instruction is an event. A
// loop by itself, so that a method without a tracer pays one comparison for each execution.
#include "torchette/runtime/method.h"
#include "torchette/schema/program.h"

#if TORCHETTE_EVENT_TRACER

namespace torchette {

using Arguments = schema::InstructionArguments;

namespace {

/// ExecuTorch's names; a kernel call has its kernel's.
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

void Method::trace(EventTracer* event_tracer) {
  static_cast<Traced&>(*this) = Traced(event_tracer, event_tracer->track_allocator("temp"));
}

Error Method::execute_traced() {
  EventTracer& tracer = *event_tracer();
  tracer.create_event_block("Execute");
  const EventTracerProfileScope scope(&tracer, "Method::execute");
  TORCHETTE_TRY(start());
  BackendExecutionContext context = this->context();
  while (next_ < end_.load(std::memory_order_relaxed)) TORCHETTE_TRY(run_traced(context));
  TORCHETTE_TRY(finish());
  if (tracer.event_tracer_debug_level() >= EventTracerDebugLogLevel::kProgramOutputs)
    for (int32_t output : outputs_)
      (void)tracer.log_evalue(value(output), LoggedEValueType::kProgramOutput).ok();
  return Error::Ok;
}

/// The next instruction, with its event around it and nothing else in that.
Error Method::run_traced(BackendExecutionContext& context) {
  EventTracer& tracer = *event_tracer();
  flat::Reader reader = program_->reader();
  size_t chain, index;
  const flat::Table record = find_record(reader, next_, &chain, &index);
  const auto kind = record.get<Arguments>(schema::Instruction::kInstrArgsType);
  const flat::Table call = record.table(schema::Instruction::kInstrArgs);
  const Kernel* kernel =
      kind == Arguments::KernelCall ? kernels_[call.get<uint32_t>(schema::KernelCall::kOpIndex)] : nullptr;
  const Instruction& instruction = instructions_[next_++];
  const bool all = tracer.event_tracer_profiling_level() == EventTracerProfilingLevel::kProfileAllEvents;
  const auto handle = static_cast<DebugHandle>(index);
  tracer.set_chain_debug_handle(static_cast<ChainID>(chain), handle);
  Error error;
  {
    const EventTracerProfileScope scope(all ? &tracer : nullptr,
                                        kernel != nullptr ? kernel->name : name_of(kind),
                                        static_cast<ChainID>(chain), handle);
    error = run(instruction, context);
  }
  if (error == Error::Ok &&
      tracer.event_tracer_debug_level() >= EventTracerDebugLogLevel::kIntermediateOutputs)
    log_results(kernel, call, instruction);
  tracer.set_chain_debug_handle(kUnsetChainId, kUnsetDebugHandle);
  return error == Error::Ok ? error : explain(error);
}

/// What the instruction has written.
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
