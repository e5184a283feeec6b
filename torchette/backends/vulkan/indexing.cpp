// SPDX-License-Identifier: BSD-3-Clause
// Operators that read or write elements at the indices in a tensor.
#include <algorithm>

#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

void gather_rows(Call& call, View table, View indices, int dim, const Numbers& sizes) {
  Graph& graph = call.graph;
  const View out = call.result(0, sizes);
  if (!call.ok() || out.numel() == 0) return;
  if (indices.kind != Kind::kInt || out.kind != table.kind)
    return call.refuse("the indices are not integers, or the result has another type than the table");
  table = contiguous(graph, table);
  indices = contiguous(graph, indices);
  if (table.size(dim) == 0) return call.refuse("the table is empty");
  int64_t inner = 1;
  for (int d = dim + 1; d < table.rank; ++d) inner *= table.sizes[d];
  Push push;
  push << out.numel() << indices.numel() << table.size(dim) << inner << table.size(dim) * inner << inner
       << table.offset << indices.offset;
  graph.dispatch(variant(out.kind, gather_shader, gather_half_shader), {}, push, {&table, &indices, &out}, 4,
                 groups_for(out.numel()));
}

/// The sizes of `table` with dimension `dim` replaced by the sizes of `indices`.
Numbers replaced(Call& call, const View& table, int dim, const View& indices) {
  Numbers sizes;
  if (table.rank - 1 + indices.rank > kMaxDims) {
    call.refuse("the result has more than eight dimensions");
    return sizes;
  }
  for (int d = 0; d < table.rank; ++d) {
    if (d != dim) {
      sizes.items[sizes.count++] = table.sizes[d];
    } else {
      for (int k = 0; k < indices.rank; ++k) sizes.items[sizes.count++] = indices.sizes[k];
    }
  }
  return sizes;
}

// (weight, indices, ...)
void embedding(Call& call) {
  const View table = call.tensor(0), indices = call.tensor(1);
  if (table.rank != 2) return call.refuse("the table is not a matrix");
  gather_rows(call, table, indices, 0, replaced(call, table, 0, indices));
}

// (self, dim, index)
void index_select(Call& call) {
  const View table = call.tensor(0), indices = call.tensor(2);
  const int dim = dim_of(call, call.integer(1), table.rank);
  if (table.rank == 0 || indices.rank > 1)
    return call.refuse("the input is a scalar, or the index has more than one dimension");
  View list = indices;
  if (indices.rank == 0) list.rank = 1, list.sizes[0] = 1, list.strides[0] = 1;
  gather_rows(call, table, list, dim, replaced(call, table, dim, list));
}

constexpr uint32_t kGet = 0, kPut = 1, kPutScalar = 2;  // modes of scatter.comp and index.comp
constexpr int kMaxIndices = 4;

/// A table and the indices of adjacent dimensions of it.
struct Indices {
  View table;  // dimensions in the order of the result
  View indices[kMaxIndices];
  int count = 0, first = 0;
  Numbers sizes;  // of the result
};

/// Like torch, the result has the dimensions of the indices at the first indexed dimension, or first if the
/// indexed dimensions are not adjacent.
bool read_indices(Call& call, const View& table, const std::vector<View>& all, Indices* out) {
  int dims[kMaxDims], last = -1;
  bool together = true;
  if (static_cast<int>(all.size()) > table.rank) {
    call.refuse("there are more indices than dimensions");
    return false;
  }
  View like;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].storage < 0) continue;
    if (out->count == kMaxIndices || all[i].kind != Kind::kInt) {
      call.refuse("there are more than four indices, or one is not of integers");
      return false;
    }
    together = together && (last < 0 || last == static_cast<int>(i) - 1);
    last = static_cast<int>(i);
    dims[out->count] = last;
    out->indices[out->count++] = all[i];
    for (int d = 1; d <= all[i].rank; ++d) {
      const int64_t size = all[i].sizes[all[i].rank - d];
      int64_t& own_dim = like.sizes[kMaxDims - d];
      if (d > like.rank) own_dim = size;
      if (own_dim == 1) own_dim = size;
    }
    like.rank = std::max(like.rank, all[i].rank);
  }
  if (out->count == 0 || table.rank - out->count + like.rank > kMaxDims) {
    call.refuse("there is no index, or the result has more than eight dimensions");
    return false;
  }
  memmove(like.sizes, like.sizes + kMaxDims - like.rank, sizeof(int64_t) * static_cast<size_t>(like.rank));
  like.make_contiguous_strides();
  for (int i = 0; i < out->count; ++i)
    out->indices[i] = contiguous(call.graph, broadcast(call.graph, out->indices[i], like));
  out->first = together ? dims[0] : 0;
  out->table = table;
  int to = 0;
  const auto move = [&](int d) {
    out->table.sizes[to] = table.sizes[d];
    out->table.strides[to++] = table.strides[d];
  };
  const auto is_indexed = [&](int d) { return std::find(dims, dims + out->count, d) != dims + out->count; };
  for (int d = 0; d < out->first; ++d) move(d);
  for (int i = 0; i < out->count; ++i) move(dims[i]);
  for (int d = out->first; d < table.rank; ++d)
    if (!is_indexed(d)) move(d);
  for (int d = 0; d < table.rank; ++d) {
    if (d == out->first)
      for (int k = 0; k < like.rank; ++k) out->sizes.items[out->sizes.count++] = like.sizes[k];
    if (d < out->first || d >= out->first + out->count)
      out->sizes.items[out->sizes.count++] = out->table.sizes[d];
  }
  for (int i = 0; i < out->count; ++i)
    if (out->table.sizes[out->first + i] == 0 && like.numel() != 0) call.refuse("the table is empty");
  return call.ok();
}

