// SPDX-License-Identifier: BSD-3-Clause
// The Vulkan backend: payloads as ExecuTorch has them, on the device of the process.
#include <new>

#include "torchette/backends/vulkan/graph.h"

namespace torchette {
namespace {

using vulkan::Device;
using vulkan::Graph;

class VulkanBackend final : public BackendInterface {
 public:
  bool is_available() const override { return Device::get() != nullptr; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec>) const override {
    Device* const device = Device::get();
    TORCHETTE_CHECK(device != nullptr, NotSupported, "there is no device for Vulkan");
    void* const memory = context.get_runtime_allocator()->allocate(sizeof(Graph), alignof(Graph));
    if (memory == nullptr) return Error::MemoryAllocationFailed;
    auto* const graph = new (memory) Graph(*device);
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

  void destroy(DelegateHandle* handle) const override { static_cast<Graph*>(handle)->~Graph(); }
};

VulkanBackend backend;

}  // namespace

Backend vulkan_backend{"VulkanBackend", &backend};

}  // namespace torchette
