// SPDX-License-Identifier: BSD-3-Clause
// The bytes of a delegate come in; its values, calls and constants go out, each read through a checked view.
#pragma once

#include "torchette/runtime/backend.h"
#include "torchette/runtime/flat.h"
#include "torchette/schema/vulkan.h"

namespace torchette {
namespace vulkan {

namespace fb = schema::vulkan;

class Payload {
 public:
  Payload() = default;
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;

  /// `bytes` and `named` must outlive this. Error: DelegateInvalidCompatibility, as of all that follow.
  Error open(const void* bytes, size_t size, const NamedDataMap* named);

  /// False once anything that was read was outside of the payload.
  bool ok() const { return reader_.ok(); }
  flat::Tables values() const { return values_; }
  flat::Tables calls() const { return calls_; }
  size_t constants() const { return constants_.size(); }
  Span<const uint32_t> inputs() const { return inputs_; }
  Span<const uint32_t> outputs() const { return outputs_; }

  /// The bytes of a constant, at least `size` of them; `named` holds them where they are named data.
  /// Errors: also those of the named data.
  Error constant(uint32_t index, size_t size, const void** data, FreeableBuffer* named) const;

 private:
  const NamedDataMap* named_ = nullptr;
  const uint8_t* data_ = nullptr;  // of constants behind the graph
  size_t data_size_ = 0;
  flat::Reader reader_{nullptr, 0};
  flat::Tables values_, calls_, constants_;
  Span<const uint32_t> inputs_, outputs_;
};

}  // namespace vulkan
}  // namespace torchette
