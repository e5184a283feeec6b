// SPDX-License-Identifier: BSD-3-Clause
// cpu::quantize, cpu::dequantize, cpu::lookup, cpu::quantized_add, cpu::quantized_mul:
// torchette/backends/engine/operators/quantized.py.
#include "torchette/kernels/engine/quantized.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Number of elements per block, a multiple of a panel.
constexpr size_t kBlock = 4096;
// Cost of an element, in multiply-adds.
constexpr size_t kWork = 4;

/// Calls body(first, count) for blocks of elements, on the context's threads.
template <typename Body>
void for_blocks(Context& context, size_t elements, const Body& body) {
  context.parallel_for((elements + kBlock - 1) / kBlock, min_items(kBlock * kWork),
                       [&](size_t begin, size_t end, size_t) {
                         for (size_t b = begin; b < end; ++b) {
                           const size_t first = b * kBlock, left = elements - first;
                           body(first, left < kBlock ? left : kBlock);
                         }
                       });
}

/// An 8-bit tensor, converted to floats with floats_of().
struct Bytes {
  const uint8_t* data;
  int8_t flip;
  float zero;

  Bytes(const Tensor& t, int64_t zero_point)
      : data(static_cast<const uint8_t*>(t.const_data_ptr())),
        flip(static_cast<int8_t>(t.scalar_type() == ScalarType::Char ? 0 : INT8_MIN)),
        zero(static_cast<float>(t.scalar_type() == ScalarType::Char ? zero_point : zero_point - 128)) {}
};

// Lookup of the bytes of a tensor in a 256-entry table.
#if defined(__AVX512F__) && !defined(__clang__)
#define TORCHETTE_TWO_LOOKUPS 1
/// Two instructions, each of which looks up in one half of the table.
TORCHETTE_TARGET("avx512vbmi")
size_t look_up_wide(const uint8_t* from, const uint8_t* table, uint8_t* to, size_t n) {
  const __m512i a = _mm512_loadu_si512(table), b = _mm512_loadu_si512(table + 64);
  const __m512i c = _mm512_loadu_si512(table + 128), d = _mm512_loadu_si512(table + 192);
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const __m512i x = _mm512_loadu_si512(from + i);
    const __m512i low = _mm512_permutex2var_epi8(a, x, b), high = _mm512_permutex2var_epi8(c, x, d);
    _mm512_storeu_si512(to + i, _mm512_mask_blend_epi8(_mm512_movepi8_mask(x), low, high));
  }
  return i;
}
#endif
#if defined(__AVX2__)
/// Looks up in a sixteenth of the table at a time: the shuffle returns zero for other indices.
size_t look_up(const uint8_t* from, const uint8_t* table, uint8_t* to, size_t n) {
#ifdef TORCHETTE_TWO_LOOKUPS
  if (TORCHETTE_CPU_HAS("avx512vbmi")) return look_up_wide(from, table, to, n);
#endif
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    __m256i found = _mm256_setzero_si256();
    for (int part = 0; part < 16; ++part) {
      const __m256i values =
          _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16 * part)));
      const __m256i above = _mm256_xor_si256(x, _mm256_set1_epi8(static_cast<char>(16 * part)));
      const __m256i position = _mm256_adds_epu8(above, _mm256_set1_epi8(0x70));
      found = _mm256_or_si256(found, _mm256_shuffle_epi8(values, position));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), found);
  }
  return i;
}
#elif defined(__aarch64__)
/// Looks up in a quarter of the table at a time: other indices leave the previous result.
size_t look_up(const uint8_t* from, const uint8_t* table, uint8_t* to, size_t n) {
  uint8x16x4_t parts[4];
  for (int part = 0; part < 4; ++part) parts[part] = vld1q_u8_x4(table + 64 * part);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const uint8x16_t x = vld1q_u8(from + i);
    uint8x16_t found = vqtbl4q_u8(parts[0], x);
    for (int part = 1; part < 4; ++part)
      found = vqtbx4q_u8(found, parts[part], vsubq_u8(x, vdupq_n_u8(static_cast<uint8_t>(64 * part))));
    vst1q_u8(to + i, found);
  }
  return i;
}
#elif TORCHETTE_HAS_RVV
size_t look_up(const uint8_t* from, const uint8_t* table, uint8_t* to, size_t n) {
  for (size_t i = 0, some; i < n; i += some) {
    some = __riscv_vsetvl_e8m8(n - i);
    const vuint8m8_t x = __riscv_vle8_v_u8m8(from + i, some);
    __riscv_vse8_v_u8m8(to + i, __riscv_vluxei8_v_u8m8(table, x, some), some);
  }
  return n;
}
#else
size_t look_up(const uint8_t*, const uint8_t*, uint8_t*, size_t) { return 0; }
#endif

}  // namespace

