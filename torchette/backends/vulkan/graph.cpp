// SPDX-License-Identifier: BSD-3-Clause
// Reads the values and calls of a payload.
#include "torchette/backends/vulkan/graph.h"

#include <algorithm>
#include <cstring>

#include "torchette/backends/vulkan/elements.h"

namespace torchette {
namespace vulkan {
namespace {

/// The kind of a tensor of the payload. Returns false if the type is not supported.
bool kind_of(fb::VkDataType type, bool has_half, Kind* kind) {
  switch (type) {
    case fb::VkDataType::FLOAT32:
    case fb::VkDataType::FLOAT64:
      *kind = Kind::kFloat;
      return true;
    case fb::VkDataType::FLOAT16:  // float32 if the device has no 16-bit storage
      *kind = has_half ? Kind::kHalf : Kind::kFloat;
      return true;
    case fb::VkDataType::BOOL:
      *kind = Kind::kBool;
      return true;
    case fb::VkDataType::UINT8:
    case fb::VkDataType::INT8:
    case fb::VkDataType::INT32:
    case fb::VkDataType::INT64:
      *kind = Kind::kInt;
      return true;
    default:
      return false;
  }
}

}  // namespace

int64_t View::numel() const {
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= sizes[i];
  return count;
}

bool View::is_contiguous() const {
  int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (sizes[i] != 1 && strides[i] != stride) return false;
    stride *= sizes[i];
  }
  return true;
}

void View::make_contiguous_strides() {
  int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= sizes[i];
  }
}

int64_t View::size(int dim) const {
  if (dim < 0) dim += rank;
  return dim >= 0 && dim < rank ? sizes[dim] : 1;
}

Graph::~Graph() {
  const VkDevice device = device_.handle();
  if (fence_ != VK_NULL_HANDLE) device_.vk.DestroyFence(device, fence_, nullptr);
  if (sets_ != VK_NULL_HANDLE) device_.vk.DestroyDescriptorPool(device, sets_, nullptr);
  if (times_ != VK_NULL_HANDLE) device_.vk.DestroyQueryPool(device, times_, nullptr);
  if (command_pool_ != VK_NULL_HANDLE) device_.vk.DestroyCommandPool(device, command_pool_, nullptr);
  for (Buffer& buffer : constants_) device_.free(&buffer);
  device_.free(&arena_);
  device_.free(&io_);
}