/// `other` has the layout of the result of a read.
void index_many(Call& call, const Indices& it, uint32_t mode, const View& other) {
  Graph& graph = call.graph;
  if (!call.ok() || other.numel() == 0) return;
  View outer = it.table, inner = it.table;
  outer.rank = it.first;
  inner.rank = it.table.rank - it.first - it.count;
  for (int d = 0; d < inner.rank; ++d) {
    inner.sizes[d] = it.table.sizes[it.first + it.count + d];
    inner.strides[d] = it.table.strides[it.first + it.count + d];
  }
  if (!collapse({&outer}, 1) || !collapse({&inner}, 1)) {
    if (mode != kGet) return call.refuse("the dimensions of the written tensor cannot be collapsed");
    Indices copied = it;
    copied.table = contiguous(graph, it.table);
    return index_many(call, copied, mode, other);
  }
  Push push;
  push << other.numel() << it.indices[0].numel() << inner.numel() << (outer.rank == 0 ? 0 : outer.strides[0])
       << (inner.rank == 0 ? 0 : inner.strides[0]) << it.table.offset << other.offset;
  for (int i = 0; i < kMaxIndices; ++i) push << (i < it.count ? it.table.sizes[it.first + i] : 1);
  for (int i = 0; i < kMaxIndices; ++i) push << (i < it.count ? it.table.strides[it.first + i] : 0);
  for (int i = 0; i < kMaxIndices; ++i) push << (i < it.count ? it.indices[i].offset : 0);
  const View* indices[kMaxIndices];
  for (int i = 0; i < kMaxIndices; ++i) indices[i] = &it.indices[i < it.count ? i : 0];
  const bool is_read = mode == kGet;
  graph.dispatch(variant(other.kind, index_shader, index_half_shader),
                 {mode, static_cast<uint32_t>(it.count)}, push,
                 {is_read ? &it.table : &other, is_read ? &other : &it.table, indices[0], indices[1],
                  indices[2], indices[3]},
                 2, groups_for(other.numel()));
}

// (self, indices)
void index(Call& call) {
  const View table = call.tensor(0);
  Indices it;
  if (!call.ok() || !read_indices(call, table, call.tensors(1), &it)) return;
  if (it.count == 1) return gather_rows(call, table, it.indices[0], it.first, it.sizes);
  const View out = call.result(0, it.sizes);
  if (out.kind != table.kind) return call.refuse("the result has another type than the table");
  index_many(call, it, kGet, out);
}

/// Writes `values`, which may broadcast, into a copy of the first operand.
void put(Call& call, const std::vector<View>& indices, const View& values) {
  const View given = call.tensor(0);
  if (!call.ok()) return;
  const View out = call.changed(given);
  Indices it;
  if (!call.ok() || !read_indices(call, out, indices, &it)) return;
  View like;
  like.rank = it.sizes.count;
  memcpy(like.sizes, it.sizes.items, sizeof(like.sizes));
  const View values_view =
      contiguous(call.graph, broadcast(call.graph, converted(call.graph, values, out.kind), like));
  index_many(call, it, kPut, values_view);
}

