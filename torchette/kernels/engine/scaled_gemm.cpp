// SPDX-License-Identifier: BSD-3-Clause
// Register tiles of rows by 8-bit or 4-bit panels, with accumulators that are scaled per group and per row.
#include "torchette/kernels/engine/scaled_gemm.h"

#include "torchette/kernels/engine/integer_machines.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

/// Prevents the compiler from contracting x with the following operation into a fused multiply-add.
TORCHETTE_INLINE Vec prevent_fma(Vec x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#elif TORCHETTE_GNU && defined(__SSE__)
  asm("" : "+x"(x));
#elif defined(__ARM_NEON)
  asm("" : "+w"(x));
#elif TORCHETTE_GNU && !defined(__wasm__)  // WebAssembly has no FMA
  asm("" : "+m"(x));
#endif
  return x;
}

/// Factor by which unpack() scales 4-bit values: 16 avoids a shift if the accumulators cannot overflow.
template <typename M>
constexpr int kNibbleUnit = 16;

#if defined(__AVX2__)
/// Machine for 4-bit weights: sums of product pairs are accumulated in int16, which is sufficient for eight
/// quads. With intrinsics, the compiler schedules all multiplications first and spills the accumulators.
struct Nibbles {
  typedef uint8_t Element;
  static constexpr size_t kParts = 1;
  static constexpr int kMaxRows = 4;
  static constexpr bool kUnsigned = true;
#if defined(__AVX512F__)
  typedef __m512i Vector;
  static constexpr size_t kOutputs = 16;
  static constexpr int kMaxPanels = 2;
  TORCHETTE_INLINE static Vector quad(const uint8_t* p) { return _mm512_set1_epi32(four_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) { return _mm512_loadu_si512(p); }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    Vector pairs;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+v"(sums), "=&v"(pairs) : "v"(x), "v"(w));
    return sums;
  }
  TORCHETTE_INLINE static Vector widen(Vector sums, Vector pairs) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
#else
  typedef __m256i Vector;
  static constexpr size_t kOutputs = 8;
  static constexpr int kMaxPanels = 1;
  TORCHETTE_INLINE static Vector quad(const uint8_t* p) { return _mm256_set1_epi32(four_bytes(p)); }
  TORCHETTE_INLINE static Vector weights(const int8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  TORCHETTE_INLINE static Vector dot(Vector sums, Vector x, Vector w) {
    Vector pairs;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sums), "=&x"(pairs) : "x"(x), "x"(w));
    return sums;
  }
  TORCHETTE_INLINE static Vector widen(Vector sums, Vector pairs) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
#endif
};
template <>
constexpr size_t kMaxQuads<Nibbles> = 8;
template <>
constexpr int kNibbleUnit<Nibbles> = 1;
#endif

// Minimum number of 4-bit inputs that are unpacked at a time, and the maximum number of rows that use them.
constexpr size_t kUnpacked = kLanes >= 16 ? 768 : 256;
constexpr size_t kMaxRowsAtOnce = kLanes >= 8 ? 512 : kRowsAtOnce;

/// Unpacks quads of 4-bit values to bytes, scaled by `kUnit`. The lower halves of the bytes are one quad, the
/// upper halves are the next quad.
template <int kUnit>
void unpack(const uint8_t* from, size_t octets, int8_t* to) {
  TORCHETTE_LANES(Bytes, uint8_t, sizeof(VecInt));
  constexpr size_t kBytes = kPanelWidth * kQuad;
  for (size_t o = 0; o < octets; ++o, from += kBytes, to += 2 * kBytes) {
    for (size_t v = 0; v < kBytes; v += sizeof(Bytes)) {
      VecInt both;
      memcpy(&both, from + v, sizeof(both));
      if (v % 64 == 0) TORCHETTE_PREFETCH(from + kAhead);
      Bytes low, high;
      if (kUnit == 1) {
        const Bytes nibble = Bytes{} + 0x0F, sign = Bytes{} + 0x08;
        low = ((bit_cast<Bytes>(both) & nibble) ^ sign) - sign;
        high = ((bit_cast<Bytes>(both >> 4) & nibble) ^ sign) - sign;
      } else {
        const Bytes nibble = Bytes{} + 0xF0;
        low = bit_cast<Bytes>(both << 4) & nibble;
        high = bit_cast<Bytes>(both) & nibble;
      }
      memcpy(to + v, &low, sizeof(low));
      memcpy(to + kBytes + v, &high, sizeof(high));
    }
  }
}

