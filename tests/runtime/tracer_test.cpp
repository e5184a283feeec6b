// SPDX-License-Identifier: BSD-3-Clause
// The calls of a tracer, recorded as text: events, their order and their nesting; failed executions; a build
// without tracing.
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "check.h"
#include "test_backend.h"
#include "torchette/extension/file_data_loader.h"
#include "torchette/runtime/method.h"

using namespace torchette;

namespace {

/// Records its calls in its own memory, without a heap.
class RecordingTracer final : public EventTracer {
 public:
  static void operator delete(void*) {}

  void create_event_block(const char* name) override { write("[%s]", name); }
  EventTracerEntry start_profiling(const char* name, ChainID chain, DebugHandle handle) override {
    if (chain == kUnsetChainId)
      write("(%s", name);
    else
      write("(%s@%d.%u", name, static_cast<int>(chain), static_cast<unsigned>(handle));
    open_[depth_++ % kMaxDepth] = ++started_;
    return {started_, chain, handle, current_ticks(), DelegateDebugIdType::kNone};
  }
  void end_profiling(EventTracerEntry entry) override {
    // Events end in reverse order of their start.
    nested = nested && depth_ > 0 && entry.event_id == open_[--depth_ % kMaxDepth];
    write(")");
  }
  EventTracerEntry start_profiling_delegate(const char* name, DelegateDebugIntId id) override {
    write("{%s%d@%d.%u", name == nullptr ? "" : name, static_cast<int>(id), static_cast<int>(chain_id_),
          static_cast<unsigned>(debug_handle_));
    return {0, chain_id_, debug_handle_, 0, DelegateDebugIdType::kInt};
  }
  void end_profiling_delegate(EventTracerEntry, const void*, size_t) override { write("}"); }
  void log_profiling_delegate(const char* name, DelegateDebugIntId id, torchette_timestamp_t start,
                              torchette_timestamp_t end, const void* metadata, size_t size) override {
    write("<%s%d %u-%u %.*s>", name, static_cast<int>(id), static_cast<unsigned>(start),
          static_cast<unsigned>(end), static_cast<int>(size), static_cast<const char*>(metadata));
  }
  AllocatorID track_allocator(const char* name) override {
    write("+%s", name);
    return 5;
  }
  void track_allocation(AllocatorID id, size_t size) override {
    write(" %u:%u", static_cast<unsigned>(id), static_cast<unsigned>(size));
  }
  Result<bool> log_evalue(const EValue& value, LoggedEValueType type) override {
    const char* kind = type == LoggedEValueType::kProgramOutput ? "out" : "mid";
    if (value.isTensor())
      write("%s=%u", kind, static_cast<unsigned>(value.toTensor().nbytes()));
    else
      write("%s", kind);
    return true;
  }
  Result<bool> log_intermediate_output_delegate(const char*, DelegateDebugIntId id,
                                                const Tensor& output) override {
    write("%d=%u", static_cast<int>(id), static_cast<unsigned>(output.nbytes()));
    return true;
  }
  Result<bool> log_intermediate_output_delegate(const char*, DelegateDebugIntId,
                                                Span<const Tensor>) override {
    return false;
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId,
                                                const int& output) override {
    write("%s=%d", name, output);
    return Error::NotSupported;  // an error of the tracer has no effect
  }
  Result<bool> log_intermediate_output_delegate(const char*, DelegateDebugIntId, const bool&) override {
    return false;
  }
  Result<bool> log_intermediate_output_delegate(const char*, DelegateDebugIntId, const double&) override {
    return false;
  }
  void set_delegation_intermediate_output_filter(EventTracerFilterBase*) override {}

  /// Returns the text since the last call.
  const char* take_calls() {
    text_[size_] = 0;
    size_ = 0;
    return text_;
  }
  bool nested = true;

 private:
  __attribute__((format(printf, 2, 3))) void write(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text_ + size_, sizeof(text_) - size_, format, arguments);
    va_end(arguments);
    if (length > 0 && static_cast<size_t>(length) < sizeof(text_) - size_ - 1)
      size_ += static_cast<size_t>(length);
  }

  static constexpr size_t kMaxDepth = 8;
  int64_t started_ = 0, open_[kMaxDepth];
  size_t depth_ = 0;
  char text_[4096];
  size_t size_ = 0;
};

RecordingTracer recorder;
alignas(64) uint8_t method_pool[8192], planned_pool[512], temp_pool[256];

/// A method in static memory.
struct Loaded {
  Span<uint8_t> planned_span{planned_pool, sizeof(planned_pool)};
  MemoryAllocator method_memory{sizeof(method_pool), method_pool};
  MemoryAllocator temp{sizeof(temp_pool), temp_pool};
  HierarchicalAllocator planned{{&planned_span, 1}};
  MemoryManager manager{&method_memory, &planned, &temp};
  Result<Method> method;
  Loaded(const Program& program, const char* name, EventTracer* tracer = &recorder)
      : method(program.load_method(name, &manager, tracer)) {}
};

void check_calls(const char* expected, int line) {
  const char* const text = recorder.take_calls();
  CHECK(strcmp(text, expected) == 0);
  if (strcmp(text, expected) != 0) std::fprintf(stderr, "line %d: %s\n", line, text);
}
#define CHECK_CALLS(text) check_calls(text, __LINE__)

#if TORCHETTE_EVENT_TRACER

