// SPDX-License-Identifier: BSD-3-Clause
// Kernels for x86 that give what IEEE 754 says where the library's do not. Its square roots are steps of
// Newton's method: NaN for infinity and, in the reciprocal, for 0; half too large where a step overflows. Its
// maximum and minimum give a number where one operand is NaN, as its logarithms do without AVX-512, which
// overflow near the greatest number. Processors of other kinds have instructions that are right.
#include "additions.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#include <math.h>
#include <string.h>
#include <xnnpack/hardware-config.h>

#define WIDE static __attribute__((target("avx512f")))
#define NARROW static

// One vector's numbers of these kinds of processors.
WIDE inline __m512 wide_sqrt(__m512 x) { return _mm512_sqrt_ps(x); }
WIDE inline __m512 wide_rsqrt(__m512 x) { return _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_sqrt_ps(x)); }
// The instruction gives its second operand where one is NaN; here the first, where that is the one.
WIDE inline __m512 wide_max(__m512 x, __m512 y) {
  return _mm512_mask_mov_ps(_mm512_max_ps(x, y), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}
WIDE inline __m512 wide_min(__m512 x, __m512 y) {
  return _mm512_mask_mov_ps(_mm512_min_ps(x, y), _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}
NARROW inline __m128 narrow_sqrt(__m128 x) { return _mm_sqrt_ps(x); }
NARROW inline __m128 narrow_rsqrt(__m128 x) { return _mm_div_ps(_mm_set1_ps(1.0f), _mm_sqrt_ps(x)); }
NARROW inline __m128 chosen(__m128 is_nan, __m128 x, __m128 other) {
  return _mm_or_ps(_mm_and_ps(is_nan, x), _mm_andnot_ps(is_nan, other));
}
NARROW inline __m128 narrow_max(__m128 x, __m128 y) {
  return chosen(_mm_cmpunord_ps(x, x), x, _mm_max_ps(x, y));
}
NARROW inline __m128 narrow_min(__m128 x, __m128 y) {
  return chosen(_mm_cmpunord_ps(x, x), x, _mm_min_ps(x, y));
}

WIDE inline __mmask16 first(size_t count) { return (__mmask16)((1u << (count < 16 ? count : 16)) - 1); }

// A kernel of one operand; its last vector may have fewer numbers.
#define UNARY(name)                                                                                \
  WIDE void name##_wide(size_t bytes, const float* x, float* out, const void* unused) {            \
    (void)unused;                                                                                  \
    for (size_t at = 0, count = bytes / sizeof(float); at < count; at += 16) {                     \
      const __mmask16 part = first(count - at);                                                    \
      _mm512_mask_storeu_ps(out + at, part, wide_##name(_mm512_maskz_loadu_ps(part, x + at)));     \
    }                                                                                              \
  }                                                                                                \
  NARROW void name##_narrow(size_t bytes, const float* x, float* out, const void* unused) {        \
    (void)unused;                                                                                  \
    size_t at = 0, count = bytes / sizeof(float);                                                  \
    for (; at + 4 <= count; at += 4) _mm_storeu_ps(out + at, narrow_##name(_mm_loadu_ps(x + at))); \
    for (; at < count; ++at) _mm_store_ss(out + at, narrow_##name(_mm_load_ss(x + at)));           \
  }
UNARY(sqrt)
UNARY(rsqrt)

// One of two operands; `name##c`: of which the second is one number for all.
#define BINARY(name)                                                                                         \
  WIDE void name##_wide(size_t bytes, const float* x, const float* y, float* out, const void* unused) {      \
    (void)unused;                                                                                            \
    for (size_t at = 0, count = bytes / sizeof(float); at < count; at += 16) {                               \
      const __mmask16 part = first(count - at);                                                              \
      const __m512 right = _mm512_maskz_loadu_ps(part, y + at);                                              \
      _mm512_mask_storeu_ps(out + at, part, wide_##name(_mm512_maskz_loadu_ps(part, x + at), right));        \
    }                                                                                                        \
  }                                                                                                          \
  WIDE void name##c_wide(size_t bytes, const float* x, const float* y, float* out, const void* unused) {     \
    (void)unused;                                                                                            \
    const __m512 right = _mm512_set1_ps(*y);                                                                 \
    for (size_t at = 0, count = bytes / sizeof(float); at < count; at += 16) {                               \
      const __mmask16 part = first(count - at);                                                              \
      _mm512_mask_storeu_ps(out + at, part, wide_##name(_mm512_maskz_loadu_ps(part, x + at), right));        \
    }                                                                                                        \
  }                                                                                                          \
  NARROW void name##_narrow(size_t bytes, const float* x, const float* y, float* out, const void* unused) {  \
    (void)unused;                                                                                            \
    size_t at = 0, count = bytes / sizeof(float);                                                            \
    for (; at + 4 <= count; at += 4)                                                                         \
      _mm_storeu_ps(out + at, narrow_##name(_mm_loadu_ps(x + at), _mm_loadu_ps(y + at)));                    \
    for (; at < count; ++at)                                                                                 \
      _mm_store_ss(out + at, narrow_##name(_mm_load_ss(x + at), _mm_load_ss(y + at)));                       \
  }                                                                                                          \
  NARROW void name##c_narrow(size_t bytes, const float* x, const float* y, float* out, const void* unused) { \
    (void)unused;                                                                                            \
    const __m128 right = _mm_set1_ps(*y);                                                                    \
    size_t at = 0, count = bytes / sizeof(float);                                                            \
    for (; at + 4 <= count; at += 4) _mm_storeu_ps(out + at, narrow_##name(_mm_loadu_ps(x + at), right));    \
    for (; at < count; ++at) _mm_store_ss(out + at, narrow_##name(_mm_load_ss(x + at), right));              \
  }
BINARY(max)
BINARY(min)

static bool is_wide(void) {
  const struct xnn_hardware_config* hardware = xnn_init_hardware_config();
  return hardware != NULL && hardware->use_x86_avx512f;
}

#define CHOOSE(name) is_wide() ? name##_wide : name##_narrow

void xnn_use_exact_root(struct xnn_unary_elementwise_config* config, bool reciprocal) {
  if (reciprocal) {
    config->ukernel = (xnn_vunary_ukernel_fn)(CHOOSE(rsqrt));
  } else {
    config->ukernel = (xnn_vunary_ukernel_fn)(CHOOSE(sqrt));
  }
}

static xnn_vunary_ukernel_fn library_log;

static void exact_log(size_t bytes, const void* x, void* out, const void* params) {
  enum { kPart = 64, kBeyond = 16 };  // a kernel may read a vector behind the last number
  float part[kPart + kBeyond] = {0};
  const float* const from = x;
  float* const to = out;
  for (size_t at = 0, count = bytes / sizeof(float); at < count; at += kPart) {
    const size_t here = count - at < kPart ? count - at : kPart;
    memcpy(part, from + at, here * sizeof(float));  // the result may be written over it
    library_log(here * sizeof(float), part, to + at, params);
    for (size_t i = 0; i < here; ++i)
      if (!(part[i] <= 2e38f)) to[at + i] = logf(part[i]);
  }
}

void xnn_use_exact_log(struct xnn_unary_elementwise_config* config) {
  library_log = config->ukernel;
  config->ukernel = exact_log;
}

void xnn_keep_nan(struct xnn_binary_elementwise_config* config, bool largest) {
  config->op_ukernel = (xnn_vbinary_ukernel_fn)(largest ? (CHOOSE(max)) : (CHOOSE(min)));
  config->opc_ukernel = config->ropc_ukernel =
      (xnn_vbinary_ukernel_fn)(largest ? (CHOOSE(maxc)) : (CHOOSE(minc)));
}
#else
void xnn_use_exact_root(struct xnn_unary_elementwise_config* config, bool reciprocal) {
  (void)config, (void)reciprocal;
}
void xnn_use_exact_log(struct xnn_unary_elementwise_config* config) { (void)config; }
void xnn_keep_nan(struct xnn_binary_elementwise_config* config, bool largest) { (void)config, (void)largest; }
#endif
