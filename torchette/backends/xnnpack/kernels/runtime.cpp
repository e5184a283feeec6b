// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/xnnpack/kernels/runtime.h"

#include <new>

#include "torchette/backends/xnnpack/kernels/graph_reader.h"
#include "torchette/runtime/backend_options.h"

namespace torchette {
namespace xnnpack {

Result<DelegateHandle*> KernelsBackend::init(BackendInitContext& context, FreeableBuffer* processed,
                                             Span<const CompileSpec>) const {
  void* const memory = context.get_runtime_allocator()->allocate(sizeof(Loaded), alignof(Loaded));
  if (memory == nullptr) return Error::MemoryAllocationFailed;
  auto* const loaded = new (memory) Loaded;
  const Error error = GraphReader(context).load(*processed, loaded);
  if (error != Error::Ok) {
    loaded->~Loaded();
    return error;
  }
  if (!loaded->needs_bytes) processed->Free();
  return static_cast<DelegateHandle*>(loaded);
}

size_t KernelsBackend::num_inputs(DelegateHandle* handle) const {
  return static_cast<const Loaded*>(handle)->method->num_inputs();
}

Error KernelsBackend::execute(BackendExecutionContext& context, DelegateHandle* handle,
                              Span<Value*> arguments) const {
  return static_cast<Loaded*>(handle)->method->execute(context, arguments);
}

void KernelsBackend::destroy(DelegateHandle* handle) const { static_cast<Loaded*>(handle)->~Loaded(); }

Error KernelsBackend::set_option(BackendOptionContext&, const Span<BackendOption>& options) {
  TORCHETTE_CHECK(options.empty(), NotSupported,
                  "without its library XNNPACK has no option %.63s that can be set", options[0].key);
  return Error::Ok;
}

Error KernelsBackend::get_option(BackendOptionContext&, Span<BackendOption>& options) {
  for (BackendOption& option : options) {
    TORCHETTE_CHECK(strcmp(option.key, "library") == 0, InvalidArgument,
                    "without its library XNNPACK has no option %.63s; it has library", option.key);
    option.value = false;
  }
  return Error::Ok;
}

namespace {

// The programs that GraphReader writes call these kernels.
KernelRegistration kernels{payload_kernels()};
[[maybe_unused]] const Error registered = register_kernels(kernels);

}  // namespace

}  // namespace xnnpack
}  // namespace torchette
