// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/vulkan/host.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "torchette/backends/vulkan/host_kernels.h"

namespace torchette {
namespace vulkan {
namespace {

using flat::Table;

constexpr DimOrderType kOrder[] = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr size_t kMaxArgumentsPerByte = 16;  // of the payload

/// The type of a tensor on the processor, float32 for any float and int64 for int32, and its type in the
/// payload. Returns false if the type is not supported.
bool type_of(fb::VkDataType type, ScalarType* out, ScalarType* stored) {
  switch (type) {
    case fb::VkDataType::FLOAT32:
    case fb::VkDataType::FLOAT64:
    case fb::VkDataType::FLOAT16:
      *out = ScalarType::Float;
      *stored = type == fb::VkDataType::FLOAT16   ? ScalarType::Half
                : type == fb::VkDataType::FLOAT64 ? ScalarType::Double
                                                  : ScalarType::Float;
      return true;
    case fb::VkDataType::BOOL:
      *out = *stored = ScalarType::Bool;
      return true;
    case fb::VkDataType::UINT8:
      *out = *stored = ScalarType::Byte;
      return true;
    case fb::VkDataType::INT8:
      *out = *stored = ScalarType::Char;
      return true;
    case fb::VkDataType::INT32:
    case fb::VkDataType::INT64:
      *out = ScalarType::Long;
      *stored = type == fb::VkDataType::INT32 ? ScalarType::Int : ScalarType::Long;
      return true;
    default:
      return false;
  }
}

}  // namespace

void* HostMemory::reallocate(void* old, size_t size) {
  std::free(old);
  if (size == 0 || size > SIZE_MAX / 2) return nullptr;
  return std::aligned_alloc(64, (size + 63) / 64 * 64);
}

Host::~Host() {
  for (Stored& it : tensors_)
    if (it.owns || it.dynamism == TensorShapeDynamism::OWNED) memory_.reallocate(it.data, 0);
  for (void* it : converted_) memory_.reallocate(it, 0);
}

void* Host::room(size_t bytes) {
  rooms_.emplace_back(new (std::nothrow) uint64_t[bytes / 8 + 1]);
  return rooms_.back().get();
}

int32_t Host::add(const Value& value) {
  values_.push_back(value);
  return static_cast<int32_t>(values_.size()) - 1;
}

Host::Stored* Host::make(ScalarType type, size_t rank) {
  tensors_.emplace_back();
  Stored& it = tensors_.back();
  it.data = nullptr;
  it.sizes = it.own_sizes;
  it.strides = it.own_strides;
  it.dim_order = kOrder;
  it.capacity = 0;
  it.numel = 0;
  it.dim = static_cast<uint8_t>(rank);
  it.type = type;
  it.dynamism = TensorShapeDynamism::OWNED;
  it.memory = &memory_;
  for (size_t d = 0; d < kMaxDims; ++d) it.own_sizes[d] = 0, it.own_strides[d] = 1;
  if (rank == 0) {  // its size is fixed
    memset(it.own_room, 0, sizeof(it.own_room));
    it.data = it.own_room;
    it.capacity = 1;
    it.numel = 1;
    it.dynamism = TensorShapeDynamism::STATIC;
  }
  return &it;
}

Host::Stored* Host::stored(int32_t slot) const {
  const Value& value = values_[static_cast<size_t>(slot)];
  return value.is_tensor() ? static_cast<Stored*>(value.to_tensor().unsafe_impl()) : nullptr;
}

Error Host::copy(const Tensor& from, const Tensor& to, Context& context) const {
  Value values[] = {Value(to), Value(from), Value(false)};
  const int32_t index[] = {0, 1, 2, 0};
  return copy_->function(context, {values, index});
}

Error Host::open(const void* bytes, size_t size, const NamedDataMap* named) {
  copy_ = kernel_of("aten::copy.out");
  TORCHETTE_CHECK(copy_ != nullptr, OperatorMissing, "there is no kernel for aten::copy.out");
  budget_ = kMaxArgumentsPerByte * size;
  TORCHETTE_TRY(payload_.open(bytes, size, named));
  TORCHETTE_TRY(read_states());
  TORCHETTE_TRY(read_values());
  return read_calls();
}

Error Host::read_values() {
  const flat::Tables records = payload_.values();
  given_.resize(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    Given& out = given_[i];
    const Table outer = records[i];
    out.type = outer.get<fb::GraphTypes>(fb::VkValue::kValueType);
    const Table t = outer.table(fb::VkValue::kValue);
    Value value;
    switch (out.type) {
      case fb::GraphTypes::NONE:
      case fb::GraphTypes::Null:
        break;
      case fb::GraphTypes::Int:
        value = Value(t.get<int64_t>(fb::Int::kIntVal));
        break;
      case fb::GraphTypes::SymInt:
        value = Value(int64_t{t.get<int32_t>(fb::SymInt::kValue)});
        break;
      case fb::GraphTypes::Bool:
        value = Value(t.get<uint8_t>(fb::Bool::kBoolVal) != 0);
        break;
      case fb::GraphTypes::Double:
        value = Value(t.get<double>(fb::Double::kDoubleVal));
        break;
      case fb::GraphTypes::String:
        out.text = t.string(fb::String::kStringVal);
        break;
      case fb::GraphTypes::IntList:
        out.ints = t.vector<int64_t>(fb::IntList::kItems);
        break;
      case fb::GraphTypes::DoubleList:
        out.reals = t.vector<double>(fb::DoubleList::kItems);
        break;
      case fb::GraphTypes::BoolList:
        out.flags = t.vector<uint8_t>(fb::BoolList::kItems);
        break;
      case fb::GraphTypes::ValueList:
        out.list = t.vector<int32_t>(fb::ValueList::kItems);
        for (const int32_t id : out.list)
          TORCHETTE_CHECK(id >= 0 && static_cast<size_t>(id) < records.size(), DelegateInvalidCompatibility,
                          "value %d is in a list of Vulkan's, there are %zu", id, records.size());
        break;
      case fb::GraphTypes::VkTensor: {
        const Span<const uint32_t> dims = t.vector<uint32_t>(fb::VkTensor::kDims);
        const auto data = t.get<fb::VkDataType>(fb::VkTensor::kDatatype);
        ScalarType type, kept;
        TORCHETTE_CHECK(dims.size() <= kMaxDims && type_of(data, &type, &kept), NotSupported,
                        "value %zu of Vulkan's has %zu dimensions and type %d", i, dims.size(),
                        static_cast<int>(data));
        Stored* const tensor = make(type, dims.size());
        out.dims = dims;
        for (const uint32_t d : dims)
          TORCHETTE_CHECK(d < INT32_MAX, NotSupported, "value %zu of Vulkan's has 2^31 elements", i);
        TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "a Vulkan payload is damaged");
        add(Value(Tensor(tensor)));
        const auto constant = t.get<int32_t>(fb::VkTensor::kConstantId);
        if (constant >= 0) TORCHETTE_TRY(read_constant(i, constant, kept));
        continue;
      }
      default:
        TORCHETTE_CHECK(false, NotSupported, "value %zu of Vulkan's is of an unknown kind", i);
    }
    add(value);
  }
  TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "a Vulkan payload is damaged");
  return Error::Ok;
}

