// SPDX-License-Identifier: BSD-3-Clause
// cpu::packed_embedding, cpu::scaled_embedding: torchette/backends/engine/operators/packed_embedding.py. A
// row of the embedding table is a column of a panel. Strided reads are acceptable: a token reads little
// compared with the layer that shares the panels.
#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/panels.h"
#include "torchette/kernels/engine/quantized.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// Checks the indices, resizes the result to [*indices, depth], and calls `body(index, to)` for each index.
template <typename Body>
Error for_rows(const char* op, const Tensor& indices, int64_t rows, size_t depth, Tensor& out,
               const Body& body) {
  TORCHETTE_CHECK(indices.scalar_type() == ScalarType::Long || indices.scalar_type() == ScalarType::Int,
                  InvalidType, "%s: indices are of type %d, expected int64 or int32", op,
                  static_cast<int>(indices.scalar_type()));
  const ptrdiff_t rank = indices.dim();
  TORCHETTE_CHECK(is_contiguous(indices) && static_cast<size_t>(rank) < kMaxDim, InvalidArgument,
                  "%s: indices have %d dimensions, or are not contiguous", op, static_cast<int>(rank));
  SizesType sizes[kMaxDim];
  for (ptrdiff_t d = 0; d < rank; ++d) sizes[d] = indices.sizes()[static_cast<size_t>(d)];
  sizes[rank] = static_cast<SizesType>(depth);
  TORCHETTE_TRY(check_result(op, out, {sizes, static_cast<size_t>(rank) + 1}));
  float* to = out.mutable_data_ptr<float>();
  for (ptrdiff_t i = 0; i < indices.numel(); ++i, to += depth) {
    const int64_t index = indices.scalar_type() == ScalarType::Long
                              ? indices.const_data_ptr<int64_t>()[i]
                              : int64_t{indices.const_data_ptr<int32_t>()[i]};
    TORCHETTE_CHECK(index >= 0 && index < rows, InvalidArgument, "%s: index %lld is out of range for %d rows",
                    op, static_cast<long long>(index), static_cast<int>(rows));
    body(static_cast<size_t>(index), to);
  }
  return Error::Ok;
}

}  // namespace

static Error packed_embedding_out(Context&, const Tensor& weight, const Tensor& indices, int64_t rows,
                                  Tensor& out) {
  constexpr const char* kName = "packed_embedding";
  Stored stored;
  TORCHETTE_TRY(check_stored(kName, weight, stored));
  const bool cut = weight.dim() == 2;
  TORCHETTE_CHECK(
      rows >= 0 && rows <= INT32_MAX &&
          (cut ? weight.size(1) == static_cast<ptrdiff_t>(rows)
               : weight.dim() == 3 && weight.size(2) == static_cast<ptrdiff_t>(kPanelWidth) &&
                     weight.size(0) == static_cast<ptrdiff_t>(panels_of(static_cast<size_t>(rows)))),
      InvalidArgument, "%s: a weight of %d dimensions and %d elements does not fit %d rows", kName,
      static_cast<int>(weight.dim()), static_cast<int>(weight.numel()), static_cast<int>(rows));
  const auto k = static_cast<size_t>(weight.size(cut ? 0 : 1)), count = static_cast<size_t>(rows);
  return for_rows(kName, indices, rows, k, out, [&](size_t index, float* to) {
    const size_t panel = index / kPanelWidth;
    const size_t row = cut && panel == count / kPanelWidth ? cut_columns(count) : kPanelWidth;
    with_stored(stored, weight.const_data_ptr(), [&](const auto* from) {
      from += panel * k * kPanelWidth + index % kPanelWidth;
      for (size_t j = 0; j < k; ++j, from += row) to[j] = *from;
    });
  });
}

static Error scaled_embedding_out(Context&, const Tensor& weight, const Tensor& scales, const Tensor& indices,
                                  int64_t rows, int64_t depth, Tensor& out) {
  constexpr const char* kName = "scaled_embedding";
  TORCHETTE_CHECK(depth >= 0 && depth <= INT32_MAX, InvalidArgument, "%s: depth %lld is out of range", kName,
                  static_cast<long long>(depth));
  const auto k = static_cast<size_t>(depth);
  size_t groups;
  TORCHETTE_TRY(check_stored(kName, weight, scales, k, rows, groups));
  const bool nibbles = weight.scalar_type() == ScalarType::Byte;
  const size_t per_lane = nibbles ? 2 * kQuad : kQuad, words = (k + per_lane - 1) / per_lane;
  const auto* const stored = static_cast<const uint8_t*>(weight.const_data_ptr());
  const float* const factors = scales.const_data_ptr<float>();
  return for_rows(kName, indices, rows, k, out, [&](size_t index, float* to) {
    const size_t panel = index / kPanelWidth, lane = index % kPanelWidth;
    for (size_t j = 0; j < k; ++j) {
      const size_t in_word = j % per_lane;
      const uint8_t byte =
          stored[((panel * words + j / per_lane) * kPanelWidth + lane) * kQuad + in_word % kQuad];
      const int integer = !nibbles           ? static_cast<int8_t>(byte)
                          : in_word >= kQuad ? static_cast<int8_t>(byte) >> 4
                                             : static_cast<int8_t>(static_cast<uint8_t>(byte << 4)) >> 4;
      to[j] = static_cast<float>(integer) * factors[(panel * groups + j * groups / k) * kPanelWidth + lane];
    }
  });
}

TORCHETTE_KERNELS(packed_embedding, TORCHETTE_KERNEL("cpu::packed_embedding.out", packed_embedding_out),
                  TORCHETTE_KERNEL("cpu::scaled_embedding.out", scaled_embedding_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
