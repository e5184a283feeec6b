// SPDX-License-Identifier: BSD-3-Clause
// Convolutions with one to three spatial dimensions.
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

/// Adds spatial dimensions of size 1 to a view: (images, channels, depth, height, width).
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

/// The parameters of a convolution with three spatial dimensions.
struct Windows {
  View in, weight;
  bool is_transposed = false;
  int64_t groups = 1, channels = 0, area = 1;
  int64_t stride[3], pad[3], dilation[3], size[3];
  Numbers sizes;  // of the result
};

/// `at`: the index of the stride argument, followed by padding and dilation. `more`: the output padding.
bool read_windows(Call& call, int at, const Numbers& more, Windows* out) {
  View &in = out->in, &weight = out->weight;
  const Numbers given[3] = {call.numbers(at), call.numbers(at + 1), call.numbers(at + 2)};
  const bool is_transposed = out->is_transposed;
  const int64_t groups = out->groups;
  const auto refuse = [&](const char* why) {
    call.refuse(why);
    return false;
  };
  if (!call.ok()) return false;
  const bool has_no_images = in.rank == weight.rank - 1;
  if ((in.rank != weight.rank && !has_no_images) || weight.rank < 3 || weight.rank > 5)
    return refuse("it does not have one to three spatial dimensions");
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
  const int64_t channels = out->channels = is_transposed ? weight.sizes[1] * groups : weight.sizes[0];
  if (groups < 1 || groups > INT32_MAX || in.sizes[1] % groups != 0 || channels % groups != 0 ||
      channels > INT32_MAX ||
      (is_transposed ? weight.sizes[0] != in.sizes[1] : weight.sizes[1] != in.sizes[1] / groups))
    return refuse("channels, weights and groups do not match");
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t s = out->stride[axis] = pick(given[0], axis, 1),
                  p = out->pad[axis] = pick(given[1], axis, 0),
                  l = out->dilation[axis] = pick(given[2], axis, 1), add = pick(more, axis, 0);
    for (const int64_t it : {s, p, l, add})
      if (it < 0 || it > (1 << 20)) return refuse("a stride, padding or dilation is out of range");
    if (s < 1 || l < 1) return refuse("a stride or dilation is zero");
    const int64_t size = out->size[axis] =
        out_size(in.sizes[2 + axis], weight.sizes[2 + axis], s, p, l, is_transposed, add);
    if (size < 1 || size > INT32_MAX) return refuse("the result is empty or too large");
    out->area *= size;
  }
  const int64_t all_sizes[5] = {in.sizes[0], channels, out->size[0], out->size[1], out->size[2]};
  for (int d = 0; d < 5; ++d)
    if (!(d == 0 && has_no_images) && (d < 2 || d >= 2 + more_axes))
      out->sizes.items[out->sizes.count++] = all_sizes[d];
  return true;
}

/// The number of channels of a pixel that an invocation computes.
uint32_t block_of(const Windows& it) { return it.channels / it.groups % 4 == 0 ? 4 : 1; }

/// Adds the push constants that both shaders share; returns the number of invocations.
int64_t push_windows(const Windows& it, Push* push) {
  const View &in = it.in, &weight = it.weight;
  const int64_t count = in.sizes[0] * (it.channels / block_of(it)) * it.area;
  *push << count << in.sizes[1] << in.sizes[2] << in.sizes[3] << in.sizes[4] << it.channels;
  *push << it.size[0] << it.size[1] << it.size[2] << weight.sizes[2] << weight.sizes[3] << weight.sizes[4];
  for (const int64_t* axes : {it.stride, it.pad, it.dilation}) *push << axes[0] << axes[1] << axes[2];
  *push << it.groups;
  return count;
}

