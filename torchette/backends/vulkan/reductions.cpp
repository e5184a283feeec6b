// SPDX-License-Identifier: BSD-3-Clause
// Reductions, argmax and argmin, and cumulative sums.
#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

enum Mode : uint32_t { kSum, kMean, kLargest, kSmallest, kProduct, kAny, kAll, kVariance };
enum Gives : uint32_t { kNumbers, kWhole, kPlaces };
constexpr int kMostParts = 4;

/// Reduces `dims`, or all dimensions if it is empty. `places`: returns the index of the maximum or minimum.
void reduce(Call& call, Mode mode, const Numbers& dims, bool keeps, double correction = 0, int result = 0,
            bool places = false) {
  Graph& graph = call.graph;
  View in = call.tensor(0);
  uint32_t gone = dims.count == 0 ? (1u << in.rank) - 1 : 0;
  for (int i = 0; i < dims.count; ++i) gone |= 1u << dim_of(call, dims[i], in.rank);
  if (in.rank == 0) gone = 0;
  Numbers sizes;
  View kept = in, over = in;
  kept.rank = over.rank = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (int d = 0; d < in.rank; ++d) {
      const bool goes = (gone >> d & 1) != 0;
      View& side = goes ? over : kept;
      side.sizes[side.rank] = in.sizes[d];
      side.strides[side.rank++] = in.strides[d];
    }
    const int64_t total = in.numel();
    if (collapse({&kept}, kMostParts) & collapse({&over}, kMostParts)) break;
    if (pass == 1 || total == 0) return call.refuse("it reduces too many separate dimensions");
    in = contiguous(graph, in);
    kept = over = in;
    kept.rank = over.rank = 0;
  }
  for (int d = 0; d < in.rank; ++d) {
    const bool goes = (gone >> d & 1) != 0;
    if (!goes || keeps) sizes.items[sizes.count++] = goes ? 1 : in.sizes[d];
  }
  const View out = call.result(result, sizes);
  if (!call.ok()) return;
  const int64_t size = over.numel();
  if (size == 0 && mode != kSum && mode != kProduct && mode != kAny && mode != kAll && mode != kMean)
    return call.refuse("it reduces an empty dimension");
  Push push;
  push << out.numel() << size;
  for (const View* view : {&kept, &over}) {
    for (int d = 0; d < kMostParts; ++d)
      push << (d < kMostParts - view->rank ? 1 : view->sizes[d - (kMostParts - view->rank)]);
    for (int d = 0; d < kMostParts; ++d)
      push << (d < kMostParts - view->rank ? 0 : view->strides[d - (kMostParts - view->rank)]);
  }
  push << in.offset << correction;
  const bool whole =
      in.kind == Kind::kInt && mode != kMean && mode != kAny && mode != kAll && mode != kVariance;
  const uint32_t gives = places ? kPlaces : whole ? kWhole : kNumbers;
  const bool halves = in.kind == Kind::kHalf || out.kind == Kind::kHalf;
  graph.dispatch(halves ? reduce_half_shader : reduce_shader,
                 {mode, static_cast<uint32_t>(in.kind), static_cast<uint32_t>(out.kind), gives}, push,
                 {&in, &out}, 2, out.numel());
}

template <Mode kMode>
void over_dims(Call& call) {
  reduce(call, kMode, call.numbers(1), call.flag(2));
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
void place(Call& call) {
  Numbers dims;
  if (call.has(1)) dims.count = 1, dims.items[0] = call.integer(1);
  reduce(call, kMode, dims, call.flag(2), 0, 0, true);
}
template <Mode kMode>
void with_place(Call& call) {
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
    {"aten.mean.dim", over_dims<kMean>},
    {"aten.mean.default", over_all<kMean>},
    {"aten.amax.default", over_dims<kLargest>},
    {"aten.amin.default", over_dims<kSmallest>},
    {"aten.max.default", over_all<kLargest>},
    {"aten.min.default", over_all<kSmallest>},
    {"aten.max.dim", with_place<kLargest>},
    {"aten.min.dim", with_place<kSmallest>},
    {"aten.prod.default", over_all<kProduct>},
    {"aten.prod.dim_int", over_one<kProduct>},
    {"aten.any.default", over_all<kAny>},
    {"aten.any.dim", over_one<kAny>},
    {"aten.any.dims", over_dims<kAny>},
    {"aten.all.default", over_all<kAll>},
    {"aten.all.dim", over_one<kAll>},
    {"aten.argmax.default", place<kLargest>},
    {"aten.argmin.default", place<kSmallest>},
    {"aten.var.correction", variance},
    {"aten.var.dim", variance_dim},
    {"aten.cumsum.default", cumsum},
};

}  // namespace

const Span<const NamedOperator> kReductions{kTable, sizeof(kTable) / sizeof(kTable[0])};

}  // namespace vulkan
}  // namespace torchette
