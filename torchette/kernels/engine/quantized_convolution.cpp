// SPDX-License-Identifier: BSD-3-Clause
// cpu::quantized_convolution, cpu::quantized_depthwise: torchette/backends/engine/operators/quantized.py.
// A GEMM of the windows with the packed filter. The windows are read from padded lines of the image, or
// gathered as rows.
#include "torchette/kernels/engine/column_depthwise.h"
#include "torchette/kernels/engine/depthwise_row.h"
#include "torchette/kernels/engine/gather.h"
#include "torchette/kernels/engine/quantized.h"

#if defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Bytes of rows that are gathered at a time, and the minimum number of rows.
constexpr size_t kGathered = kLanes >= 8 ? size_t{1} << 18 : size_t{1} << 13;
constexpr size_t kMinRows = kLanes >= 8 ? 64 : 8;
// Bytes of padded lines at a time: with the weights of a tile, less than the second-level cache.
constexpr size_t kLineBytes = kLanes >= 8 ? size_t{1} << 16 : size_t{1} << 14;

Error read_filter(const char* op, const Tensor& input, const Tensor& weight, int64_t input_zero,
                  Span<const int64_t> kernel, Span<const int64_t> stride, Span<const int64_t> padding,
                  Span<const int64_t> dilation, Window& w) {
  TORCHETTE_TRY(check_bytes(op, input, "input"));
  TORCHETTE_TRY(check_bytes(op, weight, "weight"));
  TORCHETTE_CHECK(weight.scalar_type() == ScalarType::Char, InvalidType,
                  "%s: weight is of type %d, expected int8", op, static_cast<int>(weight.scalar_type()));
  TORCHETTE_TRY(check_input_zero(op, input, input_zero));
  SizesType window[3];
  TORCHETTE_CHECK(kernel.size() <= 3 && static_cast<ptrdiff_t>(kernel.size()) == input.dim() - 2,
                  InvalidArgument, "%s: kernel has %d elements for an input of %d dimensions", op,
                  static_cast<int>(kernel.size()), static_cast<int>(input.dim()));
  for (size_t d = 0; d < kernel.size(); ++d) {
    TORCHETTE_CHECK(kernel[d] >= 1 && kernel[d] <= INT32_MAX, InvalidArgument,
                    "%s: kernel size %lld is out of range", op, static_cast<long long>(kernel[d]));
    window[d] = static_cast<SizesType>(kernel[d]);
  }
  return describe_window(op, input, window, stride, padding, dilation, false, w);
}

}  // namespace

/// Returns the GEMM of a group. The product has the sizes of a group, and the addresses of the first.
static IntegerProduct of_group(const IntegerProduct& product, size_t group) {
  const size_t width = panels_of(product.n) * kPanelWidth;
  IntegerProduct part = product;
  part.w += group * width * quads_of(product.k) * kQuad;
  part.c += group * product.n;
  if (part.sum != nullptr) part.residual += group * product.n;
  part.how = part.how.from(group * 3 * width);
  return part;
}

// Convolves windows that are gathered as rows of a matrix.
static Error convolve_gathered(Context& context, const char* name, const Tensor& input, const Window& w,
                               size_t groups, const IntegerProduct& product) {
  const size_t channels = w.channels / groups, k = w.taps() * channels, padded = quads_of(k) * kQuad;
  const size_t panels = panels_of(product.n), pixels = w.out_pixels(), all = w.batch * pixels;
  const auto* const images = static_cast<const uint8_t*>(input.const_data_ptr());
  // Rows per block: as many as the scratch memory holds, but few enough that every worker has a block.
  size_t rows = kGathered / (padded + 1);
  if (rows < kMinRows) rows = kMinRows;
  if (rows > all) rows = all;
  const size_t share = (all + context.workers() - 1) / context.workers();
  if (rows > share && share > 0) rows = share;
  const size_t blocks = rows == 0 ? 0 : (all + rows - 1) / rows;
  const size_t gathered = rows * padded, each = gathered + integer_scratch(rows, padded);
  auto* const scratch = static_cast<uint8_t*>(context.allocate_temp(context.workers() * each));
  TORCHETTE_CHECK(scratch != nullptr || each == 0, MemoryAllocationFailed,
                  "%s: no scratch memory for %d rows of %d", name, static_cast<int>(rows),
                  static_cast<int>(padded));
  const size_t image = w.in_pixels() * w.channels;
  context.parallel_for(
      blocks * groups, min_items(rows * padded * product.n), [&](size_t begin, size_t end, size_t worker) {
        uint8_t* const own = scratch + worker * each;
        for (size_t item = begin; item < end; ++item) {
          const size_t group = item / blocks, first = item % blocks * rows;
          const size_t count = all - first < rows ? all - first : rows;
          for (size_t i = 0; i < count;) {  // a block may span several images
            const size_t of_image = (first + i) % pixels;
            const size_t part = pixels - of_image < count - i ? pixels - of_image : count - i;
            gather_windows(w, images + (first + i) / pixels * image, group, channels, of_image, part,
                           static_cast<uint8_t>(product.input_zero), own + i * padded, padded - k);
            i += part;
          }
          for (size_t i = 0; k < padded && i < count; ++i) memset(own + i * padded + k, 0, padded - k);
          IntegerProduct part = of_group(product, group).rows(first, count);
          part.k = padded;
          part.a = own;
          part.a_row = static_cast<ptrdiff_t>(padded);
          integer_gemm(part, 0, panels, own + gathered);
        }
      });
  return Error::Ok;
}

