// SPDX-License-Identifier: BSD-3-Clause
// A dense convolution with one to three dimensions, as a matmul of the weights with the windows of the input: rows are
// output channels, columns are the pixels of all images, and the reduction is over (input channel, tap). A workgroup
// computes 8 * ROWS channels of 64 pixels, an invocation ROWS channels of 4 pixels, from slices of 16 inputs in shared
// memory. Inputs and results are dense (images, channels, depth, height, width). Weights are packed: (input channel,
// tap, output channel), with the output channels padded to a multiple of 4. A layer of workgroups computes `chunk`
// inputs of the reduction. If there are several layers, convolution_sum.comp adds their results, which are floats.
// variants: words half packed
// probe[5=0]: 1 2 | 40 18 60 32 5 2 6 8 2 4 5 2 2 3 2 1 2 1 0 1 1 1 1 1 4 2 1 -5.0 5.0 0.7 1.3 | f:481 f:1204 f:20
//   k6:1440 f:721
// probe[5=1]: 1 2 | 30 18 20 16 20 1 3 5 1 3 5 1 1 1 1 1 1 0 0 0 1 1 1 1 4 2 1 -5.0 5.0 0.7 1.3 | f:601 f:404 f:20
//   k6:1080 f:541
// probe[5=2]: 1 2 | 32 18 20 16 20 1 4 4 1 4 4 1 1 1 1 1 1 0 0 0 1 1 1 4 4 2 1 -5.0 5.0 0.7 1.3 | f:644 f:404 f:20
//   k6:1152 f:577
#version 450
#include "elements.glsl"
#include "pointwise.glsl"
#ifdef PACKED
#define TILE float16_t
#define TILE4 f16vec4  // a slice is added in float16, the slices in float32
#else
#define TILE float
#define TILE4 vec4
#endif
const uint STEP = 16;  // inputs of a slice
const uint WINDOWS = 0, POINTS = 1, QUADS = 2;
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint HAS_BIAS = 0;
layout(constant_id = 1) const uint HAS_OTHER = 0;
EPILOGUE_CONSTANTS(2, 3)
layout(constant_id = 4) const uint ROWS = 4;  // 4 or 8
// POINTS: each pixel of the result depends on the same pixel of the input. QUADS: pixels are also read four at a time.
layout(constant_id = 5) const uint MODE = 0;
layout(constant_id = 6) const uint KIND_OUT = 0;
layout(binding = 0) readonly buffer In { REAL source[]; };
layout(binding = 0) readonly buffer InQuads { REAL4 source_quads[]; };
layout(binding = 1) readonly buffer Weights { REAL4 weights[]; };
layout(binding = 2) readonly buffer Bias { REAL bias[]; };
layout(binding = 3) writeonly buffer Out { REAL result[]; };
layout(binding = 3) writeonly buffer OutQuads { REAL4 result_quads[]; };
layout(binding = 3) writeonly buffer Part { float part[]; };
layout(binding = 3) writeonly buffer PartQuads { vec4 part_quads[]; };
layout(binding = 4) readonly buffer Other { REAL other[]; };  // dense, with the sizes of the result
layout(push_constant) uniform Push {
  uint columns, channels, inputs, chunk;
  uint in_channels, in_depth, in_height, in_width;
  uint depth, height, width;
  uint kernel_depth, kernel_height, kernel_width;
  int stride_z, stride_y, stride_x, pad_z, pad_y, pad_x, dilation_z, dilation_y, dilation_x;
  uint offset, weights_offset, bias_offset, other_offset;
  float low, high;
  uint then_p, then_q;
};
shared TILE4 tile_w[STEP][16], tile_x[STEP][16];

// x / y, exact for x < 2^20. An integer division is many instructions.
uint divided(uint x, float inverse) { return uint((float(x) + 0.5) * inverse); }

