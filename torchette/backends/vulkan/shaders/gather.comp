// SPDX-License-Identifier: BSD-3-Clause
// Elements of a table (outer, size, inner) at indices along its middle dimension. Out-of-range indices are clamped, so
// that no memory outside of the table is read.
// variants: words half
// probe: 1 1 | 60 5 4 3 12 3 1 1 | f:49 i4:61 f:60
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
#ifdef HALF
layout(binding = 0) readonly buffer Table { float16_t table[]; };
layout(binding = 2) writeonly buffer Out { float16_t result[]; };
#else
layout(binding = 0) readonly buffer Table { uint table[]; };
layout(binding = 2) writeonly buffer Out { uint result[]; };
#endif
layout(binding = 1) readonly buffer Places { int places[]; };
layout(push_constant) uniform Push { uint count, places_count, size, inner, outer_size, inner_size, offset, places_offset; };

void main() {
  uint i = element();
  if (i >= count) return;
  uint in_inner = i % inner, middle = i / inner % places_count, outer = i / inner / places_count;
  int place = places[places_offset + middle];
  if (place < 0) place += int(size);
  uint at = uint(clamp(place, 0, int(size) - 1));
  result[i] = table[offset + outer * outer_size + at * inner_size + in_inner];
}