#if TORCHETTE_CONVOLVES_LINES
/// Pads the weights of each run of a window to quads. The panels have `runs` runs of `run` inputs.
static void pad_runs(const int8_t* w, size_t panels, size_t runs, size_t run, int8_t* to) {
  constexpr size_t kRow = kPanelWidth * kQuad;
  const size_t quads = quads_of(run), row = quads_of(runs * run) * kRow;
  memset(to, 0, panels * runs * quads * kRow);
  for (size_t p = 0; p < panels; ++p, w += row)
    for (size_t i = 0; i < runs * run; ++i) {
      const int8_t* const from = w + i / kQuad * kRow + i % kQuad;
      int8_t* const at = to + ((p * runs + i / run) * quads + i % run / kQuad) * kRow + i % run % kQuad;
      for (size_t output = 0; output < kRow; output += kQuad) at[output] = from[output];
    }
}

// Convolves windows that are read from padded lines of the image. A thread computes a block of lines, or the
// panels of a share of the outputs if there are few blocks.
static Error convolve_by_lines(Context& context, const char* name, const Tensor& input, const Window& w,
                               size_t groups, IntegerProduct product) {
  ConvolvedLines all = {&w, nullptr, 0, w.channels / groups, 0, static_cast<size_t>(w.out[1])};
  const size_t panels = panels_of(product.n), width = static_cast<size_t>(w.out[2]);
  size_t blocks = (all.lines() * all.line() + kLineBytes - 1) / kLineBytes;
  // Few blocks would be an unequal share, or each thread would copy all lines. A block copies some lines of
  // its neighbours.
  const size_t fair = 2 * context.workers(), extra = static_cast<size_t>((w.kernel[1] - 1) * w.dilation[1]);
  if (context.workers() > 1 && blocks < fair && all.count >= 3 * extra * fair) blocks = fair;
  if (blocks > all.count) blocks = all.count;
  const size_t lines = (all.count + blocks - 1) / blocks;
  blocks = (all.count + lines - 1) / lines;
  const size_t images = w.batch * groups * blocks;
  const size_t shares = images >= 2 * context.workers() ? 1
                        : context.workers() < panels    ? context.workers()
                                                        : panels;
  all.count = lines;
  const size_t each = 2 * (all.lines() * all.line() + kQuad);
  auto* const scratch = static_cast<uint8_t*>(context.allocate_temp(context.workers() * each));
  TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %d lines of %d",
                  name, static_cast<int>(all.lines()), static_cast<int>(all.line()));
  const size_t run = ConvolvedLines::run(w, all.channels), runs = product.k / run;
  if (run % kQuad != 0) {
    const size_t quads = runs * quads_of(run), bytes = groups * panels * quads * kPanelWidth * kQuad;
    auto* const filters = static_cast<int8_t*>(context.allocate_temp(bytes));
    TORCHETTE_CHECK(filters != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %d weights", name,
                    static_cast<int>(bytes));
    pad_runs(product.w, groups * panels, runs, run, filters);
    product.w = filters;
    product.k = quads * kQuad;
  }
  const size_t image = w.in_pixels() * w.channels, work = lines * width * product.k * product.n / shares;
  context.parallel_for(images * shares, min_items(work), [&](size_t begin, size_t end, size_t worker) {
    for (size_t item = begin; item < end; ++item) {
      const size_t share = item % shares, block = item / shares % blocks;
      const size_t group = item / shares / blocks % groups, of_batch = item / shares / blocks / groups;
      ConvolvedLines some = all;
      some.image = static_cast<const uint8_t*>(input.const_data_ptr()) + of_batch * image;
      some.channel = group * all.channels;
      some.first = block * lines;
      const size_t left = static_cast<size_t>(w.out[1]) - some.first;
      if (left < lines) some.count = left;
      const IntegerProduct part =
          of_group(product, group).rows(of_batch * w.out_pixels() + some.first * width, some.count * width);
      convolve_lines(part, some, panels * share / shares, panels * (share + 1) / shares,
                     scratch + worker * each);
    }
  });
  return Error::Ok;
}

#endif