/// A tile of some groups, rows and panels.
struct ScaledTile {
  size_t groups, quads;  // quads per group
  const void* a;         // Machine::Number
  size_t a_row, a_group;
  const int8_t* w;
  size_t w_panel;
  const float* scales;
  size_t scales_panel;
  float* totals;  // destination of the scaled sums: rows of outputs
  size_t totals_row;
  const RowScale* rows;
  int32_t shift;        // offset of the zero points in the multiplied format
  float unit;           // value of 1 in the accumulators
  const int32_t* sums;  // weight sums per group, with panel stride `sums_panel`
  size_t sums_panel;
};

// Limits the zero point, because a file may contain any value.
TORCHETTE_INLINE int32_t zero_point_of(const RowScale& row) {
  return row.zero > -256.0f && row.zero < 256.0f ? static_cast<int32_t>(row.zero) : 0;
}

// Maximum number of quads with sums that float represents exactly: 255 * 128 * 4 * 128 < 2^24.
constexpr size_t kExact = 128;

/// Whether add_nibbles() supports a single row.
template <typename M>
constexpr bool kHasRowKernel = false;
/// Whether weight sums are computed once for many rows, instead of by a row of ones in each tile.
template <typename M>
constexpr bool kSharesWeightSums = false;

#if TORCHETTE_MAY_HAVE_DOTS && defined(__AVX2__)
template <>
constexpr bool kHasRowKernel<Dots> = true;
#if defined(__AVX512F__)
template <>
constexpr bool kSharesWeightSums<Dots> = true;
#endif

/// Multiplies one row by one panel of 4-bit values, which are unpacked in registers as unsigned values
/// plus 8. The row therefore stays signed. `of_row` contains the sums of its groups.
TORCHETTE_NOINLINE void add_nibbles(const ScaledTile& t, const int32_t* of_row) {
  typedef Dots::Vector Vector;
  constexpr size_t kBytes = sizeof(Vector), kVectors = kPanelWidth * kQuad / kBytes;
  // Octets until an 8-bit accumulator may overflow: each adds at most 30.
  constexpr size_t kMaxOctets = 8;
  TORCHETTE_LANES(Bytes, uint8_t, kBytes);
  const auto* a = static_cast<const uint8_t*>(t.a);
  const auto* w = reinterpret_cast<const uint8_t*>(t.w);
  const uint8_t one[kQuad] = {1, 1, 1, 1};
  const Vector ones = Dots::quad(one);
  const int32_t zero = zero_point_of(*t.rows), weight_term = 8 * static_cast<int32_t>(t.quads * kQuad);
  const Bytes nibble = Bytes{} + 0x0F, sign = Bytes{} + 0x88;
  Vec totals[kVectors];
  TORCHETTE_UNROLL(2)
  for (size_t v = 0; v < kVectors; ++v) totals[v] = load(t.totals + v * kLanes);
  const float* scale = t.scales;
  for (size_t g = 0; g < t.groups; ++g, scale += kPanelWidth) {
    Vector low[kVectors] = {}, high[kVectors] = {}, weights[kVectors] = {};
    for (size_t left = t.quads / 2; left > 0;) {
      size_t octets = left < kMaxOctets ? left : kMaxOctets;
      left -= octets;
      Bytes bytes[kVectors] = {};
      for (; octets > 0; --octets, a += 2 * kQuad) {
        const Vector even = Dots::quad(a), odd = Dots::quad(a + kQuad);
        TORCHETTE_PREFETCH(w + kAhead);
        TORCHETTE_UNROLL(2)
        for (size_t v = 0; v < kVectors; ++v, w += kBytes) {
          VecInt both;
          memcpy(&both, w, sizeof(both));
          both ^= reinterpret_cast<VecInt>(sign);
          const Bytes first = reinterpret_cast<Bytes>(both) & nibble;
          const Bytes second = reinterpret_cast<Bytes>(both >> 4) & nibble;
          bytes[v] += first + second;
          low[v] = Dots::dot(low[v], reinterpret_cast<Vector>(first), even);
          high[v] = Dots::dot(high[v], reinterpret_cast<Vector>(second), odd);
        }
      }
      TORCHETTE_UNROLL(2)
      for (size_t v = 0; v < kVectors; ++v)
        weights[v] = Dots::dot(weights[v], reinterpret_cast<Vector>(bytes[v]), ones);
    }
    TORCHETTE_UNROLL(2)
    for (size_t v = 0; v < kVectors; ++v) {
      const VecInt sum = reinterpret_cast<VecInt>(low[v]) + reinterpret_cast<VecInt>(high[v]);
      const VecInt more = (reinterpret_cast<VecInt>(weights[v]) - weight_term) * zero + 8 * of_row[g];
      totals[v] += prevent_fma(to_floats(sum - more) * load(scale + v * kLanes));
    }
  }
  TORCHETTE_UNROLL(2)
  for (size_t v = 0; v < kVectors; ++v) store(t.totals + v * kLanes, totals[v]);
}
#endif

