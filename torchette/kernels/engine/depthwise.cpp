// SPDX-License-Identifier: BSD-3-Clause
// cpu::depthwise: torchette/backends/engine/operators/depthwise.py. Computes some adjacent pixels of a row at
// a time, one panel of channels at a time. Taps outside of the image are skipped per row of the window, and
// per tap at the ends of a row.
#include "torchette/kernels/engine/epilogue.h"
#include "torchette/kernels/engine/image.h"
#include "torchette/kernels/engine/panels.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Number of adjacent pixels that are computed at a time, and the parts of a panel. Their accumulators and one
// row of the filter fit in the registers.
constexpr int kNeighbours = kLanes == 16 ? 8 : kVectorRegisters == 8 ? 2 : 4;
constexpr int kParts = parts_of_pass(kNeighbours);
constexpr size_t kPass = kParts * kPartLanes;

struct Row {
  const Window* window;
  const float* image;             // [D, H, W], pixels at stride in_pixel
  const float* weight;            // [panels, taps, kPanelWidth]
  size_t last_row;                // floats in a row of the last panel
  const float* bias;              // or null
  const float* residual;          // residual of this row, or null
  float* out;                     // result of this row
  ptrdiff_t in_pixel, out_pixel;  // floats from a pixel to the next one
  ptrdiff_t z, y;                 // start of the window
  float low, high;

  /// Returns the tap stride, in floats, of the panel that contains this channel.
  ptrdiff_t tap_row(size_t channel) const {
    return static_cast<ptrdiff_t>(channel / kPanelWidth < window->channels / kPanelWidth ? kPanelWidth
                                                                                         : last_row);
  }
};

/// Loads part v of a pass, limited to `channels` channels.
TORCHETTE_INLINE Part get(const float* p, int v, size_t channels) {
  const size_t first = static_cast<size_t>(v) * kPartLanes;
  if (channels >= first + kPartLanes) return load_part(p + first);
  return channels > first ? load_part(p + first, channels - first) : Part{};
}
TORCHETTE_INLINE void put(float* p, Part x, int v, size_t channels) {
  const size_t first = static_cast<size_t>(v) * kPartLanes;
  if (channels >= first + kPartLanes)
    store_part(p + first, x);
  else if (channels > first)
    store_part(p + first, x, channels - first);
}

/// Computes results x to x + kCount of a pass over `channels` channels from `channel` on, with the taps
/// [from, to) of each row of the window.
template <int kCount, bool kFull>
void neighbours(const Row& row, size_t channel, size_t channels, ptrdiff_t x, ptrdiff_t from, ptrdiff_t to) {
  const Window& w = *row.window;
  const ptrdiff_t c = row.in_pixel;
  const ptrdiff_t tap_row = row.tap_row(channel);
  const size_t count = kFull ? kPass : channels;
  Part acc[kCount][kParts];
  TORCHETTE_UNROLL(4)
  for (int v = 0; v < kParts; ++v) {
    const Part bias = row.bias != nullptr ? get(row.bias + channel, v, count) : Part{};
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kCount; ++i) acc[i][v] = bias;
  }
  const float* const weight =
      row.weight + channel / kPanelWidth * w.taps() * kPanelWidth + channel % kPanelWidth;
  const ptrdiff_t begin = x * w.stride[2] - w.padding[2], step = w.stride[2] * c;
  for (ptrdiff_t kz = 0; kz < w.kernel[0]; ++kz) {
    const ptrdiff_t z = row.z + kz * w.dilation[0];
    if (z < 0 || z >= w.in[0]) continue;
    for (ptrdiff_t ky = 0; ky < w.kernel[1]; ++ky) {
      const ptrdiff_t y = row.y + ky * w.dilation[1];
      if (y < 0 || y >= w.in[1]) continue;
      const float* in = row.image + ((z * w.in[1] + y) * w.in[2] + begin + from * w.dilation[2]) * c +
                        static_cast<ptrdiff_t>(channel);
      const float* tap = weight + ((kz * w.kernel[1] + ky) * w.kernel[2] + from) * tap_row;
      for (ptrdiff_t kx = from; kx < to; ++kx, tap += tap_row, in += w.dilation[2] * c) {
        TORCHETTE_UNROLL(4)
        for (int v = 0; v < kParts; ++v) {
          const Part filter = kFull ? load_part(tap + v * kPartLanes) : get(tap, v, count);
          TORCHETTE_UNROLL(8)
          for (int i = 0; i < kCount; ++i) acc[i][v] = fma(get(in + i * step, v, count), filter, acc[i][v]);
        }
      }
    }
  }
  const Part low = part_of(row.low), high = part_of(row.high);
  TORCHETTE_UNROLL(8)
  for (int i = 0; i < kCount; ++i) {
    const ptrdiff_t at = (x + i) * row.out_pixel + static_cast<ptrdiff_t>(channel);
    TORCHETTE_UNROLL(4)
    for (int v = 0; v < kParts; ++v) {
      Part sum = acc[i][v];
      if (row.residual != nullptr) sum += get(row.residual + at, v, count);
      put(row.out + at, clamp(sum, low, high), v, count);
    }
  }
}