namespace {

/// The operands of a convolution, with the zero point and the bounds of its own result.
struct Convolution {
  const char* name;
  const Tensor &input, &weight, &terms;
  int64_t input_zero;
  Span<const int64_t> kernel, stride, padding, dilation;
  int64_t outputs, zero, low, high;
};

/// Checks the operands and the result. Returns the product of the first group.
Error describe(const Convolution& c, const QuantizedSum* sum, const Tensor* residual, Tensor& out, Window& w,
               size_t& groups, IntegerProduct& product) {
  TORCHETTE_TRY(
      read_filter(c.name, c.input, c.weight, c.input_zero, c.kernel, c.stride, c.padding, c.dilation, w));
  const Tensor& weight = c.weight;
  TORCHETTE_CHECK(weight.dim() == 5 && weight.size(0) > 0 && c.outputs >= 0 && c.outputs <= INT32_MAX,
                  InvalidArgument, "%s: weight has %d dimensions for %lld outputs, expected 5", c.name,
                  static_cast<int>(weight.dim()), static_cast<long long>(c.outputs));
  const auto outputs = static_cast<size_t>(c.outputs);
  groups = static_cast<size_t>(weight.size(0));
  const size_t channels = w.channels / groups, k = w.taps() * channels;
  product.n = outputs / groups;
  TORCHETTE_CHECK(
      channels * groups == w.channels && product.n * groups == outputs &&
          static_cast<size_t>(weight.size(1)) == panels_of(product.n) &&
          static_cast<size_t>(weight.size(2)) == quads_of(k) && weight.size(3) == ptrdiff_t{kPanelWidth} &&
          weight.size(4) == ptrdiff_t{kQuad},
      InvalidArgument,
      "%s: a weight of %d groups and %d elements does not fit %d taps, %d channels and %d outputs", c.name,
      static_cast<int>(groups), static_cast<int>(weight.numel()), static_cast<int>(w.taps()),
      static_cast<int>(w.channels), static_cast<int>(outputs));
  SizesType dims[5];
  const Span<const SizesType> sizes = result_sizes(w, outputs, dims);
  const ScalarType type = c.input.scalar_type();
  if (sum != nullptr) {
    TORCHETTE_TRY(check_quantized(c.name, out, sizes, sum->zero, sum->low, sum->high));
    TORCHETTE_TRY(check_range(c.name, type, c.zero, c.low, c.high));
    TORCHETTE_TRY(check_bytes(c.name, *residual, "residual"));
    TORCHETTE_CHECK(
        residual->scalar_type() == type && has_sizes(*residual, sizes), InvalidArgument,
        "%s: residual of type %d with %d elements does not fit the type or the sizes of the result", c.name,
        static_cast<int>(residual->scalar_type()), static_cast<int>(residual->numel()));
    product.sum = sum;
    product.residual = static_cast<const uint8_t*>(residual->const_data_ptr());
  } else {
    TORCHETTE_TRY(check_quantized(c.name, out, sizes, c.zero, c.low, c.high));
  }
  TORCHETTE_TRY(read_terms(c.name, c.terms, groups, product.n, c.zero, c.low, c.high, product.how));
  product.c_row = static_cast<ptrdiff_t>(outputs);
  product.is_signed = type == ScalarType::Char;
  product.input_zero = static_cast<int32_t>(c.input_zero);
  product.w = weight.const_data_ptr<int8_t>();
  product.c = static_cast<uint8_t*>(out.mutable_data_ptr());
  product.k = k;
  return Error::Ok;
}

/// Convolves and adds the residual if there is a sum.
Error convolve(Context& context, const Convolution& c, const QuantizedSum* sum, const Tensor* residual,
               Tensor& out) {
  Window w;
  size_t groups = 0;
  IntegerProduct product = {};
  TORCHETTE_TRY(describe(c, sum, residual, out, w, groups, product));
  if (w.is_pointwise()) {
    const auto* const images = static_cast<const uint8_t*>(c.input.const_data_ptr());
    for (size_t group = 0; group < groups; ++group) {
      IntegerProduct part = of_group(product, group);
      part.m = w.batch * w.out_pixels();
      part.a = images + group * product.k;
      part.a_row = static_cast<ptrdiff_t>(w.channels);
      TORCHETTE_TRY(integer_gemm(context, c.name, part));
    }
    return Error::Ok;
  }
#if TORCHETTE_CONVOLVES_LINES
  if (convolves_lines() && ConvolvedLines::fits(w) && w.batch * w.out_pixels() * product.k > 0)
    return convolve_by_lines(context, c.name, c.input, w, groups, product);
#endif
  return convolve_gathered(context, c.name, c.input, w, groups, product);
}

}  // namespace

static Error quantized_convolution_out(Context& context, const Tensor& input, const Tensor& weight,
                                       const Tensor& terms, int64_t input_zero, Span<const int64_t> kernel,
                                       Span<const int64_t> stride, Span<const int64_t> padding,
                                       Span<const int64_t> dilation, int64_t outputs, int64_t zero,
                                       int64_t low, int64_t high, Tensor& out) {
  return convolve(context,
                  {"quantized_convolution", input, weight, terms, input_zero, kernel, stride, padding,
                   dilation, outputs, zero, low, high},
                  nullptr, nullptr, out);
}

