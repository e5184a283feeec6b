// SPDX-License-Identifier: BSD-3-Clause
// Kernels of operators that occur only in payloads.
#include <algorithm>
#include <cmath>

#include "torchette/backends/vulkan/kernels/graph_reader.h"
#include "torchette/runtime/kernel_registry.h"

namespace torchette {
namespace vulkan {
namespace {

constexpr int kMaxDims = kMaxVulkanDims;

/// Reads an element of a contiguous tensor of any type that these kernels support.
double at(const Tensor& t, int64_t i) {
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return static_cast<double>(t.const_data_ptr<float>()[i]);
    case ScalarType::Long:
      return static_cast<double>(t.const_data_ptr<int64_t>()[i]);
    case ScalarType::Char:
      return t.const_data_ptr<int8_t>()[i];
    default:  // uint8 and bool
      return t.const_data_ptr<uint8_t>()[i];
  }
}

/// Writes an element; clamps integers to the range of the type.
void put(Tensor& t, int64_t i, double value) {
  const auto clamped = [value](double low, double high) {
    return value > low ? std::min(value, high) : low;  // NaN becomes the minimum
  };
  switch (t.scalar_type()) {
    case ScalarType::Float:
      t.mutable_data_ptr<float>()[i] = static_cast<float>(value);
      break;
    case ScalarType::Long:
      t.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(clamped(-0x1p62, 0x1p62));
      break;
    case ScalarType::Char:
      t.mutable_data_ptr<int8_t>()[i] = static_cast<int8_t>(clamped(-128, 127));
      break;
    case ScalarType::Bool:
      t.mutable_data_ptr<uint8_t>()[i] = value != 0;
      break;
    default:
      t.mutable_data_ptr<uint8_t>()[i] = static_cast<uint8_t>(clamped(0, 255));
  }
}

/// Blocks of a tensor that share a scale.
struct Blocks {
  int rank = 0;
  int64_t sizes[kMaxDims]{}, counts[kMaxDims]{}, total = 1;

