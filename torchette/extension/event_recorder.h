// SPDX-License-Identifier: BSD-3-Clause
// EventRecorder: a tracer that stores the start and end time of each event and passes each value to an
// observer when it is written. Requires a heap.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "torchette/runtime/tracer.h"

namespace torchette::extension {

/// A timed event, in current_ticks() of the platform. An event is nested in the events that began before it
/// and have not ended.
struct RecordedEvent {
  size_t block;  // index in EventRecorder::blocks()
  std::string
      name;       // of a kernel, of another instruction, of a part of a delegate, or of a step of the method
  ChainID chain;  // of the instruction; kUnsetChainId for the method itself
  DebugHandle instruction;  // index in the chain
  bool in_delegate;         // logged by a backend
  DelegateDebugIntId part;  // the backend's identifier of the event, or kUnsetDelegateDebugIntId
  torchette_timestamp_t begin, end;
};

/// A value that an instruction or a part of a delegate has just written.
struct ObservedValue {
  ChainID chain;
  DebugHandle instruction;  // index in the chain
  size_t step;              // index among the instructions begun in this execution, repetitions included
  bool in_delegate;         // an intermediate value of a backend
  DelegateDebugIntId part;  // the backend's identifier of the value, or kUnsetDelegateDebugIntId
  const char* name;         // the backend's name of the value, or null
  const EValue& value;      // valid until the observer returns, because memory is reused
};
using ValueObserver = std::function<void(const ObservedValue&)>;

/// Passes values to the observer and does not store them, so that memory use does not depend on their size.
class EventRecorder final : public EventTracer {
 public:
  /// Returns the names of the blocks: "Default" for loading, "Execute" for each execution.
  const std::vector<std::string>& blocks() const { return blocks_; }
  /// Returns the events in the order of their start.
  const std::vector<RecordedEvent>& events() const { return events_; }
  /// Discards all blocks and events.
  void clear() {
    blocks_.clear();
    events_.clear();
  }

  /// Calls `observer` on the executing thread for each value that an instruction writes. An empty function
  /// removes the observer.
  void observe(ValueObserver observer) {
    observer_ = std::move(observer);
    set_event_tracer_debug_level(observer_ ? EventTracerDebugLogLevel::kIntermediateOutputs
                                           : EventTracerDebugLogLevel::kNoLogging);
  }

  void create_event_block(const char* name) override {
    blocks_.emplace_back(name);
    steps_ = 0;
  }
  EventTracerEntry start_profiling(const char* name, ChainID chain, DebugHandle instruction) override {
    if (chain != kUnsetChainId) ++steps_;
    return start({block(), text(name), chain, instruction, false, kUnsetDelegateDebugIntId, 0, 0});
  }
  void end_profiling(EventTracerEntry entry) override { end(entry); }
  EventTracerEntry start_profiling_delegate(const char* name, DelegateDebugIntId part) override {
    return start({block(), text(name), chain_id_, debug_handle_, true, part, 0, 0});
  }
  void end_profiling_delegate(EventTracerEntry entry, const void*, size_t) override { end(entry); }
  void log_profiling_delegate(const char* name, DelegateDebugIntId part, torchette_timestamp_t begin,
                              torchette_timestamp_t end, const void*, size_t) override {
    events_.push_back({block(), text(name), chain_id_, debug_handle_, true, part, begin, end});
  }

  AllocatorID track_allocator(const char*) override { return 0; }
  void track_allocation(AllocatorID, size_t) override {}
  Result<bool> log_evalue(const EValue& value, LoggedEValueType type) override {
    if (type == LoggedEValueType::kProgramOutput) return false;
    return show(false, nullptr, kUnsetDelegateDebugIntId, value);
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId part,
                                                const Tensor& output) override {
    return show(true, name, part, EValue(output));
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId part,
                                                Span<const Tensor> output) override {
    for (const Tensor& each : output) show(true, name, part, EValue(each));
    return static_cast<bool>(observer_);
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId part,
                                                const int& output) override {
    return show(true, name, part, EValue(static_cast<int64_t>(output)));
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId part,
                                                const bool& output) override {
    return show(true, name, part, EValue(output));
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId part,
                                                const double& output) override {
    return show(true, name, part, EValue(output));
  }
  void set_delegation_intermediate_output_filter(EventTracerFilterBase*) override {}

 private:
  static std::string text(const char* name) { return name == nullptr ? "" : name; }
  bool show(bool in_delegate, const char* name, DelegateDebugIntId part, const EValue& value) {
    if (!observer_) return false;
    observer_({chain_id_, debug_handle_, steps_ == 0 ? 0 : steps_ - 1, in_delegate, part, name, value});
    return true;
  }
  size_t block() const { return blocks_.empty() ? 0 : blocks_.size() - 1; }
  EventTracerEntry start(RecordedEvent event) {
    const auto id = static_cast<int64_t>(events_.size());
    events_.push_back(std::move(event));
    RecordedEvent& it = events_.back();
    // Read the clock last, so that the event does not include the work above.
    it.begin = it.end = current_ticks();
    return {id, it.chain, it.instruction, it.begin, DelegateDebugIdType::kNone};
  }
  void end(const EventTracerEntry& entry) {
    const torchette_timestamp_t now = current_ticks();
    const auto id = static_cast<size_t>(entry.event_id);
    if (id < events_.size()) events_[id].end = now;
  }

  std::vector<std::string> blocks_;
  std::vector<RecordedEvent> events_;
  ValueObserver observer_;
  size_t steps_ = 0;  // instructions that have begun in this execution
};

}  // namespace torchette::extension
