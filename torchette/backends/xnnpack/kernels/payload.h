// SPDX-License-Identifier: BSD-3-Clause
// The bytes of a delegate come in; its values, nodes and constants go out, each checked as far as that needs
// no knowledge of who computes. Read by both runtimes: the one on the library, and the one on our own
// kernels.
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

constexpr uint32_t kNothing = UINT32_MAX;  // an id that names no value
constexpr size_t kMostDims = kMaxXnnpackDims;
/// A flag of XNNBatchMatrixMultiply that only our payloads have: SKIPS_ZEROS of operators/nodes.py.
constexpr uint32_t kSkipsZeros = uint32_t{1} << 30;

/// A value as the payload has it.
struct ValueRecord {
  explicit ValueRecord(const Table& entry) : outer(entry.table(fb::XValue::kXvalueUnion)) {}

  Table outer;  // with the scales, of a quantized one
  bool quantized = false;
  fb::XNNDatatype type = fb::XNNDatatype::xnn_datatype_invalid;
  Span<const uint32_t> dims;     // upper bounds where they vary
  uint64_t count = 1;            // of elements; at most 2^40
  uint32_t id = 0;               // how nodes name it: less than the number of values
  uint32_t argument = kNothing;  // its place among the delegate's, or kNothing
  bool is_result = false;        // of the two kinds of arguments
  uint32_t constant = 0;         // the index of its elements; 0 where it has none

  bool is_argument() const { return argument != kNothing; }
};

class Payload {
 public:
  Payload() = default;
  Payload(const Payload&) = delete;
  Payload& operator=(const Payload&) = delete;

  /// `bytes` and `named` must outlive this. Error: DelegateInvalidCompatibility, as of all that follow.
  Error open(const void* bytes, size_t size, const NamedDataMap* named);

  /// False once anything that was read was outside of the payload.
  bool ok() const { return reader_.ok(); }
  Table root() const { return root_; }
  Tables values() const { return values_; }
  Tables nodes() const { return nodes_; }
  /// The delegate's arguments.
  uint32_t externs() const { return externs_; }

  /// Also NotSupported: a kind of value that this release does not know.
  Error read_value(const Table& entry, ValueRecord* out) const;
  /// The bytes of a constant, at least `size` of them. Where they are named data, they are in `named`, and
  /// `key` is their name; else `named` stays empty. Errors: also those of the named data.
  Error constant(uint32_t index, size_t size, const void** data, FreeableBuffer* named,
                 Span<const char>* key);

 private:
  const NamedDataMap* named_ = nullptr;
  const uint8_t* data_ = nullptr;  // of constants behind the graph
  size_t data_size_ = 0;
  Reader reader_{nullptr, 0};
  Table root_ = Table::at(&reader_, 0);
  Tables values_, nodes_, constants_, buffers_;
  uint32_t externs_ = 0;
};

/// What a node's results are clamped to.
struct Limits {
  float low, high;
};
Limits limits_of(const Table& node);

}  // namespace xnnpack
}  // namespace torchette
