// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/vulkan/probe.h"

#include <cmath>
#include <cstring>

#include "torchette/backends/vulkan/interpreter.h"
#include "torchette/runtime/dtype.h"
#include "torchette/runtime/kernel.h"

namespace torchette {
namespace vulkan {
namespace {

enum class Holds { kFloats, kHalves, kIntegers };

struct Part {  // a part of the memory that contains all buffers
  uint64_t offset, bytes;
  Holds holds;
};

constexpr uint64_t kAlignment = 256;

Holds holds(const Shader& shader, const Probe::Elements& it, Span<const uint32_t> constants) {
  const Holds real = shader.is_half ? Holds::kHalves : Holds::kFloats;
  if (it.kind != 'k') return it.kind == 'i' ? Holds::kIntegers : real;
  switch (it.detail < constants.size() ? constants[it.detail] : 0) {  // Kind of graph.h
    case 0:
      return Holds::kFloats;
    case 3:
      return Holds::kHalves;
    default:
      return Holds::kIntegers;
  }
}

/// Fills a buffer with pseudorandom elements, the same each time.
void fill(uint8_t* to, const Probe::Elements& it, Holds kind, bool is_bool, uint32_t seed) {
  for (uint32_t i = 0; i < it.count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    const uint32_t random_bits = seed >> 8;  // 24 bits
    if (kind == Holds::kIntegers) {
      const int32_t most = it.kind == 'i' ? static_cast<int32_t>(it.detail) : 9;
      const int32_t number =
          is_bool ? static_cast<int32_t>(random_bits >> 23)
                  : static_cast<int32_t>((random_bits >> 4) % static_cast<uint32_t>(2 * most)) - most;
      memcpy(to + 4 * size_t{i}, &number, 4);
      continue;
    }
    const float unit = static_cast<float>(random_bits) * 0x1p-24f;
    const float number = it.kind == 'p' ? unit + 0.5f : unit * 4 - 2;
    const Half half(number);
    if (kind == Holds::kHalves)
      memcpy(to + 2 * size_t{i}, &half, 2);
    else
      memcpy(to + 4 * size_t{i}, &number, 4);
  }
}

float number_at(const uint8_t* from, Holds kind, size_t i) {
  float number;
  Half half;
  memcpy(&number, from + (kind == Holds::kHalves ? 0 : 4 * i), 4);
  if (kind != Holds::kHalves) return number;
  memcpy(&half, from + 2 * i, 2);
  return static_cast<float>(half);
}

bool equal(const uint8_t* got, const uint8_t* want, const Part& part, bool is_packed) {
  if (part.holds == Holds::kIntegers) return memcmp(got, want, part.bytes) == 0;
  const size_t count = part.bytes / (part.holds == Holds::kHalves ? 2 : 4);
  float scale = 0;
  for (size_t i = 0; i < count; ++i) {
    const float size = std::fabs(number_at(want, part.holds, i));
    if (std::isfinite(size) && size > scale) scale = size;
  }
  const float bound = scale * (is_packed || part.holds == Holds::kHalves ? 2e-2f : 1e-4f);
  for (size_t i = 0; i < count; ++i) {
    const float x = number_at(got, part.holds, i), y = number_at(want, part.holds, i);
    if (std::isnan(y) || x == y) continue;  // a NaN of the reference may have any value on the device
    if (!(std::fabs(x - y) <= bound)) return false;
  }
  return true;
}

/// Owns the Vulkan objects of one dispatch.
class Run {
 public:
  explicit Run(Device& device) : device_(device) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() {
    const VkDevice handle = device_.handle();
    if (fence_ != VK_NULL_HANDLE) device_.vk.DestroyFence(handle, fence_, nullptr);
    if (sets_ != VK_NULL_HANDLE) device_.vk.DestroyDescriptorPool(handle, sets_, nullptr);
    if (pool_ != VK_NULL_HANDLE) device_.vk.DestroyCommandPool(handle, pool_, nullptr);
    device_.free(&memory);
  }

