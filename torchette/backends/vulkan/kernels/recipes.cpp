// SPDX-License-Identifier: BSD-3-Clause
// The kernel calls of each operator that has no kernel of the same name and arguments.
#include <cstring>

#include "torchette/backends/vulkan/kernels/graph_reader.h"

namespace torchette {
namespace vulkan {
namespace {

constexpr char kDequantize[] = "quantized_decomposed::dequantize_per_tensor.out";
constexpr char kQuantize[] = "quantized_decomposed::quantize_per_tensor.out";
constexpr char kLinear[] = "aten::linear.out";
constexpr char kConvolution[] = "aten::convolution.out";
constexpr char kUnpackWeights[] = "vulkan::unpack_weights.out";
constexpr char kUnpackKernels[] = "vulkan::unpack_kernels.out";
constexpr char kRequantize[] = "vulkan::requantize.out";
constexpr char kPermute[] = "aten::permute_copy.out";
constexpr char kAttention[] = "cpu::attention.out";
constexpr char kRotate[] = "vulkan::rotate.out";
constexpr char kAttendCached[] = "vulkan::attend_cached.out";
constexpr char kUpdateCache[] = "vulkan::update_cache.out";
constexpr char kChooseAffine[] = "vulkan::choose_affine.out";
constexpr char kQuantizeAffine[] = "vulkan::quantize_affine.out";
constexpr char kDequantizeAffine[] = "vulkan::dequantize_affine.out";
constexpr char kAddBias[] = "vulkan::add_bias.out";

constexpr Operand kNone = OperandKind::None, kFalse{OperandKind::Bool, 0, 0}, kTrue{OperandKind::Bool, 0, 1};
constexpr Operand kResult{OperandKind::Result, 0}, kResult1{OperandKind::Result, 1};
constexpr Operand kA{OperandKind::Temporary, 0}, kB{OperandKind::Temporary, 1}, kC{OperandKind::Temporary, 2},
    kD{OperandKind::Temporary, 3}, kE{OperandKind::Temporary, 4};
constexpr Operand integer(int value) { return {OperandKind::Int, 0, static_cast<double>(value)}; }
constexpr Operand real(double value) { return {OperandKind::Double, 0, value}; }
constexpr Operand last_size(int i) { return {OperandKind::LastSize, i}; }
constexpr Operand last_size_list(int i) { return {OperandKind::LastSizeList, i}; }
constexpr Operand scale(int i) { return {OperandKind::Scale, i}; }
constexpr Operand channels(int i) { return {OperandKind::Channels, i}; }
constexpr Operand changed(int i) { return {OperandKind::Changed, i}; }
constexpr int64_t kZeros[] = {0, 0}, kHeads[] = {0, 2, 1, 3};  // kHeads: swaps tokens and heads
constexpr Operand kEmptyList{kZeros, 0}, kZeroList{kZeros, 2}, kHeadOrder{kHeads, 4};

constexpr Recipe kRecipes[] = {
    {"add", {{"executorch_prim::add.Scalar", {0, 1, kResult}}}},
    {"aten._assert_scalar.default", {}},
    {"aten._to_copy.default", {{"aten::_to_copy.out", {0, kFalse, kNone, kResult}}}},
    {"aten._unsafe_view.default", {{"aten::view_copy.out", {0, 1, kResult}}}},
    {"aten._weight_int8pack_mm.default",
     {{kUnpackWeights,
       {1, 2, or_else(4, integer(0)), integer(8), integer(0), kFalse, kTrue, kA.with_rank(2)}},
      {kLinear, {0, kA, or_else(3, kNone), kResult}}}},
    {"aten.adaptive_avg_pool2d.default", {{"aten::_adaptive_avg_pool2d.out", {0, 1, kResult}}}},
    {"aten.all.default", {{"aten::all.all_out", {0, kResult}}}},
    {"aten.any.default", {{"aten::any.all_out", {0, kResult}}}},
    {"aten.arange.start_step", {{"aten::arange.start_out", {0, 1, 2, kResult}}}},
    {"aten.div.Tensor_mode", {{"aten::div.out_mode", {0, 1, 2, kResult}}}},
    {"aten.full.default", {{"aten::full.out", {0, 1, kResult}}}},
    {"aten.full_like.default", {{"aten::full_like.out", {0, 1, kNone, kResult}}}},
    {"aten.hardshrink.default",
     {{"aten::abs.out", {0, kA}},
      {"aten::gt.Scalar_out", {kA, 1, kB.of(ScalarType::Bool)}},
      {"aten::mul.out", {0, kB, kResult}}}},
    {"aten.index_copy.default", {{"vulkan::index_copy.out", {0, 1, 2, 3, kResult}}}},
    {"aten.max.default", {{"aten::max.unary_out", {0, kResult}}}},
    {"aten.max.dim", {{"aten::max.dim_max", {0, 1, 2, kResult, kResult1}}}},
    {"aten.max_pool2d.default", {{"cpu::max_pool.out", {0, 1, 2, 3, 4, 5, kResult}}}},
    {"aten.mean.default", {{"aten::mean.out", {0, kNone, kFalse, kNone, kResult}}}},
    {"aten.min.default", {{"aten::min.unary_out", {0, kResult}}}},
    {"aten.min.dim", {{"aten::min.dim_min", {0, 1, 2, kResult, kResult1}}}},
    {"aten.ones.default", {{"aten::ones.out", {0, kResult}}}},
    {"aten.ones_like.default", {{"aten::ones_like.out", {0, kNone, kResult}}}},
    {"aten.prod.dim_int", {{"aten::prod.int_out", {0, 1, 2, 3, kResult}}}},
    {"aten.rms_norm.default", {{"cpu::rms_norm.out", {0, 2, 1, or_else(3, real(1.1920929e-7)), kResult}}}},
    {"aten.scalar_tensor.default", {{"aten::scalar_tensor.out", {0, kResult}}}},
    {"aten.scaled_dot_product_attention.default",
     {{kPermute, {0, kHeadOrder, kA}},
      {kAttention, {kA, 1, 2, 3, or_else(6, scale(0)), 5, kTrue, kB}},
      {kPermute, {kB, kHeadOrder, kResult}}},
     4},
    {"aten.scaled_dot_product_attention.default",
     {{"vulkan::attend.out", {0, 1, 2, 3, 5, or_else(6, scale(0)), kResult}}}},
    {"aten.softplus.default",
     {{"aten::mul.Scalar_out", {0, 1, kA}},
      {"aten::exp.out", {kA, kB}},
      {"aten::log1p.out", {kB, kC}},
      {"aten::div.Scalar_out", {kC, 1, kD}},
      {"aten::gt.Scalar_out", {kA, 2, kE.of(ScalarType::Bool)}},
      {"aten::where.self_out", {kE, 0, kD, kResult}}}},
    {"aten.sum.default", {{"aten::sum.IntList_out", {0, kNone, kFalse, kNone, kResult}}}},
    {"aten.sum.dim_IntList", {{"aten::sum.IntList_out", {0, 1, 2, 3, kResult}}}},
    {"aten.sym_size.int", {{"aten::sym_size.int", {0, 1, kResult}}}},
    {"aten.upsample_bicubic2d.vec", {{"vulkan::bicubic.out", {0, 1, 2, 3, kResult}}}},
    {"aten.zeros.default", {{"aten::zeros.out", {0, kResult}}}},
    {"aten.zeros_like.default", {{"aten::zeros_like.out", {0, kNone, kResult}}}},
    {"eq", {{"executorch_prim::eq.Scalar", {0, 1, kResult}}}},
    {"et_vk.apply_rotary_emb.default",
     {{kRotate, {0, 2, 3, integer(0), kFalse, kResult}}, {kRotate, {1, 2, 3, integer(0), kFalse, kResult1}}}},
    {"et_vk.apply_rotary_emb_hf.default",
     {{kRotate, {0, 2, 3, 4, kTrue, kResult}}, {kRotate, {1, 2, 3, 4, kTrue, kResult1}}}},
    {"et_vk.apply_rotary_emb_interleaved.default", {{"vulkan::rotate_pairs.out", {0, 1, kResult}}}},
    {"et_vk.conv_with_clamp.default",
     {{kConvolution, {0, 1, 2, 3, 4, 5, 6, 7, 8, kA}}, {"aten::clamp.out", {kA, 9, 10, kResult}}}},
    {"et_vk.embedding_q4gsw.default",
     {{kUnpackWeights, {0, 1, 2, integer(4), integer(0), kTrue, or_else(4, kFalse), kA.with_rank(2)}},
      {"aten::embedding.out", {kA, 3, integer(-1), kFalse, kFalse, kResult}}}},
    {"et_vk.grid_priors.default", {{"vulkan::grid_priors.out", {0, 1, 2, kResult}}}},
    {"et_vk.linear_dq8ca_q4gsw.default",
     {{kQuantizeAffine, {0, kEmptyList, 1, 2, integer(-128), integer(127), kA.of(ScalarType::Char)}},
      {kDequantizeAffine, {kA, kEmptyList, 1, 2, integer(-128), integer(127), kB}},
      {kUnpackWeights, {3, 5, 6, integer(4), last_size(0), kFalse, kTrue, kC.with_rank(2)}},
      {kLinear, {kB, kC, kNone, kD}},
      {kAddBias, {kD, 7, kResult}}}},
    {"et_vk.linear_q4gsw.default",
     {{kUnpackWeights, {1, 2, 3, integer(4), last_size(0), kFalse, kTrue, kA.with_rank(2)}},
      {kLinear, {0, kA, or_else(4, kNone), kResult}}}},
    {"et_vk.linear_q8ta_q8csw.default",
     {{kQuantize, {0, 1, 2, integer(-128), integer(127), integer(1), kA.of(ScalarType::Char)}},
      {kDequantize, {kA, 1, 2, integer(-128), integer(127), integer(1), kNone, kB}},
      {kUnpackWeights, {3, 5, integer(0), integer(8), last_size(0), kFalse, kTrue, kC.with_rank(2)}},
      {kLinear, {kB, kC, kNone, kD}},
      {kAddBias, {kD, 6, kResult}}}},
    {"et_vk.q8ta_add.default",
     {{kDequantize, {0, 2, 3, integer(-128), integer(127), integer(1), kNone, kA}},
      {kDequantize, {1, 4, 5, integer(-128), integer(127), integer(1), kNone, kB}},
      {"aten::add.out", {kA, kB, 8, kC}},
      {kRequantize, {kC, kNone, integer(0), 6, 7, "", kFalse, kResult}}}},
    {"et_vk.q8ta_conv2d.default",
     {{kDequantize, {0, 1, 2, integer(-128), integer(127), integer(1), kNone, kA.with_rank(4)}},
      {kUnpackKernels, {3, 5, 9, channels(0), 13, kFalse, kB.with_rank(4)}},
      {kConvolution, {kA, kB, kNone, 10, 11, 12, kFalse, kZeroList, 13, kC.with_rank(4)}},
      {kRequantize, {kC, 8, integer(1), 6, 7, 14, kFalse, kResult}}}},
    {"et_vk.q8ta_conv2d_transposed.default",
     {{kDequantize, {0, 1, 2, integer(-128), integer(127), integer(1), kNone, kA.with_rank(4)}},
      {kUnpackKernels, {3, 5, 9, channels(0), 14, kTrue, kB.with_rank(4)}},
      {kConvolution, {kA, kB, kNone, 10, 11, 13, kTrue, 12, 14, kC.with_rank(4)}},
      {kRequantize, {kC, 8, integer(1), 6, 7, 15, kFalse, kResult}}}},
    {"et_vk.q8ta_linear.default",
     {{kDequantize, {0, 1, 2, integer(-128), integer(127), integer(1), kNone, kA}},
      {kUnpackWeights, {3, 5, integer(0), integer(8), last_size(0), kFalse, kTrue, kB.with_rank(2)}},
      {kLinear, {kA, kB, kNone, kC}},
      {kRequantize, {kC, 8, integer(-1), 6, 7, 9, kFalse, kResult}}}},
    {"et_vk.q8ta_pixel_shuffle.default",
     {{kDequantize, {0, 1, 2, integer(-128), integer(127), integer(1), kNone, kA}},
      {"aten::pixel_shuffle.out", {kA, 5, kB}},
      {kRequantize, {kB, kNone, integer(0), 3, 4, "", kTrue, kResult}}}},
    {"et_vk.q8ta_relu.default",
     {{kDequantize, {0, 1, 2, integer(-128), integer(127), integer(1), kNone, kA}},
      {kRequantize, {kA, kNone, integer(0), 3, 4, "relu", kFalse, kResult}}}},
    {"et_vk.rms_norm.default", {{"cpu::rms_norm.out", {0, 1, last_size_list(0), 2, kResult}}}},
    {"et_vk.sdpa.default",
     {{kPermute, {0, kHeadOrder, kA}},
      {kAttention, {kA, 1, 2, 3, or_else(4, scale(0)), kFalse, kTrue, kB}},
      {kPermute, {kB, kHeadOrder, kResult}}}},
    {"et_vk.select_as_symint.default", {{"vulkan::select_scalar.out", {0, 1, 2, kResult}}}},
    {"floordiv", {{"executorch_prim::floordiv.Scalar", {0, 1, kResult}}}},
    {"ge", {{"executorch_prim::ge.Scalar", {0, 1, kResult}}}},
    {"gt", {{"executorch_prim::gt.Scalar", {0, 1, kResult}}}},
    {"le", {{"executorch_prim::le.Scalar", {0, 1, kResult}}}},
    {"llama.custom_sdpa.default", {{kAttendCached, {0, 1, 2, 3, 4, 6, or_else(7, scale(0)), kResult}}}},
    {"llama.sdpa_with_kv_cache.default",
     {{kUpdateCache, {1, 5, changed(3), kA.with_rank(1)}},
      {kUpdateCache, {2, 5, changed(4), kB.with_rank(1)}},
      {kAttendCached, {0, 3, 4, 5, 7, 9, or_else(10, scale(0)), kResult}}}},
    {"llama.update_cache.default", {{kUpdateCache, {0, 2, changed(1), kResult}}}},
    {"lt", {{"executorch_prim::lt.Scalar", {0, 1, kResult}}}},
    {"mul", {{"executorch_prim::mul.Scalar", {0, 1, kResult}}}},
    {"quantized_decomposed.choose_qparams.tensor",
     {{kChooseAffine, {0, "ASYMMETRIC", kEmptyList, 1, 2, 3, kResult, kResult1}}}},
    {"quantized_decomposed.choose_qparams_per_token_asymmetric.default",
     {{kChooseAffine,
       {0, "ROWS", kEmptyList, integer(-128), integer(127), real(1.1920929e-7), kResult, kResult1}}}},
    {"quantized_decomposed.dequantize_per_tensor.tensor",
     {{"quantized_decomposed::dequantize_per_tensor.Tensor_out", {0, 1, 2, 3, 4, 5, kNone, kResult}}}},
    {"quantized_decomposed.dequantize_per_token.default",
     {{kDequantizeAffine, {0, kEmptyList, 1, 2, 3, 4, kResult}}}},
    {"quantized_decomposed.embedding_4bit.dtype",
     {{"quantized_decomposed::embedding_4bit.dtype_out", {0, 1, 2, 3, 4, 5, kNone, kResult}}}},
    {"quantized_decomposed.quantize_per_tensor.tensor",
     {{"quantized_decomposed::quantize_per_tensor.Tensor_out", {0, 1, 2, 3, 4, 5, kResult}}}},
    {"quantized_decomposed.quantize_per_token.default",
     {{kQuantizeAffine, {0, kEmptyList, 1, 2, 3, 4, kResult}}}},
    {"sub", {{"executorch_prim::sub.Scalar", {0, 1, kResult}}}},
    {"torchao.choose_qparams_affine.default",
     {{kChooseAffine, {0, 1, 2, 4, 5, or_else(6, real(1.1920929e-7)), kResult, kResult1}}}},
    {"torchao.dequantize_affine.default",
     {{kDequantizeAffine, {0, 1, 2, 3, or_else(5, integer(-128)), or_else(6, integer(127)), kResult}}}},
    {"torchao.quantize_affine.default",
     {{kQuantizeAffine, {0, 1, 2, 3, or_else(5, integer(-128)), or_else(6, integer(127)), kResult}}}},
    {"torchette.quantized_convolution.default",
     {{"vulkan::integer_convolution.out", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, kResult}}}},
};

/// Operators with the recipe of another operator.
constexpr const char* kSame[][2] = {
    {"dim_order_ops._to_dim_order_copy.default", "aten._to_copy.default"},
    {"dim_order_ops._clone_dim_order.default", "aten._to_copy.default"},
    {"et_vk.prepack.default", "aten._to_copy.default"},
    {"aten.reshape.default", "aten._unsafe_view.default"},
    {"sym_size.int", "aten.sym_size.int"},
    {"_assert_scalar.default", "aten._assert_scalar.default"},
    {"aten.sym_constrain_range_for_size.default", "aten._assert_scalar.default"},
    {"sym_constrain_range_for_size.default", "aten._assert_scalar.default"},
    {"et_vk.q8ta_linear_gemv.default", "et_vk.q8ta_linear.default"},
    {"et_vk.q8ta_conv2d_pw.default", "et_vk.q8ta_conv2d.default"},
    {"et_vk.q8ta_conv2d_dw.default", "et_vk.q8ta_conv2d.default"},
};

}  // namespace

const Recipe* recipe_of(const char* name, size_t rank) {
  for (const auto& same : kSame)
    if (strcmp(same[0], name) == 0) name = same[1];
  for (const Recipe& recipe : kRecipes)
    if (strcmp(recipe.name, name) == 0 && (recipe.rank == kAnyRank || recipe.rank == rank)) return &recipe;
  return nullptr;
}

}  // namespace vulkan
}  // namespace torchette
