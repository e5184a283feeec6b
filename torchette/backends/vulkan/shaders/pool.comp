// SPDX-License-Identifier: BSD-3-Clause
// Windows over dense images (images * channels, height, width): the maxima, optionally with their indices, or the
// means.
// variants: words half
// probe: 1 1 | 36 6 7 3 4 3 2 2 2 1 1 1 1 1 0 1 | f:127 f:36 i4:36
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
const uint MAX = 0, MEAN = 1, ADAPTIVE = 2;
layout(constant_id = 0) const uint MODE = 0;
layout(constant_id = 1) const uint WITH_INDICES = 0;
layout(binding = 0) readonly buffer In { REAL source[]; };
layout(binding = 1) writeonly buffer Out { REAL result[]; };
layout(binding = 2) writeonly buffer Places { int indices[]; };
layout(push_constant) uniform Push {
  uint count, in_height, in_width, height, width;
  int kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
  uint counts_padding;
  int divisor;
  uint offset;
};

void main() {
  uint i = element();
  if (i >= count) return;
  int x = int(i % width), y = int(i / width % height);
  uint plane = offset + i / (width * height) * in_height * in_width;
  int top, bottom, left, right;
  int h = int(in_height), w = int(in_width);
  if (MODE == ADAPTIVE) {
    top = y * h / int(height), bottom = ((y + 1) * h + int(height) - 1) / int(height);
    left = x * w / int(width), right = ((x + 1) * w + int(width) - 1) / int(width);
  } else {
    top = y * stride_y - pad_y, bottom = top + (kernel_y - 1) * dilation_y + 1;
    left = x * stride_x - pad_x, right = left + (kernel_x - 1) * dilation_x + 1;
  }
  // torch counts the padding within the bounds of the padded image.
  float area = float((min(bottom, h + pad_y) - top) * (min(right, w + pad_x) - left));
  float sum = 0.0, most = uintBitsToFloat(0xff800000u);
  int seen = 0, place = -1;
  for (int iy = top; iy < min(bottom, h); iy += MODE == MAX ? dilation_y : 1) {
    if (iy < 0) continue;
    for (int ix = left; ix < min(right, w); ix += MODE == MAX ? dilation_x : 1) {
      if (ix < 0) continue;
      float value = float(source[plane + uint(iy) * in_width + uint(ix)]);
      if (place < 0 || value > most || isnan(value)) most = value, place = iy * w + ix;
      sum += value;
      ++seen;
    }
  }
  if (MODE == MAX) {
    result[i] = REAL(most);
    if (WITH_INDICES != 0) indices[i] = place;
  } else {
    result[i] = REAL(sum / (divisor != 0 ? float(divisor) : counts_padding != 0 && MODE == MEAN ? area : float(seen)));
  }
}
