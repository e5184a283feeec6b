// SPDX-License-Identifier: BSD-3-Clause
// The one device of the process, found when it is first asked for: libvulkan is loaded at run time, so that
// nothing links it. What all graphs share: the queue, pipelines, layouts, kinds of memory.
#pragma once

#ifndef VK_NO_PROTOTYPES
#define VK_NO_PROTOTYPES
#endif
#include <vulkan/vulkan.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "torchette/runtime/error.h"
#include "torchette/runtime/span.h"

namespace torchette {
namespace vulkan {

struct Functions {
#define INSTANCE(name) PFN_vk##name name = nullptr;
#define DEVICE(name) PFN_vk##name name = nullptr;
#include "torchette/backends/vulkan/functions.def"
#undef INSTANCE
#undef DEVICE
};

constexpr uint32_t kMostBindings = 6;   // of a shader
constexpr uint32_t kMostConstants = 9;  // that specialize one
constexpr uint32_t kPushBytes = 128;    // what every device has

/// A shader as it was compiled.
struct Shader {
  const char* name;
  const uint32_t* words;
  size_t bytes;
  uint32_t bindings;
};

/// Memory with one buffer over all of it.
struct Buffer {
  VkBuffer buffer = VK_NULL_HANDLE;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  uint64_t size = 0;
  uint8_t* mapped = nullptr;  // null where the host cannot see it
};

enum class Memory {
  kDevice,  // fast for shaders; the host sees it where both share their memory
  kHost,    // the host reads and writes it
};

class Device {
 public:
  /// Null where there is no library, no driver or no device that can compute, or where it was lost.
  static Device* get();

  Error allocate(uint64_t size, Memory kind, Buffer* out);
  void free(Buffer* buffer);
  /// The pipeline of a shader with these constants, made when it is first asked for.
  Error pipeline(const Shader& shader, Span<const uint32_t> constants, VkPipeline* out);
  /// Runs a command buffer to its end.
  Error run(VkCommandBuffer commands, VkFence fence);
  /// An error of ours for one of Vulkan's; logs it, and remembers that the device was lost.
  Error check(VkResult result, const char* what);

  const char* name() const { return properties_.deviceName; }
  const VkPhysicalDeviceLimits& limits() const { return properties_.limits; }
  bool has_half() const { return has_half_; }
  uint32_t queue_family() const { return family_; }
  /// Whether the queue tells times; of them, in units of limits().timestampPeriod nanoseconds, `time_mask`
  /// counts.
  bool has_times() const { return time_bits_ != 0; }
  uint64_t time_mask() const { return time_bits_ >= 64 ? ~uint64_t{0} : (uint64_t{1} << time_bits_) - 1; }
  VkDevice handle() const { return device_; }
  VkDescriptorSetLayout set_layout(uint32_t bindings) const { return set_layouts_[bindings]; }
  VkPipelineLayout pipeline_layout(uint32_t bindings) const { return layouts_[bindings]; }

  Functions vk;

 private:
  struct Made {
    const Shader* shader;
    uint32_t count;
    uint32_t constants[kMostConstants];
    VkPipeline pipeline;
  };

  Error open();
  Error choose(Span<const VkPhysicalDevice> all);

  void* library_ = nullptr;
  VkInstance instance_ = VK_NULL_HANDLE;
  VkPhysicalDevice physical_ = VK_NULL_HANDLE;
  VkDevice device_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  uint32_t family_ = 0, time_bits_ = 0;
  bool has_half_ = false;
  std::atomic<bool> lost_{false};
  VkPhysicalDeviceProperties properties_{};
  VkPhysicalDeviceMemoryProperties memory_{};
  VkDescriptorSetLayout set_layouts_[kMostBindings + 1]{};
  VkPipelineLayout layouts_[kMostBindings + 1]{};
  std::mutex queue_mutex_, pipelines_mutex_;
  std::vector<Made> pipelines_;
};

}  // namespace vulkan
}  // namespace torchette
