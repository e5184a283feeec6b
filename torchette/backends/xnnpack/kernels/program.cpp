// SPDX-License-Identifier: BSD-3-Clause
// Values of a payload and those of ours, where they are in memory, and calls of kernels on them.
#include "torchette/backends/xnnpack/kernels/program.h"

#include <new>

namespace torchette {
namespace xnnpack {

const DimOrderType kNatural[kMostDims] = {0, 1, 2, 3, 4, 5};

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMostIntegers = 2 * kMostDims;

Error run_kernel(Context& context, const Call& call) {
  static constexpr int32_t kIndices[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  return call.kernel->function(context, {call.arguments, kIndices});
}

/// The implementation of a tensor is the first of its slot.
Slot* slot_of(const Value& tensor) { return reinterpret_cast<Slot*>(tensor.to_tensor().unsafe_impl()); }

}  // namespace

Error Builder::build(const FreeableBuffer& processed) {
  TORCHETTE_TRY(payload_.open(processed.data(), processed.size(), named_));
  const Tables values = payload_.values(), nodes = payload_.nodes();
  out_.slots = memory_->allocate_list<Slot>(values.size());
  out_.arguments = memory_->allocate_list<Slot*>(payload_.externs());
  TORCHETTE_CHECK(out_.slots != nullptr && out_.arguments != nullptr, MemoryAllocationFailed,
                  "no memory for %zu values of an XNNPACK payload", values.size());
  for (; out_.slot_count < values.size(); ++out_.slot_count) new (out_.slots + out_.slot_count) Slot();
  for (; out_.argument_count < payload_.externs(); ++out_.argument_count)
    out_.arguments[out_.argument_count] = nullptr;
  end_ = &out_.calls;
  last_ = &first_;
  for (size_t i = 0; i < values.size(); ++i) {
    TORCHETTE_TRY(value(values[i]));
    TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "value %zu of an XNNPACK payload is damaged",
                    i);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    time_ = static_cast<uint32_t>(i + 1);
    Error error = node(nodes[i]);
    if (error == Error::Ok) error = round();
    if (error != Error::Ok || !payload_.ok()) {
      TORCHETTE_LOG(Error, "node %zu of an XNNPACK payload is refused", i);
      return error != Error::Ok ? error : Error::DelegateInvalidCompatibility;
    }
  }
  for (size_t i = 0; i < out_.argument_count; ++i) {
    const Slot* const slot = out_.arguments[i];
    TORCHETTE_CHECK(slot != nullptr, DelegateInvalidCompatibility,
                    "argument %zu of an XNNPACK payload is no value", i);
    TORCHETTE_CHECK(slot->is_ready, DelegateInvalidCompatibility,
                    "result %zu of an XNNPACK payload is never computed", i);
  }
  for (size_t i = 0; i < out_.slot_count; ++i) {
    Slot& slot = out_.slots[i];
    slot.scale_bytes.Free();
    if (slot.last == 0)
      slot.bytes.Free();  // nobody reads it, or it has been packed
    else if (slot.in_blob)
      out_.needs_bytes = true;
  }
  if (taps_) TORCHETTE_TRY(find_taps());
  return place();
}

Error Builder::value(const Table& entry) {
  ValueRecord record(entry);
  TORCHETTE_TRY(payload_.read_value(entry, &record));
  const auto type = static_cast<int>(record.type);
  TORCHETTE_CHECK(record.type > fb::XNNDatatype::xnn_datatype_invalid &&
                      record.type <= fb::XNNDatatype::xnn_datatype_bf16,
                  NotSupported,
                  "value %u of XNNPACK's graph has type number %d, which this build does not have", record.id,
                  type);
  struct Type {
    const char* name;
    ScalarType held;  // Undefined: not by our kernels
    bool is_quantized;
  };
  static constexpr Type kTypes[] = {
      {"", ScalarType::Undefined, false},      {"fp32", ScalarType::Float, false},
      {"fp16", ScalarType::Undefined, false},  {"qint8", ScalarType::Char, true},
      {"quint8", ScalarType::Byte, true},      {"qint32", ScalarType::Int, true},
      {"qcint8", ScalarType::Char, true},      {"qcint32", ScalarType::Int, true},
      {"qcint4", ScalarType::Bits4x2, true},   {"qdint8", ScalarType::Float, true},
      {"qbint4", ScalarType::Bits4x2, true},   {"qpint8", ScalarType::Undefined, true},
      {"int32", ScalarType::Undefined, false}, {"pfp32", ScalarType::Undefined, false},
      {"bf16", ScalarType::Undefined, false}};
  const Type& held = kTypes[type];
  TORCHETTE_CHECK(held.held != ScalarType::Undefined, NotSupported,
                  "value %u of XNNPACK's graph is of type %s, which needs XNNPACK's library; our kernels run "
                  "fp32 and quantized numbers of 8 and 4 bits",
                  record.id, held.name);
  TORCHETTE_CHECK(record.quantized == held.is_quantized, DelegateInvalidCompatibility,
                  "value %u of type %s has scales or lacks them", record.id, held.name);
  Slot& slot = out_.slots[record.id];
  TORCHETTE_CHECK(!slot.is_present, DelegateInvalidCompatibility, "value %u is defined twice", record.id);
  TORCHETTE_TRY(set(&slot, record.dims, held.held));
  slot.how.type = record.type;
  if (record.quantized) TORCHETTE_TRY(quantization(record, &slot));
  slot.is_present = true;
  slot.argument = record.argument;
  if (record.is_argument()) {
    TORCHETTE_CHECK(out_.arguments[record.argument] == nullptr, DelegateInvalidCompatibility,
                    "two values are argument %u", record.argument);
    out_.arguments[record.argument] = &slot;
    slot.is_result = record.is_result;
    slot.is_ready = !record.is_result;
  }
  if (record.constant == 0) return Error::Ok;
  const void* data = nullptr;
  Span<const char> key;
  const size_t item = element_size(held.held);
  size_t items = slot.bound;
  if (held.held == ScalarType::Bits4x2) {  // a row ends with a whole byte
    const size_t last = record.dims.empty() ? 1 : record.dims[record.dims.size() - 1];
    items = last == 0 ? 0 : items / last * ((last + 1) / 2);
  }
  TORCHETTE_CHECK(items <= SIZE_MAX / item, DelegateInvalidCompatibility, "value %u is too large", record.id);
  TORCHETTE_TRY(payload_.constant(record.constant, items * item, &data, &slot.bytes, &key));
  TORCHETTE_CHECK(reinterpret_cast<uintptr_t>(data) % item == 0, DelegateInvalidCompatibility,
                  "the elements of value %u lie across each other", record.id);
  slot.impl.data = const_cast<void*>(data);
  slot.in_blob = slot.bytes.data() == nullptr;
  slot.is_constant = slot.is_ready = true;
  return Error::Ok;
}

Error Builder::look(const Table& n, uint16_t slot, Slot** out, bool optional) {
  const auto name = n.get<uint32_t>(slot);
  *out = nullptr;
  if (optional && name == kNothing) return Error::Ok;
  TORCHETTE_CHECK(name < out_.slot_count && out_.slots[name].is_ready, DelegateInvalidCompatibility,
                  "a node reads value %u, which is not there yet", name);
  *out = &out_.slots[name];
  return Error::Ok;
}

Error Builder::claim(const Table& n, uint16_t slot, Slot** out) {
  const auto name = n.get<uint32_t>(slot);
  TORCHETTE_CHECK(name < out_.slot_count && out_.slots[name].is_present && !out_.slots[name].is_ready,
                  DelegateInvalidCompatibility, "a node writes value %u, which it cannot", name);
  Slot& made = out_.slots[name];
  made.is_ready = true;
  made.first = made.last = time_;
  if (!made.is_result) *last_ = &made, last_ = &made.next;
  *out = &made;
  return Error::Ok;
}

Error Builder::set(Slot* slot, Span<const uint32_t> sizes, ScalarType type) {
  const Tensor tensor(&slot->impl);
  for (size_t d = 0; d < sizes.size(); ++d) {
    TORCHETTE_CHECK(sizes[d] <= INT32_MAX, DelegateInvalidCompatibility, "a value has %u elements in a row",
                    sizes[d]);
    slot->sizes[d] = static_cast<SizesType>(sizes[d]);
  }
  slot->impl = {nullptr,
                slot->sizes,
                slot->strides,
                kNatural,
                0,
                0,
                static_cast<uint8_t>(sizes.size()),
                type,
                TensorShapeDynamism::DYNAMIC_BOUND};
  const Result<int32_t> count = dense_strides(tensor.sizes(), slot->impl.dim_order, slot->strides);
  TORCHETTE_CHECK(count.ok(), DelegateInvalidCompatibility, "a value of XNNPACK's graph is too large");
  slot->impl.numel = *count;
  slot->bound = slot->impl.capacity = static_cast<size_t>(*count);
  return Error::Ok;
}

Slot* Builder::temporary(Span<const uint32_t> sizes, ScalarType type) {
  Slot* const slot = constant(sizes, nullptr, type);
  if (slot == nullptr) return nullptr;
  slot->is_constant = false;
  slot->first = slot->last = time_;
  *last_ = slot, last_ = &slot->next;
  return slot;
}

Slot* Builder::constant(Span<const uint32_t> sizes, const void* data, ScalarType type) {
  void* const room = memory_->allocate(sizeof(Slot), alignof(Slot));
  if (room == nullptr) {
    full_ = true;
    return nullptr;
  }
  Slot* const slot = new (room) Slot();  // without bytes to free
  if (set(slot, sizes, type) != Error::Ok) {
    full_ = true;
    return nullptr;
  }
  slot->impl.data = const_cast<void*>(data);
  slot->argument = kNothing;
  slot->is_constant = slot->is_ready = true;
  return slot;
}

Slot* Builder::stored(Span<const uint32_t> sizes, ScalarType type) {
  Slot* const slot = constant(sizes, nullptr, type);
  if (slot == nullptr) return nullptr;
  const size_t item = element_size(type);
  slot->impl.data =
      slot->bound <= SIZE_MAX / item ? memory_->allocate(slot->bound * item, kAlignment) : nullptr;
  full_ |= slot->impl.data == nullptr;
  return full_ ? nullptr : slot;
}

Slot* Builder::shown(Slot* other, Span<const uint32_t> sizes, const DimOrderType* order) {
  Slot* const slot = constant(sizes, other->impl.data, other->impl.type);
  if (slot == nullptr) return nullptr;
  slot->how = other->how;
  if (order != nullptr) slot->impl.dim_order = order;  // its strides come with its sizes
  slot->shows = other;
  return slot;
}

Value Builder::integers(Span<const int64_t> numbers) {
  static constexpr int64_t kIndices[kMostIntegers] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  auto* const values = memory_->allocate_list<Value>(numbers.size());
  auto* const gathered = memory_->allocate_list<int64_t>(numbers.size());
  auto* const list = memory_->allocate_list<BoxedList>(1);
  if (values == nullptr || gathered == nullptr || list == nullptr) {
    full_ = true;
    return {};
  }
  for (size_t i = 0; i < numbers.size(); ++i) new (values + i) Value(numbers[i]);
  *list = {values, kIndices, gathered, static_cast<uint32_t>(numbers.size())};
  return Value(Tag::ListInt, list);
}

Value Builder::tensors(Slot* const* slots, size_t count) {
  static constexpr int32_t kIndices[] = {0, 1, 2, 3, 4};
  auto* const values = memory_->allocate_list<Value>(count);
  auto* const gathered = memory_->allocate_list<Tensor>(count);
  auto* const list = memory_->allocate_list<BoxedList>(1);
  if (values == nullptr || gathered == nullptr || list == nullptr) {
    full_ = true;
    return {};
  }
  for (size_t i = 0; i < count; ++i) {
    new (values + i) Value(value_of(slots[i]));
    use(slots[i]);
  }
  *list = {values, kIndices, gathered, static_cast<uint32_t>(count)};
  return Value(Tag::ListTensor, list);
}

Value Builder::text(const char* words) {
  auto* const list = memory_->allocate_list<PlainList>(1);
  if (list == nullptr) {
    full_ = true;
    return {};
  }
  *list = {words, static_cast<uint32_t>(strlen(words))};
  return Value(Tag::String, list);
}

void Builder::use(Slot* slot) {
  for (; slot != nullptr; slot = slot->shows) slot->last = time_;
}

Error Builder::call(const char* name, std::initializer_list<Value> arguments, Run run) {
  const Kernel* kernel = nullptr;
  if (name != nullptr) {
    kernel = find_kernel(name);
    TORCHETTE_CHECK(kernel != nullptr, NotSupported,
                    "XNNPACK's graph calls the kernel %s, which this build left out", name);
  }
  auto* const made = memory_->allocate_list<Call>(1);
  auto* const values = memory_->allocate_list<Value>(arguments.size());
  TORCHETTE_CHECK(made != nullptr && values != nullptr && !full_, MemoryAllocationFailed,
                  "no memory for the nodes of an XNNPACK payload");
  size_t count = 0;
  for (const Value& value : arguments) {
    new (values + count++) Value(value);
    if (value.is_tensor()) use(slot_of(value));
  }
  const Slot* const output = slot_of(values[count - 1]);
  *made = {run != nullptr ? run : run_kernel, kernel, values, nullptr, output, debug_handle_};
  *end_ = made;
  end_ = &made->next;
  return Error::Ok;
}

/// Each value gets the first place where nothing is while it lives. Those that live are in the order of their
/// places.
Error Builder::place() {
  Slot* living = nullptr;
  uint64_t size = 0;
  for (Slot* slot = first_; slot != nullptr; slot = slot->next) {
    if (slot->shows != nullptr) continue;
    slot->size =
        (uint64_t{slot->bound} * element_size(slot->impl.type) + kAlignment - 1) / kAlignment * kAlignment;
    Slot** link = &living;
    while (*link != nullptr) {
      const Slot& other = **link;
      if (other.last < slot->first) {
        *link = other.above;
        continue;
      }
      if (slot->offset + slot->size <= other.offset) break;
      const uint64_t end = other.offset + other.size;
      if (end > slot->offset) slot->offset = end;
      link = &(*link)->above;
    }
    slot->above = *link;
    *link = slot;
    if (slot->offset + slot->size > size) size = slot->offset + slot->size;
  }
  auto* const base = size <= SIZE_MAX / 2
                         ? static_cast<uint8_t*>(memory_->allocate(static_cast<size_t>(size), kAlignment))
                         : nullptr;
  TORCHETTE_CHECK(base != nullptr, MemoryAllocationFailed,
                  "no memory for %llu bytes of values of XNNPACK's graph",
                  static_cast<unsigned long long>(size));
  for (Slot* slot = first_; slot != nullptr; slot = slot->next)
    if (slot->shows == nullptr) slot->impl.data = base + slot->offset;
  return Error::Ok;
}

Error read_program(const FreeableBuffer& processed, BackendInitContext& context, Program* out) {
  return Builder(context, out).build(processed);
}

}  // namespace xnnpack
}  // namespace torchette
