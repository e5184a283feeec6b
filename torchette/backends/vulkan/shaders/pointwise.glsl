// SPDX-License-Identifier: BSD-3-Clause
// compute(operation, x, y, z, p, q): the rows of pointwise.def, numbered from 1; and the epilogue of other shaders.
#define NAN uintBitsToFloat(0x7fc00000u)
bool is_finite(float x) { return !isnan(x) && !isinf(x); }
float larger(float x, float y) { return isnan(x) ? x : isnan(y) ? y : max(x, y); }
int larger(int x, int y) { return max(x, y); }
float smaller(float x, float y) { return isnan(x) ? x : isnan(y) ? y : min(x, y); }
int smaller(int x, int y) { return min(x, y); }
float limited(float x, float low, float high) { return isnan(x) ? x : min(max(x, low), high); }
int limited(int x, int low, int high) { return min(max(x, low), high); }
float floor_(float x) { return floor(x); }
int floor_(int x) { return x; }
float ceil_(float x) { return ceil(x); }
int ceil_(int x) { return x; }
float trunc_(float x) { return trunc(x); }
int trunc_(int x) { return x; }
float round_(float x) { return roundEven(x); }
int round_(int x) { return x; }
float trunc_divide(float x, float y) { return trunc(x / y); }
int trunc_divide(int x, int y) { return y == 0 ? 0 : x / y; }
float floor_divide(float x, float y) {
  if (isinf(y) && is_finite(x)) return x == 0.0 || (x < 0.0) == (y < 0.0) ? 0.0 : -1.0;
  return isinf(x) && y != 0.0 ? NAN : floor(x / y);
}
int floor_divide(int x, int y) {
  if (y == 0) return 0;
  int quotient = x / y;
  return quotient * y != x && (x < 0) != (y < 0) ? quotient - 1 : quotient;
}
float fmod_(float x, float y) { return isinf(y) && is_finite(x) ? x : x - y * trunc_divide(x, y); }
int fmod_(int x, int y) { return x - y * trunc_divide(x, y); }
float remainder_(float x, float y) {
  if (isinf(y) && is_finite(x)) return x == 0.0 || (x < 0.0) == (y < 0.0) ? x : y;
  return x - y * floor_divide(x, y);
}
int remainder_(int x, int y) { return x - y * floor_divide(x, y); }
float tanh_(float x) { return isnan(x) ? x : tanh(clamp(x, -15.0, 15.0)); }
float log1p(float x) { return abs(x) < 0.0005 ? x - 0.5 * x * x : log(1.0 + x); }
float expm1(float x) { return abs(x) < 0.005 ? x + x * x * (0.5 + x / 6.0) : exp(x) - 1.0; }
// Abramowitz and Stegun, Handbook of Mathematical Functions, 4.4.46: within 2e-8. Errors of drivers reach 3e-4.
float acos_(float x) {
  float a = abs(x);
  float sum = (((((((-0.0012624911 * a + 0.0066700901) * a - 0.0170881256) * a + 0.0308918810) * a - 0.0501743046) * a +
                 0.0889789874) * a - 0.2145988016) * a + 1.5707963050);
  float angle = sqrt(1.0 - a) * sum;
  return x < 0.0 ? 3.14159265358979324 - angle : angle;
}
// GLSL does not define atan(0, 0), nor atan of NaN or infinities.
float atan2_(float y, float x) {
  if (isnan(x) || isnan(y)) return NAN;
  float a = min(abs(x), abs(y)), b = max(abs(x), abs(y));
  float angle = b == 0.0 ? 0.0 : atan(a == b ? 1.0 : a / b);
  if (abs(y) > abs(x)) angle = 1.57079632679489662 - angle;
  if (floatBitsToInt(x) < 0) angle = 3.14159265358979324 - angle;  // the sign of a zero counts
  return floatBitsToInt(y) < 0 ? -angle : angle;
}
// Abramowitz and Stegun, 7.1.26: within 1.5e-7.
float erf(float x) {
  float t = 1.0 / (1.0 + 0.3275911 * abs(x));
  float sum = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  float size = 1.0 - sum * exp(-x * x);
  return x < 0.0 ? -size : size;
}
float power(float x, float y) {
  if (y == 0.0 || x == 1.0) return 1.0;
  if (isnan(x) || isnan(y)) return NAN;
  if (y == 1.0) return x;
  if (y == 2.0) return x * x;
  if (y == 3.0) return x * x * x;
  if (y == -1.0) return 1.0 / x;
  float a = abs(x);
  float size = a == 1.0 ? 1.0 : a == 0.0 ? (y > 0.0 ? 0.0 : 1.0 / a) : exp2(y * log2(a));
  if (floatBitsToInt(x) >= 0 || isinf(y)) return size;
  if (floor(y) != y) return a == 0.0 || isinf(x) ? size : NAN;
  return mod(y, 2.0) == 0.0 ? size : -size;
}
// Wraps around at 32 bits. A negative exponent rounds toward zero.
int power(int x, int y) {
  if (y < 0) return x == 1 || (x == -1 && (y & 1) == 0) ? 1 : x == -1 ? -1 : 0;
  int result = 1;
  for (; y != 0; y >>= 1) {
    if ((y & 1) != 0) result *= x;
    x *= x;
  }
  return result;
}
// With these scalar exponents, torch computes a root: NaN for -infinity.
float power_of_scalar(float x, float y) {
  return y == 0.5 ? sqrt(x) : y == -0.5 ? reciprocal_root(x) : power(x, y);
}
int power_of_scalar(int x, int y) { return power(x, y); }

#include "pointwise.inc"

// Shaders with an epilogue define these two constants with separate ids.
#define EPILOGUE_CONSTANTS(operation_id, swapped_id)             \
  layout(constant_id = operation_id) const uint EPILOGUE = 0;    \
  layout(constant_id = swapped_id) const uint SWAPPED = 0;       \
  float finished(float value, float other, uint p, uint q) {     \
    if (EPILOGUE == 0) return value;                             \
    float a = SWAPPED != 0 ? other : value, b = SWAPPED != 0 ? value : other; \
    return compute(EPILOGUE, a, b, 0.0, uintBitsToFloat(p), uintBitsToFloat(q)); \
  }
