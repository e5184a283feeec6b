// SPDX-License-Identifier: BSD-3-Clause
// A linear layer with integer weights and a scale for each output and group of inputs. A workgroup computes one
// element. Weights are int8, or two 4-bit values plus 8 per byte, with the even input in the low nibble. A byte is
// stored in a word or, if PACKED, four bytes per word.
// variants: words half
// probe: 15 1 | 3 5 70 32 | f:210 i128:350 f:15 f:5 f:15
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint BITS = 8;
layout(constant_id = 1) const uint HAS_BIAS = 0;
layout(constant_id = 2) const uint PACKED = 0;
layout(binding = 0) readonly buffer In { REAL source[]; };
layout(binding = 1) readonly buffer Weights { int weights[]; };
layout(binding = 2) readonly buffer Scales { REAL scales[]; };
layout(binding = 3) readonly buffer Bias { REAL bias[]; };
layout(binding = 4) writeonly buffer Out { REAL result[]; };
layout(push_constant) uniform Push { uint rows, columns, depth, size; };
shared float partial[64];

int byte_at(uint i) { return PACKED != 0 ? bitfieldExtract(weights[i / 4], int(8 * (i % 4)), 8) : weights[i]; }

void main() {
  uint number = group(), me = gl_LocalInvocationID.x;
  uint r = number / columns, c = number % columns;
  if (r >= rows) return;
  float sum = 0.0;
  for (uint k = me; k < depth; k += 64) {
    int weight;
    if (BITS == 4) {
      weight = (byte_at(c * ((depth + 1) / 2) + k / 2) >> (4 * (k % 2)) & 15) - 8;
    } else {
      weight = byte_at(c * depth + k);
    }
    sum += float(source[r * depth + k]) * float(weight) * float(scales[k / size * columns + c]);
  }
  partial[me] = sum;
  barrier();
  for (uint step = 32; step > 0; step /= 2) {
    if (me < step) partial[me] += partial[me + step];
    barrier();
  }
  if (me == 0) result[r * columns + c] = REAL(partial[0] + (HAS_BIAS != 0 ? float(bias[c]) : 0.0));
}
