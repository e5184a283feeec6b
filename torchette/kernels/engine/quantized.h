// SPDX-License-Identifier: BSD-3-Clause
// Checks shared by the engine's quantized operators: 8-bit tensors, and the requantization terms stored with
// a packed weight.
#pragma once

#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/quantized_sum.h"

namespace torchette {
namespace TORCHETTE_ISA {

inline bool is_byte(ScalarType type) { return type == ScalarType::Char || type == ScalarType::Byte; }

inline Error check_bytes(const char* op, const Tensor& t, const char* name) {
  TORCHETTE_CHECK(is_byte(t.scalar_type()), InvalidType, "%s: %s is of type %d, expected int8 or uint8", op,
                  name, static_cast<int>(t.scalar_type()));
  TORCHETTE_CHECK(is_contiguous(t), InvalidArgument, "%s: %s is not contiguous", op, name);
  return Error::Ok;
}

/// Whether [low, high] lies in the range of the 8-bit type.
inline bool in_range(ScalarType type, int64_t low, int64_t high) {
  return type == ScalarType::Char ? low >= INT8_MIN && high <= INT8_MAX : low >= 0 && high <= UINT8_MAX;
}

/// Checks the zero point and the range to which the values of a type are clamped.
inline Error check_range(const char* op, ScalarType type, int64_t zero, int64_t low, int64_t high) {
  TORCHETTE_CHECK(low <= high && in_range(type, low, high) && in_range(type, zero, zero), InvalidArgument,
                  "%s: zero %lld, low %lld and high %lld do not fit type %d", op,
                  static_cast<long long>(zero), static_cast<long long>(low), static_cast<long long>(high),
                  static_cast<int>(type));
  return Error::Ok;
}

/// Checks the result's sizes, its type, and the range to which its values are clamped.
inline Error check_quantized(const char* op, const Tensor& out, Span<const SizesType> sizes, int64_t zero,
                             int64_t low, int64_t high, const char* name = "out") {
  TORCHETTE_TRY(resize_result(out, sizes, name));
  TORCHETTE_TRY(check_bytes(op, out, name));
  return check_range(op, out.scalar_type(), zero, low, high);
}

inline bool has_sizes(const Tensor& t, Span<const SizesType> sizes) {
  bool same = t.sizes().size() == sizes.size();
  for (size_t d = 0; same && d < sizes.size(); ++d) same = t.sizes()[d] == sizes[d];
  return same;
}

/// Reads the terms of `groups` x `outputs` results: float32 [groups, 3, outputs padded to panels], see
/// pack.py.
inline Error read_terms(const char* op, const Tensor& terms, size_t groups, size_t outputs, int64_t zero,
                        int64_t low, int64_t high, Requantization& how) {
  const size_t width = panels_of(outputs) * kPanelWidth;
  TORCHETTE_CHECK(terms.scalar_type() == ScalarType::Float && is_contiguous(terms) && terms.dim() == 3 &&
                      static_cast<size_t>(terms.size(0)) == groups && terms.size(1) == 3 &&
                      static_cast<size_t>(terms.size(2)) == width,
                  InvalidArgument, "%s: terms of type %d with %d elements do not fit %d groups of %d outputs",
                  op, static_cast<int>(terms.scalar_type()), static_cast<int>(terms.numel()),
                  static_cast<int>(groups), static_cast<int>(outputs));
  const float* const first = terms.const_data_ptr<float>();
  how = {first,
         first + width,
         first + 2 * width,
         static_cast<int32_t>(zero),
         static_cast<int32_t>(low),
         static_cast<int32_t>(high)};
  return Error::Ok;
}

/// Checks an 8-bit or 4-bit weight with `outputs` outputs of `depth` inputs, and the scales of its input
/// groups (see pack.py).
inline Error check_stored(const char* op, const Tensor& weight, const Tensor& scales, size_t depth,
                          int64_t outputs, size_t& groups) {
  const bool of_bytes = weight.scalar_type() == ScalarType::Char;
  const size_t per_lane = of_bytes ? kQuad : 2 * kQuad, panels = panels_of(static_cast<size_t>(outputs));
  TORCHETTE_CHECK(
      outputs >= 0 && outputs <= INT32_MAX && (of_bytes || weight.scalar_type() == ScalarType::Byte) &&
          is_contiguous(weight) && weight.dim() == 4 && static_cast<size_t>(weight.size(0)) == panels &&
          static_cast<size_t>(weight.size(1)) == (depth + per_lane - 1) / per_lane &&
          weight.size(2) == ptrdiff_t{kPanelWidth} && weight.size(3) == ptrdiff_t{kQuad},
      InvalidArgument, "%s: a weight of type %d with %d elements does not fit %d outputs of %d inputs", op,
      static_cast<int>(weight.scalar_type()), static_cast<int>(weight.numel()), static_cast<int>(outputs),
      static_cast<int>(depth));
  TORCHETTE_TRY(check_floats(op, scales, "scales"));
  groups = scales.dim() == 3 ? static_cast<size_t>(scales.size(1)) : 0;
  TORCHETTE_CHECK(groups > 0 && static_cast<size_t>(scales.size(0)) == panels &&
                      scales.size(2) == ptrdiff_t{kPanelWidth} && depth % groups == 0 &&
                      (groups == 1 || depth / groups % per_lane == 0),
                  InvalidArgument,
                  "%s: scales of %d dimensions with %d elements do not fit %d outputs of %d inputs", op,
                  static_cast<int>(scales.dim()), static_cast<int>(scales.numel()), static_cast<int>(outputs),
                  static_cast<int>(depth));
  return Error::Ok;
}

inline Error check_input_zero(const char* op, const Tensor& input, int64_t zero) {
  TORCHETTE_CHECK(in_range(input.scalar_type(), zero, zero), InvalidArgument,
                  "%s: input_zero %lld is outside of the range of type %d", op, static_cast<long long>(zero),
                  static_cast<int>(input.scalar_type()));
  return Error::Ok;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
