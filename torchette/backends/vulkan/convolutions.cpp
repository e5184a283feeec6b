// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of one to three dimensions.
#include <algorithm>

#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

int64_t out_size(int64_t in, int64_t kernel, int64_t stride, int64_t pad, int64_t dilation,
                 bool is_transposed, int64_t more) {
  if (is_transposed) return (in - 1) * stride - 2 * pad + dilation * (kernel - 1) + more + 1;
  return (in + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

/// (images, channels, depth, height, width) of fewer dimensions.
View as_volume(const View& view) {
  View out = view;
  const int more = 5 - view.rank;
  out.rank = 5;
  for (int d = 4; d >= 2; --d) {
    const bool given = d - more >= 2;
    out.sizes[d] = given ? view.sizes[d - more] : 1;
    out.strides[d] = given ? view.strides[d - more] : 0;
  }
  return out;
}

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
void convolve(Call& call, const Limits& limits) {
  Graph& graph = call.graph;
  View in = call.tensor(0), weight = call.tensor(1);
  Numbers stride = call.numbers(3), pad = call.numbers(4), dilation = call.numbers(5), more = call.numbers(7);
  const bool is_transposed = call.flag(6);
  const int64_t groups = call.integer(8, 1);
  if (!call.ok()) return;
  const bool has_no_images = in.rank == weight.rank - 1;
  if ((in.rank != weight.rank && !has_no_images) || weight.rank < 3 || weight.rank > 5)
    return call.refuse("it is of more than three dimensions, or has none");
  if (has_no_images) {
    for (int d = in.rank; d > 0; --d) in.sizes[d] = in.sizes[d - 1], in.strides[d] = in.strides[d - 1];
    in.sizes[0] = 1, in.strides[0] = 0;
    ++in.rank;
  }
  const int more_axes = 5 - in.rank;
  const auto pick = [&](const Numbers& numbers, int axis, int64_t along) {  // axis 0: depth
    if (axis < more_axes) return along;
    return numbers.count == 0 ? along : numbers[std::min(axis - more_axes, numbers.count - 1)];
  };
  in = as_volume(in), weight = as_volume(weight);
  int64_t s[3], p[3], l[3], size[3];
  const int64_t channels = is_transposed ? weight.sizes[1] * groups : weight.sizes[0];
  if (groups < 1 || groups > INT32_MAX || in.sizes[1] % groups != 0 || channels % groups != 0 ||
      channels > INT32_MAX ||
      (is_transposed ? weight.sizes[0] != in.sizes[1] : weight.sizes[1] != in.sizes[1] / groups))
    return call.refuse("channels, weights and groups do not fit each other");
  for (int axis = 0; axis < 3; ++axis) {
    s[axis] = pick(stride, axis, 1), p[axis] = pick(pad, axis, 0), l[axis] = pick(dilation, axis, 1);
    const int64_t add = pick(more, axis, 0);
    for (const int64_t it : {s[axis], p[axis], l[axis], add})
      if (it < 0 || it > (1 << 20)) return call.refuse("a stride, padding or dilation is out of range");
    if (s[axis] < 1 || l[axis] < 1) return call.refuse("a stride or dilation is zero");
    size[axis] =
        out_size(in.sizes[2 + axis], weight.sizes[2 + axis], s[axis], p[axis], l[axis], is_transposed, add);
    if (size[axis] < 1 || size[axis] > INT32_MAX) return call.refuse("nothing is left");
  }
  Numbers sizes;
  const int64_t whole[5] = {in.sizes[0], channels, size[0], size[1], size[2]};
  for (int d = 0; d < 5; ++d)
    if (!(d == 0 && has_no_images) && (d < 2 || d >= 2 + more_axes)) sizes.items[sizes.count++] = whole[d];
  Epilogue then;
  const View out = call.result_with_epilogue(sizes, Beside::kAlike, &then);
  if (!call.ok()) return;
  View bias;
  const bool has_bias = call.has(2);
  if (has_bias) bias = call.tensor(2);
  if (has_bias && (bias.rank != 1 || bias.sizes[0] != channels))
    return call.refuse("the bias has another size");
  weight = contiguous(graph, converted(graph, weight, out.kind));
  if (has_bias) bias = contiguous(graph, converted(graph, bias, out.kind));
  in = converted(graph, in, out.kind);
  bool is_point = groups == 1 && !is_transposed;
  for (int axis = 0; axis < 3; ++axis)
    is_point = is_point && weight.sizes[2 + axis] == 1 && s[axis] == 1 && p[axis] == 0;
  const int64_t area = size[0] * size[1] * size[2];
  if (is_point && !(area == 1 && in.sizes[0] > 1)) {
    // for each image a product: (out, in) @ (in, pixels)
    Numbers pixels, results, factors;
    pixels.count = results.count = factors.count = 3;
    pixels.items[0] = results.items[0] = in.sizes[0];
    pixels.items[1] = factors.items[2] = in.sizes[1];
    pixels.items[2] = results.items[2] = area;
    results.items[1] = factors.items[1] = channels;
    factors.items[0] = 1;
    View rows = bias;
    rows.rank = 2, rows.sizes[1] = 1, rows.strides[1] = 0;
    matmul(graph, reshaped(graph, weight, factors), reshaped(graph, in, pixels), has_bias ? &rows : nullptr,
           reshaped(graph, out, results), 1, 1, limits, then);
    return;
  }
  in = contiguous(graph, in);
  if (!call.ok()) return;
  const uint32_t block = channels / groups % 4 == 0 ? 4 : 1;
  const int64_t count = in.sizes[0] * (channels / block) * area;
  Push push;
  push << count << in.sizes[1] << in.sizes[2] << in.sizes[3] << in.sizes[4] << channels;
  push << size[0] << size[1] << size[2] << weight.sizes[2] << weight.sizes[3] << weight.sizes[4];
  for (const int64_t* axes : {s, p, l}) push << axes[0] << axes[1] << axes[2];
  push << groups;
  push << in.offset << weight.offset << (has_bias ? bias.offset : 0) << limits.low << limits.high
       << then.other.offset << then.p << then.q;
  graph.dispatch(variant(out.kind, convolution_shader, convolution_half_shader),
                 {has_bias, is_transposed, block, then.has_other, then.operation, then.swapped}, push,
                 {&in, &weight, has_bias ? &bias : &weight, &out, then.has_other ? &then.other : &in}, 8,
                 groups_for(count));
}

void convolution(Call& call) { convolve(call, Limits()); }

void conv_with_clamp(Call& call) {
  Limits limits;
  limits.low = call.real(9, limits.low);
  limits.high = call.real(10, limits.high);
  convolve(call, limits);
}

constexpr NamedOperator kTable[] = {
    {"aten.convolution.default", convolution},
    {"et_vk.conv_with_clamp.default", conv_with_clamp},
};

}  // namespace

const Span<const NamedOperator> kConvolutions{kTable, sizeof(kTable) / sizeof(kTable[0])};

}  // namespace vulkan
}  // namespace torchette
