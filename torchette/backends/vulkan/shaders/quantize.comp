// SPDX-License-Identifier: BSD-3-Clause
// Quantizes or dequantizes elements. There is one scale and zero point, or one pair for each of `channels`; the channel
// of element i is i / inner % channels.
// variants: words half
// probe[0=0]: 1 1 | 60 5 4 1 0 0 0.013 3.0 -128.0 127.0 | k1:61 p:4 i9:4 k2:60
// probe[0=1]: 1 1 | 60 5 4 1 0 0 0.013 3.0 -128.0 127.0 | k1:61 p:4 i9:4 k2:60
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint BACK = 0;
layout(constant_id = 1) const uint KIND_IN = 0;
layout(constant_id = 2) const uint KIND_OUT = 0;
layout(constant_id = 3) const uint HAS_SCALES = 0;
layout(constant_id = 4) const uint HAS_ZEROS = 0;
IN(0, in_)
layout(binding = 1) readonly buffer Scales { REAL scales[]; };
layout(binding = 2) readonly buffer Zeros { int zeros[]; };
OUT(3, out_)
layout(push_constant) uniform Push {
  uint count, inner, channels, offset, scales_offset, zeros_offset;
  float scale, zero, low, high;
};

void main() {
  uint i = element();
  if (i >= count) return;
  uint c = i / inner % channels;
  float s = HAS_SCALES != 0 ? float(scales[scales_offset + c]) : scale;
  float z = HAS_ZEROS != 0 ? float(zeros[zeros_offset + c]) : zero;
  float value = FLOAT_AT(in_, offset + i, KIND_IN);
  value = BACK != 0 ? (value - z) * s : clamp(roundEven(value * (1.0 / s)) + z, low, high);
  PUT_FLOAT(out_, i, KIND_OUT, value)
}
