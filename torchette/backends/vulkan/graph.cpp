// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/vulkan/graph.h"

#include <algorithm>
#include <cstring>

namespace torchette {
namespace vulkan {
namespace {

constexpr int64_t kMostElements = INT32_MAX;
constexpr uint64_t kAlignment = 256;  // of storages in a buffer: the most that a device may ask for
constexpr uint64_t kConstantsPerBuffer = uint64_t{256} << 20;

uint64_t aligned(uint64_t size) {
  return (std::max<uint64_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

bool equal(Span<const char> text, const char* other) {
  return strlen(other) == text.size() && memcmp(text.data(), other, text.size()) == 0;
}

template <typename To, typename From>
void convert(const void* from, void* to, int64_t n) {
  const auto* source = static_cast<const From*>(from);
  auto* target = static_cast<To*>(to);
  for (int64_t i = 0; i < n; ++i) target[i] = static_cast<To>(source[i]);
}

/// Copies floats of 32 bits, or of 16 on either side.
void copy_floats(const void* from, bool from_half, void* to, bool to_half, int64_t n) {
  if (from_half == to_half)
    memcpy(to, from, static_cast<size_t>(n) * (to_half ? 2 : 4));
  else if (to_half)
    convert<Half, float>(from, to, n);
  else
    convert<float, Half>(from, to, n);
}

/// Elements of the host as those of the device. False: there is no such conversion, or a number needs 64
/// bits.
bool to_device(ScalarType type, const void* from, Kind kind, void* to, int64_t n) {
  if (is_floating(type) != is_float(kind)) return false;
  switch (type) {
    case ScalarType::Float:
    case ScalarType::Half:
      copy_floats(from, type == ScalarType::Half, to, kind == Kind::kHalf, n);
      return true;
    case ScalarType::Double:
      if (kind != Kind::kFloat) return false;
      convert<float, double>(from, to, n);
      return true;
    case ScalarType::Int:
      memcpy(to, from, static_cast<size_t>(n) * 4);
      return kind == Kind::kInt;
    case ScalarType::Long:
      for (int64_t i = 0; i < n; ++i) {
        const int64_t number = static_cast<const int64_t*>(from)[i];
        if (number != static_cast<int32_t>(number)) return false;
        static_cast<int32_t*>(to)[i] = static_cast<int32_t>(number);
      }
      return kind == Kind::kInt;
    case ScalarType::Bool:
      for (int64_t i = 0; i < n; ++i)
        static_cast<uint32_t*>(to)[i] = static_cast<const uint8_t*>(from)[i] != 0;
      return true;
    case ScalarType::Byte:
      if (kind == Kind::kByte)
        memcpy(to, from, static_cast<size_t>(n));
      else
        convert<int32_t, uint8_t>(from, to, n);
      return kind == Kind::kInt || kind == Kind::kByte;
    case ScalarType::Char:
      if (kind == Kind::kByte)
        memcpy(to, from, static_cast<size_t>(n));
      else
        convert<int32_t, int8_t>(from, to, n);
      return kind == Kind::kInt || kind == Kind::kByte;
    default:
      return false;
  }
}

bool from_device(Kind kind, const void* from, ScalarType type, void* to, int64_t n) {
  if (is_floating(type) != is_float(kind)) return false;
  switch (type) {
    case ScalarType::Float:
    case ScalarType::Half:
      copy_floats(from, kind == Kind::kHalf, to, type == ScalarType::Half, n);
      return true;
    case ScalarType::Double:
      if (kind != Kind::kFloat) return false;
      convert<double, float>(from, to, n);
      return true;
    case ScalarType::Int:
      convert<int32_t, int32_t>(from, to, n);
      return true;
    case ScalarType::Long:
      convert<int64_t, int32_t>(from, to, n);
      return true;
    case ScalarType::Bool:
      for (int64_t i = 0; i < n; ++i)
        static_cast<uint8_t*>(to)[i] = static_cast<const uint32_t*>(from)[i] != 0;
      return true;
    case ScalarType::Byte:
      convert<uint8_t, int32_t>(from, to, n);
      return true;
    case ScalarType::Char:
      convert<int8_t, int32_t>(from, to, n);
      return true;
    default:
      return false;
  }
}

bool kind_of(fb::VkDataType type, bool has_half, Kind* kind) {
  switch (type) {
    case fb::VkDataType::FLOAT32:
    case fb::VkDataType::FLOAT64:
      *kind = Kind::kFloat;
      return true;
    case fb::VkDataType::FLOAT16:  // kept wider where the device has no halves in memory
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

/// What a stored tensor holds.
ScalarType stored_type(fb::VkDataType type) {
  switch (type) {
    case fb::VkDataType::FLOAT32:
      return ScalarType::Float;
    case fb::VkDataType::FLOAT64:
      return ScalarType::Double;
    case fb::VkDataType::FLOAT16:
      return ScalarType::Half;
    case fb::VkDataType::BOOL:
      return ScalarType::Bool;
    case fb::VkDataType::UINT8:
      return ScalarType::Byte;
    case fb::VkDataType::INT8:
      return ScalarType::Char;
    case fb::VkDataType::INT64:
      return ScalarType::Long;
    default:
      return ScalarType::Int;
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
                    "input %zu of Vulkan's is no tensor", i);
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
                          "value %d is in a list of Vulkan's, there are %zu", id, records.size());
        break;
      case fb::GraphTypes::VkTensor: {
        out.type = Type::kTensor;
        out.dims = t.vector<uint32_t>(fb::VkTensor::kDims);
        out.constant = t.get<int32_t>(fb::VkTensor::kConstantId);
        const auto data = t.get<fb::VkDataType>(fb::VkTensor::kDatatype);
        TORCHETTE_CHECK(out.dims.size() <= kMostDims && kind_of(data, device_.has_half(), &out.kind),
                        NotSupported, "value %zu of Vulkan's has %zu dimensions and type %d", i,
                        out.dims.size(), static_cast<int>(data));
        int64_t count = 1;
        for (const uint32_t d : out.dims)
          count = d == 0 || count > kMostElements / d ? (d == 0 ? 0 : kMostElements) : count * d;
        TORCHETTE_CHECK(count < kMostElements, NotSupported, "value %zu of Vulkan's has 2^31 elements", i);
        break;
      }
      default:
        TORCHETTE_CHECK(false, NotSupported, "value %zu of Vulkan's is of an unknown kind", i);
    }
  }
  TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "a Vulkan payload is damaged");
  return Error::Ok;
}

Error Graph::read_calls() {
  const flat::Tables records = payload_.calls();
  steps_.resize(records.size());
  // By a value: the call that brings a constant to the device for it. If the value changes later, it is the
  // state, and is made once instead of at each execution.
  std::vector<Step*> prepared(values_.size());
  const auto change = [&](int32_t id) {
    Value& it = values_[static_cast<size_t>(id)];
    Step*& step = prepared[static_cast<size_t>(id)];
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
                    "call %zu of Vulkan's is damaged", i);
    step.run = find_operator(name);
    step.name = name.data();
    step.handle = records[i].get<uint32_t>(fb::OperatorCall::kNodeId);
    TORCHETTE_CHECK(step.run != nullptr, NotSupported, "Vulkan has no operator %.80s", name.data());
    for (const int32_t id : step.args)
      TORCHETTE_CHECK(id >= 0 && static_cast<size_t>(id) < values_.size(), DelegateInvalidCompatibility,
                      "call %zu of Vulkan's names value %d of %zu", i, id, values_.size());
    const int32_t last = step.args[step.args.size() - 1];
    Value& result = values_[static_cast<size_t>(last)];
    change(last);
    for (const int32_t id : result.list) change(id);
    if (strcmp(step.name, "et_vk.prepack.default") == 0 && step.args.size() == 2) {
      const Value& from = values_[static_cast<size_t>(step.args[0])];
      const auto record = [&](int32_t id) {
        return payload_.values()[static_cast<size_t>(id)].table(fb::VkValue::kValue);
      };
      if (from.type == Type::kTensor && from.constant >= 0 && result.type == Type::kTensor &&
          std::equal(from.dims.begin(), from.dims.end(), result.dims.begin(), result.dims.end()) &&
          record(last).get<fb::VkDataType>(fb::VkTensor::kDatatype) ==
              record(step.args[0]).get<fb::VkDataType>(fb::VkTensor::kDatatype))
        prepared[static_cast<size_t>(last)] = &step;
    }
    for (size_t k = 0; k + 1 < step.args.size(); ++k) count_reader(step.args[k], static_cast<int>(i));
  }
  for (const uint32_t id : payload_.outputs()) count_reader(static_cast<int32_t>(id), -1);
  for (const Step& step : steps_) {  // weights that linear layers alone read stay bytes
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

void Graph::count_reader(int32_t id, int step, int depth) {
  Value& value = values_[static_cast<size_t>(id)];
  ++value.readers;
  value.reader = step;
  if (value.type == Type::kList && depth == 0)
    for (const int32_t item : value.list) count_reader(item, step, 1);
}

Error Graph::upload_constants() {
  // equal constants of one kind are one storage
  struct Known {
    int32_t constant;
    Kind kind;
    uint64_t bytes;
    int storage;
  };
  std::vector<Known> known;
  uint64_t used = 0;
  std::vector<uint64_t> sizes;
  for (size_t i = 0; i < values_.size(); ++i) {
    Value& value = values_[i];
    if (value.type != Type::kTensor || value.constant < 0) continue;
    View& view = value.view;
    view.kind = value.kind;
    view.rank = static_cast<int>(value.dims.size());
    for (int d = 0; d < view.rank; ++d) view.sizes[d] = value.dims[d];
    view.make_contiguous_strides();
    const uint64_t bytes = static_cast<uint64_t>(view.numel()) * bytes_of(view.kind);
    for (const Known& it : known)
      if (!value.is_state && it.constant == value.constant && it.kind == value.kind && it.bytes == bytes)
        view.storage = it.storage;
    if (view.storage >= 0) continue;
    TORCHETTE_CHECK(bytes <= device_.limits().maxStorageBufferRange, NotSupported,
                    "a constant of Vulkan's has %llu bytes, the device takes %u",
                    static_cast<unsigned long long>(bytes), device_.limits().maxStorageBufferRange);
    if (sizes.empty() || used + aligned(bytes) > kConstantsPerBuffer) {
      sizes.push_back(0);
      used = 0;
    }
    view.storage = add_storage(bytes, Place::kConstant);
    storages_.back().is_state = value.is_state;
    storages_.back().offset = used;
    used += aligned(bytes);
    sizes.back() = used;
    if (!value.is_state) known.push_back({value.constant, value.kind, bytes, view.storage});
    has_state_ = has_state_ || value.is_state;
    value.state = view;
    storages_.back().owner = static_cast<int>(sizes.size()) - 1;
    storages_.back().value = static_cast<int32_t>(i);
  }
  constant_storages_ = storages_.size();
  constants_.resize(sizes.size());
  for (size_t b = 0; b < sizes.size(); ++b) {
    TORCHETTE_TRY(device_.allocate(sizes[b], Memory::kDevice, &constants_[b]));
    TORCHETTE_TRY(upload(b, false));
  }
  return Error::Ok;
}

/// Brings what a buffer of constants has at first to the device; `again`: of states only.
Error Graph::upload(size_t b, bool again) {
  Buffer staging;
  Buffer& buffer = constants_[b];
  if (buffer.mapped == nullptr) TORCHETTE_TRY(device_.allocate(buffer.size, Memory::kHost, &staging));
  uint8_t* const to = buffer.mapped == nullptr ? staging.mapped : buffer.mapped;
  std::vector<VkBufferCopy> copies;
  Error error = Error::Ok;
  for (size_t s = 0; s < constant_storages_ && error == Error::Ok; ++s) {
    Storage& it = storages_[s];
    if (it.owner != static_cast<int>(b) || (again && !it.is_state)) continue;
    it.buffer = &buffer;
    copies.push_back({it.offset, it.offset, aligned(it.bytes)});
    error = first_bytes(&values_[static_cast<size_t>(it.value)], to + it.offset, again);
  }
  if (error == Error::Ok && buffer.mapped == nullptr && !copies.empty()) {
    is_recorded_ = false;  // the one buffer of commands is used for this
    error = begin_commands();
    if (error == Error::Ok) {
      device_.vk.CmdCopyBuffer(commands_, staging.buffer, buffer.buffer, static_cast<uint32_t>(copies.size()),
                               copies.data());
      const VkMemoryBarrier seen{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VK_ACCESS_TRANSFER_WRITE_BIT,
                                 VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
      device_.vk.CmdPipelineBarrier(commands_, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                    VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &seen, 0, nullptr, 0,
                                    nullptr);
      error = device_.check(device_.vk.EndCommandBuffer(commands_), "recording");
      if (error == Error::Ok) error = device_.run(commands_, fence_);
    }
  }
  device_.free(&staging);
  return error;
}

/// What a constant is at first. Of a state it is kept, for reset(), unless it is zero, as caches are.
Error Graph::first_bytes(Value* value, uint8_t* to, bool again) {
  const auto bytes = static_cast<size_t>(value->state.numel()) * bytes_of(value->kind);
  if (again) {
    if (value->first.empty())
      memset(to, 0, bytes);
    else
      memcpy(to, value->first.data(), bytes);
    return Error::Ok;
  }
  const flat::Table record =
      payload_.values()[static_cast<size_t>(value - values_.data())].table(fb::VkValue::kValue);
  const auto type = stored_type(record.get<fb::VkDataType>(fb::VkTensor::kDatatype));
  const int64_t count = value->state.numel();
  const void* data = nullptr;
  FreeableBuffer named;
  Error error = payload_.constant(static_cast<uint32_t>(value->constant),
                                  static_cast<size_t>(count) * element_size(type), &data, &named);
  if (error == Error::Ok && count != 0 && !to_device(type, data, value->kind, to, count)) {
    TORCHETTE_LOG(Error, "constant %d of Vulkan's does not fit 32 bits", value->constant);
    error = Error::NotSupported;
  }
  named.Free();
  if (error == Error::Ok && value->is_state &&
      std::any_of(to, to + bytes, [](uint8_t byte) { return byte != 0; }))
    value->first.assign(to, to + bytes);
  return error;
}

Error Graph::reset() {
  if (device_.is_lost()) return device_.check(VK_ERROR_DEVICE_LOST, "");
  for (size_t b = 0; b < constants_.size() && has_state_; ++b) TORCHETTE_TRY(upload(b, true));
  return Error::Ok;
}

Error Graph::begin_commands() {
  TORCHETTE_TRY(
      device_.check(device_.vk.ResetCommandPool(device_.handle(), command_pool_, 0), "a pool of commands"));
  const VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  return device_.check(device_.vk.BeginCommandBuffer(commands_, &begin), "recording");
}

int Graph::add_storage(uint64_t bytes, Place place) {
  storages_.emplace_back();
  storages_.back().bytes = bytes;
  storages_.back().place = place;
  return static_cast<int>(storages_.size()) - 1;
}

bool Graph::make(View* view) {
  view->offset = 0;
  view->make_contiguous_strides();
  double count = 1;
  for (int d = 0; d < view->rank; ++d)
    count *= view->sizes[d] < 0 ? 1e18 : static_cast<double>(view->sizes[d]);
  if (count >= static_cast<double>(kMostElements)) {
    TORCHETTE_LOG(Error, "a tensor of Vulkan's has 2^31 elements");
    fail(Error::NotSupported);
  }
  if (!ok()) return false;
  const uint64_t bytes = static_cast<uint64_t>(view->numel()) * bytes_of(view->kind);
  if (bytes > device_.limits().maxStorageBufferRange) {
    TORCHETTE_LOG(Error, "a tensor of Vulkan's has %llu bytes, the device takes %u",
                  static_cast<unsigned long long>(bytes), device_.limits().maxStorageBufferRange);
    fail(Error::NotSupported);
    return false;
  }
  if (recording_) {  // the same one as when it was planned
    if (next_storage_ >= storages_.size() || storages_[next_storage_].bytes != bytes) {
      fail(Error::Internal);
      return false;
    }
    view->storage = static_cast<int>(next_storage_++);
  } else {
    view->storage = add_storage(bytes, Place::kArena);
  }
  return true;
}

View Graph::scratch(const View& like) {
  View view = like;
  make(&view);
  return view;
}

Error Graph::reserve(Buffer* buffer, uint64_t size, Memory kind) {
  if (buffer->buffer != VK_NULL_HANDLE && buffer->size >= size) return Error::Ok;
  device_.free(buffer);
  return device_.allocate(size, kind, buffer);
}

Error Graph::build() {
  is_recorded_ = false;
  TORCHETTE_TRY(trace(false));
  TORCHETTE_TRY(place());
  if (sets_ != VK_NULL_HANDLE) device_.vk.DestroyDescriptorPool(device_.handle(), sets_, nullptr);
  sets_ = VK_NULL_HANDLE;
  if (dispatches_ != 0) {
    const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, static_cast<uint32_t>(bindings_)};
    VkDescriptorPoolCreateInfo pool{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
    pool.maxSets = static_cast<uint32_t>(dispatches_);
    pool.poolSizeCount = 1;
    pool.pPoolSizes = &size;
    TORCHETTE_TRY(device_.check(device_.vk.CreateDescriptorPool(device_.handle(), &pool, nullptr, &sets_),
                                "a pool of descriptors"));
  }
  if (times_ != VK_NULL_HANDLE) device_.vk.DestroyQueryPool(device_.handle(), times_, nullptr);
  times_ = VK_NULL_HANDLE;
  marks_.clear();
  TORCHETTE_TRY(begin_commands());
  if (is_timed_) {
    VkQueryPoolCreateInfo times{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
    times.queryType = VK_QUERY_TYPE_TIMESTAMP;
    times.queryCount = static_cast<uint32_t>(dispatches_) + 1;
    TORCHETTE_TRY(
        device_.check(device_.vk.CreateQueryPool(device_.handle(), &times, nullptr, &times_), "times"));
    device_.vk.CmdResetQueryPool(commands_, times_, 0, times.queryCount);
    mark_time(-1);
  }
  TORCHETTE_TRY(trace(true));
  const VkMemoryBarrier seen{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VK_ACCESS_SHADER_WRITE_BIT,
                             VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT};
  device_.vk.CmdPipelineBarrier(commands_, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_HOST_BIT,
                                0, 1, &seen, 0, nullptr, 0, nullptr);
  TORCHETTE_TRY(device_.check(device_.vk.EndCommandBuffer(commands_), "recording"));
  counts_.dispatches = dispatches_;
  device_.set_counts(counts_);
  is_recorded_ = true;
  return Error::Ok;
}

void Graph::mark_time(int step) {
  device_.vk.CmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, times_,
                               static_cast<uint32_t>(marks_.size()));
  marks_.push_back(step);
}

Error Graph::tell(EventTracer* tracer, torchette_timestamp_t start, torchette_timestamp_t end) const {
  std::vector<uint64_t> times(marks_.size());
  TORCHETTE_TRY(device_.check(
      device_.vk.GetQueryPoolResults(device_.handle(), times_, 0, static_cast<uint32_t>(times.size()),
                                     8 * times.size(), times.data(), 8,
                                     VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
      "times"));
  // The two clocks are not compared: the device's first time is put at the start of the submission.
  const torchette_tick_ratio_t ratio = ticks_to_ns_multiplier();
  const auto ticks = [&](uint64_t time) {
    const double ns = static_cast<double>((time - times[0]) & device_.time_mask()) *
                      static_cast<double>(device_.limits().timestampPeriod);
    const double at = ns * static_cast<double>(ratio.denominator) / static_cast<double>(ratio.numerator);
    return at < static_cast<double>(end - start) ? start + static_cast<torchette_timestamp_t>(at) : end;
  };
  for (size_t i = 1; i < times.size(); ++i) {
    const bool is_step = marks_[i] >= 0 && static_cast<size_t>(marks_[i]) < steps_.size();
    const Step* step = is_step ? &steps_[static_cast<size_t>(marks_[i])] : nullptr;
    event_tracer_log_profiling_delegate(
        tracer, step == nullptr ? "results" : step->name,
        step == nullptr ? kUnsetDelegateDebugIntId : static_cast<DelegateDebugIntId>(step->handle),
        ticks(times[i - 1]), ticks(times[i]));
  }
  return Error::Ok;
}

Error Graph::trace(bool record) {
  recording_ = record;
  error_ = Error::Ok;
  dispatches_ = bindings_ = 0;
  counts_ = Counts();
  pending_.clear();
  next_storage_ = constant_storages_;
  if (!record) storages_.resize(constant_storages_);
  for (Value& value : values_) {
    if (value.type == Type::kTensor && value.constant < 0) value.view = View();
    if (value.is_state) value.view = value.state;
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    Value& value = values_[payload_.inputs()[i]];
    if (value.type != Type::kTensor) continue;
    const View given = inputs_[i];
    if (make(&inputs_[i])) {
      memcpy(inputs_[i].strides, given.strides, sizeof(given.strides));
      storages_[static_cast<size_t>(inputs_[i].storage)].place = Place::kInput;
      value.view = inputs_[i];
    }
  }
  for (Step& step : steps_) step.is_done = false;
  if (record && has_state_) wait_for_shaders();  // what the execution before wrote
  step_ = -1;
  for (const Step& step : steps_) {
    ++step_;
    if (step.is_done) continue;
    Call call(*this, step.name, step.args);
    step.run(call);
    const int32_t last = step.args[step.args.size() - 1];
    keep_state(last);
    for (const int32_t id : values_[static_cast<size_t>(last)].list) keep_state(id);
    if (!ok()) break;
  }
  step_ = -1;
  if (ok()) finish_outputs();
  return error_;
}

/// What was computed for a state goes where the state is.
void Graph::keep_state(int32_t id) {
  Value& it = values_[static_cast<size_t>(id)];
  if (!it.is_state || !ok()) return;
  View from = it.view;
  const View& to = it.state;
  it.view = to;
  const auto differ = [&](const int64_t* a, const int64_t* b) {
    return memcmp(a, b, sizeof(int64_t) * static_cast<size_t>(to.rank)) != 0;
  };
  if (from.storage < 0 || from.rank != to.rank || differ(from.sizes, to.sizes)) {
    TORCHETTE_LOG(Error, "Vulkan is given a state of another size than it has");
    return fail(Error::DelegateInvalidCompatibility);
  }
  if (from.storage == to.storage) {
    if (from.offset == to.offset && !differ(from.strides, to.strides)) return;
    const View apart = scratch(from);
    copy(*this, from, apart);
    from = apart;
  }
  copy(*this, from, to);
}

void Graph::finish_outputs() {
  for (size_t i = 0; i < outputs_.size() && ok(); ++i) {
    const Value& value = values_[payload_.outputs()[i]];
    if (value.type != Type::kTensor) continue;
    const View& view = value.view;
    if (view.storage < 0) {
      TORCHETTE_LOG(Error, "nothing computes output %zu of Vulkan's", i);
      return fail(Error::DelegateInvalidCompatibility);
    }
    Storage& storage = storages_[static_cast<size_t>(view.storage)];
    View wanted = view;
    int64_t stride = 1;
    bool lies_so = true;
    uint32_t seen = 0;
    for (int d = view.rank - 1; d >= 0; --d) {
      const int dim = orders_[i].dims[d];
      if (dim >= view.rank || (seen >> dim & 1) != 0)  // the argument has another rank
        return fail(Error::InvalidArgument);
      seen |= 1u << dim;
      wanted.strides[dim] = stride;
      stride *= view.sizes[dim];
      lies_so = lies_so && (view.sizes[dim] == 1 || view.strides[dim] == wanted.strides[dim]);
    }
    const bool whole = view.offset == 0 && lies_so &&
                       static_cast<uint64_t>(view.numel()) * bytes_of(view.kind) == storage.bytes;
    const int number = static_cast<int>(i);
    if (whole &&
        (storage.place == Place::kArena || (storage.place == Place::kOutput && storage.owner == number))) {
      storage.place = Place::kOutput;
      storage.owner = number;
      outputs_[i] = view;
      continue;
    }
    View out = scratch(view);
    if (!ok()) return;
    memcpy(out.strides, wanted.strides, sizeof(out.strides));
    storages_[static_cast<size_t>(out.storage)].place = Place::kOutput;
    storages_[static_cast<size_t>(out.storage)].owner = number;
    copy(*this, view, out);
    outputs_[i] = out;
  }
}

Error Graph::place() {
  // Arguments lie side by side where the host sees them; of the rest, the largest first, each at the lowest
  // place that nothing has while it lives.
  uint64_t io = 0, arena = 0;
  std::vector<size_t> order;
  for (size_t i = constant_storages_; i < storages_.size(); ++i) {
    Storage& it = storages_[i];
    if (it.place == Place::kArena) {
      if (it.first >= 0) order.push_back(i);
      continue;
    }
    it.buffer = &io_;
    it.offset = io;
    io += aligned(it.bytes);
  }
  std::stable_sort(order.begin(), order.end(),
                   [this](size_t a, size_t b) { return storages_[a].bytes > storages_[b].bytes; });
  std::vector<size_t> placed, beside;
  for (const size_t i : order) {
    Storage& it = storages_[i];
    beside.clear();
    for (const size_t other : placed)
      if (storages_[other].first <= it.last && it.first <= storages_[other].last) beside.push_back(other);
    std::sort(beside.begin(), beside.end(),
              [this](size_t a, size_t b) { return storages_[a].offset < storages_[b].offset; });
    uint64_t at = 0;
    for (const size_t other : beside) {
      if (at + it.bytes <= storages_[other].offset) break;
      at = std::max(at, storages_[other].offset + aligned(storages_[other].bytes));
    }
    it.offset = at;
    it.buffer = &arena_;
    arena = std::max(arena, at + aligned(it.bytes));
    placed.push_back(i);
  }
  TORCHETTE_TRY(reserve(&io_, io, Memory::kHost));
  return reserve(&arena_, arena, Memory::kDevice);
}

void Graph::wait_for_shaders() {
  const VkMemoryBarrier barrier{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VK_ACCESS_SHADER_WRITE_BIT,
                                VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
  device_.vk.CmdPipelineBarrier(commands_, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &barrier, 0, nullptr, 0, nullptr);
  ++counts_.barriers;
}

void Graph::bar(std::initializer_list<const View*> views, uint32_t writes) {
  bool needed = false;
  uint32_t bit = 1;
  for (const View* view : views) {
    const Storage& it = storages_[static_cast<size_t>(view->storage)];
    for (const Range& range : pending_)
      needed = needed || (range.buffer == it.buffer && range.begin < it.offset + it.bytes &&
                          it.offset < range.end && (range.written || (writes & bit) != 0));
    bit <<= 1;
  }
  if (needed) {
    wait_for_shaders();
    pending_.clear();
  }
  bit = 1;
  for (const View* view : views) {
    const Storage& it = storages_[static_cast<size_t>(view->storage)];
    if (it.place != Place::kConstant || it.is_state)
      pending_.push_back({it.buffer, it.offset, it.offset + it.bytes, (writes & bit) != 0});
    bit <<= 1;
  }
}

void Graph::dispatch(const Shader& shader, std::initializer_list<uint32_t> constants, const Push& push,
                     std::initializer_list<const View*> views, uint32_t writes, int64_t groups,
                     int64_t layers) {
  if (!ok() || groups <= 0 || layers <= 0) return;
  const int64_t most = device_.limits().maxComputeWorkGroupCount[0];
  const int64_t across = std::min(groups, most), down = (groups + across - 1) / across;
  if (views.size() != shader.bindings || push.count_ > kPushBytes / 4 ||
      down > device_.limits().maxComputeWorkGroupCount[1] ||
      layers > device_.limits().maxComputeWorkGroupCount[2]) {
    TORCHETTE_LOG(Error, "a dispatch of Vulkan's %s is too large: %lld groups, %lld layers", shader.name,
                  static_cast<long long>(groups), static_cast<long long>(layers));
    return fail(Error::NotSupported);
  }
  for (const View* view : views) {
    if (view->storage < 0) return fail(Error::Internal);
    Storage& it = storages_[static_cast<size_t>(view->storage)];
    if (it.first < 0) it.first = dispatches_;
    it.last = dispatches_;
  }
  ++dispatches_;
  bindings_ += static_cast<int>(views.size());
  if (!recording_) return;
  VkPipeline pipeline = VK_NULL_HANDLE;
  Error error = device_.pipeline(shader, {constants.begin(), constants.size()}, &pipeline);
  if (error != Error::Ok) return fail(error);
  const VkDescriptorSetLayout layout = device_.set_layout(shader.bindings);
  VkDescriptorSetAllocateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, nullptr, sets_, 1,
                                   &layout};
  VkDescriptorSet set = VK_NULL_HANDLE;
  error = device_.check(device_.vk.AllocateDescriptorSets(device_.handle(), &info, &set), "a descriptor");
  if (error != Error::Ok) return fail(error);
  VkDescriptorBufferInfo buffers[kMostBindings];
  uint32_t count = 0;
  for (const View* view : views) {
    const Storage& it = storages_[static_cast<size_t>(view->storage)];
    buffers[count++] = {it.buffer->buffer, it.offset, std::max<uint64_t>((it.bytes + 3) / 4 * 4, 4)};
  }
  for (uint32_t i = 0; i < count; ++i) {
    const View& view = *views.begin()[i];
    uint64_t bytes = bytes_of(view.kind);
    for (int d = 0; d < view.rank; ++d)
      bytes *= view.strides[d] == 0 ? 1 : static_cast<uint64_t>(view.sizes[d]);
    bool again = false;  // bound in the place of an operand that is not there
    for (uint32_t k = 0; k < i; ++k) again = again || views.begin()[k]->storage == view.storage;
    if (!again) counts_.bytes += bytes;
  }
  device_.bind(set, buffers, count);
  bar(views, writes);
  device_.vk.CmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  const VkPipelineLayout pipeline_layout = device_.pipeline_layout(shader.bindings);
  device_.vk.CmdBindDescriptorSets(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_layout, 0, 1, &set, 0,
                                   nullptr);
  device_.vk.CmdPushConstants(commands_, pipeline_layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, kPushBytes,
                              push.words_);
  device_.vk.CmdDispatch(commands_, static_cast<uint32_t>(across), static_cast<uint32_t>(down),
                         static_cast<uint32_t>(layers));
  if (is_timed_) mark_time(step_);
}

Error Graph::set_input(size_t i, const torchette::Value& argument, bool* changed) {
  Value& value = values_[payload_.inputs()[i]];
  if (value.type == Type::kSymInt) {
    int64_t number = 0;
    TORCHETTE_TRY(whole_number(i, argument, &number));
    *changed = *changed || value.integer != number;
    value.integer = number;
    return Error::Ok;
  }
  TORCHETTE_CHECK(argument.is_tensor(), InvalidArgument, "argument %zu of Vulkan is no tensor", i);
  const Tensor tensor = argument.to_tensor();
  View& view = inputs_[i];
  TORCHETTE_CHECK(tensor.dim() == static_cast<ptrdiff_t>(value.dims.size()), InvalidArgument,
                  "argument %zu of Vulkan has %td dimensions, its graph has %zu", i, tensor.dim(),
                  value.dims.size());
  StridesType dense[kMostDims];
  const Result<int32_t> count = dense_strides(tensor.sizes(), tensor.dim_order().data(), dense);
  bool is_dense = count.ok() && (tensor.numel() == 0 || tensor.const_data_ptr() != nullptr);
  for (ptrdiff_t d = 0; d < tensor.dim() && is_dense; ++d)
    is_dense = tensor.size(d) == 1 || tensor.strides()[static_cast<size_t>(d)] == dense[d];
  TORCHETTE_CHECK(is_dense, InvalidArgument, "argument %zu of Vulkan has gaps, or no data", i);
  for (ptrdiff_t d = 0; d < tensor.dim(); ++d) {
    TORCHETTE_CHECK(
        tensor.size(d) >= 0 && tensor.size(d) <= static_cast<ptrdiff_t>(value.dims[static_cast<size_t>(d)]),
        InvalidArgument, "argument %zu of Vulkan has the size %td where its graph has at most %u", i,
        tensor.size(d), value.dims[static_cast<size_t>(d)]);
    *changed = *changed || view.sizes[d] != tensor.size(d) || view.strides[d] != dense[d];
    view.sizes[d] = tensor.size(d);
    view.strides[d] = dense[d];
  }
  return Error::Ok;
}

Error Graph::set_output(size_t i, const torchette::Value& argument, bool* changed) {
  if (values_[payload_.outputs()[i]].type != Type::kTensor) return Error::Ok;
  TORCHETTE_CHECK(argument.is_tensor() && argument.to_tensor().dim() <= kMostDims, InvalidArgument,
                  "result %zu of Vulkan is no tensor, or has more than eight dimensions", i);
  const Span<const DimOrderType> order = argument.to_tensor().dim_order();
  if (memcmp(orders_[i].dims, order.data(), order.size()) == 0) return Error::Ok;
  memcpy(orders_[i].dims, order.data(), order.size());
  *changed = true;
  return Error::Ok;
}

Error Graph::execute(Span<torchette::Value*> arguments, EventTracer* tracer) {
  TORCHETTE_CHECK(arguments.size() == inputs_.size() + outputs_.size(), InvalidArgument,
                  "Vulkan is given %zu arguments, its graph has %zu inputs and %zu outputs", arguments.size(),
                  inputs_.size(), outputs_.size());
  if (device_.is_lost()) return device_.check(VK_ERROR_DEVICE_LOST, "");
  const bool timed = tracer != nullptr && device_.has_times();
  bool changed = !is_recorded_ || timed != is_timed_;
  is_timed_ = timed;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Error error = i < inputs_.size() ? set_input(i, *arguments[i], &changed)
                                           : set_output(i - inputs_.size(), *arguments[i], &changed);
    if (error != Error::Ok) {
      is_recorded_ = false;  // some sizes are new, others are not
      return error;
    }
  }
  if (changed) {
    const Error error = build();
    device_.save();
    TORCHETTE_TRY(error);
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (values_[payload_.inputs()[i]].type != Type::kTensor) continue;
    const Tensor tensor = arguments[i]->to_tensor();
    const Storage& storage = storages_[static_cast<size_t>(inputs_[i].storage)];
    TORCHETTE_CHECK(
        tensor.numel() == 0 || to_device(tensor.scalar_type(), tensor.const_data_ptr(), inputs_[i].kind,
                                         io_.mapped + storage.offset, tensor.numel()),
        InvalidArgument, "argument %zu of Vulkan has another type, or numbers of more than 32 bits", i);
  }
  if (dispatches_ != 0) {
    const torchette_timestamp_t start = timed ? current_ticks() : 0;
    TORCHETTE_TRY(device_.run(commands_, fence_));
    if (timed) TORCHETTE_TRY(tell(tracer, start, current_ticks()));
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    torchette::Value& argument = *arguments[inputs_.size() + i];
    const Value& value = values_[payload_.outputs()[i]];
    if (value.type == Type::kInt || value.type == Type::kSymInt) {
      argument = torchette::Value(value.integer);
      continue;
    }
    TORCHETTE_CHECK(value.type == Type::kTensor && argument.is_tensor(), InvalidArgument,
                    "result %zu of Vulkan is no tensor", i);
    const Tensor tensor = argument.to_tensor();
    const View& view = outputs_[i];
    SizesType sizes[kMostDims];
    for (int d = 0; d < view.rank; ++d) sizes[d] = static_cast<SizesType>(view.sizes[d]);
    TORCHETTE_TRY(resize_tensor(tensor, {sizes, static_cast<size_t>(view.rank)}));
    const Storage& storage = storages_[static_cast<size_t>(view.storage)];
    TORCHETTE_CHECK(
        is_contiguous(tensor) &&
            (tensor.numel() == 0 || (tensor.const_data_ptr() != nullptr &&
                                     from_device(view.kind, io_.mapped + storage.offset, tensor.scalar_type(),
                                                 tensor.mutable_data_ptr(), tensor.numel()))),
        InvalidArgument, "result %zu of Vulkan has another type or layout than its graph", i);
  }
  return Error::Ok;
}

// --- Call
// ---------------------------------------------------------------------------------------------------------------

Graph::Value* Call::value(int i) const {
  if (i < 0 || i >= count()) return nullptr;
  return &graph.values_[static_cast<size_t>(args_[static_cast<size_t>(i)])];
}

Graph::Value* Call::result_value(int i) const {
  Graph::Value* last = &graph.values_[static_cast<size_t>(args_[args_.size() - 1])];
  if (last->type != Graph::Type::kList) return i == 0 ? last : nullptr;
  return i >= 0 && static_cast<size_t>(i) < last->list.size()
             ? &graph.values_[static_cast<size_t>(last->list[static_cast<size_t>(i)])]
             : nullptr;
}

void Call::refuse(const char* why) {
  if (graph.ok()) TORCHETTE_LOG(Error, "Vulkan cannot run %.80s: %s", name_, why);
  graph.fail(Error::NotSupported);
}

bool Call::has(int i) const {
  const Graph::Value* it = value(i);
  return it != nullptr && it->type != Graph::Type::kNone;
}

bool Call::is_tensor(int i) const {
  const Graph::Value* it = value(i);
  return it != nullptr && it->type == Graph::Type::kTensor;
}

bool Call::is_there(int i) const { return is_tensor(i) && value(i)->view.storage >= 0; }

bool Call::is_real(int i) const {
  const Graph::Value* it = value(i);
  return it != nullptr && it->type == Graph::Type::kDouble;
}

bool Call::is_text(int i, const char* text) const {
  const Graph::Value* it = value(i);
  return it != nullptr && it->type == Graph::Type::kText && equal(it->text, text);
}

View Call::tensor(int i) {
  const Graph::Value* it = value(i);
  if (it == nullptr || it->type != Graph::Type::kTensor || it->view.storage < 0) {
    refuse("an operand is no tensor, or nothing computes it");
    return View();
  }
  return it->view;
}

std::vector<View> Call::tensors(int i) {
  std::vector<View> found;
  const Graph::Value* it = value(i);
  if (it == nullptr || it->type != Graph::Type::kList) {
    refuse("an operand is no list of tensors");
    return found;
  }
  for (const int32_t id : it->list) {
    const Graph::Value& item = graph.values_[static_cast<size_t>(id)];
    if (item.type == Graph::Type::kNone) {
      found.emplace_back();  // an index that is left out
      continue;
    }
    if (item.type != Graph::Type::kTensor || item.view.storage < 0) {
      refuse("a list holds something else than tensors");
      return found;
    }
    found.push_back(item.view);
  }
  return found;
}

int64_t Call::integer(int i) {
  const Graph::Value* it = value(i);
  if (it != nullptr) {
    if (it->type == Graph::Type::kInt || it->type == Graph::Type::kSymInt || it->type == Graph::Type::kBool)
      return it->integer;
    if (it->type == Graph::Type::kDouble && it->real >= -0x1p31 && it->real <= 0x1p31)
      return static_cast<int64_t>(it->real);
  }
  refuse("an operand is no whole number");
  return 0;
}

double Call::real(int i) {
  const Graph::Value* it = value(i);
  if (it != nullptr && it->type == Graph::Type::kDouble) return it->real;
  return static_cast<double>(integer(i));
}

Numbers Call::numbers(int i) {
  Numbers found;
  const Graph::Value* it = value(i);
  if (it == nullptr || it->type == Graph::Type::kNone) return found;
  const bool listed = it->type == Graph::Type::kList;
  const size_t count = listed                            ? it->list.size()
                       : it->type == Graph::Type::kInts  ? it->ints.size()
                       : it->type == Graph::Type::kBools ? it->flags.size()
                                                         : 1;
  if (count > kMostDims) {
    refuse("a list has more than eight numbers");
    return found;
  }
  found.count = static_cast<int>(count);
  for (size_t k = 0; k < count; ++k) {
    if (it->type == Graph::Type::kInts) {
      found.items[k] = it->ints[k];
    } else if (it->type == Graph::Type::kBools) {
      found.items[k] = it->flags[k];
    } else {
      const Graph::Value& item = listed ? graph.values_[static_cast<size_t>(it->list[k])] : *it;
      if (item.type != Graph::Type::kInt && item.type != Graph::Type::kSymInt)
        refuse("a list holds no whole numbers");
      found.items[k] = item.integer;
    }
  }
  return found;
}

std::vector<double> Call::reals(int i) {
  const Graph::Value* it = value(i);
  std::vector<double> found;
  if (it == nullptr) return found;
  if (it->type == Graph::Type::kDoubles) found.assign(it->reals.begin(), it->reals.end());
  if (it->type == Graph::Type::kInts) found.assign(it->ints.begin(), it->ints.end());
  if (it->type == Graph::Type::kList) {
    for (const int32_t id : it->list) {
      const Graph::Value& item = graph.values_[static_cast<size_t>(id)];
      found.push_back(item.type == Graph::Type::kDouble ? item.real : static_cast<double>(item.integer));
    }
  }
  return found;
}

int Call::results() const {
  const Graph::Value& last = graph.values_[static_cast<size_t>(args_[args_.size() - 1])];
  return last.type == Graph::Type::kList ? static_cast<int>(last.list.size()) : 1;
}

Kind Call::result_kind(int i) const {
  const Graph::Value* it = result_value(i);
  return it == nullptr ? Kind::kFloat : it->kind;
}

View Call::result(int i, const Numbers& sizes) {
  View view;
  Graph::Value* it = result_value(i);
  if (it == nullptr || it->type != Graph::Type::kTensor || (it->constant >= 0 && !it->is_state)) {
    refuse("a result is no tensor");
    return view;
  }
  view.kind = it->kind;
  view.rank = sizes.count;
  memcpy(view.sizes, sizes.items, sizeof(view.sizes));
  graph.make(&view);
  it->view = view;
  return view;
}

View Call::result_like(int i, const View& like) { return result(i, sizes_of(like)); }

View Call::changed(const View& operand) {
  const Graph::Value* own = result_value(0);
  if (own != nullptr && own == value(0) && own->is_state) return operand;
  const View out = result_like(0, operand);
  copy(graph, operand, out);
  return out;
}

View Call::result_with_epilogue(const Numbers& sizes, Beside beside, Epilogue* epilogue) {
  const Graph::Value* own = result_value(0);
  const int last = args_[args_.size() - 1];
  if (graph.ok() && own != nullptr && own == &graph.values_[static_cast<size_t>(last)] && own->readers == 1 &&
      own->reader >= 0 && own->type == Graph::Type::kTensor && is_float(own->kind)) {
    Graph::Step& step = graph.steps_[static_cast<size_t>(own->reader)];
    View view;
    view.kind = own->kind;
    view.rank = sizes.count;
    memcpy(view.sizes, sizes.items, sizeof(view.sizes));
    Call reader(graph, step.name, step.args);
    Epilogue found;
    const Graph::Value* target = reader.result_value(0);
    if (own->reader > graph.step_ && !step.is_done && target != nullptr && !target->is_state &&
        as_epilogue(reader, view, last, beside, &found)) {
      step.is_done = true;
      *epilogue = found;
      return reader.result(0, sizes);
    }
  }
  return result(0, sizes);
}

void Call::alias(int i, const View& view) {
  Graph::Value* it = result_value(i);
  if (it == nullptr || it->type != Graph::Type::kTensor || (it->constant >= 0 && !it->is_state))
    return refuse("a result is no tensor");
  double count = 1;
  for (int d = 0; d < view.rank; ++d) count *= static_cast<double>(view.sizes[d]);
  if (count >= static_cast<double>(kMostElements)) return refuse("a result has 2^31 elements");
  if (it->kind != view.kind) {  // it holds the same in another kind
    copy(graph, view, result_like(i, view));
    return;
  }
  it->view = view;
}

void Call::give(int64_t number) {
  Graph::Value* it = result_value(0);
  if (it == nullptr || (it->type != Graph::Type::kSymInt && it->type != Graph::Type::kInt))
    return refuse("the result is no number");
  it->integer = number;
}

// --- shared by operators
// ------------------------------------------------------------------------------------------------

Numbers sizes_of(const View& view) {
  Numbers sizes;
  sizes.count = view.rank;
  memcpy(sizes.items, view.sizes, sizeof(sizes.items));
  return sizes;
}

int dim_of(Call& call, int64_t dim, int rank) {
  const int64_t most = rank == 0 ? 1 : rank;
  if (dim < -most || dim >= most) {
    call.refuse("a dimension is not there");
    return 0;
  }
  return static_cast<int>(dim < 0 ? dim + most : dim);
}

View contiguous(Graph& graph, const View& view) {
  if (!graph.ok() || view.is_contiguous()) return view;
  const View out = graph.scratch(view);
  copy(graph, view, out);
  return out;
}

bool collapse(std::initializer_list<View*> views, int most) {
  View& first = **views.begin();
  int rank = 0;
  int64_t sizes[kMostDims];
  for (int d = 0; d < first.rank; ++d) {
    const int64_t size = first.sizes[d];
    if (size == 1) continue;
    bool joins = rank != 0;
    for (const View* view : views) joins = joins && view->strides[rank - 1] == view->strides[d] * size;
    if (joins) {
      sizes[rank - 1] *= size;
      for (View* view : views) view->strides[rank - 1] = view->strides[d];
    } else {
      sizes[rank] = size;
      for (View* view : views) view->strides[rank] = view->strides[d];
      ++rank;
    }
  }
  for (View* view : views) {
    view->rank = rank;
    memcpy(view->sizes, sizes, sizeof(int64_t) * static_cast<size_t>(rank));
  }
  return rank <= most;
}

}  // namespace vulkan
}  // namespace torchette
