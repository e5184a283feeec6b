// SPDX-License-Identifier: BSD-3-Clause
// The computation of matmul.comp for few rows: a workgroup computes one element, its invocations share the reduction.
// variants: words half
// probe: 18 2 | 2 9 70 2 1 0 140 70 1 0 0 630 9 1 0 0 0 0 1 0.7 1.3 -9.0 9.0 0 0.7 1.3 | f:281 f:1260 f:9 f:36 f:36
#version 450
#include "elements.glsl"
#include "pointwise.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint HAS_BIAS = 0;
layout(constant_id = 1) const uint HAS_OTHER = 0;
EPILOGUE_CONSTANTS(2, 3)
layout(binding = 0) readonly buffer A { REAL a[]; };
layout(binding = 1) readonly buffer B { REAL b[]; };
layout(binding = 2) readonly buffer Bias { REAL bias[]; };
layout(binding = 3) writeonly buffer Out { REAL result[]; };
layout(binding = 4) readonly buffer Other { REAL other[]; };  // dense, with the sizes of the result
#include "matmul.glsl"
shared float partial[64];

void main() {
  uint number = group(), batch = gl_WorkGroupID.z, me = gl_LocalInvocationID.x;
  uint r = number / columns, c = number % columns;
  if (r >= rows) return;
  uint outer = batch / inner_batch, inner = batch % inner_batch;
  uint at_a = a_offset + outer * a_batch + inner * a_inner + r * a_row;
  uint at_b = b_offset + outer * b_batch + inner * b_inner + c * b_column;
  float sum = 0.0;
  for (uint k = me; k < depth; k += 64) sum += float(a[at_a + k * a_depth]) * float(b[at_b + k * b_depth]);
  partial[me] = sum;
  barrier();
  for (uint step = 32; step > 0; step /= 2) {
    if (me < step) partial[me] += partial[me + step];
    barrier();
  }
  if (me == 0) {
    float value = alpha * partial[0];
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
