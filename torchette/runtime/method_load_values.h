// SPDX-License-Identifier: BSD-3-Clause
// Loads the values of a method: each record becomes a value, and each tensor gets its memory. Included by
// method_load.cpp, where one translation unit makes firmware smaller, and by pybindings/load_check.cpp.
#pragma once

#include "torchette/runtime/method_loading.h"

namespace torchette {

using Types = schema::KernelTypes;

/// The encoding of a list in the file. Elements that are value indices are gathered before use.
struct ListKind {
  Tag tag;
  uint8_t log2_size;      // of an item in the file
  uint8_t gathered_size;  // bytes of a gathered item; 0: the list is used in place
};
constexpr ListKind kListKinds[] = {
    {Tag::String, 0, 0},
    {Tag::ListInt, 3, sizeof(int64_t)},
    {Tag::ListDouble, 3, 0},
    {Tag::ListBool, 0, 0},
    {Tag::ListTensor, 2, sizeof(Tensor)},
    {Tag::ListOptionalTensor, 2, sizeof(Optional<Tensor>)},
};
static_assert(static_cast<int>(Types::OptionalTensorList) - static_cast<int>(Types::String) == 5 &&
              static_cast<int>(Types::IntList) - static_cast<int>(Types::String) == 1);

TORCHETTE_INLINE Error Method::Loading::load_entry(size_t i) {
  entry_.seek(records_, i);
  const auto type = entry_.get<Types>(schema::EValue::kValType);
  if (type == Types::Tensor) {
    tensor_.seek(entry_.follow(schema::EValue::kVal));
    TORCHETTE_TRY(load_tensor(i));
  } else {
    TORCHETTE_TRY(load_value(type, entry_.table(schema::EValue::kVal), i));
  }
  return check_record("value", i);
}

inline Error Method::Loading::load_values() {
  for (size_t i = 0; i < method_.values_.size(); ++i) TORCHETTE_TRY(load_entry(i));
  return Error::Ok;
}

TORCHETTE_INLINE Error Method::Loading::load_value(Types type, const Table& record, size_t i) {
  Value& value = method_.values_[i];
  switch (type) {
    case Types::NONE:
    case Types::Null:
      value = Value();
      break;
    case Types::Int:
      value = Value(record.get<int64_t>(schema::Int::kIntVal));
      break;
    case Types::Bool:
      value = Value(record.get<uint8_t>(schema::Bool::kBoolVal) != 0);
      break;
    case Types::Double:
      value = Value(record.get<double>(schema::Double::kDoubleVal));
      break;
    default: {
      const auto list = static_cast<size_t>(type) - static_cast<size_t>(Types::String);
      TORCHETTE_CHECK(list < sizeof(kListKinds) / sizeof(*kListKinds), NotSupported,
                      "value %zu has an unknown kind", i);
      return this->load_list(kListKinds[list], record, i);
    }
  }
  return Error::Ok;
}

TORCHETTE_INLINE Error Method::Loading::load_list(const ListKind& kind, const Table& record, size_t i) {
  constexpr uint16_t kItems = schema::IntList::kItems;
  Span<const uint8_t> items;
  if (kind.tag == Tag::String) {
    const Span<const char> text = record.string(kItems);
    items = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  } else {
    items = record.items(kItems, kind.log2_size);
  }
  const auto size = static_cast<uint32_t>(items.size());
  TORCHETTE_TRY(use_list_budget(size));
  if (kind.tag == Tag::ListBool)
    for (uint8_t item : items)
      TORCHETTE_CHECK(item <= 1, InvalidProgram, "value %zu has a bool of %u", i, item);
  if (kind.gathered_size == 0) {
    PlainList* list;
    TORCHETTE_TRY(allocate(&list));
    *list = {items.data(), size};
    method_.values_[i] = Value(kind.tag, list);
  } else {
    BoxedList* list;
    TORCHETTE_TRY(allocate(&list));
    void* gathered = allocate_bytes(size, kind.gathered_size, 8);
    if (gathered == nullptr) return Error::MemoryAllocationFailed;
    *list = {method_.values_.data(), items.data(), gathered, size};
    method_.values_[i] = Value(kind.tag, list);
  }
  return Error::Ok;
}

inline Error Method::Loading::check_lists() {
  for (size_t i = 0; i < method_.values_.size(); ++i) {
    const Value& value = method_.values_[i];
    const bool ints = value.tag() == Tag::ListInt, optional = value.tag() == Tag::ListOptionalTensor;
    if (!ints && !optional && value.tag() != Tag::ListTensor) continue;
    const BoxedList& list = *value.boxed_list();
    for (uint32_t k = 0; k < list.size; ++k) {
      const int64_t index =
          ints ? static_cast<const int64_t*>(list.indices)[k] : static_cast<const int32_t*>(list.indices)[k];
      if (optional && index == -1) continue;
      TORCHETTE_CHECK(index >= 0 && static_cast<uint64_t>(index) < method_.values_.size(), InvalidProgram,
                      "list %zu refers to a missing value", i);
      const Value& item = method_.values_[static_cast<size_t>(index)];
      TORCHETTE_CHECK(
          ints ? is_number(item) && !item.is_double() : item.is_tensor() || (optional && item.is_none()),
          InvalidProgram, "list %zu refers to value %lld, which has kind %u", i,
          static_cast<long long>(index), static_cast<unsigned>(item.tag()));
      method_.flags_[index] |= kUsed;
    }
  }
  return Error::Ok;
}

inline Error Method::Loading::load_tensor(size_t index) {
  const bool is_static =
      tensor_.get<TensorShapeDynamism>(schema::Tensor::kShapeDynamism) == TensorShapeDynamism::STATIC;
  TensorInfo& info = infos_[is_static];
  TORCHETTE_TRY(info.read(reader_, tensor_));
  if (is_static && !info.same_layout_) shared_strides_ = nullptr;
  return make_tensor(info, is_static, index);
}

inline TORCHETTE_NOINLINE Error Method::Loading::make_tensor(const TensorInfo& info, bool is_static,
                                                             size_t index) {
  const size_t rank = info.sizes_.size();
  const bool owned = info.dynamism_ == TensorShapeDynamism::DYNAMIC_UNBOUND &&
                     (method_.flags_[index] & kInput) == 0 && rank != 0;
  auto* const impl = static_cast<TensorImpl*>(
      arena_.allocate(owned ? sizeof(OwnedTensorImpl) : sizeof(TensorImpl), alignof(OwnedTensorImpl)));
  if (impl == nullptr) return Error::MemoryAllocationFailed;
  // Static sizes are never written: they are used in place in the file, and consecutive equal shapes share
  // strides.
  impl->sizes = const_cast<SizesType*>(info.sizes_.data());
  impl->strides = shared_strides_;
  if (!is_static || shared_strides_ == nullptr) {
    Span<SizesType> numbers;
    TORCHETTE_TRY(allocate(is_static ? rank : 2 * rank, &numbers));
    impl->strides = numbers.data();
    (void)dense_strides(info.sizes_, info.dim_order_.data(), impl->strides).ok();
    if (is_static) {
      shared_strides_ = impl->strides;
    } else {
      impl->sizes = numbers.data() + rank;
      for (size_t d = 0; d < rank; ++d) impl->sizes[d] = info.sizes_[d];
    }
  }
  impl->data = nullptr;
  impl->dim_order = info.dim_order_.data();
  impl->capacity = static_cast<size_t>(info.numel_);
  impl->numel = info.numel_;
  impl->dim = static_cast<uint8_t>(rank);
  impl->type = info.type_;
  impl->dynamism = info.dynamism_;
  Value& value = method_.values_[index];
  const Table extra = tensor_.table(schema::Tensor::kExtraTensorInfo);
  if ((method_.flags_[index] & kInput) != 0) {
    const auto ranges = extra.vector<SizesType>(schema::ExtraTensorInfo::kRanges);
    const bool both = ranges.size() == 2 * rank;
    // The value is an int. Testing that keeps the conversion from double out of firmware.
    method_.input_state_[value.is_int() ? value.to_int() : 0] = {
        both ? ranges.data() : info.sizes_.data(), static_cast<uint8_t>(1 + both), both || is_static, false};
  }
  new (&value) Value(Tensor(impl));
  return set_memory(index, info.nbytes_, owned, extra, impl);
}

inline Error Method::Loading::set_memory(size_t index, size_t nbytes, bool owned, const Table& extra,
                                         TensorImpl* impl) {
  const auto buffer = tensor_.get<uint32_t>(schema::Tensor::kDataBufferIdx);
  const uint8_t* const allocation = tensor_.follow(schema::Tensor::kAllocationInfo);
  uint8_t& flags = method_.flags_[index];
  TORCHETTE_CHECK(!extra.present() || extra.get<schema::DeviceType>(schema::ExtraTensorInfo::kDeviceType) ==
                                          schema::DeviceType::CPU,
                  NotSupported, "tensor %zu is on another device than the CPU", index);
  const bool external = extra.present() && is_external(extra);
  if (allocation != nullptr) {
    allocation_.seek(allocation);
    TORCHETTE_TRY(set_planned_memory(nbytes, *impl));
    if (buffer != 0 || external) flags |= kInitialised;
  } else if (external) {
    TORCHETTE_TRY(method_.find_external(extra, *impl, &impl->data));
    flags |= kConstant;
  } else if (buffer != 0) {
    TORCHETTE_TRY(program_.constant(reader_, buffer, nbytes, &impl->data));
    flags |= kConstant;
  } else if (owned) {
    impl->dynamism = TensorShapeDynamism::OWNED;
    DynamicAllocator*& memory = static_cast<OwnedTensorImpl*>(impl)->memory;
    memory = method_.memory_->dynamic_allocator();
    TORCHETTE_CHECK(memory != nullptr, InvalidArgument,
                    "tensor %zu has an unbounded size: pass a dynamic allocator", index);
    reserve_tensor(*impl, 0);
  } else if ((flags & (kInput | kOutput)) != 0) {
    flags |= kCallerMemory;
  } else if ((impl->numel | static_cast<int32_t>(impl->dynamism)) != 0) {
    // The remaining tensors have no elements and never get any, such as gradients that a mask leaves out.
    flags |= kUnbacked;
    impl->capacity = SIZE_MAX;  // it uses the memory of another tensor
    method_.has_unbacked_ = true;
  }
  TORCHETTE_CHECK(is_aligned_for(impl->data, impl->type), InvalidProgram,
                  "the bytes of tensor %zu are not aligned", index);
  return Error::Ok;
}

inline Error Method::Loading::set_planned_memory(size_t nbytes, TensorImpl& tensor) {
  const auto id = allocation_.get<uint32_t>(schema::AllocationDetails::kMemoryId);
  const uint64_t offset =
      allocation_.get<uint32_t>(schema::AllocationDetails::kMemoryOffsetLow) |
      static_cast<uint64_t>(allocation_.get<uint32_t>(schema::AllocationDetails::kMemoryOffsetHigh)) << 32;
  const HierarchicalAllocator* memory = method_.memory_->planned_memory();
  TORCHETTE_CHECK(memory != nullptr, InvalidArgument, "the method needs planned memory, none is given");
  TORCHETTE_CHECK(id != 0 && offset <= SIZE_MAX, InvalidProgram, "a tensor has the invalid memory id %u", id);
  const Result<void*> found = memory->get_offset_address(id - 1, static_cast<size_t>(offset), nbytes);
  if (!found.ok()) return found.error();
  tensor.data = *found;
  const size_t end = static_cast<size_t>(offset) + nbytes;
  size_t& extent = method_.extents_[id - 1];
  if (end > extent && tensor.dynamism == TensorShapeDynamism::STATIC) extent = end;
  return Error::Ok;
}

inline Error Method::Loading::load_signature() {
  method_.inputs_ = plan_.vector<int32_t>(schema::ExecutionPlan::kInputs);
  method_.outputs_ = plan_.vector<int32_t>(schema::ExecutionPlan::kOutputs);
  TORCHETTE_CHECK(reader_.ok(), InvalidProgram, "the method's plan is outside the file");
  const size_t count = records_.size();
  TORCHETTE_TRY(allocate(count, &method_.values_));
  Span<uint8_t> flags;
  TORCHETTE_TRY(allocate(count, &flags));
  method_.flags_ = flags.data();
  static_assert(static_cast<int>(Tag::None) == 0);
  memset(static_cast<void*>(method_.values_.data()), 0, count * sizeof(Value));
  memset(method_.flags_, 0, count);
  Span<Span<uint8_t>> buffers;
  const HierarchicalAllocator* planned = method_.memory_->planned_memory();
  if (planned != nullptr) {  // set_planned_memory() reports a tensor that needs missing planned memory
    buffers = planned->buffers();
    TORCHETTE_TRY(check_planned_sizes(buffers));
  }
  TORCHETTE_TRY(allocate(buffers.size(), &method_.extents_));
  memset(method_.extents_.data(), 0, buffers.size() * sizeof(size_t));
  Span<Input> inputs;
  TORCHETTE_TRY(allocate(method_.inputs_.size(), &inputs));
  method_.input_state_ = inputs.data();
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i].set = true;  // make_tensor() clears it for tensors
    const int32_t index = method_.inputs_[i];
    TORCHETTE_TRY(in_range(index));
    uint8_t& known = method_.flags(index);
    TORCHETTE_CHECK(known == 0, InvalidProgram, "value %d is an input twice", static_cast<int>(index));
    known = kInput;
    method_.value(index) =
        Value(static_cast<int64_t>(i));  // the index of the input, until the record is read
  }
  for (int32_t index : method_.outputs_) {
    TORCHETTE_TRY(in_range(index));
    method_.flags(index) |= kOutput;
  }
  return Error::Ok;
}

inline Error Method::Loading::check_planned_sizes(Span<const Span<uint8_t>> buffers) const {
  const Span<const int64_t> sizes = plan_.vector<int64_t>(schema::ExecutionPlan::kNonConstBufferSizes);
  for (size_t id = 1; id < sizes.size(); ++id) {
    const size_t given = id <= buffers.size() ? buffers[id - 1].size() : 0;
    TORCHETTE_CHECK(static_cast<uint64_t>(sizes[id]) <= given, MemoryAllocationFailed,
                    "planned buffer %zu has %zu bytes, the method needs %lld", id - 1, given,
                    static_cast<long long>(sizes[id]));
  }
  return Error::Ok;
}

}  // namespace torchette
