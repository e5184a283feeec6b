// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/xnnpack/taps.h"

#include <algorithm>
#include <cstring>

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace xnnpack {

void Taps::learn(const Graph& graph, uint32_t first, std::vector<xnn_external_value>* pointers) {
  first_ = first;
  taps_ = graph.taps;
  memory_.resize(graph.tapped);
  for (uint32_t i = 0; i < graph.tapped; ++i) pointers->push_back({first + i, nullptr});
}

Error Taps::make_room(xnn_runtime_t runtime) {
  for (size_t i = 0; i < memory_.size(); ++i) {
    size_t rank = 0, dims[XNN_MAX_TENSOR_DIMS];
    const xnn_status status =
        xnn_get_external_value_shape(runtime, first_ + static_cast<uint32_t>(i), &rank, dims);
    TORCHETTE_CHECK(status == xnn_status_success, InvalidState,
                    "a value inside of XNNPACK's graph has no shape");
    size_t size = sizeof(float);  // no element is larger
    for (size_t d = 0; d < rank; ++d) size *= dims[d];
    memory_[i].resize(size + XNN_EXTRA_BYTES);
  }
  return Error::Ok;
}

void Taps::tell(const std::vector<Dims>& sizes, Span<Value*> arguments, EventTracer* tracer) {
  for (const Tap& tap : taps_) {
    const Dims& dims = sizes[tap.value];
    const void* data = this->data(tap.id);
    if (data == nullptr) data = arguments[tap.id]->to_tensor().const_data_ptr();
    SizesType shape[XNN_MAX_TENSOR_DIMS];
    StridesType strides[XNN_MAX_TENSOR_DIMS];
    DimOrderType order[XNN_MAX_TENSOR_DIMS];
    size_t rank = dims.size();
    if (tap.layout == 0) {
      std::copy(dims.begin(), dims.end(), shape);
    } else {
      // readers of values take them for contiguous: channels go before rows and columns
      const size_t images = dims[0], pixels = dims[1] * dims[2], channels = dims[3],
                   size = element_size(tap.type);
      moved_.resize(images * pixels * channels * size);
      const char* from = static_cast<const char*>(data);
      for (size_t n = 0; n < images; ++n)
        for (size_t p = 0; p < pixels; ++p)
          for (size_t c = 0; c < channels; ++c, from += size)
            memcpy(&moved_[((n * channels + c) * pixels + p) * size], from, size);
      data = moved_.data();
      rank = tap.layout;
      const size_t moved[] = {images, channels, dims[1], dims[2]};
      for (size_t d = 0; d < 4; ++d)
        if (d != 2 || rank == 4) shape[d - (d > 2 && rank == 3)] = static_cast<SizesType>(moved[d]);
    }
    for (size_t d = 0; d < rank; ++d) order[d] = static_cast<DimOrderType>(d);
    const Result<int32_t> numel = dense_strides({shape, rank}, order, strides);
    if (!numel.ok()) continue;
    TensorImpl tensor{const_cast<void*>(data),
                      shape,
                      strides,
                      order,
                      static_cast<size_t>(*numel),
                      *numel,
                      static_cast<uint8_t>(rank),
                      tap.type,
                      TensorShapeDynamism::STATIC};
    event_tracer_log_output_delegate(tracer, nullptr, static_cast<DelegateDebugIntId>(tap.debug_handle),
                                     Tensor(&tensor));
  }
}

}  // namespace xnnpack
}  // namespace torchette
