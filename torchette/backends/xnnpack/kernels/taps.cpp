// SPDX-License-Identifier: BSD-3-Clause
// Values inside of a graph, for a tracer that asks for them: torchette/schema/xnnpack.fbs.
#include "torchette/backends/xnnpack/kernels/program.h"

namespace torchette {
namespace xnnpack {

bool wants_taps(const EventTracer* tracer) {
  return tracer != nullptr &&
         tracer->event_tracer_debug_level() >= EventTracerDebugLogLevel::kIntermediateOutputs;
}

/// A payload that does not list them, such as ExecuTorch's, shows none.
Error Builder::find_taps() {
  const Table root = payload_.root();
  const auto handles = root.vector<uint32_t>(fb::XNNGraph::kTapHandles);
  const auto values = root.vector<uint32_t>(fb::XNNGraph::kTapValues);
  const auto layouts = root.vector<uint8_t>(fb::XNNGraph::kTapLayouts);
  TORCHETTE_CHECK(payload_.ok() && values.size() == handles.size() && layouts.size() == handles.size(),
                  DelegateInvalidCompatibility, "an XNNPACK payload names %zu results of %zu nodes",
                  values.size(), handles.size());
  auto* const taps = memory_->allocate_list<Tap>(handles.size());
  TORCHETTE_CHECK(taps != nullptr, MemoryAllocationFailed, "no memory for %zu results inside",
                  handles.size());
  size_t count = 0;
  for (size_t i = 0; i < handles.size(); ++i) {
    const uint8_t layout = layouts[i];
    TORCHETTE_CHECK(values[i] < out_.slot_count && (layout == 0 || layout == 3 || layout == 4),
                    DelegateInvalidCompatibility, "value %u of an XNNPACK payload is no result", values[i]);
    const Slot& slot = out_.slots[values[i]];
    const bool fits = layout == 0 || (slot.impl.dim == 4 && (layout == 4 || slot.sizes[1] == 1));
    if (slot.is_ready && !slot.is_constant && fits) taps[count++] = {&slot, handles[i], layout};
  }
  out_.taps = {taps, count};
  return Error::Ok;
}

void tell(const Program& program, const Slot* slot, BackendExecutionContext& context) {
  for (const Tap& tap : program.taps) {
    if (tap.slot != slot) continue;
    TensorImpl impl = slot->impl;
    SizesType sizes[4];
    StridesType strides[4];
    if (tap.layout != 0) {
      // readers of values take them for contiguous: channels go before rows and columns
      const auto images = static_cast<size_t>(slot->sizes[0]), channels = static_cast<size_t>(slot->sizes[3]),
                 pixels = static_cast<size_t>(slot->sizes[1]) * static_cast<size_t>(slot->sizes[2]);
      const size_t item = element_size(impl.type);
      auto* const moved = static_cast<uint8_t*>(context.allocate(images * pixels * channels * item, 64));
      if (moved == nullptr) return;
      const auto* from = static_cast<const uint8_t*>(impl.data);
      for (size_t n = 0; n < images; ++n)
        for (size_t p = 0; p < pixels; ++p)
          for (size_t c = 0; c < channels; ++c, from += item)
            memcpy(moved + ((n * channels + c) * pixels + p) * item, from, item);
      size_t rank = 0;
      for (const size_t d : {0, 3, 1, 2})
        if (d != 1 || tap.layout == 4) sizes[rank++] = slot->sizes[d];
      if (!dense_strides({sizes, rank}, kNatural, strides).ok()) return;
      impl.data = moved;
      impl.sizes = sizes;
      impl.strides = strides;
      impl.dim = static_cast<uint8_t>(rank);
    }
    event_tracer_log_output_delegate(context.event_tracer(), nullptr,
                                     static_cast<DelegateDebugIntId>(tap.debug_handle), Tensor(&impl));
    context.reset_temp();
  }
}

}  // namespace xnnpack
}  // namespace torchette
