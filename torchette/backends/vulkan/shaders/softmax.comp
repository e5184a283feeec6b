// SPDX-License-Identifier: BSD-3-Clause
// Softmax or log-softmax along one dimension, or softmax with zeros instead of NaN if all elements are -infinity. One
// workgroup per row; both tensors are dense.
// variants: words half
// probe: 4 1 | 4 70 2 1 | f:281 f:280
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
const uint LOGARITHM = 1, SAFE = 2;
layout(constant_id = 0) const uint MODE = 0;
layout(binding = 0) readonly buffer In { REAL source[]; };
layout(binding = 1) writeonly buffer Out { REAL result[]; };
layout(push_constant) uniform Push { uint rows, size, inner, offset; };
shared float partial[64];

float larger(float x, float y) { return isnan(x) ? x : isnan(y) ? y : max(x, y); }

float over_all(float mine, bool largest) {
  uint me = gl_LocalInvocationID.x;
  partial[me] = mine;
  barrier();
  for (uint step = 32; step > 0; step /= 2) {
    if (me < step) partial[me] = largest ? larger(partial[me], partial[me + step]) : partial[me] + partial[me + step];
    barrier();
  }
  float all = partial[0];
  barrier();
  return all;
}

void main() {
  uint row = group(), me = gl_LocalInvocationID.x;
  if (row >= rows) return;
  uint start = row / inner * size * inner + row % inner;
  float lowest = uintBitsToFloat(0xff800000u), most = lowest;
  for (uint i = me; i < size; i += 64) most = larger(most, float(source[offset + start + i * inner]));
  most = over_all(most, true);
  if (MODE == SAFE && most == lowest) most = 0.0;
  float sum = 0.0;
  for (uint i = me; i < size; i += 64) sum += exp(float(source[offset + start + i * inner]) - most);
  sum = over_all(sum, false);
  for (uint i = me; i < size; i += 64) {
    float value = float(source[offset + start + i * inner]) - most;
    result[start + i * inner] = REAL(MODE == LOGARITHM ? value - log(sum) : sum == 0.0 ? 0.0 : exp(value) / sum);
  }
}
