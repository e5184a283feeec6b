// SPDX-License-Identifier: BSD-3-Clause
// cpu::quantize_rows, cpu::dynamic_linear: torchette/backends/engine/operators/dynamic_linear.py.
#include "torchette/kernels/engine/quantized.h"
#include "torchette/kernels/engine/scaled_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

struct Range {
  float lower, upper;  // include 0; NaN if an element is not finite
};

TORCHETTE_NOINLINE Range range_of(const float* x, size_t count) {
  Vec lower = {}, upper = {}, bad = {};
  for (size_t j = 0; j < count; j += kLanes) {
    const Vec v = count - j >= kLanes ? load(x + j) : load_partial(x + j, count - j);
    lower = minimum(v, lower);
    upper = maximum(v, upper);
    bad += v - v;
  }
  const float nan = horizontal_sum(bad);
  const auto lesser = [](auto a, auto b) TORCHETTE_INLINED { return TORCHETTE_SELECT(a < b, a, b); };
  return {reduce_lanes(lower, lesser) + nan, horizontal_max(upper) + nan};
}

/// Parameters of quantize_rows() that are common to all rows.
struct Scheme {
  float low, high, steps, epsilon;
  bool symmetric;

  TORCHETTE_NOINLINE RowScale of(Range range) const {
    float spread = range.upper - range.lower;
    if (symmetric) spread = -range.lower > range.upper ? -range.lower : range.upper;
    if (range.lower != range.lower) spread = range.lower;
    float scale = spread / steps;
    if (scale < epsilon) scale = epsilon;
    scale += scale - scale;  // an infinite scale becomes NaN
    if (symmetric) return {scale, 0.0f};
    constexpr float kRoundMagic = 12582912.0f;  // floats between this and twice its value are integers
    float zero = low - ((range.lower / scale + kRoundMagic) - kRoundMagic);
    if (!(zero > low)) zero = low;
    return {scale, zero < high ? zero : high};
  }

  TORCHETTE_NOINLINE void quantize(const float* x, size_t count, RowScale row, uint8_t* to) const {
    const float inverse = 1.0f / row.scale;
    const ToBytes bytes(static_cast<int32_t>(row.zero), static_cast<int32_t>(low),
                        static_cast<int32_t>(high));
    put_all(bytes, count, to, [&](size_t j, size_t n) TORCHETTE_INLINED {
      return (n == kLanes ? load(x + j) : load_partial(x + j, n)) * inverse;
    });
  }
};

// Cost of quantizing an element, in multiply-adds.
constexpr size_t kWork = 8;

}  // namespace

static Error quantize_rows_out(Context& context, const Tensor& input, int64_t low, int64_t high, double steps,
                               double epsilon, bool symmetric, bool per_tensor, Tensor& out, Tensor& rows) {
  constexpr const char* kName = "quantize_rows";
  TORCHETTE_TRY(check_floats(kName, input, "input"));
  TORCHETTE_CHECK(input.dim() >= 1 && input.dim() <= static_cast<ptrdiff_t>(kMaxDim), InvalidArgument,
                  "%s: input has %d dimensions, expected 1 to 16", kName, static_cast<int>(input.dim()));
  TORCHETTE_TRY(check_quantized(kName, out, input.sizes(), symmetric ? 0 : low, low, high, "out0"));
  TORCHETTE_CHECK(out.scalar_type() == ScalarType::Char && (!symmetric || (low <= 0 && high >= 0)),
                  InvalidArgument, "%s: low %d and high %d do not fit type %d", kName, static_cast<int>(low),
                  static_cast<int>(high), static_cast<int>(out.scalar_type()));
  TORCHETTE_CHECK(steps > 0 && epsilon > 0, InvalidArgument, "%s: steps %g and epsilon %g must be positive",
                  kName, steps, epsilon);
  SizesType sizes[kMaxDim];
  for (ptrdiff_t d = 0; d < input.dim(); ++d) sizes[d] = static_cast<SizesType>(input.size(d));
  const auto depth = static_cast<size_t>(sizes[input.dim() - 1]);
  size_t count = 1;
  for (ptrdiff_t d = 0; d + 1 < input.dim(); ++d) count *= static_cast<size_t>(sizes[d]);
  sizes[input.dim() - 1] = 2;
  TORCHETTE_TRY(check_result(kName, rows, {sizes, static_cast<size_t>(input.dim())}, "out1"));
  const Scheme scheme = {static_cast<float>(low), static_cast<float>(high), static_cast<float>(steps),
                         static_cast<float>(epsilon), symmetric};
  const float* const x = input.const_data_ptr<float>();
  auto* const to = static_cast<uint8_t*>(out.mutable_data_ptr());
  auto* const scales = reinterpret_cast<RowScale*>(rows.mutable_data_ptr());
  const auto for_rows = [&](auto body) {
    context.parallel_for(count, min_items(depth * kWork), [&](size_t begin, size_t end, size_t) {
      for (size_t i = begin; i < end; ++i) body(i, x + i * depth);
    });
  };
  if (per_tensor) {  // the scales temporarily store the ranges of the rows
    for_rows([&](size_t i, const float* row) {
      const Range range = range_of(row, depth);
      scales[i] = {range.lower, range.upper};
    });
    Range all = {};
    for (size_t i = 0; i < count; ++i) {
      const float lower = scales[i].scale, upper = scales[i].zero;
      if (lower != lower || lower < all.lower) all.lower = lower;
      if (upper > all.upper) all.upper = upper;
      if (all.lower != all.lower) break;
    }
    const RowScale same = scheme.of(all);
    for_rows([&](size_t i, const float* row) {
      scales[i] = same;
      scheme.quantize(row, depth, same, to + i * depth);
    });
    return Error::Ok;
  }
  for_rows([&](size_t i, const float* row) {
    scales[i] = scheme.of(range_of(row, depth));
    scheme.quantize(row, depth, scales[i], to + i * depth);
  });
  return Error::Ok;
}

