// SPDX-License-Identifier: BSD-3-Clause
// From the bytes of a delegate to a subgraph of the library. The bytes are hostile: every number that the
// library would believe is checked here.
#pragma once

#include <xnnpack.h>

#include <deque>
#include <vector>

#include "torchette/backends/xnnpack/packed_weights.h"
#include "torchette/backends/xnnpack/profile.h"
#include "torchette/backends/xnnpack/shapes.h"
#include "torchette/runtime/backend.h"

namespace torchette {
namespace xnnpack {

/// An argument of the delegate.
struct External {
  uint32_t id;               // its place among the arguments
  uint32_t value;            // its place among the values
  ScalarType type;           // of its elements
  std::vector<size_t> dims;  // as compiled: upper bounds where they vary
};

/// The result of a node of the program, for a tracer that asks for those inside.
struct Tap {
  uint32_t debug_handle;  // of the node
  uint32_t value;         // its place among the values
  uint32_t id;            // an argument, or where the library writes to memory of the tap
  uint8_t layout;         // as in the payload
  ScalarType type;
};

/// Named data, and whether they are read when the graph runs; the others the library packs.
struct Constant {
  FreeableBuffer bytes;
  bool stays = false;
  size_t readers = 0;  // nodes that pack them
};

/// A subgraph, and what its values point into.
struct Graph {
  xnn_subgraph_t subgraph = nullptr;
  std::vector<External> inputs, outputs;
  std::vector<Step> steps;      // one for each node
  std::vector<Origin> origins;  // likewise
  std::vector<Tap> taps;        // where they are asked for
  uint32_t tapped = 0;          // values that are in memory of taps, with the ids behind the arguments
  std::vector<Dims> sizes;      // of all values, as compiled: upper bounds where they vary
  std::deque<Constant> constants;
  std::vector<std::vector<char>> copies;    // of constants that nodes read when the graph runs
  std::vector<std::vector<float>> widened;  // weights in half precision that the library wants in float32
  Identities identities;                    // of the weights
  std::vector<Matrix> matrices;             // of them
  size_t constant_bytes = 0;
  bool needs_bytes = false;  // whether constants stand in the processed bytes themselves

  /// Weights that were packed; the bytes go if no other node packs them.
  void packed(const void* data) {
    for (Constant& it : constants)
      if (it.bytes.data() == data && !it.stays && it.readers == 1) it.bytes.Free();
  }

  /// To be called when the library has made its runtime of the subgraph: what that needs no more.
  void shrink() {
    xnn_delete_subgraph(subgraph);
    subgraph = nullptr;
    identities.clear();
    matrices.clear();
    widened.clear();
    for (Constant& it : constants)
      if (!it.stays) it.bytes.Free();
  }

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (subgraph != nullptr) xnn_delete_subgraph(subgraph);
  }
};

/// Errors: DelegateInvalidCompatibility (not a payload of this version, or damaged), NotSupported (a node or
/// a type that this build does not have), those of the named data. `taps`: whether results inside are to be
/// seen from outside. Then none of them is fused away.
Error read_graph(const FreeableBuffer& processed, const NamedDataMap* named_data, bool taps, Graph* out);

}  // namespace xnnpack
}  // namespace torchette