Error Host::read_constant(size_t value, int32_t constant, ScalarType kept) {
  Stored& it = *stored(static_cast<int32_t>(value));
  Stored from = it;
  from.sizes = from.own_sizes;
  from.strides = from.own_strides;
  from.type = kept;
  for (size_t d = 0; d < it.dim; ++d) from.sizes[d] = static_cast<SizesType>(given_[value].dims[d]);
  const Result<int32_t> count = dense_strides({from.sizes, it.dim}, kOrder, from.strides);
  TORCHETTE_CHECK(count.ok(), NotSupported, "value %zu of Vulkan's has 2^31 elements", value);
  from.numel = *count;
  const size_t bytes = Tensor(&from).nbytes();
  const void* data = nullptr;
  FreeableBuffer named;
  TORCHETTE_TRY(payload_.constant(static_cast<uint32_t>(constant), bytes, &data, &named));
  held_.push_back(std::move(named));
  it.is_constant = it.is_defined = true;
  it.is_state = states_[value];
  std::vector<uint8_t> copied;
  const bool is_aligned = reinterpret_cast<uintptr_t>(data) % element_size(kept) == 0;
  if (!is_aligned || kept == ScalarType::Bool) {  // a byte of a bool may have any value
    copied.assign(static_cast<const uint8_t*>(data), static_cast<const uint8_t*>(data) + bytes);
    if (kept == ScalarType::Bool)
      for (uint8_t& byte : copied) byte = byte != 0;
    data = copied.data();
  }
  from.data = const_cast<void*>(data);
  if (it.dim != 0) {
    if (copied.empty() && kept == it.type && !it.is_state) {  // is read from the payload
      memcpy(it.own_sizes, from.own_sizes, sizeof(it.own_sizes));
      memcpy(it.own_strides, from.own_strides, sizeof(it.own_strides));
      it.data = from.data;
      it.numel = from.numel;
      it.capacity = static_cast<size_t>(from.numel);
      it.dynamism = TensorShapeDynamism::STATIC;
      return Error::Ok;
    }
    TORCHETTE_TRY(resize_tensor(Tensor(&it), {from.own_sizes, it.dim}));
    it.owns = true;
    it.dynamism = TensorShapeDynamism::STATIC;
  }
  if (*count == 0) return Error::Ok;
  Context context;
  TORCHETTE_TRY(copy(Tensor(&from), Tensor(&it), context));
  if (!it.is_state) return Error::Ok;
  const auto* const first = static_cast<const uint8_t*>(it.data);
  const uint8_t* const end = first + Tensor(&it).nbytes();
  const bool is_zero = std::all_of(first, end, [](uint8_t byte) { return byte == 0; });
  first_.emplace_back(&it, is_zero ? std::vector<uint8_t>() : std::vector<uint8_t>(first, end));
  return Error::Ok;
}