#if !TORCHETTE_BY_COLUMNS
template <typename M, int kRows, int kPanels>
TORCHETTE_NOINLINE void add_groups(const ScaledTile& t) {
  constexpr bool kOnes =
      sizeof(typename M::Element) == 1;  // 16-bit rows have the zero point subtracted already
  constexpr int kVectors = kPanels * static_cast<int>(kPanelVectors);
  const auto* a = static_cast<const typename M::Element*>(t.a);
  const int8_t* w = t.w;
  const float* scales = t.scales;
  int32_t zeros[kRows];
  for (int i = 0; i < kRows; ++i) zeros[i] = zero_point_of(t.rows[i]) + t.shift;
  for (size_t g = 0; g < t.groups; ++g) {
    Sums<M, kRows + kOnes, kPanels> sums;
    sums.template set<kOnes>(a, t.a_row, w, t.w_panel, t.quads);
    TORCHETTE_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      constexpr int kOf = static_cast<int>(kPanelVectors);
      const float* const scale = scales + static_cast<size_t>(v / kOf) * t.scales_panel;
      const Vec factor = load(scale + static_cast<size_t>(v % kOf) * kLanes) * t.unit;
      float* const totals = t.totals + static_cast<size_t>(v) * kLanes;
      const auto put = [&](int i, Vec sum) TORCHETTE_INLINED {
        float* const total = totals + static_cast<size_t>(i) * t.totals_row;
        store(total, load(total) + prevent_fma(sum * factor));
      };
      if constexpr (!kOnes) {
        TORCHETTE_UNROLL(8)
        for (int i = 0; i < kRows; ++i) put(i, to_floats(add_parts<M>(sums.of[i], v)));
      } else {
        const VecInt weights = add_parts<M>(sums.of[kRows], v);
        if (t.quads <= kExact) {
          const Vec weight_term = to_floats(weights);
          TORCHETTE_UNROLL(8)
          for (int i = 0; i < kRows; ++i)
            put(i, to_floats(add_parts<M>(sums.of[i], v)) - weight_term * static_cast<float>(zeros[i]));
        } else {
          TORCHETTE_UNROLL(8)
          for (int i = 0; i < kRows; ++i) put(i, to_floats(add_parts<M>(sums.of[i], v) - weights * zeros[i]));
        }
      }
    }
    a += t.a_group;
    w += t.quads * kPanelWidth * kQuad;
    scales += kPanelWidth;
  }
}

