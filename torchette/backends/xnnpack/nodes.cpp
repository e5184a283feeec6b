// SPDX-License-Identifier: BSD-3-Clause
// The kinds of nodes that a payload may have, and what each becomes.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "torchette/backends/xnnpack/builder.h"

// Of library/additions.h; not in a library that somebody built in another way.
extern "C" {
TORCHETTE_WEAK bool xnn_has_silu();
TORCHETTE_WEAK xnn_status xnn_define_silu(xnn_subgraph_t, uint32_t input_id, uint32_t output_id);
}

namespace torchette {
namespace xnnpack {
namespace {

constexpr const char* kUnary = "Unary Elementwise";

/// The library's name of a node if its own list of names lacks the node.
const char* profiled_name(Node kind) {
  switch (kind) {
    case Node::XNNClamp:
      return kUnary;
    case Node::XNNCopy:
      return "Copy";
    case Node::XNNStaticConstantPad:
      return "Constant Pad";
    default:
      return nullptr;
  }
}

}  // namespace

/// A row of the table of nodes. `number`: the library's operator, or how many values are joined.
struct Builder::Kind {
  Node kind;
  Error (Builder::*define)(const Definition& d, int number);
  int number;
};

const Builder::Kind* Builder::find_kind(Node kind) {
  static constexpr Kind kKinds[] = {
#define TORCHETTE_XNNPACK_NODE(kind, make, define, code, ...) {Node::kind, &Builder::define, code},
#include "torchette/schema/xnnpack.def"
  };
  const auto* found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [kind](const Kind& it) { return it.kind == kind; });
  return found == std::end(kKinds) ? nullptr : found;
}

Error Builder::node(const Table& entry) {
  const auto kind = entry.get<Node>(fb::XNode::kXnodeUnionType);
  const Kind* const known = find_kind(kind);
  out_.origins.push_back({entry.get<uint32_t>(fb::XNode::kDebugHandle), profiled_name(kind)});
  TORCHETTE_CHECK(known != nullptr, NotSupported, "a node of kind %u, which this backend does not have",
                  static_cast<unsigned>(kind));
  const auto [low, high] = limits_of(entry);
  return (this->*known->define)({kind, entry.table(fb::XNode::kXnodeUnion), low, high}, known->number);
}

Error Builder::define_gate(uint32_t name) {
  const auto it = gates_.find(name);
  if (it == gates_.end()) return Error::Ok;
  const Gate gate = it->second;
  gates_.erase(it);
  TORCHETTE_XNN(xnn_define_unary(out_.subgraph, xnn_unary_sigmoid, nullptr, gate.in, gate.out, 0));
  out_.origins.insert(out_.origins.end() - 1, gate.origin);  // before the node that reads it
  return Error::Ok;
}

Error Builder::sigmoid(const Definition& d, int) {
  const Table& n = d.n;
  using S = fb::XNNSigmoid;
  const auto source = n.get<uint32_t>(S::kInputId), name = n.get<uint32_t>(S::kOutputId);
  static const bool has_silu = xnn_has_silu != nullptr && xnn_has_silu();
  if (!has_silu || !is_float(source) || !is_float(name) || known_[name].result || known_[name].tapped)
    return unary(d, xnn_unary_sigmoid);
  Gate gate{source, 0, 0, out_.origins.back()};
  TORCHETTE_TRY(find(n, S::kInputId, &gate.in));
  TORCHETTE_TRY(make(n, S::kOutputId, &gate.out));
  same(n);
  out_.origins.pop_back();
  gates_[name] = gate;
  return Error::Ok;
}

Error Builder::multiply(const Definition& d, int) {
  const Table& n = d.n;
  using M = fb::XNNMultiply;
  const auto a = n.get<uint32_t>(M::kInput1Id), b = n.get<uint32_t>(M::kInput2Id);
  const bool has_limits = std::isfinite(d.low) || std::isfinite(d.high);
  for (const auto& [source, name] : {std::pair(a, b), std::pair(b, a)}) {
    const auto gate = gates_.find(name);
    if (gate == gates_.end() || gate->second.source != source || has_limits ||
        !is_float(n.get<uint32_t>(M::kOutputId)))
      continue;
    uint32_t out;
    TORCHETTE_TRY(make(n, M::kOutputId, &out));
    TORCHETTE_XNN(xnn_define_silu(out_.subgraph, gate->second.in, out));
    known_[name].read = true;
    same(n, source == a ? M::kInput1Id : M::kInput2Id, M::kOutputId);
    return Error::Ok;
  }
  return binary(d, xnn_binary_multiply);
}

bool Builder::is_float(uint32_t name) const {
  return name < known_.size() && known_[name].type == xnn_datatype_fp32;
}

Error Builder::unary(const Definition& d, int op) {
  using S = fb::XNNSigmoid;  // all of one operand have these slots
  return defined_unary(d.n, static_cast<xnn_unary_operator>(op), nullptr, S::kInputId, S::kOutputId);
}

Error Builder::defined_unary(const Table& n, xnn_unary_operator op, const xnn_unary_params* params,
                             uint16_t input, uint16_t output) {
  uint32_t in, out;
  TORCHETTE_TRY(find(n, input, &in));
  TORCHETTE_TRY(make(n, output, &out, op == xnn_unary_convert));
  // ExecuTorch's images that are quantized when the graph runs have the sizes of torch's order
  Defined& made = known_[n.get<uint32_t>(output)];
  if (made.type == xnn_datatype_qdint8) made.dims = known_[n.get<uint32_t>(input)].dims;
  TORCHETTE_XNN(xnn_define_unary(out_.subgraph, op, params, in, out, 0));
  same(n, input, output);
  return Error::Ok;
}

Error Builder::clamp(const Definition& d, int) {
  xnn_unary_params params{};
  params.clamp = {d.low, d.high};
  return defined_unary(d.n, xnn_unary_clamp, &params, fb::XNNClamp::kInputId, fb::XNNClamp::kOutputId);
}

Error Builder::leaky_relu(const Definition& d, int) {
  using L = fb::XNNLeakyReLU;
  xnn_unary_params params{};
  params.leaky_relu = {d.n.get<float>(L::kNegativeSlope)};
  return defined_unary(d.n, xnn_unary_leaky_relu, &params, L::kInputId, L::kOutputId);
}

Error Builder::elu(const Definition& d, int) {
  xnn_unary_params params{};
  params.elu = {d.n.get<float>(fb::XNNELU::kAlpha)};
  return defined_unary(d.n, xnn_unary_elu, &params, fb::XNNELU::kInputId, fb::XNNELU::kOutputId);
}

Error Builder::binary(const Definition& d, int number) {
  const auto& [kind, n, low, high] = d;
  const auto op = static_cast<xnn_binary_operator>(number);
  uint32_t a, b, out;
  TORCHETTE_TRY(find(n, fb::XNNAdd::kInput1Id, &a));
  TORCHETTE_TRY(find(n, fb::XNNAdd::kInput2Id, &b));
  TORCHETTE_TRY(make(n, fb::XNNAdd::kOutputId, &out));
  const xnn_binary_params params = {low, high};
  TORCHETTE_XNN(xnn_define_binary(out_.subgraph, op, &params, a, b, out, 0));
  // the library makes a node of its own of limits
  if (std::isfinite(low) || std::isfinite(high))
    out_.origins.push_back({out_.origins.back().debug_handle, kUnary});
  step(Step::Kind::Broadcast, n, {fb::XNNAdd::kInput1Id, fb::XNNAdd::kInput2Id}, fb::XNNAdd::kOutputId);
  return Error::Ok;
}

Error Builder::copy(const Definition& d, int) {
  const Table& n = d.n;
  uint32_t in, out;
  TORCHETTE_TRY(find(n, fb::XNNCopy::kInputId, &in));
  TORCHETTE_TRY(make(n, fb::XNNCopy::kOutputId, &out));
  TORCHETTE_XNN(xnn_define_copy(out_.subgraph, in, out, 0));
  same(n, fb::XNNCopy::kInputId, fb::XNNCopy::kOutputId);
  return Error::Ok;
}

Error Builder::softmax(const Definition& d, int) {
  const Table& n = d.n;
  uint32_t in, out;
  TORCHETTE_TRY(find(n, fb::XNNSoftmax::kInputId, &in));
  TORCHETTE_TRY(make(n, fb::XNNSoftmax::kOutputId, &out));
  TORCHETTE_XNN(xnn_define_softmax(out_.subgraph, in, out, 0));
  same(n, fb::XNNSoftmax::kInputId, fb::XNNSoftmax::kOutputId);
  return Error::Ok;
}

Error Builder::mean(const Definition& d, int) {
  const Table& n = d.n;
  uint32_t in, out;
  const Defined* source;
  TORCHETTE_TRY(find(n, fb::XNNGlobalAvgPooling2d::kInputId, &in, &source));
  TORCHETTE_TRY(make(n, fb::XNNGlobalAvgPooling2d::kOutputId, &out));
  TORCHETTE_CHECK(source->dims.size() == 4, DelegateInvalidCompatibility, "an image of %zu dimensions",
                  source->dims.size());
  // One channel: its dimension goes with the others, so that the library adds up what lies side by
  // side.
  static constexpr int64_t kAxes[] = {1, 2, 3};
  const size_t count = source->dims[3] == 1 ? 3 : 2;
  step(Step::Kind::Mean, n, {fb::XNNGlobalAvgPooling2d::kInputId}, fb::XNNGlobalAvgPooling2d::kOutputId,
       {count});
  TORCHETTE_XNN(
      xnn_define_static_reduce_v2(out_.subgraph, xnn_reduce_mean, count, kAxes, in, out, XNN_FLAG_KEEP_DIMS));
  return Error::Ok;
}

Error Builder::concatenate(const Definition& d, int number) {
  const Table& n = d.n;
  const auto count = static_cast<size_t>(number);
  using C = fb::XNNConcatenate5;
  static constexpr uint16_t kInputs[] = {C::kInput1Id, C::kInput2Id, C::kInput3Id, C::kInput4Id,
                                         C::kInput5Id};
  uint32_t in[5], out;
  const Defined* first = nullptr;
  for (size_t i = 0; i < count; ++i) TORCHETTE_TRY(find(n, kInputs[i], &in[i], i == 0 ? &first : nullptr));
  TORCHETTE_TRY(make(n, C::kOutputId, &out));
  const auto axis = static_cast<int32_t>(n.get<uint32_t>(C::kAxis));
  const auto rank = static_cast<int32_t>(first->dims.size());
  step(Step::Kind::Concatenate, n, {kInputs[0]}, C::kOutputId,
       {static_cast<uint64_t>(static_cast<uint32_t>(axis < 0 ? axis + rank : axis))});
  for (size_t i = 1; i < count; ++i) out_.steps.back().inputs.push_back(n.get<uint32_t>(kInputs[i]));
  xnn_subgraph_t g = out_.subgraph;
  switch (count) {
    case 2:
      TORCHETTE_XNN(xnn_define_concatenate2(g, axis, in[0], in[1], out, 0));
      break;
    case 3:
      TORCHETTE_XNN(xnn_define_concatenate3(g, axis, in[0], in[1], in[2], out, 0));
      break;
    case 4:
      TORCHETTE_XNN(xnn_define_concatenate4(g, axis, in[0], in[1], in[2], in[3], out, 0));
      break;
    default:
      TORCHETTE_XNN(xnn_define_concatenate5(g, axis, in[0], in[1], in[2], in[3], in[4], out, 0));
  }
  return Error::Ok;
}

Error Builder::product_of_matrices(const Definition& d, int) {
  const Table& n = d.n;
  uint32_t in, out;
  uint32_t other;
  TORCHETTE_TRY(find(n, fb::XNNBatchMatrixMultiply::kInput1Id, &in));
  TORCHETTE_TRY(find(n, fb::XNNBatchMatrixMultiply::kInput2Id, &other));
  TORCHETTE_TRY(make(n, fb::XNNBatchMatrixMultiply::kOutputId, &out));
  const uint32_t flags = n.get<uint32_t>(fb::XNNBatchMatrixMultiply::kFlags) & XNN_FLAG_TRANSPOSE_B;
  using B = fb::XNNBatchMatrixMultiply;
  step(Step::Kind::Product, n, {B::kInput1Id, B::kInput2Id}, B::kOutputId, {flags});
  TORCHETTE_XNN(xnn_define_batch_matrix_multiply(out_.subgraph, in, other, out, flags));
  return Error::Ok;
}

Error Builder::attention(const Definition& d, int) {
  const Table& n = d.n;
  uint32_t in, out;
  using A = fb::XNNScaledDotProductAttention;
  uint32_t key, value, scale, mask;
  TORCHETTE_TRY(find(n, A::kQueryId, &in));
  TORCHETTE_TRY(find(n, A::kKeyId, &key));
  TORCHETTE_TRY(find(n, A::kValueId, &value));
  TORCHETTE_TRY(find(n, A::kScaleId, &scale));
  TORCHETTE_TRY(find(n, A::kMaskId, &mask));
  TORCHETTE_TRY(make(n, A::kOutputId, &out));
  step(Step::Kind::Attention, n, {A::kQueryId, A::kKeyId, A::kValueId, A::kScaleId, A::kMaskId},
       A::kOutputId);
  TORCHETTE_XNN(xnn_define_scaled_dot_product_attention(out_.subgraph, xnn_attention_logits_cap_type_none,
                                                        nullptr, in, key, value, scale, mask, out, 0));
  return Error::Ok;
}

Error Builder::transpose(const Definition& d, int) {
  const Table& n = d.n;
  uint32_t in, out;
  const Defined* source;
  size_t numbers[XNN_MAX_TENSOR_DIMS];
  TORCHETTE_TRY(find(n, fb::XNNStaticTranspose::kInputId, &in, &source));
  TORCHETTE_TRY(make(n, fb::XNNStaticTranspose::kOutputId, &out));
  TORCHETTE_TRY(sizes(n, fb::XNNStaticTranspose::kPerm, source->dims.size(), numbers));
  step(Step::Kind::Transpose, n, {fb::XNNStaticTranspose::kInputId}, fb::XNNStaticTranspose::kOutputId,
       {numbers, numbers + source->dims.size()});
  TORCHETTE_XNN(xnn_define_static_transpose(out_.subgraph, source->dims.size(), numbers, in, out, 0));
  return Error::Ok;
}

Error Builder::reshape(const Definition& d, int) {
  const Table& n = d.n;
  uint32_t in, out;
  size_t numbers[XNN_MAX_TENSOR_DIMS];
  TORCHETTE_TRY(find(n, fb::XNNStaticReshape::kInputId, &in));
  TORCHETTE_TRY(make(n, fb::XNNStaticReshape::kOutputId, &out));
  const size_t rank = n.vector<uint32_t>(fb::XNNStaticReshape::kNewShape).size();
  TORCHETTE_TRY(sizes(n, fb::XNNStaticReshape::kNewShape, rank, numbers));
  step(Step::Kind::Reshape, n, {fb::XNNStaticReshape::kInputId}, fb::XNNStaticReshape::kOutputId,
       {numbers, numbers + rank});
  TORCHETTE_XNN(xnn_define_static_reshape(out_.subgraph, rank, numbers, in, out, 0));
  return Error::Ok;
}

Error Builder::slice(const Definition& d, int) {
  const Table& n = d.n;
  uint32_t in, out;
  const Defined* source;
  size_t numbers[XNN_MAX_TENSOR_DIMS], more[XNN_MAX_TENSOR_DIMS];
  TORCHETTE_TRY(find(n, fb::XNNStaticSlice::kInputId, &in, &source));
  TORCHETTE_TRY(make(n, fb::XNNStaticSlice::kOutputId, &out));
  TORCHETTE_TRY(sizes(n, fb::XNNStaticSlice::kOffsets, source->dims.size(), numbers));
  TORCHETTE_TRY(sizes(n, fb::XNNStaticSlice::kSizes, source->dims.size(), more));
  step(Step::Kind::Slice, n, {fb::XNNStaticSlice::kInputId}, fb::XNNStaticSlice::kOutputId,
       {numbers, numbers + source->dims.size()});
  out_.steps.back().numbers.insert(out_.steps.back().numbers.end(), more, more + source->dims.size());
  TORCHETTE_XNN(xnn_define_static_slice(out_.subgraph, source->dims.size(), numbers, more, in, out, 0));
  return Error::Ok;
}

Error Builder::pad(const Definition& d, int) {
  const Table& n = d.n;
  uint32_t in, out;
  const Defined* source;
  size_t numbers[XNN_MAX_TENSOR_DIMS], more[XNN_MAX_TENSOR_DIMS];
  TORCHETTE_TRY(find(n, fb::XNNStaticConstantPad::kInputId, &in, &source));
  TORCHETTE_TRY(make(n, fb::XNNStaticConstantPad::kOutputId, &out));
  TORCHETTE_TRY(sizes(n, fb::XNNStaticConstantPad::kPrePaddings, source->dims.size(), numbers));
  TORCHETTE_TRY(sizes(n, fb::XNNStaticConstantPad::kPostPaddings, source->dims.size(), more));
  step(Step::Kind::Pad, n, {fb::XNNStaticConstantPad::kInputId}, fb::XNNStaticConstantPad::kOutputId,
       {numbers, numbers + source->dims.size()});
  out_.steps.back().numbers.insert(out_.steps.back().numbers.end(), more, more + source->dims.size());
  TORCHETTE_XNN(xnn_define_static_constant_pad(
      out_.subgraph, numbers, more, n.get<float>(fb::XNNStaticConstantPad::kPaddingValue), in, out, 0));
  return Error::Ok;
}

Error Builder::resize(const Definition& d, int) {
  const Table& n = d.n;
  uint32_t in, out;
  TORCHETTE_TRY(find(n, fb::XNNStaticResizeBilinear2D::kInputId, &in));
  TORCHETTE_TRY(make(n, fb::XNNStaticResizeBilinear2D::kOutputId, &out));
  step(Step::Kind::Resize, n, {fb::XNNStaticResizeBilinear2D::kInputId},
       fb::XNNStaticResizeBilinear2D::kOutputId,
       {n.get<uint32_t>(fb::XNNStaticResizeBilinear2D::kNewHeight),
        n.get<uint32_t>(fb::XNNStaticResizeBilinear2D::kNewWidth)});
  TORCHETTE_XNN(xnn_define_static_resize_bilinear_2d(
      out_.subgraph, n.get<uint32_t>(fb::XNNStaticResizeBilinear2D::kNewHeight),
      n.get<uint32_t>(fb::XNNStaticResizeBilinear2D::kNewWidth), in, out,
      n.get<uint32_t>(fb::XNNStaticResizeBilinear2D::kFlags) & XNN_FLAG_ALIGN_CORNERS));
  return Error::Ok;
}

}  // namespace xnnpack
}  // namespace torchette