static Error quantized_convolution_add_out(Context& context, const Tensor& input, const Tensor& weight,
                                           const Tensor& terms, const Tensor& residual, int64_t input_zero,
                                           Span<const int64_t> kernel, Span<const int64_t> stride,
                                           Span<const int64_t> padding, Span<const int64_t> dilation,
                                           int64_t outputs, double term_scale, int64_t term_zero,
                                           int64_t term_low, int64_t term_high, double residual_scale,
                                           int64_t residual_zero, double scale, int64_t zero, int64_t low,
                                           int64_t high, Tensor& out) {
  constexpr const char* kName = "quantized_convolution_add";
  const ScalarType type = input.scalar_type();
  TORCHETTE_CHECK(in_range(type, residual_zero, residual_zero) && scale > 0, InvalidArgument,
                  "%s: residual_zero %lld or scale %g is out of range", kName,
                  static_cast<long long>(residual_zero), scale);
  const QuantizedSum sum(type == ScalarType::Char, term_scale, term_zero, residual_scale, residual_zero,
                         scale, zero, low, high);
  return convolve(context,
                  {kName, input, weight, terms, input_zero, kernel, stride, padding, dilation, outputs,
                   term_zero, term_low, term_high},
                  &sum, &residual, out);
}

namespace {

#if TORCHETTE_HAS_RVV  // depthwise_row.h
#elif !TORCHETTE_INTEGER_SUMS
// Number of pixels of a row with accumulators in registers at the same time.
constexpr int kNeighbours = kVectorRegisters >= 32 ? 8 : kVectorRegisters >= 16 ? 4 : 2;

// Accumulators contain the sum of (x - zero) w over the pixels x of a window: the sum of x w, minus the term
// that `Requantization::sums` determines. They are integers below 2^24, which float represents exactly.

template <bool kFull>
TORCHETTE_INLINE Vec get(const DepthwiseRow& row, const uint8_t* pixel, size_t v) {
  return kFull ? floats_of(pixel + v, row.flip) : floats_of(pixel + v, row.flip, row.channels - v);
}

/// Computes the adjacent pixels x to x + kCount for a vector of channels, tap by tap. kInside states that all
/// taps lie inside the line.
template <int kCount, bool kFull, bool kInside>
void depthwise_taps(const DepthwiseRow& row, ptrdiff_t x, size_t v, Vec* sums) {
  const Window& w = *row.window;
  const ptrdiff_t first = x * w.stride[2] - w.padding[2], c = static_cast<ptrdiff_t>(w.channels);
  for_lines(row, [&](const uint8_t* line, const float* filter) TORCHETTE_INLINED {
    for (ptrdiff_t kx = 0; kx < w.kernel[2]; ++kx) {
      const Vec weight = load(filter + kx * static_cast<ptrdiff_t>(kPanelWidth) + v);
      const ptrdiff_t tap = first + kx * w.dilation[2];
      const uint8_t* const from = line != nullptr ? line + tap * c : row.outside;
      const ptrdiff_t step = line != nullptr ? w.stride[2] * c : 0;
      TORCHETTE_UNROLL(8)
      for (int i = 0; i < kCount; ++i) {
        const ptrdiff_t at = tap + i * w.stride[2];
        const bool inside = kInside || line == nullptr || (at >= 0 && at < w.in[2]);
        sums[i] = fma(get<kFull>(row, inside ? from + i * step : row.outside, v), weight, sums[i]);
      }
    }
  });
}
template <int kCount, bool kFull>
TORCHETTE_INLINE void depthwise_taps(const DepthwiseRow& row, ptrdiff_t x, size_t v, Vec* sums) {
  const Window& w = *row.window;
  const ptrdiff_t first = x * w.stride[2] - w.padding[2];
  const ptrdiff_t last = first + (kCount - 1) * w.stride[2] + (w.kernel[2] - 1) * w.dilation[2];
  if (kCount > 1 && first >= 0 && last < w.in[2])
    depthwise_taps<kCount, kFull, true>(row, x, v, sums);
  else
    depthwise_taps<kCount, kFull, false>(row, x, v, sums);
}

/// depthwise_taps() for stride 1 and kernels of width kTaps: each pixel is read once for all windows. kInside
/// states that all taps lie inside the line.
template <int kTaps, int kCount, bool kFull, bool kInside>
void depthwise_slide(const DepthwiseRow& row, ptrdiff_t x, size_t v, Vec* sums) {
  const Window& w = *row.window;
  const ptrdiff_t first = x - w.padding[2], c = static_cast<ptrdiff_t>(w.channels);
  for_lines(row, [&](const uint8_t* line, const float* filter) TORCHETTE_INLINED {
    Vec weights[kTaps];
    TORCHETTE_UNROLL(8)
    for (int t = 0; t < kTaps; ++t) weights[t] = load(filter + static_cast<size_t>(t) * kPanelWidth + v);
    const uint8_t* const from = line != nullptr ? line + first * c : row.outside;
    const ptrdiff_t step = line != nullptr ? c : 0;
    TORCHETTE_UNROLL(16)
    for (int j = 0; j < kCount + kTaps - 1; ++j) {
      const bool inside = kInside || line == nullptr || (first + j >= 0 && first + j < w.in[2]);
      const Vec pixel = get<kFull>(row, inside ? from + j * step : row.outside, v);
      TORCHETTE_UNROLL(8)
      for (int t = 0; t < kTaps; ++t)
        if (j >= t && j - t < kCount) sums[j - t] = fma(pixel, weights[t], sums[j - t]);
    }
  });
}

template <int kTaps, int kCount, bool kFull>
TORCHETTE_INLINE void depthwise_slide(const DepthwiseRow& row, ptrdiff_t x, size_t v, Vec* sums) {
  const ptrdiff_t first = x - row.window->padding[2];
  if (first >= 0 && first + kCount + kTaps - 1 <= row.window->in[2])
    depthwise_slide<kTaps, kCount, kFull, true>(row, x, v, sums);
  else
    depthwise_slide<kTaps, kCount, kFull, false>(row, x, v, sums);
}

template <int kCount, bool kFull>
void depthwise_pixels(const DepthwiseRow& row, ptrdiff_t x, float zero) {
  const Window& w = *row.window;
  const bool slides = kCount > 1 && w.stride[2] == 1 && w.dilation[2] == 1;
  for (size_t v = 0; v < row.channels; v += kLanes) {
    Vec sums[kCount] = {};
    if (slides && w.kernel[2] == 3)
      depthwise_slide<3, kCount, kFull>(row, x, v, sums);
    else if (slides && w.kernel[2] == 5)
      depthwise_slide<5, kCount, kFull>(row, x, v, sums);
    else
      depthwise_taps<kCount, kFull>(row, x, v, sums);
    const RequantizedVector terms(*row.how, row.channel + v);
    const ToBytes bytes(row.how->zero, row.how->low, row.how->high);
    const Vec of_weights = load(row.how->sums + row.channel + v);
    TORCHETTE_UNROLL(8)
    for (int i = 0; i < kCount; ++i) {
      const Vec scaled[1] = {terms.scale(fma(of_weights, broadcast(-zero), sums[i]))};
      bytes.put(scaled, row.channels - v, row.out + (x + i) * static_cast<ptrdiff_t>(w.channels) + v);
    }
  }
}

/// The last block of a row overlaps the previous block, which costs less than computing single pixels.
template <int kCount, bool kFull>
void depthwise_blocks(const DepthwiseRow& row, float zero) {
  const ptrdiff_t pixels = row.window->out[2];
  if constexpr (kCount > 1)
    if (pixels < kCount) return depthwise_blocks<kCount == 8 ? 4 : 1, kFull>(row, zero);
  for (ptrdiff_t x = 0; x < pixels; x += kCount)
    depthwise_pixels<kCount, kFull>(row, x + kCount <= pixels ? x : pixels - kCount, zero);
}
template <bool kFull>
void depthwise_row(const DepthwiseRow& row, float zero) {
  depthwise_blocks<kFull ? kNeighbours : 1, kFull>(row, zero);
}

void widen(const int8_t* bytes, size_t count, float* to) {
  for (size_t i = 0; i < count; i += kLanes)
    store(to + i, floats_of(reinterpret_cast<const uint8_t*>(bytes) + i, 0));
}
#else
#if TORCHETTE_HAS_VECTORS
/// Multiplies `count` pixels, `step` bytes apart, by their weights and accumulates per channel of a panel.
template <bool kFull>
TORCHETTE_NOINLINE void add_taps(const uint8_t* pixel, ptrdiff_t step, const int8_t* weights, size_t count,
                                 int32_t flip, size_t channels, int32_t* sums) {
#if TORCHETTE_HAS_HELIUM
  // Lane i of vector j is channel 4 i + j. The multiplications separate even and odd bytes, and so does
  // widening.
  int32x4x4_t four = vld4q_s32(sums);
  const mve_pred16_t there = vctp8q(channels);
  do {
    const uint8x16_t bytes = kFull ? vld1q_u8(pixel) : vldrbq_z_u8(pixel, there);
    const int8x16_t x = veorq_s8(vreinterpretq_s8_u8(bytes), vdupq_n_s8(static_cast<int8_t>(flip)));
    const int8x16_t w = vld1q_s8(weights);
    const int16x8_t even = vmullbq_int_s8(x, w), odd = vmulltq_int_s8(x, w);
    four.val[0] = vaddq_s32(four.val[0], vmovlbq_s16(even));
    four.val[1] = vaddq_s32(four.val[1], vmovlbq_s16(odd));
    four.val[2] = vaddq_s32(four.val[2], vmovltq_s16(even));
    four.val[3] = vaddq_s32(four.val[3], vmovltq_s16(odd));
    pixel += step;
    weights += kPanelWidth;
  } while (--count > 0);
  vst4q_s32(sums, four);
#elif defined(__wasm_simd128__)
  v128_t four[4];
  memcpy(four, sums, sizeof(four));
  do {
    uint8_t some[kPanelWidth] = {};
    if (!kFull) copy_run(some, pixel, channels);
    const v128_t x = wasm_v128_xor(wasm_v128_load(kFull ? pixel : some), wasm_i32x4_splat(flip));
    const v128_t w = wasm_v128_load(weights);
    const v128_t low = wasm_i16x8_extmul_low_i8x16(x, w), high = wasm_i16x8_extmul_high_i8x16(x, w);
    four[0] = wasm_i32x4_add(four[0], wasm_i32x4_extend_low_i16x8(low));
    four[1] = wasm_i32x4_add(four[1], wasm_i32x4_extend_high_i16x8(low));
    four[2] = wasm_i32x4_add(four[2], wasm_i32x4_extend_low_i16x8(high));
    four[3] = wasm_i32x4_add(four[3], wasm_i32x4_extend_high_i16x8(high));
    pixel += step;
    weights += kPanelWidth;
  } while (--count > 0);
  memcpy(sums, four, sizeof(four));
#else
  int32x4_t a = vld1q_s32(sums), b = vld1q_s32(sums + 4), c = vld1q_s32(sums + 8), d = vld1q_s32(sums + 12);
  do {
    uint8_t some[kPanelWidth] = {};
    if (!kFull) copy_run(some, pixel, channels);
    const uint8x16_t bytes = vld1q_u8(kFull ? pixel : some);
    const int8x16_t x = veorq_s8(vreinterpretq_s8_u8(bytes), vdupq_n_s8(static_cast<int8_t>(flip)));
    const int8x16_t w = vld1q_s8(weights);
    const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(w));
    const int16x8_t high = vmull_s8(vget_high_s8(x), vget_high_s8(w));
    a = vaddw_s16(a, vget_low_s16(low));
    b = vaddw_s16(b, vget_high_s16(low));
    c = vaddw_s16(c, vget_low_s16(high));
    d = vaddw_s16(d, vget_high_s16(high));
    pixel += step;
    weights += kPanelWidth;
  } while (--count > 0);
  vst1q_s32(sums, a);
  vst1q_s32(sums + 4, b);
  vst1q_s32(sums + 8, c);
  vst1q_s32(sums + 12, d);
#endif
}

