// SPDX-License-Identifier: BSD-3-Clause
// Reads the values of a payload and adds intermediate values.
#include "torchette/backends/xnnpack/kernels/graph_reader.h"

#include <new>

namespace torchette {
namespace xnnpack {

GraphReader::~GraphReader() {
  for (size_t i = 0; i < slot_count_; ++i) slots_[i].~Slot();
}

Loaded::~Loaded() {
  if (method != nullptr) method->~DelegateMethod();
  for (FreeableBuffer& bytes : constants) bytes.~FreeableBuffer();
}

Error GraphReader::load(const FreeableBuffer& processed, Loaded* out) {
  TORCHETTE_TRY(payload_.open(processed.data(), processed.size(), context_.get_named_data_map()));
  const Tables values = payload_.values(), nodes = payload_.nodes();
  slots_ = scratch_.allocate_list<Slot>(values.size());
  arguments_ = scratch_.allocate_list<TensorValue*>(payload_.externs());
  TORCHETTE_CHECK(slots_ != nullptr && arguments_ != nullptr, MemoryAllocationFailed,
                  "cannot allocate %zu values of an XNNPACK payload", values.size());
  for (; slot_count_ < values.size(); ++slot_count_) new (slots_ + slot_count_) Slot();
  for (size_t i = 0; i < payload_.externs(); ++i) arguments_[i] = nullptr;
  for (size_t i = 0; i < values.size(); ++i) {
    TORCHETTE_TRY(read_value(values[i]));
    TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "value %zu of an XNNPACK payload is damaged",
                    i);
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    Error error = read_node(nodes[i]);
    if (error == Error::Ok) error = quantize_result();
    free_packed();
    if (error != Error::Ok || !payload_.ok()) {
      TORCHETTE_LOG(Error, "node %zu of an XNNPACK payload is refused", i);
      return error != Error::Ok ? error : Error::DelegateInvalidCompatibility;
    }
  }
  size_t inputs = 0;
  for (size_t i = 0; i < payload_.externs(); ++i) {
    const auto* const slot = static_cast<const Slot*>(arguments_[i]);
    TORCHETTE_CHECK(slot != nullptr, DelegateInvalidCompatibility,
                    "argument %zu of an XNNPACK payload has no value", i);
    TORCHETTE_CHECK(slot->is_ready, DelegateInvalidCompatibility,
                    "result %zu of an XNNPACK payload is never computed", i);
    TORCHETTE_CHECK(slot->is_result() || inputs == i, DelegateInvalidCompatibility,
                    "argument %zu of an XNNPACK payload is an input, but an output comes before it", i);
    inputs += !slot->is_result();
  }
  TORCHETTE_TRY(tap_results());
  auto** const entries = builder_.allocate<const Entry*>(payload_.externs());
  for (size_t i = 0; entries != nullptr && i < payload_.externs(); ++i)
    entries[i] = builder_.entry(arguments_[i]);
  TORCHETTE_TRY(keep_constants(out));
  const Result<delegate::DelegateMethod*> method =
      delegate::DelegateMethod::load(context_, builder_, {entries, inputs},
                                     {entries + inputs, payload_.externs() - inputs}, &out->memory, false);
  if (!method.ok()) return method.error();
  out->method = *method;
  return Error::Ok;
}

/// Whether the method reads a constant. It does not read a constant that has only been packed.
static bool is_read(const Slot& slot) { return slot.entry != nullptr || slot.has_view; }

void GraphReader::free_packed() {
  Slot* const slot = packed_;
  packed_ = nullptr;
  if (slot == nullptr || slot->bytes.data() == nullptr || is_read(*slot)) return;
  slot->bytes.Free();
  slot->data = nullptr;
}

Error GraphReader::keep_constants(Loaded* out) {
  size_t count = 0;
  for (size_t i = 0; i < slot_count_; ++i) count += is_read(slots_[i]) && slots_[i].bytes.data() != nullptr;
  auto* const kept = memory_->allocate_list<FreeableBuffer>(count);
  TORCHETTE_CHECK(kept != nullptr, MemoryAllocationFailed, "cannot allocate %zu constants of XNNPACK's graph",
                  count);
  count = 0;
  for (size_t i = 0; i < slot_count_; ++i) {
    Slot& slot = slots_[i];
    if (!is_read(slot)) continue;
    out->needs_bytes |= slot.is_in_payload;
    if (slot.bytes.data() != nullptr) new (kept + count++) FreeableBuffer(std::move(slot.bytes));
  }
  out->constants = {kept, count};
  return Error::Ok;
}

/// Adds taps of intermediate results for a tracer, from the lists in torchette/schema/xnnpack.fbs.
/// ExecuTorch's payloads have no such lists.
Error GraphReader::tap_results() {
  if (context_.event_tracer() == nullptr) return Error::Ok;
  const Table root = payload_.root();
  const auto handles = root.vector<uint32_t>(fb::XNNGraph::kTapHandles);
  const auto values = root.vector<uint32_t>(fb::XNNGraph::kTapValues);
  const auto layouts = root.vector<uint8_t>(fb::XNNGraph::kTapLayouts);
  TORCHETTE_CHECK(payload_.ok() && values.size() == handles.size() && layouts.size() == handles.size(),
                  DelegateInvalidCompatibility, "an XNNPACK payload names %zu results of %zu nodes",
                  values.size(), handles.size());
  for (size_t i = 0; i < handles.size(); ++i) {
    const uint8_t layout = layouts[i];
    TORCHETTE_CHECK(values[i] < slot_count_ && (layout == 0 || layout == 3 || layout == 4),
                    DelegateInvalidCompatibility, "value %u of an XNNPACK payload is not a result",
                    values[i]);
    const Slot& slot = slots_[values[i]];
    const bool fits = layout == 0 || (slot.rank == 4 && (layout == 4 || slot.sizes[1] == 1));
    if (!slot.is_ready || !fits) continue;
    delegate::ProgramBuilder::tap(&slot, handles[i],
                                  layout == 0   ? delegate::TapLayout::Same
                                  : layout == 4 ? delegate::TapLayout::ImageToChannelsFirst
                                                : delegate::TapLayout::ImageToRows);
  }
  return Error::Ok;
}

Error GraphReader::read_value(const Table& entry) {
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
    ScalarType held;  // Undefined: no kernel supports it
    bool is_quantized;
  };
  static constexpr Type kTypes[] = {
      {"", ScalarType::Undefined, false},      {"fp32", ScalarType::Float, false},
      {"fp16", ScalarType::Half, false},       {"qint8", ScalarType::Char, true},
      {"quint8", ScalarType::Byte, true},      {"qint32", ScalarType::Int, true},
      {"qcint8", ScalarType::Char, true},      {"qcint32", ScalarType::Int, true},
      {"qcint4", ScalarType::Bits4x2, true},   {"qdint8", ScalarType::Float, true},
      {"qbint4", ScalarType::Bits4x2, true},   {"qpint8", ScalarType::Undefined, true},
      {"int32", ScalarType::Undefined, false}, {"pfp32", ScalarType::Undefined, false},
      {"bf16", ScalarType::Undefined, false}};
  const Type& held = kTypes[type];
  TORCHETTE_CHECK(held.held != ScalarType::Undefined, NotSupported,
                  "value %u of XNNPACK's graph has type %s; kernels run fp32, fp16 and quantized 8-bit "
                  "and 4-bit integers",
                  record.id, held.name);
  TORCHETTE_CHECK(record.quantized == held.is_quantized, DelegateInvalidCompatibility,
                  "value %u of type %s has scales but must not, or lacks them", record.id, held.name);
  Slot& slot = slots_[record.id];
  TORCHETTE_CHECK(!slot.is_present, DelegateInvalidCompatibility, "value %u is defined twice", record.id);
  // Kernels compute in float32; float16 arguments and constants are converted.
  const bool is_inside = !record.is_argument() && record.constant == 0;
  const bool is_half = held.held == ScalarType::Half;
  TORCHETTE_TRY(slot.set(record.dims, is_half && is_inside ? ScalarType::Float : held.held));
  slot.quantization.type = record.type;
  if (record.quantized) TORCHETTE_TRY(read_quantization(record, &slot));
  slot.is_present = true;
  slot.argument = record.argument;
  if (record.is_argument()) {
    TORCHETTE_CHECK(arguments_[record.argument] == nullptr, DelegateInvalidCompatibility,
                    "two values are argument %u", record.argument);
    arguments_[record.argument] = &slot;
    slot.role = record.is_result ? Role::Output : Role::Input;
    slot.is_ready = !record.is_result;
  }
  if (record.constant == 0) return Error::Ok;
  slot.constant = record.constant;
  slot.role = Role::Constant;
  slot.is_ready = true;
  return read_constant(&slot);
}

