// SPDX-License-Identifier: BSD-3-Clause
#include "additions.h"

#include <xnnpack/compute.h>
#include <xnnpack/config.h>
#include <xnnpack/init-once.h>

// Bytes that stay in the nearest cache between one kernel and the next.
enum { kBlock = 2048 };

static struct xnn_unary_elementwise_config silu_config;
static xnn_vunary_ukernel_fn sigmoid;
static xnn_vbinary_ukernel_fn multiply;
XNN_INIT_ONCE_GUARD(silu);

static void compute_silu(size_t bytes, const char* input, char* output, const void* params) {
  float gates[(kBlock + XNN_EXTRA_BYTES) / sizeof(float)];  // kernels may read beyond the end
  for (size_t size; bytes != 0; bytes -= size, input += size, output += size) {
    size = bytes < kBlock ? bytes : kBlock;
    sigmoid(size, input, gates, params);
    multiply(size, input, gates, output, NULL);
  }
}

static void init_silu_config(void) {
  const struct xnn_unary_elementwise_config* of_sigmoid = xnn_init_f32_sigmoid_config();
  const struct xnn_binary_elementwise_config* of_multiply = xnn_init_f32_vmul_config();
  if (of_sigmoid == NULL || of_multiply == NULL || of_multiply->init != NULL) return;
  sigmoid = of_sigmoid->ukernel;
  multiply = of_multiply->op_ukernel;
  silu_config = *of_sigmoid;
  silu_config.ukernel = (xnn_vunary_ukernel_fn)compute_silu;
}

const struct xnn_unary_elementwise_config* xnn_init_f32_silu_config(void) {
  XNN_INIT_ONCE(silu);
  return silu_config.ukernel == NULL ? NULL : &silu_config;
}

bool xnn_has_silu(void) { return xnn_init_f32_silu_config() != NULL; }

enum xnn_status xnn_define_silu(xnn_subgraph_t subgraph, uint32_t input_id, uint32_t output_id) {
  return xnn_define_unary(subgraph, xnn_unary_silu, NULL, input_id, output_id, 0);
}

// Bytes of weights that stay in a cache of one processor beside what is multiplied with them.
enum { kWeights = 1 << 19 };

static void gemm_of_columns(const struct gemm_context* context, size_t column, size_t row, size_t columns,
                            size_t rows) {
  xnn_compute_gemm(context, row, column, rows, columns);
}

static void igemm_of_columns(const struct igemm_context* context, size_t column, size_t row, size_t columns,
                             size_t rows) {
  xnn_compute_igemm(context, row, column, rows, columns);
}

// Tasks that each thread is given, where there are enough tiles; and tiles of a task, at most.
enum { kTasks = 16, kTiles = 16 };

// Tiles of rows, one after the other, as one task: to take a task is an atomic operation, before which x86
// waits for all that the last one has written.
struct strip {
  pthreadpool_task_2d_tile_2d_t task;
  void* context;
  size_t tile;  // its rows
};

static void compute_strip(const struct strip* strip, size_t row, size_t column, size_t rows, size_t columns) {
  for (const size_t end = row + rows; row < end; row += strip->tile) {
    const size_t left = end - row;
    strip->task(strip->context, row, column, left < strip->tile ? left : strip->tile, columns);
  }
}

void xnn_compute_tiles(xnn_operator_t op, const struct compute_parameters* compute, pthreadpool_t threads,
                       uint32_t flags) {
  void* context = (char*)&op->context + compute->context_offset;
  struct strip strip = {compute->task_2d_tile_2d, context, compute->tile[0]};
  pthreadpool_task_2d_tile_2d_t of_columns = NULL;
  size_t depth = 0, stride = 0;  // bytes of input of a row, of weights of a column
  size_t tile = 0;               // columns that lie together
  if (strip.task == (pthreadpool_task_2d_tile_2d_t)xnn_compute_gemm) {
    const struct gemm_context* it = (const struct gemm_context*)context;
    of_columns = (pthreadpool_task_2d_tile_2d_t)gemm_of_columns;
    depth = it->k_scaled;
    stride = it->w_stride;
    tile = it->cn_stride >> it->log2_csize;
  } else if (strip.task == (pthreadpool_task_2d_tile_2d_t)xnn_compute_igemm) {
    const struct igemm_context* it = (const struct igemm_context*)context;
    of_columns = (pthreadpool_task_2d_tile_2d_t)igemm_of_columns;
    depth = it->kc;
    stride = it->w_stride;
    tile = it->cn_stride >> it->log2_csize;
  }
  const size_t rows = compute->range[0], columns = compute->range[1], weights = columns * stride;
  const size_t count = pthreadpool_get_threads_count(threads);
  // Each of several threads needs its own part of one and all of the other: the larger is the one to share.
  if (of_columns != NULL && rows > strip.tile && weights > kWeights &&
      (count <= 1 || weights > rows * depth)) {
    const size_t tiles = kWeights / (stride * tile);
    pthreadpool_parallelize_2d_tile_2d(threads, of_columns, context, columns, rows,
                                       (tiles == 0 ? 1 : tiles) * tile, strip.tile, flags);
    return;
  }
  const size_t tiles = (rows / strip.tile) * (columns / compute->tile[1] + 1) / (count * kTasks);
  if (of_columns == NULL || count <= 1 || tiles <= 1) {
    pthreadpool_parallelize_2d_tile_2d(threads, strip.task, context, rows, columns, strip.tile,
                                       compute->tile[1], flags);
    return;
  }
  pthreadpool_parallelize_2d_tile_2d(threads, (pthreadpool_task_2d_tile_2d_t)compute_strip, &strip, rows,
                                     columns, (tiles < kTiles ? tiles : kTiles) * strip.tile,
                                     compute->tile[1], flags);
}

#if XNN_ENABLE_AVX512F && (defined(__x86_64__) || defined(__i386__))
static bool has_avx512(void) {
  const struct xnn_hardware_config* hardware = xnn_init_hardware_config();
  return hardware != NULL && hardware->use_x86_avx512f;
}

void xnn_use_last_tiles(struct xnn_gemm_config* config) {
  if (!has_avx512()) return;
  struct gemm_fused_ukernels* kernels = &config->minmax;
  kernels->gemm[7 - 1] =
      xnn_init_hmp_gemm_ukernel((xnn_gemm_ukernel_fn)xnn_f32_gemm_minmax_ukernel_7x32__added);
  kernels->gemm[8 - 1] =
      xnn_init_hmp_gemm_ukernel((xnn_gemm_ukernel_fn)xnn_f32_gemm_minmax_ukernel_8x32__added);
  kernels->igemm[7 - 1] =
      xnn_init_hmp_igemm_ukernel((xnn_igemm_ukernel_fn)xnn_f32_igemm_minmax_ukernel_7x32__added);
  config->mr = 8;
}

void xnn_use_pictures(struct xnn_transpose_config* config) {
  if (has_avx512()) config->x32.const_size_ukernel = xnn_x32_transposec_ukernel__added;
}
#else
void xnn_use_last_tiles(struct xnn_gemm_config* config) { (void)config; }
void xnn_use_pictures(struct xnn_transpose_config* config) { (void)config; }
#endif
