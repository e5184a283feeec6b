// SPDX-License-Identifier: BSD-3-Clause
// The Vulkan backend: runs ExecuTorch's Vulkan payloads on the device of the process, or on the CPU if there
// is no device.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "torchette/backends/vulkan/kernels/graph_reader.h"
#include "torchette/runtime/backend_options.h"
#ifdef TORCHETTE_VULKAN_DEVICE  // otherwise only the CPU runs payloads
#include "torchette/backends/vulkan/cache.h"
#include "torchette/backends/vulkan/graph.h"
#endif

namespace torchette {
namespace {

#ifdef TORCHETTE_VULKAN_DEVICE
using vulkan::Device;
#endif

std::atomic<bool> is_device_disabled{false};

/// A delegate on the device or on the CPU.
struct Loaded {
#ifdef TORCHETTE_VULKAN_DEVICE
  std::unique_ptr<vulkan::Graph> graph;
#endif
  vulkan::KernelMethod kernels;
};

/// Whether the program has another plan for the method, which does not use this backend.
bool has_fallback(const BackendInitContext& context) {
  const Program* const program = context.get_program();
  if (program == nullptr) return false;
  const std::string fallback_name = std::string(context.get_method_name()) + kPortable;
  for (size_t i = 0; i < program->num_methods(); ++i) {
    const Result<const char*> name = program->get_method_name(i);
    if (name.ok() && fallback_name == *name) return true;
  }
  return false;
}

class VulkanBackend final : public BackendInterface {
 public:
#ifdef TORCHETTE_VULKAN_DEVICE
  bool is_available() const override { return Device::get() != nullptr; }
#else
  bool is_available() const override { return false; }
#endif
  bool can_load() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec>) const override {
    void* const memory = context.get_runtime_allocator()->allocate(sizeof(Loaded), alignof(Loaded));
    if (memory == nullptr) return Error::MemoryAllocationFailed;
    auto* const loaded = new (memory) Loaded;
    Error error = load(context, *processed, loaded);
    // The CPU runs the payload, unless it is damaged.
    if (error == Error::NotSupported && !has_fallback(context)) {
      error = vulkan::GraphReader(context).load(processed->data(), processed->size(), &loaded->kernels);
      if (error == Error::Ok)
        TORCHETTE_LOG(Error, "%s runs on the processor, without Vulkan", context.get_method_name());
      if (error == Error::Ok && !loaded->kernels.needs_bytes) processed->Free();
    }
    if (error != Error::Ok) {
      loaded->~Loaded();
      return error;
    }
    return static_cast<DelegateHandle*>(loaded);
  }

  size_t num_inputs(DelegateHandle* handle) const override {
    const auto* const loaded = static_cast<Loaded*>(handle);
#ifdef TORCHETTE_VULKAN_DEVICE
    if (loaded->graph != nullptr) return loaded->graph->inputs();
#endif
    return loaded->kernels.method->num_inputs();
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle,
                Span<Value*> arguments) const override {
    auto* const loaded = static_cast<Loaded*>(handle);
#ifdef TORCHETTE_VULKAN_DEVICE
    if (loaded->graph != nullptr) return loaded->graph->execute(arguments, context.event_tracer());
#endif
    return loaded->kernels.method->execute(context, arguments);
  }

  /// "device": "" (the best device) or "none" (the CPU), for methods that are loaded afterwards.
  /// "cache_folder": the folder for test results of drivers and compiled shaders; "" stores nothing.
  Error set_option(BackendOptionContext&, const Span<BackendOption>& options) override {
    for (const BackendOption& option : options) {
      const auto* text = std::get_if<std::array<char, kMaxOptionValueLength>>(&option.value);
      const bool is_device = strcmp(option.key, "device") == 0;
      TORCHETTE_CHECK(is_device || strcmp(option.key, "cache_folder") == 0, NotSupported,
                      "Vulkan has no option %.63s that can be set; it has device, cache_folder", option.key);
      TORCHETTE_CHECK(text != nullptr, InvalidArgument, "Vulkan's %.63s must be a string", option.key);
      TORCHETTE_CHECK(
          !is_device || text->front() == 0 || strcmp(text->data(), "none") == 0, InvalidArgument,
          "Vulkan's device must be \"\" (the best device) or \"none\" (the processor), not \"%.63s\"",
          text->data());
      if (is_device) is_device_disabled = text->front() != 0;
#ifdef TORCHETTE_VULKAN_DEVICE
      if (!is_device) vulkan::set_cache_folder(text->data());
#endif
    }
    return Error::Ok;
  }

#ifdef TORCHETTE_VULKAN_DEVICE
  /// "device": its name. "quarantined": the shaders that its driver computes wrongly, separated by commas.
  /// "counts": dispatches, barriers and bytes of the graph that was recorded last.
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
      } else {
        TORCHETTE_LOG(Error, "Vulkan has no option %.63s; it has device, cache_folder, quarantined, counts",
                      option.key);
        return Error::NotSupported;
      }
      std::array<char, kMaxOptionValueLength> text{};
      memcpy(text.data(), found.data(), std::min(found.size(), text.size() - 1));
      option.value = text;
    }
    return Error::Ok;
  }
#endif

  void destroy(DelegateHandle* handle) const override { static_cast<Loaded*>(handle)->~Loaded(); }

  Error reset(DelegateHandle* handle) const override {
    Loaded* const loaded = static_cast<Loaded*>(handle);
#ifdef TORCHETTE_VULKAN_DEVICE
    if (loaded->graph != nullptr) return loaded->graph->reset();
#endif
    return loaded->kernels.method->reset();
  }

 private:
  static Error load(const BackendInitContext& context, const FreeableBuffer& processed, Loaded* out) {
#ifdef TORCHETTE_VULKAN_DEVICE
    const std::shared_ptr<Device> device = is_device_disabled ? nullptr : Device::get();
    if (device != nullptr) {
      out->graph.reset(new (std::nothrow) vulkan::Graph(device));
      const Error error = out->graph == nullptr ? Error::MemoryAllocationFailed
                                                : out->graph->open(processed.data(), processed.size(),
                                                                   context.get_named_data_map());
      if (error != Error::Ok) out->graph.reset();
      return error;
    }
#endif
    (void)context, (void)processed, (void)out;
    TORCHETTE_LOG(Error, "there is no device for VulkanBackend");
    return Error::NotSupported;
  }
};

VulkanBackend backend;

// The programs that GraphReader writes call these kernels.
KernelRegistration kernels{vulkan::payload_kernels()};
[[maybe_unused]] const Error registered = register_kernels(kernels);

}  // namespace

Backend vulkan_backend{"VulkanBackend", &backend};

}  // namespace torchette
