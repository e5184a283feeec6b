// SPDX-License-Identifier: BSD-3-Clause
// EventTracer: receives the events of a method, its backends and its kernels, and decides how to store them.
// Names are those of ExecuTorch.
#pragma once

#include <type_traits>

#include "torchette/runtime/platform.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/value.h"

// 1: methods support a tracer. 0: they do not, and no tracing code is compiled. A program and the library
// that it links must use the same value; CMake targets inherit it.
#ifndef TORCHETTE_EVENT_TRACER
#define TORCHETTE_EVENT_TRACER 1
#endif

namespace torchette {

using AllocatorID = uint32_t;
using ChainID = int32_t;
/// The index of an instruction in its chain.
using DebugHandle = uint32_t;
/// A backend's identifier of a part of its graph, as in the debug_handle_map of its PreprocessResult.
using DelegateDebugIntId = int32_t;

constexpr ChainID kUnsetChainId = -1;
constexpr DebugHandle kUnsetDebugHandle = 0;
constexpr DelegateDebugIntId kUnsetDelegateDebugIntId = -1;
constexpr int kUnsetBundledInputIndex = -1;

/// The identifier of an event: none (not an event of a delegate), an integer, or a string.
enum class DelegateDebugIdType { kNone, kInt, kStr };
enum class LoggedEValueType { kIntermediateOutput = 0, kProgramOutput = 1 };
enum class EventTracerDebugLogLevel { kNoLogging, kProgramOutputs, kIntermediateOutputs };
enum class EventTracerProfilingLevel { kProfileMethodOnly, kProfileAllEvents };

/// A started event; start_profiling() returns it, end_profiling() accepts it.
struct EventTracerEntry {
  int64_t event_id;
  ChainID chain_id;
  DebugHandle debug_handle;
  torchette_timestamp_t start_time;
  DelegateDebugIdType delegate_event_id_type;
};

/// Selects the intermediate results of delegates that are logged.
class EventTracerFilterBase {
 public:
  virtual Result<bool> filter(const char* name, DelegateDebugIntId delegate_debug_index) = 0;
  virtual ~EventTracerFilterBase() = default;
};

/// Times are those of current_ticks(). A method calls its tracer on the executing thread and never
/// concurrently. Several methods may share a tracer if they do not run concurrently. Names that the runtime
/// passes stay valid as long as the program; other names are valid until the call returns. A tracer for
/// firmware defines an empty `operator delete`, so that no heap is linked.
class EventTracer {
 public:
  /// Starts a group of events: "Default" while a method loads, "Execute" for each execution.
  virtual void create_event_block(const char* name) = 0;
  virtual EventTracerEntry start_profiling(const char* name, ChainID chain_id = kUnsetChainId,
                                           DebugHandle debug_handle = kUnsetDebugHandle) = 0;
  virtual void end_profiling(EventTracerEntry entry) = 0;
  /// For backends: starts the event of a part of the graph, identified by integer, name or both.
  virtual EventTracerEntry start_profiling_delegate(const char* name,
                                                    DelegateDebugIntId delegate_debug_index) = 0;
  virtual void end_profiling_delegate(EventTracerEntry entry, const void* metadata = nullptr,
                                      size_t metadata_len = 0) = 0;
  /// Records an event with given times, for a backend that learns them after the execution.
  virtual void log_profiling_delegate(const char* name, DelegateDebugIntId delegate_debug_index,
                                      torchette_timestamp_t start_time, torchette_timestamp_t end_time,
                                      const void* metadata = nullptr, size_t metadata_len = 0) = 0;
  virtual AllocatorID track_allocator(const char* name) = 0;
  virtual void track_allocation(AllocatorID id, size_t size) = 0;
  /// Logs a value if the debug level includes its type. Returns whether it was logged.
  virtual Result<bool> log_evalue(const EValue& evalue, LoggedEValueType evalue_type) = 0;
  /// The same for a value of a delegate.
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
  /// The caller owns `filter`; null removes the filter.
  virtual void set_delegation_intermediate_output_filter(EventTracerFilterBase* filter) = 0;

  /// Sets the current instruction. Events of delegates belong to it.
  void set_chain_debug_handle(ChainID chain_id, DebugHandle debug_handle) {
    chain_id_ = chain_id;
    debug_handle_ = debug_handle;
  }
  ChainID current_chain_id() const { return chain_id_; }
  DebugHandle current_debug_handle() const { return debug_handle_; }
  /// The current case of a bundled program.
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

/// Base of classes with a tracer, which may be null. In a build without tracing it has no members, and code
/// after `if (event_tracer() != nullptr)` is not compiled.
class Traced {
 public:
#if TORCHETTE_EVENT_TRACER
  explicit Traced(EventTracer* event_tracer = nullptr, AllocatorID allocator = 0)
      : event_tracer_(event_tracer), allocator_(allocator) {}
  EventTracer* event_tracer() const { return event_tracer_; }

 protected:
  /// Identifies the scratch memory in track_allocation().
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

/// An event that lasts until the end of the scope. Does nothing if the tracer is null.
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

// Functions for backends. `event_tracer` is that of their context and may be null.

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

/// `output` is a tensor, a list of tensors, an int, a bool or a double.
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
