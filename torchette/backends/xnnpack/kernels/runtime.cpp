// SPDX-License-Identifier: BSD-3-Clause
// The XNNPACK backend where the library is absent: a payload becomes a method that calls our own kernels.
#include <new>

#include "torchette/backends/xnnpack/kernels/graph_reader.h"
#include "torchette/runtime/backend_options.h"

namespace torchette {
namespace {

using xnnpack::Loaded;

class XnnpackBackend final : public BackendInterface {
 public:
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec>) const override {
    void* const memory = context.get_runtime_allocator()->allocate(sizeof(Loaded), alignof(Loaded));
    if (memory == nullptr) return Error::MemoryAllocationFailed;
    auto* const loaded = new (memory) Loaded;
    const Error error = xnnpack::GraphReader(context).load(*processed, loaded);
    if (error != Error::Ok) {
      loaded->~Loaded();
      return error;
    }
    if (!loaded->needs_bytes) processed->Free();
    return static_cast<DelegateHandle*>(loaded);
  }

  size_t num_inputs(DelegateHandle* handle) const override {
    return static_cast<const Loaded*>(handle)->method->num_inputs();
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle,
                Span<Value*> arguments) const override {
    return static_cast<Loaded*>(handle)->method->execute(context, arguments);
  }

  void destroy(DelegateHandle* handle) const override { static_cast<Loaded*>(handle)->~Loaded(); }

  /// The options belong to XNNPACK's library.
  Error set_option(BackendOptionContext&, const Span<BackendOption>& options) override {
    TORCHETTE_CHECK(options.empty(), NotSupported, "without its library XNNPACK has no option %.63s to set",
                    options[0].key);
    return Error::Ok;
  }

  /// "library": whether XNNPACK's library computes, which has the other options.
  Error get_option(BackendOptionContext&, Span<BackendOption>& options) override {
    for (BackendOption& option : options) {
      TORCHETTE_CHECK(strcmp(option.key, "library") == 0, InvalidArgument,
                      "without its library XNNPACK has no option %.63s; it has library", option.key);
      option.value = false;
    }
    return Error::Ok;
  }
};

XnnpackBackend backend;

// Programs that payloads become name these kernels.
KernelRegistration kernels{xnnpack::own_kernels()};
[[maybe_unused]] const Error registered = register_kernels(kernels);

}  // namespace

Backend xnnpack_backend{"XnnpackBackend", &backend};

}  // namespace torchette