// Number of adjacent results in a sliding computation, which processes one part of the channels at a time.
constexpr int kSliding = kVectorRegisters == 8 ? 3 : 8;

/// neighbours() for windows of kTaps adjacent pixels and stride 1: each pixel is read once for all windows
/// that contain it. Computes results x to x + kSliding of a part of the channels with the `weight` of that
/// part. With kEnds, windows may extend beyond the ends of the row, and only results inside of the row are
/// stored.
template <int kTaps, bool kEnds>
void slide(const Row& row, const float* weight, size_t channel, ptrdiff_t x) {
  const Window& w = *row.window;
  const ptrdiff_t c = row.in_pixel;
  const ptrdiff_t tap_row = row.tap_row(channel);
  const Part bias = row.bias != nullptr ? load_part(row.bias + channel) : Part{};
  Part acc[kSliding];
  TORCHETTE_UNROLL(8)
  for (int i = 0; i < kSliding; ++i) acc[i] = bias;
  for (ptrdiff_t kz = 0; kz < w.kernel[0]; ++kz) {
    const ptrdiff_t z = row.z + kz * w.dilation[0];
    if (z < 0 || z >= w.in[0]) continue;
    for (ptrdiff_t ky = 0; ky < w.kernel[1]; ++ky) {
      const ptrdiff_t y = row.y + ky * w.dilation[1];
      if (y < 0 || y >= w.in[1]) continue;
      const ptrdiff_t first = x - w.padding[2];
      const float* const in = row.image + (z * w.in[1] + y) * w.in[2] * c + static_cast<ptrdiff_t>(channel);
      const float* const taps = weight + (kz * w.kernel[1] + ky) * kTaps * tap_row;
      Part filter[kTaps];
      TORCHETTE_UNROLL(8)
      for (int t = 0; t < kTaps; ++t) filter[t] = load_part(taps + t * tap_row);
      TORCHETTE_UNROLL(16)
      for (int j = 0; j < kSliding + kTaps - 1; ++j) {
        if (kEnds && (first + j < 0 || first + j >= w.in[2])) continue;
        const Part pixel = load_part(in + (first + j) * c);
        TORCHETTE_UNROLL(8)
        for (int t = 0; t < kTaps; ++t)
          if (j >= t && j - t < kSliding) acc[j - t] = fma(pixel, filter[t], acc[j - t]);
      }
    }
  }
  const Part low = part_of(row.low), high = part_of(row.high);
  TORCHETTE_UNROLL(8)
  for (int i = 0; i < kSliding; ++i) {
    if (kEnds && x + i >= w.out[2]) break;
    const ptrdiff_t at = (x + i) * row.out_pixel + static_cast<ptrdiff_t>(channel);
    if (row.residual != nullptr) acc[i] += load_part(row.residual + at);
    store_part(row.out + at, clamp(acc[i], low, high));
  }
}

/// Computes the range of results with windows that lie inside of the row: `from` is the first result with a
/// first tap inside, `to` the end of the results with a last tap inside.
void inner_range(const Window& w, ptrdiff_t& from, ptrdiff_t& to) {
  from = (w.padding[2] + w.stride[2] - 1) / w.stride[2];
  const ptrdiff_t last = w.in[2] - 1 + w.padding[2] - (w.kernel[2] - 1) * w.dilation[2];
  to = last < 0 ? 0 : last / w.stride[2] + 1;
  if (from > w.out[2]) from = w.out[2];
  if (to > w.out[2]) to = w.out[2];
  if (to < from) to = from;
}