void widen(const int8_t* bytes, size_t count, int8_t* to) { memcpy(to, bytes, count); }
#else
// Processes the bytes of four channels at a time. Of four weights, the even ones precede the odd ones, the
// order in which SXTB16 unpacks the pixel.

/// Multiplies `count` pixels, `step` bytes apart, by their weights and accumulates per channel of a panel.
template <bool kFull>
TORCHETTE_NOINLINE void add_taps(const uint8_t* pixels, ptrdiff_t step, const int16_t* filter, size_t count,
                                 int32_t flip, size_t channels, int32_t* sums) {
  for (size_t v = 0; v < channels; v += 4, sums += 4) {
    const uint8_t* pixel = pixels + v;
    const int16_t* weights = filter + v;
    int32_t a = sums[0], b = sums[1], c = sums[2], d = sums[3];
    size_t left = count;
    do {
      int32_t bytes = 0;
      if (kFull || channels - v >= 4)
        memcpy(&bytes, pixel, sizeof(bytes));
      else
        memcpy(&bytes, pixel, channels - v);
      bytes ^= flip;
      pixel += step;
#if defined(__ARM_FEATURE_DSP)
      int32_t odd, pair;
      asm("sxtb16 %[odd], %[bytes], ror #8\n\t"
          "sxtb16 %[bytes], %[bytes]\n\t"
          "ldr %[pair], [%[weights]], #4\n\t"
          "smlabb %[a], %[bytes], %[pair], %[a]\n\t"
          "smlatt %[c], %[bytes], %[pair], %[c]\n\t"
          "ldr %[pair], [%[weights]], #28\n\t"
          "smlabb %[b], %[odd], %[pair], %[b]\n\t"
          "smlatt %[d], %[odd], %[pair], %[d]"
          : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [d] "+r"(d), [bytes] "+r"(bytes), [odd] "=&r"(odd),
            [pair] "=&r"(pair), [weights] "+r"(weights)
          :
          : "memory");
      static_assert(kPanelWidth * sizeof(int16_t) == 4 + 28);
#else
      a += static_cast<int8_t>(bytes) * weights[0];
      b += static_cast<int8_t>(bytes >> 8) * weights[2];
      c += static_cast<int8_t>(bytes >> 16) * weights[1];
      d += static_cast<int8_t>(bytes >> 24) * weights[3];
      weights += kPanelWidth;
#endif
    } while (--left > 0);
    sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d;
  }
}

