// SPDX-License-Identifier: BSD-3-Clause
// Lowers pools and layers with weights, and packs the weights.
#include <cmath>

#include "torchette/backends/xnnpack/kernels/graph_reader.h"

namespace torchette {
namespace xnnpack {
namespace {

constexpr float kInfinity = INFINITY;
constexpr uint32_t kTransposed = 1;  // flag: the weights are [inputs, outputs]

/// The activation that a kernel of the engine can apply. `remaining` receives the limits that a clamp must
/// apply.
const char* activation_of(const Definition& d, Definition* remaining) {
  if (d.limits.low != 0.0f || (d.limits.high != kInfinity && d.limits.high != 6.0f)) return "none";
  remaining->limits = {-kInfinity, kInfinity};
  return d.limits.high == 6.0f ? "relu6" : "relu";
}

/// Whether weights are 8-bit or 4-bit integers with scales per output, or per group of a size that the kernel
/// supports.
bool has_integer_weights(const Slot& weights, uint32_t outputs_dim) {
  const bool is_4_bit = weights.type == ScalarType::Bits4x2;
  return weights.is_constant() && weights.quantization.zero_point == 0 &&
         (is_4_bit || weights.type == ScalarType::Char) &&
         (weights.quantization.scales == nullptr || weights.quantization.channel_dim == outputs_dim) &&
         weights.quantization.group % kOctet == 0;
}

/// Checks the sizes of a filter against the stored tensor.
Error check_filter(const Slot* filter, const uint64_t (&sizes)[4]) {
  bool fits = filter->is_constant() && filter->rank == 4;
  for (size_t d = 0; fits && d < 4; ++d)
    fits = sizes[d] != 0 && sizes[d] == static_cast<uint64_t>(filter->sizes[d]);
  TORCHETTE_CHECK(fits, DelegateInvalidCompatibility, "a convolution's weights do not match its sizes");
  return Error::Ok;
}

}  // namespace

Slot* GraphReader::packed(Slot* weights, size_t groups, size_t outputs, size_t inputs,
                          const size_t (&steps)[3], Span<const uint32_t> sizes) {
  const size_t panels = (outputs + kPanelWidth - 1) / kPanelWidth;
  const uint64_t floats =
      uint64_t{groups} * panels * inputs * kPanelWidth;  // bounded by the stored weights: no overflow
  auto* to = floats <= SIZE_MAX / sizeof(float)
                 ? static_cast<float*>(memory_->allocate(static_cast<size_t>(floats) * sizeof(float), 64))
                 : nullptr;
  if (to == nullptr) {
    builder_.set_full();
    return nullptr;
  }
  Slot* const slot = constant(sizes, to);
  packed_ = weights;
  const auto* const from = static_cast<const float*>(weights->data);
  for (size_t group = 0; group < groups; ++group)
    for (size_t panel = 0; panel < panels; ++panel)
      for (size_t i = 0; i < inputs; ++i)
        for (size_t j = 0; j < kPanelWidth; ++j) {
          const size_t row = panel * kPanelWidth + j;
          *to++ = row < outputs ? from[group * steps[0] + row * steps[1] + i * steps[2]] : 0.0f;
        }
  return slot;
}

Error GraphReader::bias_vector(Slot* bias, uint64_t count, Slot** out) {
  *out = bias;
  if (bias == nullptr) return Error::Ok;
  TORCHETTE_CHECK(bias->numel == count && count <= INT32_MAX, DelegateInvalidCompatibility,
                  "a layer's bias does not match its weights");
  if (bias->rank == 1 || !bias->is_constant()) return Error::Ok;
  const uint32_t sizes[] = {static_cast<uint32_t>(count)};
  *out = view(bias, sizes);
  return Error::Ok;
}

Error GraphReader::with_border(const char* kernel, Slot* image, const uint32_t (&before)[2],
                               const uint32_t (&after)[2], bool can_pad, double value, int64_t (&padding)[2],
                               Slot** out) {
  *out = image;
  TORCHETTE_CHECK(image->rank == 4, DelegateInvalidCompatibility, "an image has %u dimensions, not 4",
                  image->rank);
  for (int d = 0; d < 2; ++d) padding[d] = before[d];
  if (can_pad && before[0] == after[0] && before[1] == after[1]) return Error::Ok;
  const int64_t around[] = {0, 0, before[1], after[1], before[0], after[0]};
  uint32_t sizes[4] = {size(image, 0), size(image, 1), size(image, 2), size(image, 3)};
  for (int d = 0; d < 2; ++d) {
    const uint64_t wide = uint64_t{sizes[d + 1]} + before[d] + after[d];
    TORCHETTE_CHECK(wide <= INT32_MAX, DelegateInvalidCompatibility, "an image has a padding of %u and %u",
                    before[d], after[d]);
    sizes[d + 1] = static_cast<uint32_t>(wide);
    padding[d] = 0;
  }
  *out = temporary(sizes, image->type);
  return call(kernel, {image, integers(around), value, *out});
}

Error GraphReader::convolution(const Definition& d) {
  using C = fb::XNNConv2d;
  const Table& n = d.n;
  const auto u = [&](uint16_t slot) { return n.get<uint32_t>(slot); };
  Slot *in, *filter, *bias, *out;
  TORCHETTE_TRY(input(n, C::kInput1Id, &in));
  TORCHETTE_TRY(input(n, C::kFilterId, &filter));
  TORCHETTE_TRY(input(n, C::kBiasId, &bias, true));
  TORCHETTE_TRY(output(n, C::kOutputId, &out));
  const uint64_t groups = u(C::kGroups), gic = u(C::kGroupInputChannels), goc = u(C::kGroupOutputChannels);
  const uint32_t kh = u(C::kKernelHeight), kw = u(C::kKernelWidth);
  // filters are [outputs, kh, kw, inputs of a group], depthwise filters [1, kh, kw, outputs]
  const bool last = d.kind == Node::XNNDepthwiseConv2d;
  TORCHETTE_CHECK(!last || gic == 1, DelegateInvalidCompatibility,
                  "a depthwise convolution has %llu channels per group",
                  static_cast<unsigned long long>(gic));
  const uint64_t outputs = groups * goc;
  TORCHETTE_TRY(check_filter(filter, {last ? 1 : outputs, kh, kw, last ? outputs : gic}));
  const bool is_integer = has_integer_kernel(*in, *filter, bias, *out, last ? 3 : 0, uint64_t{kh} * kw * gic);
  if (!is_integer) {
    TORCHETTE_TRY(to_float(&in));
    TORCHETTE_TRY(to_float(&filter));
    TORCHETTE_TRY(to_float(&bias));
    TORCHETTE_TRY(float_result(&out));
  }
  TORCHETTE_TRY(bias_vector(bias, outputs, &bias));
  const Slot* const numbers = in;
  int64_t padding[2];
  TORCHETTE_TRY(with_border(
      d.kernels[2], in, {u(C::kPaddingTop), u(C::kPaddingLeft)}, {u(C::kPaddingBottom), u(C::kPaddingRight)},
      true, is_integer ? static_cast<double>(in->quantization.zero_point) : 0.0, padding, &in));
  const Entry* stride = integers({{u(C::kSubsamplingHeight), u(C::kSubsamplingWidth)}});
  const Entry* dilation = integers({{u(C::kDilationHeight), u(C::kDilationWidth)}});
  Definition remaining = d;
  const Entry* activation = text(activation_of(d, &remaining));
  const size_t taps = size_t{kh} * kw, depth = taps * static_cast<size_t>(gic),
               rows = static_cast<size_t>(goc), all = static_cast<size_t>(outputs);
  const auto panels = [](size_t count) {
    return static_cast<uint32_t>((count + kPanelWidth - 1) / kPanelWidth);
  };
  const bool is_depthwise = gic == 1 && goc == 1;
  if (is_integer) {
    const int64_t zero = numbers->quantization.zero_point, to_zero = out->quantization.zero_point;
    const int64_t low = quantized_min(*out, d.limits), high = quantized_max(*out, d.limits);
    const Entry* kernel = integers({{kh, kw}});
    Slot *weights, *terms;
    if (is_depthwise && taps <= kMaxDepthwiseTaps) {
      const size_t steps[] = {0, last ? 1 : taps, last ? all : 1};
      TORCHETTE_TRY(integer_weights(numbers, filter, bias, out, 1, all, taps, steps, 1,
                                    {{panels(all), static_cast<uint32_t>(taps), kPanelWidth}}, &weights,
                                    &terms));
      return call(d.integers[1], {in, weights, terms, zero, kernel, stride, integers(padding), dilation,
                                  to_zero, low, high, out});
    }
    const size_t steps[] = {last ? rows : rows * depth, last ? 1 : depth, last ? all : 1};
    const auto quads = static_cast<uint32_t>((depth + kQuad - 1) / kQuad);
    TORCHETTE_TRY(integer_weights(
        numbers, filter, bias, out, static_cast<size_t>(groups), rows, depth, steps, kQuad,
        {{static_cast<uint32_t>(groups), panels(rows), quads, kPanelWidth, kQuad}}, &weights, &terms));
    return call(d.integers[0], {in, weights, terms, zero, kernel, stride, integers(padding), dilation,
                                static_cast<int64_t>(outputs), to_zero, low, high, out});
  }
  if (is_depthwise) {
    const size_t steps[] = {0, last ? 1 : taps, last ? all : 1};
    Slot* const weights = packed(filter, 1, all, taps, steps, {{panels(all), kh, kw, kPanelWidth}});
    TORCHETTE_TRY(call(
        d.kernels[1], {in, weights, bias, Argument(), stride, integers(padding), dilation, activation, out}));
  } else {
    const size_t steps[] = {last ? rows : rows * depth, last ? 1 : depth, last ? all : 1};
    Slot* const weights = packed(
        filter, static_cast<size_t>(groups), rows, depth, steps,
        {{static_cast<uint32_t>(groups), panels(rows), kh, kw, static_cast<uint32_t>(gic), kPanelWidth}});
    TORCHETTE_TRY(call(d.kernels[0], {in, weights, bias, Argument(), stride, integers(padding), dilation,
                                      static_cast<int64_t>(outputs), activation, out}));
  }
  return finish(remaining, out);
}

Error GraphReader::channels_first_view(Slot* image, Slot** out) {
  TORCHETTE_CHECK(image->rank == 4, DelegateInvalidCompatibility, "an image has %u dimensions, not 4",
                  image->rank);
  const uint32_t sizes[] = {size(image, 0), size(image, 3), size(image, 1), size(image, 2)};
  static constexpr DimOrderType kChannelsLast[] = {0, 2, 3, 1};
  *out = view(image, sizes, kChannelsLast);
  TORCHETTE_CHECK(*out != nullptr, MemoryAllocationFailed, "cannot allocate an image of XNNPACK's graph");
  return Error::Ok;
}

/// Uses torch's kernel on channels-last views of the images. The weights are reordered.
Error GraphReader::transposed_convolution(const Definition& d) {
  using C = fb::XNNConvTranspose2d;
  const Table& n = d.n;
  const auto u = [&](uint16_t slot) { return n.get<uint32_t>(slot); };
  Slot *in, *filter, *bias, *out, *from, *to;
  TORCHETTE_TRY(float_input(n, C::kInput1Id, &in));
  TORCHETTE_TRY(float_input(n, C::kFilterId, &filter));
  TORCHETTE_TRY(float_input(n, C::kBiasId, &bias, true));
  TORCHETTE_TRY(float_output(n, C::kOutputId, &out));
  const uint64_t groups = u(C::kGroups), gic = u(C::kGroupInputChannels), goc = u(C::kGroupOutputChannels);
  const uint32_t kh = u(C::kKernelHeight), kw = u(C::kKernelWidth);
  TORCHETTE_TRY(check_filter(filter, {groups * goc, kh, kw, gic}));
  TORCHETTE_TRY(bias_vector(bias, groups * goc, &bias));
  TORCHETTE_CHECK(u(C::kPaddingTop) == u(C::kPaddingBottom) && u(C::kPaddingLeft) == u(C::kPaddingRight),
                  NotSupported,
                  "no kernel runs a transposed convolution with different paddings on opposite sides");
  // [groups, outputs, taps, inputs] -> [groups, inputs, outputs, taps]
  auto* const moved = memory_->allocate_list<float>(filter->numel);
  TORCHETTE_CHECK(moved != nullptr, MemoryAllocationFailed, "cannot allocate a filter of XNNPACK's graph");
  const auto* const stored = static_cast<const float*>(filter->data);
  const size_t taps = size_t{kh} * kw, inputs = static_cast<size_t>(gic), outputs = static_cast<size_t>(goc);
  float* place = moved;
  for (size_t group = 0; group < groups; ++group)
    for (size_t i = 0; i < inputs; ++i)
      for (size_t row = 0; row < outputs; ++row)
        for (size_t tap = 0; tap < taps; ++tap)
          *place++ = stored[((group * outputs + row) * taps + tap) * inputs + i];
  const uint64_t all = groups * gic;
  TORCHETTE_CHECK(all <= INT32_MAX, DelegateInvalidCompatibility,
                  "a convolution has too many input channels");
  Slot* const weights = constant({{static_cast<uint32_t>(all), static_cast<uint32_t>(goc), kh, kw}}, moved);
  TORCHETTE_TRY(channels_first_view(in, &from));
  TORCHETTE_TRY(channels_first_view(out, &to));
  TORCHETTE_TRY(call(kSameElements, {in, from}));
  const Entry* stride = integers({{u(C::kSubsamplingHeight), u(C::kSubsamplingWidth)}});
  const Entry* padding = integers({{u(C::kPaddingTop), u(C::kPaddingLeft)}});
  const Entry* dilation = integers({{u(C::kDilationHeight), u(C::kDilationWidth)}});
  const Entry* adjustment = integers({{u(C::kAdjustmentHeight), u(C::kAdjustmentWidth)}});
  TORCHETTE_TRY(call(d.kernels[0], {from, weights, bias, stride, padding, dilation, true, adjustment,
                                    static_cast<int64_t>(groups), to}));
  TORCHETTE_TRY(call(kSameElements, {to, out}));
  return finish(d, out);
}

Error GraphReader::max_pool(const Definition& d) {
  using P = fb::XNNMaxPooling2d;
  const auto u = [&](uint16_t slot) { return d.n.get<uint32_t>(slot); };
  Slot *in, *out;
  TORCHETTE_TRY(moved_operands(d.n, P::kInputId, P::kOutputId, &in, &out));
  const uint32_t window[] = {u(P::kPoolingHeight), u(P::kPoolingWidth)};
  const uint32_t before[] = {u(P::kPaddingTop), u(P::kPaddingLeft)};
  // Like torch, the kernel pads by at most half of the window.
  const bool can_pad = before[0] <= window[0] / 2 && before[1] <= window[1] / 2;
  int64_t padding[2];
  TORCHETTE_TRY(
      with_border(d.kernels[1], in, before, {u(P::kPaddingBottom), u(P::kPaddingRight)}, can_pad,
                  in->is_float() ? double{-kInfinity} : static_cast<double>(quantize_value(*in, -kInfinity)),
                  padding, &in));
  const Entry* dilation = integers({{u(P::kDilationHeight), u(P::kDilationWidth)}});
  TORCHETTE_TRY(call(d.kernels[0], {in, integers({{window[0], window[1]}}),
                                    integers({{u(P::kStrideHeight), u(P::kStrideWidth)}}), integers(padding),
                                    dilation, false, out}));
  return finish(d, out);
}

Error GraphReader::avg_pool(const Definition& d) {
  using P = fb::XNNAvgPooling2d;
  const auto u = [&](uint16_t slot) { return d.n.get<uint32_t>(slot); };
  Slot *in, *out;
  TORCHETTE_TRY(float_input(d.n, P::kInputId, &in));
  TORCHETTE_TRY(float_output(d.n, P::kOutputId, &out));
  TORCHETTE_CHECK(u(P::kPaddingTop) == u(P::kPaddingBottom) && u(P::kPaddingLeft) == u(P::kPaddingRight),
                  NotSupported, "no kernel runs an average pool with different paddings on opposite sides");
  // the average excludes the padding
  TORCHETTE_TRY(call(d.kernels[0],
                     {in, integers({{u(P::kPoolingHeight), u(P::kPoolingWidth)}}),
                      integers({{u(P::kStrideHeight), u(P::kStrideWidth)}}),
                      integers({{u(P::kPaddingTop), u(P::kPaddingLeft)}}), false, false, Argument(), out}));
  return finish(d, out);
}

Error GraphReader::fully_connected(const Definition& d) {
  using F = fb::XNNFullyConnected;
  Slot *in, *filter, *bias, *out;
  TORCHETTE_TRY(input(d.n, F::kInput1Id, &in));
  TORCHETTE_TRY(input(d.n, F::kFilterId, &filter));
  TORCHETTE_TRY(input(d.n, F::kBiasId, &bias, true));
  TORCHETTE_TRY(output(d.n, F::kOutputId, &out));
  const size_t transposed = d.n.get<uint32_t>(F::kFlags) & kTransposed;
  TORCHETTE_CHECK(filter->rank == 2, DelegateInvalidCompatibility,
                  "a linear layer's weights have %u dimensions", filter->rank);
  const uint32_t outputs = size(filter, transposed), inputs = size(filter, 1 - transposed);
  const size_t steps[] = {0, transposed != 0 ? 1 : inputs, transposed != 0 ? outputs : 1};
  const auto panels = static_cast<uint32_t>((size_t{outputs} + kPanelWidth - 1) / kPanelWidth);
  if (has_integer_kernel(*in, *filter, bias, *out, static_cast<uint32_t>(transposed), inputs)) {
    TORCHETTE_TRY(bias_vector(bias, outputs, &bias));
    Slot *weights, *terms;
    TORCHETTE_TRY(integer_weights(in, filter, bias, out, 1, outputs, inputs, steps, kQuad,
                                  {{panels, (inputs + kQuad - 1) / kQuad, kPanelWidth, kQuad}}, &weights,
                                  &terms));
    return call(d.integers[0], {in, weights, terms, int64_t{in->quantization.zero_point}, int64_t{outputs},
                                int64_t{out->quantization.zero_point}, quantized_min(*out, d.limits),
                                quantized_max(*out, d.limits), out});
  }
  const bool has_integers = has_integer_weights(*filter, static_cast<uint32_t>(transposed));
  const bool has_rows =
      has_integers && in->source != nullptr && in->quantization.row_dims == 1 && inputs <= kMaxIntegerDepth;
  Slot* row_scales = nullptr;
  TORCHETTE_TRY(has_rows ? quantize_rows(d.integers[3], in, &in, &row_scales) : to_float(&in));
  TORCHETTE_TRY(to_float(&bias));
  TORCHETTE_TRY(float_result(&out));
  TORCHETTE_TRY(bias_vector(bias, outputs, &bias));
  if (has_integers) {
    const bool is_4_bit = filter->type == ScalarType::Bits4x2;
    const uint32_t unit = is_4_bit ? kOctet : kQuad;
    const uint32_t groups = filter->quantization.group == 0 ? 1 : inputs / filter->quantization.group;
    Slot* const weights =
        packed_integers(filter, 1, outputs, inputs, steps, unit,
                        {{panels, (inputs + unit - 1) / unit, kPanelWidth, kQuad}}, nullptr, 0);
    Slot* const scales = new_constant({{panels, groups, kPanelWidth}});
    TORCHETTE_CHECK(weights != nullptr && scales != nullptr, MemoryAllocationFailed,
                    "cannot allocate a layer of XNNPACK's graph");
    for (size_t i = 0; i < scales->numel; ++i) {
      const size_t output = i / kPanelWidth / groups * kPanelWidth + i % kPanelWidth;
      static_cast<float*>(scales->data)[i] =
          output < outputs ? scale_at(*filter, output, i / kPanelWidth % groups) : 0.0f;
    }
    Definition remaining = d;
    if (has_rows) {
      const Entry* activation = text(activation_of(d, &remaining));
      TORCHETTE_TRY(call(d.integers[2], {in, row_scales, weights, scales, bias, Argument(), int64_t{outputs},
                                         activation, out}));
    } else {
      TORCHETTE_TRY(call(d.integers[1], {in, weights, scales, bias, int64_t{outputs}, out}));
    }
    return finish(remaining, out);
  }
  TORCHETTE_TRY(to_float(&filter));
  if (!filter->is_constant()) {
    // a view with swapped dimensions
    static constexpr DimOrderType kColumns[] = {1, 0};
    Slot* rows = filter;
    if (transposed != 0) {
      rows = view(filter, {{outputs, inputs}}, kColumns);
      TORCHETTE_TRY(call(kSameElements, {filter, rows}));
    }
    TORCHETTE_TRY(call(d.kernels[1], {in, rows, bias, out}));
    return finish(d, out);
  }
  Slot* const weights = packed(filter, 1, outputs, inputs, steps, {{panels, inputs, kPanelWidth}});
  Definition remaining = d;
  const Entry* activation = text(activation_of(d, &remaining));
  TORCHETTE_TRY(call(d.kernels[0], {in, weights, bias, Argument(), int64_t{outputs}, activation, out}));
  return finish(remaining, out);
}

Error GraphReader::matmul(const Definition& d) {
  using B = fb::XNNBatchMatrixMultiply;
  Slot *a, *b, *out;
  TORCHETTE_TRY(float_input(d.n, B::kInput1Id, &a));
  TORCHETTE_TRY(float_input(d.n, B::kInput2Id, &b));
  TORCHETTE_TRY(float_output(d.n, B::kOutputId, &out));
  const uint32_t flags = d.n.get<uint32_t>(B::kFlags);
  const bool transposed = (flags & kTransposed) != 0;
  if ((flags & kSkipsZeros) != 0 && !transposed)
    TORCHETTE_TRY(call(kCombineRows, {a, b, out}));
  else
    TORCHETTE_TRY(call(kMultiply, {a, b, transposed, out}));
  return finish(d, out);
}

Error GraphReader::attention(const Definition& d) {
  using A = fb::XNNScaledDotProductAttention;
  Slot *query, *key, *value, *scale, *mask, *out;
  TORCHETTE_TRY(float_input(d.n, A::kQueryId, &query));
  TORCHETTE_TRY(float_input(d.n, A::kKeyId, &key));
  TORCHETTE_TRY(float_input(d.n, A::kValueId, &value));
  TORCHETTE_TRY(float_input(d.n, A::kScaleId, &scale));
  TORCHETTE_TRY(float_input(d.n, A::kMaskId, &mask));
  TORCHETTE_TRY(float_output(d.n, A::kOutputId, &out));
  const size_t rank = query->rank;
  TORCHETTE_CHECK(rank >= 3 && key->rank == rank, DelegateInvalidCompatibility,
                  "attention has queries of %zu dimensions and keys of %u", rank, key->rank);
  uint32_t sizes[kMaxDims];
  for (size_t i = 0; i < rank; ++i) sizes[i] = size(query, i);
  sizes[rank - 1] = size(key, rank - 2);
  Slot* const scaled = temporary(sizes_of(query));
  Slot *const scores = temporary({sizes, rank}), *const masked = temporary({sizes, rank});
  TORCHETTE_TRY(call(d.kernels[0], {query, scale, scaled}));
  TORCHETTE_TRY(call(kMultiply, {scaled, key, true, scores}));
  TORCHETTE_TRY(call(d.kernels[2], {scores, mask, int64_t{1}, masked}));
  TORCHETTE_TRY(call(d.kernels[3], {masked, int64_t{-1}, false, scores}));
  TORCHETTE_TRY(call(kMultiply, {scores, value, false, out}));
  return finish(d, out);
}

}  // namespace xnnpack
}  // namespace torchette
