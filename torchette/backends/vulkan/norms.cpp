// SPDX-License-Identifier: BSD-3-Clause
// Softmax and normalizations.
#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

constexpr uint32_t kLayer = 0, kGroups = 1, kMeanSquare = 2;

template <SoftmaxMode kMode>
void softmax_call(Call& call) {
  const View in = call.tensor(0);
  const int dim = dim_of(call, call.integer(1), in.rank);
  const View out = call.result_like(0, in);
  softmax(call.graph, in, dim, kMode, out);
}

struct Affine {
  View weight, bias;
  bool has_weight = false, has_bias = false;
};

/// Reads weight and bias, arguments `i` and `j`, with `size` elements each, converted to `kind`.
Affine affine(Call& call, int i, int j, int64_t size, Kind kind) {
  Affine found;
  for (const bool second : {false, true}) {
    const int at = second ? j : i;
    if (!call.has(at)) continue;
    const View given = call.tensor(at);
    if (given.numel() != size) call.refuse("a weight or bias has the wrong number of elements");
    if (!call.ok()) return found;
    (second ? found.bias : found.weight) = contiguous(call.graph, converted(call.graph, given, kind));
    (second ? found.has_bias : found.has_weight) = true;
  }
  return found;
}

void normalize(Call& call, uint32_t mode, const View& given, const Affine& weights, int64_t size,
               int64_t groups, int64_t channels, int64_t pixels, double epsilon, const Numbers& statistics) {
  Graph& graph = call.graph;
  const View out = call.result_like(0, given);
  if (!call.ok()) return;
  if (!is_float(out.kind)) return call.refuse("the result is not in floating point");
  const View in = contiguous(graph, converted(graph, given, out.kind));
  const bool with_statistics = call.wants(2);
  View means = out, scales = out;
  if (with_statistics) means = call.result(1, statistics), scales = call.result(2, statistics);
  if (means.kind != out.kind || scales.kind != out.kind)
    return call.refuse("the statistics have another type than the result");
  if (!call.ok() || size == 0) return;
  Push push;
  push << in.numel() / size << size << groups << channels << pixels << in.offset;
  push << (weights.has_weight ? weights.weight.offset : 0) << (weights.has_bias ? weights.bias.offset : 0)
       << epsilon;
  graph.dispatch(variant(out.kind, normalize_shader, normalize_half_shader),
                 {mode, weights.has_weight, weights.has_bias, with_statistics}, push,
                 {&in, weights.has_weight ? &weights.weight : &in, weights.has_bias ? &weights.bias : &in,
                  &out, &means, &scales},
                 8 | 16 | 32, in.numel() / size);
}

// (input, normalized_shape, weight, bias, eps) -> out, mean, rstd
void layer_norm(Call& call) {
  const View in = call.tensor(0);
  const Numbers shape = call.numbers(1);
  int64_t size = 1;
  Numbers statistics = sizes_of(in);
  for (int d = 0; d < shape.count; ++d) {
    const int own = in.rank - shape.count + d;
    if (own < 0 || in.sizes[own] != shape[d])
      return call.refuse("normalized_shape does not match the last dimensions");
    size *= shape[d];
    statistics.items[own] = 1;
  }
  const Affine weights = affine(call, 2, 3, size, call.result_kind(0));
  normalize(call, kLayer, in, weights, size, 1, 1, 1, call.real(4, 1e-5), statistics);
}

// (x, weight, eps), or torch's (input, normalized_shape, weight, eps)
void rms_norm(Call& call) {
  const View in = call.tensor(0);
  const bool shaped = call.count() == 4;
  const int64_t size = in.size(-1);
  if (shaped) {
    const Numbers shape = call.numbers(1);
    if (shape.count != 1 || shape[0] != size)
      return call.refuse("normalized_shape is not the last dimension");
  }
  const Affine weights = affine(call, shaped ? 2 : 1, -1, size, call.result_kind(0));
  normalize(call, kMeanSquare, in, weights, size, 1, 1, 1, call.real(shaped ? 3 : 2, 1.1920929e-07),
            Numbers());
}