static Error quantize_out(Context& context, const Tensor& input, double scale, int64_t zero, int64_t low,
                          int64_t high, Tensor& out) {
  constexpr const char* kName = "quantize";
  TORCHETTE_TRY(check_floats(kName, input, "input"));
  TORCHETTE_TRY(check_quantized(kName, out, input.sizes(), zero, low, high));
  TORCHETTE_CHECK(scale > 0, InvalidArgument, "%s: scale %g is not positive", kName, scale);
  const float inverse = static_cast<float>(1.0 / scale);
  const ToBytes bytes(static_cast<int32_t>(zero), static_cast<int32_t>(low), static_cast<int32_t>(high));
  const float* const from = input.const_data_ptr<float>();
  auto* const to = static_cast<uint8_t*>(out.mutable_data_ptr());
  for_blocks(context, static_cast<size_t>(input.numel()), [&](size_t first, size_t count) {
    put_all(bytes, count, to + first, [&](size_t i, size_t n) TORCHETTE_INLINED {
      return (n == kLanes ? load(from + first + i) : load_partial(from + first + i, n)) * inverse;
    });
  });
  return Error::Ok;
}

static Error dequantize_out(Context& context, const Tensor& input, double scale, int64_t zero, Tensor& out) {
  constexpr const char* kName = "dequantize";
  TORCHETTE_TRY(check_bytes(kName, input, "input"));
  TORCHETTE_CHECK(in_range(input.scalar_type(), zero, zero), InvalidArgument,
                  "%s: zero %lld is outside of the range of type %d", kName, static_cast<long long>(zero),
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
  TORCHETTE_CHECK(table.numel() == 256, InvalidArgument, "%s: table has %d elements, expected 256", kName,
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
    size_t i = first + look_up(from + first, values, to + first, count);
    for (; i < first + count; ++i) to[i] = values[from[i]];
  });
  return Error::Ok;
}

/// Checks two 8-bit operands of the same type and the quantization parameters.
static Error check_two(const char* op, const Tensor& a, const Tensor& b, int64_t a_zero, int64_t b_zero,
                       double scale) {
  TORCHETTE_TRY(check_bytes(op, a, "a"));
  TORCHETTE_TRY(check_bytes(op, b, "b"));
  const ScalarType type = a.scalar_type();
  TORCHETTE_CHECK(type == b.scalar_type(), InvalidType, "%s: a is of type %d, b of type %d", op,
                  static_cast<int>(type), static_cast<int>(b.scalar_type()));
  TORCHETTE_CHECK(in_range(type, a_zero, a_zero) && in_range(type, b_zero, b_zero) && scale > 0,
                  InvalidArgument, "%s: a_zero %lld, b_zero %lld or scale %g is out of range", op,
                  static_cast<long long>(a_zero), static_cast<long long>(b_zero), scale);
  return Error::Ok;
}

