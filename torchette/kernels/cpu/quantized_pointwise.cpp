// SPDX-License-Identifier: BSD-3-Clause
// cpu::quantize, cpu::dequantize, cpu::lookup, cpu::quantized_add:
// torchette/backends/cpu/operators/quantized.py.
#include "torchette/kernels/cpu/quantized.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Elements that a part of a loop has, a multiple of a panel.
constexpr size_t kBlock = 4096;
// As multiply-adds: what one element costs.
constexpr size_t kWork = 4;

/// Calls body(first, count) for blocks of elements, on the context's threads.
template <typename Body>
void for_blocks(Context& context, size_t elements, const Body& body) {
  context.parallel_for((elements + kBlock - 1) / kBlock, least_items(kBlock * kWork),
                       [&](size_t begin, size_t end, size_t) {
                         for (size_t b = begin; b < end; ++b) {
                           const size_t first = b * kBlock, left = elements - first;
                           body(first, left < kBlock ? left : kBlock);
                         }
                       });
}

/// Numbers of 8 bits, as floats_of() gives them.
struct Bytes {
  const uint8_t* data;
  int8_t flip;
  float zero;

  Bytes(const Tensor& t, int64_t zero_point)
      : data(static_cast<const uint8_t*>(t.const_data_ptr())),
        flip(static_cast<int8_t>(t.scalar_type() == ScalarType::Char ? 0 : INT8_MIN)),
        zero(static_cast<float>(t.scalar_type() == ScalarType::Char ? zero_point : zero_point - 128)) {}
};

}  // namespace

static Error quantize_out(Context& context, const Tensor& input, double scale, int64_t zero, int64_t low,
                          int64_t high, Tensor& out) {
  constexpr const char* kName = "quantize";
  TORCHETTE_TRY(check_floats(kName, input, "input"));
  TORCHETTE_TRY(check_quantized(kName, out, input.sizes(), zero, low, high));
  TORCHETTE_CHECK(scale > 0, InvalidArgument, "%s: scale %g", kName, scale);
  const float inverse = static_cast<float>(1.0 / scale);
  const Vec least = broadcast(static_cast<float>(low - zero)),
            most = broadcast(static_cast<float>(high - zero));
  const float* const from = input.const_data_ptr<float>();
  auto* const to = static_cast<uint8_t*>(out.mutable_data_ptr());
  for_blocks(context, static_cast<size_t>(input.numel()), [&](size_t first, size_t count) {
    for (size_t i = first, end = first + count; i < end; i += kLanes) {
      const size_t n = end - i < kLanes ? end - i : kLanes;
      put_bytes((n == kLanes ? load(from + i) : load_partial(from + i, n)) * inverse, least, most,
                static_cast<int32_t>(zero), n, to + i);
    }
  });
  return Error::Ok;
}

static Error dequantize_out(Context& context, const Tensor& input, double scale, int64_t zero, Tensor& out) {
  constexpr const char* kName = "dequantize";
  TORCHETTE_TRY(check_bytes(kName, input, "input"));
  TORCHETTE_CHECK(in_range(input.scalar_type(), zero, zero), InvalidArgument,
                  "%s: zero %lld is not of type %d", kName, static_cast<long long>(zero),
                  static_cast<int>(input.scalar_type()));
  TORCHETTE_TRY(check_result(kName, out, input.sizes()));
  const auto factor = static_cast<float>(scale);
  const Bytes from(input, zero);
  float* const to = out.mutable_data_ptr<float>();
  for_blocks(context, static_cast<size_t>(input.numel()), [&](size_t first, size_t count) {
    for (size_t i = first, end = first + count; i < end; i += kLanes) {
      const Vec x = (floats_of(from.data + i, from.flip, end - i) - from.zero) * factor;
      if (end - i >= kLanes)
        store(to + i, x);
      else
        store_partial(to + i, x, end - i);
    }
  });
  return Error::Ok;
}

