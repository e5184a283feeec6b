// SPDX-License-Identifier: BSD-3-Clause
// Reductions, argmax and argmin, and cumulative sums.
#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

enum Mode : uint32_t { kSum, kMean, kMax, kMin, kProduct, kAny, kAll, kVariance };
enum Output : uint32_t { kValues, kIntegers, kIndices };
constexpr int kMaxParts = 4;

/// Reduces `dims`, or all dimensions if it is empty. `returns_indices`: returns the index of the maximum or
/// minimum. Returns the result.
View reduce(Call& call, Mode mode, const Numbers& dims, bool keeps_dims, double correction = 0,
            int result = 0, bool returns_indices = false) {
  Graph& graph = call.graph;
  View in = call.tensor(0);
  uint32_t reduced = dims.count == 0 ? (1u << in.rank) - 1 : 0;
  for (int i = 0; i < dims.count; ++i) reduced |= 1u << dim_of(call, dims[i], in.rank);
  if (in.rank == 0) reduced = 0;
  Numbers sizes;
  View kept = in, over = in;
  kept.rank = over.rank = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (int d = 0; d < in.rank; ++d) {
      const bool is_reduced = (reduced >> d & 1) != 0;
      View& side = is_reduced ? over : kept;
      side.sizes[side.rank] = in.sizes[d];
      side.strides[side.rank++] = in.strides[d];
    }
    const int64_t total = in.numel();
    if (collapse({&kept}, kMaxParts) & collapse({&over}, kMaxParts)) break;
    if (pass == 1 || total == 0) {
      call.refuse("it reduces too many separate dimensions");
      return View();
    }
    in = contiguous(graph, in);
    kept = over = in;
    kept.rank = over.rank = 0;
  }
  for (int d = 0; d < in.rank; ++d) {
    const bool is_reduced = (reduced >> d & 1) != 0;
    if (!is_reduced || keeps_dims) sizes.items[sizes.count++] = is_reduced ? 1 : in.sizes[d];
  }
  const View out = call.result(result, sizes);
  if (!call.ok()) return View();
  const int64_t size = over.numel();
  if (size == 0 && mode != kSum && mode != kProduct && mode != kAny && mode != kAll && mode != kMean) {
    call.refuse("it reduces an empty dimension");
    return View();
  }
  Push push;
  push << out.numel() << size;
  for (const View* view : {&kept, &over}) {
    for (int d = 0; d < kMaxParts; ++d)
      push << (d < kMaxParts - view->rank ? 1 : view->sizes[d - (kMaxParts - view->rank)]);
    for (int d = 0; d < kMaxParts; ++d)
      push << (d < kMaxParts - view->rank ? 0 : view->strides[d - (kMaxParts - view->rank)]);
  }
  push << in.offset << correction;
  const bool is_integer =
      in.kind == Kind::kInt && mode != kMean && mode != kAny && mode != kAll && mode != kVariance;
  const uint32_t output = returns_indices ? kIndices : is_integer ? kIntegers : kValues;
  const bool is_half = in.kind == Kind::kHalf || out.kind == Kind::kHalf;
  graph.dispatch(is_half ? reduce_half_shader : reduce_shader,
                 {mode, static_cast<uint32_t>(in.kind), static_cast<uint32_t>(out.kind), output}, push,
                 {&in, &out}, 2, out.numel());
  return out;
}

template <Mode kMode>
void over_dims(Call& call) {
  reduce(call, kMode, call.numbers(1), call.flag(2));
}
void mean(Call& call) {
  const Numbers dims = call.numbers(1);
  const View in = call.tensor(0);
  bool is_global = dims.count == 2 && in.rank == 4 && call.flag(2);
  for (int i = 0; i < dims.count && is_global; ++i) is_global = dim_of(call, dims[i], in.rank) >= 2;
  if (is_global) return global_mean(call);
  reduce(call, kMean, dims, call.flag(2));
}
template <Mode kMode>
void over_all(Call& call) {
  reduce(call, kMode, Numbers(), false);
}
template <Mode kMode>
void over_one(Call& call) {
  Numbers dims;
  dims.count = 1;
  dims.items[0] = call.integer(1);
  reduce(call, kMode, dims, call.flag(2));
}
// dim is None: the index among all elements
template <Mode kMode>
void arg_extreme(Call& call) {
  Numbers dims;
  if (call.has(1)) dims.count = 1, dims.items[0] = call.integer(1);
  reduce(call, kMode, dims, call.flag(2), 0, 0, true);
}
template <Mode kMode>
void extreme_with_index(Call& call) {
  Numbers dims;
  dims.count = 1;
  dims.items[0] = call.integer(1);
  reduce(call, kMode, dims, call.flag(2));
  if (call.wants(1)) reduce(call, kMode, dims, call.flag(2), 0, 1, true);
}
// (self, dim, *, correction, keepdim)
void variance(Call& call) { reduce(call, kVariance, call.numbers(1), call.flag(3), call.real(2, 1)); }
// (self, dim, unbiased, keepdim)
void variance_dim(Call& call) {
  reduce(call, kVariance, call.numbers(1), call.flag(3), call.flag(2) || !call.has(2) ? 1 : 0);
}

// (self, dim, *, dtype)
void cumsum(Call& call) {
  Graph& graph = call.graph;
  const View given = call.tensor(0);
  const int dim = dim_of(call, call.integer(1), given.rank);
  const View out = call.result_like(0, given);
  if (!call.ok() || out.numel() == 0) return;
  const View in = contiguous(graph, converted(graph, given, out.kind));
  int64_t inner = 1;
  for (int d = dim + 1; d < in.rank; ++d) inner *= in.sizes[d];
  const int64_t size = in.size(dim), rows = in.numel() / size;
  Push push;
  push << rows << size << inner << in.offset;
  graph.dispatch(variant(out.kind, cumsum_shader, cumsum_half_shader), {static_cast<uint32_t>(out.kind)},
                 push, {&in, &out}, 2, groups_for(rows));
}

constexpr NamedOperator kTable[] = {
    {"aten.sum.dim_IntList", over_dims<kSum>},
    {"aten.sum.default", over_all<kSum>},
    {"aten.mean.dim", mean},
    {"aten.mean.default", over_all<kMean>},
    {"aten.amax.default", over_dims<kMax>},
    {"aten.amin.default", over_dims<kMin>},
    {"aten.max.default", over_all<kMax>},
    {"aten.min.default", over_all<kMin>},
    {"aten.max.dim", extreme_with_index<kMax>},
    {"aten.min.dim", extreme_with_index<kMin>},
    {"aten.prod.default", over_all<kProduct>},
    {"aten.prod.dim_int", over_one<kProduct>},
    {"aten.any.default", over_all<kAny>},
    {"aten.any.dim", over_one<kAny>},
    {"aten.any.dims", over_dims<kAny>},
    {"aten.all.default", over_all<kAll>},
    {"aten.all.dim", over_one<kAll>},
    {"aten.argmax.default", arg_extreme<kMax>},
    {"aten.argmin.default", arg_extreme<kMin>},
    {"aten.var.correction", variance},
    {"aten.var.dim", variance_dim},
    {"aten.cumsum.default", cumsum},
};

}  // namespace

void global_mean(Call& call) {
  const View in = call.tensor(0);
  Numbers dims;
  dims.count = 2;
  dims.items[0] = -2, dims.items[1] = -1;
  const View means = reduce(call, kMean, dims, true);
  excite(call, in, means);
}

const Span<const NamedOperator> kReductions{kTable, sizeof(kTable) / sizeof(kTable[0])};

}  // namespace vulkan
}  // namespace torchette
