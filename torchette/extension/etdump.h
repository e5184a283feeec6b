// SPDX-License-Identifier: BSD-3-Clause
// ETDumpGen: a tracer that writes an ETDump (.etdp), the file that an Inspector reads, while a method runs.
// It writes to the heap or, on firmware, to a buffer of the caller.
#pragma once

#include "torchette/extension/data_sink.h"
#include "torchette/extension/interpolated_clock.h"
#include "torchette/runtime/tracer.h"

namespace torchette::extension {

/// The content of an ETDump file.
struct ETDumpResult {
  void* buf;
  size_t size;
};

/// Logs values at the debug levels that request them, if a data sink is set. If the buffer is full, drops
/// events and writes one log line; the dump remains a valid file.
class ETDumpGen : public EventTracer, public OnPlatformHeap {
 public:
  /// Writes into `buffer`, which must outlive the object and its dumps. Without a buffer, writes to memory
  /// that grows on the platform's heap. An event uses about 52 bytes, a run 60, and each distinct name about
  /// 20.
  /// The constructor is inline so that an object created by a program with RTTI has type information, which
  /// the library lacks. dynamic_cast<ETDumpGen*>(module.event_tracer()) needs it.
  ETDumpGen(Span<uint8_t> buffer = {}) : is_static_(buffer.data() != nullptr) {
    if (is_static_) use(buffer);
  }
  ETDumpGen(const ETDumpGen&) = delete;
  ETDumpGen& operator=(const ETDumpGen&) = delete;
  ~ETDumpGen() override { release(); }

  /// Ends the dump and returns its bytes, or null if nothing ran. The bytes are in the buffer or, without
  /// one, on the platform's heap. The caller frees heap memory, with free() on desktop platforms. The next
  /// event begins a new dump in the same buffer.
  ETDumpResult get_etdump_data();
  /// Copies logged tensors into `buffer`, each at an address aligned to 64 bytes.
  Result<bool> set_debug_buffer(Span<uint8_t> buffer);
  /// Writes logged tensors to `sink`, which the caller owns. Null removes the sink.
  void set_data_sink(DataSinkBase* sink) { sink_ = sink; }
  DataSinkBase* get_data_sink() const { return sink_; }
  /// Discards all events.
  void reset();
  /// Returns the number of runs. Loading a method is a run, and each execution is one.
  size_t get_num_blocks() const { return runs_.count + (is_in_run_ ? 1 : 0); }
  bool is_static_etdump() const { return is_static_; }
  /// Returns the number of events and values that were dropped for lack of space since the last reset.
  size_t num_dropped() const { return num_dropped_; }
  /// Sets whether the dump contains allocations of scratch memory by kernels. Off by default, because the
  /// Inspector of ExecuTorch 1.5 rejects dumps with such events.
  void set_allocation_events(bool on) { has_allocation_events_ = on; }

  // Virtual functions are inline for the reason in file_data_loader.h.
  void create_event_block(const char* name) override { open_run(name); }
  EventTracerEntry start_profiling(const char* name, ChainID chain = kUnsetChainId,
                                   DebugHandle instruction = kUnsetDebugHandle) override {
    return start(name, chain, instruction);
  }
  void end_profiling(EventTracerEntry entry) override { end(entry); }
  EventTracerEntry start_profiling_delegate(const char* name, DelegateDebugIntId part) override {
    return start_delegate(name, part);
  }
  void end_profiling_delegate(EventTracerEntry entry, const void* metadata, size_t size) override {
    end_delegate(entry, metadata, size);
  }
  void log_profiling_delegate(const char* name, DelegateDebugIntId part, torchette_timestamp_t start,
                              torchette_timestamp_t end, const void* metadata, size_t size) override {
    add_delegate_event(name, part, start, end, metadata, size);
  }
  AllocatorID track_allocator(const char* name) override { return add_allocator(name); }
  void track_allocation(AllocatorID id, size_t size) override {
    if (has_allocation_events_) add_allocation(id, size);
  }
  Result<bool> log_evalue(const EValue& value,
                          LoggedEValueType type = LoggedEValueType::kIntermediateOutput) override {
    return log_value(value, type);
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId part,
                                                const Tensor& output) override {
    return log_part(name, part, output);
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId part,
                                                Span<const Tensor> output) override {
    return log_part(name, part, output);
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId part,
                                                const int& output) override {
    return log_part(name, part, int64_t{output});
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId part,
                                                const bool& output) override {
    return log_part(name, part, output);
  }
  Result<bool> log_intermediate_output_delegate(const char* name, DelegateDebugIntId part,
                                                const double& output) override {
    return log_part(name, part, output);
  }
  void set_delegation_intermediate_output_filter(EventTracerFilterBase* filter) override { filter_ = filter; }

 private:
  /// The position of an object in the file, as its distance in bytes from the end of the file. 0 means none.
  /// The file grows towards its start, because the offsets in a FlatBuffer point towards the end.
  using EndOffset = uint32_t;

