// SPDX-License-Identifier: BSD-3-Clause
// Copies elements with strides on both sides, and converts between kinds.
// variants: words half
// probe: 1 1 | 64 2 2 2 2 2 2 2 2 3 1 2 1 3 1 2 1 128 64 32 16 8 4 2 1 1 2 | k0:200 k1:8200
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint KIND_FROM = 0;
layout(constant_id = 1) const uint KIND_TO = 0;
layout(constant_id = 2) const uint RANK = 0;
IN(0, from_)
OUT(1, to_)
layout(push_constant) uniform Push {
  uint count;
  uint sizes[8], strides_from[8], strides_to[8];
  uint offset_from, offset_to;
};

void main() {
  uint i = element();
  if (i >= count) return;
  uint at_from = offset_from, at_to = offset_to, rest = i;
  for (int d = int(RANK) - 1; d >= 0; --d) {
    uint c = d == 0 ? rest : rest % sizes[d];
    rest /= max(sizes[d], 1);
    at_from += c * strides_from[d];
    at_to += c * strides_to[d];
  }
  if (KIND_FROM == KIND_TO && KIND_FROM != HALVES) {
    to_[at_to] = from_[at_from];
  } else if (KIND_FROM == FLOAT || KIND_FROM == HALVES) {
    float value = FLOAT_AT(from_, at_from, KIND_FROM);
    PUT_FLOAT(to_, at_to, KIND_TO, value)
  } else {
    int value = int(from_[at_from]);
    if (KIND_TO == BOOL || KIND_TO == INT) {
      to_[at_to] = KIND_TO == BOOL ? (value != 0 ? 1 : 0) : uint(value);
    } else {
      float real = float(value);
      PUT_FLOAT(to_, at_to, KIND_TO, real)
    }
  }
}
