// SPDX-License-Identifier: BSD-3-Clause
// The causal mask that is added to the scores: row i sees the columns 0 to i.
// variants: words half
// probe: 1 1 | 63 9 | f:63
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
layout(binding = 0) writeonly buffer Out { REAL result[]; };
layout(push_constant) uniform Push { uint count, columns; };

void main() {
  uint i = element();
  if (i < count) result[i] = REAL(i % columns > i / columns ? -65504.0 : 0.0);
}