/// Returns `weight`, or a copy, as (input channel, tap, output channel), with the output channels padded to a
/// multiple of 4.
View packed(Graph& graph, const View& weight) {
  View out = weight;
  pack_filters(&out);
  bool is_packed = weight.offset % 4 == 0;
  for (int d = 0; d < weight.rank; ++d)
    is_packed = is_packed && (weight.sizes[d] == 1 || weight.strides[d] == out.strides[d]);
  if (is_packed || !graph.ok()) return weight;
  View all = weight;
  all.rank = 1;
  all.sizes[0] = weight.numel() / weight.sizes[0] * padded_filters(weight);
  out.storage = graph.scratch(all).storage;
  out.offset = 0;
  if (graph.ok()) copy(graph, weight, out);
  return out;
}

/// What convolution_tiled.comp computes: the sizes of its matmul, and its division into workgroups.
struct Tiling {
  int64_t columns, inputs, rows, groups, layers, chunk;
};

/// Divides the reduction into layers if there are fewer workgroups than the device can run at the same time.
Tiling tiling_of(const Windows& it, int64_t enough_groups) {
  constexpr int64_t kPixels = 64, kStep = 16, kMinChunk = 128;
  const auto tiles = [](int64_t size, int64_t tile) { return (size + tile - 1) / tile; };
  Tiling out;
  out.columns = it.in.sizes[0] * it.area;
  out.inputs = it.weight.numel() / it.channels;
  out.rows = tiles(it.channels, 32) < 2 * tiles(it.channels, 64) ? 4 : 8;
  out.groups = tiles(out.columns, kPixels) * tiles(it.channels, 8 * out.rows);
  const int64_t layers = std::min(enough_groups / out.groups, out.inputs / kMinChunk);
  out.chunk = tiles(tiles(out.inputs, std::max<int64_t>(layers, 1)), kStep) * kStep;
  out.layers = tiles(out.inputs, out.chunk);
  return out;
}

/// A dense convolution as a matmul in tiles.
void convolve_tiles(Graph& graph, const Windows& it, const View* bias, const View& out, const Limits& limits,
                    const Epilogue& then, bool is_point) {
  const View in = contiguous(graph, it.in), weight = packed(graph, it.weight);
  if (!graph.ok()) return;
  const Tiling tiling = tiling_of(it, graph.enough_groups());
  const bool is_divided = tiling.layers > 1;
  View target = out;
  if (is_divided) {
    target.kind = Kind::kFloat;
    target.rank = 2;
    target.sizes[0] = tiling.layers, target.sizes[1] = out.numel();
    target = graph.scratch(target);
  }
  const Epilogue last = is_divided ? Epilogue() : then;
  const Limits range = is_divided ? Limits() : limits;
  const bool has_bias = bias != nullptr && !is_divided;
  const uint32_t mode = !is_point ? 0 : it.area % 4 == 0 && in.offset % 4 == 0 ? 2 : 1;
  Push push;
  push << tiling.columns << it.channels << tiling.inputs << tiling.chunk;
  push << in.sizes[1] << in.sizes[2] << in.sizes[3] << in.sizes[4];
  push << it.size[0] << it.size[1] << it.size[2];
  push << weight.sizes[2] << weight.sizes[3] << weight.sizes[4];
  for (const int64_t* axes : {it.stride, it.pad, it.dilation}) push << axes[0] << axes[1] << axes[2];
  push << in.offset << weight.offset << (has_bias ? bias->offset : 0) << last.other.offset;
  push << range.low << range.high << last.p << last.q;
  const Shader& half =
      graph.has_half_arithmetic() ? convolution_tiled_packed_shader : convolution_tiled_half_shader;
  graph.dispatch(variant(out.kind, convolution_tiled_shader, half),
                 {has_bias, last.has_other, last.operation, last.swapped, static_cast<uint32_t>(tiling.rows),
                  mode, static_cast<uint32_t>(target.kind)},
                 push, {&in, &weight, has_bias ? bias : &weight, &target, last.has_other ? &last.other : &in},
                 8, tiling.groups, tiling.layers);
  if (!is_divided) return;
  Push sum;
  sum << out.numel() << tiling.layers << it.channels << it.area << (bias != nullptr ? bias->offset : 0)
      << then.other.offset << limits.low << limits.high << then.p << then.q;
  graph.dispatch(variant(out.kind, convolution_sum_shader, convolution_sum_half_shader),
                 {bias != nullptr, then.has_other, then.operation, then.swapped, 0}, sum,
                 {&target, bias != nullptr ? bias : &target, &out, then.has_other ? &then.other : &target}, 4,
                 groups_for(out.numel()));
}

