// SPDX-License-Identifier: BSD-3-Clause
// cpu::resize: torchette/backends/engine/operators/resize.py. Each pixel is a weighted sum of input pixels
// over all channels at a time. A table per dimension contains the pixels and weights.
#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/panels.h"
#include "torchette/kernels/resample.h"
#include "torchette/kernels/simd.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

constexpr struct {
  const char* name;
  Filter filter;
} kModes[] = {
#define TORCHETTE_RESIZE_MODE(name, filter, ...) {#name, Filter::filter},
#include "torchette/schema/engine.def"
};
constexpr size_t kMaxTaps = 4;  // along one dimension

/// out = sum of weight[i] * pixel[i], per channel.
void add_up(const float* const* pixel, const float* weight, size_t count, size_t channels, float* out) {
  if (count == 1) {
    memcpy(out, pixel[0], channels * sizeof(float));
    return;
  }
  for (size_t c = 0; c < channels; c += kLanes) {
    const size_t here = channels - c < kLanes ? channels - c : kLanes;
    Vec sum = {};
    for (size_t i = 0; i < count; ++i)
      sum = fma(here == kLanes ? load(pixel[i] + c) : load_partial(pixel[i] + c, here), broadcast(weight[i]),
                sum);
    if (here == kLanes)
      store(out + c, sum);
    else
      store_partial(out + c, sum, here);
  }
}

}  // namespace

static Error resize_out(Context& context, const Tensor& input,
                        const Optional<Span<const int64_t>>& output_size,
                        const Optional<Span<const double>>& scales, Span<const char> mode, bool align_corners,
                        Tensor& out) {
  TORCHETTE_TRY(check_floats("resize", input, "input"));
  TORCHETTE_CHECK(input.dim() >= 3 && input.dim() <= 5, InvalidArgument,
                  "resize: input has %d dimensions, expected 3 to 5", static_cast<int>(input.dim()));
  const size_t spatial = static_cast<size_t>(input.dim()) - 2, front = 3 - spatial;
  TORCHETTE_CHECK((output_size.has_value() || scales.has_value()) &&
                      (!output_size.has_value() || output_size->size() == spatial) &&
                      (!scales.has_value() || scales->size() == spatial),
                  InvalidArgument, "resize: output_size or scales must have %d elements",
                  static_cast<int>(spatial));
  const Filter* filter = nullptr;
  for (const auto& known : kModes)
    if (strlen(known.name) == mode.size() && memcmp(known.name, mode.data(), mode.size()) == 0)
      filter = &known.filter;
  TORCHETTE_CHECK(filter != nullptr, InvalidArgument, "resize: unknown mode %.*s",
                  static_cast<int>(mode.size()), mode.data());
  const auto channels = static_cast<size_t>(input.size(input.dim() - 1));
  SizesType sizes[5] = {input.sizes()[0]};
  size_t in[3] = {1, 1, 1}, to[3] = {1, 1, 1};
  double given[3] = {};
  for (size_t d = 0; d < spatial; ++d) {
    const SizesType size = input.sizes()[d + 1];
    given[front + d] = scales.has_value() ? (*scales)[d] : 0;
    const double scaled = static_cast<double>(size) * given[front + d];
    const int64_t requested = output_size.has_value()              ? (*output_size)[d]
                              : scaled >= 1 && scaled <= INT32_MAX ? static_cast<int64_t>(scaled)
                                                                   : 0;
    TORCHETTE_CHECK(requested > 0 && requested <= INT32_MAX && size > 0, InvalidArgument,
                    "resize: input size %d or result size %lld is out of range", static_cast<int>(size),
                    static_cast<long long>(requested));
    sizes[d + 1] = static_cast<SizesType>(requested);
    in[front + d] = static_cast<size_t>(size);
    to[front + d] = static_cast<size_t>(requested);
  }
  sizes[spatial + 1] = input.sizes()[spatial + 1];
  TORCHETTE_TRY(check_result("resize", out, {sizes, spatial + 2}));
  if (out.numel() == 0) return Error::Ok;
  Taps<float> taps[3];
  for (size_t d = 0; d < 3; ++d)  // a missing dimension has one element
    TORCHETTE_TRY(taps[d].make(context, d < front ? Filter::Nearest : *filter, align_corners,
                               static_cast<ptrdiff_t>(in[d]), static_cast<ptrdiff_t>(to[d]), given[d]));
  const float* const x = input.const_data_ptr<float>();
  float* const y = out.mutable_data_ptr<float>();
  const size_t rows = to[0] * to[1], row = to[2] * channels, depth = taps[0].taps, height = taps[1].taps;
  context.parallel_for(static_cast<size_t>(sizes[0]) * rows, min_items(row * depth * height * taps[2].taps),
                       [&](size_t begin, size_t end, size_t) {
                         for (size_t r = begin; r < end; ++r) {
                           const size_t oz = r % rows / to[1], oy = r % to[1];
                           const float* lines[kMaxTaps * kMaxTaps];
                           float weights[kMaxTaps * kMaxTaps];
                           for (size_t k = 0; k < depth * height; ++k) {
                             const size_t z = oz * depth + k / height, v = oy * height + k % height;
                             const size_t line =
                                 (r / rows * in[0] + static_cast<size_t>(taps[0].index[z])) * in[1] +
                                 static_cast<size_t>(taps[1].index[v]);
                             lines[k] = x + line * in[2] * channels;
                             weights[k] = taps[0].weight[z] * taps[1].weight[v];
                           }
                           for (size_t ox = 0; ox < to[2]; ++ox) {
                             const float* pixel[kMaxTaps * kMaxTaps * kMaxTaps];
                             float weight[kMaxTaps * kMaxTaps * kMaxTaps];
                             size_t count = 0;
                             for (size_t k = 0; k < depth * height; ++k)
                               for (size_t u = ox * taps[2].taps; u < (ox + 1) * taps[2].taps; ++u, ++count) {
                                 pixel[count] = lines[k] + static_cast<size_t>(taps[2].index[u]) * channels;
                                 weight[count] = weights[k] * taps[2].weight[u];
                               }
                             add_up(pixel, weight, count, channels, y + r * row + ox * channels);
                           }
                         }
                       });
  return Error::Ok;
}

TORCHETTE_KERNELS(resize, TORCHETTE_KERNEL("cpu::resize.out", resize_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
