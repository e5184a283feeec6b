// SPDX-License-Identifier: BSD-3-Clause
// In: the bytes of a delegate. Out: its values, nodes and constants, with the checks that both runtimes need:
// the runtime on XNNPACK's library and the runtime on our kernels.
#pragma once

#include "torchette/runtime/backend.h"
#include "torchette/runtime/flat.h"
#include "torchette/schema/xnnpack.h"

namespace torchette {
namespace xnnpack {

namespace fb = schema::xnnpack;
using flat::Reader;
using flat::Table;
using flat::Tables;
using Node = fb::XNodeUnion;

constexpr uint32_t kNoValue = UINT32_MAX;  // the id of an absent value
constexpr size_t kMaxDims = kMaxXnnpackDims;
/// A flag of XNNBatchMatrixMultiply that only our payloads have: SKIPS_ZEROS of operators/nodes.py.
constexpr uint32_t kSkipsZeros = uint32_t{1} << 30;

/// A value of the payload.
struct ValueRecord {
  explicit ValueRecord(const Table& entry) : outer(entry.table(fb::XValue::kXvalueUnion)) {}

  Table outer;  // contains the scales of a quantized value
  bool quantized = false;
  fb::XNNDatatype type = fb::XNNDatatype::xnn_datatype_invalid;
  Span<const uint32_t> dims;     // upper bounds of dynamic sizes
  uint64_t count = 1;            // of elements; at most 2^40
  uint32_t id = 0;               // nodes refer to it; less than the number of values
  uint32_t argument = kNoValue;  // index among the delegate's arguments, or kNoValue
  bool is_result = false;        // an output of the delegate
  uint32_t constant = 0;         // index of its data; 0: not a constant

  bool is_argument() const { return argument != kNoValue; }
};

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
  Table root() const { return root_; }
  Tables values() const { return values_; }
  Tables nodes() const { return nodes_; }
  /// The number of the delegate's arguments.
  uint32_t externs() const { return externs_; }

  /// Error also: NotSupported (a kind of value that this release does not have).
  Error read_value(const Table& entry, ValueRecord* out) const;
  /// Finds the bytes of a constant, at least `size` of them. If the constant is named data, `named` owns the
  /// bytes and `key` is their name; otherwise `named` stays empty. Errors also: those of the named data.
  Error constant(uint32_t index, size_t size, const void** data, FreeableBuffer* named,
                 Span<const char>* key);

 private:
  const NamedDataMap* named_ = nullptr;
  const uint8_t* data_ = nullptr;  // of the constants after the graph
  size_t data_size_ = 0;
  Reader reader_{nullptr, 0};
  Table root_ = Table::at(&reader_, 0);
  Tables values_, nodes_, constants_, buffers_;
  uint32_t externs_ = 0;
};

/// The range of a node's results.
struct Limits {
  float low, high;
};
Limits limits_of(const Table& node);

}  // namespace xnnpack
}  // namespace torchette