  /// The kinds of tables in the schema.
  enum class Kind : uint8_t {
    Dump,
    Run,
    Allocator,
    Event,
    Profile,
    Allocation,
    Debug,
    Value,
    Tensor,
    TensorList,
    Int,
    Bool,
    Double
  };
  /// The layout of a table of a kind with a certain set of fields.
  struct Shape {
    uint16_t key;  // the kind, and a bit for each field
    uint8_t size, alignment;
    uint8_t positions[8];  // of each field in the table; 0 if the field is absent
    EndOffset vtable;
  };
  /// A table under construction.
  struct Record {
    const Shape* shape;
    uint8_t* bytes;
    EndOffset end_offset;
    template <typename T>
    void set(uint16_t slot, T value) {
      memcpy(bytes + shape->positions[slot / 2 - 2], &value, sizeof(T));
    }
    void set_offset(uint16_t slot, EndOffset target) {
      const uint8_t position = shape->positions[slot / 2 - 2];
      if (position != 0) {
        const uint32_t offset = end_offset - position - target;
        memcpy(bytes + position, &offset, sizeof(offset));
      }
    }
  };
  /// A linked list of tables that a vector will list. Each table stores the previous one at byte offset 4.
  struct Chain {
    uint32_t count = 0;
    EndOffset last = 0;
  };

  void use(Span<uint8_t> buffer);
  void release();
  bool grow(size_t size);
  uint8_t* reserve(size_t size, size_t alignment);
  const Shape* find_shape(Kind kind, unsigned fields);
  const Shape* make_shape(uint16_t key);
  Record make(Kind kind, unsigned fields, Chain* chain = nullptr);
  EndOffset string(const char* text);
  EndOffset find_string(const char* text);
  EndOffset bytes(const void* data, size_t size);
  template <typename T>
  EndOffset longs(Span<const T> values);
  EndOffset list(const Chain& chain);
  EndOffset end_offset() const { return static_cast<EndOffset>(end_ - cursor_); }

  void open_run(const char* name);
  void close_run();
  bool ensure_run();
  void drop_event();
  EventTracerEntry start(const char* name, ChainID chain, DebugHandle instruction);
  void end(const EventTracerEntry& entry);
  EventTracerEntry start_delegate(const char* name, DelegateDebugIntId part);
  void end_delegate(const EventTracerEntry& entry, const void* metadata, size_t size);
  void add_delegate_event(const char* name, DelegateDebugIntId part, torchette_timestamp_t start,
                          torchette_timestamp_t end, const void* metadata, size_t size);
  void add_profile(EndOffset name, ChainID chain, DebugHandle instruction, DelegateDebugIntId part,
                   bool in_delegate, torchette_timestamp_t start, torchette_timestamp_t end,
                   EndOffset metadata);
  bool add_common_event(EndOffset name, ChainID chain, DebugHandle instruction, torchette_timestamp_t start,
                        torchette_timestamp_t end);
  bool add_event(uint16_t slot, EndOffset event);
  AllocatorID add_allocator(const char* name);
  void add_allocation(AllocatorID id, size_t size);
  Result<bool> log_value(const EValue& value, LoggedEValueType type);
  Result<bool> is_requested(const char* name, DelegateDebugIntId part);
  Result<bool> add_debug(const Result<EndOffset>& value, EndOffset name, bool in_delegate,
                         DelegateDebugIntId part);
  template <typename T>
  Result<bool> log_part(const char* name, DelegateDebugIntId part, const T& output) {
    Result<bool> requested = is_requested(name, part);
    if (!requested.ok() || !*requested) return requested;
    return add_debug(value_of(output), string(name), true, part);
  }
  Result<EndOffset> value_of(const Tensor& tensor, bool output = false);
  Result<EndOffset> value_of(Span<const Tensor> tensors, bool output = false);
  Result<EndOffset> value_of(int64_t number, bool output = false);
  Result<EndOffset> value_of(bool number, bool output = false);
  Result<EndOffset> value_of(double number, bool output = false);
  Result<EndOffset> wrap(uint16_t slot, uint8_t type, EndOffset content, bool output);
  Result<EndOffset> tensor_record(const Tensor& tensor, Chain* chain);

  // The buffer is [base_, end_); [cursor_, end_) is written.
  uint8_t *base_ = nullptr, *cursor_ = nullptr, *end_ = nullptr;
  bool is_static_;
  bool is_finished_ = false;  // get_etdump_data() has returned the dump
  bool is_in_run_ = false;
  bool has_allocation_events_ = false;
  bool is_closing_ = false;  // the space reserved for the end of the dump may be used
  size_t num_dropped_ = 0;
  InterpolatedClock clock_;
  torchette_timestamp_t start_time_ = 0;  // start time of the dump
  Chain runs_, events_, allocators_;
  size_t num_allocators_ = 0;  // of all runs
  EndOffset run_name_ = 0;
  int run_bundled_input_ = kUnsetBundledInputIndex;
  // The last instruction that has run. Its values are logged next.
  EndOffset last_name_ = 0;
  ChainID last_chain_ = kUnsetChainId;
  DebugHandle last_instruction_ = kUnsetDebugHandle;
  DataSinkBase* sink_ = nullptr;
  BufferDataSink buffer_sink_;
  EventTracerFilterBase* filter_ = nullptr;

  static constexpr size_t kMaxShapes = 32, kNameTableSize = 128;
  Shape shapes_[kMaxShapes];
  size_t num_shapes_ = 0;
  EndOffset names_[kNameTableSize] = {};  // hash table of the strings in the file
  // Caches for most events: names by the address of their text, and vtables.
  struct {
    const char* text = nullptr;
    EndOffset end_offset;
  } recent_[kNameTableSize / 2];
  EndOffset common_profile_vtable_ = 0, common_event_vtable_ = 0;
};

}  // namespace torchette::extension