template <bool kFull>
void pass_over_row(const Row& row, size_t channel, size_t channels, ptrdiff_t inner_from,
                   ptrdiff_t inner_to) {
  const Window& w = *row.window;
  const auto at_end = [&](ptrdiff_t x) {
    const ptrdiff_t begin = x * w.stride[2] - w.padding[2], step = w.dilation[2];
    const ptrdiff_t from = begin >= 0 ? 0 : (-begin + step - 1) / step;
    ptrdiff_t to = begin < w.in[2] ? (w.in[2] - 1 - begin) / step + 1 : 0;
    if (to > w.kernel[2]) to = w.kernel[2];
    neighbours<1, kFull>(row, channel, channels, x, from < to ? from : to, to);
  };
  ptrdiff_t x = 0;
  const bool slides = kFull && w.stride[2] == 1 && w.dilation[2] == 1;
  if (slides && (w.kernel[2] == 3 || w.kernel[2] == 5)) {
    for (; x < w.out[2]; x += kSliding)
      for (size_t at = channel; at < channel + kPass; at += kPartLanes) {
        const float* const weight = row.weight + at / kPanelWidth * w.taps() * kPanelWidth + at % kPanelWidth;
        if (x >= inner_from && x + kSliding <= inner_to)
          w.kernel[2] == 3 ? slide<3, false>(row, weight, at, x) : slide<5, false>(row, weight, at, x);
        else
          w.kernel[2] == 3 ? slide<3, true>(row, weight, at, x) : slide<5, true>(row, weight, at, x);
      }
    return;
  }
  for (; x < inner_from; ++x) at_end(x);
  for (; x + kNeighbours <= inner_to; x += kNeighbours)
    neighbours<kNeighbours, kFull>(row, channel, channels, x, 0, w.kernel[2]);
  for (; x < inner_to; ++x) neighbours<1, kFull>(row, channel, channels, x, 0, w.kernel[2]);
  for (; x < w.out[2]; ++x) at_end(x);
}

}  // namespace

namespace {

// The channels of the input and of the result that a call reads and writes.
struct Channels {
  int64_t source, count, first;
};

}  // namespace

// Checks the operands and describes the window, whose channels are those of the weight.
static Error describe_depthwise(const Tensor& input, const Tensor& weight, Span<const int64_t> stride,
                                Span<const int64_t> padding, Span<const int64_t> dilation,
                                const Channels& channels, Window& w, bool& cut) {
  TORCHETTE_TRY(check_floats("depthwise", input, "input"));
  TORCHETTE_TRY(check_floats("depthwise", weight, "weight"));
  cut = weight.dim() == input.dim() - 1;
  TORCHETTE_CHECK(cut || weight.dim() == input.dim(), InvalidArgument,
                  "depthwise: packed weight has %d dimensions for an input of %d dimensions",
                  static_cast<int>(weight.dim()), static_cast<int>(input.dim()));
  TORCHETTE_TRY(describe_window("depthwise", input, weight.sizes().data() + (cut ? 0 : 1), stride, padding,
                                dilation, false, w));
  const auto all = static_cast<int64_t>(w.channels);
  TORCHETTE_CHECK(channels.source >= 0 && channels.count >= 0 && channels.source <= all &&
                      channels.count <= all - channels.source,
                  InvalidArgument, "depthwise: channels %lld to %lld are not in an input of %d channels",
                  static_cast<long long>(channels.source),
                  static_cast<long long>(channels.source + channels.count), static_cast<int>(all));
  w.channels = static_cast<size_t>(channels.count);
  const ptrdiff_t width = weight.size(weight.dim() - 1);
  TORCHETTE_CHECK(
      cut ? static_cast<size_t>(width) == w.channels
          : static_cast<size_t>(weight.size(0)) == panels_of(w.channels) && width == ptrdiff_t{kPanelWidth},
      InvalidArgument, "depthwise: a weight of %d times %d does not fit %d channels",
      static_cast<int>(weight.size(0)), static_cast<int>(width), static_cast<int>(w.channels));
  return Error::Ok;
}

