// SPDX-License-Identifier: BSD-3-Clause
// Results inside of a graph, for a tracer: the library writes them to memory that stands here.
#pragma once

#include <xnnpack.h>

#include <vector>

#include "torchette/backends/xnnpack/graph.h"

namespace torchette {
namespace xnnpack {

class Taps {
 public:
  /// Those of a graph whose arguments have the ids before `first`; their places go into `pointers`.
  void learn(const Graph& graph, uint32_t first, std::vector<xnn_external_value>* pointers);
  /// Memory for what a runtime that has its shapes will write. Error: InvalidState (the library does not
  /// say).
  Error make_room(xnn_runtime_t runtime);
  /// Where the library writes the value of that id; null for an argument.
  void* data(uint32_t id) { return id < first_ ? nullptr : memory_[id - first_].data(); }
  /// Tells all of them, under the debug handles of their nodes, each with its dimensions in the order of the
  /// program. `sizes`: of all values; `arguments`: the tensors of the call.
  void tell(const std::vector<Dims>& sizes, Span<Value*> arguments, EventTracer* tracer);

 private:
  uint32_t first_ = UINT32_MAX;
  std::vector<Tap> taps_;
  std::vector<std::vector<char>> memory_;
  std::vector<char> moved_;
};

}  // namespace xnnpack
}  // namespace torchette