static Error quantized_add_out(Context& context, const Tensor& a, const Tensor& b, double a_scale,
                               int64_t a_zero, double b_scale, int64_t b_zero, double scale, int64_t zero,
                               int64_t low, int64_t high, Tensor& out) {
  constexpr const char* kName = "quantized_add";
  TORCHETTE_TRY(check_two(kName, a, b, a_zero, b_zero, scale));
  TORCHETTE_CHECK(has_sizes(a, b.sizes()), InvalidArgument, "%s: a and b differ in sizes", kName);
  TORCHETTE_TRY(check_quantized(kName, out, a.sizes(), zero, low, high));
  const QuantizedSum sum(a.scalar_type() == ScalarType::Char, a_scale, a_zero, b_scale, b_zero, scale, zero,
                         low, high);
  const ToBytes bytes(sum.zero, sum.low, sum.high);
  const auto* const left = static_cast<const uint8_t*>(a.const_data_ptr());
  const auto* const right = static_cast<const uint8_t*>(b.const_data_ptr());
  auto* const to = static_cast<uint8_t*>(out.mutable_data_ptr());
  for_blocks(context, static_cast<size_t>(a.numel()), [&](size_t first, size_t count) {
    sum.add(bytes, left + first, right + first, count, to + first);
  });
  return Error::Ok;
}

static Error quantized_mul_out(Context& context, const Tensor& a, const Tensor& b, double a_scale,
                               int64_t a_zero, double b_scale, int64_t b_zero, double scale, int64_t zero,
                               int64_t low, int64_t high, Tensor& out) {
  constexpr const char* kName = "quantized_mul";
  TORCHETTE_TRY(check_two(kName, a, b, a_zero, b_zero, scale));
  const auto rank = static_cast<size_t>(a.dim());
  bool fits = a.dim() == b.dim() && rank > 0;
  for (size_t d = 0; fits && d < rank; ++d) fits = b.sizes()[d] == a.sizes()[d] || b.sizes()[d] == 1;
  TORCHETTE_CHECK(fits, InvalidArgument,
                  "%s: b with %d dimensions does not broadcast to a with %d dimensions", kName,
                  static_cast<int>(b.dim()), static_cast<int>(a.dim()));
  TORCHETTE_TRY(check_quantized(kName, out, a.sizes(), zero, low, high));
  const Bytes left(a, a_zero), right(b, b_zero);
  const auto left_scale = static_cast<float>(a_scale), right_scale = static_cast<float>(b_scale);
  const ToBytes bytes(static_cast<int32_t>(zero), static_cast<int32_t>(low), static_cast<int32_t>(high));
  const auto inverse = static_cast<float>(1.0 / scale);
  auto* const to = static_cast<uint8_t*>(out.mutable_data_ptr());
  const auto length = static_cast<size_t>(a.sizes()[rank - 1]);
  const bool one = b.sizes()[rank - 1] == 1;  // a single value for the row
  const size_t rows = length == 0 ? 0 : static_cast<size_t>(a.numel()) / length;
  context.parallel_for(rows, min_items(length * kWork), [&](size_t begin, size_t end, size_t) {
    for (size_t r = begin; r < end; ++r) {
      size_t remaining = r, offset = 0, step = static_cast<size_t>(b.sizes()[rank - 1]);
      for (size_t d = rank - 1; d-- > 0;) {
        const auto size = static_cast<size_t>(a.sizes()[d]), own = static_cast<size_t>(b.sizes()[d]);
        offset += own == 1 ? 0 : remaining % size * step;
        remaining /= size;
        step *= own;
      }
      const uint8_t* const x = left.data + r * length;
      const uint8_t* const y = right.data + offset;
      const Vec all = broadcast(
          one ? (static_cast<float>(static_cast<int8_t>(*y ^ right.flip)) - right.zero) * right_scale : 0.0f);
      put_all(bytes, length, to + r * length, [&](size_t i, size_t n) TORCHETTE_INLINED {
        const Vec p = (floats_of(x + i, left.flip, n) - left.zero) * left_scale;
        const Vec q = one ? all : (floats_of(y + i, right.flip, n) - right.zero) * right_scale;
        return p * q * inverse;
      });
    }
  });
  return Error::Ok;
}

TORCHETTE_KERNELS(quantized_pointwise, TORCHETTE_KERNEL("cpu::quantize.out", quantize_out),
                  TORCHETTE_KERNEL("cpu::dequantize.out", dequantize_out),
                  TORCHETTE_KERNEL("cpu::lookup.out", lookup_out),
                  TORCHETTE_KERNEL("cpu::quantized_add.out", quantized_add_out),
                  TORCHETTE_KERNEL("cpu::quantized_mul.out", quantized_mul_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
