// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/xnnpack/profile.h"

#include <cstring>

namespace torchette {
namespace xnnpack {

void Profile::learn(xnn_runtime_t runtime, const std::vector<Origin>& origins) {
  size_t count = 0, size = 0;
  if (xnn_get_runtime_profiling_info(runtime, xnn_profile_info_num_operators, sizeof(count), &count, &size) !=
      xnn_status_success)
    return;
  // asked without room, it says how much it needs
  (void)xnn_get_runtime_profiling_info(runtime, xnn_profile_info_operator_name, 0, nullptr, &size);
  names_.resize(size);
  if (xnn_get_runtime_profiling_info(runtime, xnn_profile_info_operator_name, size, names_.data(), &size) !=
      xnn_status_success)
    return;
  times_.resize(count);
  // The library does not say which nodes it has fused. One that it may fuse has an operator of its own where
  // the next one has its name, and enough are left for the nodes that always have one.
  size_t needed = 0;
  for (const Origin& it : origins) needed += it.fusible == nullptr;
  const char* name = names_.data();
  for (const Origin& it : origins) {
    const size_t left = count - handles_.size();
    if (it.fusible == nullptr) {
      if (left == 0) break;
      --needed;
    } else if (left <= needed || strncmp(name, it.fusible, strlen(it.fusible)) != 0) {
      continue;
    }
    handles_.push_back(it.debug_handle);
    name += strlen(name) + 1;
  }
  if (needed != 0 || handles_.size() != count) handles_.clear();
}

void Profile::tell(xnn_runtime_t runtime, torchette_timestamp_t start, EventTracer* tracer) {
  const size_t size = times_.size() * sizeof(times_[0]);
  size_t needed = 0;
  if (size == 0 || xnn_get_runtime_profiling_info(runtime, xnn_profile_info_operator_timing, size,
                                                  times_.data(), &needed) != xnn_status_success)
    return;
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

}  // namespace xnnpack
}  // namespace torchette