Error Graph::open(const void* bytes, size_t size, const NamedDataMap* named) {
  TORCHETTE_TRY(payload_.open(bytes, size, named));
  TORCHETTE_TRY(read_values());
  TORCHETTE_TRY(read_calls());
  VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
  pool.queueFamilyIndex = device_.queue_family();
  TORCHETTE_TRY(device_.check(device_.vk.CreateCommandPool(device_.handle(), &pool, nullptr, &command_pool_),
                              "a pool of commands"));
  VkCommandBufferAllocateInfo commands{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, command_pool_,
                                       VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
  TORCHETTE_TRY(device_.check(device_.vk.AllocateCommandBuffers(device_.handle(), &commands, &commands_),
                              "a buffer of commands"));
  const VkFenceCreateInfo fence{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  TORCHETTE_TRY(device_.check(device_.vk.CreateFence(device_.handle(), &fence, nullptr, &fence_), "a fence"));
  TORCHETTE_TRY(upload_constants());
  inputs_.resize(payload_.inputs().size());
  outputs_.resize(payload_.outputs().size());
  orders_.resize(outputs_.size());
  bool sizes_are_known = true;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Value& value = values_[payload_.inputs()[i]];
    if (value.type == Type::kSymInt) {
      sizes_are_known = false;
      continue;
    }
    TORCHETTE_CHECK(value.type == Type::kTensor && value.constant < 0, DelegateInvalidCompatibility,
                    "input %zu of the Vulkan payload is not a tensor", i);
    View& view = inputs_[i];
    view.kind = value.kind;
    view.rank = static_cast<int>(value.dims.size());
    for (int d = 0; d < view.rank; ++d) view.sizes[d] = value.dims[d];
    view.make_contiguous_strides();
  }
  if (!sizes_are_known) return Error::Ok;
  const Error error = build();
  device_.save();
  return error;
}

Error Graph::read_values() {
  const flat::Tables records = payload_.values();
  values_.resize(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    Value& out = values_[i];
    const flat::Table outer = records[i];
    const auto type = outer.get<fb::GraphTypes>(fb::VkValue::kValueType);
    const flat::Table t = outer.table(fb::VkValue::kValue);
    switch (type) {
      case fb::GraphTypes::NONE:
      case fb::GraphTypes::Null:
        break;
      case fb::GraphTypes::Int:
        out.type = Type::kInt;
        out.integer = t.get<int64_t>(fb::Int::kIntVal);
        break;
      case fb::GraphTypes::SymInt:
        out.type = Type::kSymInt;
        out.integer = t.get<int32_t>(fb::SymInt::kValue);
        break;
      case fb::GraphTypes::Bool:
        out.type = Type::kBool;
        out.integer = t.get<uint8_t>(fb::Bool::kBoolVal);
        break;
      case fb::GraphTypes::Double:
        out.type = Type::kDouble;
        out.real = t.get<double>(fb::Double::kDoubleVal);
        break;
      case fb::GraphTypes::String:
        out.type = Type::kText;
        out.text = t.string(fb::String::kStringVal);
        break;
      case fb::GraphTypes::IntList:
        out.type = Type::kInts;
        out.ints = t.vector<int64_t>(fb::IntList::kItems);
        break;
      case fb::GraphTypes::DoubleList:
        out.type = Type::kDoubles;
        out.reals = t.vector<double>(fb::DoubleList::kItems);
        break;
      case fb::GraphTypes::BoolList:
        out.type = Type::kBools;
        out.flags = t.vector<uint8_t>(fb::BoolList::kItems);
        break;
      case fb::GraphTypes::ValueList:
        out.type = Type::kList;
        out.list = t.vector<int32_t>(fb::ValueList::kItems);
        for (const int32_t id : out.list)
          TORCHETTE_CHECK(id >= 0 && static_cast<size_t>(id) < records.size(), DelegateInvalidCompatibility,
                          "a list of the Vulkan payload contains value %d of %zu", id, records.size());
        break;
      case fb::GraphTypes::VkTensor: {
        out.type = Type::kTensor;
        out.dims = t.vector<uint32_t>(fb::VkTensor::kDims);
        out.constant = t.get<int32_t>(fb::VkTensor::kConstantId);
        const auto data = t.get<fb::VkDataType>(fb::VkTensor::kDatatype);
        TORCHETTE_CHECK(out.dims.size() <= kMaxDims && kind_of(data, device_.has_half(), &out.kind),
                        NotSupported, "value %zu of the Vulkan payload has %zu dimensions and type %d", i,
                        out.dims.size(), static_cast<int>(data));
        int64_t count = 1;
        for (const uint32_t d : out.dims)
          count = d == 0 || count > kMaxElements / d ? (d == 0 ? 0 : kMaxElements) : count * d;
        TORCHETTE_CHECK(count < kMaxElements, NotSupported,
                        "value %zu of the Vulkan payload has 2^31 elements or more", i);
        break;
      }
      default:
        TORCHETTE_CHECK(false, NotSupported, "value %zu of the Vulkan payload has an unknown kind", i);
    }
  }
  TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "a Vulkan payload is damaged");
  return Error::Ok;
}

