// SPDX-License-Identifier: BSD-3-Clause
// KernelsBackend: runs XNNPACK payloads on our own kernels.
#pragma once

#include "torchette/runtime/backend.h"

namespace torchette {
namespace xnnpack {

class KernelsBackend : public BackendInterface {
 public:
  bool is_available() const override { return true; }
  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec> specs) const override;
  size_t num_inputs(DelegateHandle* handle) const override;
  Error execute(BackendExecutionContext& context, DelegateHandle* handle,
                Span<Value*> arguments) const override;
  void destroy(DelegateHandle* handle) const override;
  /// Error: NotSupported (the options belong to XNNPACK's library).
  Error set_option(BackendOptionContext& context, const Span<BackendOption>& options) override;
  /// The option "library" is false. Error: InvalidArgument (another option).
  Error get_option(BackendOptionContext& context, Span<BackendOption>& options) override;
};

}  // namespace xnnpack
}  // namespace torchette
