// SPDX-License-Identifier: BSD-3-Clause
// Makes the lines of arithmetic.def, comparison.def and functions.def entries of the kernel table. Redefines
// the kinds of lines, so it must be included after all uses of elementwise_operator.h.
#undef FLOAT
#undef ANGLE
#undef SAME
#undef TEST
#undef BINARY
#undef REAL
#undef WHOLE
#undef LOGICAL
#undef COMPARE
#undef BITWISE
#undef DIVIDE
#undef PART
#define FLOAT(name, expression) TORCHETTE_KERNEL("aten::" #name ".out", name##_out),
#define ANGLE FLOAT
#define SAME FLOAT
#define TEST FLOAT
#define BINARY FLOAT
#define REAL FLOAT
#define WHOLE FLOAT
#define LOGICAL FLOAT
#define COMPARE(name, expression)                             \
  TORCHETTE_KERNEL("aten::" #name ".Tensor_out", name##_out), \
      TORCHETTE_KERNEL("aten::" #name ".Scalar_out", name##_scalar_out),
#define BITWISE COMPARE
#define DIVIDE COMPARE
#define PART(name, arity, result, expression)
