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
  /// Copies logged tensors into `buffer`, each at a 64-byte aligned offset.
  Result<bool> set_debug_buffer(Span<uint8_t> buffer);
  /// Writes logged tensors to `sink`, which the caller owns. Null removes the sink.
  void set_data_sink(DataSinkBase* sink) { sink_ = sink; }
  DataSinkBase* get_data_sink() const { return sink_; }
  /// Discards all events.
  void reset();
  /// Returns the number of runs. Loading a method is a run, and each execution is one.
  size_t get_num_blocks() const { return runs_.count + (in_run_ ? 1 : 0); }
  bool is_static_etdump() const { return is_static_; }
  /// Returns the number of events and values that were dropped for lack of space since the last reset.
  size_t num_dropped() const { return num_dropped_; }
  /// Sets whether the dump contains allocations of scratch memory by kernels. Off by default, because the
  /// Inspector of ExecuTorch 1.5 rejects dumps with such events.
  void set_allocation_events(bool on) { allocation_events_ = on; }

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
    if (allocation_events_) add_allocation(id, size);
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
  using Place = uint32_t;

  /// The tables of the schema.
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
    Place vtable;
  };
  /// A table under construction.
  struct Record {
    const Shape* shape;
    uint8_t* bytes;
    Place place;
    template <typename T>
    void put(uint16_t slot, T value) {
      memcpy(bytes + shape->positions[slot / 2 - 2], &value, sizeof(T));
    }
    void refer(uint16_t slot, Place target) {
      const uint8_t position = shape->positions[slot / 2 - 2];
      if (position != 0) {
        const uint32_t offset = place - position - target;
        memcpy(bytes + position, &offset, sizeof(offset));
      }
    }
  };
  /// A linked list of tables that a vector will list. Each table stores the previous one at byte offset 4.
  struct Chain {
    uint32_t count = 0;
    Place last = 0;
  };

  void use(Span<uint8_t> buffer);
  void release();
  bool grow(size_t size);
  uint8_t* take(size_t size, size_t alignment);
  const Shape* find_shape(Kind kind, unsigned fields);
  const Shape* make_shape(uint16_t key);
  Record make(Kind kind, unsigned fields, Chain* chain = nullptr);
  Place string(const char* text);
  Place find_string(const char* text);
  Place bytes(const void* data, size_t size);
  template <typename T>
  Place longs(Span<const T> values);
  Place list(const Chain& chain);
  Place place() const { return static_cast<Place>(end_ - cursor_); }

  void open_run(const char* name);
  void close_run();
  bool ready();
  void drop();
  EventTracerEntry start(const char* name, ChainID chain, DebugHandle instruction);
  void end(const EventTracerEntry& entry);
  EventTracerEntry start_delegate(const char* name, DelegateDebugIntId part);
  void end_delegate(const EventTracerEntry& entry, const void* metadata, size_t size);
  void add_delegate_event(const char* name, DelegateDebugIntId part, torchette_timestamp_t start,
                          torchette_timestamp_t end, const void* metadata, size_t size);
  void add_profile(Place name, ChainID chain, DebugHandle instruction, DelegateDebugIntId part,
                   bool in_delegate, torchette_timestamp_t start, torchette_timestamp_t end, Place metadata);
  bool add_plain(Place name, ChainID chain, DebugHandle instruction, torchette_timestamp_t start,
                 torchette_timestamp_t end);
  bool add_event(uint16_t slot, Place event);
  AllocatorID add_allocator(const char* name);
  void add_allocation(AllocatorID id, size_t size);
  Result<bool> log_value(const EValue& value, LoggedEValueType type);
  Result<bool> asks_for(const char* name, DelegateDebugIntId part);
  Result<bool> add_debug(const Result<Place>& value, Place name, bool in_delegate, DelegateDebugIntId part);
  template <typename T>
  Result<bool> log_part(const char* name, DelegateDebugIntId part, const T& output) {
    Result<bool> wanted = asks_for(name, part);
    if (!wanted.ok() || !*wanted) return wanted;
    return add_debug(value_of(output), string(name), true, part);
  }
  Result<Place> value_of(const Tensor& tensor, bool output = false);
  Result<Place> value_of(Span<const Tensor> tensors, bool output = false);
  Result<Place> value_of(int64_t number, bool output = false);
  Result<Place> value_of(bool number, bool output = false);
  Result<Place> value_of(double number, bool output = false);
  Result<Place> wrap(uint16_t slot, uint8_t type, Place content, bool output);
  Result<Place> tensor_record(const Tensor& tensor, Chain* chain);

  // The buffer is [base_, end_); [cursor_, end_) is written.
  uint8_t *base_ = nullptr, *cursor_ = nullptr, *end_ = nullptr;
  bool is_static_;
  bool is_done_ = false;  // get_etdump_data() has returned the dump
  bool in_run_ = false;
  bool allocation_events_ = false;
  bool closing_ = false;  // the space reserved for the end of the dump may be used
  size_t num_dropped_ = 0;
  InterpolatedClock clock_;
  torchette_timestamp_t born_ = 0;  // start time of the dump
  Chain runs_, events_, allocators_;
  size_t num_allocators_ = 0;  // of all runs
  Place run_name_ = 0;
  int run_bundled_input_ = kUnsetBundledInputIndex;
  // The last instruction that has run. Its values are logged next.
  Place last_name_ = 0;
  ChainID last_chain_ = kUnsetChainId;
  DebugHandle last_instruction_ = kUnsetDebugHandle;
  DataSinkBase* sink_ = nullptr;
  BufferDataSink buffer_sink_;
  EventTracerFilterBase* filter_ = nullptr;

  static constexpr size_t kShapes = 32, kNames = 128;
  Shape shapes_[kShapes];
  size_t num_shapes_ = 0;
  Place names_[kNames] = {};  // hash table of the strings in the file
  // Caches for most events: names by the address of their text, and vtables.
  struct {
    const char* text = nullptr;
    Place place;
  } recent_[kNames / 2];
  Place plain_profile_ = 0, plain_event_ = 0;
};

}  // namespace torchette::extension
