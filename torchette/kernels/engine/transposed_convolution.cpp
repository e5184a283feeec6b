// SPDX-License-Identifier: BSD-3-Clause
// cpu::transposed_convolution: torchette/backends/engine/operators/transposed_convolution.py. A tap of the
// filter contributes a row of the input to every stride-th pixel of a row of the result. Each contribution is
// a GEMM that accumulates into the result in place, without gather or scatter.
#include "torchette/kernels/engine/image.h"
#include "torchette/kernels/engine/packed_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Floats of a filter that stay in the L2 cache while the rows of an image are processed.
constexpr size_t kFilterBlock = size_t{1} << 16;
// Floats of a strip of the result, to which all taps contribute while it is in the L1 cache, and the fewest
// input pixels of a GEMM.
constexpr size_t kStrip = size_t{1} << 13, kFewest = 32;

struct Transposed {
  Window w;
  size_t groups, channels, outputs;  // channels and outputs per group
  size_t panels;
  const float *input, *weight, *bias, *residual;
  float* out;
  Activation activation;
};

/// Computes the input index `i` from which tap `tap` contributes to result index `o`. Returns false if there
/// is none.
bool source_of(const Window& w, int d, ptrdiff_t o, ptrdiff_t tap, ptrdiff_t& i) {
  const ptrdiff_t at = o + w.padding[d] - tap * w.dilation[d];
  i = at / w.stride[d];
  return at >= 0 && at % w.stride[d] == 0 && i < w.in[d];
}

/// Computes panels [first, last) of a group in the pixels [begin, end) of row `row` of the result, an index
/// into [N, D, H].
void compute_strip(const Transposed& t, size_t group, size_t row, size_t first, size_t last, ptrdiff_t begin,
                   ptrdiff_t end) {
  const Window& w = t.w;
  const size_t n = t.groups * t.outputs, column = group * t.outputs + first * kPanelWidth;
  const size_t width = static_cast<size_t>(w.out[2]), pixels = static_cast<size_t>(end - begin);
  const size_t columns =
      (last * kPanelWidth < t.outputs ? last * kPanelWidth : t.outputs) - first * kPanelWidth;
  float* const out = t.out + row * width * n;
  float* const strip = out + static_cast<size_t>(begin) * n + column;
  const float* const residual = t.residual != nullptr ? t.residual + (strip - t.out) : nullptr;
  for (size_t j = 0; j < columns; j += kLanes) {
    const size_t here = columns - j < kLanes ? columns - j : kLanes;
    const Vec bias = t.bias != nullptr ? load_partial(t.bias + column + j, here) : Vec{};
    for (size_t x = 0; x < pixels; ++x) {
      const Vec sum = residual != nullptr ? bias + load_partial(residual + x * n + j, here) : bias;
      store_partial(strip + x * n + j, sum, here);
    }
  }
  const ptrdiff_t y = static_cast<ptrdiff_t>(row) % w.out[1],
                  z = static_cast<ptrdiff_t>(row) / w.out[1] % w.out[0];
  const size_t batch = row / static_cast<size_t>(w.out[0] * w.out[1]);
  const float* tap = t.weight + group * w.taps() * t.panels * t.channels * kPanelWidth;
  PackedProduct product = {};
  product.n = t.outputs;
  product.k = t.channels;
  product.a_row = static_cast<ptrdiff_t>(w.channels);
  product.c_row = product.residual_row = w.stride[2] * static_cast<ptrdiff_t>(n);
  for (ptrdiff_t kz = 0; kz < w.kernel[0]; ++kz)
    for (ptrdiff_t ky = 0; ky < w.kernel[1]; ++ky)
      for (ptrdiff_t kx = 0; kx < w.kernel[2]; ++kx, tap += t.panels * t.channels * kPanelWidth) {
        ptrdiff_t iz, iy;
        if (!source_of(w, 0, z, kz, iz) || !source_of(w, 1, y, ky, iy)) continue;
        // The range of input pixels that contribute to this strip.
        const ptrdiff_t shift = kx * w.dilation[2] - w.padding[2];
        const ptrdiff_t from = shift >= begin ? 0 : (begin - shift + w.stride[2] - 1) / w.stride[2];
        ptrdiff_t to = shift < end ? (end - 1 - shift) / w.stride[2] + 1 : 0;
        if (to > w.in[2]) to = w.in[2];
        if (to <= from) continue;
        const auto pixel = static_cast<size_t>(
            ((static_cast<ptrdiff_t>(batch) * w.in[0] + iz) * w.in[1] + iy) * w.in[2] + from);
        product.m = static_cast<size_t>(to - from);
        product.a = t.input + pixel * w.channels + group * t.channels;
        product.w = tap;
        product.c = out + static_cast<size_t>(from * w.stride[2] + shift) * n + group * t.outputs;
        product.residual = product.c;
        packed_gemm(product, first, last);
      }
  activate(t.activation, strip, static_cast<ptrdiff_t>(n), pixels, columns);
}

}  // namespace

