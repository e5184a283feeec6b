// SPDX-License-Identifier: BSD-3-Clause
// Reads the values of a payload and writes the two programs.
#include "torchette/backends/vulkan/kernels/graph_reader.h"

#include <new>

namespace torchette {
namespace vulkan {
namespace {

using delegate::DelegateMethod;
using delegate::Role;
using flat::Table;

constexpr size_t kMaxArgumentsPerByte = 16;  // of the payload
constexpr size_t kAlignment = 64;            // of a copy of a constant

/// The dtype of a tensor for the kernels, float32 for any floating-point dtype and int64 for int32, and its
/// dtype in the payload. Returns false if the dtype is not supported.
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

bool has_other_booleans(const uint8_t* bytes, size_t size) {
  for (size_t i = 0; i < size; ++i)
    if (bytes[i] > 1) return true;
  return false;
}

}  // namespace

KernelMethod::~KernelMethod() {
  if (method != nullptr) method->~DelegateMethod();
  if (folded != nullptr) folded->~DelegateMethod();
  for (FreeableBuffer& bytes : constants) bytes.~FreeableBuffer();
}

GraphReader::~GraphReader() {
  for (size_t i = 0; i < count_; ++i) buffers_[i].~FreeableBuffer();
}

Error GraphReader::load(const void* bytes, size_t size, KernelMethod* out) {
  budget_ = kMaxArgumentsPerByte * size;
  TORCHETTE_TRY(payload_.open(bytes, size, context_.get_named_data_map()));
  TORCHETTE_TRY(allocate());
  TORCHETTE_TRY(read_written());
  for (size_t i = 0; i < count_; ++i) TORCHETTE_TRY(read_value(i));
  TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "a Vulkan payload is damaged");
  TORCHETTE_TRY(read_inputs());
  for (size_t i = 0; i < payload_.calls().size(); ++i) TORCHETTE_TRY(read_call(i));
  TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "a Vulkan payload is damaged");
  TORCHETTE_TRY(read_outputs());
  TORCHETTE_TRY(fold(out));
  TORCHETTE_TRY(keep_constants(out));
  const Result<DelegateMethod*> method =
      DelegateMethod::load(context_, main_, {inputs_, payload_.inputs().size()},
                           {outputs_, payload_.outputs().size()}, &out->memory, true);
  if (!method.ok()) return method.error();
  out->method = *method;
  return Error::Ok;
}

Error GraphReader::allocate() {
  const size_t count = payload_.values().size();
  items_ = scratch_.allocate_list<Item>(count);
  buffers_ = scratch_.allocate_list<FreeableBuffer>(count);
  inputs_ = scratch_.allocate_list<const Entry*>(payload_.inputs().size());
  outputs_ = scratch_.allocate_list<const Entry*>(payload_.outputs().size());
  TORCHETTE_CHECK(items_ != nullptr && buffers_ != nullptr && inputs_ != nullptr && outputs_ != nullptr,
                  MemoryAllocationFailed, "cannot allocate %zu values of a Vulkan payload", count);
  for (; count_ < count; ++count_) {
    new (items_ + count_) Item();
    new (buffers_ + count_) FreeableBuffer();
  }
  return Error::Ok;
}

Error GraphReader::read_value(size_t i) {
  Item& item = items_[i];
  const Table outer = payload_.values()[i], t = outer.table(fb::VkValue::kValue);
  item.type = outer.get<fb::GraphTypes>(fb::VkValue::kValueType);
  switch (item.type) {
    case fb::GraphTypes::NONE:
    case fb::GraphTypes::Null:
      return Error::Ok;
    case fb::GraphTypes::Int:
      item.integer = t.get<int64_t>(fb::Int::kIntVal);
      if (item.is_written) item.slot = main_.number(item.integer);
      return Error::Ok;
    case fb::GraphTypes::SymInt:
      item.integer = t.get<int32_t>(fb::SymInt::kValue);
      item.slot = main_.number(item.integer);
      return Error::Ok;
    case fb::GraphTypes::Bool:
      item.integer = t.get<uint8_t>(fb::Bool::kBoolVal) != 0;
      return Error::Ok;
    case fb::GraphTypes::Double:
      item.real = t.get<double>(fb::Double::kDoubleVal);
      return Error::Ok;
    case fb::GraphTypes::String:
      item.text = t.string(fb::String::kStringVal);
      return Error::Ok;
    case fb::GraphTypes::IntList:
      item.ints = t.vector<int64_t>(fb::IntList::kItems);
      return Error::Ok;
    case fb::GraphTypes::DoubleList:
      item.reals = t.vector<double>(fb::DoubleList::kItems);
      return Error::Ok;
    case fb::GraphTypes::BoolList:
      item.flags = t.vector<uint8_t>(fb::BoolList::kItems);
      return Error::Ok;
    case fb::GraphTypes::ValueList:
      item.list = t.vector<int32_t>(fb::ValueList::kItems);
      for (const int32_t id : item.list)
        TORCHETTE_CHECK(id >= 0 && static_cast<size_t>(id) < count_, DelegateInvalidCompatibility,
                        "a list of the Vulkan payload contains value %d of %zu", id, count_);
      return Error::Ok;
    case fb::GraphTypes::VkTensor:
      return read_tensor(i, t);
    default:
      TORCHETTE_LOG(Error, "value %zu of the Vulkan payload has an unknown kind", i);
      return Error::NotSupported;
  }
}