Error GraphReader::read_constant(Slot* slot) {
  const void* data = nullptr;
  Span<const char> key;
  const size_t item = element_size(slot->type);
  size_t items = slot->numel;
  if (slot->type == ScalarType::Bits4x2) {  // a row starts at a byte
    const size_t last = slot->rank == 0 ? 1 : static_cast<size_t>(slot->sizes[slot->rank - 1]);
    items = last == 0 ? 0 : items / last * ((last + 1) / 2);
  }
  TORCHETTE_CHECK(items <= SIZE_MAX / item, DelegateInvalidCompatibility, "constant %u is too large",
                  slot->constant);
  TORCHETTE_TRY(payload_.constant(slot->constant, items * item, &data, &slot->bytes, &key));
  TORCHETTE_CHECK(reinterpret_cast<uintptr_t>(data) % item == 0, DelegateInvalidCompatibility,
                  "the elements of constant %u are misaligned", slot->constant);
  slot->data = const_cast<void*>(data);
  slot->is_in_payload = slot->bytes.data() == nullptr;
  return Error::Ok;
}

Error GraphReader::input(const Table& n, uint16_t slot, Slot** out, bool optional) {
  const auto name = n.get<uint32_t>(slot);
  *out = nullptr;
  if (optional && name == kNoValue) return Error::Ok;
  TORCHETTE_CHECK(name < slot_count_ && slots_[name].is_ready, DelegateInvalidCompatibility,
                  "a node reads value %u before it is computed", name);
  *out = &slots_[name];
  const bool is_freed = (*out)->constant != 0 && (*out)->data == nullptr;
  return is_freed ? read_constant(*out) : Error::Ok;
}

