// SPDX-License-Identifier: BSD-3-Clause
// cpu::packed_embedding: torchette/backends/cpu/operators/packed_embedding.py. A row of the table is a column
// of a panel: what is read for a token is little beside the layer that shares the panels.
#include "torchette/kernels/cpu/operands.h"
#include "torchette/kernels/cpu/panels.h"

namespace torchette {
namespace TORCHETTE_ISA {

static Error packed_embedding_out(Context&, const Tensor& weight, const Tensor& indices, int64_t rows,
                                  Tensor& out) {
  constexpr const char* kName = "packed_embedding";
  Stored stored;
  TORCHETTE_TRY(check_stored(kName, weight, stored));
  const bool cut = weight.dim() == 2;
  TORCHETTE_CHECK(
      rows >= 0 && rows <= INT32_MAX &&
          (cut ? weight.size(1) == static_cast<ptrdiff_t>(rows)
               : weight.dim() == 3 && weight.size(2) == static_cast<ptrdiff_t>(kPanel) &&
                     weight.size(0) == static_cast<ptrdiff_t>(panels_of(static_cast<size_t>(rows)))),
      InvalidArgument, "%s: a weight of %d dimensions and %d elements for %d rows", kName,
      static_cast<int>(weight.dim()), static_cast<int>(weight.numel()), static_cast<int>(rows));
  TORCHETTE_CHECK(indices.scalar_type() == ScalarType::Long || indices.scalar_type() == ScalarType::Int,
                  InvalidType, "%s: indices are of type %d, not int64 or int32", kName,
                  static_cast<int>(indices.scalar_type()));
  const ptrdiff_t rank = indices.dim();
  TORCHETTE_CHECK(is_contiguous(indices) && static_cast<size_t>(rank) < kMaxDim, InvalidArgument,
                  "%s: indices have %d dimensions, or are not contiguous", kName, static_cast<int>(rank));
  const ptrdiff_t depth = weight.size(cut ? 0 : 1);
  SizesType sizes[kMaxDim];
  for (ptrdiff_t d = 0; d < rank; ++d) sizes[d] = indices.sizes()[static_cast<size_t>(d)];
  sizes[rank] = static_cast<SizesType>(depth);
  TORCHETTE_TRY(check_result(kName, out, {sizes, static_cast<size_t>(rank) + 1}));
  const auto count = static_cast<size_t>(rows), k = static_cast<size_t>(depth);
  float* to = out.mutable_data_ptr<float>();
  for (ptrdiff_t i = 0; i < indices.numel(); ++i) {
    const int64_t index = indices.scalar_type() == ScalarType::Long
                              ? indices.const_data_ptr<int64_t>()[i]
                              : int64_t{indices.const_data_ptr<int32_t>()[i]};
    TORCHETTE_CHECK(index >= 0 && index < rows, InvalidArgument, "%s: index %lld of %d rows", kName,
                    static_cast<long long>(index), static_cast<int>(rows));
    const size_t panel = static_cast<size_t>(index) / kPanel;
    const size_t row = cut && panel == count / kPanel ? cut_columns(count) : kPanel;
    with_stored(stored, weight.const_data_ptr(), [&](const auto* from) {
      from += panel * k * kPanel + static_cast<size_t>(index) % kPanel;
      for (size_t j = 0; j < k; ++j, from += row) *to++ = *from;
    });
  }
  return Error::Ok;
}

TORCHETTE_KERNELS(packed_embedding, TORCHETTE_KERNEL("cpu::packed_embedding.out", packed_embedding_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
