// SPDX-License-Identifier: BSD-3-Clause
// Cumulative sums along one dimension. One invocation per row; both tensors are dense.
// variants: words half
// probe: 1 1 | 6 7 3 1 | k0:43 k0:42
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint KIND = 0;
IN(0, in_)
OUT(1, out_)
layout(push_constant) uniform Push { uint rows, size, inner, offset; };

void main() {
  uint row = element();
  if (row >= rows) return;
  uint start = row / inner * size * inner + row % inner;
  float sum = 0.0;
  int total = 0;
  for (uint i = 0; i < size; ++i) {
    uint at = start + i * inner;
    if (KIND == INT) {
      total += int(in_[offset + at]);
      out_[at] = uint(total);
    } else {
      sum += FLOAT_AT(in_, offset + at, KIND);
      PUT_FLOAT(out_, at, KIND, sum)
    }
  }
}
