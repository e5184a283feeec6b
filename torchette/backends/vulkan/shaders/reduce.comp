// SPDX-License-Identifier: BSD-3-Clause
// Reduces many elements to one per workgroup; its invocations share the elements. Kept and reduced dimensions have
// separate strides.
// variants: words half
// probe: 6 1 | 6 70 1 1 2 3 0 0 210 70 1 1 7 10 0 0 10 1 1 1.0 | k1:421 k2:6
#version 450
#include "elements.glsl"
layout(local_size_x = 64) in;
const uint SUM = 0, MEAN = 1, MAX = 2, MIN = 3, PRODUCT = 4, ANY = 5, ALL = 6, VARIANCE = 7;
const uint VALUES = 0, INTEGERS = 1, INDICES = 2;
layout(constant_id = 0) const uint MODE = 0;
layout(constant_id = 1) const uint KIND_IN = 0;
layout(constant_id = 2) const uint KIND_OUT = 0;
layout(constant_id = 3) const uint OUTPUT = 0;  // floats, integers, or the index of a minimum or maximum
IN(0, in_)
OUT(1, out_)
layout(push_constant) uniform Push {
  uint count, size;
  uint kept_sizes[4], kept_strides[4], gone_sizes[4], gone_strides[4];
  uint offset;
  float correction;
};
shared float partial[64];
shared int partial_integer[64];

uint place(uint i, uint sizes[4], uint strides[4]) {
  if (i < sizes[3]) return i * strides[3];  // without divisions if there is one dimension
  uint at = 0;
  for (int d = 3; d >= 0; --d) {
    at += i % sizes[d] * strides[d];
    i /= sizes[d];
  }
  return at;
}

float joined(float a, float b) {
  if (MODE == MAX) return isnan(a) ? a : isnan(b) ? b : max(a, b);
  if (MODE == MIN) return isnan(a) ? a : isnan(b) ? b : min(a, b);
  if (MODE == PRODUCT) return a * b;
  if (MODE == ANY) return a != 0.0 || b != 0.0 ? 1.0 : 0.0;
  if (MODE == ALL) return a != 0.0 && b != 0.0 ? 1.0 : 0.0;
  return a + b;
}
int joined(int a, int b) {
  return MODE == MAX ? max(a, b) : MODE == MIN ? min(a, b) : MODE == PRODUCT ? a * b : a + b;
}
float start() {
  if (MODE == MAX) return uintBitsToFloat(0xff800000u);
  if (MODE == MIN) return uintBitsToFloat(0x7f800000u);
  if (MODE == PRODUCT) return 1.0;
  return MODE == ALL ? 1.0 : 0.0;
}

void reduce_all(uint me) {
  barrier();
  for (uint step = 32; step > 0; step /= 2) {
    if (me < step) {
      if (OUTPUT == INDICES) {
        int a = partial_integer[me], b = partial_integer[me + step];
        float x = partial[me], y = partial[me + step];
        bool other = a < 0 || (b >= 0 && (isnan(y) ? !isnan(x) || b < a : !isnan(x) && (x == y ? b < a : joined(x, y) == y)));
        if (other) partial[me] = y, partial_integer[me] = b;
      } else if (OUTPUT == INTEGERS) {
        partial_integer[me] = joined(partial_integer[me], partial_integer[me + step]);
      } else {
        partial[me] = joined(partial[me], partial[me + step]);
      }
    }
    barrier();
  }
}

void main() {
  uint row = group(), me = gl_LocalInvocationID.x;
  if (row >= count) return;
  uint base = offset + place(row, kept_sizes, kept_strides);
  float mean = 0.0;
  if (MODE == VARIANCE) {
    float sum = 0.0;
    for (uint i = me; i < size; i += 64) {
      uint at = base + place(i, gone_sizes, gone_strides);
      sum += FLOAT_AT(in_, at, KIND_IN);
    }
    partial[me] = sum;
    reduce_all(me);
    mean = partial[0] / float(size);
    barrier();
  }
  float local_value = start();
  int local_integer = OUTPUT == INDICES ? -1 : MODE == MAX ? int(0x80000000u) : MODE == MIN ? 0x7fffffff : MODE == PRODUCT ? 1 : 0;
  for (uint i = me; i < size; i += 64) {
    uint at = base + place(i, gone_sizes, gone_strides);
    if (OUTPUT == INTEGERS) {
      local_integer = joined(local_integer, int(in_[at]));
      continue;
    }
    float value = FLOAT_AT(in_, at, KIND_IN);
    if (OUTPUT == INDICES) {
      bool better = local_integer < 0 || (!isnan(local_value) && (isnan(value) || (value != local_value && joined(local_value, value) == value)));
      if (better) local_value = value, local_integer = int(i);
    } else {
      local_value = joined(local_value, MODE == VARIANCE ? (value - mean) * (value - mean) : value);
    }
  }
  partial[me] = local_value;
  partial_integer[me] = local_integer;
  reduce_all(me);
  if (me != 0) return;
  if (OUTPUT != VALUES) {
    if (KIND_OUT == INT) {
      out_[row] = uint(partial_integer[0]);
    } else {
      float total = float(partial_integer[0]);
      PUT_FLOAT(out_, row, KIND_OUT, total)
    }
  } else {
    float value = partial[0];
    if (MODE == MEAN) value /= float(size);
    if (MODE == VARIANCE) value /= float(size) - correction;
    PUT_FLOAT(out_, row, KIND_OUT, value)
  }
}