/// add_groups() for kSharesWeightSums. The totals stay in registers between groups, because storing them each
/// time took longer than all other work after the multiplications.
template <typename M, int kRows, int kPanels>
TORCHETTE_NOINLINE void add_groups_apart(const ScaledTile& t) {
  const auto* a = static_cast<const uint8_t*>(t.a);
  const int8_t* w = t.w;
  const auto total = [&](int i, int p) TORCHETTE_INLINED {
    return t.totals + static_cast<size_t>(i) * t.totals_row + static_cast<size_t>(p) * kPanelWidth;
  };
  int32_t zeros[kRows];
  Vec totals[kRows][kPanels];
  TORCHETTE_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    zeros[i] = zero_point_of(t.rows[i]) + t.shift;
    TORCHETTE_UNROLL(8)
    for (int p = 0; p < kPanels; ++p) totals[i][p] = load(total(i, p));
  }
  for (size_t g = 0; g < t.groups; ++g, a += t.a_group, w += t.quads * kPanelWidth * kQuad) {
    Sums<M, kRows, kPanels> sums;
    sums.template set<false>(a, t.a_row, w, t.w_panel, t.quads);
    TORCHETTE_UNROLL(8)
    for (int p = 0; p < kPanels; ++p) {
      const VecInt weights = load(t.sums + static_cast<size_t>(p) * t.sums_panel + g * kPanelWidth);
      const Vec scale = load(t.scales + static_cast<size_t>(p) * t.scales_panel + g * kPanelWidth) * t.unit;
      const auto add = [&](auto sum) TORCHETTE_INLINED {
        TORCHETTE_UNROLL(8)
        for (int i = 0; i < kRows; ++i)
          totals[i][p] += prevent_fma(sum(i, add_parts<M>(sums.of[i], p)) * scale);
      };
      if (t.quads <= kExact) {
        const Vec weight_term = to_floats(weights);
        add([&](int i, VecInt sum)
                TORCHETTE_INLINED { return to_floats(sum) - weight_term * static_cast<float>(zeros[i]); });
      } else {
        add([&](int i, VecInt sum) TORCHETTE_INLINED { return to_floats(sum - weights * zeros[i]); });
      }
    }
  }
  TORCHETTE_UNROLL(8)
  for (int i = 0; i < kRows; ++i) TORCHETTE_UNROLL(8)
  for (int p = 0; p < kPanels; ++p) store(total(i, p), totals[i][p]);
}
#else
template <typename M, int kRows, int kPanels>
TORCHETTE_NOINLINE void add_groups(const ScaledTile& t) {
  constexpr bool kOnes = sizeof(typename M::Element) == 1;
  const auto* a = static_cast<const typename M::Element*>(t.a);
  const int8_t* w = t.w;
  for (size_t g = 0; g < t.groups; ++g, a += t.a_group, w += t.quads * kPanelWidth * kQuad) {
    int32_t sums[kRows * kPanelWidth], weights[kPanelWidth] = {};
    for (size_t j = 0; j < kPanelWidth; j += M::kColumns)
      M::template column<kRows>(a, w + j * kQuad, t.quads, sums + j);
    if (kOnes)
      for (size_t q = 0; q < t.quads * kPanelWidth * kQuad; ++q) weights[q / kQuad % kPanelWidth] += w[q];
    for (size_t i = 0; i < kRows; ++i) {
      const int32_t zero = kOnes ? zero_point_of(t.rows[i]) + t.shift : 0;
      for (size_t v = 0; v < kPanelWidth; v += kLanes) {
        float* const total = t.totals + i * t.totals_row + v;
        const VecInt integer = load(sums + i * kPanelWidth + v) - load(weights + v) * zero;
        const Vec factor = load(t.scales + g * kPanelWidth + v) * t.unit;
        store(total, load(total) + prevent_fma(to_floats(integer) * factor));
      }
    }
  }
}
#endif

