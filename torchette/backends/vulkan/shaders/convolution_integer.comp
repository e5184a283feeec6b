// SPDX-License-Identifier: BSD-3-Clause
// A convolution of 8-bit integers. An invocation computes BLOCK channels of one pixel. The integer accumulator is
// exact. The float operations after it: add a bias in units of the accumulator, multiply by the ratio of the
// accumulator's scale to the scale of the result, round, add the zero point of the result. Inputs and results are words
// (images, channels, depth, height, width). Weights are (output channels, input channels of a group, depth, height,
// width), in words or, if PACKED, four per word. A linear layer is a convolution of images of one pixel.
// probe: 1 1 | 40 8 2 5 6 8 2 4 5 2 3 2 1 2 1 0 1 1 1 1 1 2 3 -7 -128 127 0 0 | i128:481 i128:384 f:16 i9:320
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint PACKED = 0;
layout(constant_id = 1) const uint BLOCK = 1;  // 1 or 4; divides the output channels of a group
layout(binding = 0) readonly buffer In { int source[]; };
layout(binding = 1) readonly buffer Weights { int weights[]; };
layout(binding = 2) readonly buffer Terms { float terms[]; };  // biases, then factors
layout(binding = 3) writeonly buffer Out { int result[]; };
layout(push_constant) uniform Push {
  uint count;
  uint in_channels, in_depth, in_height, in_width;
  uint channels, depth, height, width;
  uint kernel_depth, kernel_height, kernel_width;
  int stride_z, stride_y, stride_x, pad_z, pad_y, pad_x, dilation_z, dilation_y, dilation_x;
  uint groups;
  int in_zero, zero, low, high;
  uint offset, terms_offset;
};

int weight(uint i) { return PACKED != 0 ? bitfieldExtract(weights[i / 4], int(8 * (i % 4)), 8) : weights[i]; }

void main() {
  uint i = element();
  if (i >= count) return;
  uint x = i % width, rest = i / width;
  uint y = rest % height;
  rest /= height;
  uint z = rest % depth;
  rest /= depth;
  uint channel = rest % (channels / BLOCK) * BLOCK, image = rest / (channels / BLOCK);
  uint in_group = in_channels / groups, g = channel / (channels / groups);
  uint window = kernel_depth * kernel_height * kernel_width, plane = in_depth * in_height * in_width;
  ivec4 sum = ivec4(0);
  for (uint kz = 0; kz < kernel_depth; ++kz) {
    uint iz = uint(int(z) * stride_z - pad_z + int(kz) * dilation_z);  // a negative index wraps around and exceeds the end
    if (iz >= in_depth) continue;
    for (uint ky = 0; ky < kernel_height; ++ky) {
      uint iy = uint(int(y) * stride_y - pad_y + int(ky) * dilation_y);
      if (iy >= in_height) continue;
      for (uint kx = 0; kx < kernel_width; ++kx) {
        uint ix = uint(int(x) * stride_x - pad_x + int(kx) * dilation_x);
        if (ix >= in_width) continue;
        uint at = offset + (image * in_channels + g * in_group) * plane + (iz * in_height + iy) * in_width + ix;
        uint at_w = channel * in_group * window + (kz * kernel_height + ky) * kernel_width + kx;
        for (uint c = 0; c < in_group; ++c) {
          int value = source[at] - in_zero;
          for (uint b = 0; b < BLOCK; ++b) sum[b] += value * weight(at_w + b * in_group * window);
          at += plane;
          at_w += window;
        }
      }
    }
  }
  for (uint b = 0; b < BLOCK; ++b) {
    uint own = terms_offset + channel + b;
    float value = roundEven((float(sum[b]) + terms[own]) * terms[own + channels]) + float(zero);
    uint at_out = (((image * channels + channel + b) * depth + z) * height + y) * width + x;
    result[at_out] = int(clamp(value, float(low), float(high)));
  }
}
