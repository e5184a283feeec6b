// SPDX-License-Identifier: BSD-3-Clause
// ATen mode for C++: methods that are loaded while an AtenScope lives run on the kernels of an installed
// torch. Link libtorchette_aten, which `torchette.build.aten` and CMake's -DTORCHETTE_ATEN=ON make, beside
// the runtime.
#pragma once

#include "torchette/extension/custom_library.h"

extern "C" {
/// Whether methods that this thread loads from now on run on torch's kernels; returns what was before.
bool torchette_aten_mode(bool on);
}

namespace torchette::extension {

/// Makes torch's kernels known to this runtime; a second time does nothing. Errors: those of
/// load_custom_library().
inline Error load_aten(const char* path = "libtorchette_aten.so", const PalImpl& log = {}) {
  return load_custom_library(path, log).error();
}

/// ATen mode of the thread that makes it, until it goes.
class AtenScope {
 public:
  AtenScope() : before_(torchette_aten_mode(true)) {}
  AtenScope(const AtenScope&) = delete;
  ~AtenScope() { torchette_aten_mode(before_); }

 private:
  bool before_;
};

}  // namespace torchette::extension
