// SPDX-License-Identifier: BSD-3-Clause
// EventTracer: whom a method, its backends and its kernels tell what they do and when. Names are
// ExecuTorch's. What is done with it, a table or a file, is the tracer's own affair.
#pragma once

#include <type_traits>

#include "torchette/runtime/platform.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/value.h"

// 1: methods take a tracer. 0: there is none anywhere, and what would ask it is not compiled. A program says
// the same as the library that it links: CMake's targets do it for theirs.
#ifndef TORCHETTE_EVENT_TRACER
#define TORCHETTE_EVENT_TRACER 1
#endif

namespace torchette {

using AllocatorID = uint32_t;
using ChainID = int32_t;
/// Of an instruction: its place in its chain.
using DebugHandle = uint32_t;
/// A backend's own number of a part of its graph, as in the debug_handle_map of its PreprocessResult.
using DelegateDebugIntId = int32_t;

constexpr ChainID kUnsetChainId = -1;
constexpr DebugHandle kUnsetDebugHandle = 0;
constexpr DelegateDebugIntId kUnsetDelegateDebugIntId = -1;
constexpr int kUnsetBundledInputIndex = -1;

/// What names a delegate's event: nothing since it is none, a number or a text.
enum class DelegateDebugIdType { kNone, kInt, kStr };
enum class LoggedEValueType { kIntermediateOutput = 0, kProgramOutput = 1 };
enum class EventTracerDebugLogLevel { kNoLogging, kProgramOutputs, kIntermediateOutputs };
enum class EventTracerProfilingLevel { kProfileMethodOnly, kProfileAllEvents };

/// An event that has started; made by start_profiling() for end_profiling().
struct EventTracerEntry {
  int64_t event_id;
  ChainID chain_id;
  DebugHandle debug_handle;
  torchette_timestamp_t start_time;
  DelegateDebugIdType delegate_event_id_type;
};

/// Which intermediate results of delegates are worth logging.
class EventTracerFilterBase {
 public:
  virtual Result<bool> filter(const char* name, DelegateDebugIntId delegate_debug_index) = 0;
  virtual ~EventTracerFilterBase() = default;
};

/// Times are current_ticks() of the platform. A method calls its tracer on the thread that executes it, and
/// never from two at once; one tracer may serve several methods that take turns. Names that the runtime gives
/// stay valid as long as the program, others until the call returns. A tracer without a heap gives its class
/// an empty `operator delete`, so that firmware links none.
class EventTracer {
 public:
  /// What follows is one group: "Default" while a method loads, "Execute" for each execution.
  virtual void create_event_block(const char* name) = 0;
  virtual EventTracerEntry start_profiling(const char* name, ChainID chain_id = kUnsetChainId,
                                           DebugHandle debug_handle = kUnsetDebugHandle) = 0;
  virtual void end_profiling(EventTracerEntry entry) = 0;
  /// Of a backend: a part of its graph, by number, by name or by both.
  virtual EventTracerEntry start_profiling_delegate(const char* name,
                                                    DelegateDebugIntId delegate_debug_index) = 0;
  virtual void end_profiling_delegate(EventTracerEntry entry, const void* metadata = nullptr,
                                      size_t metadata_len = 0) = 0;
  /// Both at once, where the backend learns the times afterwards.
  virtual void log_profiling_delegate(const char* name, DelegateDebugIntId delegate_debug_index,
                                      torchette_timestamp_t start_time, torchette_timestamp_t end_time,
                                      const void* metadata = nullptr, size_t metadata_len = 0) = 0;
  virtual AllocatorID track_allocator(const char* name) = 0;
  virtual void track_allocation(AllocatorID id, size_t size) = 0;
  /// A result, at the debug levels that ask for it. Whether it was logged.
  virtual Result<bool> log_evalue(const EValue& evalue, LoggedEValueType evalue_type) = 0;
  /// Of a delegate.
  virtual Result<bool> log_intermediate_output_delegate(const char* name,
                                                        DelegateDebugIntId delegate_debug_index,
                                                        const Tensor& output) = 0;
  virtual Result<bool> log_intermediate_output_delegate(const char* name,
                                                        DelegateDebugIntId delegate_debug_index,
                                                        Span<const Tensor> output) = 0;
  virtual Result<bool> log_intermediate_output_delegate(const char* name,
                                                        DelegateDebugIntId delegate_debug_index,
                                                        const int& output) = 0;
  virtual Result<bool> log_intermediate_output_delegate(const char* name,
                                                        DelegateDebugIntId delegate_debug_index,
                                                        const bool& output) = 0;
  virtual Result<bool> log_intermediate_output_delegate(const char* name,
                                                        DelegateDebugIntId delegate_debug_index,
                                                        const double& output) = 0;
  /// `filter` is the caller's; null for none.
  virtual void set_delegation_intermediate_output_filter(EventTracerFilterBase* filter) = 0;

