// SPDX-License-Identifier: BSD-3-Clause
// (x - mean) / sqrt(variance + epsilon) * weight + bias for each channel of dense (images, channels, pixels).
// variants: words half
// probe: 1 1 | 60 3 5 2 0.001 | f:62 f:3 f:3 f:3 p:3 f:60
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint HAS_WEIGHT = 0;
layout(constant_id = 1) const uint HAS_BIAS = 0;
layout(binding = 0) readonly buffer In { REAL source[]; };
layout(binding = 1) readonly buffer Weight { REAL weight[]; };
layout(binding = 2) readonly buffer Bias { REAL bias[]; };
layout(binding = 3) readonly buffer Means { REAL means[]; };
layout(binding = 4) readonly buffer Variances { REAL variances[]; };
layout(binding = 5) writeonly buffer Out { REAL result[]; };
layout(push_constant) uniform Push { uint count, channels, pixels, offset; float epsilon; };

void main() {
  uint i = element();
  if (i >= count) return;
  uint c = i / pixels % channels;
  float scale = reciprocal_root(float(variances[c]) + epsilon);
  float w = HAS_WEIGHT != 0 ? float(weight[c]) : 1.0, b = HAS_BIAS != 0 ? float(bias[c]) : 0.0;
  result[i] = REAL(normalized(float(source[offset + i]), float(means[c]), scale, w, b));
}