static Error transposed_convolution_out(Context& context, const Tensor& input, const Tensor& weight,
                                        const Optional<Tensor>& bias, const Optional<Tensor>& residual,
                                        Span<const int64_t> stride, Span<const int64_t> padding,
                                        Span<const int64_t> dilation, Span<const int64_t> output_padding,
                                        int64_t outputs, Span<const char> activation, Tensor& out) {
  constexpr const char* kName = "transposed_convolution";
  TORCHETTE_TRY(check_floats(kName, input, "input"));
  TORCHETTE_TRY(check_floats(kName, weight, "weight"));
  TORCHETTE_CHECK(weight.dim() == input.dim() + 2, InvalidArgument,
                  "%s: packed weight has %d dimensions for an input of %d dimensions", kName,
                  static_cast<int>(weight.dim()), static_cast<int>(input.dim()));
  Transposed t = {};
  Window& w = t.w;
  TORCHETTE_TRY(read_window(kName, input, weight.sizes().data() + 1, stride, padding, dilation, w));
  const auto spatial = static_cast<size_t>(w.spatial);
  TORCHETTE_CHECK(output_padding.size() == spatial, InvalidArgument,
                  "%s: output_padding has %d elements for %d spatial dimensions", kName,
                  static_cast<int>(output_padding.size()), w.spatial);
  for (size_t d = 3 - spatial; d < 3; ++d) {
    const int64_t extra = output_padding[d - (3 - spatial)];
    const int64_t size = (static_cast<int64_t>(w.in[d]) - 1) * w.stride[d] - 2 * w.padding[d] +
                         (w.kernel[d] - 1) * w.dilation[d] + 1 + extra;
    TORCHETTE_CHECK(
        extra >= 0 && (extra < w.stride[d] || extra < w.dilation[d]) && size >= 1 && size <= INT32_MAX,
        InvalidArgument, "%s: result size %lld with output_padding %lld is invalid", kName,
        static_cast<long long>(size), static_cast<long long>(extra));
    w.out[d] = static_cast<ptrdiff_t>(size);
  }
  const ptrdiff_t last = weight.dim() - 1;
  t.groups = static_cast<size_t>(weight.size(0));
  t.panels = static_cast<size_t>(weight.size(last - 2));
  t.channels = static_cast<size_t>(weight.size(last - 1));
  TORCHETTE_CHECK(
      outputs >= 0 && outputs <= INT32_MAX && t.groups > 0 && static_cast<size_t>(outputs) % t.groups == 0 &&
          t.channels * t.groups == w.channels && weight.size(last) == ptrdiff_t{kPanelWidth} &&
          t.panels == panels_of(static_cast<size_t>(outputs) / t.groups),
      InvalidArgument,
      "%s: a weight of %d groups, %d panels and %d channels does not fit %d input and %d output channels",
      kName, static_cast<int>(t.groups), static_cast<int>(t.panels), static_cast<int>(t.channels),
      static_cast<int>(w.channels), static_cast<int>(outputs));
  t.outputs = static_cast<size_t>(outputs) / t.groups;
  SizesType sizes[5];
  const Span<const SizesType> shape = result_sizes(w, static_cast<size_t>(outputs), sizes);
  const SizesType vector[] = {static_cast<SizesType>(outputs)};
  TORCHETTE_TRY(check_operand(kName, bias, {vector, 1}, "bias"));
  TORCHETTE_TRY(check_operand(kName, residual, shape, "residual"));
  TORCHETTE_TRY(activation_of(activation, t.activation));
  TORCHETTE_TRY(check_result(kName, out, shape));
  t.input = input.const_data_ptr<float>();
  t.weight = weight.const_data_ptr<float>();
  t.bias = floats_of(bias);
  t.residual = floats_of(residual);
  t.out = out.mutable_data_ptr<float>();

  const size_t of_panel = w.taps() * t.channels * kPanelWidth;
  const size_t block = of_panel * t.panels <= kFilterBlock ? t.panels : kFilterBlock / of_panel + 1;
  const size_t blocks = block == 0 ? 0 : (t.panels + block - 1) / block;
  const size_t rows = w.batch * static_cast<size_t>(w.out[0] * w.out[1]);
  const auto width = static_cast<size_t>(w.out[2]), stride_x = static_cast<size_t>(w.stride[2]);
  size_t inputs = kStrip / (block * kPanelWidth * stride_x + 1);
  if (inputs < kFewest) inputs = kFewest;
  const size_t strip = inputs < width / stride_x ? inputs * stride_x : width;
  const size_t strips = width == 0 ? 0 : (width + strip - 1) / strip;
  size_t work = strip * t.channels * block * kPanelWidth;
  for (int d = 0; d < 3; ++d) work *= static_cast<size_t>(w.kernel[d] / w.stride[d] + 1);
  context.parallel_for(t.groups * blocks * rows * strips, min_items(work),
                       [&](size_t begin, size_t end, size_t) {
                         for (size_t item = begin; item < end; ++item) {
                           const size_t line = item / strips, part = line / rows, at = item % strips * strip;
                           const size_t first = part % blocks * block;
                           const size_t past = first + block < t.panels ? first + block : t.panels;
                           const size_t stop = width - at < strip ? width : at + strip;
                           compute_strip(t, part / blocks, line % rows, first, past,
                                         static_cast<ptrdiff_t>(at), static_cast<ptrdiff_t>(stop));
                         }
                       });
  return Error::Ok;
}

TORCHETTE_KERNELS(transposed_convolution,
                  TORCHETTE_KERNEL("cpu::transposed_convolution.out", transposed_convolution_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
