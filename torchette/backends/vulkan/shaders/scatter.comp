// SPDX-License-Identifier: BSD-3-Clause
// For each index, copies an element along one dimension: from a strided tensor to a tensor with the shape of the
// indices, or back, or writes a scalar. Out-of-range indices are clamped.
// variants: words half
// probe[0=0]: 1 1 | 60 2 2 2 2 2 2 2 2 3 1 2 1 3 1 2 1 5 7 1 1 1 0 | f:250 i7:61 f:61
// probe[0=1,2]: 1 1 | 20 2 2 2 2 2 2 2 2 1024 512 256 128 64 32 16 8 1 7 1 1 1 0 | f:21 i7:21 f:20500
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
const uint GET = 0, PUT = 1, PUT_NUMBER = 2;
layout(constant_id = 0) const uint MODE = 0;
layout(constant_id = 1) const uint RANK = 1;
#ifdef HALF
#define ELEMENT float16_t
#define AS_ELEMENT(bits) float16_t(uintBitsToFloat(bits))
#else
#define ELEMENT uint
#define AS_ELEMENT(bits) bits
#endif
layout(binding = 0) readonly buffer Source { ELEMENT source[]; };
layout(binding = 1) readonly buffer Places { int places[]; };
layout(binding = 2) buffer Out { ELEMENT result[]; };
layout(push_constant) uniform Push {
  uint count, sizes[8], strides[8], stride, size, offset, other_offset, places_offset, number;
};

void main() {
  uint i = element();
  if (i >= count) return;
  uint at = offset, rest = i;
  for (int d = int(RANK) - 1; d >= 0; --d) {
    uint c = d == 0 ? rest : rest % sizes[d];
    rest /= max(sizes[d], 1);
    at += c * strides[d];
  }
  int place = places[places_offset + i];
  if (place < 0) place += int(size);
  at += uint(clamp(place, 0, int(size) - 1)) * stride;
  if (MODE == GET) {
    result[other_offset + i] = source[at];
  } else {
    result[at] = MODE == PUT ? source[other_offset + i] : AS_ELEMENT(number);
  }
}
