// SPDX-License-Identifier: BSD-3-Clause
// Recording: writes the dispatches of a graph and the barriers between them to its command buffer.
#include <algorithm>

#include "torchette/backends/vulkan/graph.h"

namespace torchette {
namespace vulkan {

Error Graph::begin_commands() {
  TORCHETTE_TRY(
      device_.check(device_.vk.ResetCommandPool(device_.handle(), command_pool_, 0), "a pool of commands"));
  const VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  return device_.check(device_.vk.BeginCommandBuffer(commands_, &begin), "recording");
}

/// Plans the memory and records the commands for the current sizes of the inputs.
Error Graph::build() {
  is_recorded_ = false;
  TORCHETTE_TRY(trace(false));
  TORCHETTE_TRY(assign_offsets());
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
  timed_steps_.clear();
  TORCHETTE_TRY(begin_commands());
  if (is_timed_) {
    VkQueryPoolCreateInfo times{VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
    times.queryType = VK_QUERY_TYPE_TIMESTAMP;
    times.queryCount = static_cast<uint32_t>(dispatches_) + 1;
    TORCHETTE_TRY(
        device_.check(device_.vk.CreateQueryPool(device_.handle(), &times, nullptr, &times_), "times"));
    device_.vk.CmdResetQueryPool(commands_, times_, 0, times.queryCount);
    write_timestamp(-1);
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

void Graph::write_timestamp(int step) {
  device_.vk.CmdWriteTimestamp(commands_, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, times_,
                               static_cast<uint32_t>(timed_steps_.size()));
  timed_steps_.push_back(step);
}

void Graph::wait_for_shaders() {
  const VkMemoryBarrier barrier{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VK_ACCESS_SHADER_WRITE_BIT,
                                VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT};
  device_.vk.CmdPipelineBarrier(commands_, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &barrier, 0, nullptr, 0, nullptr);
  ++counts_.barriers;
}

/// Adds a barrier if an operand was written after the last barrier, or if a buffer that is written was used
/// after it.
void Graph::add_barrier(std::initializer_list<const View*> views, uint32_t writes) {
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
    if (it.use != Use::kConstant || it.is_state)
      pending_.push_back({it.buffer, it.offset, it.offset + it.bytes, (writes & bit) != 0});
    bit <<= 1;
  }
}

void Graph::dispatch(const Shader& shader, std::initializer_list<uint32_t> constants, const Push& push,
                     std::initializer_list<const View*> views, uint32_t writes, int64_t groups,
                     int64_t layers) {
  if (!ok() || groups <= 0 || layers <= 0) return;
  const int64_t max_across = device_.limits().maxComputeWorkGroupCount[0];
  const int64_t across = std::min(groups, max_across), down = (groups + across - 1) / across;
  if (views.size() != shader.bindings || push.count_ > kPushBytes / 4 ||
      down > device_.limits().maxComputeWorkGroupCount[1] ||
      layers > device_.limits().maxComputeWorkGroupCount[2]) {
    TORCHETTE_LOG(Error, "a dispatch of Vulkan shader %s is too large: %lld groups, %lld layers", shader.name,
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
  VkDescriptorBufferInfo buffers[kMaxBindings];
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
    bool is_repeated = false;  // bound instead of an absent operand
    for (uint32_t k = 0; k < i; ++k) is_repeated = is_repeated || views.begin()[k]->storage == view.storage;
    if (!is_repeated) counts_.bytes += bytes;
  }
  device_.bind(set, buffers, count);
  add_barrier(views, writes);
  device_.vk.CmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
  const VkPipelineLayout pipeline_layout = device_.pipeline_layout(shader.bindings);
  device_.vk.CmdBindDescriptorSets(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_layout, 0, 1, &set, 0,
                                   nullptr);
  device_.vk.CmdPushConstants(commands_, pipeline_layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, kPushBytes,
                              push.words_);
  device_.vk.CmdDispatch(commands_, static_cast<uint32_t>(across), static_cast<uint32_t>(down),
                         static_cast<uint32_t>(layers));
  if (is_timed_) write_timestamp(step_);
}

}  // namespace vulkan
}  // namespace torchette
