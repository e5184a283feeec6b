// SPDX-License-Identifier: BSD-3-Clause
// cpu::convolution: torchette/backends/engine/operators/convolution.py. Windows are gathered as rows of a
// matrix, some pixels of the result at a time, and multiplied by the packed filter.
#include "torchette/kernels/engine/gather.h"
#include "torchette/kernels/engine/image_winograd.h"
#include "torchette/kernels/engine/paired_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

// Floats of rows that are gathered at a time: half of an L2 cache, or a small part of a microcontroller's
// memory.
constexpr size_t kGathered = kLanes >= 8 ? size_t{1} << 16 : size_t{1} << 13;
constexpr size_t kMinRows = kLanes >= 8 ? 56 : 8;
constexpr size_t kStrip = kLanes >= 8 ? size_t{1} << 15 : size_t{1} << 12;

// Determines the window of a packed filter and whether its last panel is cut.
static Error describe_filter(const Tensor& input, const Tensor& weight, Span<const int64_t> stride,
                             Span<const int64_t> padding, Span<const int64_t> dilation, Window& w,
                             bool& cut) {
  TORCHETTE_TRY(check_floats("convolution", input, "input"));
  cut = weight.dim() == input.dim() + 1;
  TORCHETTE_CHECK(cut || weight.dim() == input.dim() + 2, InvalidArgument,
                  "convolution: packed weight has %d dimensions for an input of %d dimensions",
                  static_cast<int>(weight.dim()), static_cast<int>(input.dim()));
  return describe_window("convolution", input, weight.sizes().data() + (cut ? 1 : 2), stride, padding,
                         dilation, false, w);
}

// Returns the input channels of a group.
static size_t channels_of(const Tensor& weight) {
  const auto stored = static_cast<size_t>(weight.size(weight.dim() - 2));
  return weight.scalar_type() == ScalarType::Int ? 2 * stored : stored;
}

// Checks the operands and describes the GEMM of a group. `shape` is the shape of the result, [batch,
// *spatial, outputs], or with more channels if there is no residual.
static Error describe_product(const Tensor& weight, const Optional<Tensor>& bias,
                              const Optional<Tensor>& residual, const Window& w, Span<const SizesType> shape,
                              bool cut, int64_t outputs, Span<const char> activation, Tensor& out,
                              PackedProduct& product) {
  TORCHETTE_TRY(check_stored("convolution", weight, product.stored, "weight", true));
  const auto groups = static_cast<size_t>(weight.size(0));
  const size_t channels = channels_of(weight);
  TORCHETTE_CHECK(
      outputs >= 0 && outputs <= INT32_MAX && groups > 0 && static_cast<size_t>(outputs) % groups == 0 &&
          channels * groups == w.channels && !(cut && product.stored == Stored::pairs) &&
          (cut ? static_cast<size_t>(weight.size(weight.dim() - 1)) * groups == static_cast<size_t>(outputs)
               : weight.size(weight.dim() - 1) == ptrdiff_t{kPanelWidth} &&
                     static_cast<size_t>(weight.size(1)) == panels_of(static_cast<size_t>(outputs) / groups)),
      InvalidArgument,
      "convolution: a weight of %d groups, panels of %d and %d channels does not fit %d input and %d output "
      "channels",
      static_cast<int>(groups), static_cast<int>(weight.size(weight.dim() - 1)), static_cast<int>(channels),
      static_cast<int>(w.channels), static_cast<int>(outputs));
  const SizesType vector[] = {static_cast<SizesType>(outputs)};
  TORCHETTE_TRY(check_operand("convolution", bias, {vector, 1}, "bias"));
  TORCHETTE_TRY(check_operand("convolution", residual, shape, "residual"));
  TORCHETTE_TRY(activation_of(activation, product.activation));
  TORCHETTE_TRY(check_result("convolution", out, shape));

  product.n = static_cast<size_t>(outputs) / groups;
  product.cut = cut;
  product.k = w.taps() * channels;
  product.c_row = shape[shape.size() - 1];
  product.residual_row = static_cast<ptrdiff_t>(outputs);
  return Error::Ok;
}

