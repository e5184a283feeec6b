// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's first profiler, which ETDump has replaced. Stores events in static memory, in the format of
// profiler_results_cli. A program that defines PROFILING_ENABLED turns on its macros. A tracer records the
// events of a method: load_method(name, &memory_manager, &executorch::runtime::profiler_tracer()). Only one
// thread at a time may use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "torchette/extension/compat/runtime.h"

#define ET_PROF_VER 1
#define PROF_NAME_MAX_LEN 32
// The capacity of a block and the number of blocks. A program may define other values.
#ifndef MAX_PROFILE_EVENTS
#define MAX_PROFILE_EVENTS 1024
#endif
#ifndef MAX_MEM_PROFILE_EVENTS
#define MAX_MEM_PROFILE_EVENTS 1024
#endif
#ifndef MEM_PROFILE_MAX_ALLOCATORS
#define MEM_PROFILE_MAX_ALLOCATORS 32
#endif
#ifndef MAX_PROFILE_BLOCKS
#define MAX_PROFILE_BLOCKS 2
#endif

namespace executorch::runtime {

struct alignas(8) prof_event_t {
  union {
    const char* name_str;
    char name[PROF_NAME_MAX_LEN];
  };
  int32_t chain_idx;
  uint32_t instruction_idx;
  uint64_t start_time;
  uint64_t end_time;
};
struct alignas(8) mem_prof_event_t {
  uint32_t allocator_id;
  uint32_t allocation_size;
};
struct alignas(8) prof_allocator_t {
  char name[PROF_NAME_MAX_LEN];
  uint64_t allocator_id;
};
struct alignas(8) prof_result_t {
  uint8_t* prof_data;
  uint32_t num_bytes;
  uint32_t num_blocks;
};
struct alignas(8) prof_header_t {
  char name[32];
  uint32_t prof_ver;
  uint32_t max_prof_entries;
  uint32_t prof_entries;
  uint32_t max_allocator_entries;
  uint32_t allocator_entries;
  uint32_t max_mem_prof_entries;
  uint32_t mem_prof_entries;
};
struct prof_state_t {
  int32_t chain_idx;
  uint32_t instruction_idx;
};

/// A block with four parts, without gaps between them.
struct ProfileBlock {
  prof_header_t header;
  prof_event_t events[MAX_PROFILE_EVENTS];
  prof_allocator_t allocators[MEM_PROFILE_MAX_ALLOCATORS];
  mem_prof_event_t allocations[MAX_MEM_PROFILE_EVENTS];
};
constexpr uint32_t prof_buf_size = sizeof(ProfileBlock);
constexpr size_t prof_header_offset = offsetof(ProfileBlock, header);
constexpr size_t prof_events_offset = offsetof(ProfileBlock, events);
constexpr size_t prof_mem_alloc_info_offset = offsetof(ProfileBlock, allocators);
constexpr size_t prof_mem_alloc_events_offset = offsetof(ProfileBlock, allocations);

inline ProfileBlock profile_blocks[MAX_PROFILE_BLOCKS];
inline uint32_t num_profile_blocks = 0;
inline thread_local prof_state_t profile_state{-1, 0};

inline const prof_state_t& get_profile_tls_state() { return profile_state; }
inline void set_profile_tls_state(const prof_state_t& state) { profile_state = state; }

/// Starts a block. If all blocks are used, the last block continues and the log has a line.
inline void profiling_create_block(const char* name) {
  if (num_profile_blocks == MAX_PROFILE_BLOCKS) {
    TORCHETTE_LOG(Error, "no block for %s: MAX_PROFILE_BLOCKS is %d", name, MAX_PROFILE_BLOCKS);
    return;
  }
  prof_header_t& header = profile_blocks[num_profile_blocks++].header;
  header = {};
  strncpy(header.name, name, sizeof(header.name) - 1);
  header.prof_ver = ET_PROF_VER;
  header.max_prof_entries = MAX_PROFILE_EVENTS;
  header.max_allocator_entries = MEM_PROFILE_MAX_ALLOCATORS;
  header.max_mem_prof_entries = MAX_MEM_PROFILE_EVENTS;
}
inline void reset_profile_stats() { num_profile_blocks = 0; }
inline void profiler_init() {
  reset_profile_stats();
  profiling_create_block("default");
}
/// Returns the current block, which receives events.
inline ProfileBlock& profile_block() {
  if (num_profile_blocks == 0) profiler_init();
  return profile_blocks[num_profile_blocks - 1];
}

/// The token of an event that was dropped.
constexpr uint32_t kNoProfileEvent = UINT32_MAX;

/// Starts an event and copies its name. If the block is full, drops the event and logs a line.
inline uint32_t begin_profiling(const char* name) {
  ProfileBlock& block = profile_block();
  if (block.header.prof_entries == MAX_PROFILE_EVENTS) {
    TORCHETTE_LOG(Error, "cannot record %s: MAX_PROFILE_EVENTS is %d", name, MAX_PROFILE_EVENTS);
    return kNoProfileEvent;
  }
  prof_event_t& event = block.events[block.header.prof_entries];
  memset(event.name, 0, sizeof(event.name));
  strncpy(event.name, name, sizeof(event.name) - 1);
  event.chain_idx = profile_state.chain_idx;
  event.instruction_idx = profile_state.instruction_idx;
  event.end_time = 0;
  event.start_time = pal_current_ticks();
  return block.header.prof_entries++;
}
/// Ends an event of the current block.
inline void end_profiling(uint32_t token_id) {
  ProfileBlock& block = profile_block();
  if (token_id < block.header.prof_entries) block.events[token_id].end_time = pal_current_ticks();
}
inline uint32_t track_allocator(const char* name) {
  ProfileBlock& block = profile_block();
  if (block.header.allocator_entries == MEM_PROFILE_MAX_ALLOCATORS) {
    TORCHETTE_LOG(Error, "cannot record %s: MEM_PROFILE_MAX_ALLOCATORS is %d", name,
                  MEM_PROFILE_MAX_ALLOCATORS);
    return kNoProfileEvent;
  }
  prof_allocator_t& allocator = block.allocators[block.header.allocator_entries];
  memset(allocator.name, 0, sizeof(allocator.name));
  strncpy(allocator.name, name, sizeof(allocator.name) - 1);
  allocator.allocator_id = block.header.allocator_entries;
  return block.header.allocator_entries++;
}
inline void track_allocation(int32_t id, uint32_t size) {
  ProfileBlock& block = profile_block();
  if (id < 0 || block.header.mem_prof_entries == MAX_MEM_PROFILE_EVENTS) return;
  block.allocations[block.header.mem_prof_entries++] = {static_cast<uint32_t>(id), size};
}
/// Returns the blocks in static memory, which the next event changes.
inline void dump_profile_stats(prof_result_t* prof_result) {
  prof_result->prof_data = reinterpret_cast<uint8_t*>(profile_blocks);
  prof_result->num_blocks = num_profile_blocks;
  prof_result->num_bytes = num_profile_blocks * prof_buf_size;
}

/// Records an event from its construction to the end of the scope.
class ExecutorchProfiler {
 public:
  explicit ExecutorchProfiler(const char* name) : token_(begin_profiling(name)) {}
  ExecutorchProfiler(const ExecutorchProfiler&) = delete;
  ExecutorchProfiler& operator=(const ExecutorchProfiler&) = delete;
  ~ExecutorchProfiler() { end_profiling(token_); }