  int64_t of(const Tensor& t, int64_t i) const {
    int64_t found = 0, step = 1;
    for (int d = rank - 1; d >= 0; --d) {
      found += i % t.size(d) / sizes[d] * step;
      step *= counts[d];
      i /= t.size(d);
    }
    return found;
  }
};

/// Without sizes, a block is the tensor, or a row of the last dimension if `rows` is true.
Error read_blocks(const Tensor& in, Span<const int64_t> sizes, bool rows, Blocks* out) {
  out->rank = static_cast<int>(in.dim());
  int64_t own[kMaxDims];
  if (sizes.empty() && in.dim() <= kMaxDims) {
    for (int d = 0; d < out->rank; ++d) own[d] = rows && d + 1 < out->rank ? 1 : -1;
    sizes = {own, static_cast<size_t>(in.dim())};
  }
  TORCHETTE_CHECK(out->rank <= kMaxDims && sizes.size() == static_cast<size_t>(in.dim()), InvalidArgument,
                  "blocks have %zu dimensions, the tensor %td", sizes.size(), in.dim());
  for (int d = 0; d < out->rank; ++d) {
    const int64_t all = in.size(d), size = sizes[static_cast<size_t>(d)];
    out->sizes[d] = size == -1 ? std::max<int64_t>(all, 1) : size;
    TORCHETTE_CHECK(out->sizes[d] > 0 && all % out->sizes[d] == 0, InvalidArgument,
                    "blocks of %lld do not divide %lld", static_cast<long long>(size),
                    static_cast<long long>(all));
    out->counts[d] = all / out->sizes[d];
    out->total *= out->counts[d];
  }
  return Error::Ok;
}

double quantized(double value, double scale, double zero, double low, double high) {
  // in float32, like torch
  const float rounded = std::nearbyint(static_cast<float>(value) * (1.0f / static_cast<float>(scale)));
  return std::min(std::max(static_cast<double>(rounded) + zero, low), high);
}

template <bool kBack>
Error affine(Context&, const Tensor& in, Span<const int64_t> sizes, const Tensor& scales,
             const Optional<Tensor>& zeros, const Scalar& low, const Scalar& high, Tensor& out) {
  Blocks blocks;
  TORCHETTE_TRY(read_blocks(in, sizes, true, &blocks));
  TORCHETTE_TRY(resize_tensor(out, in.sizes()));
  TORCHETTE_CHECK(scales.numel() == blocks.total && (!zeros.has_value() || zeros->numel() == blocks.total),
                  InvalidArgument, "a tensor has %td scales for %lld blocks", scales.numel(),
                  static_cast<long long>(blocks.total));
  for (int64_t i = 0; i < in.numel(); ++i) {
    const int64_t b = blocks.of(in, i);
    const double scale = at(scales, b), zero = zeros.has_value() ? at(*zeros, b) : 0;
    put(out, i,
        kBack ? (at(in, i) - zero) * scale
              : quantized(at(in, i), scale, zero, low.to_double(), high.to_double()));
  }
  return Error::Ok;
}

Error choose_affine(Context& context, const Tensor& in, Span<const char> mapping, Span<const int64_t> sizes,
                    const Scalar& low, const Scalar& high, double least, Tensor& scales, Tensor& zeros) {
  Blocks blocks;
  TORCHETTE_TRY(read_blocks(in, sizes, mapping.size() == 4, &blocks));
  SizesType kept[kMaxDims];
  size_t rank = 0;
  ptrdiff_t dropped = in.dim() - scales.dim();
  for (int d = blocks.rank - 1; d >= 0; --d) {  // drops dimensions with one block, starting with the last
    if (dropped > 0 && blocks.counts[d] == 1)
      --dropped;
    else
      kept[rank++] = static_cast<SizesType>(blocks.counts[d]);
  }
  std::reverse(kept, kept + rank);
  for (; dropped < 0 && rank < kMaxDims; ++dropped)
    kept[rank++] = 1;  // a single scale may have dimensions of size 1
  TORCHETTE_TRY(resize_tensor(scales, {kept, rank}));
  TORCHETTE_TRY(resize_tensor(zeros, {kept, rank}));
  const auto range = static_cast<float>(high.to_double() - low.to_double());
  const bool symmetric = mapping.size() == 9 && memcmp(mapping.data(), "SYMMETRIC", 9) == 0;
  auto* const extremes =
      static_cast<float*>(context.allocate_temp(8 * static_cast<size_t>(blocks.total) + 8));
  if (extremes == nullptr) return Error::MemoryAllocationFailed;
  std::fill(extremes, extremes + 2 * blocks.total, 0.0f);
  for (int64_t i = 0; i < in.numel(); ++i) {
    float* const of = extremes + 2 * blocks.of(in, i);
    const auto value = static_cast<float>(at(in, i));
    if (value < of[0] || std::isnan(value)) of[0] = value;
    if (value > of[1] || std::isnan(value)) of[1] = value;
  }
  for (int64_t b = 0; b < blocks.total; ++b) {
    const float below = extremes[2 * b], above = extremes[2 * b + 1];
    float scale = symmetric ? std::max(-below, above) / (range / 2) : (above - below) / range;
    scale = std::max(scale, static_cast<float>(least));
    const double first = symmetric ? std::floor((low.to_double() + high.to_double() + 1) / 2)
                                   : low.to_double() - static_cast<double>(std::nearbyint(below / scale));
    put(scales, b, static_cast<double>(scale));
    put(zeros, b,
        std::isnan(first) ? low.to_double() : std::min(std::max(first, low.to_double()), high.to_double()));
  }
  return Error::Ok;
}

/// Dequantizes weights (rows, inputs) of int8, or of 4-bit pairs in a byte, the first in the low bits if
/// `low_bits_first` is true. The scales are (rows) or (groups, rows); (rows, groups) if `by_row` is true.
/// Drops the padding of a row after `depth` elements.
Error unpack_weights(Context&, const Tensor& weights, const Tensor& scales, int64_t group, int64_t bits,
                     int64_t depth, bool by_row, bool low_bits_first, Tensor& out) {
  TORCHETTE_CHECK(weights.dim() == 2 && weights.element_size() == 1 && scales.dim() >= 1, InvalidArgument,
                  "the weights have %td dimensions or elements of more than one byte", weights.dim());
  const int64_t rows = weights.size(0), stored = weights.size(1) * (bits == 4 ? 2 : 1);
  if (depth <= 0 || depth > stored) depth = stored;
  if (group <= 0) group = std::max<int64_t>(depth, 1);
  const int64_t groups = (depth + group - 1) / group, columns = scales.size(scales.dim() - 1);
  TORCHETTE_CHECK(
      depth <= INT32_MAX && scales.numel() >= rows * groups && columns >= (by_row ? groups : rows),
      InvalidArgument, "the weights have fewer scales than groups");
  const SizesType sizes[] = {static_cast<SizesType>(rows), static_cast<SizesType>(depth)};
  TORCHETTE_TRY(resize_tensor(out, {sizes, 2}));
  const auto* bytes = weights.const_data_ptr<uint8_t>();
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t i = n * stored + k;
      const int number = bits == 4 ? (bytes[i / 2] >> ((k % 2 == 0) == low_bits_first ? 0 : 4) & 15) - 8
                                   : static_cast<int8_t>(bytes[i]);
      const int64_t g = k / group;
      put(out, n * depth + k, number * at(scales, by_row ? n * columns + g : g * columns + n));
    }
  }
  return Error::Ok;
}

