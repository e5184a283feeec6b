// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's function that returns the file of an address.
#pragma once

#include "torchette/extension/compat/runtime.h"

#if defined(ET_USE_LIBDL)
#include <dlfcn.h>
#endif

static constexpr const char* DYNAMIC_LIBRARY_NOT_SUPPORTED = "NOT_SUPPORTED";
static constexpr const char* DYNAMIC_LIBRARY_NOT_FOUND = "NOT_FOUND";

extern "C" {

/// Returns the path of the shared library or program that contains `address`. A program that defines
/// ET_USE_LIBDL links the system's dl library.
inline const char* et_pal_get_shared_library_name([[maybe_unused]] const void* address) {
#if defined(ET_USE_LIBDL)
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname
                                                                  : DYNAMIC_LIBRARY_NOT_FOUND;
#else
  return DYNAMIC_LIBRARY_NOT_SUPPORTED;
#endif
}
}