void widen(const int8_t* bytes, size_t count, int16_t* to) {
  for (size_t i = 0; i < count; ++i) to[(i & ~size_t{3}) + i % 2 * 2 + i % 4 / 2] = bytes[i];
}
#endif

template <bool kFull>
void depthwise_row(const DepthwiseRow& row, float zero) {
  const Window& w = *row.window;
  const int32_t flip = row.flip != 0 ? static_cast<int32_t>(0x80808080u) : 0;
  int32_t zero_term[kPanelWidth], sums[kPanelWidth];
#if TORCHETTE_HAS_VECTORS
  for (size_t c = 0; c < kPanelWidth; c += kLanes)
    store(zero_term + c, weight_sums(row.how->sums + row.channel + c) * -static_cast<int32_t>(zero));
#else
  for (size_t c = 0; c < kPanelWidth; ++c)
    zero_term[c] = weight_sums(row.how->sums + row.channel + c) * -static_cast<int32_t>(zero);
#endif
  const auto add = [&](const uint8_t* pixel, ptrdiff_t step, const TapWeight* weights, ptrdiff_t count) {
    if (count > 0)
      add_taps<kFull>(pixel, step, weights, static_cast<size_t>(count), flip, row.channels, sums);
  };
  const ptrdiff_t taps = w.kernel[2], step = w.dilation[2] * static_cast<ptrdiff_t>(w.channels);
  uint8_t* to = row.out;
  for (ptrdiff_t x = 0, at = -w.padding[2]; x < w.out[2]; ++x, at += w.stride[2], to += w.channels) {
    memcpy(sums, zero_term, sizeof(sums));
    // Taps [first, end) are inside of the image.
    ptrdiff_t first = 0, end = taps;
    while (first < taps && at + first * w.dilation[2] < 0) ++first;
    while (end > first && at + (end - 1) * w.dilation[2] >= w.in[2]) --end;
    for_lines(row, [&](const uint8_t* line, const TapWeight* weights) TORCHETTE_INLINED {
      const ptrdiff_t begin = line != nullptr ? first : taps, after = line != nullptr ? end : taps;
      constexpr auto kRow = static_cast<ptrdiff_t>(kPanelWidth);
      add(row.outside, 0, weights, begin);
      if (begin < after)
        add(row.pixel(line, at + begin * w.dilation[2]), step, weights + begin * kRow, after - begin);
      add(row.outside, 0, weights + after * kRow, taps - after);
    });
    requantize(row.how->from(row.channel), 0, sums, row.channels, to);
  }
}