// (self, indices, values, accumulate)
void index_put(Call& call) {
  if (call.flag(3)) return call.refuse("accumulate is not supported");
  put(call, call.tensors(1), call.tensor(2));
}

// (self, dim, index, source)
void index_copy(Call& call) {
  const View given = call.tensor(0), place = call.tensor(2);
  const int dim = dim_of(call, call.integer(1), given.rank);
  std::vector<View> indices(static_cast<size_t>(dim) + 1);
  indices.back() = place;
  if (place.rank == 0) indices.back().rank = 1, indices.back().sizes[0] = 1, indices.back().strides[0] = 1;
  put(call, indices, call.tensor(3));
}

/// Reads or writes one element for each index. `other` has the layout of the indices, unless a scalar is
/// written.
void access_each(Call& call, uint32_t mode, const View& table, int dim, const View& given, const View& other,
                 uint32_t number) {
  Graph& graph = call.graph;
  View indices = given;
  if (!call.ok() || indices.numel() == 0) return;
  if (indices.kind != Kind::kInt || indices.rank != table.rank)
    return call.refuse("the index is not of integers, or has another rank than the table");
  for (int d = 0; d < indices.rank; ++d)
    if (d != dim && indices.sizes[d] > table.sizes[d])
      return call.refuse("the index is larger than the table");
  if (table.size(dim) == 0) return call.refuse("the table is empty");
  indices = contiguous(graph, indices);
  const int rank = std::max(indices.rank, 1);
  Push push;
  push << indices.numel();
  for (int d = 0; d < kMaxDims; ++d) push << (d < indices.rank ? indices.sizes[d] : 1);
  for (int d = 0; d < kMaxDims; ++d) push << (d < indices.rank && d != dim ? table.strides[d] : 0);
  push << (table.rank == 0 ? 0 : table.strides[dim]) << table.size(dim) << table.offset << other.offset
       << indices.offset << number;
  const bool is_read = mode == kGet;
  graph.dispatch(
      variant(table.kind, scatter_shader, scatter_half_shader), {mode, static_cast<uint32_t>(rank)}, push,
      {is_read ? &table : &other, &indices, is_read ? &other : &table}, 4, groups_for(indices.numel()));
}

// (self, dim, index)
void gather(Call& call) {
  const View table = call.tensor(0), indices = call.tensor(2);
  const int dim = dim_of(call, call.integer(1), table.rank);
  const View out = call.result_like(0, indices);
  if (out.kind != table.kind) return call.refuse("the result has another type than the table");
  access_each(call, kGet, table, dim, indices, out, 0);
}

// (self, dim, index, src)
void scatter(Call& call) {
  const View given = call.tensor(0), indices = call.tensor(2);
  const int dim = dim_of(call, call.integer(1), given.rank);
  View source = call.tensor(3);
  if (source.rank != indices.rank) return call.refuse("the source and the index have different ranks");
  for (int d = 0; d < indices.rank; ++d) {
    if (indices.sizes[d] > source.sizes[d]) return call.refuse("the index is larger than the source");
    source.sizes[d] = indices.sizes[d];
  }
  if (!call.ok()) return;
  const View out = call.changed(given);
  access_each(call, kPut, out, dim, indices, contiguous(call.graph, converted(call.graph, source, out.kind)),
              0);
}

// (self, dim, index, value)
void scatter_scalar(Call& call) {
  const View given = call.tensor(0);
  const int dim = dim_of(call, call.integer(1), given.rank);
  const double value = call.real(3);
  const View out = call.changed(given);
  uint32_t number = static_cast<uint32_t>(static_cast<int32_t>(value));
  if (is_float(out.kind)) {
    const auto real = static_cast<float>(value);
    memcpy(&number, &real, 4);
  }
  access_each(call, kPutScalar, out, dim, call.tensor(2), out, number);
}

constexpr NamedOperator kTable[] = {
    {"aten.embedding.default", embedding}, {"aten.index_select.default", index_select},
    {"aten.index.Tensor", index},          {"aten.gather.default", gather},
    {"aten.index_put.default", index_put}, {"aten.index_copy.default", index_copy},
    {"aten.scatter.src", scatter},         {"aten.scatter.value", scatter_scalar},
};

}  // namespace

const Span<const NamedOperator> kIndexing{kTable, sizeof(kTable) / sizeof(kTable[0])};

}  // namespace vulkan
}  // namespace torchette
