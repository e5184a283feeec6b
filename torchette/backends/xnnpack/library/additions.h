// SPDX-License-Identifier: BSD-3-Clause
// What build_library.sh adds to XNNPACK, compiled with it.
#pragma once

#include <pthreadpool.h>
#include <stdbool.h>
#include <stddef.h>
#include <xnnpack.h>
#include <xnnpack/config-types.h>
#include <xnnpack/microfnptr.h>
#include <xnnpack/operator.h>

/// x times sigmoid(x) in one pass over memory, of the kernels that the library has for both; NULL where this
/// processor has none.
const struct xnn_unary_elementwise_config* xnn_init_f32_silu_config(void);
bool xnn_has_silu(void);

/// Defines that operation on two float32 values of a subgraph.
enum xnn_status xnn_define_silu(xnn_subgraph_t subgraph, uint32_t input_id, uint32_t output_id);

/// Computes a product, or what else is computed by tiles of two dimensions, with all threads. Where the
/// weights of all columns do not fit in a cache near to a processor (and, for several threads, are more than
/// the input), those of some columns are used for all rows before the next: they come from afar once, not
/// once for each tile of rows or for each thread. Else several threads take some small tiles at once.
void xnn_compute_tiles(xnn_operator_t op, const struct compute_parameters* compute, pthreadpool_t threads,
                       uint32_t flags);

/// Lets a linear layer read rows in place (rows.h) if its weights cache has given it such.
void xnn_use_rows(xnn_operator_t op);

/// The library's kernels of 7 and 8 rows, with tiles of 32 columns, but computing no more than 8, 16 or 24 of
/// the last tile where the others are padding.
#define DECLARE(name, ...) void name(size_t mr, size_t nc, size_t kc, __VA_ARGS__)
DECLARE(xnn_f32_gemm_minmax_ukernel_7x32__added, const float* a, size_t a_stride, const float* w, float* c,
        size_t cm_stride, size_t cn_stride, const union xnn_f32_minmax_params* params);
DECLARE(xnn_f32_gemm_minmax_ukernel_8x32__added, const float* a, size_t a_stride, const float* w, float* c,
        size_t cm_stride, size_t cn_stride, const union xnn_f32_minmax_params* params);
DECLARE(xnn_f32_igemm_minmax_ukernel_7x32__added, size_t ks, const float** a, const float* w, float* c,
        size_t cm_stride, size_t cn_stride, size_t a_offset, const float* zero,
        const union xnn_f32_minmax_params* params);
#undef DECLARE

/// The library's transposition, but of the three planes of a picture to its pixels without gaps in one go.
void xnn_x32_transposec_ukernel__added(const void* input, void* output, size_t input_stride,
                                       size_t output_stride, size_t block_width, size_t block_height);

/// On AVX-512 the kernels above, and tiles of 8 rows.
void xnn_use_last_tiles(struct xnn_gemm_config* config);

/// On AVX-512 the transposition above.
void xnn_use_pictures(struct xnn_transpose_config* config);

/// On x86: square roots, or their reciprocals, as IEEE 754 has them, of 0 and infinity too.
void xnn_use_exact_root(struct xnn_unary_elementwise_config* config, bool reciprocal);

/// On x86: logarithms of NaN, infinity and what is near to it, too.
void xnn_use_exact_log(struct xnn_unary_elementwise_config* config);

/// On x86: a maximum or a minimum is NaN where an operand is.
void xnn_keep_nan(struct xnn_binary_elementwise_config* config, bool largest);