#endif

#if TORCHETTE_HAS_COLUMNS
/// Computes the convolution with dot products of columns.
Error convolve_columns(Context& context, const char* name, const Tensor& input, const Tensor& weight,
                       const Window& w, const Requantization& how, int64_t input_zero, Tensor& out) {
  typedef ColumnDepthwise Columns;
  const size_t elements = Columns::blocks(w.channels) * Columns::kChannels;
  const size_t filter_bytes = Columns::filter_bytes(w), line = static_cast<size_t>(w.in[2]) * w.channels;
  auto* const scratch =
      static_cast<uint8_t*>(context.allocate_temp(3 * elements * sizeof(float) + filter_bytes + line));
  TORCHETTE_CHECK(scratch != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %d channels", name,
                  static_cast<int>(w.channels));
  auto* const terms = reinterpret_cast<float*>(scratch);
  auto* const zeros = reinterpret_cast<int32_t*>(terms + 2 * elements);
  auto* const filter = reinterpret_cast<int8_t*>(zeros + elements);
  uint8_t* const outside = reinterpret_cast<uint8_t*>(filter) + filter_bytes;
  const bool is_signed = input.scalar_type() == ScalarType::Char;
  const auto zero = static_cast<int32_t>(input_zero);
  Columns::arrange_filter(w, weight.const_data_ptr<int8_t>(), filter);
  Columns::arrange_terms(how, w.channels, is_signed ? zero + 128 : zero, terms, zeros);
  memset(outside, static_cast<uint8_t>(zero), line);
  const Columns columns = {&w,
                           filter,
                           terms,
                           zeros,
                           outside,
                           static_cast<uint8_t>(zero),
                           static_cast<uint8_t>(is_signed ? 0x80 : 0),
                           how.zero,
                           how.low,
                           how.high};
  const auto lines = static_cast<size_t>(w.out[1]), row = static_cast<size_t>(w.out[2]) * w.channels;
  const auto* const images = static_cast<const uint8_t*>(input.const_data_ptr());
  auto* const to = static_cast<uint8_t*>(out.mutable_data_ptr());
  // A multiplication of a window costs four of a GEMM.
  context.parallel_for(w.batch * lines, min_items(row * w.taps() * 4), [&](size_t begin, size_t end, size_t) {
    for (size_t r = begin; r < end; ++r)
      columns.run(images + r / lines * w.in_pixels() * w.channels, static_cast<ptrdiff_t>(r % lines),
                  to + r * row);
  });
  return Error::Ok;
}
#endif

}  // namespace

