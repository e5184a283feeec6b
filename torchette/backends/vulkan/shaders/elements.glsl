// SPDX-License-Identifier: BSD-3-Clause
// Shared by all shaders: kinds of elements (torchette/backends/vulkan/graph.h), buffers of elements, and the index of
// an invocation.
#ifdef HALF
#extension GL_EXT_shader_16bit_storage : require
#endif
#ifdef PACKED
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif

const uint FLOAT = 0, INT = 1, BOOL = 2, HALVES = 3;

// A buffer with elements of a kind that a constant selects; read them with AT.
#ifdef HALF
#define IN(place, name)                                        \
  layout(binding = place) readonly buffer In##place { uint name[]; }; \
  layout(binding = place) readonly buffer InHalf##place { float16_t name##half[]; };
#define FLOAT_AT(name, i, kind)                                 \
  ((kind) == HALVES  ? float(name##half[i])                    \
   : (kind) == FLOAT ? uintBitsToFloat(name[i])                 \
   : (kind) == INT   ? float(int(name[i]))                      \
                     : float(name[i]))
#define OUT(place, name)                                        \
  layout(binding = place) buffer Out##place { uint name[]; };   \
  layout(binding = place) buffer OutHalf##place { float16_t name##half[]; };
#define PUT_FLOAT(name, i, kind, value)                          \
  if ((kind) == HALVES) name##half[i] = float16_t(value);       \
  else if ((kind) == FLOAT) name[i] = floatBitsToUint(value);    \
  else if ((kind) == INT) name[i] = uint(int(value));            \
  else name[i] = (value) != 0 ? 1 : 0;
#else
#define IN(place, name) layout(binding = place) readonly buffer In##place { uint name[]; };
#define FLOAT_AT(name, i, kind)             \
  ((kind) == FLOAT ? uintBitsToFloat(name[i]) : (kind) == INT ? float(int(name[i])) : float(name[i]))
#define OUT(place, name) layout(binding = place) buffer Out##place { uint name[]; };
#define PUT_FLOAT(name, i, kind, value)                          \
  if ((kind) == FLOAT) name[i] = floatBitsToUint(value);         \
  else if ((kind) == INT) name[i] = uint(int(value));            \
  else name[i] = (value) != 0 ? 1 : 0;
#endif
#define INT_AT(name, i, kind) ((kind) == FLOAT ? int(uintBitsToFloat(name[i])) : int(name[i]))

// A buffer of floats, in the storage format of the variant. REAL4: four adjacent floats.
#ifdef HALF
#define REAL float16_t
#define REAL4 f16vec4
#else
#define REAL float
#define REAL4 vec4
#endif

// Workgroups are distributed over x and y.
uint group() { return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }
uint element() { return group() * 64 + gl_LocalInvocationID.x; }  // for workgroups of 64 invocations

// (x - mean) * scale * weight + bias. torch computes x * (scale * weight) + shift: with an infinite weight, more results
// are NaN.
float normalized(float x, float mean, float scale, float weight, float bias) {
  precise float all = scale * weight, as_torch = x * all + (bias - mean * all);  // not factored
  return isnan(as_torch) ? as_torch : (x - mean) * scale * weight + bias;
}

// GLSL defines inversesqrt only for positive values.
float reciprocal_root(float x) { return x > 0.0 ? inversesqrt(x) : x == 0.0 ? 1.0 / x : uintBitsToFloat(0x7fc00000u); }