static Error lookup_out(Context& context, const Tensor& input, const Tensor& table, Tensor& out) {
  constexpr const char* kName = "lookup";
  TORCHETTE_TRY(check_bytes(kName, input, "input"));
  TORCHETTE_TRY(check_bytes(kName, table, "table"));
  TORCHETTE_CHECK(table.numel() == 256, InvalidArgument, "%s: table has %d elements, not 256", kName,
                  static_cast<int>(table.numel()));
  TORCHETTE_TRY(resize_result(out, input.sizes()));
  TORCHETTE_TRY(check_bytes(kName, out, "out"));
  TORCHETTE_CHECK(out.scalar_type() == table.scalar_type(), InvalidType,
                  "%s: out is of type %d, table of type %d", kName, static_cast<int>(out.scalar_type()),
                  static_cast<int>(table.scalar_type()));
  const auto* const from = static_cast<const uint8_t*>(input.const_data_ptr());
  const auto* const values = static_cast<const uint8_t*>(table.const_data_ptr());
  auto* const to = static_cast<uint8_t*>(out.mutable_data_ptr());
  for_blocks(context, static_cast<size_t>(input.numel()), [&](size_t first, size_t count) {
    size_t i = first;
#if defined(__aarch64__)  // which looks up 16 bytes in 64: places beyond give, or leave, what was there
    uint8x16x4_t quarters[4];
    for (int q = 0; q < 4; ++q) quarters[q] = vld1q_u8_x4(values + 64 * q);
    for (; i + 16 <= first + count; i += 16) {
      const uint8x16_t places = vld1q_u8(from + i), step = vdupq_n_u8(64);
      const uint8x16_t second = vsubq_u8(places, step), third = vsubq_u8(second, step);
      uint8x16_t found = vqtbl4q_u8(quarters[0], places);
      found = vqtbx4q_u8(found, quarters[1], second);
      found = vqtbx4q_u8(found, quarters[2], third);
      vst1q_u8(to + i, vqtbx4q_u8(found, quarters[3], vsubq_u8(third, step)));
    }
#endif
    for (; i < first + count; ++i) to[i] = values[from[i]];
  });
  return Error::Ok;
}

static Error quantized_add_out(Context& context, const Tensor& a, const Tensor& b, double a_scale,
                               int64_t a_zero, double b_scale, int64_t b_zero, double scale, int64_t zero,
                               int64_t low, int64_t high, Tensor& out) {
  constexpr const char* kName = "quantized_add";
  TORCHETTE_TRY(check_bytes(kName, a, "a"));
  TORCHETTE_TRY(check_bytes(kName, b, "b"));
  bool same = a.dim() == b.dim() && a.scalar_type() == b.scalar_type();
  for (size_t d = 0; same && d < a.sizes().size(); ++d) same = a.sizes()[d] == b.sizes()[d];
  TORCHETTE_CHECK(same, InvalidArgument, "%s: a and b differ in type or sizes", kName);
  TORCHETTE_CHECK(
      in_range(a.scalar_type(), a_zero, a_zero) && in_range(a.scalar_type(), b_zero, b_zero) && scale > 0,
      InvalidArgument, "%s: a_zero %lld, b_zero %lld, scale %g", kName, static_cast<long long>(a_zero),
      static_cast<long long>(b_zero), scale);
  TORCHETTE_TRY(check_quantized(kName, out, a.sizes(), zero, low, high));
  const Bytes left(a, a_zero), right(b, b_zero);
  const auto left_scale = static_cast<float>(a_scale), right_scale = static_cast<float>(b_scale);
  const Vec lowest = broadcast(static_cast<float>(low - zero)),
            most = broadcast(static_cast<float>(high - zero));
  // A clamp that changes nothing: with it each product and the sum are rounded by themselves on all machines.
  const Vec least = broadcast(-3.0e38f);
  const auto inverse = static_cast<float>(1.0 / scale);
  auto* const to = static_cast<uint8_t*>(out.mutable_data_ptr());
  for_blocks(context, static_cast<size_t>(a.numel()), [&](size_t first, size_t count) {
    for (size_t i = first, end = first + count; i < end; i += kLanes) {
      const size_t n = end - i < kLanes ? end - i : kLanes;
      const Vec x = maximum(least, (floats_of(left.data + i, left.flip, n) - left.zero) * left_scale);
      const Vec y = maximum(least, (floats_of(right.data + i, right.flip, n) - right.zero) * right_scale);
      put_bytes((x + y) * inverse, lowest, most, static_cast<int32_t>(zero), n, to + i);
    }
  });
  return Error::Ok;
}

TORCHETTE_KERNELS(quantized_pointwise, TORCHETTE_KERNEL("cpu::quantize.out", quantize_out),
                  TORCHETTE_KERNEL("cpu::dequantize.out", dequantize_out),
                  TORCHETTE_KERNEL("cpu::lookup.out", lookup_out),
                  TORCHETTE_KERNEL("cpu::quantized_add.out", quantized_add_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