 private:
  uint32_t token_;
};
/// Assigns the events in the scope to an instruction.
class ExecutorchProfilerInstructionScope {
 public:
  explicit ExecutorchProfilerInstructionScope(const prof_state_t& state) : before_(profile_state) {
    profile_state = state;
  }
  ExecutorchProfilerInstructionScope(const ExecutorchProfilerInstructionScope&) = delete;
  ExecutorchProfilerInstructionScope& operator=(const ExecutorchProfilerInstructionScope&) = delete;
  ~ExecutorchProfilerInstructionScope() { profile_state = before_; }

 private:
  prof_state_t before_;
};

/// A tracer that writes the events of methods to the blocks. It does not log values.
class ProfilerTracer final : public EventTracer {
 public:
  void create_event_block(const char* name) override { profiling_create_block(name); }
  EventTracerEntry start_profiling(const char* name, ChainID chain, DebugHandle instruction) override {
    if (chain != kUnsetChainId) chain_id_ = chain, debug_handle_ = instruction;
    const ExecutorchProfilerInstructionScope scope(prof_state_t{chain_id_, debug_handle_});
    EventTracerEntry entry{};
    entry.event_id = begin_profiling(name);
    return entry;
  }
  void end_profiling(EventTracerEntry entry) override {
    runtime::end_profiling(static_cast<uint32_t>(entry.event_id));
  }
  EventTracerEntry start_profiling_delegate(const char* name, DelegateDebugIntId part) override {
    char number[16];
    snprintf(number, sizeof(number), "%d", part);
    return start_profiling(name != nullptr ? name : number, chain_id_, debug_handle_);
  }
  void end_profiling_delegate(EventTracerEntry entry, const void*, size_t) override { end_profiling(entry); }
  void log_profiling_delegate(const char* name, DelegateDebugIntId part, torchette_timestamp_t start,
                              torchette_timestamp_t end, const void*, size_t) override {
    const auto token = static_cast<uint32_t>(start_profiling_delegate(name, part).event_id);
    if (token == kNoProfileEvent) return;
    profile_block().events[token].start_time = start;
    profile_block().events[token].end_time = end;
  }
  AllocatorID track_allocator(const char* name) override { return runtime::track_allocator(name); }
  void track_allocation(AllocatorID id, size_t size) override {
    runtime::track_allocation(static_cast<int32_t>(id), static_cast<uint32_t>(size));
  }
  Result<bool> log_evalue(const EValue&, LoggedEValueType) override { return false; }
  Result<bool> log_intermediate_output_delegate(const char*, DelegateDebugIntId,
                                                const ::torchette::Tensor&) override {
    return false;
  }
  Result<bool> log_intermediate_output_delegate(const char*, DelegateDebugIntId,
                                                Span<const ::torchette::Tensor>) override {
    return false;
  }
  Result<bool> log_intermediate_output_delegate(const char*, DelegateDebugIntId, const int&) override {
    return false;
  }
  Result<bool> log_intermediate_output_delegate(const char*, DelegateDebugIntId, const bool&) override {
    return false;
  }
  Result<bool> log_intermediate_output_delegate(const char*, DelegateDebugIntId, const double&) override {
    return false;
  }
  void set_delegation_intermediate_output_filter(EventTracerFilterBase*) override {}
};
inline ProfilerTracer& profiler_tracer() {
  static ProfilerTracer tracer;
  return tracer;
}

}  // namespace executorch::runtime

