// SPDX-License-Identifier: BSD-3-Clause
// Operators that read where another tensor says.
#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

void gather_rows(Call& call, View table, View places, int dim, const Numbers& sizes, bool for_each) {
  Graph& graph = call.graph;
  const View out = call.result(0, sizes);
  if (!call.ok() || out.numel() == 0) return;
  if (places.kind != Kind::kInt || out.kind != table.kind)
    return call.refuse("an index is no whole number, or the result is of another type");
  table = contiguous(graph, table);
  places = contiguous(graph, places);
  if (table.size(dim) == 0) return call.refuse("the table is empty");
  int64_t inner = 1, out_inner = 1;
  for (int d = dim + 1; d < table.rank; ++d) inner *= table.sizes[d];
  if (for_each) {
    // each element has its place; other dimensions may be shorter than the table's, which strides of one step
    // cannot say
    for (int d = 0; d < table.rank; ++d)
      if (d != dim && places.sizes[d] != table.sizes[d])
        return call.refuse("the index is smaller than the table");
  }
  out_inner = inner;
  const int64_t count = for_each ? places.size(dim) : places.numel();
  Push push;
  push << out.numel() << count << table.size(dim) << out_inner << table.size(dim) * inner << inner
       << table.offset << places.offset;
  graph.dispatch(variant(out.kind, gather_shader, gather_half_shader), {for_each}, push,
                 {&table, &places, &out}, 4, groups_for(out.numel()));
}

/// The sizes of `table` with those of `places` where its dimension `dim` was.
Numbers replaced(Call& call, const View& table, int dim, const View& places) {
  Numbers sizes;
  if (table.rank - 1 + places.rank > kMostDims) {
    call.refuse("the result has more than eight dimensions");
    return sizes;
  }
  for (int d = 0; d < table.rank; ++d) {
    if (d != dim) {
      sizes.items[sizes.count++] = table.sizes[d];
    } else {
      for (int k = 0; k < places.rank; ++k) sizes.items[sizes.count++] = places.sizes[k];
    }
  }
  return sizes;
}

// (weight, indices, ...)
void embedding(Call& call) {
  const View table = call.tensor(0), places = call.tensor(1);
  if (table.rank != 2) return call.refuse("the table is no matrix");
  gather_rows(call, table, places, 0, replaced(call, table, 0, places), false);
}

// (self, dim, index)
void index_select(Call& call) {
  const View table = call.tensor(0), places = call.tensor(2);
  const int dim = dim_of(call, call.integer(1), table.rank);
  if (table.rank == 0 || places.rank > 1)
    return call.refuse("it has no dimensions, or the index more than one");
  View list = places;
  if (places.rank == 0) list.rank = 1, list.sizes[0] = 1, list.strides[0] = 1;
  gather_rows(call, table, list, dim, replaced(call, table, dim, list), false);
}

// (self, indices): one of them
void index(Call& call) {
  const View table = call.tensor(0);
  const std::vector<View> all = call.tensors(1);
  int dim = -1;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].storage < 0) continue;
    if (dim >= 0) return call.refuse("it has several indices");
    dim = static_cast<int>(i);
  }
  if (dim < 0 || dim >= table.rank) return call.refuse("it has no index");
  const View places = all[static_cast<size_t>(dim)];
  gather_rows(call, table, places, dim, replaced(call, table, dim, places), false);
}

// (self, dim, index)
void gather(Call& call) {
  const View table = call.tensor(0), places = call.tensor(2);
  const int dim = dim_of(call, call.integer(1), table.rank);
  if (table.rank == 0 || places.rank != table.rank) return call.refuse("the index has other dimensions");
  gather_rows(call, table, places, dim, sizes_of(places), true);
}

constexpr NamedOperator kTable[] = {
    {"aten.embedding.default", embedding},
    {"aten.index_select.default", index_select},
    {"aten.index.Tensor", index},
    {"aten.gather.default", gather},
};

}  // namespace

const Span<const NamedOperator> kIndexing{kTable, sizeof(kTable) / sizeof(kTable[0])};

}  // namespace vulkan
}  // namespace torchette