void kernels_and_jumps(const Program& program) {
  Loaded loaded(program, "loop");
  Method& method = *loaded.method;
  CHECK_CALLS("[Default](Method::init+temp)");
  CHECK(method.get_event_tracer() == &recorder);
  CHECK(method.set_input(Value(int64_t{2}), 0) == Error::Ok);
  CHECK_CALLS("");
  CHECK(method.execute() == Error::Ok);
  CHECK_CALLS(
      "[Execute](Method::execute(MOVE_CALL@0.0)(test::count.to@0.1)(JF_CALL@0.2)(test::count.to@0.1)"
      "(JF_CALL@0.2))");
  CHECK(recorder.current_chain_id() == kUnsetChainId);

  recorder.set_event_tracer_profiling_level(EventTracerProfilingLevel::kProfileMethodOnly);
  CHECK(method.execute() == Error::Ok);
  CHECK_CALLS("[Execute](Method::execute)");
  recorder.set_event_tracer_profiling_level(EventTracerProfilingLevel::kProfileAllEvents);

  // step() starts no event for the execution.
  CHECK(method.step() == Error::Ok && method.step() == Error::Ok);
  CHECK_CALLS("(MOVE_CALL@0.0)(test::count.to@0.1)");
  CHECK(method.reset_execution() == Error::Ok);

  // A moved method keeps its tracer.
  Method moved(std::move(method));
  CHECK(moved.execute() == Error::Ok && moved.get_event_tracer() == &recorder);
  CHECK(strlen(recorder.take_calls()) > 50);
}

void results(const Program& program) {
  Loaded loaded(program, "loop");
  CHECK(loaded.method->set_input(Value(int64_t{1}), 0) == Error::Ok);
  (void)recorder.take_calls();
  recorder.set_event_tracer_debug_level(EventTracerDebugLogLevel::kProgramOutputs);
  CHECK(loaded.method->execute() == Error::Ok);
  CHECK_CALLS("[Execute](Method::execute(MOVE_CALL@0.0)(test::count.to@0.1)(JF_CALL@0.2)out)");
  recorder.set_event_tracer_debug_level(EventTracerDebugLogLevel::kIntermediateOutputs);
  CHECK(loaded.method->execute() == Error::Ok);
  CHECK_CALLS("[Execute](Method::execute(MOVE_CALL@0.0)mid(test::count.to@0.1)midmid(JF_CALL@0.2)out)");
  recorder.set_event_tracer_debug_level(EventTracerDebugLogLevel::kNoLogging);
}

/// The events of a backend are inside the event of the delegate call and have its handle. Its scratch memory
/// is counted.
void delegates(const Program& program) {
  Loaded loaded(program, "delegated");
  CHECK(test_backend().tracer_at_init == &recorder);
  (void)recorder.take_calls();
  float pair[] = {1, 2};
  SizesType two = 2;
  StridesType one = 1;
  DimOrderType zero = 0;
  TensorImpl impl{pair, &two, &one, &zero, 2, 2, 1, ScalarType::Float, TensorShapeDynamism::STATIC};
  CHECK(loaded.method->set_input(Value(Tensor(&impl)), 0) == Error::Ok);
  CHECK(loaded.method->execute() == Error::Ok);
  CHECK_CALLS(
      "[Execute](Method::execute"
      "(DELEGATE_CALL@0.0 5:9{7@0.0}<half-1 0-5 meta><half-1 10-15 meta>7=8half=2)"
      "(DELEGATE_CALL@0.1 5:9{7@0.1}<half-1 0-5 meta><half-1 10-15 meta>7=8half=2))");
}

/// A failed or cancelled execution also ends its events.
void failures_end(const Program& program) {
  Loaded unknown(program, "backward");
  CHECK(unknown.method.error() == Error::InvalidArgument);
  CHECK_CALLS("[Default](Method::init)");
  Loaded loop(program, "loop");
  (void)recorder.take_calls();
  loop.method->set_max_loop_iterations(0);
  CHECK(loop.method->set_input(Value(int64_t{9}), 0) == Error::Ok);
  CHECK(loop.method->execute() == Error::OutOfResources);
  CHECK_CALLS("[Execute](Method::execute(MOVE_CALL@0.0)(test::count.to@0.1)(JF_CALL@0.2))");
  CHECK(loop.method->reset_execution() == Error::Ok);
  loop.method->cancel();
  CHECK(loop.method->execute() == Error::OutOfResources);
  CHECK_CALLS("[Execute](Method::execute)");
}

#else

void refused(const Program& program) {
  CHECK(Loaded(program, "loop").method.error() == Error::NotSupported);
  CHECK_CALLS("");
}

#endif

void without(const Program& program) {
  {
    Loaded loaded(program, "loop", nullptr);
    CHECK(loaded.method->get_event_tracer() == nullptr);
    CHECK(loaded.method->set_input(Value(int64_t{2}), 0) == Error::Ok);
    CHECK(loaded.method->execute() == Error::Ok && loaded.method->get_output(0).to_int() == 2);
  }
  Loaded delegated(program, "delegated", nullptr);
  CHECK(delegated.method.ok() && test_backend().tracer_at_init == nullptr);
  CHECK_CALLS("");
}

}  // namespace

void tracer_tests(const char* path) {
  Result<extension::FileDataLoader> loader = extension::FileDataLoader::from(path);
  CHECK(loader.ok());
  if (!loader.ok()) return;
  const Result<Program> program = Program::load(&*loader);
  CHECK(program.ok());
  if (!program.ok()) return;
#if TORCHETTE_EVENT_TRACER
  kernels_and_jumps(*program);
  results(*program);
  delegates(*program);
  failures_end(*program);
#else
  refused(*program);
#endif
  without(*program);
  CHECK(recorder.nested);
}