/// A grouped or transposed convolution.
void convolve_groups(Graph& graph, const Windows& it, const View* bias, const View& out, const Limits& limits,
                     const Epilogue& then) {
  const View in = contiguous(graph, it.in), weight = contiguous(graph, it.weight);
  if (!graph.ok()) return;
  Push push;
  const int64_t count = push_windows(it, &push);
  push << in.offset << weight.offset << (bias != nullptr ? bias->offset : 0) << limits.low << limits.high
       << then.other.offset << then.p << then.q;
  graph.dispatch(
      variant(out.kind, convolution_shader, convolution_half_shader),
      {bias != nullptr, it.is_transposed, block_of(it), then.has_other, then.operation, then.swapped}, push,
      {&in, &weight, bias != nullptr ? bias : &weight, &out, then.has_other ? &then.other : &in}, 8,
      groups_for(count));
}

/// A convolution of which each result depends on one pixel, as a matmul: for one pixel, (images, in) @ (in,
/// out), else for each image (out, in) @ (in, pixels).
void convolve_points(Graph& graph, const Windows& it, const View* bias, const View& out, const Limits& limits,
                     const Epilogue& then) {
  const View &in = it.in, &weight = it.weight;
  const auto three = [](int64_t a, int64_t b, int64_t c) {
    Numbers sizes;
    sizes.count = 3;
    sizes.items[0] = a, sizes.items[1] = b, sizes.items[2] = c;
    return sizes;
  };
  const int64_t images = in.sizes[0], inputs = in.sizes[1];
  const View filters = reshaped(graph, weight, three(1, it.channels, inputs));
  if (it.area == 1)
    return matmul(graph, reshaped(graph, in, three(1, images, inputs)), transposed(filters, 1, 2), bias,
                  reshaped(graph, out, three(1, images, it.channels)), 1, 1, limits, then);
  View rows;
  if (bias != nullptr) rows = *bias, rows.rank = 2, rows.sizes[1] = 1, rows.strides[1] = 0;
  matmul(graph, filters, reshaped(graph, in, three(images, inputs, it.area)),
         bias != nullptr ? &rows : nullptr, reshaped(graph, out, three(images, it.channels, it.area)), 1, 1,
         limits, then);
}

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
void convolve(Call& call, const Limits& limits) {
  Graph& graph = call.graph;
  Windows it;
  it.in = call.tensor(0), it.weight = call.tensor(1);
  it.is_transposed = call.flag(6), it.groups = call.integer(8, 1);
  if (!read_windows(call, 3, call.numbers(7), &it)) return;
  Epilogue then;
  const View out = call.result_with_epilogue(it.sizes, EpilogueOperand::kSameLayout, &then);
  if (!call.ok()) return;
  View terms;
  if (call.has(2)) terms = call.tensor(2);
  if (call.has(2) && (terms.rank != 1 || terms.sizes[0] != it.channels))
    return call.refuse("the bias does not have one element for each channel");
  if (call.has(2)) terms = contiguous(graph, converted(graph, terms, out.kind));
  const View* const bias = call.has(2) ? &terms : nullptr;
  it.weight = converted(graph, it.weight, out.kind);
  it.in = converted(graph, it.in, out.kind);
  if (!call.ok() || out.numel() == 0) return;
  const bool is_dense = it.groups == 1 && !it.is_transposed;
  bool is_point = is_dense;
  for (int axis = 0; axis < 3; ++axis)
    is_point = is_point && it.weight.sizes[2 + axis] == 1 && it.stride[axis] == 1 && it.pad[axis] == 0;
  if (is_point && (it.area == 1 || !it.in.is_contiguous()))
    return convolve_points(graph, it, bias, out, limits, then);
  constexpr int64_t kMaxInputs = 1 << 20;  // of convolution_tiled.comp
  const int64_t inputs = it.weight.numel() / it.channels;
  if (is_dense && inputs > 0 && inputs < kMaxInputs)
    return convolve_tiles(graph, it, bias, out, limits, then, is_point);
  convolve_groups(graph, it, bias, out, limits, then);
}

