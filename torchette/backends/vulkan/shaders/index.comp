// SPDX-License-Identifier: BSD-3-Clause
// Reads elements of a table (outer, middle, inner) at up to four adjacent indexed dimensions, each with one tensor of
// indices (middle), or writes elements of a source to them. Out-of-range indices are clamped.
// variants: words half
// probe[0=0]: 1 1 | 60 5 3 7 2 1 0 4 3 2 5 1 3 2 9 1 0 1 0 | f:90 f:60 i3:6 i3:6 i3:6 i3:6
// probe[0=1]: 1 1 | 12 1 3 200 60 1 0 4 3 2 5 1 3 2 9 1 0 1 0 | f:12 f:800 i3:6 i3:6 i3:6 i3:6
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
const uint GET = 0, PUT = 1;
layout(constant_id = 0) const uint MODE = 0;
layout(constant_id = 1) const uint COUNT = 1;
#ifdef HALF
#define ELEMENT float16_t
#else
#define ELEMENT uint
#endif
layout(binding = 0) readonly buffer Source { ELEMENT source[]; };
layout(binding = 1) buffer Out { ELEMENT result[]; };
layout(binding = 2) readonly buffer Places { int places[]; };
layout(binding = 3) readonly buffer Second { int second[]; };
layout(binding = 4) readonly buffer Third { int third[]; };
layout(binding = 5) readonly buffer Fourth { int fourth[]; };
layout(push_constant) uniform Push {
  uint count, middle, inner, outer_stride, inner_stride, offset, other_offset;
  uint sizes[4], strides[4], places_offset[4];
};

uint part(int place, uint d) {
  if (place < 0) place += int(sizes[d]);
  return uint(clamp(place, 0, int(sizes[d]) - 1)) * strides[d];
}

void main() {
  uint i = element();
  if (i >= count) return;
  uint m = i / inner % middle;
  uint at = offset + i / inner / middle * outer_stride + i % inner * inner_stride;
  at += part(places[places_offset[0] + m], 0);
  if (COUNT > 1) at += part(second[places_offset[1] + m], 1);
  if (COUNT > 2) at += part(third[places_offset[2] + m], 2);
  if (COUNT > 3) at += part(fourth[places_offset[3] + m], 3);
  if (MODE == GET) {
    result[other_offset + i] = source[at];
  } else {
    result[at] = source[other_offset + i];
  }
}