// Whether windows inside the image, which has one row, are read in place: they are contiguous, or pieces for
// each tap. A GEMM with pieces has one block of inputs and no cut panels.
static bool reads_in_place(const Window& w, size_t groups, const PackedProduct& product) {
  for (int d = 0; d < 2; ++d)
    if (w.in[d] != 1 || w.out[d] != 1 || w.kernel[d] != 1 || w.padding[d] != 0) return false;
  if (groups != 1) return false;
  return w.dilation[2] == 1 ||
         (product.k <= kProductDepth && !product.cut && product.stored == Stored::float32);
}

// Fewer windows are gathered, because the ends of the row need separate GEMMs.
constexpr size_t kFewestInside = 32;

// Convolves windows that are gathered as rows of a matrix. `of_group` returns the GEMM of a group.
template <typename OfGroup>
static Error convolve_gathered(Context& context, const Tensor& input, const Window& w, size_t groups,
                               size_t channels, PackedProduct& product, const OfGroup& of_group) {
  const size_t pixels = w.out_pixels(), panels = panels_of(product.n);
  // Rows per block: limited by the scratch memory, and few enough that every worker has a block.
  size_t rows = kGathered / (product.k + 1);
  if (rows < kMinRows) rows = kMinRows;
  const size_t all = w.batch * pixels;
  if (rows > all) rows = all;
  const size_t share = (all + context.workers() - 1) / context.workers();
  if (rows > share && share > 0) rows = share;
  const size_t blocks = rows == 0 ? 0 : (all + rows - 1) / rows;
  product.m = rows;
  const size_t gathers = rows * product.k, of_worker = gathers + product.widened();
  float* const scratch =
      static_cast<float*>(context.allocate_temp((context.workers() * of_worker + kLanes) * sizeof(float)));
  TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed,
                  "convolution: no scratch memory for %d rows of %d", static_cast<int>(rows),
                  static_cast<int>(product.k));
  const float* const images = input.const_data_ptr<float>();
  const size_t image = w.in_pixels() * w.channels;
  const auto row_length = static_cast<ptrdiff_t>(product.k);
  // The pixels of the result with windows that are read in place.
  size_t inside_first = pixels, inside_last = pixels;
  const ptrdiff_t last_start = w.in[2] - 1 - (w.kernel[2] - 1) * w.dilation[2] + w.padding[2];
  if (reads_in_place(w, groups, product) && last_start >= 0) {
    inside_first = static_cast<size_t>((w.padding[2] + w.stride[2] - 1) / w.stride[2]);
    inside_last = static_cast<size_t>(last_start / w.stride[2] + 1);
    if (inside_last > pixels) inside_last = pixels;
    if (inside_first + kFewestInside > inside_last) inside_first = inside_last = pixels;
  }
  context.parallel_for(
      blocks * groups, min_items(rows * product.k * product.n), [&](size_t begin, size_t end, size_t worker) {
        float* const gathered = scratch + worker * of_worker;
        const auto multiply = [&](size_t group, size_t first, size_t count, const float* a, ptrdiff_t a_row) {
          PackedProduct part = of_group(group).rows(first, count);
          part.a = a;
          part.a_row = a_row;
          part.wide = gathered + gathers;
          if (a != gathered && w.dilation[2] != 1) {
            part.piece = channels;
            part.a_piece = w.dilation[2] * static_cast<ptrdiff_t>(channels);
          }
          packed_gemm(part, 0, panels);
        };
        for (size_t item = begin; item < end; ++item) {
          const size_t group = item / blocks, first = item % blocks * rows;
          const size_t count = all - first < rows ? all - first : rows;
          size_t held = 0;                  // gathered rows that are not multiplied
          for (size_t i = 0; i < count;) {  // a block may span several images
            const size_t of_image = (first + i) % pixels;
            size_t part = pixels - of_image < count - i ? pixels - of_image : count - i;
            const float* const from = images + (first + i) / pixels * image;
            if (of_image >= inside_first && of_image < inside_last) {
              if (held > 0) multiply(group, first + i - held, held, gathered, row_length);
              held = 0;
              if (part > inside_last - of_image) part = inside_last - of_image;
              multiply(group, first + i, part,
                       from + (static_cast<ptrdiff_t>(of_image) * w.stride[2] - w.padding[2]) *
                                  static_cast<ptrdiff_t>(channels),
                       w.stride[2] * static_cast<ptrdiff_t>(channels));
            } else {
              if (of_image < inside_first && part > inside_first - of_image) part = inside_first - of_image;
              gather_windows(w, from, group, channels, of_image, part, 0.0f, gathered + held * product.k);
              held += part;
            }
            i += part;
          }
          if (held > 0) multiply(group, first + count - held, held, gathered, row_length);
        }
      });
  return Error::Ok;
}