void convolution(Call& call) { convolve(call, Limits()); }

void conv_with_clamp(Call& call) {
  Limits limits;
  limits.low = call.real(9, limits.low);
  limits.high = call.real(10, limits.high);
  convolve(call, limits);
}

// 8-bit integer convolution: (input, weight, terms, input_zero, stride, padding, dilation, groups, zero, low,
// high). The terms are the bits of floats: the biases, then the factors of all channels. If the weight is a
// matrix, it is a linear layer.
void quantized_convolution(Call& call) {
  Graph& graph = call.graph;
  Windows it;
  const View given = call.tensor(0), terms = call.tensor(2);
  it.in = given, it.weight = call.tensor(1);
  it.groups = call.integer(7);
  if (!call.ok()) return;
  const bool is_linear = it.weight.rank == 2;
  if (is_linear) {
    Numbers rows;
    rows.count = 3, rows.items[1] = given.size(-1), rows.items[2] = 1;
    if (given.rank < 1 || rows[1] < 1) return call.refuse("the input has no rows");
    rows.items[0] = given.numel() / rows[1];
    it.in = reshaped(graph, given, rows);
    it.weight.rank = 3, it.weight.sizes[2] = it.weight.strides[2] = 1;
  }
  if (!read_windows(call, 4, Numbers(), &it)) return;
  if (is_linear) {
    it.sizes = sizes_of(given);
    it.sizes.items[given.rank - 1] = it.channels;
  }
  View &in = it.in, &weight = it.weight;
  const View out = call.result(0, it.sizes);
  if (!call.ok() || out.numel() == 0) return;
  if (in.kind != Kind::kInt || out.kind != Kind::kInt || terms.kind != Kind::kInt ||
      (weight.kind != Kind::kInt && weight.kind != Kind::kByte) || !weight.is_contiguous() ||
      weight.offset != 0 || !terms.is_contiguous() || terms.numel() != 2 * it.channels)
    return call.refuse("the operands have unsupported types, or the terms do not match the channels");
  in = contiguous(graph, in);
  Push push;
  const int64_t count = push_windows(it, &push);
  push << call.integer(3) << call.integer(8) << call.integer(9) << call.integer(10) << in.offset
       << terms.offset;
  graph.dispatch(convolution_integer_shader, {weight.kind == Kind::kByte, block_of(it)}, push,
                 {&in, &weight, &terms, &out}, 8, groups_for(count));
}

constexpr NamedOperator kTable[] = {
    {"torchette.quantized_convolution.default", quantized_convolution},
    {"aten.convolution.default", convolution},
    {"et_vk.conv_with_clamp.default", conv_with_clamp},
};

}  // namespace

const Span<const NamedOperator> kConvolutions{kTable, sizeof(kTable) / sizeof(kTable[0])};

bool reads_bytes_of_filters(Operator run) { return run == quantized_convolution; }
bool is_convolution(Operator run) { return run == convolution || run == conv_with_clamp; }

int64_t padded_filters(const View& weight) { return (weight.sizes[0] + 3) / 4 * 4; }

void pack_filters(View* weight) {
  int64_t stride = padded_filters(*weight);
  for (int d = weight->rank - 1; d > 0; --d) {
    weight->strides[d] = stride;
    stride *= weight->sizes[d];
  }
  weight->strides[0] = 1;
}

}  // namespace vulkan
}  // namespace torchette