/// Dequantizes filters of convolutions from int8: (output channels, input channels of a group * height *
/// width), with padding. Depthwise filters are (height, width, output channels).
Error unpack_kernels(Context&, const Tensor& weights, const Tensor& scales, Span<const int64_t> window,
                     int64_t channels, int64_t groups, bool is_transposed, Tensor& out) {
  const bool is_depthwise = weights.dim() == 3;
  TORCHETTE_CHECK(
      (is_depthwise || weights.dim() == 2) && weights.element_size() == 1 && window.size() == 2 && groups > 0,
      InvalidArgument, "the filters have %td dimensions or elements of more than one byte", weights.dim());
  const int64_t out_channels = weights.size(is_depthwise ? 2 : 0), height = window[0], width = window[1];
  const int64_t in_channels = is_depthwise ? 1 : channels / groups;
  TORCHETTE_CHECK(height > 0 && width > 0 && height <= 1 << 15 && width <= 1 << 15 &&
                      out_channels % groups == 0 && scales.numel() >= out_channels &&
                      (is_depthwise ? weights.size(0) == height && weights.size(1) == width
                                    : weights.size(1) >= in_channels * height * width),
                  InvalidArgument, "the sizes of filters and scales do not match the convolution");
  const int64_t group_channels = out_channels / groups;
  const int64_t expected[] = {is_transposed ? in_channels * groups : out_channels,
                              is_transposed ? group_channels : in_channels, height, width};
  SizesType sizes[4];
  std::copy(expected, expected + 4, sizes);
  TORCHETTE_TRY(resize_tensor(out, {sizes, 4}));
  const auto* from = weights.const_data_ptr<int8_t>();
  for (int64_t o = 0; o < out_channels; ++o) {
    for (int64_t c = 0; c < in_channels; ++c) {
      for (int64_t w = 0; w < height * width; ++w) {
        const int number =
            from[is_depthwise ? w * out_channels + o : o * weights.size(1) + c * height * width + w];
        const int64_t to = is_transposed
                               ? (o / group_channels * in_channels + c) * group_channels + o % group_channels
                               : o * in_channels + c;
        // in a transposed convolution all groups have the scales of the first
        put(out, to * height * width + w, number * at(scales, is_transposed ? o % group_channels : o));
      }
    }
  }
  return Error::Ok;
}

/// Quantizes x + bias to int8. The bias has one element for each index of dimension `dim`.
Error requantize(Context&, const Tensor& in, const Optional<Tensor>& bias, int64_t dim, double scale,
                 int64_t zero, Span<const char> activation, bool is_inverse, Tensor& out) {
  if (dim < 0) dim += in.dim();
  TORCHETTE_CHECK(!bias.has_value() || (dim >= 0 && dim < in.dim() && bias->numel() >= in.size(dim)),
                  InvalidArgument, "the bias has too few elements");
  TORCHETTE_TRY(resize_tensor(out, in.sizes()));
  const bool is_relu = activation.size() == 4 && memcmp(activation.data(), "relu", 4) == 0;
  if (is_inverse) scale = 1 / scale;
  int64_t inner = 1;
  for (ptrdiff_t d = dim + 1; d < in.dim() && bias.has_value(); ++d) inner *= in.size(d);
  for (int64_t i = 0; i < in.numel(); ++i) {
    double value = at(in, i);
    if (bias.has_value()) value += at(*bias, i / inner % in.size(dim));
    if (is_relu && value < 0) value = 0;
    put(out, i, quantized(value, scale, static_cast<double>(zero), -128, 127));
  }
  return Error::Ok;
}

/// Adds a bias along the last dimension. The bias may have padding.
Error add_bias(Context&, const Tensor& in, const Optional<Tensor>& bias, Tensor& out) {
  const int64_t columns = in.dim() == 0 ? 1 : in.size(in.dim() - 1);
  TORCHETTE_CHECK(!bias.has_value() || bias->numel() >= columns, InvalidArgument,
                  "the bias has too few elements");
  TORCHETTE_TRY(resize_tensor(out, in.sizes()));
  for (int64_t i = 0; i < in.numel(); ++i)
    put(out, i, at(in, i) + (bias.has_value() ? at(*bias, i % columns) : 0));
  return Error::Ok;
}

