// SPDX-License-Identifier: BSD-3-Clause
// cpu::weight_only_linear: torchette/backends/engine/operators/weight_only_linear.py. A block of integer
// panels is dequantized at a time and stays in the cache while all rows are multiplied by it.
#include "torchette/kernels/engine/packed_gemm.h"
#include "torchette/kernels/engine/quantized.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Floats of the panels that are dequantized at a time, and the maximum number of panels: those of a one-row
// tile.
constexpr size_t kUnpacked = kLanes >= 8 ? size_t{1} << 16 : size_t{1} << 12;
constexpr size_t kMaxUnpackedPanels = 4;
// Number of kBits-bit weights in a lane of 32 bits. Weight t, counted from the lowest bits, belongs to input
// input_of(t): 8-bit weights are in input order; a byte of 4-bit weights has the first quad in its lower
// half.
template <int kBits>
constexpr size_t kPerLane = 32 / kBits;
template <int kBits>
constexpr size_t input_of(size_t t) {
  return kBits == 4 ? t % 2 * kQuad + t / 2 : t;
}

struct Weight {
  const uint8_t* data;  // panels [depth / kPerLane][kPanelWidth] of 32-bit lanes
  const float* scales;  // panels [groups][kPanelWidth]
  size_t depth, group, groups;
};

/// Dequantizes a panel to floats [depth][kPanelWidth].
template <int kBits>
void unpack(const Weight& weight, size_t panel, float* to) {
  constexpr size_t kCount = kPerLane<kBits>;
  const size_t words = (weight.depth + kCount - 1) / kCount;
  const uint8_t* from = weight.data + panel * words * kPanelWidth * sizeof(int32_t);
  const float* scales = weight.scales + panel * weight.groups * kPanelWidth;
  for (size_t word = 0; word < words; ++word, from += kPanelWidth * sizeof(int32_t)) {
    const size_t first = word * kCount, left = weight.depth - first;
    const float* const scale = scales + first / weight.group * kPanelWidth;
    for (size_t v = 0; v < kPanelWidth; v += kLanes) {
      VecInt lanes;
      memcpy(&lanes, from + v * sizeof(int32_t), sizeof(lanes));
      const Vec factor = load(scale + v);
      TORCHETTE_UNROLL(8)
      for (size_t t = 0; t < kCount; ++t) {
        if (input_of<kBits>(t) >= left) continue;
        const VecInt integer = lanes << static_cast<int>(32 - kBits * (t + 1)) >> (32 - kBits);
        store(to + (first + input_of<kBits>(t)) * kPanelWidth + v, convert_lanes<Vec>(integer) * factor);
      }
    }
  }
}

// Up to this number of rows multiply by the integers directly: dequantization would cost more than the GEMM.
constexpr size_t kFewRows = 2;

/// Multiplies one row by a panel: the scaled sum of each group is added to the bias.
template <int kBits>
void multiply_row(const Weight& weight, size_t panel, const float* x, const float* bias, size_t columns,
                  float* y) {
  constexpr size_t kCount = kPerLane<kBits>;
  const size_t words = (weight.depth + kCount - 1) / kCount;
  const size_t of_group = (weight.group + kCount - 1) / kCount;
  for (size_t v = 0; v < columns; v += kLanes) {
    const uint8_t* from = weight.data + (panel * words * kPanelWidth + v) * sizeof(int32_t);
    const float* scale = weight.scales + panel * weight.groups * kPanelWidth + v;
    const size_t left = columns - v;
    Vec total = {};
    if (bias != nullptr) total = left >= kLanes ? load(bias + v) : load_partial(bias + v, left);
    for (size_t word = 0; word < words; scale += kPanelWidth) {
      Vec sums[4] = {};
      for (const size_t end = words - word < of_group ? words : word + of_group; word < end; ++word) {
        VecInt lanes;
        memcpy(&lanes, from, sizeof(lanes));
        from += kPanelWidth * sizeof(int32_t);
        const float* const at = x + word * kCount;
        if (weight.depth - word * kCount < kCount) {  // the last lane, padded with zero weights
          for (size_t t = 0; t < kCount; ++t) {
            if (input_of<kBits>(t) >= weight.depth - word * kCount) continue;
            const VecInt integer = lanes << static_cast<int>(32 - kBits * (t + 1)) >> (32 - kBits);
            sums[0] = fma(convert_lanes<Vec>(integer), broadcast(at[input_of<kBits>(t)]), sums[0]);
          }
          continue;
        }
        TORCHETTE_UNROLL(8)
        for (size_t t = 0; t < kCount; ++t) {
          const VecInt integer = lanes << static_cast<int>(32 - kBits * (t + 1)) >> (32 - kBits);
          sums[t % 4] = fma(convert_lanes<Vec>(integer), broadcast(at[input_of<kBits>(t)]), sums[t % 4]);
        }
      }
      total = fma((sums[0] + sums[1]) + (sums[2] + sums[3]), load(scale), total);
    }
    if (left >= kLanes)
      store(y + v, total);
    else
      store_partial(y + v, total, left);
  }
}

}  // namespace

