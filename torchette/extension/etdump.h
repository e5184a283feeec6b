// SPDX-License-Identifier: BSD-3-Clause
// ETDumpGen: a tracer that writes an ETDump, the .etdp file that Inspectors read, while the method runs. On
// the heap, or in a buffer of the caller, where it is fit for firmware.
#pragma once

#include "torchette/extension/data_sink.h"
#include "torchette/extension/interpolated_clock.h"
#include "torchette/runtime/tracer.h"

namespace torchette::extension {

/// The bytes of a file.
struct ETDumpResult {
  void* buf;
  size_t size;
};

/// Values are logged at the debug levels that ask for them, where there is a data sink. An event that finds
/// no room is left out, one log line says so, and the dump stays a whole file.
class ETDumpGen : public EventTracer, public OnPlatformHeap {
 public:
  /// Writes into `buffer`, which must outlive it and what it gives; where there is none, into memory that
  /// grows on the platform's heap. An event takes about 52 bytes, a name 20 once, a run 60.
  /// Inline: an object that a program with RTTI makes has that program's type information, which the library
  /// has not, and dynamic_cast<ETDumpGen*>(module.event_tracer()) finds it.
  ETDumpGen(Span<uint8_t> buffer = {}) : is_static_(buffer.data() != nullptr) {
    if (is_static_) use(buffer);
  }
  ETDumpGen(const ETDumpGen&) = delete;
  ETDumpGen& operator=(const ETDumpGen&) = delete;
  ~ETDumpGen() override { release(); }

  /// Ends the dump and gives its bytes: inside of the buffer, or else on the platform's heap, and then the
  /// caller's to free (with free(), on a desk). Nothing where there was no run. What is told afterwards
  /// begins a new dump, in the same buffer.
  ETDumpResult get_etdump_data();
  /// Tensors are copied into `buffer`, each from a multiple of 64 bytes.
  Result<bool> set_debug_buffer(Span<uint8_t> buffer);
  /// Tensors are given to `sink`, which is the caller's; null for none.
  void set_data_sink(DataSinkBase* sink) { sink_ = sink; }
  DataSinkBase* get_data_sink() const { return sink_; }
  /// Forgets all events.
  void reset();
  /// How many runs there are: loading a method is one, and so is each execution.
  size_t get_num_blocks() const { return runs_.count + (in_run_ ? 1 : 0); }
  bool is_static_etdump() const { return is_static_; }
  /// Events and values that found no room since the last reset.
  size_t num_dropped() const { return num_dropped_; }
  /// Whether scratch memory that kernels ask for is in the dump. Off at first: the Inspector of
  /// ExecuTorch 1.5 refuses dumps with such events.
  void set_allocation_events(bool on) { allocation_events_ = on; }

  // virtual functions are inline: see file_data_loader.h
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
  /// Where an object of the file starts: its bytes to the end of the file; 0 for none. The file grows towards
  /// its start, since offsets in it lead towards the end.
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
  /// A kind of table with certain fields, all of them there.
  struct Shape {
    uint16_t key;  // the kind, and a bit for each field
    uint8_t size, alignment;
    uint8_t positions[8];  // of each field in the table; 0 where it is not there
    Place vtable;
  };
  /// A table that is being filled.
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
  /// Tables that a vector will list, each of which knows the one before: after its first four bytes.
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

  // the bytes: [base_, end_), of which [cursor_, end_) are written
  uint8_t *base_ = nullptr, *cursor_ = nullptr, *end_ = nullptr;
  bool is_static_;
  bool is_done_ = false;  // the dump was given away
  bool in_run_ = false;
  bool allocation_events_ = false;
  bool closing_ = false;  // the room that was kept for the end may be used
  size_t num_dropped_ = 0;
  InterpolatedClock clock_;
  torchette_timestamp_t born_ = 0;  // when the dump began
  Chain runs_, events_, allocators_;
  size_t num_allocators_ = 0;  // of all runs
  Place run_name_ = 0;
  int run_bundled_input_ = kUnsetBundledInputIndex;
  // the last instruction that has run, whose values are logged next
  Place last_name_ = 0;
  ChainID last_chain_ = kUnsetChainId;
  DebugHandle last_instruction_ = kUnsetDebugHandle;
  DataSinkBase* sink_ = nullptr;
  BufferDataSink buffer_sink_;
  EventTracerFilterBase* filter_ = nullptr;

  static constexpr size_t kShapes = 32, kNames = 128;
  Shape shapes_[kShapes];
  size_t num_shapes_ = 0;
  Place names_[kNames] = {};  // strings of the file, by their hash
  // what most events are made of: names at the addresses that they had last, and vtables
  struct {
    const char* text = nullptr;
    Place place;
  } recent_[kNames / 2];
  Place plain_profile_ = 0, plain_event_ = 0;
};

}  // namespace torchette::extension
