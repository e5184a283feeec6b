// SPDX-License-Identifier: BSD-3-Clause
// Writes the ETDump file from its end to its start, because offsets in a FlatBuffer point towards the end. An
// event is written when it ends. The vector that lists the events is written when their number is known;
// space for it is reserved.
#include "torchette/extension/etdump.h"

#include <cstring>

#include "torchette/schema/etdump.h"

namespace torchette::extension {
namespace {

namespace schema = torchette::schema::etdump;

constexpr size_t kFirstSize = 16 * 1024, kMaxBytes = size_t{1} << 30;
// An upper bound of the bytes that end a run and the dump: tables, vtables and vectors without their items.
constexpr size_t kReservedBytes = 256;
constexpr unsigned kProbes = 4;

struct Fields {
  const uint8_t* widths;
  uint8_t count;
  bool is_linked;  // a vector lists tables of this kind
};

template <typename T>
constexpr Fields fields_of(bool is_linked = false) {
  return {T::kWidths, sizeof(T::kWidths), is_linked};
}

// Indexed by Kind.
constexpr Fields kFields[] = {
    fields_of<schema::ETDump>(),     fields_of<schema::RunData>(true),  fields_of<schema::Allocator>(true),
    fields_of<schema::Event>(true),  fields_of<schema::ProfileEvent>(), fields_of<schema::AllocationEvent>(),
    fields_of<schema::DebugEvent>(), fields_of<schema::Value>(),        fields_of<schema::Tensor>(true),
    fields_of<schema::TensorList>(), fields_of<schema::Int>(),          fields_of<schema::Bool>(),
    fields_of<schema::Double>(),
};

constexpr unsigned bit(uint16_t slot) { return 1u << (slot / 2 - 2); }
constexpr unsigned bit(uint16_t slot, bool there) { return there ? bit(slot) : 0; }

constexpr size_t round_up(size_t size, size_t alignment) { return (size + alignment - 1) & ~(alignment - 1); }

size_t hash_of(const char* text, size_t size) {
  uint64_t hash = size, word;
  for (; size >= 8; size -= 8, text += 8) {
    memcpy(&word, text, 8);
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  for (word = 0; size > 0; --size) word = word << 8 | static_cast<uint8_t>(text[size - 1]);
  return static_cast<size_t>((hash ^ word) * 0x9E3779B97F4A7C15u >> 40);
}

}  // namespace

void ETDumpGen::use(Span<uint8_t> buffer) {
  // Values are aligned to their size, counted from the end.
  const auto end = reinterpret_cast<uintptr_t>(buffer.data() + buffer.size());
  const size_t excess = end % 8;
  if (buffer.size() < excess) return;
  base_ = buffer.data();
  cursor_ = end_ = base_ + buffer.size() - excess;
}

void ETDumpGen::release() {
  if (!is_static_ && base_ != nullptr) platform_free(base_);
  base_ = cursor_ = end_ = nullptr;
}

void ETDumpGen::reset() {
  cursor_ = end_;
  is_finished_ = is_in_run_ = false;
  runs_ = events_ = allocators_ = {};
  num_allocators_ = num_dropped_ = 0;
  last_name_ = 0;
  last_chain_ = kUnsetChainId;
  num_shapes_ = 0;
  memset(names_, 0, sizeof(names_));
  for (auto& it : recent_) it.text = nullptr;
  common_profile_vtable_ = common_event_vtable_ = 0;
  start_time_ = clock_.now();
}

Result<bool> ETDumpGen::set_debug_buffer(Span<uint8_t> buffer) {
  Result<BufferDataSink> sink = BufferDataSink::create(buffer);
  if (!sink.ok()) return sink.error();
  buffer_sink_ = std::move(*sink);
  sink_ = &buffer_sink_;
  return true;
}

// --- Bytes

/// Makes space for `size` more bytes. Returns false if the memory cannot be allocated.
TORCHETTE_NOINLINE bool ETDumpGen::grow(size_t size) {
  if (is_static_) return false;
  const auto used = static_cast<size_t>(end_ - cursor_), old_capacity = static_cast<size_t>(end_ - base_);
  size_t capacity = old_capacity == 0 ? kFirstSize : old_capacity;
  while (capacity - used < size) {
    if (capacity >= kMaxBytes) return false;
    capacity *= 2;
  }
  auto* const new_base = static_cast<uint8_t*>(platform_allocate(capacity));
  if (new_base == nullptr) return false;
  if (used != 0) memcpy(new_base + capacity - used, cursor_, used);
  release();
  base_ = new_base;
  end_ = new_base + capacity;
  cursor_ = end_ - used;
  return true;
}

/// Reserves `size` bytes in front of the written ones. The distance of the first byte from the end is a
/// multiple of `alignment`. Returns null if there is no space.
uint8_t* ETDumpGen::reserve(size_t size, size_t alignment) {
  if (size > kMaxBytes) return nullptr;
  const auto used = static_cast<size_t>(end_ - cursor_);
  const size_t needed = round_up(used + size, alignment) - used;
  const size_t num_reserved =
      is_closing_ ? 0 : kReservedBytes + 4 * (events_.count + allocators_.count + runs_.count);
  if (needed + num_reserved > static_cast<size_t>(cursor_ - base_) && !grow(needed + num_reserved))
    return nullptr;
  cursor_ -= needed;
  if (needed != size) memset(cursor_ + size, 0, needed - size);
  return cursor_;
}

const ETDumpGen::Shape* ETDumpGen::find_shape(Kind kind, unsigned fields) {
  const auto key = static_cast<uint16_t>(static_cast<unsigned>(kind) << 8 | fields);
  const size_t num_cached = num_shapes_ < kMaxShapes ? num_shapes_ : kMaxShapes;
  for (size_t i = 0; i < num_cached; ++i)
    if (shapes_[i].key == key) return &shapes_[i];
  return make_shape(key);
}

/// Computes the layout of a table with these fields and writes its vtable. The only gap is in front of the
/// 8-byte fields.
const ETDumpGen::Shape* ETDumpGen::make_shape(uint16_t key) {
  const Fields& kind = kFields[key >> 8];
  Shape shape{};
  shape.key = key;
  shape.alignment = 4;
  size_t size = kind.is_linked ? 8 : 4, count = 0;
  for (const uint8_t width : {4, 8, 1})
    for (size_t i = 0; i < kind.count; ++i) {
      if (kind.widths[i] != width || (key >> i & 1) == 0) continue;
      size = round_up(size, width);
      shape.positions[i] = static_cast<uint8_t>(size);
      size += width;
      if (width > shape.alignment) shape.alignment = width;
      if (i >= count) count = i + 1;
    }
  shape.size = static_cast<uint8_t>(size);
  uint16_t vtable[2 + sizeof(shape.positions)] = {static_cast<uint16_t>(4 + 2 * count), shape.size};
  for (size_t i = 0; i < count; ++i) vtable[2 + i] = shape.positions[i];
  uint8_t* const bytes = reserve(vtable[0], 4);
  if (bytes == nullptr) return nullptr;
  memcpy(bytes, vtable, vtable[0]);
  shape.vtable = end_offset();
  Shape& cached = shapes_[num_shapes_++ % kMaxShapes];
  cached = shape;
  return &cached;
}

/// Adds a table. The caller fills in its fields before it adds another object. `bytes` is null if there is no
/// space.
ETDumpGen::Record ETDumpGen::make(Kind kind, unsigned fields, Chain* chain) {
  const Shape* const shape = find_shape(kind, fields);
  uint8_t* const bytes = shape == nullptr ? nullptr : reserve(shape->size, shape->alignment);
  if (bytes == nullptr) return {nullptr, nullptr, 0};
  const EndOffset end_offset = this->end_offset();
  const uint32_t to_vtable = shape->vtable - end_offset;  // signed in the file
  memcpy(bytes, &to_vtable, sizeof(to_vtable));
  if (kFields[static_cast<size_t>(kind)].is_linked) {
    const EndOffset previous = chain == nullptr ? 0 : chain->last;
    memcpy(bytes + 4, &previous, sizeof(previous));
  }
  if (chain != nullptr) {
    chain->last = end_offset;
    ++chain->count;
  }
  return {shape, bytes, end_offset};
}

/// Stores a string once, or again if other strings have replaced it in the hash table. Returns 0 for an empty
/// string or if there is no space.
ETDumpGen::EndOffset ETDumpGen::string(const char* text) {
  if (text == nullptr || *text == 0) return 0;
  const size_t size = strlen(text), hash = hash_of(text, size);
  size_t slot = hash % kNameTableSize;
  for (unsigned i = 0; i < kProbes; ++i) {
    const EndOffset entry = names_[(hash + i) % kNameTableSize];
    if (entry == 0) {
      slot = (hash + i) % kNameTableSize;
      break;
    }
    const uint8_t* const stored = end_ - entry;
    uint32_t length;
    memcpy(&length, stored, sizeof(length));
    if (length == size && memcmp(stored + sizeof(length), text, size) == 0) return entry;
  }
  uint8_t* const stored = size > kMaxBytes ? nullptr : reserve(4 + size + 1, 4);
  if (stored == nullptr) return 0;
  const auto length = static_cast<uint32_t>(size);
  memcpy(stored, &length, sizeof(length));
  memcpy(stored + 4, text, size + 1);
  return names_[slot] = end_offset();
}

/// Stores a vector of bytes. Returns 0 if `size` is 0 or if there is no space.
ETDumpGen::EndOffset ETDumpGen::bytes(const void* data, size_t size) {
  uint8_t* const stored = size == 0 || size > kMaxBytes ? nullptr : reserve(4 + size, 4);
  if (stored == nullptr) return 0;
  const auto length = static_cast<uint32_t>(size);
  memcpy(stored, &length, sizeof(length));
  memcpy(stored + 4, data, size);
  return end_offset();
}

/// Stores a vector of 64-bit integers: a tensor's sizes or strides.
template <typename T>
ETDumpGen::EndOffset ETDumpGen::longs(Span<const T> values) {
  // The items are aligned to 8 bytes; the count in front of them is not.
  if (reserve(8 * values.size(), 8) == nullptr || reserve(4, 4) == nullptr) return 0;
  const auto count = static_cast<uint32_t>(values.size());
  memcpy(cursor_, &count, sizeof(count));
  for (size_t i = 0; i < count; ++i) {
    const int64_t value = values[i];
    memcpy(cursor_ + 4 + 8 * i, &value, sizeof(value));
  }
  return end_offset();
}

/// Stores the vector of a chain's tables in the order in which they were added. Returns 0 if there is no
/// space.
ETDumpGen::EndOffset ETDumpGen::list(const Chain& chain) {
  uint8_t* const stored = reserve(4 + 4 * chain.count, 4);
  if (stored == nullptr) return 0;
  const EndOffset start = end_offset();
  memcpy(stored, &chain.count, 4);
  EndOffset target = chain.last;
  for (uint32_t i = chain.count; i > 0; --i) {
    const uint32_t offset = start - 4 * i - target;
    memcpy(stored + 4 * i, &offset, sizeof(offset));
    memcpy(&target, end_ - target + 4, sizeof(target));
  }
  return start;
}

// --- Runs

void ETDumpGen::open_run(const char* name) {
  if (is_finished_) reset();
  close_run();
  if (runs_.count == 0) {
    clock_.prepare();
    start_time_ = clock_.now();
  }
  const size_t num_reserved = kReservedBytes + 4 * (runs_.count + 1);
  if (num_reserved > static_cast<size_t>(cursor_ - base_) && !grow(num_reserved)) return;
  is_in_run_ = true;
  run_name_ = string(name);
  run_bundled_input_ = bundled_input_index_;
}

void ETDumpGen::close_run() {
  if (!is_in_run_) return;
  using Run = schema::RunData;
  is_closing_ = true;
  const EndOffset events = list(events_), allocators = allocators_.count == 0 ? 0 : list(allocators_);
  Record run = make(Kind::Run,
                    bit(Run::kName, run_name_ != 0) | bit(Run::kBundledInputIndex) |
                        bit(Run::kAllocators, allocators != 0) | bit(Run::kEvents),
                    &runs_);
  run.set_offset(Run::kName, run_name_);
  run.set(Run::kBundledInputIndex, run_bundled_input_);
  run.set_offset(Run::kAllocators, allocators);
  run.set_offset(Run::kEvents, events);
  is_closing_ = is_in_run_ = false;
  events_ = allocators_ = {};
}

/// Opens a run if there is none. Returns whether a run is open.
bool ETDumpGen::ensure_run() {
  if (!is_in_run_) open_run("Default");
  return is_in_run_;
}

void ETDumpGen::drop_event() {
  if (num_dropped_++ == 0)
    TORCHETTE_LOG(Error, "dropped an event: no space after %zu bytes of ETDump and %zu bytes of values",
                  static_cast<size_t>(end_offset()), sink_ == nullptr ? 0 : sink_->get_used_bytes());
}

ETDumpResult ETDumpGen::get_etdump_data() {
  if (!is_finished_) {
    close_run();
    if (runs_.count == 0) return {nullptr, 0};
    is_closing_ = true;
    const EndOffset runs = list(runs_);
    Record dump = make(Kind::Dump, bit(schema::ETDump::kRunData));
    dump.set_offset(schema::ETDump::kRunData, runs);
    uint8_t* const head = reserve(12, 8);
    const uint32_t size = end_offset() - 4, to_root = size - dump.end_offset;
    memcpy(head, &size, 4);
    memcpy(head + 4, &to_root, 4);
    memcpy(head + 8, schema::kFileIdentifier, 4);
    is_closing_ = false;
    is_finished_ = true;
  }
  const ETDumpResult result{cursor_, static_cast<size_t>(end_ - cursor_)};
  if (is_static_ || result.size == 0) return result;
  // The caller frees the start of the allocation.
  memmove(base_, cursor_, result.size);
  void* const dump_bytes = base_;
  base_ = cursor_ = end_ = nullptr;
  return {dump_bytes, result.size};
}

// --- Events

EventTracerEntry ETDumpGen::start(const char* name, ChainID chain, DebugHandle instruction) {
  if (chain == kUnsetChainId) {
    chain = chain_id_;
    instruction = debug_handle_;
  }
  const EndOffset end_offset = ensure_run() ? string(name) : 0;
  // Read the clock last, so that the event does not include the work above.
  return {end_offset, chain, instruction, clock_.now(), DelegateDebugIdType::kNone};
}

void ETDumpGen::end(const EventTracerEntry& entry) {
  const torchette_timestamp_t now = clock_.now();
  const auto name = static_cast<EndOffset>(entry.event_id);
  if (entry.chain_id != kUnsetChainId) {
    last_name_ = name;
    last_chain_ = entry.chain_id;
    last_instruction_ = entry.debug_handle;
  }
  if (static_cast<int64_t>(entry.start_time - start_time_) < 0) return;  // the event began in an earlier dump
  add_profile(name, entry.chain_id, entry.debug_handle, kUnsetDelegateDebugIntId, false, entry.start_time,
              now, 0);
}

EventTracerEntry ETDumpGen::start_delegate(const char* name, DelegateDebugIntId part) {
  const EndOffset end_offset = ensure_run() ? string(name) : 0;
  const auto id = static_cast<int64_t>(static_cast<uint64_t>(static_cast<uint32_t>(part)) << 32 | end_offset);
  const bool by_number = part != kUnsetDelegateDebugIntId;
  return {id, chain_id_, debug_handle_, clock_.now(),
          by_number ? DelegateDebugIdType::kInt : DelegateDebugIdType::kStr};
}

void ETDumpGen::end_delegate(const EventTracerEntry& entry, const void* metadata, size_t size) {
  const torchette_timestamp_t now = clock_.now();
  if (static_cast<int64_t>(entry.start_time - start_time_) < 0 || !ensure_run()) return;
  const auto part = static_cast<DelegateDebugIntId>(static_cast<uint64_t>(entry.event_id) >> 32);
  add_profile(static_cast<EndOffset>(entry.event_id), entry.chain_id, entry.debug_handle, part, true,
              entry.start_time, now, bytes(metadata, size));
}

void ETDumpGen::add_delegate_event(const char* name, DelegateDebugIntId part, torchette_timestamp_t start,
                                   torchette_timestamp_t end, const void* metadata, size_t size) {
  if (!ensure_run()) return drop_event();
  const EndOffset text = string(name);
  add_profile(text, chain_id_, debug_handle_, part, true, start, end, bytes(metadata, size));
}

void ETDumpGen::add_profile(EndOffset name, ChainID chain, DebugHandle instruction, DelegateDebugIntId part,
                            bool in_delegate, torchette_timestamp_t start, torchette_timestamp_t end,
                            EndOffset metadata) {
  using Profile = schema::ProfileEvent;
  if (!ensure_run()) return drop_event();
  if (!in_delegate && name != 0 && add_common_event(name, chain, instruction, start, end)) return;
  const bool by_number = part != kUnsetDelegateDebugIntId;
  // Without an integer identifier, the name identifies the part of the delegate.
  const bool is_id = in_delegate && !by_number;
  Record event =
      make(Kind::Profile, bit(Profile::kName, name != 0 && !is_id) | bit(Profile::kChainIndex) |
                              bit(Profile::kInstructionId) | bit(Profile::kDelegateDebugIdInt, by_number) |
                              bit(Profile::kDelegateDebugIdStr, name != 0 && is_id) |
                              bit(Profile::kDelegateDebugMetadata, metadata != 0) | bit(Profile::kStartTime) |
                              bit(Profile::kEndTime));
  if (event.bytes == nullptr) return drop_event();
  if (name != 0) event.set_offset(is_id ? Profile::kDelegateDebugIdStr : Profile::kName, name);
  event.set(Profile::kChainIndex, static_cast<int32_t>(chain));
  event.set(Profile::kInstructionId, chain == kUnsetChainId ? -1 : static_cast<int32_t>(instruction));
  if (by_number) event.set(Profile::kDelegateDebugIdInt, static_cast<int32_t>(part));
  if (metadata != 0) event.set_offset(Profile::kDelegateDebugMetadata, metadata);
  event.set(Profile::kStartTime, static_cast<uint64_t>(start));
  event.set(Profile::kEndTime, static_cast<uint64_t>(end));
  add_event(schema::Event::kProfileEvent, event.end_offset);
}

/// Fast path for most events: writes the two tables of an event at once. Returns false if there is no space
/// or if the layouts are not as expected.
bool ETDumpGen::add_common_event(EndOffset name, ChainID chain, DebugHandle instruction,
                                 torchette_timestamp_t start, torchette_timestamp_t end) {
  using Profile = schema::ProfileEvent;
  // The layouts that make_shape() computes.
  struct {
    uint32_t to_vtable, previous, to_profile;
  } event;
  struct {
    uint32_t to_vtable, to_name;
    int32_t chain, instruction;
    uint64_t start, end;
  } profile;
  static_assert(sizeof(event) == 12 && sizeof(profile) == 32);
  if (common_event_vtable_ == 0) {
    const Shape* const outer = find_shape(Kind::Event, bit(schema::Event::kProfileEvent));
    if (outer == nullptr) return false;
    const EndOffset vtable = outer->vtable;
    const Shape* const inner = find_shape(
        Kind::Profile, bit(Profile::kName) | bit(Profile::kChainIndex) | bit(Profile::kInstructionId) |
                           bit(Profile::kStartTime) | bit(Profile::kEndTime));
    if (inner == nullptr || inner->size != sizeof(profile)) return false;
    common_profile_vtable_ = inner->vtable;
    common_event_vtable_ = vtable;
  }
  if (reserve(sizeof(profile), 8) == nullptr) return false;
  const EndOffset inner = end_offset();
  uint8_t* const bytes = reserve(sizeof(event), 4);
  if (bytes == nullptr) return false;
  profile = {common_profile_vtable_ - inner,
             inner - 4 - name,
             chain,
             chain == kUnsetChainId ? -1 : static_cast<int32_t>(instruction),
             start,
             end};
  memcpy(bytes + sizeof(event), &profile, sizeof(profile));
  const EndOffset outer = inner + sizeof(event);
  event = {common_event_vtable_ - outer, events_.last, 4};
  memcpy(bytes, &event, sizeof(event));
  events_.last = outer;
  ++events_.count;
  return true;
}

bool ETDumpGen::add_event(uint16_t slot, EndOffset event) {
  Record record = make(Kind::Event, bit(slot), &events_);
  if (record.bytes == nullptr) {
    drop_event();
    return false;
  }
  record.set_offset(slot, event);
  return true;
}

AllocatorID ETDumpGen::add_allocator(const char* name) {
  const auto id = static_cast<AllocatorID>(++num_allocators_);
  if (ensure_run()) {
    const EndOffset text = string(name);
    Record record = make(Kind::Allocator, bit(schema::Allocator::kName, text != 0), &allocators_);
    if (record.bytes == nullptr)
      drop_event();
    else
      record.set_offset(schema::Allocator::kName, text);
  }
  return id;
}

void ETDumpGen::add_allocation(AllocatorID id, size_t size) {
  using Allocation = schema::AllocationEvent;
  if (!ensure_run()) return drop_event();
  Record record = make(Kind::Allocation, bit(Allocation::kAllocatorId) | bit(Allocation::kAllocationSize));
  if (record.bytes == nullptr) return drop_event();
  record.set(Allocation::kAllocatorId, static_cast<int32_t>(id));
  record.set(Allocation::kAllocationSize, static_cast<uint64_t>(size));
  add_event(schema::Event::kAllocationEvent, record.end_offset);
}

// --- Values

Result<bool> ETDumpGen::log_value(const EValue& value, LoggedEValueType type) {
  if (sink_ == nullptr) return Error::InvalidState;
  if (!ensure_run()) return Error::OutOfResources;
  const bool output = type == LoggedEValueType::kProgramOutput;
  const bool is_last_instruction =
      chain_id_ == last_chain_ && debug_handle_ == last_instruction_ && chain_id_ != kUnsetChainId;
  const auto add = [&](const Result<EndOffset>& record) {
    return add_debug(record, is_last_instruction ? last_name_ : 0, false, kUnsetDelegateDebugIntId);
  };
  switch (value.tag()) {
    case Tag::Tensor:
      return add(value_of(value.to_tensor(), output));
    case Tag::ListTensor:
      return add(value_of(value.to_tensor_list(), output));
    case Tag::Int:
      return add(value_of(value.to_int(), output));
    case Tag::Bool:
      return add(value_of(value.to_bool(), output));
    case Tag::Double:
      return add(value_of(value.to_double(), output));
    default:
      return false;
  }
}

Result<bool> ETDumpGen::is_requested(const char* name, DelegateDebugIntId part) {
  if (sink_ == nullptr) return Error::InvalidState;
  if (filter_ != nullptr) {
    Result<bool> requested = filter_->filter(name, part);
    if (!requested.ok() || !*requested) return requested;
  }
  if (!ensure_run()) return Error::OutOfResources;
  return true;
}

Result<bool> ETDumpGen::add_debug(const Result<EndOffset>& value, EndOffset name, bool in_delegate,
                                  DelegateDebugIntId part) {
  using Debug = schema::DebugEvent;
  if (!value.ok()) {
    if (value.error() == Error::OutOfResources) drop_event();
    return value.error();
  }
  const bool by_number = part != kUnsetDelegateDebugIntId, is_id = in_delegate && !by_number;
  Record event = make(Kind::Debug, bit(Debug::kName, name != 0 && !is_id) | bit(Debug::kChainIndex) |
                                       bit(Debug::kInstructionId) | bit(Debug::kDebugEntry) |
                                       bit(Debug::kDelegateDebugIdInt, by_number) |
                                       bit(Debug::kDelegateDebugIdStr, name != 0 && is_id));
  if (event.bytes == nullptr) {
    drop_event();
    return Error::OutOfResources;
  }
  if (name != 0) event.set_offset(is_id ? Debug::kDelegateDebugIdStr : Debug::kName, name);
  event.set(Debug::kChainIndex, static_cast<uint64_t>(int64_t{chain_id_}));
  event.set(Debug::kInstructionId, chain_id_ == kUnsetChainId ? -1 : static_cast<int32_t>(debug_handle_));
  event.set_offset(Debug::kDebugEntry, *value);
  if (by_number) event.set(Debug::kDelegateDebugIdInt, static_cast<int32_t>(part));
  if (!add_event(schema::Event::kDebugEvent, event.end_offset)) return Error::OutOfResources;
  return true;
}

/// Adds the Value table of `content`. `output` tells whether the value is an output of the method.
Result<ETDumpGen::EndOffset> ETDumpGen::wrap(uint16_t slot, uint8_t type, EndOffset content, bool output) {
  if (content == 0) return Error::OutOfResources;
  EndOffset flag = 0;
  if (output) {
    Record record = make(Kind::Bool, bit(schema::Bool::kBoolVal));
    if (record.bytes == nullptr) return Error::OutOfResources;
    record.set(schema::Bool::kBoolVal, true);
    flag = record.end_offset;
  }
  Record value =
      make(Kind::Value, bit(schema::Value::kVal) | bit(slot) | bit(schema::Value::kOutput, flag != 0));
  if (value.bytes == nullptr) return Error::OutOfResources;
  value.set(schema::Value::kVal, type);
  value.set_offset(slot, content);
  value.set_offset(schema::Value::kOutput, flag);
  return value.end_offset;
}

Result<ETDumpGen::EndOffset> ETDumpGen::tensor_record(const Tensor& tensor, Chain* chain) {
  using Stored = schema::Tensor;
  int64_t offset = -1;
  if (tensor.nbytes() != 0) {
    if (tensor.const_data_ptr() == nullptr) return Error::InvalidArgument;
    const Result<size_t> start = sink_->write(tensor.const_data_ptr(), tensor.nbytes());
    if (!start.ok()) return start.error();
    offset = static_cast<int64_t>(*start);
  }
  const EndOffset sizes = longs(tensor.sizes()), strides = longs(tensor.strides());
  if (sizes == 0 || strides == 0) return Error::OutOfResources;
  Record record = make(
      Kind::Tensor,
      bit(Stored::kScalarType) | bit(Stored::kSizes) | bit(Stored::kStrides) | bit(Stored::kOffset), chain);
  if (record.bytes == nullptr) return Error::OutOfResources;
  record.set(Stored::kScalarType, static_cast<int8_t>(tensor.scalar_type()));
  record.set_offset(Stored::kSizes, sizes);
  record.set_offset(Stored::kStrides, strides);
  record.set(Stored::kOffset, offset);
  return record.end_offset;
}

Result<ETDumpGen::EndOffset> ETDumpGen::value_of(const Tensor& tensor, bool output) {
  const Result<EndOffset> record = tensor_record(tensor, nullptr);
  if (!record.ok()) return record.error();
  return wrap(schema::Value::kTensor, static_cast<uint8_t>(schema::ValueType::Tensor), *record, output);
}

Result<ETDumpGen::EndOffset> ETDumpGen::value_of(Span<const Tensor> tensors, bool output) {
  Chain chain;
  for (const Tensor& tensor : tensors) {
    const Result<EndOffset> record = tensor_record(tensor, &chain);
    if (!record.ok()) return record.error();
  }
  const EndOffset items = list(chain);
  if (items == 0) return Error::OutOfResources;
  Record record = make(Kind::TensorList, bit(schema::TensorList::kTensors));
  if (record.bytes == nullptr) return Error::OutOfResources;
  record.set_offset(schema::TensorList::kTensors, items);
  return wrap(schema::Value::kTensorList, static_cast<uint8_t>(schema::ValueType::TensorList),
              record.end_offset, output);
}

Result<ETDumpGen::EndOffset> ETDumpGen::value_of(int64_t number, bool output) {
  Record record = make(Kind::Int, bit(schema::Int::kIntVal));
  if (record.bytes != nullptr) record.set(schema::Int::kIntVal, number);
  return wrap(schema::Value::kIntValue, static_cast<uint8_t>(schema::ValueType::Int), record.end_offset,
              output);
}

Result<ETDumpGen::EndOffset> ETDumpGen::value_of(bool number, bool output) {
  Record record = make(Kind::Bool, bit(schema::Bool::kBoolVal));
  if (record.bytes != nullptr) record.set(schema::Bool::kBoolVal, number);
  return wrap(schema::Value::kBoolValue, static_cast<uint8_t>(schema::ValueType::Bool), record.end_offset,
              output);
}

Result<ETDumpGen::EndOffset> ETDumpGen::value_of(double number, bool output) {
  Record record = make(Kind::Double, bit(schema::Double::kDoubleVal));
  if (record.bytes != nullptr) record.set(schema::Double::kDoubleVal, number);
  return wrap(schema::Value::kDoubleValue, static_cast<uint8_t>(schema::ValueType::Double), record.end_offset,
              output);
}

}  // namespace torchette::extension