/// Applies bias, activation and residual, and stores rows of `columns` values from rows of `width`.
void finish(const ScaledProduct& product, size_t column, size_t columns, const float* totals, size_t width) {
  float low, high;
  const Activation left = split_activation(product.activation, low, high);
  const Vec lower = broadcast(low), upper = broadcast(high);
  const float* const bias = product.bias == nullptr ? nullptr : product.bias + column;
  for (size_t i = 0; i < product.m; ++i, totals += width) {
    const size_t at = i * product.n + column;
    const float* const residual = product.residual == nullptr ? nullptr : product.residual + at;
    const Vec scale = broadcast(product.rows[i].scale);
    const auto put = [&](size_t v, size_t n) TORCHETTE_INLINED {
      Vec y = prevent_fma(load(totals + v) * scale);
      if (bias != nullptr) y += load_partial(bias + v, n);
      if (residual != nullptr) y += load_partial(residual + v, n);
      store_partial(product.c + at + v, clamp(y, lower, upper), n);
    };
    size_t v = 0;
    for (; v + kLanes <= columns; v += kLanes) put(v, kLanes);
    if (v < columns) put(v, columns - v);
  }
  activate(left, product.c + column, static_cast<ptrdiff_t>(product.n), product.m, columns);
}

/// Returns how many rows share unpacked weights: all rows, unless fewer are needed to occupy every worker.
size_t rows_at_once(const ScaledProduct& product, size_t workers) {
  constexpr size_t kMinRows = 32;
  const size_t even = workers == 1 ? product.m : (product.m / (2 * workers) + 3) / 4 * 4;
  return even < kMinRows ? kMinRows : even < kMaxRowsAtOnce ? even : kMaxRowsAtOnce;
}

/// Scratch memory layout of a worker for its part of a scaled product.
template <typename M>
struct ScaledScratch {
  static constexpr int kRows = M::kMaxRows < 4 ? M::kMaxRows : 4, kPanels = M::kMaxPanels;
  size_t quads, groups, chunk, padded, unpacked, totals, sums, bytes;

  ScaledScratch(const ScaledProduct& product, size_t at_once) {
    const size_t unit = product.nibbles ? 2 * kQuad : kQuad;
    const size_t padded_k = (product.k + unit - 1) / unit * unit;  // inputs of the packed weight
    groups = product.groups;
    quads = groups == 1 ? padded_k / kQuad : padded_k / groups / kQuad;
    chunk = !product.nibbles || quads == 0 ? groups : (kUnpacked + quads * kQuad - 1) / (quads * kQuad);
    chunk = chunk < groups ? chunk : groups;
#if TORCHETTE_BY_COLUMNS
    padded = groups * padded_row<M>(quads * kQuad);
#else
    padded = groups * quads * kQuad;
#endif
    const size_t rows = product.m < at_once ? product.m : at_once;
    totals = (rows * padded * sizeof(typename M::Element) + 63) / 64 * 64;
    unpacked = totals + rows * kPanels * kPanelWidth * sizeof(float);
    sums = unpacked + (product.nibbles ? kPanels * chunk * quads * kPanelWidth * kQuad : 0);
    bytes = sums + (kHasRowKernel<M> ? groups * kPanels * kPanelWidth * sizeof(int32_t) : 0);
  }
};

