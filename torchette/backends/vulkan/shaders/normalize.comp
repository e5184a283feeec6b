// SPDX-License-Identifier: BSD-3-Clause
// Normalizes dense rows of `size` elements: (x - mean) / sqrt(variance + epsilon) * weight + bias. One workgroup per
// row. Weights are indexed by the position in the row or, if rows are groups of channels, by the channel.
// variants: words half
// probe: 4 1 | 4 70 2 14 10 1 0 0 0.001 | f:281 f:70 f:70 f:280 f:4 f:4
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
const uint LAYER = 0, GROUPS = 1, MEAN_SQUARE = 2;  // MEAN_SQUARE uses a mean of 0
layout(constant_id = 0) const uint MODE = 0;
layout(constant_id = 1) const uint HAS_WEIGHT = 0;
layout(constant_id = 2) const uint HAS_BIAS = 0;
layout(constant_id = 3) const uint WITH_STATISTICS = 0;
layout(binding = 0) readonly buffer In { REAL source[]; };
layout(binding = 1) readonly buffer Weight { REAL weight[]; };
layout(binding = 2) readonly buffer Bias { REAL bias[]; };
layout(binding = 3) writeonly buffer Out { REAL result[]; };
layout(binding = 4) writeonly buffer Means { REAL means[]; };
layout(binding = 5) writeonly buffer Scales { REAL scales[]; };
layout(push_constant) uniform Push {
  uint rows, size, groups, channels, pixels;
  uint offset, weight_offset, bias_offset;
  float epsilon;
};
shared float partial[64];

float sum_of_all(float mine) {
  uint me = gl_LocalInvocationID.x;
  partial[me] = mine;
  barrier();
  for (uint step = 32; step > 0; step /= 2) {
    if (me < step) partial[me] += partial[me + step];
    barrier();
  }
  float all = partial[0];
  barrier();
  return all;
}

void main() {
  uint row = group(), me = gl_LocalInvocationID.x;
  if (row >= rows) return;
  uint start = row * size;
  float mean = 0.0;
  if (MODE != MEAN_SQUARE) {
    float sum = 0.0;
    for (uint i = me; i < size; i += 64) sum += float(source[offset + start + i]);
    mean = sum_of_all(sum) / float(size);
  }
  float squares = 0.0;
  for (uint i = me; i < size; i += 64) {
    float value = float(source[offset + start + i]) - mean;
    squares += value * value;
  }
  float scale = reciprocal_root(sum_of_all(squares) / float(size) + epsilon);
  for (uint i = me; i < size; i += 64) {
    uint at = MODE == GROUPS ? row % groups * (channels / groups) + i / pixels : i;
    float value = float(source[offset + start + i]), w = HAS_WEIGHT != 0 ? float(weight[weight_offset + at]) : 1.0;
    float b = HAS_BIAS != 0 ? float(bias[bias_offset + at]) : 0.0;
    result[start + i] = REAL(MODE == GROUPS ? normalized(value, mean, scale, w, b) : (value - mean) * scale * w + b);
  }
  if (WITH_STATISTICS != 0 && me == 0) {
    means[row] = REAL(mean);
    scales[row] = REAL(scale);
  }
}