/// Rotary embedding: rotates pairs of the last dimension, which are adjacent elements, or one element of each
/// half if `halves` is true. x is (batch, tokens, heads, width); cos and sin are (positions, ...), read from
/// position `start`.
Error rotate(Context&, const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t start, bool halves,
             Tensor& out) {
  TORCHETTE_CHECK(
      x.dim() == 4 && cos.dim() >= 2 && cos.dim() <= 3 && cos.numel() == sin.numel(), InvalidArgument,
      "a rotary embedding has an input of %td dimensions, or cos and sin of other shapes", x.dim());
  const int64_t tokens = x.size(1), heads = x.size(2), width = x.size(3), own = cos.size(cos.dim() - 1);
  const int64_t part = halves ? own / 2 : own;  // pairs
  TORCHETTE_CHECK(start >= 0 && cos.size(0) >= tokens && start <= cos.size(0) - tokens && 2 * part <= width &&
                      (cos.dim() == 2 || cos.size(1) == heads),
                  InvalidArgument, "the sizes of a rotary embedding's angles do not match its input");
  TORCHETTE_TRY(resize_tensor(out, x.sizes()));
  if (x.numel() != 0) memcpy(out.mutable_data_ptr(), x.const_data_ptr(), std::min(x.nbytes(), out.nbytes()));
  for (int64_t row = 0; row * width < x.numel(); ++row) {
    const int64_t token = row / heads % tokens + start;
    const int64_t angles = (cos.dim() == 3 ? token * heads + row % heads : token) * own;
    for (int64_t k = 0; k < part; ++k) {
      const int64_t a = row * width + (halves ? k : 2 * k), b = halves ? a + part : a + 1;
      const int64_t other = halves ? angles + k + part : angles + k;
      const double real = at(x, a), imaginary = at(x, b);
      put(out, a, real * at(cos, angles + k) - imaginary * at(sin, angles + k));
      put(out, b, imaginary * at(cos, other) + real * at(sin, other));
    }
  }
  return Error::Ok;
}

/// Rotary embedding of x (batch, n, channels): rotates adjacent pairs; `angles` has (cos, sin) for each pair.
Error rotate_pairs(Context&, const Tensor& x, const Tensor& angles, Tensor& out) {
  TORCHETTE_CHECK(x.dim() == 3 && angles.numel() == x.size(1) * x.size(2) && x.size(2) % 2 == 0,
                  InvalidArgument, "the sizes of a rotary embedding's angles do not match its input");
  TORCHETTE_TRY(resize_tensor(out, x.sizes()));
  for (int64_t i = 0; i + 1 < x.numel(); i += 2) {
    const int64_t k = i % angles.numel();
    const double real = at(x, i), imaginary = at(x, i + 1), c = at(angles, k), s = at(angles, k + 1);
    put(out, i, real * c - imaginary * s);
    put(out, i + 1, real * s + imaginary * c);
  }
  return Error::Ok;
}

/// Writes (batch, tokens, heads, width) into a cache (batch, positions, heads, width) from position `start`.
Error update_cache(Context&, const Tensor& in, int64_t start, Tensor& cache, Tensor& out) {
  bool fits = in.dim() == 4 && cache.dim() == 4 && in.scalar_type() == cache.scalar_type();
  for (const int d : {0, 2, 3}) fits = fits && in.size(d) == cache.size(d);
  TORCHETTE_CHECK(fits && start >= 0 && in.size(1) <= cache.size(1) && start <= cache.size(1) - in.size(1),
                  InvalidArgument, "the sizes of the new keys or values do not match the cache");
  const size_t row = static_cast<size_t>(in.size(2) * in.size(3) * in.element_size());
  const size_t bytes = static_cast<size_t>(in.size(1)) * row;
  for (int64_t b = 0; b < in.size(0) && bytes != 0; ++b)
    memcpy(cache.mutable_data_ptr<uint8_t>() + static_cast<size_t>(b * cache.size(1) + start) * row,
           in.const_data_ptr<uint8_t>() + static_cast<size_t>(b) * bytes, bytes);
  SizesType ones[kMaxDims];  // the result is never read
  std::fill(ones, ones + kMaxDims, 1);
  TORCHETTE_TRY(resize_tensor(out, {ones, std::min(static_cast<size_t>(out.dim()), size_t{kMaxDims})}));
  put(out, 0, 0);
  return Error::Ok;
}

/// Attention of one query to `keys` keys. The keys from `visible` on are masked: -infinity is added to their
/// scores, so NaN remains. Keys are rows of `width` floats with stride `step`, values rows of `value_width`
/// floats with stride `value_step`.
void attend_one(const float* q, const float* k, const float* v, int64_t keys, int64_t visible, int64_t width,
                int64_t value_width, int64_t step, int64_t value_step, double scale,
                const Optional<Tensor>& mask, int64_t masked, float* score, float* to) {
  float most = -INFINITY, sum = 0;
  bool has_nan = false;
  for (int64_t i = 0; i < keys; ++i) {
    float dot = 0;
    for (int64_t c = 0; c < width; ++c) dot += q[c] * k[i * step + c];
    dot *= static_cast<float>(scale);
    if (mask.has_value()) {
      const double added = at(*mask, masked + i);
      const bool is_truth = mask->scalar_type() == ScalarType::Bool;
      dot += !is_truth ? static_cast<float>(added) : added != 0 ? 0 : -INFINITY;
    }
    if (i >= visible) dot -= INFINITY;
    score[i] = dot;
    most = std::max(most, dot);
    has_nan = has_nan || dot != dot;
  }
  if (most == -INFINITY && !has_nan) most = 0, sum = 1;  // all masked: the weights are 0
  for (int64_t i = 0; i < keys; ++i) sum += score[i] = std::exp(score[i] - most);
  std::fill(to, to + value_width, 0.0f);
  for (int64_t i = 0; i < keys; ++i)
    for (int64_t c = 0; c < value_width; ++c) to[c] += score[i] / sum * v[i * value_step + c];
}

