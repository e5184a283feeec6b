// SPDX-License-Identifier: BSD-3-Clause
// Adds the layers of results of convolution_tiled.comp, then the bias.
// variants: words half
// probe: 3 1 | 160 3 8 10 2 1 -5.0 5.0 0.7 1.3 | k4:480 f:10 f:160 f:161
#version 450
#include "elements.glsl"
#include "pointwise.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint HAS_BIAS = 0;
layout(constant_id = 1) const uint HAS_OTHER = 0;
EPILOGUE_CONSTANTS(2, 3)
layout(constant_id = 4) const uint KIND_IN = 0;  // always FLOAT: the type of the probe's input
layout(binding = 0) readonly buffer In { float source[]; };
layout(binding = 1) readonly buffer Bias { REAL bias[]; };
layout(binding = 2) writeonly buffer Out { REAL result[]; };
layout(binding = 3) readonly buffer Other { REAL other[]; };  // dense, with the sizes of the result
layout(push_constant) uniform Push {
  uint count, layers, channels, area, bias_offset, other_offset;
  float low, high;
  uint then_p, then_q;
};

void main() {
  uint i = element();
  if (i >= count) return;
  float value = 0.0;
  for (uint layer = 0; layer < layers; ++layer) value += source[layer * count + i];
  if (HAS_BIAS != 0) value += float(bias[bias_offset + i / area % channels]);
  value = isnan(value) ? value : min(max(value, low), high);
  float beside = HAS_OTHER != 0 ? float(other[other_offset + i]) : 0.0;
  result[i] = REAL(finished(value, beside, then_p, then_q));
}
