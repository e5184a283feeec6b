// SPDX-License-Identifier: BSD-3-Clause
// out[b][m][n] = clamp(alpha * sum over k of a[b][m][k] * b[b][k][n] + beta * bias[b][m][n]). A workgroup computes a
// tile of 32 x 32 elements, an invocation 4 x 4; out is dense.
// variants: words half
// probe: 2 2 | 35 20 19 2 1 0 665 19 1 0 0 380 20 1 0 0 0 0 1 0.7 1.3 -9.0 9.0 0 0.7 1.3 | f:1331 f:760 f:20
//   f:1400 f:1400
#version 450
#include "elements.glsl"
#include "pointwise.glsl"
const uint TILE = 32, STEP = 16;
layout(local_size_x = 8, local_size_y = 8) in;
layout(constant_id = 0) const uint HAS_BIAS = 0;
layout(constant_id = 1) const uint HAS_OTHER = 0;
EPILOGUE_CONSTANTS(2, 3)
layout(binding = 0) readonly buffer A { REAL a[]; };
layout(binding = 1) readonly buffer B { REAL b[]; };
layout(binding = 2) readonly buffer Bias { REAL bias[]; };
layout(binding = 3) writeonly buffer Out { REAL result[]; };
layout(binding = 4) readonly buffer Other { REAL other[]; };  // dense, with the sizes of the result
#include "matmul.glsl"
shared float tile_a[STEP][TILE], tile_b[STEP][TILE];

void main() {
  uint tiles = (columns + TILE - 1) / TILE;
  uint number = group(), batch = gl_WorkGroupID.z;
  uint row = number / tiles * TILE, column = number % tiles * TILE;
  if (row >= rows) return;
  uint outer = batch / inner_batch, inner = batch % inner_batch;
  uint at_a = a_offset + outer * a_batch + inner * a_inner, at_b = b_offset + outer * b_batch + inner * b_inner;
  uint me = gl_LocalInvocationIndex, x = gl_LocalInvocationID.x, y = gl_LocalInvocationID.y;
  float sum[4][4];
  for (uint i = 0; i < 4; ++i)
    for (uint j = 0; j < 4; ++j) sum[i][j] = 0.0;
  for (uint k0 = 0; k0 < depth; k0 += STEP) {
    for (uint i = me; i < TILE * STEP; i += 64) {
      uint r = row + i / STEP, k = k0 + i % STEP;
      tile_a[i % STEP][i / STEP] = r < rows && k < depth ? float(a[at_a + r * a_row + k * a_depth]) : 0.0;
      uint c = column + i % TILE, kb = k0 + i / TILE;
      tile_b[i / TILE][i % TILE] = c < columns && kb < depth ? float(b[at_b + kb * b_depth + c * b_column]) : 0.0;
    }
    barrier();
    for (uint k = 0; k < STEP; ++k) {
      vec4 left = vec4(tile_a[k][y], tile_a[k][y + 8], tile_a[k][y + 16], tile_a[k][y + 24]);
      vec4 right = vec4(tile_b[k][x], tile_b[k][x + 8], tile_b[k][x + 16], tile_b[k][x + 24]);
      for (uint i = 0; i < 4; ++i)
        for (uint j = 0; j < 4; ++j) sum[i][j] += left[i] * right[j];
    }
    barrier();
  }
  for (uint i = 0; i < 4; ++i) {
    for (uint j = 0; j < 4; ++j) {
      uint r = row + y + 8 * i, c = column + x + 8 * j;
      if (r >= rows || c >= columns) continue;
      float value = alpha * sum[i][j];
      if (HAS_BIAS != 0) {
        uint at = bias_offset + outer * bias_batch + inner * bias_inner + r * bias_row + c * bias_column;
        value += beta * float(bias[at]);
      }
      uint at_out = (batch * rows + r) * columns + c;
      value = isnan(value) ? value : min(max(value, low), high);
      float beside = HAS_OTHER != 0 ? float(other[other_offset + at_out]) : 0.0;
      result[at_out] = REAL(finished(value, beside, then_p, then_q));
    }
  }
}
