// SPDX-License-Identifier: BSD-3-Clause
// Masks attention scores (..., rows, columns) in place: row i sees the columns 0 to i. The other scores become -infinity,
// or -infinity is added to them.
// variants: words half
// probe: 1 1 | 63 7 9 | f:63
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint ADDED = 0;
layout(binding = 0) buffer Scores { REAL scores[]; };
layout(push_constant) uniform Push { uint count, rows, columns; };

void main() {
  uint i = element();
  if (i >= count || i % columns <= i / columns % rows) return;
  float infinity = uintBitsToFloat(0x7f800000u);
  scores[i] = REAL(ADDED != 0 ? float(scores[i]) - infinity : -infinity);
}
