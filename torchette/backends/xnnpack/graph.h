// SPDX-License-Identifier: BSD-3-Clause
// From the bytes of a delegate to a subgraph of the library. The bytes are hostile: every number that the
// library would believe is checked here.
#pragma once

#include <xnnpack.h>

#include <vector>

#include "torchette/runtime/backend.h"

namespace torchette {
namespace xnnpack {

/// An argument of the delegate.
struct External {
  uint32_t id;               // its place among the arguments
  ScalarType type;           // of its elements
  std::vector<size_t> dims;  // as compiled: upper bounds where they vary
};

/// A subgraph, and what its values point into.
struct Graph {
  xnn_subgraph_t subgraph = nullptr;
  std::vector<External> inputs, outputs;
  std::vector<FreeableBuffer> constants;  // named data
  bool needs_bytes = false;               // whether constants stand in the processed bytes themselves

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (subgraph != nullptr) xnn_delete_subgraph(subgraph);
  }
};

/// Errors: DelegateInvalidCompatibility (not a payload of this version, or damaged), NotSupported (a node or
/// a type that this build does not have), those of the named data.
Error read_graph(const FreeableBuffer& processed, const NamedDataMap* named_data, Graph* out);

}  // namespace xnnpack
}  // namespace torchette