Error GraphReader::read_tensor(size_t i, const Table& record) {
  const Span<const uint32_t> dims = record.vector<uint32_t>(fb::VkTensor::kDims);
  const auto type = record.get<fb::VkDataType>(fb::VkTensor::kDatatype);
  ScalarType held, stored;
  TORCHETTE_CHECK(dims.size() <= delegate::kMaxRank && type_of(type, &held, &stored), NotSupported,
                  "value %zu of the Vulkan payload has %zu dimensions and type %d", i, dims.size(),
                  static_cast<int>(type));
  PayloadTensor* const tensor = items_[i].tensor = temporary(held, dims.size());
  if (tensor == nullptr) return Error::MemoryAllocationFailed;
  tensor->dims = dims;
  TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "a Vulkan payload is damaged");
  const auto constant = record.get<int32_t>(fb::VkTensor::kConstantId);
  return constant < 0 ? Error::Ok : read_constant(i, static_cast<uint32_t>(constant), stored);
}

/// Converts a constant of another dtype in the first program.
Error GraphReader::read_constant(size_t i, uint32_t constant, ScalarType stored) {
  PayloadTensor& tensor = *items_[i].tensor;
  TensorValue sized;
  TORCHETTE_TRY(sized.set(tensor.dims, stored));
  const size_t item = element_size(stored), size = sized.numel * item;
  const void* data = nullptr;
  TORCHETTE_TRY(payload_.constant(constant, size, &data, &buffers_[i]));
  const auto* const bytes = static_cast<const uint8_t*>(data);
  const bool has_booleans = stored == ScalarType::Bool && has_other_booleans(bytes, size);
  if (has_booleans || reinterpret_cast<uintptr_t>(data) % item != 0) {
    auto* const copied = static_cast<uint8_t*>(memory_.allocate(size, kAlignment));
    TORCHETTE_CHECK(copied != nullptr, MemoryAllocationFailed, "cannot allocate constant %u of %zu bytes",
                    constant, size);
    if (size != 0) memcpy(copied, bytes, size);
    for (size_t k = 0; has_booleans && k < size; ++k) copied[k] = copied[k] != 0;
    data = copied;
  }
  tensor.is_constant = tensor.is_defined = true;
  tensor.is_state = items_[i].is_written;
  tensor.data = const_cast<void*>(data);
  if (stored == tensor.type) return Error::Ok;
  PayloadTensor* const from = temporary(stored, tensor.rank);
  PayloadTensor* const to = temporary(tensor.type, tensor.rank);
  if (from == nullptr || to == nullptr) return Error::MemoryAllocationFailed;
  *from = tensor;
  from->type = stored;
  from->is_state = false;
  tensor.data = nullptr;
  tensor.values[kFolded] = tensor.made = value(*to, kFolded);
  return folding_.call("aten::_to_copy.out", {value(*from, kFolded), false, Argument(), value(*to, kFolded)});
}

Error GraphReader::read_inputs() {
  const Span<const uint32_t> ids = payload_.inputs();
  auto* const numbers = scratch_.allocate_list<Argument>(ids.size());
  if (numbers == nullptr) return Error::MemoryAllocationFailed;
  size_t number_count = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    Item& item = items_[ids[i]];
    PayloadTensor* const tensor = item.tensor;
    TORCHETTE_CHECK(item.type == fb::GraphTypes::SymInt || (tensor != nullptr && !tensor->is_defined),
                    DelegateInvalidCompatibility,
                    "input %u of the Vulkan payload is not a tensor, or occurs twice", ids[i]);
    inputs_[i] = item.slot;
    if (tensor == nullptr) {
      new (numbers + number_count++) Argument(item.slot);
      continue;
    }
    tensor->is_defined = true;
    TensorValue* const input = value(*tensor, kMain);
    if (input == nullptr) return Error::MemoryAllocationFailed;
    input->role = Role::Input;
    TORCHETTE_TRY(input->set(tensor->dims, tensor->type));
    inputs_[i] = main_.entry(input);
  }
  // The list uses all integer inputs: Method::set_input() accepts only one value for an input that no call
  // uses.
  if (number_count != 0) main_.integers(Span<const Argument>{numbers, number_count});
  return Error::Ok;
}

