// SPDX-License-Identifier: BSD-3-Clause
// The library compiles for processors with AVX-512F and names no more; all of them multiply and add halves of
// vectors.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("fma"))), apply_to = function)
#else
#pragma GCC target("fma")
#endif
#include <immintrin.h>
#include <xnnpack/gemm.h>
#include <xnnpack/igemm.h>
#include <xnnpack/transpose.h>

#include "additions.h"

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

enum { kTile = 32, kRows = 8 };

struct window {
  size_t ks;        // places of the kernel
  size_t a_offset;  // of all rows but `zero`
  const float* zero;
};

/// `rows` rows of the last columns: 16 of them where `wide`, and 8 (after those) where `narrow`. `a` has the
/// pointers of `rows` rows for each place. Rows from `mr` on repeat the last one.
INLINE void compute(const size_t rows, const bool wide, const bool narrow, size_t mr, size_t nc, size_t kc,
                    struct window window, const float* const* a, const float* w, float* c, size_t cm_stride,
                    const union xnn_f32_minmax_params* params) {
  const size_t at = wide ? 16 : 0;
  __m512 wides[kRows];
  __m256 narrows[kRows];
  UNROLL for (size_t m = 0; m < rows; ++m) {
    if (wide) wides[m] = _mm512_load_ps(w);
    if (narrow) narrows[m] = _mm256_load_ps(w + at);
  }
  w += kTile;
  for (size_t place = 0; place < window.ks; ++place, a += rows) {
    const float* row[kRows];
    UNROLL for (size_t m = 0; m < rows; ++m) row[m] =
        a[m] == window.zero ? a[m] : (const float*)((const char*)a[m] + window.a_offset);
    for (size_t k = 0; k < kc; ++k, w += kTile) {
      const __m512 w16 = wide ? _mm512_load_ps(w) : _mm512_setzero_ps();
      const __m256 w8 = narrow ? _mm256_load_ps(w + at) : _mm256_setzero_ps();
      UNROLL for (size_t m = 0; m < rows; ++m) {
        if (wide) {
          const __m512 x = _mm512_set1_ps(row[m][k]);
          wides[m] = _mm512_fmadd_ps(x, w16, wides[m]);
          if (narrow) narrows[m] = _mm256_fmadd_ps(_mm512_castps512_ps256(x), w8, narrows[m]);
        } else {
          narrows[m] = _mm256_fmadd_ps(_mm256_set1_ps(row[m][k]), w8, narrows[m]);
        }
      }
    }
  }
  // of a limit and NaN the instructions give the second operand
  const __m512 low = _mm512_set1_ps(params->scalar.min), high = _mm512_set1_ps(params->scalar.max);
  const __mmask16 first = (__mmask16)(nc < 16 ? (1u << nc) - 1 : 0xFFFF);
  const __mmask16 rest = (__mmask16)(wide && narrow ? (1u << (nc - 16)) - 1 : first);
  UNROLL for (size_t m = 0; m < rows; ++m) {
    float* to = (float*)((char*)c + (m < mr ? m : mr - 1) * cm_stride);
    if (wide) _mm512_mask_storeu_ps(to, first, _mm512_min_ps(high, _mm512_max_ps(low, wides[m])));
    if (narrow)
      _mm512_mask_storeu_ps(to + at, rest,
                            _mm512_min_ps(high, _mm512_max_ps(low, _mm512_castps256_ps512(narrows[m]))));
  }
}

INLINE void compute_last(const size_t rows, size_t mr, size_t nc, size_t kc, struct window window,
                         const float* const* a, const float* w, float* c, size_t cm_stride,
                         const union xnn_f32_minmax_params* params) {
  if (nc > 16) {
    compute(rows, true, true, mr, nc, kc, window, a, w, c, cm_stride, params);
  } else if (nc > 8) {
    compute(rows, true, false, mr, nc, kc, window, a, w, c, cm_stride, params);
  } else {
    compute(rows, false, true, mr, nc, kc, window, a, w, c, cm_stride, params);
  }
}

/// Whether the last tile is computed as all others: at once, and by a jump to the library's kernel.
INLINE bool is_whole(size_t nc) { return nc % kTile == 0 || nc % kTile > 24; }

#define GEMM_PARAMETERS                                                                       \
  size_t mr, size_t nc, size_t kc, const float *a, size_t a_stride, const float *w, float *c, \
      size_t cm_stride, size_t cn_stride, const union xnn_f32_minmax_params *params
