// SPDX-License-Identifier: BSD-3-Clause
// Squeeze-and-excitation in two dispatches: the means of the channels, then x *
// gate(layer(activation(layer(means)))).
#include <algorithm>
#include <cstring>

#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

// Limits of excite.comp: its shared memory, and the multiplications that each workgroup repeats.
constexpr int64_t kMaxHidden = 256, kMaxBlock = 128, kMaxRepeated = 1 << 17;

/// A convolution of one pixel: its weights (outputs, inputs), contiguous, and its bias.
struct Layer {
  View weight, bias;
  bool has_bias = false;
};

/// Whether `call` is a dense convolution of value `input` with one tap.
bool read_layer(Call& call, int input, Kind kind, Layer* out) {
  if (strcmp(call.name(), "aten.convolution.default") != 0 || call.count() < 9 ||
      call.value_index(0) != input || !call.is_computed(1) || call.flag(6) || call.integer(8) != 1)
    return false;
  out->weight = call.tensor(1);
  bool fits = out->weight.rank == 4 && out->weight.kind == kind && out->weight.is_contiguous() &&
              out->weight.sizes[2] == 1 && out->weight.sizes[3] == 1;
  const Numbers pads = call.numbers(4);
  for (int i = 0; i < pads.count; ++i) fits = fits && pads[i] == 0;
  out->has_bias = call.has(2);
  if (!out->has_bias) return fits;
  if (!call.is_computed(2)) return false;
  out->bias = call.tensor(2);
  return fits && out->bias.kind == kind && out->bias.is_contiguous() &&
         out->bias.numel() == out->weight.sizes[0];
}

/// The calls after the means: a layer, an activation, a layer, a gate and a multiplication.
struct Excitation {
  int steps[5];
  Layer first, second;
  Epilogue activation, gate;
};

/// Reads the calls after `pool`, the global mean of x. Returns false if they are not squeeze-and-excitation.
bool read_excitation(const Call& pool, const View& x, Excitation* out) {
  View value;
  value.kind = x.kind;
  for (int i = 0; i < 5; ++i) {
    const Call call = i == 0 ? pool : pool.graph.call_of(out->steps[i - 1]);
    const int input = call.result_index();
    out->steps[i] = call.only_reader();
    if (out->steps[i] < 0) return false;
    Call next = pool.graph.call_of(out->steps[i]);
    if (next.result_kind(0) != x.kind) return false;
    bool fits = false;
    if (i == 0 || i == 2) {
      fits = read_layer(next, input, x.kind, i == 0 ? &out->first : &out->second);
    } else if (i < 4) {
      fits = as_epilogue(next, value, input, EpilogueOperand::kNone, i == 1 ? &out->activation : &out->gate);
    } else {
      const int a = next.value_index(0), b = next.value_index(1), given = pool.value_index(0);
      fits = strcmp(next.name(), "aten.mul.Tensor") == 0 &&
             ((a == input && b == given) || (a == given && b == input));
    }
    if (!fits) return false;
  }
  const View &w1 = out->first.weight, &w2 = out->second.weight;
  return w1.sizes[1] == x.sizes[1] && w2.sizes[0] == x.sizes[1] && w2.sizes[1] == w1.sizes[0];
}

}  // namespace

void excite(const Call& pool, const View& x, const View& means) {
  Graph& graph = pool.graph;
  Excitation it;
  if (!graph.ok() || x.rank != 4 || x.numel() == 0 || graph.max_bindings() < excite_shader.bindings ||
      !read_excitation(pool, x, &it) || !graph.ok())
    return;
  const int64_t images = x.sizes[0], channels = x.sizes[1], area = x.sizes[2] * x.sizes[3],
                hidden = it.first.weight.sizes[0], enough = graph.enough_groups();
  const int64_t block = (channels + 16 * enough - 1) / (16 * enough) * 16;
  if (hidden > kMaxHidden || block > kMaxBlock || hidden * channels > kMaxRepeated) return;
  const int64_t blocks = (channels + block - 1) / block;
  const int64_t elements = block * area,
                layers = std::clamp<int64_t>(elements / 1024, 1, std::max<int64_t>(enough / blocks, 1));
  const int64_t chunk = (elements + layers - 1) / layers;
  const View in = contiguous(graph, x), mean = contiguous(graph, means);
  const View out = graph.call_of(it.steps[4]).result(0, sizes_of(x));
  for (const int step : it.steps) graph.mark_done(step);
  if (!graph.ok()) return;
  Push push;
  push << images << channels << hidden << area << block << chunk << in.offset << it.first.weight.offset
       << it.first.bias.offset << it.second.weight.offset << it.second.bias.offset;
  push << it.activation.p << it.activation.q << it.gate.p << it.gate.q;
  const auto bias = [](const Layer& layer) { return layer.has_bias ? &layer.bias : &layer.weight; };
  graph.dispatch(variant(out.kind, excite_shader, excite_half_shader),
                 {it.first.has_bias, it.second.has_bias, it.activation.operation, it.gate.operation}, push,
                 {&in, &mean, &it.first.weight, bias(it.first), &it.second.weight, bias(it.second), &out}, 64,
                 images * blocks, layers);
}

}  // namespace vulkan
}  // namespace torchette
