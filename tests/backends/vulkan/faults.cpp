// SPDX-License-Identifier: BSD-3-Clause
// A Vulkan layer that adds faults to a driver. It reads environment variables at each call.
// TORCHETTE_FAULT_SHADERS: SPIR-V files, separated by colons, or "all": additions of these shaders become
// subtractions. TORCHETTE_FAULT: "lost" (a submission loses the device), "full" (allocations fail) or
// "storage" (the device stores float16 but does not compute with it).
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace {

PFN_vkGetInstanceProcAddr next_instance;
PFN_vkGetDeviceProcAddr next_device;
PFN_vkGetPhysicalDeviceFeatures2 next_features;
VkDevice device;

bool is_set(const char* name, const char* value) {
  const char* const found = getenv(name);
  return found != nullptr && strcmp(found, value) == 0;
}

/// Whether the code is that of a file in the variable.
bool is_named(const VkShaderModuleCreateInfo& info) {
  if (is_set("TORCHETTE_FAULT_SHADERS", "all")) return true;
  const char* const names = getenv("TORCHETTE_FAULT_SHADERS");
  std::istringstream all(names == nullptr ? "" : names);
  for (std::string name; std::getline(all, name, ':');) {
    std::ifstream file(name, std::ios::binary);
    const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    if (bytes.size() == info.codeSize && memcmp(bytes.data(), info.pCode, info.codeSize) == 0) return true;
  }
  return false;
}

/// Replaces float additions by subtractions, or integer additions if there are no float additions.
void spoil(std::vector<uint32_t>& words) {
  constexpr uint32_t kFAdd = 129, kFSub = 131, kIAdd = 128, kISub = 130, kExtInst = 12, kFma = 50, kFMix = 46;
  bool found = false;
  for (const bool whole : {false, true}) {
    for (size_t at = 5; at < words.size() && !(whole && found); at += words[at] >> 16) {
      const uint32_t op = words[at] & 0xffff;
      if (op == (whole ? kIAdd : kFAdd)) {
        words[at] = (words[at] & 0xffff0000u) | (whole ? kISub : kFSub);
      } else if (!whole && op == kExtInst && words[at + 4] == kFma) {
        words[at + 4] = kFMix;
      } else {
        continue;
      }
      found = found || !whole;
    }
  }
}

VKAPI_ATTR VkResult VKAPI_CALL create_shader(VkDevice on, const VkShaderModuleCreateInfo* info,
                                             const VkAllocationCallbacks* callbacks, VkShaderModule* out) {
  const auto next = reinterpret_cast<PFN_vkCreateShaderModule>(next_device(on, "vkCreateShaderModule"));
  std::vector<uint32_t> words(info->pCode, info->pCode + info->codeSize / 4);
  if (is_named(*info)) spoil(words);
  VkShaderModuleCreateInfo changed = *info;
  changed.pCode = words.data();
  return next(on, &changed, callbacks, out);
}

VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t count, const VkSubmitInfo* infos,
                                      VkFence fence) {
  if (is_set("TORCHETTE_FAULT", "lost")) return VK_ERROR_DEVICE_LOST;
  return reinterpret_cast<PFN_vkQueueSubmit>(next_device(device, "vkQueueSubmit"))(queue, count, infos,
                                                                                   fence);
}

VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice on, const VkMemoryAllocateInfo* info,
                                        const VkAllocationCallbacks* callbacks, VkDeviceMemory* out) {
  if (is_set("TORCHETTE_FAULT", "full")) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
  return reinterpret_cast<PFN_vkAllocateMemory>(next_device(on, "vkAllocateMemory"))(on, info, callbacks,
                                                                                     out);
}

VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo* info,
                                               const VkAllocationCallbacks* callbacks, VkInstance* out) {
  auto* link =
      const_cast<VkLayerInstanceCreateInfo*>(static_cast<const VkLayerInstanceCreateInfo*>(info->pNext));
  while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO)
    link = const_cast<VkLayerInstanceCreateInfo*>(static_cast<const VkLayerInstanceCreateInfo*>(link->pNext));
  next_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
  link->u.pLayerInfo = link->u.pLayerInfo->pNext;
  const auto next = reinterpret_cast<PFN_vkCreateInstance>(next_instance(nullptr, "vkCreateInstance"));
  const VkResult result = next(info, callbacks, out);
  if (result == VK_SUCCESS)
    next_features = reinterpret_cast<PFN_vkGetPhysicalDeviceFeatures2>(
        next_instance(*out, "vkGetPhysicalDeviceFeatures2"));
  return result;
}

VkInstance of_device = nullptr;

VKAPI_ATTR void VKAPI_CALL features(VkPhysicalDevice physical, VkPhysicalDeviceFeatures2* out) {
  next_features(physical, out);
  for (auto* it = static_cast<VkBaseOutStructure*>(out->pNext); it != nullptr; it = it->pNext)
    if (is_set("TORCHETTE_FAULT", "storage") &&
        it->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES)
      reinterpret_cast<VkPhysicalDeviceShaderFloat16Int8Features*>(it)->shaderFloat16 = VK_FALSE;
}

VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo* info,
                                             const VkAllocationCallbacks* callbacks, VkDevice* out) {
  auto* link = const_cast<VkLayerDeviceCreateInfo*>(static_cast<const VkLayerDeviceCreateInfo*>(info->pNext));
  while (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO)
    link = const_cast<VkLayerDeviceCreateInfo*>(static_cast<const VkLayerDeviceCreateInfo*>(link->pNext));
  const PFN_vkGetInstanceProcAddr find = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
  next_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
  link->u.pLayerInfo = link->u.pLayerInfo->pNext;
  const auto next = reinterpret_cast<PFN_vkCreateDevice>(find(of_device, "vkCreateDevice"));
  const VkResult result = next(physical, info, callbacks, out);
  if (result == VK_SUCCESS) device = *out;
  return result;
}

PFN_vkVoidFunction ours(const char* name);

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL find_of_device(VkDevice on, const char* name) {
  const PFN_vkVoidFunction found = ours(name);
  return found != nullptr ? found : next_device(on, name);
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL find_of_instance(VkInstance instance, const char* name) {
  if (instance != nullptr) of_device = instance;
  const PFN_vkVoidFunction found = ours(name);
  return found != nullptr ? found : next_instance(instance, name);
}

PFN_vkVoidFunction ours(const char* name) {
  const struct {
    const char* name;
    PFN_vkVoidFunction function;
  } all[] = {
      {"vkCreateInstance", reinterpret_cast<PFN_vkVoidFunction>(create_instance)},
      {"vkCreateDevice", reinterpret_cast<PFN_vkVoidFunction>(create_device)},
      {"vkGetDeviceProcAddr", reinterpret_cast<PFN_vkVoidFunction>(find_of_device)},
      {"vkGetInstanceProcAddr", reinterpret_cast<PFN_vkVoidFunction>(find_of_instance)},
      {"vkGetPhysicalDeviceFeatures2", reinterpret_cast<PFN_vkVoidFunction>(features)},
      {"vkCreateShaderModule", reinterpret_cast<PFN_vkVoidFunction>(create_shader)},
      {"vkQueueSubmit", reinterpret_cast<PFN_vkVoidFunction>(submit)},
      {"vkAllocateMemory", reinterpret_cast<PFN_vkVoidFunction>(allocate)},
  };
  for (const auto& it : all)
    if (strcmp(it.name, name) == 0) return it.function;
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) VkResult
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface* it) {
  it->loaderLayerInterfaceVersion = 2;
  it->pfnGetInstanceProcAddr = find_of_instance;
  it->pfnGetDeviceProcAddr = find_of_device;
  it->pfnGetPhysicalDeviceProcAddr = nullptr;
  return VK_SUCCESS;
}
