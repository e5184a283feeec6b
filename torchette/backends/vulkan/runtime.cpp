// SPDX-License-Identifier: BSD-3-Clause
// The Vulkan backend: payloads as ExecuTorch has them, on the device of the process.
#include <algorithm>
#include <cstring>
#include <new>

#include "torchette/backends/vulkan/cache.h"
#include "torchette/backends/vulkan/graph.h"
#include "torchette/runtime/backend_options.h"

namespace torchette {
namespace {

using vulkan::Device;
using vulkan::Graph;

class VulkanBackend final : public BackendInterface {
 public:
  bool is_available() const override { return Device::get() != nullptr; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec>) const override {
    const std::shared_ptr<Device> device = Device::get();
    TORCHETTE_CHECK(device != nullptr, NotSupported, "there is no device for Vulkan");
    void* const memory = context.get_runtime_allocator()->allocate(sizeof(Graph), alignof(Graph));
    if (memory == nullptr) return Error::MemoryAllocationFailed;
    auto* const graph = new (memory) Graph(device);
    const Error error = graph->open(processed->data(), processed->size(), context.get_named_data_map());
    if (error != Error::Ok) {
      graph->~Graph();
      return error;
    }
    return static_cast<DelegateHandle*>(graph);
  }

  size_t num_inputs(DelegateHandle* handle) const override { return static_cast<Graph*>(handle)->inputs(); }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle,
                Span<Value*> arguments) const override {
    return static_cast<Graph*>(handle)->execute(arguments, context.event_tracer());
  }

  /// "cache_folder": where verdicts on drivers and compiled shaders are kept, "" for nowhere.
  Error set_option(BackendOptionContext&, const Span<BackendOption>& options) override {
    for (const BackendOption& option : options) {
      const auto* text = std::get_if<std::array<char, kMaxOptionValueLength>>(&option.value);
      if (strcmp(option.key, "cache_folder") != 0) return Error::NotSupported;
      if (text == nullptr) return Error::InvalidArgument;
      vulkan::set_cache_folder(text->data());
    }
    return Error::Ok;
  }

  /// Besides: "device", its name; "quarantined", the shaders that its driver gets wrong, by commas; "counts",
  /// dispatches, barriers and bytes of the graph that was recorded last.
  Error get_option(BackendOptionContext&, Span<BackendOption>& options) override {
    for (BackendOption& option : options) {
      std::string found;
      const std::shared_ptr<Device> device = Device::get();
      if (strcmp(option.key, "cache_folder") == 0)
        found = vulkan::cache_folder();
      else if (strcmp(option.key, "device") == 0)
        found = device == nullptr ? "" : device->name();
      else if (strcmp(option.key, "quarantined") == 0)
        found = device == nullptr ? "" : device->quarantined();
      else if (strcmp(option.key, "counts") == 0) {
        const vulkan::Counts it = device == nullptr ? vulkan::Counts() : device->counts();
        found = std::to_string(it.dispatches) + "," + std::to_string(it.barriers) + "," +
                std::to_string(it.bytes);
      } else
        return Error::NotSupported;
      std::array<char, kMaxOptionValueLength> text{};
      memcpy(text.data(), found.data(), std::min(found.size(), text.size() - 1));
      option.value = text;
    }
    return Error::Ok;
  }

  void destroy(DelegateHandle* handle) const override { static_cast<Graph*>(handle)->~Graph(); }

  Error reset(DelegateHandle* handle) const override { return static_cast<Graph*>(handle)->reset(); }
};

VulkanBackend backend;

}  // namespace

Backend vulkan_backend{"VulkanBackend", &backend};

}  // namespace torchette
