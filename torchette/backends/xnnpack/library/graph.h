// SPDX-License-Identifier: BSD-3-Clause
// LibraryGraph: converts a payload to a subgraph of XNNPACK.
#pragma once

#include <xnnpack.h>

#include <deque>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "torchette/backends/xnnpack/kernels/payload.h"

namespace torchette {
namespace xnnpack {

using Dims = std::vector<size_t>;

/// An argument of the delegate.
struct External {
  uint32_t id;     // index of the argument
  uint32_t value;  // index of the value
  ScalarType type;
};

/// The node that an operator of the library belongs to.
struct Origin {
  uint32_t debug_handle;
  /// The first words of the operator's name if the library may fuse it into another operator; else null.
  const char* fusible;
};

class LibraryGraph {
 public:
  LibraryGraph() = default;
  LibraryGraph(const LibraryGraph&) = delete;
  LibraryGraph& operator=(const LibraryGraph&) = delete;
  ~LibraryGraph() { release_subgraph(); }

  /// Defines the subgraph. Errors: NotSupported (the library cannot run the payload as eager does, or the
  /// payload does not verify; `reason()` says why and nothing is logged), those of Payload.
  Error read(const FreeableBuffer& processed, const NamedDataMap* named);
  const std::string& reason() const { return reason_; }

  xnn_subgraph_t subgraph() const { return subgraph_; }
  const std::vector<External>& inputs() const { return inputs_; }
  const std::vector<External>& outputs() const { return outputs_; }
  const std::vector<Origin>& origins() const { return origins_; }
  /// The sizes of all values as compiled: upper bounds if they vary.
  std::vector<Dims> sizes() const;
  /// Computes the sizes of the results of all nodes. `sizes` contains those of inputs and constants. The
  /// library assumes that sizes fit its nodes, so it runs only after this returns true.
  bool find_sizes(std::vector<Dims>* sizes) const;

  /// Releases what only the creation of the library's runtime reads.
  void release_subgraph();

 private:
  struct Value {
    bool is_present = false;
    bool is_packed = false;  // a filter or bias: the library copies it when it creates the runtime
    bool is_ready = false;   // a node may read it
    bool is_read = false;
    bool is_result = false;  // of the graph
    bool is_made = false;    // a node writes it
    bool is_constant = false;
    xnn_datatype type = xnn_datatype_invalid;
    size_t channel_dim = SIZE_MAX;  // of scales per channel
    uint32_t id = XNN_INVALID_VALUE_ID;
    Dims dims;
    const void* data = nullptr;
  };
  /// A value that a node reads or writes.
  struct Operand {
    uint32_t name = kNoValue;  // index of the value
    uint32_t id = XNN_INVALID_VALUE_ID;
    const Value* value = nullptr;
  };
  struct Definition {
    Table n;
    Limits limits;
    Node kind;
    int code;  // of the row in xnnpack.def
  };
  struct Kind;
  static const Kind* find_kind(Node kind);
  /// Computes the sizes of a node's result. `out` contains the sizes of its first input. Returns false if the
  /// sizes do not fit the node.
  using SizesFunction = std::function<bool(const std::vector<Dims>& sizes, Dims* out)>;
  struct Step {
    uint32_t input, output;
    SizesFunction sizes;
  };

  void find_packed(const Table& entry);
  Error read_value(const Table& entry);
  Error define_value(const ValueRecord& record, uint32_t flags, Value* it);
  Error constant(uint32_t index, size_t size, size_t item, bool is_packed, const void** data);
  Error read_node(const Table& entry);

  Error input(const Table& n, uint16_t slot, Operand* out);
  Error weight(const Table& n, uint16_t slot, bool is_optional, Operand* out);
  Error output(const Table& n, uint16_t slot, Operand* out);
  /// The input and output of a node of one operand.
  Error operands(const Table& n, uint16_t from, uint16_t to, Operand* in, Operand* out);
  void step(const Operand& in, const Operand& out, SizesFunction sizes);
  Error checked(xnn_status status);

  // The functions that xnnpack.def names.
  Error kernels_only(const Definition& d);
  Error unary(const Definition& d);
  Error clamp(const Definition& d);
  Error leaky_relu(const Definition& d);
  Error elu(const Definition& d);
  Error define_unary(const Definition& d, xnn_unary_operator op, const xnn_unary_params* params,
                     uint16_t from, uint16_t to);
  using Define = xnn_status (*)(xnn_subgraph_t, uint32_t input, uint32_t output, uint32_t flags);
  Error same_sizes(const Table& n, uint16_t from, uint16_t to, Define define);
  Error binary(const Definition& d);
  Error copy(const Definition& d);
  Error softmax(const Definition& d);
  Error mean(const Definition& d);
  Error concatenate(const Definition& d);
  Error convolution(const Definition& d);
  Error fully_connected(const Definition& d);
  Error matmul(const Definition& d);
  Error transpose(const Definition& d);
  Error reshape(const Definition& d);
  Error slice(const Definition& d);
  Error pad(const Definition& d);

  Payload payload_;
  xnn_subgraph_t subgraph_ = nullptr;
  std::vector<Value> values_;
  std::vector<Step> steps_;
  std::vector<External> inputs_, outputs_;
  std::vector<Origin> origins_;
  std::deque<FreeableBuffer> buffers_;    // of packed constants
  std::deque<std::vector<char>> copies_;  // of constants that nodes read when the graph runs
  std::string reason_;
};

}  // namespace xnnpack
}  // namespace torchette
