// SPDX-License-Identifier: BSD-3-Clause
// In: the bytes of a delegate. Out: its values, calls and constants. Every read is checked.
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

  /// `bytes` and `named` must outlive this object. Error of this and the other methods:
  /// DelegateInvalidCompatibility.
  Error open(const void* bytes, size_t size, const NamedDataMap* named);

  /// False after a read outside of the payload.
  bool ok() const { return reader_.ok(); }
  flat::Tables values() const { return values_; }
  flat::Tables calls() const { return calls_; }
  size_t constants() const { return constants_.size(); }
  Span<const uint32_t> inputs() const { return inputs_; }
  Span<const uint32_t> outputs() const { return outputs_; }

  /// Finds the bytes of a constant, at least `size` of them. `named` owns the bytes if they are named data.
  /// Errors also: those of the named data.
  Error constant(uint32_t index, size_t size, const void** data, FreeableBuffer* named) const;

 private:
  const NamedDataMap* named_ = nullptr;
  const uint8_t* data_ = nullptr;  // of the constants after the graph
  size_t data_size_ = 0;
  flat::Reader reader_{nullptr, 0};
  flat::Tables values_, calls_, constants_;
  Span<const uint32_t> inputs_, outputs_;
};

}  // namespace vulkan
}  // namespace torchette
