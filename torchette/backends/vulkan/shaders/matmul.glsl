// SPDX-License-Identifier: BSD-3-Clause
// The push constants of matmul.comp and matvec.comp: sizes, strides in elements, and the epilogue.
layout(push_constant) uniform Push {
  uint rows, columns, depth, inner_batch;
  uint a_offset, a_batch, a_inner, a_row, a_depth;
  uint b_offset, b_batch, b_inner, b_depth, b_column;
  uint bias_offset, bias_batch, bias_inner, bias_row, bias_column;
  float alpha, beta, low, high;
  uint other_offset, then_p, then_q;
};
