// SPDX-License-Identifier: BSD-3-Clause
// Loads a library of custom operators with dlopen() and registers its kernels.
#include "torchette/extension/custom_library.h"

#if __has_include(<dlfcn.h>) && !defined(__wasi__)
#include <dlfcn.h>
#define TORCHETTE_CAN_LOAD
#endif

namespace torchette::extension {

Result<const CustomLibrary*> load_custom_library(const char* path, const PalImpl& log,
                                                 std::vector<Kernels>* added) {
#ifdef TORCHETTE_CAN_LOAD
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    TORCHETTE_LOG(Error, "cannot load %s: %s", path, dlerror());
    return Error::AccessFailed;
  }
  const auto* library = static_cast<const CustomLibrary*>(dlsym(handle, "torchette_custom_library"));
  if (library == nullptr || library->layout != kCustomLayout) {
    TORCHETTE_LOG(
        Error, "%s %s: build it with `torchette custom build`", path,
        library == nullptr ? "contains no operators" : "was built for another version of the runtime");
    dlclose(handle);
    return Error::InvalidExternalData;
  }
  library->register_pal(log);
  while (KernelNode* const node = *library->kernels) {
    TORCHETTE_TRY(register_node(*node));
    if (added != nullptr) added->push_back(node->registration.kernels);
    *library->kernels = node->next;
  }
  return library;
#else
  static_cast<void>(log), static_cast<void>(added);
  TORCHETTE_LOG(Error, "cannot load %s: this platform has no dynamic libraries; link the operators", path);
  return Error::NotSupported;
#endif
}

}  // namespace torchette::extension
