// SPDX-License-Identifier: BSD-3-Clause
// Maximum and average pools of images.
#include <algorithm>

#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

constexpr uint32_t kMax = 0, kMean = 1, kAdaptive = 2;

struct Window {
  int64_t kernel[2], stride[2], pad[2], dilation[2];
  bool rounds_up;
};

int64_t pick(const Numbers& numbers, int axis, int64_t absent) {
  return numbers.count == 0 ? absent : numbers[std::min(axis, numbers.count - 1)];
}

bool read_window(Call& call, bool dilates, Window* out) {
  const Numbers kernel = call.numbers(1), stride = call.numbers(2), pad = call.numbers(3);
  const Numbers dilation = dilates ? call.numbers(4) : Numbers();
  for (int axis = 0; axis < 2; ++axis) {
    out->kernel[axis] = pick(kernel, axis, 0);
    out->stride[axis] = pick(stride, axis, out->kernel[axis]);
    out->pad[axis] = pick(pad, axis, 0);
    out->dilation[axis] = pick(dilation, axis, 1);
    for (const int64_t it : {out->kernel[axis], out->stride[axis], out->dilation[axis], out->pad[axis] + 1}) {
      if (it < 1 || it > (1 << 20)) {
        call.refuse("a window is out of range");
        return false;
      }
    }
  }
  out->rounds_up = call.flag(dilates ? 5 : 4);
  return call.ok();
}

int64_t pooled(int64_t in, const Window& it, int axis) {
  const int64_t reach = it.dilation[axis] * (it.kernel[axis] - 1) + 1, room = in + 2 * it.pad[axis] - reach;
  if (room < 0) return 0;
  int64_t size = (room + (it.rounds_up ? it.stride[axis] - 1 : 0)) / it.stride[axis] + 1;
  if (it.rounds_up && (size - 1) * it.stride[axis] >= in + it.pad[axis]) --size;
  return size;
}

void run(Call& call, uint32_t mode, const Window& window, int64_t height, int64_t width, bool counts_padding,
         int64_t divisor) {
  Graph& graph = call.graph;
  View in = call.tensor(0);
  if (in.rank < 3 || height < 1 || width < 1 || height > INT32_MAX || width > INT32_MAX)
    return call.refuse("the input is not an image, or the result is empty");
  Numbers sizes = sizes_of(in);
  sizes.items[in.rank - 2] = height;
  sizes.items[in.rank - 1] = width;
  const View out = call.result(0, sizes);
  if (!call.ok()) return;
  const bool with_places = call.wants(1);
  const View places = with_places ? call.result(1, sizes) : out;
  in = contiguous(graph, converted(graph, in, out.kind));
  if (!is_float(out.kind) || (with_places && places.kind != Kind::kInt))
    return call.refuse("the result is not in floating point");
  Push push;
  push << out.numel() << in.size(-2) << in.size(-1) << height << width;
  for (const int64_t* pair : {window.kernel, window.stride, window.pad, window.dilation})
    push << pair[0] << pair[1];
  push << (counts_padding ? 1 : 0) << divisor << in.offset;
  graph.dispatch(variant(out.kind, pool_shader, pool_half_shader), {mode, with_places}, push,
                 {&in, &out, &places}, 6, groups_for(out.numel()));
}

void max_pool(Call& call) {
  Window window;
  if (!read_window(call, true, &window)) return;
  const View in = call.tensor(0);
  run(call, kMax, window, pooled(in.size(-2), window, 0), pooled(in.size(-1), window, 1), false, 0);
}

// (self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
void avg_pool(Call& call) {
  Window window;
  if (!read_window(call, false, &window)) return;
  const View in = call.tensor(0);
  run(call, kMean, window, pooled(in.size(-2), window, 0), pooled(in.size(-1), window, 1),
      !call.has(5) || call.flag(5), call.integer(6, 0));
}

void adaptive_avg_pool(Call& call) {
  const Numbers sizes = call.numbers(1);
  const Window none{{1, 1}, {1, 1}, {0, 0}, {1, 1}, false};
  const View in = call.tensor(0);
  if (sizes.count == 2 && sizes[0] == 1 && sizes[1] == 1 && in.rank >= 3 && in.numel() != 0 &&
      is_float(in.kind) && call.result_kind(0) == in.kind)
    return global_mean(call);
  if (sizes.count == 2) return run(call, kAdaptive, none, sizes[0], sizes[1], false, 0);
  call.refuse("the output size is not of two dimensions");
}

constexpr NamedOperator kTable[] = {
    {"aten.max_pool2d_with_indices.default", max_pool},
    {"aten.max_pool2d.default", max_pool},
    {"aten.avg_pool2d.default", avg_pool},
    {"aten._adaptive_avg_pool2d.default", adaptive_avg_pool},
    {"aten.adaptive_avg_pool2d.default", adaptive_avg_pool},
};

}  // namespace

const Span<const NamedOperator> kPools{kTable, sizeof(kTable) / sizeof(kTable[0])};

}  // namespace vulkan
}  // namespace torchette