// Returns the number of floats in the padded rows of a single-channel image under a row of the result. It may
// exceed a 32-bit size_t.
static uint64_t strip_of(const Window& w) {
  const auto rows = static_cast<uint64_t>(w.kernel[0] * w.kernel[1]);
  return rows * static_cast<uint64_t>((w.out[2] - 1) * w.stride[2] + w.kernel[2]);
}

// Whether the windows need not be gathered: the image has one channel, a strip of it fits in the cache, and
// every thread has some rows of the result.
static bool has_strips(const Window& w, const PackedProduct& product, size_t workers) {
  const size_t rows = w.batch * static_cast<size_t>(w.out[0] * w.out[1]);
  return w.channels == 1 && w.dilation[2] == 1 && product.k <= kProductDepth && strip_of(w) <= kStrip &&
         (workers == 1 || rows >= 4 * workers);
}

// Copies the rows of an image that lie under row `row` of the result, with zeros outside of the image.
static void copy_strip(const Window& w, const float* image, ptrdiff_t row, float* to) {
  const ptrdiff_t width = (w.out[2] - 1) * w.stride[2] + w.kernel[2];
  const ptrdiff_t before = w.padding[2] < width ? w.padding[2] : width;
  const ptrdiff_t inside = w.in[2] < width - before ? w.in[2] : width - before;
  const ptrdiff_t z0 = row / w.out[1] * w.stride[0] - w.padding[0];
  const ptrdiff_t y0 = row % w.out[1] * w.stride[1] - w.padding[1];
  for (ptrdiff_t kz = 0; kz < w.kernel[0]; ++kz)
    for (ptrdiff_t ky = 0; ky < w.kernel[1]; ++ky, to += width) {
      const ptrdiff_t z = z0 + kz * w.dilation[0], y = y0 + ky * w.dilation[1];
      if (z < 0 || z >= w.in[0] || y < 0 || y >= w.in[1]) {
        fill_run(to, 0.0f, static_cast<size_t>(width));
        continue;
      }
      fill_run(to, 0.0f, static_cast<size_t>(before));
      copy_run(to + before, image + (z * w.in[1] + y) * w.in[2], static_cast<size_t>(inside));
      fill_run(to + before + inside, 0.0f, static_cast<size_t>(width - before - inside));
    }
}

// Copies float32 weights and pads the last panel to full width.
static void copy_full_panels(const PackedProduct& product, float* to) {
  const float* const from = static_cast<const float*>(product.w);
  const size_t columns = cut_columns(product.n), full = (panels_of(product.n) - 1) * product.k * kPanelWidth;
  memcpy(to, from, full * sizeof(float));
  for (size_t k = 0; k < product.k; ++k) {
    memcpy(to + full + k * kPanelWidth, from + full + k * columns, columns * sizeof(float));
    fill_run(to + full + k * kPanelWidth + columns, 0.0f, kPanelWidth - columns);
  }
}

