// SPDX-License-Identifier: BSD-3-Clause
// Resizes dense images (images * channels, height, width): nearest pixel, or interpolation between four or sixteen
// pixels.
// variants: words half
// probe: 2 1 | 84 4 5 6 7 1 0.64 0.7 | f:41 f:84
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
const uint NEAREST = 0, BICUBIC = 2;
layout(constant_id = 0) const uint MODE = 0;
layout(constant_id = 1) const uint ALIGNS_CORNERS = 0;
layout(binding = 0) readonly buffer In { REAL source[]; };
layout(binding = 1) writeonly buffer Out { REAL result[]; };
layout(push_constant) uniform Push { uint count, in_height, in_width, height, width, offset; float scale_y, scale_x; };

float from(uint to, float scale) { return ALIGNS_CORNERS != 0 ? float(to) * scale : (float(to) + 0.5) * scale - 0.5; }

// Keys's cubic kernel with a = -0.75.
float weight(float d) {
  d = abs(d);
  return d <= 1.0 ? (1.25 * d - 2.25) * d * d + 1.0 : ((3.75 - 0.75 * d) * d - 6.0) * d + 3.0;
}

void main() {
  uint i = element();
  if (i >= count) return;
  uint x = i % width, y = i / width % height, plane = offset + i / (width * height) * in_height * in_width;
  if (MODE == NEAREST) {
    uint iy = min(uint(float(y) * scale_y), in_height - 1), ix = min(uint(float(x) * scale_x), in_width - 1);
    result[i] = source[plane + iy * in_width + ix];
    return;
  }
  float fy = from(y, scale_y), fx = from(x, scale_x);
  if (MODE == BICUBIC) {
    float ty = floor(fy), tx = floor(fx), sum = 0.0;
    for (int j = -1; j <= 2; ++j) {
      uint row = uint(min(max(int(ty) + j, 0), int(in_height) - 1)) * in_width;
      for (int k = -1; k <= 2; ++k) {
        uint column = uint(min(max(int(tx) + k, 0), int(in_width) - 1));
        sum += weight(fy - ty - float(j)) * weight(fx - tx - float(k)) * float(source[plane + row + column]);
      }
    }
    result[i] = REAL(sum);
    return;
  }
  fy = max(fy, 0.0);
  fx = max(fx, 0.0);
  uint top = min(uint(fy), in_height - 1), left = min(uint(fx), in_width - 1);
  uint bottom = min(top + 1, in_height - 1), right = min(left + 1, in_width - 1);
  float dy = fy - float(top), dx = fx - float(left);
  float above = mix(float(source[plane + top * in_width + left]), float(source[plane + top * in_width + right]), dx);
  float below = mix(float(source[plane + bottom * in_width + left]), float(source[plane + bottom * in_width + right]), dx);
  result[i] = REAL(mix(above, below, dy));
}