namespace torch::executor {
using ::executorch::runtime::begin_profiling;
using ::executorch::runtime::dump_profile_stats;
using ::executorch::runtime::end_profiling;
using ::executorch::runtime::ExecutorchProfiler;
using ::executorch::runtime::ExecutorchProfilerInstructionScope;
using ::executorch::runtime::get_profile_tls_state;
using ::executorch::runtime::mem_prof_event_t;
using ::executorch::runtime::prof_allocator_t;
using ::executorch::runtime::prof_buf_size;
using ::executorch::runtime::prof_event_t;
using ::executorch::runtime::prof_events_offset;
using ::executorch::runtime::prof_header_offset;
using ::executorch::runtime::prof_header_t;
using ::executorch::runtime::prof_mem_alloc_events_offset;
using ::executorch::runtime::prof_mem_alloc_info_offset;
using ::executorch::runtime::prof_result_t;
using ::executorch::runtime::prof_state_t;
using ::executorch::runtime::profiler_init;
using ::executorch::runtime::profiling_create_block;
using ::executorch::runtime::reset_profile_stats;
using ::executorch::runtime::set_profile_tls_state;
using ::executorch::runtime::track_allocation;
using ::executorch::runtime::track_allocator;
}  // namespace torch::executor

#ifdef PROFILING_ENABLED
#define EXECUTORCH_PROFILE_CREATE_BLOCK(name) ::executorch::runtime::profiling_create_block(name);
#define EXECUTORCH_BEGIN_PROF(name) ::executorch::runtime::begin_profiling(name);
#define EXECUTORCH_END_PROF(token_id) ::executorch::runtime::end_profiling(token_id);
#define TORCHETTE_PROFILER_NAME(prefix, line) prefix##line
#define TORCHETTE_PROFILER_AT(line) TORCHETTE_PROFILER_NAME(torchette_profiler_, line)
#define EXECUTORCH_SCOPE_PROF(name) \
  ::executorch::runtime::ExecutorchProfiler TORCHETTE_PROFILER_AT(__LINE__)(name);
#define EXECUTORCH_PROFILE_INSTRUCTION_SCOPE(chain_idx, instruction_idx)                     \
  ::executorch::runtime::ExecutorchProfilerInstructionScope TORCHETTE_PROFILER_AT(__LINE__)( \
      ::executorch::runtime::prof_state_t{chain_idx, instruction_idx});
#define EXECUTORCH_DUMP_PROFILE_RESULTS(prof_result) ::executorch::runtime::dump_profile_stats(prof_result);
#define EXECUTORCH_RESET_PROFILE_RESULTS() ::executorch::runtime::reset_profile_stats();
#define EXECUTORCH_TRACK_ALLOCATOR(name) ::executorch::runtime::track_allocator(name);
#define EXECUTORCH_TRACK_ALLOCATION(id, size) ::executorch::runtime::track_allocation(id, size);
#else
#define EXECUTORCH_PROFILE_CREATE_BLOCK(name) static_cast<void>(name)
#define EXECUTORCH_BEGIN_PROF(name) \
  {                                 \
  }
#define EXECUTORCH_END_PROF(token_id) static_cast<void>(token_id)
#define EXECUTORCH_SCOPE_PROF(name) static_cast<void>(name)
#define EXECUTORCH_PROFILE_INSTRUCTION_SCOPE(chain_idx, instruction_idx) \
  (static_cast<void>(chain_idx), static_cast<void>(instruction_idx))
#define EXECUTORCH_DUMP_PROFILE_RESULTS(prof_result) \
  memset(prof_result, 0, sizeof(::executorch::runtime::prof_result_t));
#define EXECUTORCH_RESET_PROFILE_RESULTS() \
  {                                        \
  }
#define EXECUTORCH_TRACK_ALLOCATOR(name) (static_cast<void>(name), -1)
#define EXECUTORCH_TRACK_ALLOCATION(id, size) (static_cast<void>(id), static_cast<void>(size))
#endif