/// Whether a mask that all heads share has enough rows and columns.
bool mask_fits(const Optional<Tensor>& mask, int64_t tokens, int64_t positions) {
  return !mask.has_value() || (mask->dim() >= 2 && mask->size(mask->dim() - 1) >= positions &&
                               mask->size(mask->dim() - 2) >= tokens);
}

bool are_floats(std::initializer_list<const Tensor*> all) {
  for (const Tensor* it : all)
    if (it->scalar_type() != ScalarType::Float) return false;
  return true;
}

/// Attention of queries (batch, tokens, heads, width) to the first start + tokens positions of caches (batch,
/// positions, heads, width), or up to the position of the query if `causal` is true. The mask ends with the
/// dimensions (tokens, positions).
Error attend_cached(Context& context, const Tensor& q, const Tensor& k, const Tensor& v, int64_t start,
                    const Optional<Tensor>& mask, bool causal, double scale, Tensor& out) {
  TORCHETTE_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && are_floats({&q, &k, &v, &out}),
                  InvalidArgument, "attention requires float32 tensors of four dimensions");
  const int64_t tokens = q.size(1), heads = q.size(2), width = q.size(3), positions = k.size(1);
  const int64_t groups = k.size(2);
  bool fits = k.size(0) == q.size(0) && k.size(3) == width && start >= 0 && start <= positions &&
              start + tokens <= positions && groups > 0 && heads % groups == 0 &&
              mask_fits(mask, tokens, start + tokens);
  for (int d = 0; d < 4; ++d) fits = fits && v.size(d) == k.size(d);
  TORCHETTE_CHECK(fits, InvalidArgument, "the sizes of queries, keys, values and mask do not match");
  TORCHETTE_TRY(resize_tensor(out, q.sizes()));
  auto* const scores =
      static_cast<float*>(context.allocate_temp(4 * context.workers() * static_cast<size_t>(positions + 1)));
  if (scores == nullptr) return Error::MemoryAllocationFailed;
  const auto rows = static_cast<size_t>(q.size(0) * tokens * heads);
  context.parallel_for(rows, 4, [&](size_t begin, size_t end, size_t worker) {
    for (auto row = static_cast<int64_t>(begin); row < static_cast<int64_t>(end); ++row) {
      const int64_t group = row % heads / (heads / groups), token = row / heads % tokens;
      const int64_t first = (row / heads / tokens * positions * groups + group) * width,
                    step = groups * width;
      const int64_t masked = mask.has_value() ? token * mask->size(mask->dim() - 1) : 0;
      attend_one(q.const_data_ptr<float>() + row * width, k.const_data_ptr<float>() + first,
                 v.const_data_ptr<float>() + first, causal ? start + token + 1 : start + tokens, positions,
                 width, width, step, step, scale, mask, masked,
                 scores + worker * static_cast<size_t>(positions + 1),
                 out.mutable_data_ptr<float>() + row * width);
    }
  });
  return Error::Ok;
}