static Error quantized_depthwise_out(Context& context, const Tensor& input, const Tensor& weight,
                                     const Tensor& terms, int64_t input_zero, Span<const int64_t> kernel,
                                     Span<const int64_t> stride, Span<const int64_t> padding,
                                     Span<const int64_t> dilation, int64_t zero, int64_t low, int64_t high,
                                     Tensor& out) {
  constexpr const char* kName = "quantized_depthwise";
  Window w;
  TORCHETTE_TRY(read_filter(kName, input, weight, input_zero, kernel, stride, padding, dilation, w));
  const size_t panels = panels_of(w.channels), taps = w.taps();
  TORCHETTE_CHECK(
      taps <= kMaxDepthwiseTaps && weight.dim() == 3 && static_cast<size_t>(weight.size(0)) == panels &&
          static_cast<size_t>(weight.size(1)) == taps && weight.size(2) == ptrdiff_t{kPanelWidth},
      InvalidArgument, "%s: a weight of %d dimensions and %d elements does not fit %d taps of %d channels",
      kName, static_cast<int>(weight.dim()), static_cast<int>(weight.numel()), static_cast<int>(taps),
      static_cast<int>(w.channels));
  SizesType sizes[5];
  TORCHETTE_TRY(check_quantized(kName, out, result_sizes(w, w.channels, sizes), zero, low, high));
  Requantization how;
  TORCHETTE_TRY(read_terms(kName, terms, 1, w.channels, zero, low, high, how));
#if TORCHETTE_HAS_COLUMNS
  if (ColumnDepthwise::fits(w) && uses<has_dots>() && out.numel() > 0)
    return convolve_columns(context, kName, input, weight, w, how, input_zero, out);
#endif
  auto* const filters = static_cast<TapWeight*>(context.allocate_temp(weight.numel() * sizeof(float)));
  TORCHETTE_CHECK(filters != nullptr || weight.numel() == 0, MemoryAllocationFailed,
                  "%s: no scratch memory for %d weights", kName, static_cast<int>(weight.numel()));
  widen(weight.const_data_ptr<int8_t>(), panels * taps * kPanelWidth, filters);
  uint8_t outside[kPanelWidth];
  memset(outside, static_cast<uint8_t>(input_zero), sizeof(outside));
  const bool is_signed = input.scalar_type() == ScalarType::Char;
  const auto flip = static_cast<int8_t>(is_signed ? 0 : INT8_MIN);
  const auto zero_term = static_cast<float>(is_signed ? input_zero : input_zero - 128);
  const size_t row_bytes = static_cast<size_t>(w.out[2]) * w.channels;
  const auto rows_of_image = static_cast<size_t>(w.out[0] * w.out[1]);
  context.parallel_for(
      w.batch * rows_of_image, min_items(row_bytes * taps), [&](size_t begin, size_t end, size_t) {
        for (size_t r = begin; r < end; ++r) {
          const auto y = static_cast<ptrdiff_t>(r % rows_of_image);
          for (size_t p = 0; p < panels; ++p) {
            const size_t channel = p * kPanelWidth, left = w.channels - channel;
            const DepthwiseRow row = {&w,
                                      static_cast<const uint8_t*>(input.const_data_ptr()) +
                                          r / rows_of_image * w.in_pixels() * w.channels,
                                      filters + p * taps * kPanelWidth,
                                      &how,
                                      static_cast<uint8_t*>(out.mutable_data_ptr()) + r * row_bytes + channel,
                                      y / w.out[1] * w.stride[0] - w.padding[0],
                                      y % w.out[1] * w.stride[1] - w.padding[1],
                                      flip,
                                      channel,
                                      left < kPanelWidth ? left : kPanelWidth,
                                      outside};
            // A partial panel is read at full width if the bytes after its channels belong to the image.
            const auto reaches = [&](ptrdiff_t at, int d) {
              const ptrdiff_t to = at + (w.kernel[d] - 1) * w.dilation[d];
              return to < w.in[d] ? to : w.in[d] - 1;
            };
            const ptrdiff_t line = reaches(row.z, 0) * w.in[1] + reaches(row.y, 1);
            const bool is_last = r / rows_of_image + 1 == w.batch && line + 1 >= w.in[0] * w.in[1];
            const bool is_full =
                left >= kPanelWidth || (!is_last && static_cast<size_t>(w.in[2]) * w.channels >= kPanelWidth);
            is_full ? depthwise_row<true>(row, zero_term) : depthwise_row<false>(row, zero_term);
          }
        }
      });
  return Error::Ok;
}

TORCHETTE_KERNELS(quantized_convolution,
                  TORCHETTE_KERNEL("cpu::quantized_convolution.out", quantized_convolution_out),
                  TORCHETTE_KERNEL("cpu::quantized_convolution_add.out", quantized_convolution_add_out),
                  TORCHETTE_KERNEL("cpu::quantized_depthwise.out", quantized_depthwise_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
