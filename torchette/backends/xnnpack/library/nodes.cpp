// SPDX-License-Identifier: BSD-3-Clause
// Defines the nodes of a payload: each function checks a node, adds it to the subgraph, and adds the function
// that computes the sizes of its result.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "torchette/backends/xnnpack/library/graph.h"

namespace torchette {
namespace xnnpack {
namespace {

constexpr uint64_t kMaxWindowElements = uint64_t{1} << 28;  // the library keeps a table of their addresses
constexpr uint64_t kMaxValue = uint64_t{1}
                               << 31;  // so that the sum or product of two values does not overflow
constexpr const char* kUnary = "Unary Elementwise";

/// The library computes float layers with fewer outputs in SSE kernels. The clamp of these kernels turns NaN
/// into a limit.
constexpr uint64_t kMinFloatOutputs = 32;

/// The first words of the name of an operator that the library may fuse into its neighbour.
const char* fusible_name(Node kind) {
  if (kind == Node::XNNClamp) return kUnary;
  if (kind == Node::XNNCopy) return "Copy";
  return kind == Node::XNNStaticConstantPad ? "Constant Pad" : nullptr;
}

/// Broadcasts all dimensions but the last `kept`.
bool broadcast(const Dims& a, const Dims& b, size_t kept, Dims* out) {
  const size_t rank = std::max(a.size(), b.size());
  Dims sizes(rank, 1);
  for (size_t i = kept; i < rank; ++i) {
    const size_t x = i < a.size() ? a[a.size() - 1 - i] : 1, y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return false;
    sizes[rank - 1 - i] = x == 1 ? y : x;
  }
  *out = std::move(sizes);
  return true;
}

/// A window along one dimension of an image.
struct Window {
  uint32_t kernel, stride, dilation, before, after, adjustment;