  Error dispatch(const Shader& shader, const Probe& it, const Part* parts, VkPipeline pipeline) {
    const VkDevice handle = device_.handle();
    Functions& vk = device_.vk;
    const VkDescriptorPoolSize size{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, shader.bindings};
    VkDescriptorPoolCreateInfo descriptors{VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
    descriptors.maxSets = descriptors.poolSizeCount = 1;
    descriptors.pPoolSizes = &size;
    TORCHETTE_TRY(device_.check(vk.CreateDescriptorPool(handle, &descriptors, nullptr, &sets_), "a pool"));
    const VkDescriptorSetLayout layout = device_.set_layout(shader.bindings);
    const VkDescriptorSetAllocateInfo info{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, nullptr, sets_, 1,
                                           &layout};
    VkDescriptorSet set = VK_NULL_HANDLE;
    TORCHETTE_TRY(device_.check(vk.AllocateDescriptorSets(handle, &info, &set), "a descriptor"));
    VkDescriptorBufferInfo buffers[kMaxBindings];
    for (uint32_t i = 0; i < shader.bindings; ++i)
      buffers[i] = {memory.buffer, parts[i].offset, (parts[i].bytes + 3) / 4 * 4};
    device_.bind(set, buffers, shader.bindings);
    VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    pool.queueFamilyIndex = device_.queue_family();
    TORCHETTE_TRY(device_.check(vk.CreateCommandPool(handle, &pool, nullptr, &pool_), "a pool of commands"));
    const VkCommandBufferAllocateInfo wanted{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, pool_,
                                             VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
    VkCommandBuffer commands = VK_NULL_HANDLE;
    TORCHETTE_TRY(device_.check(vk.AllocateCommandBuffers(handle, &wanted, &commands), "commands"));
    const VkFenceCreateInfo fence{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    TORCHETTE_TRY(device_.check(vk.CreateFence(handle, &fence, nullptr, &fence_), "a fence"));
    const VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    TORCHETTE_TRY(device_.check(vk.BeginCommandBuffer(commands, &begin), "recording"));
    vk.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    const VkPipelineLayout pipeline_layout = device_.pipeline_layout(shader.bindings);
    vk.CmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_layout, 0, 1, &set, 0,
                             nullptr);
    vk.CmdPushConstants(commands, pipeline_layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, kPushBytes, it.push);
    vk.CmdDispatch(commands, it.groups, 1, it.layers);
    const VkMemoryBarrier seen{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VK_ACCESS_SHADER_WRITE_BIT,
                               VK_ACCESS_HOST_READ_BIT};
    vk.CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
                          &seen, 0, nullptr, 0, nullptr);
    TORCHETTE_TRY(device_.check(vk.EndCommandBuffer(commands), "recording"));
    return device_.run(commands, fence_);
  }

  Buffer memory;

 private:
  Device& device_;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkDescriptorPool sets_ = VK_NULL_HANDLE;
  VkFence fence_ = VK_NULL_HANDLE;
};

Error probe_once(Device& device, const Shader& shader, Span<const uint32_t> constants, VkPipeline pipeline,
                 const Probe& it, bool* agrees) {
  Part parts[kMaxBindings];
  uint64_t size = 0;
  for (uint32_t i = 0; i < shader.bindings; ++i) {
    Part& part = parts[i];
    part.holds = holds(shader, it.buffers[i], constants);
    part.offset = size;
    part.bytes = it.buffers[i].count * (part.holds == Holds::kHalves ? uint64_t{2} : uint64_t{4});
    size += (part.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  Run run(device);
  TORCHETTE_TRY(device.allocate(size, Memory::kHost, &run.memory));
  memset(run.memory.mapped, 0, size);
  for (uint32_t i = 0; i < shader.bindings; ++i) {
    const Probe::Elements& elements = it.buffers[i];
    const bool is_bool =
        elements.kind == 'k' && elements.detail < constants.size() && constants[elements.detail] == 2;
    fill(run.memory.mapped + parts[i].offset, elements, parts[i].holds, is_bool, i + 1);
  }
  std::vector<uint8_t> expected(run.memory.mapped, run.memory.mapped + size);
  Span<uint8_t> buffers[kMaxBindings];
  for (uint32_t i = 0; i < shader.bindings; ++i)
    buffers[i] = {expected.data() + parts[i].offset, static_cast<size_t>(parts[i].bytes)};
  Interpreter processor({shader.words, shader.bytes / 4}, constants);
  const uint32_t groups[3] = {it.groups, 1, it.layers};
  TORCHETTE_CHECK(processor.run({it.push, it.push_count}, {buffers, shader.bindings}, groups), Internal,
                  "the interpreter cannot run a probe of Vulkan shader %s", shader.name);
  TORCHETTE_TRY(run.dispatch(shader, it, parts, pipeline));
  for (uint32_t i = 0; i < shader.bindings && *agrees; ++i)
    *agrees = equal(run.memory.mapped + parts[i].offset, expected.data() + parts[i].offset, parts[i],
                    shader.is_packed);
  return Error::Ok;
}

}  // namespace

Error probe(Device& device, const Shader& shader, Span<const uint32_t> constants, VkPipeline pipeline,
            bool* agrees) {
  *agrees = true;
  for (uint32_t i = 0; i < shader.probe_count && *agrees; ++i) {
    const Probe& it = shader.probes[i];
    const uint32_t value = it.constant < constants.size() ? constants[it.constant] : 0;
    if (it.values != 0 && (value > 31 || (it.values >> value & 1) == 0)) continue;
    TORCHETTE_TRY(probe_once(device, shader, constants, pipeline, it, agrees));
  }
  return Error::Ok;
}

}  // namespace vulkan
}  // namespace torchette
