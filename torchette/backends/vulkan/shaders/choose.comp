// SPDX-License-Identifier: BSD-3-Clause
// Chooses the scale and zero point of each row of `size` elements for quantization to [low, high]. NaN in a row is
// its scale. One workgroup per row.
// variants: words half
// probe: 3 1 | 3 70 1 -128.0 127.0 0.0001 | f:211 f:3 i9:3
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint SYMMETRIC = 0;
layout(binding = 0) readonly buffer In { REAL source[]; };
layout(binding = 1) writeonly buffer Scales { REAL scales[]; };
layout(binding = 2) writeonly buffer Zeros { int zeros[]; };
layout(push_constant) uniform Push { uint rows, size, offset; float low, high, least; };
shared float smallest[64], largest[64];

void main() {
  uint row = group(), me = gl_LocalInvocationID.x;
  if (row >= rows) return;
  float a = 0.0, b = 0.0;
  for (uint i = me; i < size; i += 64) {
    float value = float(source[offset + row * size + i]);
    a = value < a || isnan(value) ? value : a;
    b = value > b || isnan(value) ? value : b;
  }
  smallest[me] = a;
  largest[me] = b;
  barrier();
  for (uint step = 32; step > 0; step /= 2) {
    if (me < step) {
      a = smallest[me + step];
      b = largest[me + step];
      if (a < smallest[me] || isnan(a)) smallest[me] = a;
      if (b > largest[me] || isnan(b)) largest[me] = b;
    }
    barrier();
  }
  if (me != 0) return;
  a = smallest[0];
  b = largest[0];
  float scale, zero;
  if (SYMMETRIC != 0) {
    scale = isnan(a) ? a : max(max(-a, b) / ((high - low) / 2.0), least);
    zero = floor((high + low + 1.0) / 2.0);
  } else {
    scale = isnan(a) ? a : max((b - a) / (high - low), least);
    zero = low - roundEven(a / scale);
    zero = isnan(zero) ? low : clamp(zero, low, high);
  }
  scales[row] = REAL(scale);
  zeros[row] = int(zero);
}
