// SPDX-License-Identifier: BSD-3-Clause
// Profile: the time of each operator as XNNPACK's library measures it, for a tracer.
#pragma once

#include <cstring>
#include <vector>

#include "torchette/backends/xnnpack/library/graph.h"
#include "torchette/runtime/tracer.h"

namespace torchette {
namespace xnnpack {

class Profile {
 public:
  /// Assigns the operators of a runtime to the nodes of its graph. The runtime was created with
  /// XNN_FLAG_BASIC_PROFILING.
  void learn(xnn_runtime_t runtime, const std::vector<Origin>& origins) {
    size_t count = 0, size = 0;
    if (!get(runtime, xnn_profile_info_num_operators, sizeof(count), &count)) return;
    // without a buffer the call returns the size that it needs
    (void)xnn_get_runtime_profiling_info(runtime, xnn_profile_info_operator_name, 0, nullptr, &size);
    names_.resize(size);
    if (!get(runtime, xnn_profile_info_operator_name, size, names_.data())) return;
    times_.resize(count);
    // The library does not report which nodes it fused. A fusible node has its own operator if the next
    // operator has its name and enough operators remain for the nodes that are never fused.
    size_t needed = 0;
    for (const Origin& it : origins) needed += it.fusible == nullptr;
    const char* name = names_.data();
    for (const Origin& it : origins) {
      const size_t remaining = count - handles_.size();
      if (it.fusible == nullptr ? remaining == 0
                                : remaining <= needed || strncmp(name, it.fusible, strlen(it.fusible)) != 0)
        continue;
      needed -= it.fusible == nullptr;
      handles_.push_back(it.debug_handle);
      name += strlen(name) + 1;
    }
    if (needed != 0 || handles_.size() != count) handles_.clear();
  }

  /// Logs one event for each operator of the last execution, which began at `start`. The library measures
  /// microseconds.
  void log(xnn_runtime_t runtime, torchette_timestamp_t start, EventTracer* tracer) {
    const size_t size = times_.size() * sizeof(times_[0]);
    if (size == 0 || !get(runtime, xnn_profile_info_operator_timing, size, times_.data())) return;
    const torchette_tick_ratio_t ratio = ticks_to_ns_multiplier();
    const char* name = names_.data();
    uint64_t microseconds = 0;
    const auto ticks = [&] { return start + microseconds * 1000 * ratio.denominator / ratio.numerator; };
    for (size_t i = 0; i < times_.size(); ++i, name += strlen(name) + 1) {
      const torchette_timestamp_t begin = ticks();
      microseconds += times_[i];
      const auto handle =
          handles_.empty() ? kUnsetDelegateDebugIntId : static_cast<DelegateDebugIntId>(handles_[i]);
      event_tracer_log_profiling_delegate(tracer, name, handle, begin, ticks());
    }
  }

 private:
  static bool get(xnn_runtime_t runtime, xnn_profile_info what, size_t size, void* out) {
    size_t needed = 0;
    return xnn_get_runtime_profiling_info(runtime, what, size, out, &needed) == xnn_status_success;
  }

  std::vector<char> names_;        // consecutive, each with a terminating zero
  std::vector<uint64_t> times_;    // of each operator
  std::vector<uint32_t> handles_;  // of each operator; empty if the operators do not match the nodes
};

}  // namespace xnnpack
}  // namespace torchette
