// SPDX-License-Identifier: BSD-3-Clause
// A three-dimensional convolution or transposed convolution. An invocation computes BLOCK channels of one pixel. Inputs
// and results are dense (images, channels, depth, height, width). Weights are dense (output channels, input channels of
// a group, depth, height, width), or for transposed convolutions (input channels, output channels of a group, depth,
// height, width).
// variants: words half
// probe: 1 1 | 40 8 2 5 6 8 2 4 5 2 3 2 1 2 1 0 1 1 1 1 1 2 1 0 0 -5.0 5.0 0 0.7 1.3 | f:481 f:384 f:8 f:320 f:320
#version 450
#include "elements.glsl"
#include "pointwise.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint HAS_BIAS = 0;
layout(constant_id = 1) const uint TRANSPOSED = 0;
layout(constant_id = 2) const uint BLOCK = 1;  // 1 or 4; divides the output channels of a group
layout(constant_id = 3) const uint HAS_OTHER = 0;
EPILOGUE_CONSTANTS(4, 5)
layout(binding = 0) readonly buffer In { REAL source[]; };
layout(binding = 1) readonly buffer Weights { REAL weights[]; };
layout(binding = 2) readonly buffer Bias { REAL bias[]; };
layout(binding = 3) writeonly buffer Out { REAL result[]; };
layout(binding = 4) readonly buffer Other { REAL other[]; };  // dense, with the sizes of the result
layout(push_constant) uniform Push {
  uint count;
  uint in_channels, in_depth, in_height, in_width;
  uint channels, depth, height, width;
  uint kernel_depth, kernel_height, kernel_width;
  int stride_z, stride_y, stride_x, pad_z, pad_y, pad_x, dilation_z, dilation_y, dilation_x;
  uint groups;
  uint offset, weights_offset, bias_offset;
  float low, high;
  uint other_offset, then_p, then_q;
};

// The input index that a tap of the kernel reads, or a negative value for padding.
int place(uint at, uint tap, int stride, int pad, int dilation, uint size) {
  int found;
  if (TRANSPOSED != 0) {
    found = int(at) + pad - int(tap) * dilation;
    if (found < 0 || found % stride != 0) return -1;
    found /= stride;
  } else {
    found = int(at) * stride - pad + int(tap) * dilation;
  }
  return found < int(size) ? found : -1;
}

void main() {
  uint i = element();
  if (i >= count) return;
  uint x = i % width, rest = i / width;
  uint y = rest % height;
  rest /= height;
  uint z = rest % depth;
  rest /= depth;
  uint channel = rest % (channels / BLOCK) * BLOCK, image = rest / (channels / BLOCK);
  uint of_group = channels / groups, in_group = in_channels / groups;
  uint g = channel / of_group, window = kernel_depth * kernel_height * kernel_width;
  uint plane = in_depth * in_height * in_width;
  uint first = TRANSPOSED != 0 ? (g * in_group * of_group + channel % of_group) * window : channel * in_group * window;
  uint step_in = TRANSPOSED != 0 ? of_group * window : window;
  uint step_out = TRANSPOSED != 0 ? window : in_group * window;
  vec4 sum = vec4(0.0);
  for (uint kz = 0; kz < kernel_depth; ++kz) {
    int iz = place(z, kz, stride_z, pad_z, dilation_z, in_depth);
    if (iz < 0) continue;
    for (uint ky = 0; ky < kernel_height; ++ky) {
      int iy = place(y, ky, stride_y, pad_y, dilation_y, in_height);
      if (iy < 0) continue;
      for (uint kx = 0; kx < kernel_width; ++kx) {
        int ix = place(x, kx, stride_x, pad_x, dilation_x, in_width);
        if (ix < 0) continue;
        uint at = offset + (image * in_channels + g * in_group) * plane + (uint(iz) * in_height + uint(iy)) * in_width + uint(ix);
        uint at_w = weights_offset + first + (kz * kernel_height + ky) * kernel_width + kx;
        for (uint c = 0; c < in_group; ++c) {
          float value = float(source[at]);
          for (uint b = 0; b < BLOCK; ++b) sum[b] += value * float(weights[at_w + b * step_out]);
          at += plane;
          at_w += step_in;
        }
      }
    }
  }
  for (uint b = 0; b < BLOCK; ++b) {
    float value = sum[b];
    if (HAS_BIAS != 0) value += float(bias[bias_offset + channel + b]);
    value = isnan(value) ? value : min(max(value, low), high);
    uint at_out = (((image * channels + channel + b) * depth + z) * height + y) * width + x;
    float beside = HAS_OTHER != 0 ? float(other[other_offset + at_out]) : 0.0;
    result[at_out] = REAL(finished(value, beside, then_p, then_q));
  }
}
