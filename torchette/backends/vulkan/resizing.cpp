// SPDX-License-Identifier: BSD-3-Clause
// Operators that resize images.
#include <cmath>

#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

enum Mode : uint32_t { kNearest, kBilinear, kBicubic };  // modes of resize.comp

// (input, output_size, [align_corners,] scale_factors). Either output_size or scale_factors is None.
template <Mode kMode>
void resize(Call& call) {
  Graph& graph = call.graph;
  View in = call.tensor(0);
  if (in.rank != 4 || in.numel() == 0) return call.refuse("the input is not a batch of images");
  const bool aligns = kMode != kNearest && call.flag(2);
  const Numbers new_sizes = call.numbers(1);
  const std::vector<double> factors = call.reals(kMode == kNearest ? 2 : 3);
  Numbers sizes = sizes_of(in);
  double scale[2];
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t from = in.sizes[2 + axis];
    int64_t& to = sizes.items[2 + axis];
    const bool by_factor = new_sizes.count != 2;
    if (by_factor && factors.size() != 2)
      return call.refuse("there is neither an output size nor two scale factors");
    to =
        by_factor
            ? static_cast<int64_t>(std::floor(static_cast<double>(from) * factors[static_cast<size_t>(axis)]))
            : new_sizes[axis];
    if (to < 1 || to > INT32_MAX) return call.refuse("the result is empty or too large");
    scale[axis] = by_factor ? 1 / factors[static_cast<size_t>(axis)]
                            : static_cast<double>(from) / static_cast<double>(to);
    if (aligns) scale[axis] = to > 1 ? static_cast<double>(from - 1) / static_cast<double>(to - 1) : 0;
  }
  const View out = call.result(0, sizes);
  if (!call.ok()) return;
  if (!is_float(out.kind)) return call.refuse("the result is not in floating point");
  in = contiguous(graph, converted(graph, in, out.kind));
  Push push;
  push << out.numel() << in.sizes[2] << in.sizes[3] << out.sizes[2] << out.sizes[3] << in.offset << scale[0]
       << scale[1];
  graph.dispatch(variant(out.kind, resize_shader, resize_half_shader), {kMode, aligns}, push, {&in, &out}, 2,
                 groups_for(out.numel()));
}

constexpr NamedOperator kTable[] = {
    {"aten.upsample_nearest2d.vec", resize<kNearest>},
    {"aten.upsample_bilinear2d.vec", resize<kBilinear>},
    {"aten.upsample_bicubic2d.vec", resize<kBicubic>},
};

}  // namespace

const Span<const NamedOperator> kResizing{kTable, sizeof(kTable) / sizeof(kTable[0])};

}  // namespace vulkan
}  // namespace torchette