// Convolves an image of one channel. The windows of a row of the result are the rows of a matrix; they
// overlap in the image and are read in place.
static Error convolve_strips(Context& context, const Tensor& input, const Window& w, PackedProduct product) {
  const size_t width = static_cast<size_t>(w.out[2]), rows = static_cast<size_t>(w.out[0] * w.out[1]);
  const size_t strip = static_cast<size_t>(strip_of(w)), panels = panels_of(product.n);
  product.m = width;
  const bool copied = product.cut && product.stored == Stored::float32;
  const size_t weights = copied ? panels * product.k * kPanelWidth : 0, widened = product.widened();
  const size_t floats = weights + context.workers() * (strip + widened);
  float* const scratch = static_cast<float*>(context.allocate_temp(floats * sizeof(float)));
  TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed, "convolution: no scratch memory for %d floats",
                  static_cast<int>(floats));
  if (copied) {
    copy_full_panels(product, scratch);
    product.w = scratch;
    product.cut = false;
  }
  product.a_row = w.stride[2];
  product.piece = static_cast<size_t>(w.kernel[2]);
  product.a_piece = (w.out[2] - 1) * w.stride[2] + w.kernel[2];
  const float* const images = input.const_data_ptr<float>();
  context.parallel_for(
      w.batch * rows, min_items(width * product.k * product.n), [&](size_t begin, size_t end, size_t worker) {
        float* const copy = scratch + weights + worker * (strip + widened);
        for (size_t row = begin; row < end; ++row) {
          copy_strip(w, images + row / rows * w.in_pixels(), static_cast<ptrdiff_t>(row % rows), copy);
          PackedProduct part = product.rows(row * width, width);
          part.a = copy;
          part.wide = copy + strip;
          packed_gemm(part, 0, panels);
        }
      });
  return Error::Ok;
}

// `first` is the channel of the result that contains the first output.
static Error convolve(Context& context, const Tensor& input, const Tensor& weight,
                      const Optional<Tensor>& bias, const Optional<Tensor>& residual, const Window& w,
                      Span<const SizesType> shape, bool cut, int64_t first, int64_t outputs,
                      Span<const char> activation, Tensor& out) {
  PackedProduct product = {};
  TORCHETTE_TRY(describe_product(weight, bias, residual, w, shape, cut, outputs, activation, out, product));
  const auto groups = static_cast<size_t>(weight.size(0));
  const size_t channels = channels_of(weight);
  const size_t pixels = w.out_pixels(), panels = panels_of(product.n);
  const size_t of_weight = product.k * (cut ? product.n : panels * kPanelWidth);
  const auto of_group = [&](size_t group) {
    PackedProduct part = product;
    const size_t column = group * product.n;
    part.w = static_cast<const char*>(weight.const_data_ptr()) + group * of_weight * size_of(product.stored);
    part.c = out.mutable_data_ptr<float>() + static_cast<size_t>(first) + column;
    part.bias = bias.has_value() ? bias->const_data_ptr<float>() + column : nullptr;
    part.residual = residual.has_value() ? residual->const_data_ptr<float>() + column : nullptr;
    return part;
  };
  if (w.is_pointwise()) {
    product.m = w.batch * pixels;
    TORCHETTE_TRY(allocate_wide(context, "convolution", product));
    for (size_t group = 0; group < groups; ++group) {
      PackedProduct part = of_group(group);
      part.a = input.const_data_ptr<float>() + group * channels;
      part.a_row = static_cast<ptrdiff_t>(w.channels);
      packed_gemm(context, part);
    }
    return Error::Ok;
  }
  if (groups == 1 && !cut && !(product.stored == Stored::pairs && multiplies_pairs()) &&
      winograd_pays(w, product.n) &&
      convolve_by_winograd(context, w, input.const_data_ptr<float>(), of_group(0)))
    return Error::Ok;
  if (has_strips(w, product, context.workers())) return convolve_strips(context, input, w, of_group(0));
  return convolve_gathered(context, input, w, groups, channels, product, of_group);
}

static Error convolution_out(Context& context, const Tensor& input, const Tensor& weight,
                             const Optional<Tensor>& bias, const Optional<Tensor>& residual,
                             Span<const int64_t> stride, Span<const int64_t> padding,
                             Span<const int64_t> dilation, int64_t outputs, Span<const char> activation,
                             Tensor& out) {
  Window w;
  bool cut;
  TORCHETTE_TRY(describe_filter(input, weight, stride, padding, dilation, w, cut));
  SizesType sizes[5];
  return convolve(context, input, weight, bias, residual, w,
                  result_sizes(w, static_cast<size_t>(outputs), sizes), cut, 0, outputs, activation, out);
}