static Error dynamic_linear_out(Context& context, const Tensor& input, const Tensor& rows,
                                const Tensor& weight, const Tensor& scales, const Optional<Tensor>& bias,
                                const Optional<Tensor>& residual, int64_t outputs,
                                Span<const char> activation, Tensor& out) {
  constexpr const char* kName = "dynamic_linear";
  TORCHETTE_CHECK(input.scalar_type() == ScalarType::Char, InvalidType,
                  "%s: input is of type %d, expected int8", kName, static_cast<int>(input.scalar_type()));
  TORCHETTE_TRY(check_bytes(kName, input, "input"));
  TORCHETTE_TRY(check_floats(kName, rows, "rows"));
  TORCHETTE_CHECK(input.dim() >= 1 && input.dim() <= static_cast<ptrdiff_t>(kMaxDim), InvalidArgument,
                  "%s: input has %d dimensions, expected 1 to 16", kName, static_cast<int>(input.dim()));
  ScaledProduct product = {};
  SizesType sizes[kMaxDim];
  for (ptrdiff_t d = 0; d < input.dim(); ++d) sizes[d] = static_cast<SizesType>(input.size(d));
  SizesType& last = sizes[input.dim() - 1];
  const Span<const SizesType> shape = {sizes, static_cast<size_t>(input.dim())};
  product.k = static_cast<size_t>(last);
  product.m = 1;
  for (ptrdiff_t d = 0; d + 1 < input.dim(); ++d) product.m *= static_cast<size_t>(sizes[d]);
  last = 2;
  TORCHETTE_TRY(check_operand(kName, rows, shape, "rows"));
  TORCHETTE_TRY(check_stored(kName, weight, scales, product.k, outputs, product.groups));
  const SizesType vector[] = {static_cast<SizesType>(outputs)};
  TORCHETTE_TRY(check_operand(kName, bias, {vector, 1}, "bias"));
  last = static_cast<SizesType>(outputs);
  TORCHETTE_TRY(check_operand(kName, residual, shape, "residual"));
  TORCHETTE_TRY(activation_of(activation, product.activation));
  TORCHETTE_TRY(check_result(kName, out, shape));
  product.n = static_cast<size_t>(outputs);
  product.a = input.const_data_ptr<int8_t>();
  product.rows = reinterpret_cast<const RowScale*>(rows.const_data_ptr());
  product.w = static_cast<const uint8_t*>(weight.const_data_ptr());
  product.nibbles = weight.scalar_type() == ScalarType::Byte;
  product.scales = scales.const_data_ptr<float>();
  product.c = out.mutable_data_ptr<float>();
  product.bias = floats_of(bias);
  product.residual = floats_of(residual);
  return scaled_gemm(context, kName, product);
}

TORCHETTE_KERNELS(dynamic_linear, TORCHETTE_KERNEL("cpu::quantize_rows.out", quantize_rows_out),
                  TORCHETTE_KERNEL("cpu::dynamic_linear.out", dynamic_linear_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