#define GEMM(ROWS)                                                                                         \
  static __attribute__((noinline)) void gemm_##ROWS(GEMM_PARAMETERS) {                                     \
    const size_t rest = nc % kTile, whole = nc - rest, inputs = kc / sizeof(float);                        \
    if (whole != 0)                                                                                        \
      xnn_f32_gemm_minmax_ukernel_##ROWS##x32__avx512f_broadcast(mr, whole, kc, a, a_stride, w, c,         \
                                                                 cm_stride, cn_stride, params);            \
    const float* rows[ROWS];                                                                               \
    for (size_t m = 0; m < ROWS; ++m)                                                                      \
      rows[m] = (const float*)((const char*)a + (m < mr ? m : mr - 1) * a_stride);                         \
    const struct window window = {1, 0, NULL};                                                             \
    compute_last(ROWS, mr, rest, inputs, window, rows, w + whole * (inputs + 1),                           \
                 (float*)((char*)c + whole / kTile * cn_stride), cm_stride, params);                       \
  }                                                                                                        \
  void xnn_f32_gemm_minmax_ukernel_##ROWS##x32__added(GEMM_PARAMETERS) {                                   \
    if (is_whole(nc)) {                                                                                    \
      xnn_f32_gemm_minmax_ukernel_##ROWS##x32__avx512f_broadcast(mr, nc, kc, a, a_stride, w, c, cm_stride, \
                                                                 cn_stride, params);                       \
    } else {                                                                                               \
      gemm_##ROWS(mr, nc, kc, a, a_stride, w, c, cm_stride, cn_stride, params);                            \
    }                                                                                                      \
  }
GEMM(7)
GEMM(8)

#define IGEMM_PARAMETERS                                                                                   \
  size_t mr, size_t nc, size_t kc, size_t ks, const float **a, const float *w, float *c, size_t cm_stride, \
      size_t cn_stride, size_t a_offset, const float *zero, const union xnn_f32_minmax_params *params
static __attribute__((noinline)) void igemm_7(IGEMM_PARAMETERS) {
  const size_t rest = nc % kTile, whole = nc - rest, inputs = kc / sizeof(float);
  if (whole != 0)
    xnn_f32_igemm_minmax_ukernel_7x32__avx512f_broadcast(mr, whole, kc, ks, a, w, c, cm_stride, cn_stride,
                                                         a_offset, zero, params);
  const struct window window = {ks / (7 * sizeof(void*)), a_offset, zero};
  compute_last(7, mr, rest, inputs, window, a, w + whole * (inputs * window.ks + 1),
               (float*)((char*)c + whole / kTile * cn_stride), cm_stride, params);
}
void xnn_f32_igemm_minmax_ukernel_7x32__added(IGEMM_PARAMETERS) {
  if (is_whole(nc)) {
    xnn_f32_igemm_minmax_ukernel_7x32__avx512f_broadcast(mr, nc, kc, ks, a, w, c, cm_stride, cn_stride,
                                                         a_offset, zero, params);
  } else {
    igemm_7(mr, nc, kc, ks, a, w, c, cm_stride, cn_stride, a_offset, zero, params);
  }
}

void xnn_x32_transposec_ukernel__added(const void* input, void* output, size_t input_stride,
                                       size_t output_stride, size_t block_width, size_t block_height) {
  if (block_height != 3 || output_stride != 3 * sizeof(float)) {
    xnn_x32_transposec_ukernel__8x8_reuse_multi_avx((const uint32_t*)input, (uint32_t*)output, input_stride,
                                                    output_stride, block_width, block_height);
    return;
  }
  const char* red = (const char*)input;
  const char *green = red + input_stride, *blue = green + input_stride;
  char* to = (char*)output;
  // Of each place of three vectors of pixels: where its number stands, in red (and green after it), then in
  // blue.
  const __m512i pair[3] = {_mm512_setr_epi32(0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5),
                           _mm512_setr_epi32(21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26),
                           _mm512_setr_epi32(0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0)};
  const __m512i third[3] = {_mm512_setr_epi32(0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15),
                            _mm512_setr_epi32(0, 21, 2, 3, 22, 5, 6, 23, 8, 9, 24, 11, 12, 25, 14, 15),
                            _mm512_setr_epi32(26, 1, 2, 27, 4, 5, 28, 7, 8, 29, 10, 11, 30, 13, 14, 31)};
  for (size_t at = 0; at < block_width; at += 16) {
    const size_t count = block_width - at < 16 ? block_width - at : 16;
    const __mmask16 mask = (__mmask16)((1u << count) - 1);
    const size_t offset = at * sizeof(float);
    const __m512i r = _mm512_maskz_loadu_epi32(mask, red + offset);
    const __m512i g = _mm512_maskz_loadu_epi32(mask, green + offset);
    const __m512i b = _mm512_maskz_loadu_epi32(mask, blue + offset);
    const uint64_t places = ((uint64_t)1 << (3 * count)) - 1;
    UNROLL for (size_t i = 0; i < 3; ++i) _mm512_mask_storeu_epi32(
        to + 3 * offset + i * 64, (__mmask16)(places >> (16 * i)),
        _mm512_permutex2var_epi32(_mm512_permutex2var_epi32(r, pair[i], g), third[i], b));
  }
}

#ifdef __clang__
#pragma clang attribute pop
#endif