static Error weight_only_linear_out(Context& context, const Tensor& input, const Tensor& weight,
                                    const Tensor& scales, const Optional<Tensor>& bias, int64_t outputs,
                                    Tensor& out) {
  constexpr const char* kName = "weight_only_linear";
  TORCHETTE_TRY(check_floats(kName, input, "input"));
  TORCHETTE_CHECK(input.dim() >= 1 && input.dim() <= static_cast<ptrdiff_t>(kMaxDim), InvalidArgument,
                  "%s: input has %d dimensions", kName, static_cast<int>(input.dim()));
  const auto depth = static_cast<size_t>(input.size(input.dim() - 1));
  const bool of_bytes = weight.scalar_type() == ScalarType::Char;
  const size_t panels = panels_of(static_cast<size_t>(outputs));
  size_t groups;
  TORCHETTE_TRY(check_stored(kName, weight, scales, depth, outputs, groups));
  SizesType sizes[kMaxDim];
  for (ptrdiff_t d = 0; d < input.dim(); ++d) sizes[d] = static_cast<SizesType>(input.size(d));
  sizes[input.dim() - 1] = static_cast<SizesType>(outputs);
  const SizesType vector[] = {static_cast<SizesType>(outputs)};
  TORCHETTE_TRY(check_operand(kName, bias, {vector, 1}, "bias"));
  TORCHETTE_TRY(check_result(kName, out, {sizes, static_cast<size_t>(input.dim())}));
  PackedProduct product = {};
  product.k = depth;
  product.m = 1;
  for (ptrdiff_t d = 0; d + 1 < input.dim(); ++d) product.m *= static_cast<size_t>(sizes[d]);
  product.a = input.const_data_ptr<float>();
  product.a_row = static_cast<ptrdiff_t>(depth);
  product.c_row = static_cast<ptrdiff_t>(outputs);
  const Weight packed = {static_cast<const uint8_t*>(weight.const_data_ptr()), scales.const_data_ptr<float>(),
                         depth, depth > groups ? depth / groups : 1, groups};
  if (product.m <= kFewRows) {
    context.parallel_for(
        panels, min_items(product.m * depth * kPanelWidth), [&](size_t begin, size_t end, size_t) {
          for (size_t p = begin; p < end; ++p) {
            const size_t column = p * kPanelWidth, left = static_cast<size_t>(outputs) - column;
            for (size_t i = 0; i < product.m; ++i) {
              const float* const b = bias.has_value() ? bias->const_data_ptr<float>() + column : nullptr;
              float* const y = out.mutable_data_ptr<float>() + i * static_cast<size_t>(outputs) + column;
              const size_t columns = left < kPanelWidth ? left : kPanelWidth;
              of_bytes ? multiply_row<8>(packed, p, product.a + i * depth, b, columns, y)
                       : multiply_row<4>(packed, p, product.a + i * depth, b, columns, y);
            }
          }
        });
    return Error::Ok;
  }
  size_t at_once = kUnpacked / (depth * kPanelWidth + 1);
  at_once = at_once < 1 ? 1 : at_once > kMaxUnpackedPanels ? kMaxUnpackedPanels : at_once;
  const size_t each = at_once * depth * kPanelWidth;
  float* const scratch =
      static_cast<float*>(context.allocate_temp((context.workers() * each + kLanes) * sizeof(float)));
  TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed,
                  "%s: no scratch memory for %d panels of %d inputs", kName, static_cast<int>(at_once),
                  static_cast<int>(depth));
  context.parallel_for(
      (panels + at_once - 1) / at_once, min_items((product.m + 2) * depth * at_once * kPanelWidth),
      [&](size_t begin, size_t end, size_t worker) {
        float* const own = scratch + worker * each;
        for (size_t item = begin; item < end; ++item) {
          const size_t first = item * at_once, count = panels - first < at_once ? panels - first : at_once;
          for (size_t p = 0; p < count; ++p)
            of_bytes ? unpack<8>(packed, first + p, own + p * depth * kPanelWidth)
                     : unpack<4>(packed, first + p, own + p * depth * kPanelWidth);
          const size_t column = first * kPanelWidth, left = static_cast<size_t>(outputs) - column;
          PackedProduct part = product;
          part.n = left < count * kPanelWidth ? left : count * kPanelWidth;
          part.w = own;
          part.c = out.mutable_data_ptr<float>() + column;
          part.bias = bias.has_value() ? bias->const_data_ptr<float>() + column : nullptr;
          packed_gemm(part, 0, count);
        }
      });
  return Error::Ok;
}

TORCHETTE_KERNELS(weight_only_linear, TORCHETTE_KERNEL("cpu::weight_only_linear.out", weight_only_linear_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