Error Host::reset() {
  for (const auto& [state, first] : first_) {
    if (first.empty())
      memset(state->data, 0, Tensor(state).nbytes());
    else
      memcpy(state->data, first.data(), first.size());
  }
  return Error::Ok;
}

Error Host::set_input(size_t i, const Value& argument, Context& context) {
  const auto id = static_cast<int32_t>(payload_.inputs()[i]);
  Stored* const it = stored(id);
  if (it == nullptr) {
    int64_t number = 0;
    TORCHETTE_TRY(whole_number(i, argument, &number));
    values_[static_cast<size_t>(id)] = Value(number);
    return Error::Ok;
  }
  TORCHETTE_CHECK(argument.is_tensor(), InvalidArgument, "argument %zu of Vulkan is no tensor", i);
  const Tensor tensor = argument.to_tensor();
  const Span<const uint32_t> max_sizes = given_[static_cast<size_t>(id)].dims;
  TORCHETTE_CHECK(tensor.dim() == it->dim, InvalidArgument,
                  "argument %zu of Vulkan has %td dimensions, its graph has %d", i, tensor.dim(), it->dim);
  for (size_t d = 0; d < it->dim; ++d)
    TORCHETTE_CHECK(tensor.sizes()[d] >= 0 && static_cast<uint32_t>(tensor.sizes()[d]) <= max_sizes[d],
                    InvalidArgument, "argument %zu of Vulkan has the size %d where its graph has at most %u",
                    i, static_cast<int>(tensor.sizes()[d]), max_sizes[d]);
  TORCHETTE_CHECK(is_floating(tensor.scalar_type()) == is_floating(it->type) &&
                      (tensor.numel() == 0 || tensor.const_data_ptr() != nullptr),
                  InvalidArgument, "argument %zu of Vulkan has another type, or no data", i);
  const Result<int32_t> count = dense_strides(tensor.sizes(), kOrder, it->own_strides);
  TORCHETTE_CHECK(count.ok(), InvalidArgument, "argument %zu of Vulkan is too large", i);
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), it->own_sizes);
  it->numel = *count;
  it->capacity = static_cast<size_t>(*count);
  it->data = tensor.mutable_data_ptr();
  if (tensor.scalar_type() == it->type && is_contiguous(tensor)) return Error::Ok;
  converted_[i] = memory_.reallocate(converted_[i], Tensor(it).nbytes());
  it->data = converted_[i];
  if (*count == 0) return Error::Ok;
  if (it->data == nullptr) return Error::MemoryAllocationFailed;
  return copy(tensor, Tensor(it), context);
}

Error Host::give_output(size_t i, Value* argument, Context& context) {
  const auto id = static_cast<int32_t>(payload_.outputs()[i]);
  const Value& value = values_[static_cast<size_t>(id)];
  if (!value.is_tensor()) {
    *argument = value;
    return Error::Ok;
  }
  TORCHETTE_CHECK(
      argument->is_tensor() && argument->to_tensor().dim() == value.to_tensor().dim() &&
          is_floating(argument->to_tensor().scalar_type()) == is_floating(value.to_tensor().scalar_type()),
      InvalidArgument, "result %zu of Vulkan has another type or other dimensions than its graph", i);
  const Tensor to = argument->to_tensor();
  TORCHETTE_TRY(resize_tensor(to, value.to_tensor().sizes()));
  if (to.numel() == 0) return Error::Ok;
  TORCHETTE_CHECK(to.const_data_ptr() != nullptr, InvalidArgument, "result %zu of Vulkan has no memory", i);
  return copy(value.to_tensor(), to, context);
}

Error Host::execute(Span<Value*> arguments, Context& context) {
  const size_t inputs = payload_.inputs().size(), outputs = payload_.outputs().size();
  TORCHETTE_CHECK(arguments.size() == inputs + outputs, InvalidArgument,
                  "Vulkan is given %zu arguments, its graph has %zu inputs and %zu outputs", arguments.size(),
                  inputs, outputs);
  for (size_t i = 0; i < inputs; ++i) TORCHETTE_TRY(set_input(i, *arguments[i], context));
  EventTracer* const tracer = context.event_tracer();
  size_t freed = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    if (!step.is_constant || !has_run_) {
      const torchette_timestamp_t start = tracer == nullptr ? 0 : current_ticks();
      const Error error = step.function(context, {values_.data(), arguments_.data() + step.first});
      context.reset_temp();
      if (error != Error::Ok) {
        TORCHETTE_LOG(Error, "the processor cannot run Vulkan's %.80s", step.name);
        return error;
      }
      if (tracer != nullptr)
        event_tracer_log_profiling_delegate(tracer, step.name, static_cast<DelegateDebugIntId>(step.handle),
                                            start, current_ticks());
    }
    for (; freed < freed_.size() && freed_[freed]->last <= s; ++freed) reserve_tensor(*freed_[freed], 0);
  }
  has_run_ = true;
  for (size_t i = 0; i < outputs; ++i) TORCHETTE_TRY(give_output(i, arguments[inputs + i], context));
  return Error::Ok;
}

}  // namespace vulkan
}  // namespace torchette
