// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/vulkan/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "torchette/backends/vulkan/cache.h"
#include "torchette/backends/vulkan/probe.h"
#include "torchette/runtime/kernel.h"

namespace torchette {
namespace vulkan {
namespace {

// The rank of a device: separate GPUs first, then GPUs that share memory with the CPU.
int rank_of(VkPhysicalDeviceType type) {
  switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
      return 4;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
      return 3;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
      return 2;
    default:
      return 1;
  }
}

}  // namespace

std::shared_ptr<Device> Device::get() {
  static std::mutex mutex;
  static std::shared_ptr<Device>* known = nullptr;  // lives as long as the process
  const std::lock_guard<std::mutex> lock(mutex);
  const bool asked = known != nullptr;
  if (!asked) known = new std::shared_ptr<Device>;
  if (!asked || (*known != nullptr && (*known)->lost_)) {
    auto found = std::make_shared<Device>();
    *known = found->open() == Error::Ok ? found : nullptr;
  }
  return *known;
}

Device::~Device() {
  if (device_ != VK_NULL_HANDLE && vk.GetDeviceQueue != nullptr && vk.DestroyDevice != nullptr) {
    for (const CompiledPipeline& compiled : pipelines_)
      vk.DestroyPipeline(device_, compiled.pipeline, nullptr);
    if (compiled_ != VK_NULL_HANDLE) vk.DestroyPipelineCache(device_, compiled_, nullptr);
    for (uint32_t i = 1; i <= kMaxBindings; ++i) {
      if (layouts_[i] != VK_NULL_HANDLE) vk.DestroyPipelineLayout(device_, layouts_[i], nullptr);
      if (set_layouts_[i] != VK_NULL_HANDLE) vk.DestroyDescriptorSetLayout(device_, set_layouts_[i], nullptr);
    }
    vk.DestroyDevice(device_, nullptr);
  }
  if (instance_ != VK_NULL_HANDLE && vk.DestroyInstance != nullptr) vk.DestroyInstance(instance_, nullptr);
  if (library_ != nullptr) dlclose(library_);
}

Error Device::open() {
  for (const char* name : {"libvulkan.so.1", "libvulkan.so"})
    if (library_ == nullptr) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) return Error::NotFound;
  const auto find = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library_, "vkGetInstanceProcAddr"));
  if (find == nullptr) return Error::NotFound;
  const auto create = reinterpret_cast<PFN_vkCreateInstance>(find(nullptr, "vkCreateInstance"));
  if (create == nullptr) return Error::NotFound;
  VkApplicationInfo application{VK_STRUCTURE_TYPE_APPLICATION_INFO};
  application.pApplicationName = "torchette";
  application.apiVersion = VK_API_VERSION_1_1;
  VkInstanceCreateInfo info{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  info.pApplicationInfo = &application;
  if (create(&info, nullptr, &instance_) != VK_SUCCESS) return Error::NotFound;
#define INSTANCE(name)                                                   \
  vk.name = reinterpret_cast<PFN_vk##name>(find(instance_, "vk" #name)); \
  if (vk.name == nullptr) return Error::NotFound;
#define DEVICE(name)
#include "torchette/backends/vulkan/functions.def"
#undef INSTANCE
#undef DEVICE
  uint32_t count = 0;
  vk.EnumeratePhysicalDevices(instance_, &count, nullptr);
  std::vector<VkPhysicalDevice> all(count);
  if (count == 0 || vk.EnumeratePhysicalDevices(instance_, &count, all.data()) < 0) return Error::NotFound;
  TORCHETTE_TRY(choose({all.data(), count}));

  TORCHETTE_TRY(create_device());
#define INSTANCE(name)
#define DEVICE(name)                                                                   \
  vk.name = reinterpret_cast<PFN_vk##name>(vk.GetDeviceProcAddr(device_, "vk" #name)); \
  if (vk.name == nullptr) return Error::NotFound;
#include "torchette/backends/vulkan/functions.def"
#undef INSTANCE
#undef DEVICE
  vk.GetDeviceQueue(device_, family_, 0, &queue_);
  vk.GetPhysicalDeviceMemoryProperties(physical_, &memory_);

  VkDescriptorSetLayoutBinding bindings[kMaxBindings]{};
  for (uint32_t i = 0; i < kMaxBindings; ++i)
    bindings[i] = {i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
  for (uint32_t i = 1; i <= max_bindings(); ++i) {
    VkDescriptorSetLayoutCreateInfo sets{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
    sets.bindingCount = i;
    sets.pBindings = bindings;
    TORCHETTE_TRY(check(vk.CreateDescriptorSetLayout(device_, &sets, nullptr, &set_layouts_[i]), "a layout"));
    const VkPushConstantRange push{VK_SHADER_STAGE_COMPUTE_BIT, 0, kPushBytes};
    VkPipelineLayoutCreateInfo layout{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    layout.setLayoutCount = 1;
    layout.pSetLayouts = &set_layouts_[i];
    layout.pushConstantRangeCount = 1;
    layout.pPushConstantRanges = &push;
    TORCHETTE_TRY(check(vk.CreatePipelineLayout(device_, &layout, nullptr, &layouts_[i]), "a layout"));
  }
  return Error::Ok;
}

/// Creates the device with the features that the shaders use.
Error Device::create_device() {
  uint32_t count = 0;
  vk.EnumerateDeviceExtensionProperties(physical_, nullptr, &count, nullptr);
  std::vector<VkExtensionProperties> extensions(count);
  vk.EnumerateDeviceExtensionProperties(physical_, nullptr, &count, extensions.data());
  const char* const arithmetic_name = VK_KHR_SHADER_FLOAT16_INT8_EXTENSION_NAME;
  const bool has_extension = std::any_of(
      extensions.begin(), extensions.end(),
      [&](const VkExtensionProperties& it) { return strcmp(it.extensionName, arithmetic_name) == 0; });
  VkPhysicalDeviceShaderFloat16Int8Features arithmetic{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES};
  VkPhysicalDevice16BitStorageFeatures half{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES};
  if (has_extension) half.pNext = &arithmetic;
  VkPhysicalDeviceFeatures2 features{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &half};
  vk.GetPhysicalDeviceFeatures2(physical_, &features);
  has_half_ = half.storageBuffer16BitAccess == VK_TRUE;
  has_half_arithmetic_ = has_half_ && arithmetic.shaderFloat16 == VK_TRUE;
  VkPhysicalDeviceFeatures enabled{};  // robust access: a damaged program cannot read other memory
  enabled.robustBufferAccess = features.features.robustBufferAccess;
  half = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES};
  half.storageBuffer16BitAccess = has_half_ ? VK_TRUE : VK_FALSE;
  arithmetic = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES};
  arithmetic.shaderFloat16 = VK_TRUE;
  if (has_half_arithmetic_) half.pNext = &arithmetic;
  const float priority = 1.0f;
  VkDeviceQueueCreateInfo queue{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
  queue.queueFamilyIndex = family_;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  VkDeviceCreateInfo device{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &half};
  device.queueCreateInfoCount = 1;
  device.pQueueCreateInfos = &queue;
  device.pEnabledFeatures = &enabled;
  device.enabledExtensionCount = has_half_arithmetic_ ? 1 : 0;
  device.ppEnabledExtensionNames = &arithmetic_name;
  return vk.CreateDevice(physical_, &device, nullptr, &device_) == VK_SUCCESS ? Error::Ok : Error::NotFound;
}

Error Device::choose(Span<const VkPhysicalDevice> all) {
  int best = 0;
  for (const VkPhysicalDevice candidate : all) {
    VkPhysicalDeviceProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    vk.GetPhysicalDeviceProperties2(candidate, &properties);
    const int rank = rank_of(properties.properties.deviceType);
    if (properties.properties.apiVersion < VK_API_VERSION_1_1 || rank <= best) continue;
    uint32_t count = 0;
    vk.GetPhysicalDeviceQueueFamilyProperties(candidate, &count, nullptr);
    std::vector<VkQueueFamilyProperties> families(count);
    vk.GetPhysicalDeviceQueueFamilyProperties(candidate, &count, families.data());
    for (uint32_t i = 0; i < count; ++i) {
      if ((families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) == 0) continue;
      best = rank, family_ = i, physical_ = candidate, properties_ = properties.properties;
      time_bits_ = families[i].timestampValidBits;
      break;
    }
  }
  return best == 0 ? Error::NotFound : Error::Ok;
}

Error Device::check(VkResult result, const char* what) {
  if (result >= 0) return Error::Ok;
  if (result == VK_ERROR_DEVICE_LOST) lost_ = true;
  if (lost_) {
    TORCHETTE_LOG(Error, "the Vulkan device %s was lost: load its methods again", name());
    return Error::Internal;
  }
  const bool memory = result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY ||
                      result == VK_ERROR_OUT_OF_POOL_MEMORY;
  TORCHETTE_LOG(Error, "Vulkan on %s: %s fails with VkResult %d", name(), what, static_cast<int>(result));
  return memory ? Error::DelegateMemoryAllocationFailed : Error::Internal;
}

Error Device::allocate(uint64_t size, Memory kind, Buffer* out) {
  *out = {};
  out->size = size == 0 ? 4 : size;
  VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  info.size = out->size;
  info.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
               VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  TORCHETTE_TRY(check(vk.CreateBuffer(device_, &info, nullptr, &out->buffer), "a buffer"));
  VkMemoryRequirements needs;
  vk.GetBufferMemoryRequirements(device_, out->buffer, &needs);
  constexpr uint32_t kHost = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  constexpr uint32_t kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  constexpr uint32_t kCached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
  const uint32_t wishes[2][3] = {{kLocal | kHost, kLocal, kHost}, {kHost | kCached, kHost, kHost}};
  VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
  for (const uint32_t wish : wishes[kind == Memory::kHost]) {
    for (uint32_t i = 0; i < memory_.memoryTypeCount && out->memory == VK_NULL_HANDLE; ++i) {
      const uint32_t flags = memory_.memoryTypes[i].propertyFlags;
      if ((needs.memoryTypeBits >> i & 1) == 0 || (flags & wish) != wish) continue;
      const VkMemoryAllocateInfo request{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, nullptr, needs.size, i};
      result = vk.AllocateMemory(device_, &request, nullptr, &out->memory);
      if (result == VK_SUCCESS && (flags & kHost) == kHost)
        result =
            vk.MapMemory(device_, out->memory, 0, VK_WHOLE_SIZE, 0, reinterpret_cast<void**>(&out->mapped));
    }
    if (out->memory != VK_NULL_HANDLE) break;
  }
  if (result == VK_SUCCESS) result = vk.BindBufferMemory(device_, out->buffer, out->memory, 0);
  const Error error = check(result, "memory");
  if (error != Error::Ok) free(out);
  return error;
}

void Device::free(Buffer* buffer) {
  vk.DestroyBuffer(device_, buffer->buffer, nullptr);
  vk.FreeMemory(device_, buffer->memory, nullptr);
  *buffer = {};
}

void Device::bind(VkDescriptorSet set, const VkDescriptorBufferInfo* buffers, uint32_t count) const {
  VkWriteDescriptorSet writes[kMaxBindings];
  for (uint32_t i = 0; i < count; ++i) {
    writes[i] = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    writes[i].dstSet = set;
    writes[i].dstBinding = i;
    writes[i].descriptorCount = 1;
    writes[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    writes[i].pBufferInfo = &buffers[i];
  }
  vk.UpdateDescriptorSets(device_, count, writes, 0, nullptr);
}

Error Device::pipeline(const Shader& shader, Span<const uint32_t> constants, VkPipeline* out) {
  const std::lock_guard<std::mutex> lock(pipelines_mutex_);
  for (const CompiledPipeline& compiled : pipelines_) {
    if (compiled.shader == &shader && compiled.count == constants.size() &&
        std::equal(constants.begin(), constants.end(), compiled.constants)) {
      *out = compiled.pipeline;
      return Error::Ok;
    }
  }
  read_cache();
  has_new_entries_ = true;
  CompiledPipeline compiled{&shader, static_cast<uint32_t>(constants.size()), {}, VK_NULL_HANDLE};
  std::copy(constants.begin(), constants.end(), compiled.constants);  // may be empty
  VkShaderModuleCreateInfo code{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
  code.codeSize = shader.bytes;
  code.pCode = shader.words;
  VkShaderModule module;
  TORCHETTE_TRY(check(vk.CreateShaderModule(device_, &code, nullptr, &module), shader.name));
  VkSpecializationMapEntry entries[kMaxConstants];
  for (uint32_t i = 0; i < compiled.count; ++i) entries[i] = {i, 4 * i, 4};
  const VkSpecializationInfo special{compiled.count, entries, 4 * compiled.count, compiled.constants};
  VkComputePipelineCreateInfo info{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = module;
  info.stage.pName = "main";
  info.stage.pSpecializationInfo = &special;
  info.layout = layouts_[shader.bindings];
  const VkResult result =
      vk.CreateComputePipelines(device_, compiled_, 1, &info, nullptr, &compiled.pipeline);
  vk.DestroyShaderModule(device_, module, nullptr);
  TORCHETTE_TRY(check(result, shader.name));
  pipelines_.push_back(compiled);
  const Error error = check_probes(shader, constants, compiled.pipeline);
  if (error != Error::Ok) {
    vk.DestroyPipeline(device_, compiled.pipeline, nullptr);
    pipelines_.pop_back();
    return error;
  }
  *out = compiled.pipeline;
  return Error::Ok;
}

Error Device::check_probes(const Shader& shader, Span<const uint32_t> constants, VkPipeline pipeline) {
  const uint64_t key = hash(constants.data(), 4 * constants.size(), hash(shader.words, shader.bytes));
  const Verdict* known = nullptr;
  for (const Verdict& it : verdicts_)
    if (it.key == key) known = &it;
  if (known == nullptr) {
    Verdict verdict{key, 0, {}};
    bool agrees = false;
    TORCHETTE_TRY(probe(*this, shader, constants, pipeline, &agrees));
    verdict.is_right = agrees ? 1 : 0;
    strncpy(verdict.name, shader.name, sizeof(verdict.name) - 1);
    verdicts_.push_back(verdict);
    known = &verdicts_.back();
  }
  const uint32_t version = properties_.driverVersion;
  TORCHETTE_CHECK(
      known->is_right == 1, NotSupported,
      "Vulkan's shader %s computes wrong results with the driver of %s, version %u.%u.%u, so it is not used",
      shader.name, name(), VK_VERSION_MAJOR(version), VK_VERSION_MINOR(version), VK_VERSION_PATCH(version));
  return Error::Ok;
}

Counts Device::counts() {
  const std::lock_guard<std::mutex> lock(pipelines_mutex_);
  return counts_;
}

void Device::set_counts(const Counts& counts) {
  const std::lock_guard<std::mutex> lock(pipelines_mutex_);
  counts_ = counts;
}

std::string Device::quarantined() {
  const std::lock_guard<std::mutex> lock(pipelines_mutex_);
  std::string names;
  for (const Verdict& it : verdicts_)
    if (it.is_right != 1 && names.find(it.name) == std::string::npos)
      names += (names.empty() ? "" : ",") + std::string(it.name);
  return names;
}

std::string Device::cache_path(const char* what) const {
  uint64_t key = hash(properties_.pipelineCacheUUID, VK_UUID_SIZE);
  for (const uint32_t number : {properties_.vendorID, properties_.deviceID, properties_.driverVersion})
    key = hash(&number, sizeof(number), key);
  key = hash(properties_.deviceName, strlen(properties_.deviceName), key);
  char name[64];
  snprintf(name, sizeof(name), "/vulkan-%016llx.%s", static_cast<unsigned long long>(key), what);
  return read_from_ + name;
}

/// Reads the cache of this device if the folder has changed.
void Device::read_cache() {
  const std::string folder = cache_folder();
  if (has_read_ && folder == read_from_) return;
  has_read_ = true;
  read_from_ = folder;
  verdicts_.clear();
  if (compiled_ != VK_NULL_HANDLE) vk.DestroyPipelineCache(device_, compiled_, nullptr);
  compiled_ = VK_NULL_HANDLE;
  std::vector<uint8_t> pipelines;
  if (!folder.empty()) {
    const std::vector<uint8_t> found = read_cached(cache_path("verdicts"));
    verdicts_.resize(found.size() / sizeof(Verdict));
    if (!verdicts_.empty()) memcpy(verdicts_.data(), found.data(), verdicts_.size() * sizeof(Verdict));
    for (Verdict& it : verdicts_) it.name[sizeof(it.name) - 1] = 0;
    pipelines = read_cached(cache_path("pipelines"));
  }
  VkPipelineCacheCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
  info.initialDataSize = pipelines.size();
  info.pInitialData = pipelines.data();
  if (vk.CreatePipelineCache(device_, &info, nullptr, &compiled_) != VK_SUCCESS) compiled_ = VK_NULL_HANDLE;
}

void Device::save() {
  const std::lock_guard<std::mutex> lock(pipelines_mutex_);
  if (!has_new_entries_ || read_from_.empty() || lost_) return;
  has_new_entries_ = false;
  store_cached(cache_path("verdicts"),
               {reinterpret_cast<const uint8_t*>(verdicts_.data()), verdicts_.size() * sizeof(Verdict)});
  size_t size = 0;
  if (compiled_ == VK_NULL_HANDLE ||
      vk.GetPipelineCacheData(device_, compiled_, &size, nullptr) != VK_SUCCESS)
    return;
  std::vector<uint8_t> data(size);
  if (vk.GetPipelineCacheData(device_, compiled_, &size, data.data()) == VK_SUCCESS)
    store_cached(cache_path("pipelines"), {data.data(), size});
}

Error Device::run(VkCommandBuffer commands, VkFence fence) {
  TORCHETTE_TRY(check(vk.ResetFences(device_, 1, &fence), "a fence"));
  VkSubmitInfo submit{VK_STRUCTURE_TYPE_SUBMIT_INFO};
  submit.commandBufferCount = 1;
  submit.pCommandBuffers = &commands;
  {
    const std::lock_guard<std::mutex> lock(queue_mutex_);
    TORCHETTE_TRY(check(vk.QueueSubmit(queue_, 1, &submit, fence), "a submission"));
  }
  return check(vk.WaitForFences(device_, 1, &fence, VK_TRUE, UINT64_MAX), "waiting");
}

}  // namespace vulkan
}  // namespace torchette
