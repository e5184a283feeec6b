// SPDX-License-Identifier: BSD-3-Clause
#include "rows.h"

#include <string.h>
#include <xnnpack/config.h>
#include <xnnpack/hardware-config.h>
#include <xnnpack/microparams.h>

#include "additions.h"

typedef float vector __attribute__((vector_size(32)));

// As many rows as hide how long an addition takes; each is read as it stands, at the speed of memory.
enum { kRows = 8, kWidth = sizeof(vector) / sizeof(float) };

// Of eight vectors, how much each adds up to.
static inline __attribute__((always_inline)) void add_up(const vector* of, vector* to) {
  vector twos[4], fours[2];
  for (size_t i = 0; i < 4; ++i)
    twos[i] = __builtin_shufflevector(of[2 * i], of[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
              __builtin_shufflevector(of[2 * i], of[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  for (size_t i = 0; i < 2; ++i)
    fours[i] = __builtin_shufflevector(twos[2 * i], twos[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(twos[2 * i], twos[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  *to = __builtin_shufflevector(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11) +
        __builtin_shufflevector(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

static inline __attribute__((always_inline)) void multiply(size_t columns, size_t depth, const float* input,
                                                           const struct xnn_weights_row* rows, float* output,
                                                           float low, float high) {
  const size_t whole = depth / kWidth * kWidth;
  for (size_t count; columns != 0; columns -= count, rows += count) {
    count = columns < kRows ? columns : kRows;
    const float* numbers[kRows];
    vector sums[kRows];
    for (size_t i = 0; i < kRows; ++i) {
      numbers[i] = rows[i < count ? i : 0].numbers;
      sums[i] = (vector){0};
    }
    for (size_t at = 0; at < whole; at += kWidth) {
      vector x;
      memcpy(&x, input + at, sizeof(x));
#pragma GCC unroll 8
      for (size_t i = 0; i < kRows; ++i) {
        vector w;
        memcpy(&w, numbers[i] + at, sizeof(w));
        sums[i] += x * w;
      }
    }
    vector added;
    add_up(sums, &added);
    for (size_t i = 0; i < count; ++i) {
      float sum = added[i];
      for (size_t at = whole; at < depth; ++at) sum += input[at] * numbers[i][at];
      sum += rows[i].bias;
      sum = sum < low ? low : sum;
      *output++ = sum > high ? high : sum;
    }
  }
}

#if defined(__x86_64__) || defined(__i386__)
__attribute__((target("avx2,fma")))
#endif
static void compute_rows(size_t mr, size_t columns, size_t depth, const void* input, size_t input_stride,
                         const void* rows, void* output, size_t output_stride, size_t tile_stride,
                         const void* params) {
  const union xnn_f32_minmax_params* range = (const union xnn_f32_minmax_params*)params;
  (void)mr, (void)input_stride, (void)output_stride, (void)tile_stride;
  multiply(columns, depth / sizeof(float), (const float*)input, (const struct xnn_weights_row*)rows,
           (float*)output, range->scalar.min, range->scalar.max);
}

bool xnn_multiplies_rows(void) {
#if defined(__x86_64__) || defined(__i386__)
  const struct xnn_hardware_config* hardware = xnn_init_hardware_config();
  return hardware != NULL && hardware->use_x86_avx2 && hardware->use_x86_fma3;
#elif defined(__ARM_NEON)
  return true;
#else
  return false;
#endif
}

void xnn_use_rows(xnn_operator_t op) {
  if ((op->packed_weights.offset & XNN_ROWS) == 0) return;
  op->packed_weights.offset -= XNN_ROWS;
  op->weights_stride = sizeof(struct xnn_weights_row);
  op->ukernel.gemm.mr = 1;
  op->ukernel.gemm.gemm_cases[0] = xnn_init_hmp_gemm_ukernel(compute_rows);
}