  bool is_valid() const {
    for (uint64_t number : {kernel, stride, dilation, before, after, adjustment})
      if (number >= kMaxValue) return false;
    return kernel != 0 && stride != 0 && dilation != 0 && kernel <= kMaxValue / dilation;
  }
  uint64_t span() const { return (uint64_t{kernel} - 1) * dilation + 1; }
  /// The number of windows in `size` elements; 0 if none fits.
  uint64_t count(uint64_t size) const {
    const uint64_t padded = size + before + after;
    return size == 0 || padded < span() ? 0 : (padded - span()) / stride + 1;
  }
  /// The size of the result of a transposed convolution; 0 if it is empty.
  uint64_t spread(uint64_t size) const {
    if (size == 0 || adjustment >= stride || size > kMaxValue / stride) return 0;
    const uint64_t full_size = (size - 1) * stride + adjustment + span(), padding = uint64_t{before} + after;
    return full_size > padding ? full_size - padding : 0;
  }
};

/// Reads a list with one value for each of `rank` dimensions.
bool read_list(const Table& n, uint16_t slot, size_t rank, Dims* out) {
  const Span<const uint32_t> given = n.vector<uint32_t>(slot);
  out->assign(given.begin(), given.end());
  return given.size() == rank && rank <= XNN_MAX_TENSOR_DIMS &&
         std::all_of(out->begin(), out->end(), [](size_t number) { return number < kMaxValue; });
}

bool reshaped(const Dims& in, const Dims& new_shape, Dims* out) {
  uint64_t count = 1, known = 1;
  for (size_t d : in) count *= d;  // bounded by find_sizes
  *out = new_shape;
  size_t* open = nullptr;
  for (size_t& d : *out) {
    if (d == 0 ? open != nullptr : d > kMaxValue / known) return false;
    if (d == 0)
      open = &d;
    else
      known *= d;
  }
  if (open != nullptr) *open = static_cast<size_t>(count / known);
  return known * (open == nullptr ? 1 : *open) == count;
}

}  // namespace

/// A row of xnnpack.def.
struct LibraryGraph::Kind {
  Node kind;
  const char* name;
  Error (LibraryGraph::*define)(const Definition& d);
  int code;
};

const LibraryGraph::Kind* LibraryGraph::find_kind(Node kind) {
  static constexpr Kind kKinds[] = {
#define TORCHETTE_XNNPACK_NODE(kind, make, define, code, ...) \
  {Node::kind, #kind, &LibraryGraph::define, code},
#include "torchette/schema/xnnpack.def"
  };
  const auto* found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [kind](const Kind& it) { return it.kind == kind; });
  return found == std::end(kKinds) ? nullptr : found;
}

Error LibraryGraph::read_node(const Table& entry) {
  const auto kind = entry.get<Node>(fb::XNode::kXnodeUnionType);
  const Kind* const row = find_kind(kind);
  if (row == nullptr) return Error::NotSupported;
  reason_ += std::string(" is ") + row->name;
  origins_.push_back({entry.get<uint32_t>(fb::XNode::kDebugHandle), fusible_name(kind)});
  const Limits limits = limits_of(entry);
  if (!(limits.low < limits.high)) return Error::NotSupported;
  return (this->*row->define)({entry.table(fb::XNode::kXnodeUnion), limits, kind, row->code});
}

/// The library computes NaN or infinity otherwise than eager does: docs/decisions/0029.
Error LibraryGraph::kernels_only(const Definition&) { return Error::NotSupported; }

Error LibraryGraph::define_unary(const Definition& d, xnn_unary_operator op, const xnn_unary_params* params,
                                 uint16_t from, uint16_t to) {
  Operand in, out;
  TORCHETTE_TRY(operands(d.n, from, to, &in, &out));
  step(in, out, [](const std::vector<Dims>&, Dims*) { return true; });
  return checked(xnn_define_unary(subgraph_, op, params, in.id, out.id, 0));
}

Error LibraryGraph::unary(const Definition& d) {
  using S = fb::XNNSigmoid;  // all nodes with one operand have these slots
  return define_unary(d, static_cast<xnn_unary_operator>(d.code), nullptr, S::kInputId, S::kOutputId);
}

Error LibraryGraph::clamp(const Definition& d) {
  xnn_unary_params params{};
  params.clamp = {d.limits.low, d.limits.high};
  return define_unary(d, xnn_unary_clamp, &params, fb::XNNClamp::kInputId, fb::XNNClamp::kOutputId);
}

Error LibraryGraph::leaky_relu(const Definition& d) {
  using L = fb::XNNLeakyReLU;
  xnn_unary_params params{};
  params.leaky_relu = {d.n.get<float>(L::kNegativeSlope)};
  return define_unary(d, xnn_unary_leaky_relu, &params, L::kInputId, L::kOutputId);
}

Error LibraryGraph::elu(const Definition& d) {
  xnn_unary_params params{};
  params.elu = {d.n.get<float>(fb::XNNELU::kAlpha)};
  return define_unary(d, xnn_unary_elu, &params, fb::XNNELU::kInputId, fb::XNNELU::kOutputId);
}

Error LibraryGraph::binary(const Definition& d) {
  using A = fb::XNNAdd;
  Operand a, b, out;
  TORCHETTE_TRY(input(d.n, A::kInput1Id, &a));
  TORCHETTE_TRY(input(d.n, A::kInput2Id, &b));
  TORCHETTE_TRY(output(d.n, A::kOutputId, &out));
  step(a, out, [b](const std::vector<Dims>& sizes, Dims* dims) {
    return broadcast(Dims(*dims), sizes[b.name], 0, dims);
  });
  // the library adds an operator for the limits
  if (std::isfinite(d.limits.low) || std::isfinite(d.limits.high))
    origins_.push_back({origins_.back().debug_handle, kUnary});
  const xnn_binary_params params = {d.limits.low, d.limits.high};
  return checked(
      xnn_define_binary(subgraph_, static_cast<xnn_binary_operator>(d.code), &params, a.id, b.id, out.id, 0));
}

Error LibraryGraph::same_sizes(const Table& n, uint16_t from, uint16_t to, Define define) {
  Operand in, out;
  TORCHETTE_TRY(operands(n, from, to, &in, &out));
  step(in, out, [](const std::vector<Dims>&, Dims*) { return true; });
  return checked(define(subgraph_, in.id, out.id, 0));
}

Error LibraryGraph::copy(const Definition& d) {
  return same_sizes(d.n, fb::XNNCopy::kInputId, fb::XNNCopy::kOutputId, xnn_define_copy);
}

Error LibraryGraph::softmax(const Definition& d) {
  return same_sizes(d.n, fb::XNNSoftmax::kInputId, fb::XNNSoftmax::kOutputId, xnn_define_softmax);
}

/// The mean of the height and width of an image.
Error LibraryGraph::mean(const Definition& d) {
  using M = fb::XNNGlobalAvgPooling2d;
  static constexpr int64_t kAxes[] = {1, 2};
  Operand in, out;
  TORCHETTE_TRY(operands(d.n, M::kInputId, M::kOutputId, &in, &out));
  step(in, out, [](const std::vector<Dims>&, Dims* dims) {
    if (dims->size() != 4 || (*dims)[1] == 0 || (*dims)[2] == 0) return false;
    (*dims)[1] = (*dims)[2] = 1;
    return true;
  });
  return checked(xnn_define_static_reduce_v2(subgraph_, xnn_reduce_mean, std::size(kAxes), kAxes, in.id,
                                             out.id, XNN_FLAG_KEEP_DIMS));
}

Error LibraryGraph::concatenate(const Definition& d) {
  using C = fb::XNNConcatenate5;
  static constexpr uint16_t kInputs[] = {C::kInput1Id, C::kInput2Id, C::kInput3Id, C::kInput4Id,
                                         C::kInput5Id};
  std::array<Operand, std::size(kInputs)> in;
  Operand out;
  const auto count = static_cast<size_t>(d.code);
  for (size_t i = 0; i < count; ++i) TORCHETTE_TRY(input(d.n, kInputs[i], &in[i]));
  TORCHETTE_TRY(output(d.n, C::kOutputId, &out));
  const auto given = static_cast<int32_t>(d.n.get<uint32_t>(C::kAxis));
  const auto rank = static_cast<int32_t>(in[0].value->dims.size());
  const int32_t axis = given < 0 ? given + rank : given;
  if (axis < 0 || axis >= rank) return Error::NotSupported;
  step(in[0], out, [in, count, at = static_cast<size_t>(axis)](const std::vector<Dims>& sizes, Dims* dims) {
    for (size_t i = 1; i < count; ++i) {
      Dims other = sizes[in[i].name];
      if (other.size() != dims->size()) return false;
      const size_t added = other[at];
      other[at] = (*dims)[at];
      if (other != *dims) return false;
      (*dims)[at] += added;
    }
    return true;
  });
  const auto id = [&in](size_t i) { return in[i].id; };
  xnn_subgraph_t g = subgraph_;
  if (count == 2) return checked(xnn_define_concatenate2(g, axis, id(0), id(1), out.id, 0));
  if (count == 3) return checked(xnn_define_concatenate3(g, axis, id(0), id(1), id(2), out.id, 0));
  if (count == 4) return checked(xnn_define_concatenate4(g, axis, id(0), id(1), id(2), id(3), out.id, 0));
  return checked(xnn_define_concatenate5(g, axis, id(0), id(1), id(2), id(3), id(4), out.id, 0));
}

Error LibraryGraph::convolution(const Definition& d) {
  using C = fb::XNNConv2d;
  const Table& n = d.n;
  const auto u = [&](uint16_t slot) { return n.get<uint32_t>(slot); };
  Operand in, filter, bias, out;
  TORCHETTE_TRY(input(n, C::kInput1Id, &in));
  TORCHETTE_TRY(weight(n, C::kFilterId, false, &filter));
  TORCHETTE_TRY(weight(n, C::kBiasId, true, &bias));
  TORCHETTE_TRY(output(n, C::kOutputId, &out));
  const bool is_depthwise = d.kind == Node::XNNDepthwiseConv2d;
  const bool is_transposed = d.kind == Node::XNNConvTranspose2d;
  const uint64_t groups = u(C::kGroups), gic = u(C::kGroupInputChannels), goc = u(C::kGroupOutputChannels);
  const Window height{u(C::kKernelHeight),   u(C::kSubsamplingHeight),
                      u(C::kDilationHeight), u(C::kPaddingTop),
                      u(C::kPaddingBottom),  is_transposed ? u(C::kAdjustmentHeight) : 0};
  const Window width{u(C::kKernelWidth), u(C::kSubsamplingWidth), u(C::kDilationWidth),
                     u(C::kPaddingLeft), u(C::kPaddingRight),     is_transposed ? u(C::kAdjustmentWidth) : 0};
  const auto outputs = static_cast<size_t>(groups * goc), inputs = static_cast<size_t>(groups * gic);
  const Dims filter_dims = is_depthwise ? Dims{1, u(C::kKernelHeight), u(C::kKernelWidth), outputs}
                                        : Dims{outputs, u(C::kKernelHeight), u(C::kKernelWidth), gic};
  const size_t channel_dim = is_depthwise ? 3 : 0;
  // the kernels for depthwise filters of one pixel also turn NaN into a limit
  if (in.value->type == xnn_datatype_fp32 && ((is_transposed && goc < kMinFloatOutputs) ||
                                              (is_depthwise && height.kernel == 1 && width.kernel == 1)))
    return Error::NotSupported;
  if (groups == 0 || gic == 0 || goc == 0 || (is_depthwise && gic != 1) || !height.is_valid() ||
      !width.is_valid() || filter.value->dims != filter_dims ||
      (filter.value->channel_dim != SIZE_MAX && filter.value->channel_dim != channel_dim) ||
      (bias.value != nullptr && bias.value->dims != Dims{outputs}))
    return Error::NotSupported;
  step(in, out, [=](const std::vector<Dims>&, Dims* dims) {
    if (dims->size() != 4 || (*dims)[3] != inputs) return false;
    const uint64_t rows = is_transposed ? height.spread((*dims)[1]) : height.count((*dims)[1]);
    const uint64_t columns = is_transposed ? width.spread((*dims)[2]) : width.count((*dims)[2]);
    if (rows == 0 || columns == 0 || rows > kMaxWindowElements / columns ||
        height.kernel > kMaxWindowElements / width.kernel ||
        rows * columns > kMaxWindowElements / (height.kernel * width.kernel))
      return false;
    *dims = {(*dims)[0], static_cast<size_t>(rows), static_cast<size_t>(columns), outputs};
    return true;
  });
  const auto [low, high] = d.limits;
  const auto& [kh, sh, dh, top, bottom, ah] = height;
  const auto& [kw, sw, dw, left, right, aw] = width;
  if (is_transposed)
    return checked(xnn_define_deconvolution_2d(subgraph_, top, right, bottom, left, ah, aw, kh, kw, sh, sw,
                                               dh, dw, u(C::kGroups), gic, goc, low, high, in.id, filter.id,
                                               bias.id, out.id, 0));
  if (is_depthwise)
    return checked(xnn_define_depthwise_convolution_2d(subgraph_, top, right, bottom, left, kh, kw, sh, sw,
                                                       dh, dw, u(C::kGroupOutputChannels), groups, low, high,
                                                       in.id, filter.id, bias.id, out.id, 0));
  return checked(xnn_define_convolution_2d(subgraph_, top, right, bottom, left, kh, kw, sh, sw, dh, dw,
                                           u(C::kGroups), gic, goc, low, high, in.id, filter.id, bias.id,
                                           out.id, 0));
}

Error LibraryGraph::fully_connected(const Definition& d) {
  using F = fb::XNNFullyConnected;
  Operand in, filter, bias, out;
  TORCHETTE_TRY(input(d.n, F::kInput1Id, &in));
  TORCHETTE_TRY(weight(d.n, F::kFilterId, false, &filter));
  TORCHETTE_TRY(weight(d.n, F::kBiasId, true, &bias));
  TORCHETTE_TRY(output(d.n, F::kOutputId, &out));
  const uint32_t flags = d.n.get<uint32_t>(F::kFlags) & XNN_FLAG_TRANSPOSE_WEIGHTS;
  const Dims& weights = filter.value->dims;
  const size_t from = flags != 0 ? 0 : 1;
  const bool is_float = in.value->type == xnn_datatype_fp32;
  if (weights.size() != 2 || weights[0] == 0 || weights[1] == 0 ||
      (is_float && weights[1 - from] < kMinFloatOutputs) ||
      (bias.value != nullptr && bias.value->dims != Dims{weights[1 - from]}) ||
      (filter.value->channel_dim != SIZE_MAX && filter.value->channel_dim != 1 - from))
    return Error::NotSupported;
  step(in, out, [inputs = weights[from], outputs = weights[1 - from]](const std::vector<Dims>&, Dims* dims) {
    if (dims->empty() || dims->back() != inputs) return false;
    dims->back() = outputs;
    return true;
  });
  return checked(xnn_define_fully_connected(subgraph_, d.limits.low, d.limits.high, in.id, filter.id, bias.id,
                                            out.id, flags));
}

Error LibraryGraph::matmul(const Definition& d) {
  using B = fb::XNNBatchMatrixMultiply;
  Operand a, b, out;
  TORCHETTE_TRY(input(d.n, B::kInput1Id, &a));
  TORCHETTE_TRY(input(d.n, B::kInput2Id, &b));
  TORCHETTE_TRY(output(d.n, B::kOutputId, &out));
  if ((d.n.get<uint32_t>(B::kFlags) & kSkipsZeros) != 0) return Error::NotSupported;
  const uint32_t flags = d.n.get<uint32_t>(B::kFlags) & XNN_FLAG_TRANSPOSE_B;
  step(a, out, [b, flags](const std::vector<Dims>& sizes, Dims* dims) {
    const Dims left = *dims;
    const Dims& right = sizes[b.name];
    if (left.size() < 2 || right.size() < 2 || !broadcast(left, right, 2, dims)) return false;
    const size_t rows = right[right.size() - 2], columns = right.back();
    (*dims)[dims->size() - 2] = left[left.size() - 2];
    dims->back() = flags != 0 ? rows : columns;
    return left.back() == (flags != 0 ? columns : rows);
  });
  return checked(xnn_define_batch_matrix_multiply(subgraph_, a.id, b.id, out.id, flags));
}

Error LibraryGraph::transpose(const Definition& d) {
  using T = fb::XNNStaticTranspose;
  Operand in, out;
  Dims order;
  TORCHETTE_TRY(operands(d.n, T::kInputId, T::kOutputId, &in, &out));
  const size_t rank = in.value->dims.size();
  if (!read_list(d.n, T::kPerm, rank, &order)) return Error::NotSupported;
  for (size_t i = 0; i < rank; ++i)
    if (std::count(order.begin(), order.end(), i) != 1) return Error::NotSupported;
  step(in, out, [order](const std::vector<Dims>&, Dims* dims) {
    const Dims from = *dims;
    for (size_t i = 0; i < from.size(); ++i) (*dims)[i] = from[order[i]];
    return true;
  });
  return checked(xnn_define_static_transpose(subgraph_, rank, order.data(), in.id, out.id, 0));
}

Error LibraryGraph::reshape(const Definition& d) {
  using R = fb::XNNStaticReshape;
  Operand in, out;
  Dims new_shape;
  TORCHETTE_TRY(operands(d.n, R::kInputId, R::kOutputId, &in, &out));
  if (!read_list(d.n, R::kNewShape, d.n.vector<uint32_t>(R::kNewShape).size(), &new_shape))
    return Error::NotSupported;
  step(in, out,
       [new_shape](const std::vector<Dims>&, Dims* dims) { return reshaped(Dims(*dims), new_shape, dims); });
  return checked(xnn_define_static_reshape(subgraph_, new_shape.size(), new_shape.data(), in.id, out.id, 0));
}

Error LibraryGraph::slice(const Definition& d) {
  using S = fb::XNNStaticSlice;
  Operand in, out;
  Dims offsets, lengths;
  TORCHETTE_TRY(operands(d.n, S::kInputId, S::kOutputId, &in, &out));
  const size_t rank = in.value->dims.size();
  if (!read_list(d.n, S::kOffsets, rank, &offsets) || !read_list(d.n, S::kSizes, rank, &lengths))
    return Error::NotSupported;
  step(in, out, [offsets, lengths](const std::vector<Dims>&, Dims* dims) {
    for (size_t i = 0; i < dims->size(); ++i) {
      // a length of 0 is the whole dimension
      if (lengths[i] == 0 ? offsets[i] != 0 : offsets[i] + lengths[i] > (*dims)[i]) return false;
      if (lengths[i] != 0) (*dims)[i] = lengths[i];
    }
    return true;
  });
  return checked(xnn_define_static_slice(subgraph_, rank, offsets.data(), lengths.data(), in.id, out.id, 0));
}

Error LibraryGraph::pad(const Definition& d) {
  using P = fb::XNNStaticConstantPad;
  Operand in, out;
  Dims before, after;
  TORCHETTE_TRY(operands(d.n, P::kInputId, P::kOutputId, &in, &out));
  const size_t rank = in.value->dims.size();
  if (!read_list(d.n, P::kPrePaddings, rank, &before) || !read_list(d.n, P::kPostPaddings, rank, &after))
    return Error::NotSupported;
  step(in, out, [before, after](const std::vector<Dims>&, Dims* dims) {
    for (size_t i = 0; i < dims->size(); ++i) (*dims)[i] += before[i] + after[i];
    return true;
  });
  return checked(xnn_define_static_constant_pad(subgraph_, before.data(), after.data(),
                                                d.n.get<float>(P::kPaddingValue), in.id, out.id, 0));
}

}  // namespace xnnpack
}  // namespace torchette