Error GraphReader::output(const Table& n, uint16_t slot, Slot** out) {
  const auto name = n.get<uint32_t>(slot);
  TORCHETTE_CHECK(name < slot_count_ && slots_[name].is_present && !slots_[name].is_ready,
                  DelegateInvalidCompatibility,
                  "a node writes value %u, which does not exist or is already computed", name);
  Slot& made = slots_[name];
  made.is_ready = true;
  *out = &made;
  return Error::Ok;
}

Slot* GraphReader::temporary(Span<const uint32_t> sizes, ScalarType type) {
  void* const memory = builder_.allocate<Slot>();
  if (memory == nullptr) return nullptr;
  auto* const slot = new (memory) Slot();  // has no buffers, so its destructor need not run
  slot->is_ready = true;
  if (slot->set(sizes, type) == Error::Ok) return slot;
  builder_.set_full();
  return nullptr;
}

Slot* GraphReader::constant(Span<const uint32_t> sizes, const void* data, ScalarType type) {
  Slot* const slot = temporary(sizes, type);
  if (slot == nullptr) return nullptr;
  slot->data = const_cast<void*>(data);
  slot->role = Role::Constant;
  return slot;
}

Slot* GraphReader::new_constant(Span<const uint32_t> sizes, ScalarType type) {
  constexpr size_t kAlignment = 64;
  Slot* const slot = constant(sizes, nullptr, type);
  if (slot == nullptr) return nullptr;
  const size_t item = element_size(type);
  slot->data = slot->numel <= SIZE_MAX / item ? memory_->allocate(slot->numel * item, kAlignment) : nullptr;
  if (slot->data != nullptr) return slot;
  builder_.set_full();
  return nullptr;
}

Slot* GraphReader::view(Slot* other, Span<const uint32_t> sizes, const DimOrderType* order) {
  Slot* const slot = temporary(sizes, other->type);
  if (slot == nullptr) return nullptr;
  slot->quantization = other->quantization;
  slot->dim_order = order;
  TensorValue* const owner = other->owner();
  if (owner->role == Role::Planned) {
    slot->role = Role::View;
    slot->base = owner;
  } else if (owner->role == Role::Constant) {
    slot->role = Role::Constant;
    slot->data = owner->data;
    static_cast<Slot*>(owner)->has_view = true;
  }
  return slot;
}

const Entry* GraphReader::tensors(Slot* const* slots, size_t count) {
  TensorValue* values[kMaxDims];
  for (size_t i = 0; i < count; ++i) values[i] = slots[i];
  return builder_.tensors(values, count);
}

}  // namespace xnnpack
}  // namespace torchette
