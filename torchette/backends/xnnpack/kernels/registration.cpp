// SPDX-License-Identifier: BSD-3-Clause
// The backend of a build without XNNPACK's library.
#include "torchette/backends/xnnpack/kernels/runtime.h"

namespace torchette {
namespace {

xnnpack::KernelsBackend backend;

}  // namespace

Backend xnnpack_backend{"XnnpackBackend", &backend};

}  // namespace torchette