Error GraphReader::read_outputs() {
  const Span<const uint32_t> ids = payload_.outputs();
  for (size_t i = 0; i < ids.size(); ++i) {
    const Item& item = items_[ids[i]];
    TORCHETTE_CHECK(item.tensor == nullptr ? item.is_number() : item.tensor->is_defined,
                    DelegateInvalidCompatibility, "output %u of the Vulkan payload is not computed", ids[i]);
    outputs_[i] = item.tensor != nullptr ? main_.entry(value(*item.tensor, kMain))
                  : item.slot != nullptr ? item.slot
                                         : main_.number(item.number());
  }
  return Error::Ok;
}

/// Executes the first program. Its outputs become constants of the second program.
Error GraphReader::fold(KernelMethod* out) {
  if (folding_.call_count() == 0) return Error::Ok;
  auto** const outputs = scratch_.allocate_list<const Entry*>(folded_count_);
  if (outputs == nullptr) return Error::MemoryAllocationFailed;
  size_t count = 0;
  for (const Folded* it = folded_; it != nullptr; it = it->next) outputs[count++] = folding_.entry(it->made);
  BackendInitContext untraced(&memory_, context_.get_method_name());
  const Result<DelegateMethod*> method =
      DelegateMethod::load(untraced, folding_, {}, {outputs, count}, &out->memory, true);
  if (!method.ok()) return method.error();
  out->folded = *method;
  TORCHETTE_TRY(out->folded->execute());
  count = 0;
  for (const Folded* it = folded_; it != nullptr; it = it->next) {
    const Tensor made = out->folded->output(count++).to_tensor();
    TensorValue& read = *it->read;
    TORCHETTE_CHECK(read.role != Role::State || read.numel == static_cast<size_t>(made.numel()),
                    DelegateInvalidCompatibility,
                    "a state of the Vulkan payload has other sizes than its initial values");
    read.data = made.mutable_data_ptr();
    read.numel = static_cast<size_t>(made.numel());
    for (size_t d = 0; d < read.rank; ++d) read.sizes[d] = made.sizes()[d];
  }
  return Error::Ok;
}

/// Keeps the constants that the method reads.
Error GraphReader::keep_constants(KernelMethod* out) {
  size_t count = 0;
  const auto is_read = [this](size_t i) {
    const PayloadTensor* const tensor = items_[i].tensor;
    return tensor != nullptr && tensor->data != nullptr && tensor->values[kMain] != nullptr;
  };
  for (size_t i = 0; i < count_; ++i) count += is_read(i) && buffers_[i].data() != nullptr;
  auto* const kept = memory_.allocate_list<FreeableBuffer>(count);
  TORCHETTE_CHECK(kept != nullptr, MemoryAllocationFailed, "cannot allocate %zu constants of Vulkan's graph",
                  count);
  count = 0;
  for (size_t i = 0; i < count_; ++i) {
    if (!is_read(i)) continue;
    out->needs_bytes |= buffers_[i].data() == nullptr;
    if (buffers_[i].data() != nullptr) new (kept + count++) FreeableBuffer(std::move(buffers_[i]));
  }
  out->constants = {kept, count};
  return Error::Ok;
}

PayloadTensor* GraphReader::temporary(ScalarType type, size_t rank) {
  void* const memory = main_.allocate<PayloadTensor>();
  if (memory == nullptr) return nullptr;
  auto* const made = new (memory) PayloadTensor();
  made->type = type;
  made->rank = static_cast<uint8_t>(rank);
  return made;
}

/// Null if memory is exhausted or a constant is too large; the next call then fails.
TensorValue* GraphReader::value(PayloadTensor& tensor, Part part) {
  TensorValue*& value = tensor.values[part];
  if (value != nullptr) return value;
  delegate::ProgramBuilder& builder = builder_of(part);
  void* const memory = builder.allocate<TensorValue>();
  if (memory == nullptr) return nullptr;
  auto* const made = new (memory) TensorValue();
  const bool is_folded = part == kMain && tensor.made != nullptr;
  const bool is_stored = tensor.is_constant && tensor.made == nullptr;
  static constexpr uint32_t kUnknown[delegate::kMaxRank] = {};
  const bool has_sizes = is_stored || tensor.is_state;
  const Error error =
      made->set(has_sizes ? tensor.dims : Span<const uint32_t>(kUnknown, tensor.rank), tensor.type);
  if (error != Error::Ok) {
    builder.set_full();
    return nullptr;
  }
  made->role = tensor.is_state ? Role::State : is_folded || is_stored ? Role::Constant : Role::Dynamic;
  made->data = tensor.data;
  if (is_folded) {
    void* const link = builder.allocate<Folded>();
    if (link == nullptr) return nullptr;
    folded_ = new (link) Folded{tensor.made, made, folded_};
    ++folded_count_;
  }
  return value = made;
}

}  // namespace vulkan
}  // namespace torchette