static Error convolution_into_out(Context& context, const Optional<Tensor>& into, const Tensor& input,
                                  const Tensor& weight, const Optional<Tensor>& bias,
                                  Span<const int64_t> stride, Span<const int64_t> padding,
                                  Span<const int64_t> dilation, int64_t outputs, Span<const char> activation,
                                  int64_t first, int64_t channels, Tensor& out) {
  Window w;
  bool cut;
  TORCHETTE_TRY(describe_filter(input, weight, stride, padding, dilation, w, cut));
  SizesType sizes[5];
  const Span<const SizesType> shape = result_sizes(w, static_cast<size_t>(channels), sizes);
  TORCHETTE_TRY(prepare_part("convolution", into, shape, first, outputs, out));
  return convolve(context, input, weight, bias, {}, w, shape, cut, first, outputs, activation, out);
}

// Treats the channels as another dimension of a single-channel image, which the window covers without moving.
static Error planar_convolution_out(Context& context, const Tensor& input, const Tensor& weight,
                                    const Optional<Tensor>& bias, const Optional<Tensor>& residual,
                                    Span<const int64_t> stride, Span<const int64_t> padding,
                                    Span<const int64_t> dilation, int64_t outputs,
                                    Span<const char> activation, Tensor& out) {
  TORCHETTE_TRY(check_floats("convolution", input, "input"));
  const auto dims = static_cast<size_t>(input.dim()), spatial = dims - 2;
  TORCHETTE_CHECK((dims == 3 || dims == 4) && stride.size() == spatial && padding.size() == spatial &&
                      dilation.size() == spatial,
                  InvalidArgument,
                  "convolution: input has %d dimensions; stride, padding, dilation have %d, %d, %d elements",
                  static_cast<int>(dims), static_cast<int>(stride.size()), static_cast<int>(padding.size()),
                  static_cast<int>(dilation.size()));
  SizesType sizes[5];
  StridesType strides[5];
  constexpr DimOrderType kOrder[] = {0, 1, 2, 3, 4};
  int64_t steps[3] = {1}, zeros[3] = {0}, taps[3] = {1};
  for (size_t d = 0; d < dims; ++d) {
    sizes[d] = input.sizes()[d];
    strides[d] = input.strides()[d];
  }
  sizes[dims] = strides[dims] = 1;
  for (size_t d = 0; d < spatial; ++d) {
    steps[d + 1] = stride[d];
    zeros[d + 1] = padding[d];
    taps[d + 1] = dilation[d];
  }
  TensorImpl* const given = input.unsafe_impl();
  TensorImpl impl = {given->data,
                     sizes,
                     strides,
                     kOrder,
                     given->capacity,
                     given->numel,
                     static_cast<uint8_t>(dims + 1),
                     given->type,
                     given->dynamism};
  const Tensor image(&impl);
  Window w;
  bool cut;
  TORCHETTE_TRY(describe_filter(image, weight, {steps, spatial + 1}, {zeros, spatial + 1},
                                {taps, spatial + 1}, w, cut));
  const size_t depth = 2 - spatial;
  TORCHETTE_CHECK(w.kernel[depth] == w.in[depth], InvalidArgument,
                  "convolution: a weight of %d channels does not fit %d input channels",
                  static_cast<int>(w.kernel[depth]), static_cast<int>(w.in[depth]));
  SizesType of_result[4] = {input.sizes()[0]};
  for (size_t d = 0; d < spatial; ++d) of_result[d + 1] = static_cast<SizesType>(w.out[depth + 1 + d]);
  of_result[spatial + 1] = static_cast<SizesType>(outputs);
  return convolve(context, image, weight, bias, residual, w, {of_result, dims}, cut, 0, outputs, activation,
                  out);
}

TORCHETTE_KERNELS(convolution, TORCHETTE_KERNEL("cpu::convolution.out", convolution_out),
                  TORCHETTE_KERNEL("cpu::convolution_into.out", convolution_into_out),
                  TORCHETTE_KERNEL("cpu::planar_convolution.out", planar_convolution_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
