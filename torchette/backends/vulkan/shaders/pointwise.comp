// SPDX-License-Identifier: BSD-3-Clause
// Operators of pointwise.def: one element of the result from one element of each operand. Operands may broadcast.
// variants: words half
// probe[1=0]: 2 1 | 120 2 2 2 2 2 2 1 2 1 3 1 1 2 1 0 1 2 1 1 0 2 1 0 3 1 2 3 0.7 1.3 0.6 0.9 | k2:260
//   k3:260 k4:260 k5:120
// probe[1=1]: 2 1 | 120 2 2 2 2 2 2 1 2 1 3 1 1 2 1 0 1 2 1 1 0 2 1 0 3 1 2 3 3 5 0 0 | k2:260 k3:260 k4:260 k5:120
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
layout(constant_id = 0) const uint OPERATION = 0;
layout(constant_id = 1) const uint COMPUTES = 0;  // FLOAT or INT
layout(constant_id = 2) const uint KIND_X = 0;
layout(constant_id = 3) const uint KIND_Y = 0;
layout(constant_id = 4) const uint KIND_Z = 0;
layout(constant_id = 5) const uint KIND_OUT = 0;
layout(constant_id = 6) const uint RANK = 0;  // 0: all tensors have the same layout
IN(0, x_)
IN(1, y_)
IN(2, z_)
OUT(3, out_)
layout(push_constant) uniform Push {
  uint count;
  uint sizes[6], strides_x[6], strides_y[6], strides_z[6];
  uint offset_x, offset_y, offset_z;
  uint p, q, then_p, then_q;
};

#include "pointwise.glsl"
EPILOGUE_CONSTANTS(7, 8)

void main() {
  uint i = element();
  if (i >= count) return;
  uint at_x = i, at_y = i, at_z = i;
  if (RANK != 0) {
    at_x = at_y = at_z = 0;
    uint rest = i;
    for (int d = int(RANK) - 1; d >= 0; --d) {
      uint c = d == 0 ? rest : rest % sizes[d];
      rest /= max(sizes[d], 1);
      at_x += c * strides_x[d];
      at_y += c * strides_y[d];
      at_z += c * strides_z[d];
    }
  }
  at_x += offset_x;
  at_y += offset_y;
  at_z += offset_z;
  if (COMPUTES == FLOAT) {
    float z = FLOAT_AT(z_, at_z, KIND_Z);
    float value = compute(OPERATION, FLOAT_AT(x_, at_x, KIND_X), FLOAT_AT(y_, at_y, KIND_Y), z, uintBitsToFloat(p),
                          uintBitsToFloat(q));
    value = finished(value, z, then_p, then_q);
    PUT_FLOAT(out_, i, KIND_OUT, value)
  } else {
    int value = compute(OPERATION, INT_AT(x_, at_x, KIND_X), INT_AT(y_, at_y, KIND_Y), INT_AT(z_, at_z, KIND_Z), int(p), int(q));
    if (KIND_OUT == BOOL) value = value != 0 ? 1 : 0;
    if (KIND_OUT == FLOAT) value = int(floatBitsToUint(float(value)));
    out_[i] = uint(value);
  }
}
