// SPDX-License-Identifier: BSD-3-Clause
// The Vulkan device of the process, which all graphs share: queue, pipelines, layouts and memory types. It is
// opened on first use. libvulkan is loaded at run time, so the build does not link it.
#pragma once

#ifndef VK_NO_PROTOTYPES
#define VK_NO_PROTOTYPES
#endif
#include <vulkan/vulkan.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
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

constexpr uint32_t kMaxBindings = 7;   // of a shader
constexpr uint32_t kMaxConstants = 9;  // specialization constants of a shader
constexpr uint32_t kPushBytes = 128;   // the minimum that Vulkan guarantees

/// A dispatch that tests a driver. shaders/compile.py describes the fields.
struct Probe {
  uint32_t constant, values;  // applies if this constant is one of these values (a bit each); 0: always
  uint32_t groups, layers;
  uint32_t push_count, push[kPushBytes / 4];
  struct Elements {
    char kind;
    uint32_t detail, count;
  } buffers[kMaxBindings];
};

/// A compiled shader.
struct Shader {
  const char* name;
  const uint32_t* words;
  size_t bytes;
  uint32_t bindings;
  bool is_half;    // its floats are float16
  bool is_packed;  // it also computes in float16
  const Probe* probes;
  uint32_t probe_count;
};

/// The work of a graph in one execution.
struct Counts {
  int dispatches = 0, barriers = 0;
  uint64_t bytes = 0;  // bytes of the tensors that shaders read and write
};

/// Memory and a buffer that covers it.
struct Buffer {
  VkBuffer buffer = VK_NULL_HANDLE;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  uint64_t size = 0;
  uint8_t* mapped = nullptr;  // null if the host cannot access it
};

enum class Memory {
  kDevice,  // fast for shaders; the host can access it if both share their memory
  kHost,    // the host reads and writes it
};

class Device {
 public:
  /// Returns null if there is no library, driver or device with compute shaders. Returns a new device if the
  /// device was lost; objects of the lost device are unusable.
  static std::shared_ptr<Device> get();
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  Error allocate(uint64_t size, Memory kind, Buffer* out);
  void free(Buffer* buffer);
  /// The pipeline of a shader with these constants. The first call compiles it, and probes it unless a
  /// process has probed it with this driver before. Errors: NotSupported (the driver computes wrong results),
  /// those of the device.
  Error pipeline(const Shader& shader, Span<const uint32_t> constants, VkPipeline* out);
  /// Stores test results and compiled pipelines for other processes.
  void save();
  /// Runs a command buffer and waits for its end.
  Error run(VkCommandBuffer commands, VkFence fence);
  /// Converts Vulkan's result to an error and logs it. Records a lost device.
  Error check(VkResult result, const char* what);

  bool is_lost() const { return lost_; }
  const char* name() const { return properties_.deviceName; }
  /// The counts of the graph that was recorded last.
  Counts counts();
  void set_counts(const Counts& counts);
  /// The names of the shaders that the driver computes wrongly, of those that were probed.
  std::string quarantined();
  const VkPhysicalDeviceLimits& limits() const { return properties_.limits; }
  bool has_half() const { return has_half_; }
  /// Whether shaders can compute in float16; implies has_half().
  bool has_half_arithmetic() const { return has_half_arithmetic_; }
  /// A number of workgroups that occupies the device. Vulkan does not report the number of its processors.
  int64_t enough_groups() const {
    return properties_.deviceType == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU ? 256 : 32;
  }
  /// The number of buffers that a shader may have.
  uint32_t max_bindings() const {
    const uint32_t limit = properties_.limits.maxPerStageDescriptorStorageBuffers;
    return limit < kMaxBindings ? limit : kMaxBindings;
  }
  uint32_t queue_family() const { return family_; }
  /// Whether the queue has timestamps. Their unit is limits().timestampPeriod nanoseconds. `time_mask`
  /// selects the valid bits.
  bool has_times() const { return time_bits_ != 0; }
  uint64_t time_mask() const { return time_bits_ >= 64 ? ~uint64_t{0} : (uint64_t{1} << time_bits_) - 1; }
  VkDevice handle() const { return device_; }
  VkDescriptorSetLayout set_layout(uint32_t bindings) const { return set_layouts_[bindings]; }
  /// Binds `count` parts of buffers to a set, in order.
  void bind(VkDescriptorSet set, const VkDescriptorBufferInfo* buffers, uint32_t count) const;
  VkPipelineLayout pipeline_layout(uint32_t bindings) const { return layouts_[bindings]; }

  Functions vk;

 private:
  struct CompiledPipeline {
    const Shader* shader;
    uint32_t count;
    uint32_t constants[kMaxConstants];
    VkPipeline pipeline;
  };

  Error open();
  Error create_device();
  void read_cache();
  std::string cache_path(const char* what) const;
  Error check_probes(const Shader& shader, Span<const uint32_t> constants, VkPipeline pipeline);
  Error choose(Span<const VkPhysicalDevice> all);

  void* library_ = nullptr;
  VkInstance instance_ = VK_NULL_HANDLE;
  VkPhysicalDevice physical_ = VK_NULL_HANDLE;
  VkDevice device_ = VK_NULL_HANDLE;
  VkQueue queue_ = VK_NULL_HANDLE;
  uint32_t family_ = 0, time_bits_ = 0;
  bool has_half_ = false, has_half_arithmetic_ = false;
  std::atomic<bool> lost_{false};
  VkPhysicalDeviceProperties properties_{};
  VkPhysicalDeviceMemoryProperties memory_{};
  VkDescriptorSetLayout set_layouts_[kMaxBindings + 1]{};
  VkPipelineLayout layouts_[kMaxBindings + 1]{};
  std::mutex queue_mutex_, pipelines_mutex_;
  std::vector<CompiledPipeline> pipelines_;
  struct Verdict {
    uint64_t key;  // hash of the shader's words and constants
    uint64_t is_right;
    char name[32];
  };
  std::vector<Verdict> verdicts_;
  Counts counts_;
  std::string read_from_;  // the folder of the cache
  bool has_read_ = false, has_new_entries_ = false;
  VkPipelineCache compiled_ = VK_NULL_HANDLE;
};

}  // namespace vulkan
}  // namespace torchette
