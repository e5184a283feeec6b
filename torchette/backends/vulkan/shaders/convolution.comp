// SPDX-License-Identifier: BSD-3-Clause
// A convolution of two dimensions, or its transposed: an invocation makes BLOCK channels of one pixel. Inputs and
// results are (images, channels, height, width), weights (channels out, channels in of a group, height, width), or
// transposed (channels in, channels out of a group, height, width); none has gaps.
// variants: words half
// probe: 1 1 | 40 8 5 6 8 4 5 3 2 2 1 1 1 1 1 2 1 0 0 -5.0 5.0 0 0.7 1.3 | f:241 f:192 f:8 f:160 f:160
#version 450
#include "elements.glsl"
#include "pointwise.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint HAS_BIAS = 0;
layout(constant_id = 1) const uint TRANSPOSED = 0;
layout(constant_id = 2) const uint BLOCK = 1;  // 1 or 4; divides the channels out of a group
layout(constant_id = 3) const uint HAS_OTHER = 0;
EPILOGUE_CONSTANTS(4, 5)
layout(binding = 0) readonly buffer In { REAL source[]; };
layout(binding = 1) readonly buffer Weights { REAL weights[]; };
layout(binding = 2) readonly buffer Bias { REAL bias[]; };
layout(binding = 3) writeonly buffer Out { REAL result[]; };
layout(binding = 4) readonly buffer Other { REAL other[]; };  // of the sizes of the result, without gaps
layout(push_constant) uniform Push {
  uint count;
  uint in_channels, in_height, in_width;
  uint channels, height, width;
  uint kernel_height, kernel_width;
  int stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
  uint groups;
  uint offset, weights_offset, bias_offset;
  float low, high;
  uint other_offset, then_p, then_q;
};

void main() {
  uint i = element();
  if (i >= count) return;
  uint x = i % width, rest = i / width;
  uint y = rest % height;
  rest /= height;
  uint channel = rest % (channels / BLOCK) * BLOCK, image = rest / (channels / BLOCK);
  uint of_group = channels / groups, in_group = in_channels / groups;
  uint g = channel / of_group, window = kernel_height * kernel_width;
  vec4 sum = vec4(0.0);
  for (uint ky = 0; ky < kernel_height; ++ky) {
    int iy;
    if (TRANSPOSED != 0) {
      iy = int(y) + pad_y - int(ky) * dilation_y;
      if (iy < 0 || iy % stride_y != 0) continue;
      iy /= stride_y;
    } else {
      iy = int(y) * stride_y - pad_y + int(ky) * dilation_y;
    }
    if (iy < 0 || iy >= int(in_height)) continue;
    for (uint kx = 0; kx < kernel_width; ++kx) {
      int ix;
      if (TRANSPOSED != 0) {
        ix = int(x) + pad_x - int(kx) * dilation_x;
        if (ix < 0 || ix % stride_x != 0) continue;
        ix /= stride_x;
      } else {
        ix = int(x) * stride_x - pad_x + int(kx) * dilation_x;
      }
      if (ix < 0 || ix >= int(in_width)) continue;
      uint plane = in_height * in_width;
      uint at = offset + (image * in_channels + g * in_group) * plane + uint(iy) * in_width + uint(ix);
      uint tap = ky * kernel_width + kx, at_w, step_in, step_out;
      if (TRANSPOSED != 0) {
        at_w = (g * in_group * of_group + channel % of_group) * window + tap;
        step_in = of_group * window;
        step_out = window;
      } else {
        at_w = channel * in_group * window + tap;
        step_in = window;
        step_out = in_group * window;
      }
      at_w += weights_offset;
      for (uint c = 0; c < in_group; ++c) {
        float value = float(source[at]);
        for (uint b = 0; b < BLOCK; ++b) sum[b] += value * float(weights[at_w + b * step_out]);
        at += plane;
        at_w += step_in;
      }
    }
  }
  for (uint b = 0; b < BLOCK; ++b) {
    float value = sum[b];
    if (HAS_BIAS != 0) value += float(bias[bias_offset + channel + b]);
    value = isnan(value) ? value : min(max(value, low), high);
    uint at_out = ((image * channels + channel + b) * height + y) * width + x;
    float beside = HAS_OTHER != 0 ? float(other[other_offset + at_out]) : 0.0;
    result[at_out] = REAL(finished(value, beside, then_p, then_q));
  }
}
