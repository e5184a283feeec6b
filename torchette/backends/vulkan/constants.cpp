// SPDX-License-Identifier: BSD-3-Clause
// The constants and states of a graph: their device memory, and the values that they have after open().
#include <algorithm>
#include <cstring>

#include "torchette/backends/vulkan/elements.h"
#include "torchette/backends/vulkan/graph.h"

namespace torchette {
namespace vulkan {
namespace {

constexpr uint64_t kConstantsPerBuffer = uint64_t{256} << 20;

/// Writes contiguous filters in the order of pack_filters().
void write_packed(const View& view, const uint8_t* from, uint8_t* to) {
  const auto filters = static_cast<size_t>(view.sizes[0]), padded = static_cast<size_t>(padded_filters(view)),
             inputs = static_cast<size_t>(view.numel()) / filters, bytes = size_t{bytes_of(view.kind)};
  memset(to, 0, inputs * padded * bytes);
  for (size_t k = 0; k < inputs; ++k)
    for (size_t m = 0; m < filters; ++m)
      memcpy(to + (k * padded + m) * bytes, from + (m * inputs + k) * bytes, bytes);
}

}  // namespace

Error Graph::upload_constants() {
  // Values of the same constant and kind share one storage.
  struct Known {
    int32_t constant;
    Kind kind;
    bool is_packed;
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
    auto bytes = static_cast<uint64_t>(view.numel()) * bytes_of(view.kind);
    if (value.is_packed && view.numel() != 0) {
      bytes = bytes / static_cast<uint64_t>(view.sizes[0]) * static_cast<uint64_t>(padded_filters(view));
      pack_filters(&view);
    }
    for (const Known& it : known)
      if (!value.is_state && it.constant == value.constant && it.kind == value.kind &&
          it.is_packed == value.is_packed && it.bytes == bytes)
        view.storage = it.storage;
    if (view.storage >= 0) continue;
    TORCHETTE_CHECK(bytes <= device_.limits().maxStorageBufferRange, NotSupported,
                    "a constant of the Vulkan payload has %llu bytes, the device supports %u",
                    static_cast<unsigned long long>(bytes), device_.limits().maxStorageBufferRange);
    if (sizes.empty() || used + aligned(bytes) > kConstantsPerBuffer) {
      sizes.push_back(0);
      used = 0;
    }
    view.storage = add_storage(bytes, Use::kConstant);
    storages_.back().is_state = value.is_state;
    storages_.back().offset = used;
    used += aligned(bytes);
    sizes.back() = used;
    if (!value.is_state) known.push_back({value.constant, value.kind, value.is_packed, bytes, view.storage});
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

/// Writes the initial elements of buffer `b` of the constants to the device; with `states_only`, those of the
/// states.
Error Graph::upload(size_t b, bool states_only) {
  Buffer staging;
  Buffer& buffer = constants_[b];
  if (buffer.mapped == nullptr) TORCHETTE_TRY(device_.allocate(buffer.size, Memory::kHost, &staging));
  uint8_t* const to = buffer.mapped == nullptr ? staging.mapped : buffer.mapped;
  std::vector<VkBufferCopy> copies;
  Error error = Error::Ok;
  for (size_t s = 0; s < constant_storages_ && error == Error::Ok; ++s) {
    Storage& it = storages_[s];
    if (it.owner != static_cast<int>(b) || (states_only && !it.is_state)) continue;
    it.buffer = &buffer;
    copies.push_back({it.offset, it.offset, aligned(it.bytes)});
    error = write_initial(&values_[static_cast<size_t>(it.value)], to + it.offset, states_only);
  }
  if (error == Error::Ok && buffer.mapped == nullptr && !copies.empty()) {
    is_recorded_ = false;  // the upload overwrites the only command buffer
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

Error Graph::write_initial(Value* value, uint8_t* to, bool states_only) {
  const auto bytes = static_cast<size_t>(value->state.numel()) * bytes_of(value->kind);
  if (!states_only) {
    TORCHETTE_TRY(write_constant(value, to));
    // reset() needs the initial elements of a state. Caches start with zeros, which are not stored.
    if (value->is_state && std::any_of(to, to + bytes, [](uint8_t byte) { return byte != 0; }))
      value->initial.assign(to, to + bytes);
  } else if (value->initial.empty()) {
    memset(to, 0, bytes);
  } else {
    memcpy(to, value->initial.data(), bytes);
  }
  return Error::Ok;
}

/// Writes the elements of a constant, as the payload has them, in the kind of the value.
Error Graph::write_constant(Value* value, uint8_t* to) {
  const flat::Table record =
      payload_.values()[static_cast<size_t>(value - values_.data())].table(fb::VkValue::kValue);
  const auto type = stored_type(record.get<fb::VkDataType>(fb::VkTensor::kDatatype));
  const int64_t count = value->state.numel();
  const void* data = nullptr;
  FreeableBuffer named;
  Error error = payload_.constant(static_cast<uint32_t>(value->constant),
                                  static_cast<size_t>(count) * element_size(type), &data, &named);
  std::vector<uint8_t> unpacked;
  if (value->is_packed) unpacked.resize(static_cast<size_t>(count) * bytes_of(value->kind));
  uint8_t* const elements = value->is_packed ? unpacked.data() : to;
  if (error == Error::Ok && count != 0 && !to_device(type, data, value->kind, elements, count)) {
    TORCHETTE_LOG(Error, "constant %d of the Vulkan payload exceeds 32 bits", value->constant);
    error = Error::NotSupported;
  }
  named.Free();
  if (error == Error::Ok && value->is_packed && count != 0) write_packed(value->state, elements, to);
  return error;
}

Error Graph::reset() {
  if (device_.is_lost()) return device_.check(VK_ERROR_DEVICE_LOST, "");
  for (size_t b = 0; b < constants_.size() && has_state_; ++b) TORCHETTE_TRY(upload(b, true));
  return Error::Ok;
}

}  // namespace vulkan
}  // namespace torchette