/// Attention of queries (..., heads, tokens, width) to keys and values (..., key heads, positions, width).
Error attend(Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
             const Optional<Tensor>& mask, bool causal, double scale, Tensor& out) {
  const ptrdiff_t rank = q.dim();
  TORCHETTE_CHECK(rank >= 3 && rank <= kMaxDims && k.dim() == rank && v.dim() == rank && out.dim() == rank &&
                      are_floats({&q, &k, &v, &out}),
                  InvalidArgument, "attention requires float32 tensors of at least three dimensions");
  const int64_t heads = q.size(rank - 3), tokens = q.size(rank - 2), width = q.size(rank - 1);
  const int64_t groups = k.size(rank - 3), positions = k.size(rank - 2), value_width = v.size(rank - 1);
  bool fits = k.size(rank - 1) == width && v.size(rank - 2) == positions && v.size(rank - 3) == groups &&
              groups > 0 && heads % groups == 0;
  SizesType sizes[kMaxDims];
  int64_t outer = 1;
  for (ptrdiff_t d = 0; d < rank; ++d) {
    sizes[d] = static_cast<SizesType>(d == rank - 1 ? value_width : q.size(d));
    if (d >= rank - 3) continue;
    fits = fits && k.size(d) == q.size(d) && v.size(d) == q.size(d);
    outer *= q.size(d);
  }
  int64_t steps[kMaxDims] = {}, step = 1;  // of the mask, which broadcasts to (..., heads, tokens, positions)
  for (ptrdiff_t d = mask.has_value() ? mask->dim() - 1 : -1; d >= 0; --d) {
    const ptrdiff_t own = d + rank - mask->dim();
    const int64_t expected = own < 0 ? 1 : own == rank - 1 ? positions : q.size(own);
    fits = fits && own >= 0 && (mask->size(d) == expected || (mask->size(d) == 1 && own != rank - 1));
    if (fits && mask->size(d) != 1) steps[own] = step;
    step *= mask->size(d);
  }
  TORCHETTE_CHECK(fits, InvalidArgument, "the sizes of queries, keys, values and mask do not match");
  TORCHETTE_TRY(resize_tensor(out, {sizes, static_cast<size_t>(rank)}));
  auto* const scores =
      static_cast<float*>(context.allocate_temp(4 * context.workers() * static_cast<size_t>(positions + 1)));
  if (scores == nullptr) return Error::MemoryAllocationFailed;
  context.parallel_for(
      static_cast<size_t>(outer * heads * tokens), 4, [&](size_t begin, size_t end, size_t worker) {
        for (auto row = static_cast<int64_t>(begin); row < static_cast<int64_t>(end); ++row) {
          int64_t masked = 0, remaining = row;
          for (ptrdiff_t d = rank - 2; d >= 0; --d)
            masked += remaining % q.size(d) * steps[d], remaining /= q.size(d);
          const int64_t token = row % tokens, head = row / tokens % heads / (heads / groups);
          const int64_t first = (row / tokens / heads * groups + head) * positions;
          attend_one(q.const_data_ptr<float>() + row * width, k.const_data_ptr<float>() + first * width,
                     v.const_data_ptr<float>() + first * value_width, positions,
                     causal ? token + 1 : positions, width, value_width, width, value_width, scale, mask,
                     masked, scores + worker * static_cast<size_t>(positions + 1),
                     out.mutable_data_ptr<float>() + row * value_width);
        }
      });
  return Error::Ok;
}

