// SPDX-License-Identifier: BSD-3-Clause
// Reflection and replication padding.
#include <cstring>

#include "torchette/kernels/dims.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// A padded dimension: element `i` of the output is element at(i) of the input.
struct Edge {
  int64_t size, before;
  bool mirrors;
  TORCHETTE_INLINE int64_t at(int64_t i) const {
    i -= before;
    if (i < 0) return mirrors ? -i : 0;
    if (i >= size) return mirrors ? 2 * (size - 1) - i : size - 1;
    return i;
  }
};

/// Pads the last `padded` dimensions. `pad` contains two values per dimension, starting with the last
/// dimension.
Error pad_edges(const Tensor& x, Span<const int64_t> pad, size_t padded, bool mirrors, const Tensor& out) {
  const auto rank = static_cast<size_t>(x.dim());
  TORCHETTE_CHECK((rank == padded + 1 || rank == padded + 2) && pad.size() == 2 * padded, InvalidArgument,
                  "padding has %zu elements for the last %zu of %zu dimensions of self", pad.size(), padded,
                  rank);
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  Edge edge[kMaxDim];
  SizesType sizes[kMaxDim];
  for (size_t d = 0; d < rank; ++d) {
    const size_t i = 2 * (rank - 1 - d);
    const int64_t n = x.sizes()[d], before = i < pad.size() ? pad[i] : 0,
                  after = i < pad.size() ? pad[i + 1] : 0;
    // A reflection must be smaller than the tensor. Cropping must leave an element.
    const int64_t max_pad = mirrors && i < pad.size() ? n - 1 : INT32_MAX;
    const bool fits = before >= -INT32_MAX && before <= max_pad && after >= -INT32_MAX && after <= max_pad;
    const int64_t total = fits ? n + before + after : 0;
    const bool kept = i >= pad.size() || (n > 0 && total >= 1 && before > -n && after > -n);
    TORCHETTE_CHECK(fits && kept && total <= INT32_MAX, InvalidArgument,
                    "padding: dimension %zu of size %lld cannot be padded by %lld and %lld", d,
                    static_cast<long long>(n), static_cast<long long>(before), static_cast<long long>(after));
    sizes[d] = static_cast<SizesType>(total);
    edge[d] = {n, before, mirrors};
  }
  TORCHETTE_TRY(resize_result(out, {sizes, rank}));
  if (out.numel() == 0) return Error::Ok;
  const ptrdiff_t element = x.element_size();
  const size_t last = rank - 1;
  const ptrdiff_t from_step = x.strides()[last] * element, to_step = out.strides()[last] * element;
  Walk<1> rows;
  rows.rank = last;
  for (size_t d = 0; d < last; ++d) {
    rows.size[d] = static_cast<size_t>(sizes[d]);
    rows.stride[0][d] = out.strides()[d];
  }
  // The part of a row inside of the input is a single run if both rows are contiguous.
  const int64_t inner = edge[last].before > 0 ? edge[last].before : 0;
  const int64_t reach = edge[last].before + edge[last].size;
  const int64_t inner_end = reach < sizes[last] ? reach : sizes[last];
  const bool runs = from_step == element && to_step == element && inner < inner_end;
  do {
    const char* from = static_cast<const char*>(x.const_data_ptr());
    for (size_t d = 0; d < last; ++d)
      from += static_cast<ptrdiff_t>(edge[d].at(static_cast<int64_t>(rows.at[d]))) * x.strides()[d] * element;
    char* to = static_cast<char*>(out.mutable_data_ptr()) + rows.offset[0] * element;
    for (int64_t i = 0; i < sizes[last]; ++i) {
      if (runs && i == inner) {
        memmove(to + inner * element, from + edge[last].at(inner) * element,
                static_cast<size_t>((inner_end - inner) * element));
        i = inner_end;
        if (i == sizes[last]) break;
      }
      memmove(to + static_cast<ptrdiff_t>(i) * to_step,
              from + static_cast<ptrdiff_t>(edge[last].at(i)) * from_step, static_cast<size_t>(element));
    }
  } while (rows.next());
  return Error::Ok;
}

template <size_t kPadded, bool kMirrors>
Error pad_out(Context&, const Tensor& x, Span<const int64_t> pad, Tensor& out) {
  return pad_edges(x, pad, kPadded, kMirrors, out);
}

}  // namespace

TORCHETTE_KERNELS_ONCE(pad,                                                                   //
                       TORCHETTE_KERNEL("aten::reflection_pad1d.out", (pad_out<1, true>)),    //
                       TORCHETTE_KERNEL("aten::reflection_pad2d.out", (pad_out<2, true>)),    //
                       TORCHETTE_KERNEL("aten::reflection_pad3d.out", (pad_out<3, true>)),    //
                       TORCHETTE_KERNEL("aten::replication_pad1d.out", (pad_out<1, false>)),  //
                       TORCHETTE_KERNEL("aten::replication_pad2d.out", (pad_out<2, false>)),  //
                       TORCHETTE_KERNEL("aten::replication_pad3d.out", (pad_out<3, false>)))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
