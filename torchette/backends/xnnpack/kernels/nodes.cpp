// SPDX-License-Identifier: BSD-3-Clause
// Lowers the nodes of a payload to calls of kernels.
#include <cmath>

#include "torchette/backends/xnnpack/kernels/graph_reader.h"

namespace torchette {
namespace xnnpack {
namespace {

constexpr float kInfinity = INFINITY;

}  // namespace

Error GraphReader::read_node(const Table& entry) {
  struct Row {
    Node kind;
    Error (GraphReader::*make)(const Definition&);
    const char* kernels[4];
  };
  static constexpr Row kRows[] = {
#define TORCHETTE_XNNPACK_NODE(kind, make, define, code, ...) {Node::kind, &GraphReader::make, {__VA_ARGS__}},
#include "torchette/schema/xnnpack.def"
  };
  struct Integers {
    Node kind;
    const char* kernels[4];
  };
  static constexpr Integers kIntegers[] = {
#define TORCHETTE_XNNPACK_INTEGERS(kind, ...) {Node::kind, {__VA_ARGS__}},
#include "torchette/schema/xnnpack.def"
  };
  const auto kind = entry.get<Node>(fb::XNode::kXnodeUnionType);
  builder_.set_debug_handle(entry.get<uint32_t>(fb::XNode::kDebugHandle));
  const char* const* integers = nullptr;
  for (const Integers& row : kIntegers)
    if (row.kind == kind) integers = row.kernels;
  for (const Row& row : kRows)
    if (row.kind == kind)
      return (this->*row.make)(
          {entry.table(fb::XNode::kXnodeUnion), limits_of(entry), row.kernels, integers, kind});
  TORCHETTE_LOG(Error, "no kernel runs a node of kind %s (%u) of XNNPACK's graph",
                kind == Node::XNNArgMaxPooling2d ? "XNNArgMaxPooling2d" : "unknown",
                static_cast<unsigned>(kind));
  return Error::NotSupported;
}

Error GraphReader::finish(const Definition& d, Slot* out) {
  const auto [low, high] = d.limits;
  if (low == -kInfinity && high == kInfinity) return Error::Ok;
  if (!out->is_float())
    return call("aten::clamp.out", {out, quantized_min(*out, d.limits), quantized_max(*out, d.limits), out});
  return call("aten::clamp.out", {out, low == -kInfinity ? Argument() : Argument(double{low}),
                                  high == kInfinity ? Argument() : Argument(double{high}), out});
}

Error GraphReader::unary(const Definition& d) {
  using S = fb::XNNSigmoid;  // all nodes with one operand have these slots
  Slot *in, *out;
  TORCHETTE_TRY(unary_operands(d.n, S::kInputId, S::kOutputId, &in, &out));
  TORCHETTE_TRY(call(d.kernels[0], {in, out}));
  return finish(d, out);
}

Error GraphReader::convert(const Definition& d) {
  Slot *in, *out;
  TORCHETTE_TRY(input(d.n, fb::XNNConvert::kInputId, &in));
  TORCHETTE_TRY(output(d.n, fb::XNNConvert::kOutputId, &out));
  if (out->quantization.type == fb::XNNDatatype::xnn_datatype_qdint8) {
    TORCHETTE_TRY(to_float(&in));
    out->source = in;  // quantized when a node reads it
    return Error::Ok;
  }
  if (in->is_float() && out->is_8_bit()) {
    converted_result_ = out;
    float_result_ = in;
    return Error::Ok;
  }
  if (in->is_8_bit() && out->is_float() && !in->is_constant())
    return call("cpu::dequantize.out",
                {in, double{in->quantization.scale}, int64_t{in->quantization.zero_point}, out});
  TORCHETTE_TRY(use_table(&in, &out));
  return call(d.kernels[0], {in, out});
}

Error GraphReader::copy(const Definition& d) {
  Slot *in, *out;
  TORCHETTE_TRY(moved_operands(d.n, fb::XNNCopy::kInputId, fb::XNNCopy::kOutputId, &in, &out));
  TORCHETTE_TRY(call(d.kernels[0], {in, out}));
  return finish(d, out);
}

Error GraphReader::square(const Definition& d) {
  Slot *in, *out;
  TORCHETTE_TRY(unary_operands(d.n, fb::XNNSquare::kInputId, fb::XNNSquare::kOutputId, &in, &out));
  TORCHETTE_TRY(call(d.kernels[0], {in, in, out}));
  return finish(d, out);
}

Error GraphReader::gelu(const Definition& d) {
  Slot *in, *out;
  TORCHETTE_TRY(unary_operands(d.n, fb::XNNGelu::kInputId, fb::XNNGelu::kOutputId, &in, &out));
  TORCHETTE_TRY(call(d.kernels[0], {in, text("none"), out}));
  return finish(d, out);
}

Error GraphReader::clamp(const Definition& d) {
  Slot *in, *out;
  TORCHETTE_TRY(unary_operands(d.n, fb::XNNClamp::kInputId, fb::XNNClamp::kOutputId, &in, &out));
  return call(d.kernels[0], {in, double{d.limits.low}, double{d.limits.high}, out});
}

Error GraphReader::leaky_relu(const Definition& d) {
  using L = fb::XNNLeakyReLU;
  Slot *in, *out;
  TORCHETTE_TRY(unary_operands(d.n, L::kInputId, L::kOutputId, &in, &out));
  TORCHETTE_TRY(call(d.kernels[0], {in, double{d.n.get<float>(L::kNegativeSlope)}, out}));
  return finish(d, out);
}

Error GraphReader::elu(const Definition& d) {
  Slot *in, *out;
  TORCHETTE_TRY(unary_operands(d.n, fb::XNNELU::kInputId, fb::XNNELU::kOutputId, &in, &out));
  const double alpha = d.n.get<float>(fb::XNNELU::kAlpha);
  TORCHETTE_TRY(call(d.kernels[0], {in, alpha, 1.0, 1.0, out}));
  return finish(d, out);
}

/// The engine has integer kernels for operands of the same sizes, and for a multiplication with a second
/// operand that broadcasts.
Error GraphReader::integer_binary(const Definition& d, Slot* a, Slot* b, Slot* out, bool* is_done) {
  *is_done = d.integers != nullptr && a->is_8_bit() && out->is_8_bit() &&
             a->quantization.type == b->quantization.type && a->rank == b->rank && a->rank > 0;
  const bool is_product = d.kind == Node::XNNMultiply;
  for (size_t i = 0; *is_done && i < a->rank; ++i)
    *is_done = a->sizes[i] == b->sizes[i] || (is_product && b->sizes[i] == 1);
  if (!*is_done) return Error::Ok;
  const double sign = d.kind == Node::XNNSubtract ? -1.0 : 1.0;
  return call(d.integers[0], {a, b, double{a->quantization.scale}, int64_t{a->quantization.zero_point},
                              sign * double{b->quantization.scale}, int64_t{b->quantization.zero_point},
                              double{out->quantization.scale}, int64_t{out->quantization.zero_point},
                              quantized_min(*out, d.limits), quantized_max(*out, d.limits), out});
}

Error GraphReader::binary(const Definition& d) {
  Slot *a, *b, *out;
  TORCHETTE_TRY(input(d.n, fb::XNNAdd::kInput1Id, &a));
  TORCHETTE_TRY(input(d.n, fb::XNNAdd::kInput2Id, &b));
  TORCHETTE_TRY(output(d.n, fb::XNNAdd::kOutputId, &out));
  bool is_done;
  TORCHETTE_TRY(integer_binary(d, a, b, out, &is_done));
  if (!is_done && d.kind == Node::XNNMultiply) TORCHETTE_TRY(integer_binary(d, b, a, out, &is_done));
  if (is_done) return Error::Ok;
  TORCHETTE_TRY(to_float(&a));
  TORCHETTE_TRY(to_float(&b));
  TORCHETTE_TRY(float_result(&out));
  const bool is_sum = d.kind == Node::XNNAdd || d.kind == Node::XNNSubtract;
  TORCHETTE_TRY(is_sum ? call(d.kernels[0], {a, b, int64_t{1}, out}) : call(d.kernels[0], {a, b, out}));
  return finish(d, out);
}

/// max(x, 0) + slope * min(x, 0).
Error GraphReader::prelu(const Definition& d) {
  Slot *in, *slope, *out;
  TORCHETTE_TRY(float_input(d.n, fb::XNNPReLU::kInput1Id, &in));
  TORCHETTE_TRY(float_input(d.n, fb::XNNPReLU::kInput2Id, &slope));
  TORCHETTE_TRY(float_output(d.n, fb::XNNPReLU::kOutputId, &out));
  Slot *const part = temporary(sizes_of(in)), *const scaled = temporary(sizes_of(out));
  TORCHETTE_TRY(call(d.kernels[0], {in, Argument(), 0.0, part}));
  TORCHETTE_TRY(call(d.kernels[1], {part, slope, scaled}));
  TORCHETTE_TRY(call(d.kernels[0], {in, 0.0, Argument(), part}));
  TORCHETTE_TRY(call(d.kernels[2], {part, scaled, int64_t{1}, out}));
  return finish(d, out);
}

Error GraphReader::softmax(const Definition& d) {
  Slot *in, *out;
  TORCHETTE_TRY(float_input(d.n, fb::XNNSoftmax::kInputId, &in));
  TORCHETTE_TRY(float_output(d.n, fb::XNNSoftmax::kOutputId, &out));
  return call(d.kernels[0], {in, int64_t{-1}, false, out});
}

Error GraphReader::mean(const Definition& d) {
  Slot *in, *out;
  TORCHETTE_TRY(float_input(d.n, fb::XNNGlobalAvgPooling2d::kInputId, &in));
  TORCHETTE_TRY(float_output(d.n, fb::XNNGlobalAvgPooling2d::kOutputId, &out));
  TORCHETTE_CHECK(in->rank == 4, DelegateInvalidCompatibility, "an image has %u dimensions, not 4", in->rank);
  static constexpr int64_t kPixels[] = {1, 2};
  TORCHETTE_TRY(call(d.kernels[0], {in, integers(kPixels), true, Argument(), out}));
  return finish(d, out);
}

Error GraphReader::concatenate(const Definition& d) {
  using C = fb::XNNConcatenate5;
  static constexpr uint16_t kInputs[] = {C::kInput1Id, C::kInput2Id, C::kInput3Id, C::kInput4Id,
                                         C::kInput5Id};
  const size_t count = d.kind == Node::XNNConcatenate2   ? 2
                       : d.kind == Node::XNNConcatenate3 ? 3
                       : d.kind == Node::XNNConcatenate4 ? 4
                                                         : 5;
  Slot *in[5], *out;
  TORCHETTE_TRY(output(d.n, C::kOutputId, &out));
  bool is_same = true;
  for (size_t i = 0; i < count; ++i) {
    TORCHETTE_TRY(input(d.n, kInputs[i], &in[i]));
    is_same &= has_equal_quantization(*in[i], *out);
  }
  for (size_t i = 0; i < count && !is_same; ++i) TORCHETTE_TRY(to_float(&in[i]));
  if (!is_same) TORCHETTE_TRY(float_result(&out));
  const auto axis = static_cast<int32_t>(d.n.get<uint32_t>(C::kAxis));
  TORCHETTE_TRY(call(d.kernels[0], {tensors(in, count), int64_t{axis}, out}));
  return finish(d, out);
}

Error GraphReader::read_list(const Table& n, uint16_t slot, size_t expected, int64_t (&out)[kMaxDims]) {
  const Span<const uint32_t> given = n.vector<uint32_t>(slot);
  TORCHETTE_CHECK(given.size() == expected && expected <= kMaxDims, DelegateInvalidCompatibility,
                  "a node has a list of %zu values for %zu dimensions", given.size(), expected);
  for (size_t i = 0; i < expected; ++i) {
    TORCHETTE_CHECK(given[i] <= INT32_MAX, DelegateInvalidCompatibility,
                    "a node has a list with the value %u", given[i]);
    out[i] = given[i];
  }
  return Error::Ok;
}

Error GraphReader::transpose(const Definition& d) {
  Slot *in, *out;
  int64_t order[kMaxDims];
  TORCHETTE_TRY(
      moved_operands(d.n, fb::XNNStaticTranspose::kInputId, fb::XNNStaticTranspose::kOutputId, &in, &out));
  TORCHETTE_TRY(read_list(d.n, fb::XNNStaticTranspose::kPerm, in->rank, order));
  TORCHETTE_TRY(call(d.kernels[0], {in, integers({order, in->rank}), out}));
  return finish(d, out);
}

/// A view, unless the result is an output or has limits, or the input is a constant.
Error GraphReader::reshape(const Definition& d) {
  Slot *in, *out;
  int64_t sizes[kMaxDims];
  TORCHETTE_TRY(
      moved_operands(d.n, fb::XNNStaticReshape::kInputId, fb::XNNStaticReshape::kOutputId, &in, &out));
  TORCHETTE_TRY(read_list(d.n, fb::XNNStaticReshape::kNewShape, out->rank, sizes));
  bool is_open = false;
  for (size_t i = 0; i < out->rank; ++i) {
    TORCHETTE_CHECK(sizes[i] != 0 || !is_open, DelegateInvalidCompatibility,
                    "a reshape of XNNPACK's graph has two sizes of 0");
    if (sizes[i] == 0) {  // inferred from the other sizes
      sizes[i] = -1;
      is_open = true;
    }
  }
  const bool has_limits = d.limits.low != -kInfinity || d.limits.high != kInfinity;
  if (out->role == Role::Planned && !has_limits && in->owner()->role != Role::Constant) {
    out->role = Role::View;
    out->base = in->owner();
  }
  TORCHETTE_TRY(call(d.kernels[0], {in, integers({sizes, out->rank}), out}));
  return finish(d, out);
}

Error GraphReader::slice(const Definition& d) {
  using S = fb::XNNStaticSlice;
  Slot *in, *out;
  int64_t offsets[kMaxDims], lengths[kMaxDims];
  TORCHETTE_TRY(moved_operands(d.n, S::kInputId, S::kOutputId, &in, &out));
  const size_t rank = in->rank;
  TORCHETTE_TRY(read_list(d.n, S::kOffsets, rank, offsets));
  TORCHETTE_TRY(read_list(d.n, S::kSizes, rank, lengths));
  size_t cuts = 0;  // a length of 0 is the whole dimension
  for (size_t i = 0; i < rank; ++i) {
    TORCHETTE_CHECK(lengths[i] != 0 || offsets[i] == 0, DelegateInvalidCompatibility,
                    "a slice has length 0 and an offset");
    cuts += lengths[i] != 0 && (offsets[i] != 0 || lengths[i] != in->sizes[i]);
  }
  if (cuts == 0) TORCHETTE_TRY(call(d.kernels[1], {in, out}));
  for (size_t i = 0; i < rank && cuts > 0; ++i) {
    if (lengths[i] == 0 || (offsets[i] == 0 && lengths[i] == in->sizes[i])) continue;
    uint32_t sizes[kMaxDims];
    for (size_t j = 0; j < rank; ++j) sizes[j] = size(in, j);
    if (lengths[i] < in->sizes[i]) sizes[i] = static_cast<uint32_t>(lengths[i]);
    Slot* const part = --cuts == 0 ? out : temporary({sizes, rank}, in->type);
    TORCHETTE_TRY(call(d.kernels[0], {in, static_cast<int64_t>(i), offsets[i], lengths[i], part}));
    in = part;
  }
  return finish(d, out);
}

Error GraphReader::pad(const Definition& d) {
  using P = fb::XNNStaticConstantPad;
  Slot *in, *out;
  int64_t before[kMaxDims], after[kMaxDims], around[2 * kMaxDims];
  TORCHETTE_TRY(moved_operands(d.n, P::kInputId, P::kOutputId, &in, &out));
  const size_t rank = in->rank;
  TORCHETTE_TRY(read_list(d.n, P::kPrePaddings, rank, before));
  TORCHETTE_TRY(read_list(d.n, P::kPostPaddings, rank, after));
  for (size_t i = 0; i < rank; ++i) {  // from the last dimension to the first
    around[2 * i] = before[rank - 1 - i];
    around[2 * i + 1] = after[rank - 1 - i];
  }
  const double given = d.n.get<float>(P::kPaddingValue);
  const double value = in->is_float() ? given : static_cast<double>(quantize_value(*in, given));
  TORCHETTE_TRY(call(d.kernels[0], {in, integers({around, 2 * rank}), value, out}));
  return finish(d, out);
}

Error GraphReader::resize(const Definition& d) {
  using R = fb::XNNStaticResizeBilinear2D;
  Slot *in, *out;
  TORCHETTE_TRY(float_input(d.n, R::kInputId, &in));
  TORCHETTE_TRY(float_output(d.n, R::kOutputId, &out));
  constexpr uint32_t kAlignCorners = 8;
  const bool aligned = (d.n.get<uint32_t>(R::kFlags) & kAlignCorners) != 0;
  const int64_t sizes[] = {d.n.get<uint32_t>(R::kNewHeight), d.n.get<uint32_t>(R::kNewWidth)};
  Slot *from, *to;
  TORCHETTE_TRY(channels_first_view(in, &from));
  TORCHETTE_TRY(channels_first_view(out, &to));
  TORCHETTE_TRY(call(kSameElements, {in, from}));
  TORCHETTE_TRY(call(d.kernels[0], {from, integers(sizes), aligned, Argument(), to}));
  TORCHETTE_TRY(call(kSameElements, {to, out}));
  return finish(d, out);
}

}  // namespace xnnpack
}  // namespace torchette