Error Graph::read_calls() {
  const flat::Tables records = payload_.calls();
  steps_.resize(records.size());
  // For each value, the call that copies a constant to it. If a later call changes the value, the value is a
  // state: the constant initializes it once, and the copy does not run at each execution.
  std::vector<Step*> copies(values_.size());
  const auto mark_changed = [&](int32_t id) {
    Value& it = values_[static_cast<size_t>(id)];
    Step*& step = copies[static_cast<size_t>(id)];
    if (it.constant < 0 && step != nullptr) {
      it.constant = values_[static_cast<size_t>(step->args[0])].constant;
      step->run = [](Call&) {};
      step = nullptr;
    }
    if (it.type == Type::kTensor && it.constant >= 0) it.is_state = true;
  };
  for (size_t i = 0; i < records.size(); ++i) {
    Step& step = steps_[i];
    const Span<const char> name = records[i].string(fb::OperatorCall::kName);
    step.args = records[i].vector<int32_t>(fb::OperatorCall::kArgs);
    TORCHETTE_CHECK(payload_.ok() && !step.args.empty(), DelegateInvalidCompatibility,
                    "call %zu of the Vulkan payload is damaged", i);
    step.run = find_operator(name);
    step.name = name.data();
    step.handle = records[i].get<uint32_t>(fb::OperatorCall::kNodeId);
    TORCHETTE_CHECK(step.run != nullptr, NotSupported, "Vulkan has no operator %.80s", name.data());
    for (const int32_t id : step.args)
      TORCHETTE_CHECK(id >= 0 && static_cast<size_t>(id) < values_.size(), DelegateInvalidCompatibility,
                      "call %zu of the Vulkan payload uses value %d of %zu", i, id, values_.size());
    const int32_t last = step.args[step.args.size() - 1];
    Value& result = values_[static_cast<size_t>(last)];
    mark_changed(last);
    for (const int32_t id : result.list) mark_changed(id);
    if (strcmp(step.name, "et_vk.prepack.default") == 0 && step.args.size() == 2) {
      const Value& from = values_[static_cast<size_t>(step.args[0])];
      const auto record = [&](int32_t id) {
        return payload_.values()[static_cast<size_t>(id)].table(fb::VkValue::kValue);
      };
      if (from.type == Type::kTensor && from.constant >= 0 && result.type == Type::kTensor &&
          std::equal(from.dims.begin(), from.dims.end(), result.dims.begin(), result.dims.end()) &&
          record(last).get<fb::VkDataType>(fb::VkTensor::kDatatype) ==
              record(step.args[0]).get<fb::VkDataType>(fb::VkTensor::kDatatype))
        copies[static_cast<size_t>(last)] = &step;
    }
    for (size_t k = 0; k + 1 < step.args.size(); ++k) count_reader(step.args[k], static_cast<int>(i));
  }
  for (const uint32_t id : payload_.outputs()) count_reader(static_cast<int32_t>(id), -1);
  for (const Step& step : steps_) pack_filters_of(step);
  for (const Step& step : steps_) {  // 8-bit weights stay kByte if a linear layer is their only reader
    if (!reads_bytes(step.run) || step.args.size() < 3) continue;
    const auto id = static_cast<size_t>(step.args[1]);
    Value& it = values_[id];
    if (it.type != Type::kTensor || it.constant < 0 || it.is_state || it.readers != 1) continue;
    const auto type = stored_type(
        payload_.values()[id].table(fb::VkValue::kValue).get<fb::VkDataType>(fb::VkTensor::kDatatype));
    if (type == ScalarType::Char || type == ScalarType::Byte) it.kind = Kind::kByte;
  }
  return Error::Ok;
}

/// Marks the constant filters of a dense convolution. Layers of one pixel are matmuls with few rows, which
/// read filters in their original order.
void Graph::pack_filters_of(const Step& step) {
  if (!is_convolution(step.run) || step.args.size() < 10) return;
  const auto value = [&](size_t i) -> Value& { return values_[static_cast<size_t>(step.args[i])]; };
  Value& weight = value(1);
  const Value& in = value(0);
  if (weight.type != Type::kTensor || weight.constant < 0 || weight.is_state || !is_float(weight.kind) ||
      weight.dims.size() < 3 || in.type != Type::kTensor || value(6).integer != 0 || value(8).integer != 1)
    return;
  uint64_t taps = 1, pixels = 1;
  for (size_t d = 2; d < weight.dims.size(); ++d) taps *= weight.dims[d];
  const size_t channels = in.dims.size() - std::min(in.dims.size(), weight.dims.size() - 1);
  for (size_t d = channels + 1; d < in.dims.size(); ++d) pixels *= in.dims[d];
  weight.is_packed = taps > 1 || pixels > 1;
}

void Graph::count_reader(int32_t id, int step, int depth) {
  Value& value = values_[static_cast<size_t>(id)];
  ++value.readers;
  value.reader = step;
  if (value.type == Type::kList && depth == 0)
    for (const int32_t item : value.list) count_reader(item, step, 1);
}

}  // namespace vulkan
}  // namespace torchette
