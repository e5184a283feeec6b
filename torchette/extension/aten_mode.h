// SPDX-License-Identifier: BSD-3-Clause
// ATen mode for C++: methods that are loaded during the lifetime of an AtenScope run on the kernels of an
// installed torch. Link libtorchette_aten in addition to the runtime. `torchette.build.aten` and CMake's
// -DTORCHETTE_ATEN=ON build it.
#pragma once

#include "torchette/extension/custom_library.h"

extern "C" {
/// Sets whether methods that this thread loads after the call run on torch's kernels. Returns the previous
/// setting.
bool torchette_aten_mode(bool on);
}

namespace torchette::extension {

/// Registers torch's kernels with this runtime. Further calls have no effect. Errors: those of
/// load_custom_library().
inline Error load_aten(const char* path = "libtorchette_aten.so", const PalImpl& log = {}) {
  return load_custom_library(path, log).error();
}

/// Turns on ATen mode for the current thread and restores the previous mode in its destructor.
class AtenScope {
 public:
  AtenScope() : before_(torchette_aten_mode(true)) {}
  AtenScope(const AtenScope&) = delete;
  ~AtenScope() { torchette_aten_mode(before_); }

 private:
  bool before_;
};

}  // namespace torchette::extension