#if TORCHETTE_MAY_HAVE_DOTS && defined(__AVX2__)
/// Computes panels [first, last) of a single row with 4-bit weights.
template <typename M>
TORCHETTE_INLINE void multiply_row_of_nibbles(const ScaledProduct& product, const ScaledScratch<M>& parts,
                                              size_t of_panel, size_t first, size_t last, ScaledTile& t,
                                              uint8_t* scratch) {
  auto* const totals = reinterpret_cast<float*>(scratch + parts.totals);
  auto* const sums = reinterpret_cast<int32_t*>(scratch + parts.sums);
  for (size_t g = 0; g < parts.groups; ++g) {
    sums[g] = 0;
    for (size_t i = g * parts.quads * kQuad; i < (g + 1) * parts.quads * kQuad && i < product.k; ++i)
      sums[g] += product.a[i];
  }
  t.rows = product.rows;
  t.groups = parts.groups;
  t.totals = totals;
  // The elements after the row are read, but their weights are zero.
  memcpy(scratch, product.a, product.k);
  memset(scratch + product.k, 0, parts.padded - product.k);
  t.a = scratch;
  for (size_t p = first; p < last; ++p) {
    const size_t column = p * kPanelWidth, left = product.n - column;
    memset(totals, 0, kPanelWidth * sizeof(float));
    t.w = reinterpret_cast<const int8_t*>(product.w + p * of_panel);
    t.scales = product.scales + p * t.scales_panel;
    add_nibbles(t, sums);
    finish(product, column, left < kPanelWidth ? left : kPanelWidth, totals, kPanelWidth);
  }
}
#endif

/// Adds the groups of `t` to the totals of all rows, which have stride `t.a_row`.
template <typename M, typename Rows>
TORCHETTE_INLINE void add_rows(const ScaledProduct& product, const Rows* rows, float* totals, size_t panels,
                               ScaledTile& t) {
  constexpr int kRows = ScaledScratch<M>::kRows;
  for (size_t i = 0; i < product.m;) {
    t.a = rows + i * t.a_row;
    t.totals = totals + i * t.totals_row;
    t.rows = product.rows + i;
    const bool many = product.m - i >= kRows;
    ScaledTile one = t;
    size_t at_once = 1;
    for (size_t each = 0; each < panels; each += at_once) {
#if !TORCHETTE_BY_COLUMNS
      if constexpr (kSharesWeightSums<M>) {
        if (panels > 1) {
          at_once = panels;  // equals kPanels
          constexpr int kPanels = ScaledScratch<M>::kPanels;
          many ? add_groups_apart<M, kRows, kPanels>(one) : add_groups_apart<M, 1, kPanels>(one);
        }
      }
#endif
      if (at_once == 1) many ? add_groups<M, kRows, 1>(one) : add_groups<M, 1, 1>(one);
      one.w += at_once * t.w_panel;
      one.scales += at_once * t.scales_panel;
      one.totals += at_once * kPanelWidth;
    }
    i += many ? kRows : 1;
  }
}