  /// The instruction that runs, which a delegate's events belong to.
  void set_chain_debug_handle(ChainID chain_id, DebugHandle debug_handle) {
    chain_id_ = chain_id;
    debug_handle_ = debug_handle;
  }
  ChainID current_chain_id() const { return chain_id_; }
  DebugHandle current_debug_handle() const { return debug_handle_; }
  /// Which case of a bundled program runs.
  void set_bundled_input_index(int index) { bundled_input_index_ = index; }
  int bundled_input_index() const { return bundled_input_index_; }
  void set_event_tracer_debug_level(EventTracerDebugLogLevel level) { event_tracer_debug_level_ = level; }
  EventTracerDebugLogLevel event_tracer_debug_level() const { return event_tracer_debug_level_; }
  void set_event_tracer_profiling_level(EventTracerProfilingLevel level) {
    event_tracer_profiling_level_ = level;
  }
  EventTracerProfilingLevel event_tracer_profiling_level() const { return event_tracer_profiling_level_; }

  virtual ~EventTracer() = default;

 protected:
  ChainID chain_id_ = kUnsetChainId;
  DebugHandle debug_handle_ = kUnsetDebugHandle;
  int bundled_input_index_ = kUnsetBundledInputIndex;
  EventTracerDebugLogLevel event_tracer_debug_level_ = EventTracerDebugLogLevel::kNoLogging;
  EventTracerProfilingLevel event_tracer_profiling_level_ = EventTracerProfilingLevel::kProfileAllEvents;
};

/// A base of whatever has a tracer, perhaps null. Without tracing it takes no room, and what is done `if
/// (event_tracer() != nullptr)` is not compiled.
class Traced {
 public:
#if TORCHETTE_EVENT_TRACER
  explicit Traced(EventTracer* event_tracer = nullptr, AllocatorID allocator = 0)
      : event_tracer_(event_tracer), allocator_(allocator) {}
  EventTracer* event_tracer() const { return event_tracer_; }

 protected:
  /// Of scratch memory.
  AllocatorID allocator_id() const { return allocator_; }

 private:
  EventTracer* event_tracer_;
  AllocatorID allocator_;
#else
  explicit Traced(EventTracer* = nullptr, AllocatorID = 0) {}
  constexpr EventTracer* event_tracer() const { return nullptr; }

 protected:
  constexpr AllocatorID allocator_id() const { return 0; }
#endif
};

/// An event from here to the end of the scope; none without a tracer.
class EventTracerProfileScope {
 public:
  EventTracerProfileScope(EventTracer* event_tracer, const char* name, ChainID chain_id = kUnsetChainId,
                          DebugHandle debug_handle = kUnsetDebugHandle)
      : event_tracer_(event_tracer) {
    if (event_tracer_ != nullptr) entry_ = event_tracer_->start_profiling(name, chain_id, debug_handle);
  }
  EventTracerProfileScope(const EventTracerProfileScope&) = delete;
  EventTracerProfileScope& operator=(const EventTracerProfileScope&) = delete;
  ~EventTracerProfileScope() {
    if (event_tracer_ != nullptr) event_tracer_->end_profiling(entry_);
  }

 private:
  EventTracer* event_tracer_;
  EventTracerEntry entry_;
};

// ---- for backends: `event_tracer`, of their context, may be null ----

inline EventTracerEntry event_tracer_start_profiling_delegate(EventTracer* event_tracer, const char* name,
                                                              DelegateDebugIntId delegate_debug_id) {
  return event_tracer != nullptr ? event_tracer->start_profiling_delegate(name, delegate_debug_id)
                                 : EventTracerEntry();
}

inline void event_tracer_end_profiling_delegate(EventTracer* event_tracer, EventTracerEntry entry,
                                                const void* metadata = nullptr, size_t metadata_len = 0) {
  if (event_tracer != nullptr) event_tracer->end_profiling_delegate(entry, metadata, metadata_len);
}

inline void event_tracer_log_profiling_delegate(EventTracer* event_tracer, const char* name,
                                                DelegateDebugIntId delegate_debug_id,
                                                torchette_timestamp_t start_time,
                                                torchette_timestamp_t end_time,
                                                const void* metadata = nullptr, size_t metadata_len = 0) {
  if (event_tracer != nullptr)
    event_tracer->log_profiling_delegate(name, delegate_debug_id, start_time, end_time, metadata,
                                         metadata_len);
}

/// `output`: a tensor, a list of them, an int, a bool or a double.
template <typename T>
void event_tracer_log_output_delegate(EventTracer* event_tracer, const char* name,
                                      DelegateDebugIntId delegate_debug_id, const T& output) {
  static_assert(std::is_same_v<T, Tensor> || std::is_same_v<T, Span<const Tensor>> ||
                    std::is_same_v<T, int> || std::is_same_v<T, bool> || std::is_same_v<T, double>,
                "a tensor, a list of tensors or a number");
  if (event_tracer != nullptr)
    (void)event_tracer->log_intermediate_output_delegate(name, delegate_debug_id, output).ok();
}

}  // namespace torchette