/// Computes the same as convolution_integer.comp.
Error integer_convolution(Context& context, const Tensor& in, const Tensor& weight, const Tensor& terms,
                          int64_t in_zero, Span<const int64_t> stride, Span<const int64_t> padding,
                          Span<const int64_t> dilation, int64_t groups, int64_t zero, int64_t low,
                          int64_t high, Tensor& out) {
  const ptrdiff_t axes = weight.dim() - 2;
  const bool is_linear = axes == 0;
  bool fits = axes >= 0 && axes <= 3 && (is_linear ? in.dim() >= 1 : in.dim() == weight.dim()) &&
              in.dim() <= kMaxDims && weight.scalar_type() == ScalarType::Char &&
              !is_floating(in.scalar_type()) && !is_floating(out.scalar_type()) &&
              terms.scalar_type() == ScalarType::Long;
  const int64_t channels = axes < 0 ? 0 : weight.size(0);
  fits = fits && groups > 0 && channels % groups == 0 && terms.numel() == 2 * channels &&
         in.size(is_linear ? in.dim() - 1 : 1) == groups * weight.size(1);
  int64_t from[3] = {1, 1, 1}, to[3] = {1, 1, 1}, window[3] = {1, 1, 1}, step[3] = {1, 1, 1}, pad[3] = {},
          dilations[3] = {1, 1, 1};
  SizesType sizes[kMaxDims];
  for (ptrdiff_t d = 0; d < in.dim() && fits; ++d) sizes[d] = in.sizes()[static_cast<size_t>(d)];
  const auto of = [](Span<const int64_t> list, ptrdiff_t axis) {
    return list[list.size() == 1 ? 0 : static_cast<size_t>(axis)];
  };
  for (ptrdiff_t axis = 0; axis < axes && fits; ++axis) {
    for (const auto& list : {stride, padding, dilation})
      fits = fits && (list.size() == 1 || list.size() == static_cast<size_t>(axes));
    if (!fits) break;
    const ptrdiff_t at = 3 - axes + axis;
    from[at] = in.size(2 + axis), window[at] = weight.size(2 + axis);
    step[at] = of(stride, axis), pad[at] = of(padding, axis), dilations[at] = of(dilation, axis);
    constexpr int64_t kMaxStep = 1 << 20;
    fits = step[at] > 0 && pad[at] >= 0 && dilations[at] > 0 && step[at] < kMaxStep && pad[at] < kMaxStep &&
           dilations[at] < kMaxStep;
    const int64_t room = from[at] + 2 * pad[at] - dilations[at] * (window[at] - 1) - 1;
    fits = fits && window[at] > 0 && room >= 0;
    if (fits) to[at] = room / step[at] + 1;
    sizes[2 + axis] = static_cast<SizesType>(to[at]);
  }
  TORCHETTE_CHECK(fits, InvalidArgument, "the operands of an integer convolution do not match");
  sizes[is_linear ? in.dim() - 1 : 1] = static_cast<SizesType>(channels);
  TORCHETTE_TRY(resize_tensor(out, {sizes, static_cast<size_t>(in.dim())}));
  const int64_t inner = weight.size(1), area = to[0] * to[1] * to[2], plane = from[0] * from[1] * from[2];
  const int64_t taps = window[0] * window[1] * window[2];
  const auto term = [&](int64_t i) {
    const auto bits = static_cast<uint32_t>(terms.const_data_ptr<int64_t>()[i]);
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
  };
  const auto count = static_cast<size_t>(out.numel());
  context.parallel_for(count, 256, [&](size_t begin, size_t end, size_t) {
    for (auto i = static_cast<int64_t>(begin); i < static_cast<int64_t>(end); ++i) {
      const int64_t pixel = i % area, channel = i / area % channels, image = i / area / channels;
      const int64_t position[] = {pixel / (to[1] * to[2]), pixel / to[2] % to[1], pixel % to[2]};
      const int64_t first = (image * groups + channel / (channels / groups)) * inner;
      int32_t sum = 0;
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t in_window[] = {tap / (window[1] * window[2]), tap / window[2] % window[1],
                                     tap % window[2]};
        int64_t source = 0;
        bool inside = true;
        for (int axis = 0; axis < 3; ++axis) {
          const int64_t x = position[axis] * step[axis] - pad[axis] + in_window[axis] * dilations[axis];
          inside = inside && x >= 0 && x < from[axis];
          source = source * from[axis] + x;
        }
        if (!inside) continue;
        for (int64_t c = 0; c < inner; ++c)
          sum += static_cast<int32_t>(at(in, (first + c) * plane + source) - static_cast<double>(in_zero)) *
                 weight.const_data_ptr<int8_t>()[(channel * inner + c) * taps + tap];
      }
      const float value =
          std::nearbyint((static_cast<float>(sum) + term(channel)) * term(channels + channel)) +
          static_cast<float>(zero);
      put(out, i,
          std::min(std::max(static_cast<double>(value), static_cast<double>(low)),
                   static_cast<double>(high)));
    }
  });
  return Error::Ok;
}

/// Bicubic resize by sizes or by factors; calls the kernel, which requires both.
Error bicubic(Context& context, const Tensor& x, Optional<Span<const int64_t>> sizes, bool aligns,
              Optional<Span<const double>> factors, Tensor& out) {
  const Kernel* const kernel = find_kernel("aten::upsample_bicubic2d.out");
  TORCHETTE_CHECK(kernel != nullptr, OperatorMissing, "there is no kernel for aten::upsample_bicubic2d.out");
  const bool has_sizes = sizes.has_value() && sizes->size() == 2,
             has_factors = factors.has_value() && factors->size() == 2;
  TORCHETTE_CHECK(x.dim() == 4 && (has_sizes || has_factors), InvalidArgument,
                  "a bicubic resize has neither sizes nor factors, or its input is not an image");
  Value values[8] = {Value(x), Value(), Value(aligns), Value(), Value(), Value(out)};
  for (size_t d = 0; d < 2; ++d) {
    const auto from = static_cast<double>(x.sizes()[2 + d]);
    if (has_factors) values[3 + d] = Value((*factors)[d]);
    values[6 + d] = Value(has_sizes ? (*sizes)[d] : truncate(from * (*factors)[d]));
  }
  int64_t index[] = {6, 7}, gathered[2];
  BoxedList list{values, index, gathered, 2};
  values[1] = Value(Tag::ListInt, &list);
  const int32_t all[] = {0, 1, 2, 3, 4, 5};
  return kernel->function(context, {values, all});
}

Error select_scalar(Context&, const Tensor& x, int64_t dim, int64_t index, Value& out) {
  if (dim < 0) dim += x.dim();
  const bool fits = dim >= 0 && dim < x.dim();
  if (fits && index < 0) index += x.size(dim);
  TORCHETTE_CHECK(fits && index >= 0 && index < x.size(dim) && x.numel() == x.size(dim), InvalidArgument,
                  "the index is out of range, or the tensor has more than one dimension");
  const double value = at(x, index);
  TORCHETTE_CHECK(value >= -0x1p62 && value <= 0x1p62, InvalidArgument,
                  "the element is too large for an integer");
  out = Value(static_cast<int64_t>(value));
  return Error::Ok;
}

