// SPDX-License-Identifier: BSD-3-Clause
// The second half of squeeze-and-excitation: result = x * gate(w2 @ activation(w1 @ means + b1) + b2) for images
// (images, channels, area) and the means of their channels. A workgroup computes `block` channels of an image, and all
// hidden values that they need. A layer of workgroups multiplies `chunk` elements of these channels.
// variants: words half
// probe: 4 2 | 2 20 10 7 16 64 1 1 1 1 1 0.7 1.3 0.7 1.3 | f:281 p:40 f:201 f:11 f:201 f:21 f:280
#version 450
#include "elements.glsl"
#include "pointwise.glsl"
const uint LANES = 8, LINES = 16, MAX_HIDDEN = 256, MAX_BLOCK = 128;
layout(local_size_x = 128) in;
layout(constant_id = 0) const uint HAS_BIAS_1 = 0;
layout(constant_id = 1) const uint HAS_BIAS_2 = 0;
layout(constant_id = 2) const uint ACTIVATION = 0;  // rows of pointwise.def
layout(constant_id = 3) const uint GATE = 0;
layout(binding = 0) readonly buffer In { REAL source[]; };
layout(binding = 1) readonly buffer Means { REAL means[]; };      // (images, channels)
layout(binding = 2) readonly buffer Weights1 { REAL weights_1[]; };  // (hidden, channels)
layout(binding = 3) readonly buffer Bias1 { REAL bias_1[]; };
layout(binding = 4) readonly buffer Weights2 { REAL weights_2[]; };  // (channels, hidden)
layout(binding = 5) readonly buffer Bias2 { REAL bias_2[]; };
layout(binding = 6) writeonly buffer Out { REAL result[]; };
layout(push_constant) uniform Push {
  uint images, channels, hidden, area, block, chunk;
  uint offset, offset_w1, offset_b1, offset_w2, offset_b2;
  uint activation_p, activation_q, gate_p, gate_q;
};
shared float partial[MAX_HIDDEN * LANES], inner[MAX_HIDDEN], gates[MAX_BLOCK];

float total(uint line) {
  float sum = 0.0;
  for (uint lane = 0; lane < LANES; ++lane) sum += partial[line * LANES + lane];
  return sum;
}

void main() {
  uint blocks = (channels + block - 1) / block, number = group(), me = gl_LocalInvocationIndex;
  uint image = number / blocks, first = number % blocks * block, lane = me % LANES, line = me / LANES;
  if (image >= images) return;
  for (uint i = line; i < hidden; i += 4 * LINES) {
    vec4 sum = vec4(0.0);
    for (uint c = lane; c < channels; c += LANES) {
      float mean = float(means[image * channels + c]);
      for (uint r = 0; r < 4; ++r)
        if (i + r * LINES < hidden) sum[r] += mean * float(weights_1[offset_w1 + (i + r * LINES) * channels + c]);
    }
    for (uint r = 0; r < 4; ++r)
      if (i + r * LINES < hidden) partial[(i + r * LINES) * LANES + lane] = sum[r];
  }
  barrier();
  for (uint i = me; i < hidden; i += LANES * LINES) {
    float value = total(i) + (HAS_BIAS_1 != 0 ? float(bias_1[offset_b1 + i]) : 0.0);
    inner[i] = compute(ACTIVATION, value, 0.0, 0.0, uintBitsToFloat(activation_p), uintBitsToFloat(activation_q));
  }
  barrier();
  uint own = min(block, channels - first);
  for (uint c0 = 0; c0 < own; c0 += LINES) {
    float sum = 0.0;
    uint c = first + c0 + line;
    if (c0 + line < own)
      for (uint i = lane; i < hidden; i += LANES) sum += inner[i] * float(weights_2[offset_w2 + c * hidden + i]);
    partial[me] = sum;
    barrier();
    if (me < LINES && c0 + me < own) {
      float value = total(me) + (HAS_BIAS_2 != 0 ? float(bias_2[offset_b2 + first + c0 + me]) : 0.0);
      gates[c0 + me] = compute(GATE, value, 0.0, 0.0, uintBitsToFloat(gate_p), uintBitsToFloat(gate_q));
    }
    barrier();
  }
  uint base = (image * channels + first) * area, start = gl_WorkGroupID.z * chunk, end = min(start + chunk, own * area);
  for (uint i = start + me; i < end; i += LANES * LINES)
    result[base + i] = REAL(float(source[offset + base + i]) * gates[i / area]);
}