void main() {
  uint tiles = (columns + 63) / 64, number = group(), me = gl_LocalInvocationIndex;
  uint column = number % tiles * 64, row = number / tiles * (8 * ROWS);
  if (row >= channels) return;
  uint tx = me % 16, ty = me / 16, area = depth * height * width, plane = in_depth * in_height * in_width;
  uint first = gl_WorkGroupID.z * chunk, last = min(first + chunk, inputs);
  // The input index of tap 0 and channel 0, and its position. Columns after the last read the last pixel again.
  int base[4], at_z[4], at_y[4], at_x[4];
  for (uint j = 0; j < 4; ++j) {
    uint n = min(column + (MODE == QUADS ? 4 * tx + j : tx + 16 * j), columns - 1);
    uint image = n / area, pixel = n % area;
    base[j] = int(offset + image * in_channels * plane + pixel);
    if (MODE == WINDOWS) {
      at_x[j] = int(pixel % width) * stride_x - pad_x;
      at_y[j] = int(pixel / width % height) * stride_y - pad_y;
      at_z[j] = int(pixel / (width * height)) * stride_z - pad_z;
      base[j] += (at_z[j] * int(in_height) + at_y[j]) * int(in_width) + at_x[j] - int(pixel);
    }
  }
  float by_window = 1.0 / float(kernel_depth * kernel_height * kernel_width);
  float by_height = 1.0 / float(kernel_height), by_width = 1.0 / float(kernel_width);
  uint packed = (channels + 3) / 4;
  vec4 sum[8];
  for (uint r = 0; r < ROWS; ++r) sum[r] = vec4(0.0);
  TILE4 next_w[2], next_x[2];
  // Slice i is read from the buffers while slice i - 1 is multiplied.
  for (uint k0 = first; k0 < last + STEP; k0 += STEP) {
    if (k0 < last) {
      for (uint q = 0; q < ROWS / 4; ++q) {
        uint i = me + 128 * q, k = k0 + i / (2 * ROWS), c = row / 4 + i % (2 * ROWS);
        next_w[q] = k < last && c < packed ? TILE4(weights[weights_offset / 4 + k * packed + c]) : TILE4(0.0);
      }
      for (uint h = 0; h < 2; ++h) {
        uint k = k0 + ty + 8 * h;
        next_x[h] = TILE4(0.0);
        if (k >= last) continue;
        if (MODE == QUADS) {
          next_x[h] = TILE4(source_quads[(uint(base[0]) + k * plane) / 4]);
        } else if (MODE == POINTS) {
          for (uint j = 0; j < 4; ++j) next_x[h][j] = TILE(source[uint(base[j]) + k * plane]);
        } else {
          uint c = divided(k, by_window), tap = k - c * (kernel_depth * kernel_height * kernel_width);
          uint line = divided(tap, by_width), kz = divided(line, by_height);
          int dz = int(kz) * dilation_z, dy = int(line - kz * kernel_height) * dilation_y,
              dx = int(tap - line * kernel_width) * dilation_x;
          int step = int(c * plane) + (dz * int(in_height) + dy) * int(in_width) + dx;
          for (uint j = 0; j < 4; ++j)
            if (uint(at_x[j] + dx) < in_width && uint(at_y[j] + dy) < in_height && uint(at_z[j] + dz) < in_depth)
              next_x[h][j] = TILE(source[uint(base[j] + step)]);
        }
      }
    }
    if (k0 != first) {
#ifdef PACKED
      f16vec4 slice[8];
      for (uint r = 0; r < ROWS; ++r) slice[r] = f16vec4(0.0);
#else
#define slice sum
#endif
      for (uint k = 0; k < STEP; ++k) {
        TILE4 x = tile_x[k][tx];
        for (uint q = 0; q < ROWS / 4; ++q) {
          TILE4 w = tile_w[k][ty * (ROWS / 4) + q];
          slice[4 * q] += w.x * x;
          slice[4 * q + 1] += w.y * x;
          slice[4 * q + 2] += w.z * x;
          slice[4 * q + 3] += w.w * x;
        }
      }
#ifdef PACKED
      for (uint r = 0; r < ROWS; ++r) sum[r] += vec4(slice[r]);
#endif
      barrier();
    }
    for (uint q = 0; q < ROWS / 4; ++q) {
      uint i = me + 128 * q;
      tile_w[i / (2 * ROWS)][i % (2 * ROWS)] = next_w[q];
    }
    for (uint h = 0; h < 2; ++h) tile_x[ty + 8 * h][tx] = next_x[h];
    barrier();
  }
  uint layer = gl_WorkGroupID.z * channels * columns;
  for (uint r = 0; r < ROWS; ++r) {
    uint channel = row + ty * ROWS + r;
    if (channel >= channels) continue;
    float add = HAS_BIAS != 0 ? float(bias[bias_offset + channel]) : 0.0;
    vec4 values = vec4(0.0);
    uint at_out = 0;
    for (uint j = 0; j < 4; ++j) {
      uint n = column + (MODE == QUADS ? 4 * tx + j : tx + 16 * j);
      if (n >= columns) continue;
      float value = sum[r][j] + add;
      value = isnan(value) ? value : min(max(value, low), high);
      uint at = (n / area * channels + channel) * area + n % area;
      float beside = HAS_OTHER != 0 ? float(other[other_offset + at]) : 0.0;
      value = finished(value, beside, then_p, then_q);
      if (MODE == QUADS) {
        values[j] = value;
        at_out = at - j;
      } else if (KIND_OUT == FLOAT) {
        part[layer + at] = value;
      } else {
        result[layer + at] = REAL(value);
      }
    }
    if (MODE != QUADS || column + 4 * tx >= columns) continue;
    if (KIND_OUT == FLOAT)
      part_quads[(layer + at_out) / 4] = values;
    else
      result_quads[(layer + at_out) / 4] = REAL4(values);
  }
}
