// SPDX-License-Identifier: BSD-3-Clause
// What the library measured of its operators, for a tracer. It measures only in a runtime that was made for
// it.
#pragma once

#include <xnnpack.h>

#include <vector>

#include "torchette/runtime/tracer.h"

namespace torchette {
namespace xnnpack {

/// A node that operators of the library come from.
struct Origin {
  uint32_t debug_handle;
  /// How the name of its operator begins, where the library may fuse it into a neighbour; else null.
  const char* fusible;
};

class Profile {
 public:
  /// The operators of a runtime that was made with XNN_FLAG_BASIC_PROFILING from these nodes, in this order.
  void learn(xnn_runtime_t runtime, const std::vector<Origin>& origins);
  /// The times of its last execution, which began at `start`: one event for each operator, under its name and
  /// the debug handle of its node. The library counts in microseconds.
  void tell(xnn_runtime_t runtime, torchette_timestamp_t start, EventTracer* tracer);

 private:
  std::vector<char> names_;        // one after the other, each with its zero
  std::vector<uint64_t> times_;    // one for each operator; room for the answer
  std::vector<uint32_t> handles_;  // likewise; none where the operators do not follow from the nodes
};

}  // namespace xnnpack
}  // namespace torchette