// (input, weight, bias, N, C, HxW, group, eps) -> out, mean, rstd
void group_norm(Call& call) {
  const View in = call.tensor(0);
  const int64_t channels = in.size(1), groups = call.integer(6);
  if (in.rank < 2 || groups < 1 || channels % groups != 0 || channels == 0)
    return call.refuse("the channels are not divisible by the groups");
  int64_t pixels = 1;
  for (int d = 2; d < in.rank; ++d) pixels *= in.sizes[d];
  Numbers statistics;
  statistics.count = 2;
  statistics.items[0] = in.sizes[0];
  statistics.items[1] = groups;
  const Affine weights = affine(call, 1, 2, channels, call.result_kind(0));
  normalize(call, kGroups, in, weights, channels / groups * pixels, groups, channels, pixels, call.real(7),
            statistics);
}

// (input, weight, bias, training, momentum, eps) -> out, mean, rstd. Of one image: mean and rstd for each
// channel.
void instance_norm(Call& call) {
  const View in = call.tensor(0);
  if (in.rank < 3 || in.sizes[0] != 1 || in.sizes[1] == 0)
    return call.refuse("the input is not a batch of one image");
  const int64_t channels = in.sizes[1], pixels = in.numel() / channels;
  Numbers statistics;
  statistics.count = 1;
  statistics.items[0] = channels;
  const Affine weights = affine(call, 1, 2, channels, call.result_kind(0));
  normalize(call, kGroups, in, weights, pixels, channels, channels, pixels, call.real(5), statistics);
}

// (input, weight, bias, mean, variance, momentum, eps) -> out, and two empty tensors
void batch_norm(Call& call) {
  Graph& graph = call.graph;
  const View given = call.tensor(0);
  if (given.rank < 2) return call.refuse("the input has no channel dimension");
  const View out = call.result_like(0, given);
  if (!call.ok()) return;
  const View in = contiguous(graph, converted(graph, given, out.kind));
  const int64_t channels = in.sizes[1];
  const Affine weights = affine(call, 1, 2, channels, out.kind),
               moments = affine(call, 3, 4, channels, out.kind);
  if (!call.ok() || in.numel() == 0) return;
  if (!moments.has_weight || !moments.has_bias || !is_float(out.kind))
    return call.refuse("the mean or the variance is absent, or the result is not in floating point");
  for (const View* it : {&weights.weight, &weights.bias, &moments.weight, &moments.bias})
    if (it->offset != 0) return call.refuse("a weight is a view with an offset");
  Numbers none;
  none.count = 1;
  for (int i = 1; i < call.results(); ++i) call.result(i, none);
  Push push;
  push << in.numel() << channels << in.numel() / (in.sizes[0] * channels) << in.offset << call.real(6);
  graph.dispatch(variant(out.kind, batch_norm_shader, batch_norm_half_shader),
                 {weights.has_weight, weights.has_bias}, push,
                 {&in, weights.has_weight ? &weights.weight : &in, weights.has_bias ? &weights.bias : &in,
                  &moments.weight, &moments.bias, &out},
                 32, groups_for(in.numel()));
}

constexpr NamedOperator kTable[] = {
    {"aten._softmax.default", softmax_call<SoftmaxMode::kPlain>},
    {"aten._log_softmax.default", softmax_call<SoftmaxMode::kLogarithm>},
    {"aten.native_layer_norm.default", layer_norm},
    {"aten.native_group_norm.default", group_norm},
    {"aten.rms_norm.default", rms_norm},
    {"et_vk.rms_norm.default", rms_norm},
    {"aten._native_batch_norm_legit_no_training.default", batch_norm},
    {"aten._native_batch_norm_legit.no_stats", instance_norm},
};

}  // namespace

const Span<const NamedOperator> kNorms{kTable, sizeof(kTable) / sizeof(kTable[0])};

void softmax(Graph& graph, const View& given, int dim, SoftmaxMode mode, const View& out) {
  if (!graph.ok()) return;
  if (!is_float(out.kind)) return graph.fail(Error::NotSupported);
  const View in = contiguous(graph, converted(graph, given, out.kind));
  const int64_t size = in.size(dim);
  if (size == 0) return;
  int64_t inner = 1;
  for (int d = dim + 1; d < in.rank; ++d) inner *= in.sizes[d];
  const int64_t rows = in.numel() / size;
  Push push;
  push << rows << size << inner << in.offset;
  graph.dispatch(variant(out.kind, softmax_shader, softmax_half_shader), {static_cast<uint32_t>(mode)}, push,
                 {&in, &out}, 2, rows);
}

}  // namespace vulkan
}  // namespace torchette
