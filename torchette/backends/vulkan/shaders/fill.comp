// SPDX-License-Identifier: BSD-3-Clause
// p + q * i for each element i.
// variants: words half
// probe[0=0,3]: 1 1 | 60 0.7 1.3 | k0:60
// probe[0=1,2]: 1 1 | 60 3 2 | k0:60
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint KIND = 0;
OUT(0, out_)
layout(push_constant) uniform Push { uint count, p, q; };

void main() {
  uint i = element();
  if (i >= count) return;
  if (KIND == INT || KIND == BOOL) {
    out_[i] = KIND == BOOL ? (p != 0 ? 1 : 0) : p + q * i;
  } else {
    float value = uintBitsToFloat(p) + uintBitsToFloat(q) * float(i);
    PUT_FLOAT(out_, i, KIND, value)
  }
}