static Error convolve_depthwise(Context& context, const Tensor& input, const Tensor& weight,
                                const Optional<Tensor>& bias, const Optional<Tensor>& residual,
                                const Window& w, bool cut, Span<const char> activation,
                                const Channels& channels, Tensor& out) {
  const SizesType vector[] = {static_cast<SizesType>(w.channels)};
  TORCHETTE_TRY(check_operand("depthwise", bias, {vector, 1}, "bias"));
  Activation requested;
  TORCHETTE_TRY(activation_of(activation, requested));
  float low, high;
  const Activation left = split_activation(requested, low, high);
  ptrdiff_t inner_from, inner_to;
  inner_range(w, inner_from, inner_to);
  const ptrdiff_t in_pixel = input.size(input.dim() - 1), out_pixel = out.size(out.dim() - 1);
  const auto columns = static_cast<size_t>(w.out[2]);
  const size_t row_floats = columns * static_cast<size_t>(out_pixel);
  const auto rows_of_image = static_cast<size_t>(w.out[0] * w.out[1]);
  const float* const images = input.const_data_ptr<float>() + channels.source;
  float* const results = out.mutable_data_ptr<float>() + channels.first;
  // Each weight is used once: a multiply-add costs about four times as much as in a linear layer.
  context.parallel_for(
      w.batch * rows_of_image, min_items(4 * columns * w.channels * w.taps()),
      [&](size_t begin, size_t end, size_t) {
        for (size_t r = begin; r < end; ++r) {
          const auto y = static_cast<ptrdiff_t>(r % rows_of_image);
          Row row = {&w,
                     images + r / rows_of_image * w.in_pixels() * static_cast<size_t>(in_pixel),
                     weight.const_data_ptr<float>(),
                     cut ? cut_columns(w.channels) : kPanelWidth,
                     floats_of(bias),
                     residual.has_value() ? residual->const_data_ptr<float>() + r * row_floats : nullptr,
                     results + r * row_floats,
                     in_pixel,
                     out_pixel,
                     y / w.out[1] * w.stride[0] - w.padding[0],
                     y % w.out[1] * w.stride[1] - w.padding[1],
                     low,
                     high};
          const size_t full = w.channels / kPass * kPass;
          for (size_t channel = 0; channel < full; channel += kPass)
            pass_over_row<true>(row, channel, kPass, inner_from, inner_to);
          if (full < w.channels) pass_over_row<false>(row, full, w.channels - full, inner_from, inner_to);
          if (static_cast<size_t>(out_pixel) == w.channels)
            activate(left, row.out, 0, 1, row_floats);
          else
            activate(left, row.out, out_pixel, columns, w.channels);
        }
      });
  return Error::Ok;
}

static Error depthwise_out(Context& context, const Tensor& input, const Tensor& weight,
                           const Optional<Tensor>& bias, const Optional<Tensor>& residual,
                           Span<const int64_t> stride, Span<const int64_t> padding,
                           Span<const int64_t> dilation, Span<const char> activation, Tensor& out) {
  const Channels channels = {0, input.dim() > 0 ? int64_t{input.size(input.dim() - 1)} : 0, 0};
  Window w;
  bool cut;
  TORCHETTE_TRY(describe_depthwise(input, weight, stride, padding, dilation, channels, w, cut));
  SizesType sizes[5];
  const Span<const SizesType> shape = result_sizes(w, w.channels, sizes);
  TORCHETTE_TRY(check_operand("depthwise", residual, shape, "residual"));
  TORCHETTE_TRY(check_result("depthwise", out, shape));
  return convolve_depthwise(context, input, weight, bias, residual, w, cut, activation, channels, out);
}

static Error depthwise_into_out(Context& context, const Optional<Tensor>& into, const Optional<Tensor>& input,
                                const Tensor& weight, const Optional<Tensor>& bias,
                                Span<const int64_t> stride, Span<const int64_t> padding,
                                Span<const int64_t> dilation, int64_t count, int64_t source,
                                Span<const char> activation, int64_t first, int64_t channels, Tensor& out) {
  TORCHETTE_CHECK(input.has_value() || into.has_value(), InvalidArgument, "depthwise: input is missing");
  const Channels part = {source, count, first};
  Window w;
  bool cut;
  TORCHETTE_TRY(describe_depthwise(input.has_value() ? *input : *into, weight, stride, padding, dilation,
                                   part, w, cut));
  SizesType sizes[5];
  TORCHETTE_TRY(prepare_part("depthwise", into, result_sizes(w, static_cast<size_t>(channels), sizes), first,
                             count, out));
  return convolve_depthwise(context, input.has_value() ? *input : out, weight, bias, {}, w, cut, activation,
                            part, out);
}

TORCHETTE_KERNELS(depthwise, TORCHETTE_KERNEL("cpu::depthwise.out", depthwise_out),
                  TORCHETTE_KERNEL("cpu::depthwise_into.out", depthwise_into_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