/// The positions (x, y) of the cells of a grid: (height * width, 2).
Error grid_priors(Context&, const Tensor& x, int64_t stride, double offset, Tensor& out) {
  TORCHETTE_CHECK(x.dim() >= 2, InvalidArgument, "the input of a grid has less than two dimensions");
  const int64_t height = x.size(x.dim() - 2), width = x.size(x.dim() - 1);
  TORCHETTE_CHECK(width == 0 || height <= INT32_MAX / width, InvalidArgument, "a grid has too many cells");
  const SizesType sizes[] = {static_cast<SizesType>(height * width), 2};
  TORCHETTE_TRY(resize_tensor(out, {sizes, 2}));
  for (int64_t i = 0; i < height * width; ++i) {
    put(out, 2 * i, (static_cast<double>(i % width) + offset) * static_cast<double>(stride));
    put(out, 2 * i + 1, (static_cast<double>(i / width) + offset) * static_cast<double>(stride));
  }
  return Error::Ok;
}

/// `out` may be the same memory as `in`.
Error index_copy(Context&, const Tensor& in, int64_t dim, const Tensor& positions, const Tensor& from,
                 Tensor& out) {
  if (dim < 0) dim += in.dim();
  bool fits = dim >= 0 && dim < in.dim() && from.dim() == in.dim() && positions.dim() <= 1 &&
              positions.scalar_type() == ScalarType::Long && in.scalar_type() == out.scalar_type() &&
              from.scalar_type() == in.scalar_type();
  int64_t outer = 1, inner = 1;
  for (ptrdiff_t d = 0; d < in.dim() && fits; ++d) {
    fits = d == dim ? from.size(d) == positions.numel() : from.size(d) == in.size(d);
    if (d != dim) (d < dim ? outer : inner) *= in.size(d);
  }
  TORCHETTE_CHECK(fits, InvalidArgument, "index_copy: the source does not match the indices");
  TORCHETTE_TRY(resize_tensor(out, in.sizes()));
  const size_t bytes = static_cast<size_t>(inner) * static_cast<size_t>(in.element_size());
  auto* const to = out.mutable_data_ptr<uint8_t>();
  if (to != in.const_data_ptr() && in.numel() != 0) memcpy(to, in.const_data_ptr(), in.nbytes());
  const int64_t size = in.size(dim), count = positions.numel();
  for (int64_t i = 0; i < outer && bytes != 0; ++i) {
    for (int64_t k = 0; k < count; ++k) {
      const int64_t position = positions.const_data_ptr<int64_t>()[k];
      TORCHETTE_CHECK(position >= 0 && position < size, InvalidArgument,
                      "index_copy: index %lld is out of range; the dimension has size %lld",
                      static_cast<long long>(position), static_cast<long long>(size));
      memcpy(to + static_cast<size_t>(i * size + position) * bytes,
             from.const_data_ptr<uint8_t>() + static_cast<size_t>(i * count + k) * bytes, bytes);
    }
  }
  return Error::Ok;
}

}  // namespace

Kernels payload_kernels() {
  static constexpr Kernel kAll[] = {
      TORCHETTE_KERNEL("vulkan::quantize_affine.out", affine<false>),
      TORCHETTE_KERNEL("vulkan::dequantize_affine.out", affine<true>),
      TORCHETTE_KERNEL("vulkan::choose_affine.out", choose_affine),
      TORCHETTE_KERNEL("vulkan::index_copy.out", index_copy),
      TORCHETTE_KERNEL("vulkan::unpack_weights.out", unpack_weights),
      TORCHETTE_KERNEL("vulkan::unpack_kernels.out", unpack_kernels),
      TORCHETTE_KERNEL("vulkan::requantize.out", requantize),
      TORCHETTE_KERNEL("vulkan::add_bias.out", add_bias),
      TORCHETTE_KERNEL("vulkan::rotate.out", rotate),
      TORCHETTE_KERNEL("vulkan::rotate_pairs.out", rotate_pairs),
      TORCHETTE_KERNEL("vulkan::update_cache.out", update_cache),
      TORCHETTE_KERNEL("vulkan::attend_cached.out", attend_cached),
      TORCHETTE_KERNEL("vulkan::attend.out", attend),
      TORCHETTE_KERNEL("vulkan::integer_convolution.out", integer_convolution),
      TORCHETTE_KERNEL("vulkan::bicubic.out", bicubic),
      TORCHETTE_KERNEL("vulkan::select_scalar.out", select_scalar),
      TORCHETTE_KERNEL("vulkan::grid_priors.out", grid_priors),
  };
  return kAll;
}

}  // namespace vulkan
}  // namespace torchette
