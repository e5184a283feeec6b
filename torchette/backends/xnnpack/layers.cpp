// SPDX-License-Identifier: BSD-3-Clause
// Layers with weights (which are packed, how, and which are read where they are), and pools.
#include <algorithm>
#include <string>

#include "torchette/backends/xnnpack/builder.h"

// Of library/additions.h; not in a library that somebody built in another way.
extern "C" TORCHETTE_WEAK bool xnn_multiplies_rows();

namespace torchette {
namespace xnnpack {
namespace {

constexpr const char* kLinear = "linear,";

bool has_channels(xnn_datatype type) { return type == xnn_datatype_qcint8; }

/// Whether the scales of weights and of what is added are those of the outputs, and rows are quantized over
/// as many dimensions as the layer reads at once.
bool scales_fit(const Defined& source, const Defined& weights, const Defined* added, size_t outputs,
                size_t inner_dims) {
  return (bits(weights.type) == 4 || has_channels(weights.type) ? weights.channel_dim == outputs : true) &&
         (added == nullptr || added->channel_dim == 0) &&
         (source.type != xnn_datatype_qdint8 || source.inner_dims == inner_dims);
}

/// Whether a node's output is a product in float32 with weights whose rows are outputs.
bool is_product(const Defined& source, const Defined& weights, const Defined* added) {
  for (const Defined* it : {&source, &weights, added})
    if (it != nullptr && it->type != xnn_datatype_fp32) return false;
  return weights.constant && (added == nullptr || added->constant);
}

/// Whether such a node reads its weights where they are: it has never more than one row of input.
bool has_one_row(const Defined& source, const Defined& weights, const Defined* added) {
  return xnn_multiplies_rows != nullptr && xnn_multiplies_rows() && is_product(source, weights, added) &&
         weights.buffer != SIZE_MAX && weights.dims[0] != 0 &&
         product(source.dims) == product(weights.dims) / weights.dims[0];
}

}  // namespace

Error Builder::widen(const Defined& weights, uint32_t* id) {
  if (weights.type != xnn_datatype_fp16) return Error::Ok;
  std::vector<float> wide(product(weights.dims));
  const auto* halves = static_cast<const Half*>(weights.data);
  for (size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(halves[i]);
  out_.widened.push_back(std::move(wide));
  TORCHETTE_XNN(xnn_define_tensor_value(out_.subgraph, xnn_datatype_fp32, weights.dims.size(),
                                        weights.dims.data(), out_.widened.back().data(), XNN_INVALID_VALUE_ID,
                                        0, id));
  return Error::Ok;
}

void Builder::packed_as(const Defined& weights, std::string how) {
  how += '/' + std::to_string(static_cast<int>(weights.type));
  for (size_t d : weights.dims) how += ',' + std::to_string(d);
  const auto [use, is_new] = uses_.emplace(weights.data, how);
  if (use->second != how) use->second.clear();
  const auto known = out_.identities.find(weights.data);
  if (known == out_.identities.end() || known->second.empty()) return;
  if (is_new) known->second += '/' + how;
  if (use->second.empty()) known->second.clear();
}

void Builder::multiplies(const Defined& source, const Defined& weights, const Defined* added, bool in_place) {
  if (weights.dims[0] == 0 || !is_product(source, weights, added)) return;
  const size_t count = product(weights.dims);
  out_.matrices.push_back({static_cast<const float*>(weights.data),
                           added == nullptr ? nullptr : static_cast<const float*>(added->data),
                           weights.dims[0], count / weights.dims[0],
                           in_place ? &out_.constants[weights.buffer].bytes : nullptr});
}

void Builder::choose_in_place() {
  std::map<uintptr_t, size_t> read;  // bytes of each region
  const auto for_regions = [](const Matrix& it, const auto& visit) {
    auto at = reinterpret_cast<uintptr_t>(it.rows);
    const uintptr_t end = at + it.outputs * it.inputs * sizeof(float);
    for (uintptr_t next; at < end; at = next) {
      next = std::min(end, (at / kRegion + 1) * kRegion);
      visit(at / kRegion, next - at);
    }
  };
  for (const Matrix& it : out_.matrices)
    if (it.bytes != nullptr) for_regions(it, [&](uintptr_t region, size_t size) { read[region] += size; });
  for (Matrix& it : out_.matrices) {
    if (it.bytes == nullptr) continue;
    size_t used = 0, held = 0;
    for_regions(it, [&](uintptr_t region, size_t) { used += read[region], held += kRegion; });
    if (used < held / 2) {
      it.bytes = nullptr;
    } else {
      out_.constant_bytes -= it.outputs * it.inputs * sizeof(float);
    }
  }
}

Error Builder::convolution(const Definition& d, int) {
  const auto& [kind, n, low, high] = d;
  using C = fb::XNNConv2d;
  const auto u = [&](uint16_t slot) { return n.get<uint32_t>(slot); };
  uint32_t in, filter, bias, out;
  const Defined *weights, *offsets, *image;
  TORCHETTE_TRY(find(n, C::kInput1Id, &in, &image, Reads::Rows));
  TORCHETTE_TRY(find(n, C::kFilterId, &filter, &weights, Reads::Weights));
  TORCHETTE_TRY(find(n, C::kBiasId, &bias, &offsets, Reads::Weights, true));
  TORCHETTE_TRY(make(n, C::kOutputId, &out));
  const uint64_t groups = u(C::kGroups), gic = u(C::kGroupInputChannels), goc = u(C::kGroupOutputChannels);
  const uint32_t kh = u(C::kKernelHeight), kw = u(C::kKernelWidth);
  const bool depthwise = kind == Node::XNNDepthwiseConv2d;
  const std::vector<size_t> filter_dims =
      depthwise ? std::vector<size_t>{1, kh, kw, static_cast<size_t>(groups * goc)}
                : std::vector<size_t>{static_cast<size_t>(groups * goc), kh, kw, static_cast<size_t>(gic)};
  TORCHETTE_CHECK(groups != 0 && gic != 0 && goc != 0 && weights->constant && weights->dims == filter_dims &&
                      (offsets == nullptr || (offsets->constant && product(offsets->dims) == groups * goc)) &&
                      image->dims.size() == 4 && image->dims[3] == groups * gic &&
                      scales_fit(*image, *weights, offsets, depthwise ? 3 : 0, 3),
                  DelegateInvalidCompatibility, "a convolution's weights do not fit its numbers");
  std::vector<uint64_t> window = {kh,
                                  kw,
                                  u(C::kSubsamplingHeight),
                                  u(C::kSubsamplingWidth),
                                  u(C::kDilationHeight),
                                  u(C::kDilationWidth),
                                  u(C::kPaddingTop),
                                  u(C::kPaddingLeft),
                                  u(C::kPaddingBottom),
                                  u(C::kPaddingRight)};
  const bool transposed = kind == Node::XNNConvTranspose2d;
  if (transposed) window.insert(window.end(), {u(C::kAdjustmentHeight), u(C::kAdjustmentWidth)});
  window.insert(window.end(), {groups * gic, groups * goc});
  // of one place, taken at every place: the image stays as large, whatever size it has
  const std::vector<uint64_t> place = {1, 1, 1, 1, window[4], window[5], 0, 0, 0, 0};
  const bool of_pixels = std::equal(place.begin(), place.end(), window.begin());
  step(transposed ? Step::Kind::Transposed : Step::Kind::Convolution, n, {C::kInput1Id}, C::kOutputId,
       std::move(window));
  const bool has_rows = kind == Node::XNNConv2d && groups == 1;
  // squeezed to one pixel, an image is a row
  const bool is_linear = has_rows && of_pixels && has_one_row(*image, *weights, offsets);
  packed_as(*weights, (is_linear ? kLinear : std::to_string(static_cast<int>(kind)) + ',') +
                          std::to_string(image->type) + ',' + std::to_string(groups) + ',' +
                          std::to_string(gic) + ',' + std::to_string(goc));
  if (has_rows) multiplies(*image, *weights, offsets, is_linear);
  TORCHETTE_TRY(widen(*weights, &filter));
  if (offsets != nullptr) TORCHETTE_TRY(widen(*offsets, &bias));
  xnn_subgraph_t g = out_.subgraph;
  if (is_linear) {
    const size_t rows[] = {weights->dims[0], weights->dims[3]};
    TORCHETTE_XNN(
        xnn_define_tensor_value(g, weights->type, 2, rows, weights->data, XNN_INVALID_VALUE_ID, 0, &filter));
    TORCHETTE_XNN(xnn_define_fully_connected(g, low, high, in, filter, bias, out, 0));
  } else if (transposed) {
    TORCHETTE_XNN(xnn_define_deconvolution_2d(
        g, u(C::kPaddingTop), u(C::kPaddingRight), u(C::kPaddingBottom), u(C::kPaddingLeft),
        u(C::kAdjustmentHeight), u(C::kAdjustmentWidth), kh, kw, u(C::kSubsamplingHeight),
        u(C::kSubsamplingWidth), u(C::kDilationHeight), u(C::kDilationWidth), static_cast<uint32_t>(groups),
        gic, goc, low, high, in, filter, bias, out, 0));
  } else if (depthwise) {
    TORCHETTE_CHECK(gic == 1, DelegateInvalidCompatibility,
                    "a depthwise convolution of %llu channels a group", static_cast<unsigned long long>(gic));
    TORCHETTE_XNN(xnn_define_depthwise_convolution_2d(
        g, u(C::kPaddingTop), u(C::kPaddingRight), u(C::kPaddingBottom), u(C::kPaddingLeft), kh, kw,
        u(C::kSubsamplingHeight), u(C::kSubsamplingWidth), u(C::kDilationHeight), u(C::kDilationWidth),
        static_cast<uint32_t>(goc), static_cast<size_t>(groups), low, high, in, filter, bias, out, 0));
  } else {
    TORCHETTE_XNN(xnn_define_convolution_2d(
        g, u(C::kPaddingTop), u(C::kPaddingRight), u(C::kPaddingBottom), u(C::kPaddingLeft), kh, kw,
        u(C::kSubsamplingHeight), u(C::kSubsamplingWidth), u(C::kDilationHeight), u(C::kDilationWidth),
        static_cast<uint32_t>(groups), gic, goc, low, high, in, filter, bias, out, 0));
  }
  return Error::Ok;
}

Error Builder::fully_connected(const Definition& d, int) {
  const auto& [kind, n, low, high] = d;
  uint32_t in, out;
  const Defined* source;
  using F = fb::XNNFullyConnected;
  uint32_t filter, bias;
  const Defined *weights, *offsets;
  TORCHETTE_TRY(find(n, F::kInput1Id, &in, &source, Reads::Rows));
  TORCHETTE_TRY(find(n, F::kFilterId, &filter, &weights, Reads::Weights));
  TORCHETTE_TRY(find(n, F::kBiasId, &bias, &offsets, Reads::Weights, true));
  TORCHETTE_TRY(make(n, F::kOutputId, &out));
  const uint32_t flags = n.get<uint32_t>(F::kFlags) & XNN_FLAG_TRANSPOSE_WEIGHTS;
  TORCHETTE_CHECK(weights->dims.size() == 2 &&
                      (offsets == nullptr || product(offsets->dims) == weights->dims[flags != 0 ? 1 : 0]) &&
                      scales_fit(*source, *weights, offsets, flags != 0 ? 1 : 0, 1),
                  DelegateInvalidCompatibility, "a linear layer's bias does not fit its weights");
  packed_as(*weights, (flags != 0 ? "transposed," : kLinear) + std::to_string(source->type));
  if (!weights->constant && offsets != nullptr && offsets->buffer != SIZE_MAX)
    out_.constants[offsets->buffer].stays = true;  // both are packed when the graph runs
  if (flags == 0) multiplies(*source, *weights, offsets, has_one_row(*source, *weights, offsets));
  step(Step::Kind::Linear, n, {F::kInput1Id, F::kFilterId, F::kBiasId}, F::kOutputId, {flags});
  TORCHETTE_XNN(xnn_define_fully_connected(out_.subgraph, low, high, in, filter, bias, out, flags));
  return Error::Ok;
}

Error Builder::pool(const Definition& d, int largest) {
  const auto& [kind, n, low, high] = d;
  using P = fb::XNNMaxPooling2d;
  const auto u = [&](uint16_t slot) { return n.get<uint32_t>(slot); };
  uint32_t in, out;
  TORCHETTE_TRY(find(n, P::kInputId, &in));
  TORCHETTE_TRY(make(n, P::kOutputId, &out));
  step(Step::Kind::Convolution, n, {P::kInputId}, P::kOutputId,
       {u(P::kPoolingHeight), u(P::kPoolingWidth), u(P::kStrideHeight), u(P::kStrideWidth),
        largest != 0 ? u(P::kDilationHeight) : 1, largest != 0 ? u(P::kDilationWidth) : 1, u(P::kPaddingTop),
        u(P::kPaddingLeft), u(P::kPaddingBottom), u(P::kPaddingRight), 0, 0});
  if (largest != 0) {
    TORCHETTE_XNN(xnn_define_max_pooling_2d(
        out_.subgraph, u(P::kPaddingTop), u(P::kPaddingRight), u(P::kPaddingBottom), u(P::kPaddingLeft),
        u(P::kPoolingHeight), u(P::kPoolingWidth), u(P::kStrideHeight), u(P::kStrideWidth),
        u(P::kDilationHeight), u(P::kDilationWidth), low, high, in, out, 0));
  } else {
    TORCHETTE_XNN(xnn_define_average_pooling_2d(
        out_.subgraph, u(P::kPaddingTop), u(P::kPaddingRight), u(P::kPaddingBottom), u(P::kPaddingLeft),
        u(P::kPoolingHeight), u(P::kPoolingWidth), u(P::kStrideHeight), u(P::kStrideWidth), low, high, in,
        out, 0));
  }
  return Error::Ok;
}

}  // namespace xnnpack
}  // namespace torchette
