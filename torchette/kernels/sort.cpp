// SPDX-License-Identifier: BSD-3-Clause
// topk and sort. The elements of every line are converted to keys, so that one heap serves all types. The
// order of equal elements is stable.
#include <cstring>

#include "torchette/kernels/dims.h"
#include "torchette/kernels/elementwise.h"
#include "torchette/kernels/keys.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// Finds the `k` largest or smallest elements of every line along `dim`, in order.
Error sort_lines(Context& context, const Tensor& x, int64_t k, int64_t dim, bool largest,
                 const Tensor& values, const Tensor& indices) {
  const auto rank = static_cast<size_t>(x.dim());
  TORCHETTE_TRY(wrap_dim(dim, rank));
  TORCHETTE_TRY(same_type(x, values, "self and values"));
  TORCHETTE_CHECK(is_real(x.scalar_type()) && indices.scalar_type() == ScalarType::Long, InvalidType,
                  "self is of type %d and indices of type %d, expected a real type and int64",
                  static_cast<int>(x.scalar_type()), static_cast<int>(indices.scalar_type()));
  const auto along = static_cast<size_t>(dim);
  const int64_t n = rank == 0 ? 1 : x.sizes()[along];
  if (rank == 0 && k == 0) k = 1;  // as in torch, returns the only element
  TORCHETTE_CHECK(k >= 0 && k <= n, InvalidArgument, "k %lld is out of range for size %lld",
                  static_cast<long long>(k), static_cast<long long>(n));
  SizesType sizes[kMaxDim];
  Walk<3> walk;
  walk.rank = rank;
  for (size_t d = 0; d < rank; ++d) sizes[d] = d == along ? static_cast<SizesType>(k) : x.sizes()[d];
  TORCHETTE_TRY(resize_result(values, {sizes, rank}, "values"));
  TORCHETTE_TRY(resize_result(indices, {sizes, rank}, "indices"));
  if (values.numel() == 0) return Error::Ok;
  const ptrdiff_t element = x.element_size();
  for (size_t d = 0; d < rank; ++d) {
    walk.size[d] = d == along ? 1 : static_cast<size_t>(sizes[d]);
    walk.stride[0][d] = x.strides()[d];
    walk.stride[1][d] = values.strides()[d];
    walk.stride[2][d] = indices.strides()[d];
  }
  const auto step = [&](const Tensor& t) { return rank == 0 ? ptrdiff_t{0} : ptrdiff_t{t.strides()[along]}; };
  const ptrdiff_t x_step = step(x) * element, value_step = step(values) * element, index_step = step(indices);
  const auto room = static_cast<size_t>(k);
  auto* heap = static_cast<Entry*>(context.allocate_temp(room * sizeof(Entry), alignof(Entry)));
  TORCHETTE_CHECK(heap != nullptr, MemoryAllocationFailed, "no scratch memory to sort %zu elements", room);
  const uint64_t turn = largest ? 0 : ~uint64_t{0};
  do {
    const char* from = static_cast<const char*>(x.const_data_ptr()) + walk.offset[0] * element;
    size_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Entry entry = {key_at(from + static_cast<ptrdiff_t>(i) * x_step, x.scalar_type()) ^ turn, i};
      if (count < room) {
        sift_up(heap, count, entry);
        ++count;
      } else if (entry.before(heap[0])) {
        sift_down(heap, count, entry);
      }
    }
    char* to = static_cast<char*>(values.mutable_data_ptr()) + walk.offset[1] * element;
    int64_t* positions = indices.mutable_data_ptr<int64_t>() + walk.offset[2];
    while (count > 0) {
      const int64_t i = heap[0].index;
      --count;
      if (count > 0) sift_down(heap, count, heap[count]);
      const auto position = static_cast<ptrdiff_t>(count);
      memmove(to + position * value_step, from + static_cast<ptrdiff_t>(i) * x_step,
              static_cast<size_t>(element));
      positions[position * index_step] = i;
    }
  } while (walk.next());
  return Error::Ok;
}

}  // namespace

static Error topk_values(Context& context, const Tensor& x, int64_t k, int64_t dim, bool largest, bool,
                         Tensor& values, Tensor& indices) {
  return sort_lines(context, x, k, dim, largest, values, indices);
}
static Error sort_values(Context& context, const Tensor& x, int64_t dim, bool descending, Tensor& values,
                         Tensor& indices) {
  int64_t along = dim;
  TORCHETTE_TRY(wrap_dim(along, static_cast<size_t>(x.dim())));
  const int64_t n = x.dim() == 0 ? 1 : x.sizes()[static_cast<size_t>(along)];
  return sort_lines(context, x, n, dim, descending, values, indices);
}
static Error sort_values_stable(Context& context, const Tensor& x, Optional<bool>, int64_t dim,
                                bool descending, Tensor& values, Tensor& indices) {
  return sort_values(context, x, dim, descending, values, indices);
}

TORCHETTE_KERNELS_ONCE(sort,                                                //
                       TORCHETTE_KERNEL("aten::topk.values", topk_values),  //
                       TORCHETTE_KERNEL("aten::sort.values", sort_values),  //
                       TORCHETTE_KERNEL("aten::sort.values_stable", sort_values_stable))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