template <typename M>
void multiply_scaled(const ScaledProduct& product, size_t first, size_t last, uint8_t* scratch) {
  typedef typename M::Element Element;
  const ScaledScratch<M> parts(product, product.m);
  const size_t of_panel = parts.groups * parts.quads * kPanelWidth * kQuad >> product.nibbles;
  const bool flip = flips<M>(true);
  ScaledTile t = {};
  t.quads = parts.quads;
  t.scales_panel = parts.groups * kPanelWidth;
  const int32_t mask = mask_of(flip);
  t.shift = shift_of<M>(flip);
  t.unit = product.nibbles ? 1.0f / kNibbleUnit<M> : 1.0f;
  const auto zero = [&](size_t i) { return zero_point_of(product.rows[i]) + t.shift; };
  const auto* const bytes = reinterpret_cast<const uint8_t*>(product.a);
  auto* const totals = reinterpret_cast<float*>(scratch + parts.totals);
  auto* const sums = reinterpret_cast<int32_t*>(scratch + parts.sums);
#if TORCHETTE_MAY_HAVE_DOTS && defined(__AVX2__)
  if constexpr (kHasRowKernel<M>) {
    if (product.m == 1 && product.nibbles) {
      multiply_row_of_nibbles(product, parts, of_panel, first, last, t, scratch);
      return;
    }
  }
#endif
  ptrdiff_t a_row = static_cast<ptrdiff_t>(product.k);
#if TORCHETTE_BY_COLUMNS
  auto* const rows = reinterpret_cast<Element*>(scratch);
  const size_t of_group = parts.quads * kQuad;
  t.a_row = padded_row<M>(of_group);
  t.a_group = product.m * t.a_row;
  for (size_t g = 0; g < parts.groups; ++g)
    arrange<M, false>(bytes + g * of_group, a_row, product.m, parts.groups == 1 ? product.k : of_group,
                      t.a_row, parts.kRows, mask, zero, rows + g * t.a_group);
#else
  const Element* const rows =
      machine_rows<M>(bytes, a_row, product.m, product.k, parts.padded, mask, zero, scratch);
  t.a_row = static_cast<size_t>(a_row);
  t.a_group = parts.quads * kQuad;
#endif
  auto* const unpacked = reinterpret_cast<int8_t*>(scratch + parts.unpacked);
  for (size_t p = first, panels; p < last; p += panels) {
    // With few rows, the weights are read in place.
    panels = product.m > 2 && last - p >= parts.kPanels ? parts.kPanels : 1;
    const size_t width = panels * kPanelWidth, column = p * kPanelWidth;
    memset(totals, 0, product.m * width * sizeof(float));
    t.totals_row = width;
    for (size_t g = 0; g < parts.groups; g += t.groups) {
      t.groups = parts.groups - g < parts.chunk ? parts.groups - g : parts.chunk;
      const uint8_t* const from =
          product.w + p * of_panel + (g * parts.quads * kPanelWidth * kQuad >> product.nibbles);
      t.w = reinterpret_cast<const int8_t*>(from);
      t.w_panel = of_panel;
      if (product.nibbles) {
        t.w = unpacked;
        t.w_panel = t.groups * parts.quads * kPanelWidth * kQuad;
        for (size_t i = 0; i < panels; ++i)
          unpack<kNibbleUnit<M>>(from + i * of_panel, t.groups * parts.quads / 2, unpacked + i * t.w_panel);
      }
      t.scales = product.scales + (p * parts.groups + g) * kPanelWidth;
#if !TORCHETTE_BY_COLUMNS
      if constexpr (kSharesWeightSums<M>) {
        t.sums = sums;
        t.sums_panel = t.groups * kPanelWidth;
        for (size_t i = 0; panels > 1 && i < panels * t.groups; ++i) {
          const size_t of_group = parts.quads * kPanelWidth * kQuad;
          Sums<M, 1, 1> weights;
          weights.template set<true>(nullptr, 0, t.w + i / t.groups * t.w_panel + i % t.groups * of_group, 0,
                                     parts.quads);
          for (size_t v = 0; v < kPanelVectors; ++v)
            store(sums + i * kPanelWidth + v * kLanes, add_parts<M>(weights.of[0], static_cast<int>(v)));
        }
      }
#endif
      add_rows<M>(product, rows + g * t.a_group, totals, panels, t);
    }
    finish(product, column, product.n - column < width ? product.n - column : width, totals, width);
  }
}

template <typename M>
Error scale_sums(Context& context, const char* op, const ScaledProduct& product) {
  const size_t at_once = rows_at_once(product, context.workers());
  const ScaledScratch<M> scratch(product, at_once);
  return for_parts(
      context, op, product.m, product.n, product.k, scratch.bytes,
      [&](size_t at, size_t count, size_t first, size_t last, uint8_t* memory) {
        ScaledProduct part = product;
        part.m = count;
        part.a += at * product.k;
        part.rows += at;
        part.c += at * product.n;
        if (part.residual != nullptr) part.residual += at * product.n;
        multiply_scaled<M>(part, first, last, memory);
      },
      at_once, product.m > 2 ? scratch.kPanels : 1);
}

}  // namespace

Error scaled_gemm(Context& context, const char* op, const ScaledProduct& product) {
#if TORCHETTE_MAY_HAVE_DOTS
#if defined(__aarch64__)
  if (uses<has_pairs>()) return scale_sums<Pairs>(context, op, product);
#endif
  if (uses<has_dots>()) return scale_sums<Dots>(context, op, product);
#endif
#if defined(__AVX2__)
  if (product.nibbles) return scale_sums<Nibbles>(context, op, product);
#endif
  return scale_sums<Machine>(context, op, product);
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
