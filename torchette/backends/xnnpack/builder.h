// SPDX-License-Identifier: BSD-3-Clause
// What reads a payload: values.cpp its values, layers.cpp layers with weights and pools, nodes.cpp the table
// of all other nodes.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "torchette/backends/xnnpack/graph.h"
#include "torchette/backends/xnnpack/kernels/payload.h"
#include "torchette/runtime/dtype.h"

#define TORCHETTE_XNN(call)                                                            \
  do {                                                                                 \
    const xnn_status status = (call);                                                  \
    TORCHETTE_CHECK(status == xnn_status_success, DelegateInvalidCompatibility,        \
                    "XNNPACK refuses %s: status %d", #call, static_cast<int>(status)); \
  } while (0)
namespace torchette {
namespace xnnpack {

// Of a mapped file one page that is read may bring so many bytes into memory.
constexpr size_t kRegion = size_t{2} << 20;

/// A value of the payload.
struct Defined {
  bool present = false;
  bool tapped = false;
  bool constant = false;
  bool result = false;     // of the graph
  bool is_packed = false;  // weights
  bool read = false;       // by a node
  bool made = false;       // by a node
  bool ready = false;      // has its elements before the next node runs
  xnn_datatype type = xnn_datatype_invalid;
  size_t channel_dim = 0;  // of scales, where there is one for each channel
  size_t inner_dims = 0;   // quantized together, of a value that is quantized when the graph runs
  uint32_t id = XNN_INVALID_VALUE_ID;
  uint32_t external = XNN_INVALID_VALUE_ID;
  std::vector<size_t> dims;
  const void* data = nullptr;  // of a constant
  size_t buffer = SIZE_MAX;    // its place among the named data
};
inline bool is_aligned(const void* data, size_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

inline size_t product(const std::vector<size_t>& dims) {
  size_t n = 1;
  for (size_t d : dims) n *= d;  // bounded by the caller
  return n;
}
/// Of an element.
size_t bits(xnn_datatype type);
/// Of a value that is plain: floats, or integers with one scale.
bool is_plain(xnn_datatype type);
ScalarType argument_type(xnn_datatype type);

/// A node of the payload: its fields, and what its results are clamped to.
struct Definition {
  Node kind;
  Table n;
  float low, high;
};

class Builder {
 public:
  Builder(const FreeableBuffer& processed, const NamedDataMap* named, bool taps, Graph* graph)
      : processed_(processed), named_(named), taps_(taps), out_(*graph) {}

  Error build();

 private:
  /// The bytes of constant `index`, at least `size` of them.
  Error constant(uint32_t index, size_t size, const void** data, bool is_packed = false);
  Error scales(const Table& quant, uint16_t inline_slot, uint16_t index_slot, size_t item, size_t count,
               const void** data);
  void find_weights(const Table& entry);
  Error find_taps(const Table& root);
  void finish_taps();
  Error value(const Table& entry);
  Error read_elements(const ValueRecord& record, Defined& it);
  Error define_quantized(const Table& outer, uint32_t flags, bool is_external, Defined& it);
  Error define_per_channel(const Table& quant, uint32_t flags, Defined& it);
  Error define_per_group(const Table& quant, uint32_t flags, Defined& it);
  Error define_dynamic(const Table& quant, uint32_t flags, bool is_external, Defined& it);

  /// What a node may read: numbers that stand for themselves or have one scale; those and rows that are
  /// quantized when the graph runs; weights, of any type.
  enum class Reads { Plain, Rows, Weights };
  /// The library's id of a value that a node reads; null in `found` where the node may go without it.
  Error find(const Table& table, uint16_t slot, uint32_t* id, const Defined** found = nullptr,
             Reads reads = Reads::Plain, bool optional = false);
  /// The library's id of a value that a node writes: one that nobody wrote before.
  Error make(const Table& table, uint16_t slot, uint32_t* id, bool rows = false);
  Error sizes(const Table& table, uint16_t slot, size_t expected, size_t (&out)[XNN_MAX_TENSOR_DIMS]);
  /// What the node does to sizes.
  void step(Step::Kind kind, const Table& n, std::initializer_list<uint16_t> inputs, uint16_t output,
            std::vector<uint64_t> numbers = {});
  void same(const Table& n, uint16_t input = fb::XNNSigmoid::kInputId,
            uint16_t output = fb::XNNSigmoid::kOutputId);
  /// The library's convolutions in half precision take weights in float32 only, and pack them as halves.
  Error widen(const Defined& weights, uint32_t* id);
  /// How a node packs its weights goes into what tells them apart; two nodes that differ in it share nothing.
  void packed_as(const Defined& weights, std::string how);
  void multiplies(const Defined& source, const Defined& weights, const Defined* added, bool in_place);
  /// Lets weights be packed that would keep more of a file in memory than they are.
  void choose_in_place();

  /// A sigmoid that nobody has read yet: x times sigmoid(x) is one operation.
  struct Gate {
    uint32_t source;  // as the payload calls it
    uint32_t in, out;
    Origin origin;
  };
  /// Has the sigmoid that makes this value computed, if it was put off.
  Error define_gate(uint32_t name);
  bool is_float(uint32_t name) const;

  /// The table of nodes.
  struct Kind;
  static const Kind* find_kind(Node kind);
  Error node(const Table& entry);
  Error defined_unary(const Table& n, xnn_unary_operator op, const xnn_unary_params* params, uint16_t input,
                      uint16_t output);

  // What the table names; the number is the row's.
  Error unary(const Definition& d, int number);
  Error clamp(const Definition& d, int number);
  Error sigmoid(const Definition& d, int number);
  Error leaky_relu(const Definition& d, int number);
  Error elu(const Definition& d, int number);
  Error binary(const Definition& d, int number);
  Error multiply(const Definition& d, int number);
  Error copy(const Definition& d, int number);
  Error softmax(const Definition& d, int number);
  Error mean(const Definition& d, int number);
  Error concatenate(const Definition& d, int number);
  Error convolution(const Definition& d, int number);
  Error pool(const Definition& d, int number);
  Error fully_connected(const Definition& d, int number);
  Error product_of_matrices(const Definition& d, int number);
  Error attention(const Definition& d, int number);
  Error transpose(const Definition& d, int number);
  Error reshape(const Definition& d, int number);
  Error slice(const Definition& d, int number);
  Error pad(const Definition& d, int number);
  Error resize(const Definition& d, int number);

  const FreeableBuffer& processed_;
  const NamedDataMap* named_;
  bool taps_;
  Graph& out_;
  Payload payload_;
  std::vector<Defined> known_;
  std::string key_;                          // of the constant that was read last; empty if it has none
  std::map<uint32_t, Gate> gates_;           // by the name of what they make
  std::map<const void*, std::string> uses_;  // weights -> how they are packed
};

}  // namespace xnnpack
}  // namespace torchette
