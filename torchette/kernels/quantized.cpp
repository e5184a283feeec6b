// SPDX-License-Identifier: BSD-3-Clause
// quantized_decomposed operators: quantize and dequantize per tensor, channel and token, choose_qparams,
// embeddings with 8-bit, 4-bit and 2-bit weights, add, and mixed-dtype matmuls. Each step rounds like torch's
// reference (torch/ao/quantization/fx/_decomposed.py): in the dtype of the scales if they are a tensor with
// dimensions, otherwise in the dtype of the floats.
#include <cmath>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

// Number of elements of a line that a thread processes at a time, and the minimum number of elements for a
// thread.
constexpr size_t kBlock = 4096;
constexpr size_t kMinWork = size_t{1} << 15;

/// Checks that the `dtype` argument, a ScalarType, names the type of the tensor.
Error check_type(const char* what, const Tensor& t, int64_t type) {
  TORCHETTE_CHECK(static_cast<int64_t>(t.scalar_type()) == type, InvalidType,
                  "%s: a tensor is of type %d, but dtype is %d", what, static_cast<int>(t.scalar_type()),
                  static_cast<int>(type));
  return Error::Ok;
}

/// Checks that the type is an 8-bit, 16-bit or 32-bit integer type with a range that includes [low, high].
Error check_range(const char* what, ScalarType type, int64_t low, int64_t high) {
  int64_t min_value = 0, max_value = 0;
  switch (type) {
    case ScalarType::Byte:
      max_value = UINT8_MAX;
      break;
    case ScalarType::Char:
      min_value = INT8_MIN, max_value = INT8_MAX;
      break;
    case ScalarType::Short:
      min_value = INT16_MIN, max_value = INT16_MAX;
      break;
    case ScalarType::Int:
      min_value = INT32_MIN, max_value = INT32_MAX;
      break;
    default:
      TORCHETTE_CHECK(false, InvalidType, "%s: type %d is not a quantized integer type", what,
                      static_cast<int>(type));
  }
  TORCHETTE_CHECK(low >= min_value && high <= max_value && low <= high, InvalidArgument,
                  "%s: quant_min %lld and quant_max %lld do not fit type %d", what,
                  static_cast<long long>(low), static_cast<long long>(high), static_cast<int>(type));
  return Error::Ok;
}

Error check_real(const char* what, const Tensor& t, const char* name) {
  TORCHETTE_CHECK(is_floating(t.scalar_type()), InvalidType, "%s: %s is of type %d, expected a floating type",
                  what, name, static_cast<int>(t.scalar_type()));
  return Error::Ok;
}

/// Returns the element of the real tensor `t` at an index.
double element_at(const Tensor& t, ptrdiff_t position) {
  double value;
  load_as(t.scalar_type(), kF64)(static_cast<const char*>(t.const_data_ptr()) + position * t.element_size(),
                                 1, &value, 1);
  return value;
}

/// Returns the only element of a scale or zero point tensor.
Error scalar_of(const char* what, const Tensor& t, double& value) {
  TORCHETTE_CHECK(t.numel() == 1 && is_real(t.scalar_type()), InvalidArgument,
                  "%s: scale or zero_point has %d elements of type %d, expected 1", what,
                  static_cast<int>(t.numel()), static_cast<int>(t.scalar_type()));
  value = element_at(t, 0);
  return Error::Ok;
}

/// A tensor as a sequence of lines. Line i uses scale i % count.
struct Lines {
  size_t lines, count, length;

  static Lines of_axis(const Tensor& t, size_t axis) {
    size_t outer = 1, inner = 1;
    for (size_t d = 0; d < static_cast<size_t>(t.dim()); ++d)
      (d < axis ? outer : inner) *= d == axis ? 1 : static_cast<size_t>(t.sizes()[d]);
    const auto count = static_cast<size_t>(t.sizes()[axis]);
    return {outer * count, count, inner};
  }
};

/// Scale and zero point of each line, either scalars or tensors.
struct QuantizationParams {
  double scale = 1, zero = 0;
  const Tensor* scales = nullptr;
  const Tensor* zeros = nullptr;
};

/// The operation that is applied to a line.
struct Step {
  Convert load, store;
  ptrdiff_t from_size, to_size;
  Convert to_narrow = nullptr, from_narrow = nullptr;  // rounds to 16-bit floats after each operation
  int64_t low = 0, high = 0;
  bool zero_first = false;  // adds the zero point before it rounds
};

template <typename T>
void quantize_line(const Step& step, const char* x, char* y, size_t n, T factor, T zero) {
  const T low = static_cast<T>(step.low), high = static_cast<T>(step.high);
  T v[kChunk];
  for (size_t i = 0, c; i < n; i += c) {
    c = n - i < kChunk ? n - i : kChunk;
    step.load(x + static_cast<ptrdiff_t>(i) * step.from_size, 1, v, c);
    // Separate loops, because a fused multiply-add would round only once.
    for (size_t j = 0; j < c; ++j) v[j] *= factor;
    if (step.zero_first)
      for (size_t j = 0; j < c; ++j) v[j] += zero;
    for (size_t j = 0; j < c; ++j) v[j] = std::rint(v[j]);
    if (!step.zero_first)
      for (size_t j = 0; j < c; ++j) v[j] += zero;
    for (size_t j = 0; j < c; ++j) v[j] = v[j] < low ? low : v[j] > high ? high : v[j];
    step.store(v, 1, y + static_cast<ptrdiff_t>(i) * step.to_size, c);
  }
}

/// Rounds `n` values to the 16-bit float type.
void narrow(const Step& step, float* v, size_t n) {
  if (step.to_narrow == nullptr) return;
  uint16_t narrow[kChunk];
  step.to_narrow(v, 1, narrow, n);
  step.from_narrow(narrow, 1, v, n);
}
void narrow(const Step&, double*, size_t) {}

template <typename T>
void dequantize_line(const Step& step, const char* x, char* y, size_t n, T scale, T zero) {
  T v[kChunk];
  for (size_t i = 0, c; i < n; i += c) {
    c = n - i < kChunk ? n - i : kChunk;
    step.load(x + static_cast<ptrdiff_t>(i) * step.from_size, 1, v, c);
    narrow(step, v, c);
    for (size_t j = 0; j < c; ++j) v[j] -= zero;
    narrow(step, v, c);
    for (size_t j = 0; j < c; ++j) v[j] *= scale;
    step.store(v, 1, y + static_cast<ptrdiff_t>(i) * step.to_size, c);
  }
}

template <bool kQuantize, typename T>
void run_lines(Context& context, const Lines& of, const Step& step, const void* from, void* to,
               const QuantizationParams& params) {
  const size_t blocks = (of.length + kBlock - 1) / kBlock, block = of.length < kBlock ? of.length : kBlock;
  if (of.length == 0) return;
  context.parallel_for(of.lines * blocks, kMinWork / block + 1, [&](size_t begin, size_t end, size_t) {
    for (size_t i = begin; i < end; ++i) {
      const size_t line = i / blocks, first = i % blocks * kBlock;
      const auto at = static_cast<ptrdiff_t>(line * of.length + first);
      const size_t n = of.length - first < kBlock ? of.length - first : kBlock;
      const auto index = static_cast<ptrdiff_t>(line % of.count);
      const double zero = params.zeros != nullptr ? element_at(*params.zeros, index) : params.zero;
      double scale = params.scales != nullptr ? element_at(*params.scales, index) : params.scale;
      // A tensor of scales is inverted in its own dtype, a scalar scale in double.
      if (kQuantize)
        scale = params.scales != nullptr && sizeof(T) == sizeof(float)
                    ? static_cast<double>(1.0f / static_cast<float>(scale))
                    : 1.0 / scale;
      const char* x = static_cast<const char*>(from) + at * step.from_size;
      char* y = static_cast<char*>(to) + at * step.to_size;
      if constexpr (kQuantize)
        quantize_line<T>(step, x, y, n, static_cast<T>(scale), static_cast<T>(zero));
      else
        dequantize_line<T>(step, x, y, n, static_cast<T>(scale), static_cast<T>(zero));
    }
  });
}

/// Common implementation of these operators. `wide` selects double arithmetic.
template <bool kQuantize>
Error run(Context& context, const Tensor& input, const Lines& lines, Step step, bool wide, bool rounds,
          const Tensor& out, const QuantizationParams& params) {
  Dense from, to;
  TORCHETTE_TRY(resize_result(out, input.sizes()));
  TORCHETTE_TRY(from.read(context, input, input.scalar_type()));
  TORCHETTE_TRY(to.open(context, out, out.scalar_type()));
  const Compute compute = wide ? kF64 : kF32;
  step.load = load_as(input.scalar_type(), compute);
  step.store = store_as(compute, out.scalar_type());
  step.from_size = input.element_size();
  step.to_size = out.element_size();
  if (rounds && out.element_size() == 2) {
    step.to_narrow = step.store;
    step.from_narrow = load_as(out.scalar_type(), compute);
  }
  if (wide)
    run_lines<kQuantize, double>(context, lines, step, from.data<void>(), to.data<void>(), params);
  else
    run_lines<kQuantize, float>(context, lines, step, from.data<void>(), to.data<void>(), params);
  return to.finish();
}

Error quantize_by_tensor(Context& context, const Tensor& input, double scale, double zero, int64_t low,
                         int64_t high, int64_t type, const Tensor& out) {
  constexpr const char* kName = "quantize_per_tensor";
  TORCHETTE_TRY(check_real(kName, input, "input"));
  TORCHETTE_TRY(check_type(kName, out, type));
  TORCHETTE_TRY(check_range(kName, out.scalar_type(), low, high));
  Step step = {};
  step.low = low;
  step.high = high;
  const auto n = static_cast<size_t>(input.numel());
  return run<true>(context, input, {1, 1, n}, step, false, false, out, {scale, zero});
}

Error dequantize_by_tensor(Context& context, const Tensor& input, double scale, double zero, int64_t low,
                           int64_t high, int64_t type, const Tensor& out) {
  constexpr const char* kName = "dequantize_per_tensor";
  TORCHETTE_TRY(check_type(kName, input, type));
  TORCHETTE_TRY(check_real(kName, out, "out"));
  TORCHETTE_TRY(check_range(kName, input.scalar_type(), low, high));
  const auto n = static_cast<size_t>(input.numel());
  return run<false>(context, input, {1, 1, n}, {}, out.scalar_type() == ScalarType::Double, true, out,
                    {scale, zero});
}

/// Checks that there is one scale, and one zero point if present, per line.
Error check_scales(const char* what, const Lines& lines, const Tensor& scales,
                   const Optional<Tensor>& zero_points) {
  const auto fits = [&](const Tensor& t) {
    return static_cast<size_t>(t.numel()) == lines.count && is_real(t.scalar_type());
  };
  TORCHETTE_TRY(check_real(what, scales, "scales"));
  TORCHETTE_CHECK(
      fits(scales) && (!zero_points.has_value() || fits(*zero_points)), InvalidArgument,
      "%s: %d scales and %d zero points, expected %d of each", what, static_cast<int>(scales.numel()),
      static_cast<int>(zero_points.has_value() ? zero_points->numel() : -1), static_cast<int>(lines.count));
  return Error::Ok;
}

Error quantize_lines(Context& context, const char* what, const Lines& lines, const Tensor& input,
                     const Tensor& scales, const Tensor& zero_points, Step step, int64_t type,
                     const Tensor& out) {
  TORCHETTE_TRY(check_real(what, input, "input"));
  TORCHETTE_TRY(check_type(what, out, type));
  TORCHETTE_TRY(check_range(what, out.scalar_type(), step.low, step.high));
  TORCHETTE_TRY(check_scales(what, lines, scales, zero_points));
  Dense scale, zero;
  TORCHETTE_TRY(scale.read(context, scales, scales.scalar_type()));
  TORCHETTE_TRY(zero.read(context, zero_points, zero_points.scalar_type()));
  const bool wide = scales.scalar_type() == ScalarType::Double;
  const Tensor s = scale.tensor(), z = zero.tensor();
  return run<true>(context, input, lines, step, wide, false, out, {1, 0, &s, &z});
}

/// The difference of quantized value and zero point is an integer that a double represents exactly, so the
/// result is rounded once, in the conversion to float.
Error dequantize_lines(Context& context, const char* what, const Lines& lines, const Tensor& input,
                       const Tensor& scales, const Optional<Tensor>& zero_points, const Tensor& out) {
  TORCHETTE_TRY(check_real(what, out, "out"));
  TORCHETTE_TRY(check_scales(what, lines, scales, zero_points));
  Dense scale, zero;
  TORCHETTE_TRY(scale.read(context, scales, scales.scalar_type()));
  if (zero_points.has_value()) TORCHETTE_TRY(zero.read(context, *zero_points, zero_points->scalar_type()));
  const Tensor s = scale.tensor(), z = zero.tensor();
  return run<false>(context, input, lines, {}, true, false, out,
                    {1, 0, &s, zero_points.has_value() ? &z : nullptr});
}

// --- The operators ---

Error quantize_per_tensor_out(Context& context, const Tensor& input, double scale, int64_t zero_point,
                              int64_t low, int64_t high, int64_t type, Tensor& out) {
  return quantize_by_tensor(context, input, scale, static_cast<double>(zero_point), low, high, type, out);
}
Error quantize_per_tensor_tensor_out(Context& context, const Tensor& input, const Tensor& scale,
                                     const Tensor& zero_point, int64_t low, int64_t high, int64_t type,
                                     Tensor& out) {
  double s, z;
  TORCHETTE_TRY(scalar_of("quantize_per_tensor", scale, s));
  TORCHETTE_TRY(scalar_of("quantize_per_tensor", zero_point, z));
  return quantize_by_tensor(context, input, s, z, low, high, type, out);
}
Error dequantize_per_tensor_out(Context& context, const Tensor& input, double scale, int64_t zero_point,
                                int64_t low, int64_t high, int64_t type, Optional<int64_t>, Tensor& out) {
  return dequantize_by_tensor(context, input, scale, static_cast<double>(zero_point), low, high, type, out);
}
Error dequantize_per_tensor_tensor_out(Context& context, const Tensor& input, const Tensor& scale,
                                       const Tensor& zero_point, int64_t low, int64_t high, int64_t type,
                                       Optional<int64_t>, Tensor& out) {
  double s, z;
  TORCHETTE_TRY(scalar_of("dequantize_per_tensor", scale, s));
  TORCHETTE_TRY(scalar_of("dequantize_per_tensor", zero_point, z));
  return dequantize_by_tensor(context, input, s, z, low, high, type, out);
}

Error axis_of(const char* what, const Tensor& input, int64_t axis, Lines& lines) {
  TORCHETTE_CHECK(input.dim() > 0, InvalidArgument, "%s: input has no dimensions", what);
  TORCHETTE_TRY(wrap_dim(axis, static_cast<size_t>(input.dim())));
  lines = Lines::of_axis(input, static_cast<size_t>(axis));
  return Error::Ok;
}
Error quantize_per_channel_out(Context& context, const Tensor& input, const Tensor& scales,
                               const Tensor& zero_points, int64_t axis, int64_t low, int64_t high,
                               int64_t type, Tensor& out) {
  Lines lines;
  TORCHETTE_TRY(axis_of("quantize_per_channel", input, axis, lines));
  Step step = {};
  step.low = low;
  step.high = high;
  return quantize_lines(context, "quantize_per_channel", lines, input, scales, zero_points, step, type, out);
}
Error dequantize_per_channel_out(Context& context, const Tensor& input, const Tensor& scales,
                                 const Optional<Tensor>& zero_points, int64_t axis, int64_t low, int64_t high,
                                 int64_t type, Optional<int64_t>, Tensor& out) {
  Lines lines;
  TORCHETTE_TRY(axis_of("dequantize_per_channel", input, axis, lines));
  TORCHETTE_TRY(check_type("dequantize_per_channel", input, type));
  TORCHETTE_TRY(check_range("dequantize_per_channel", input.scalar_type(), low, high));
  return dequantize_lines(context, "dequantize_per_channel", lines, input, scales, zero_points, out);
}

/// A token is a row along the last dimension.
Error tokens_of(const char* what, const Tensor& input, Lines& lines) {
  TORCHETTE_CHECK(input.dim() > 0, InvalidArgument, "%s: input has no dimensions", what);
  size_t tokens = 1;
  for (ptrdiff_t d = 0; d + 1 < input.dim(); ++d)
    tokens *= static_cast<size_t>(input.sizes()[static_cast<size_t>(d)]);
  lines = {tokens, tokens, static_cast<size_t>(input.size(input.dim() - 1))};
  return Error::Ok;
}
Error quantize_per_token_out(Context& context, const Tensor& input, const Tensor& scales,
                             const Tensor& zero_points, int64_t low, int64_t high, int64_t type,
                             Tensor& out) {
  Lines lines;
  TORCHETTE_TRY(tokens_of("quantize_per_token", input, lines));
  Step step = {};
  step.low = low;
  step.high = high;
  step.zero_first = true;
  return quantize_lines(context, "quantize_per_token", lines, input, scales, zero_points, step, type, out);
}
Error dequantize_per_token_out(Context& context, const Tensor& input, const Tensor& scales,
                               const Tensor& zero_points, int64_t low, int64_t high, int64_t type,
                               int64_t output_type, Tensor& out) {
  Lines lines;
  TORCHETTE_TRY(tokens_of("dequantize_per_token", input, lines));
  TORCHETTE_TRY(check_type("dequantize_per_token", input, type));
  TORCHETTE_TRY(check_type("dequantize_per_token", out, output_type));
  TORCHETTE_TRY(check_range("dequantize_per_token", input.scalar_type(), low, high));
  return dequantize_lines(context, "dequantize_per_token", lines, input, scales, zero_points, out);
}

/// Computes quantize(dequantize(a) + dequantize(b)).
Error add_out(Context& context, const Tensor& a, double a_scale, int64_t a_zero, int64_t a_low,
              int64_t a_high, const Tensor& b, double b_scale, int64_t b_zero, int64_t b_low, int64_t b_high,
              double out_scale, int64_t out_zero, int64_t low, int64_t high, Tensor& out) {
  constexpr const char* kName = "quantized add";
  TORCHETTE_TRY(check_range(kName, a.scalar_type(), a_low, a_high));
  TORCHETTE_TRY(check_range(kName, b.scalar_type(), b_low, b_high));
  TORCHETTE_TRY(check_range(kName, out.scalar_type(), low, high));
  bool same = a.dim() == b.dim();
  for (size_t d = 0; same && d < a.sizes().size(); ++d) same = a.sizes()[d] == b.sizes()[d];
  TORCHETTE_CHECK(same, InvalidArgument, "%s: a and b differ in their sizes", kName);
  TORCHETTE_TRY(resize_result(out, a.sizes()));
  Dense left, right, to;
  TORCHETTE_TRY(left.read(context, a, a.scalar_type()));
  TORCHETTE_TRY(right.read(context, b, b.scalar_type()));
  TORCHETTE_TRY(to.open(context, out, out.scalar_type()));
  Step one = {}, two = {}, last = {};
  one.load = load_as(a.scalar_type(), kF32);
  two.load = load_as(b.scalar_type(), kF32);
  last.load = one.store = two.store = load_as(ScalarType::Float, kF32);
  last.store = store_as(kF32, out.scalar_type());
  last.from_size = one.to_size = two.to_size = sizeof(float);
  one.from_size = a.element_size();
  two.from_size = b.element_size();
  last.to_size = out.element_size();
  last.low = low;
  last.high = high;
  context.parallel_for(
      (static_cast<size_t>(a.numel()) + kChunk - 1) / kChunk, kMinWork / kChunk,
      [&](size_t begin, size_t end, size_t) {
        for (size_t i = begin * kChunk, n; i < end * kChunk && i < static_cast<size_t>(a.numel()); i += n) {
          n = static_cast<size_t>(a.numel()) - i < kChunk ? static_cast<size_t>(a.numel()) - i : kChunk;
          const auto at = static_cast<ptrdiff_t>(i);
          float x[kChunk], y[kChunk];
          dequantize_line(one, left.data<char>() + at * one.from_size, reinterpret_cast<char*>(x), n,
                          static_cast<float>(a_scale), static_cast<float>(a_zero));
          dequantize_line(two, right.data<char>() + at * two.from_size, reinterpret_cast<char*>(y), n,
                          static_cast<float>(b_scale), static_cast<float>(b_zero));
          for (size_t j = 0; j < n; ++j) x[j] += y[j];
          quantize_line(last, reinterpret_cast<const char*>(x), to.data<char>() + at * last.to_size, n,
                        static_cast<float>(1.0 / out_scale), static_cast<float>(out_zero));
        }
      });
  return to.finish();
}

/// Minimum and maximum of n floats and 0. NaN propagates.
void range_of(const float* x, size_t n, float& min_value, float& max_value) {
  min_value = max_value = 0;
  for (size_t i = 0; i < n; ++i) {
    if (x[i] < min_value || x[i] != x[i]) min_value = x[i];
    if (x[i] > max_value || x[i] != x[i]) max_value = x[i];
  }
}
float at_least(float scale, float min_value) { return scale < min_value ? min_value : scale; }
double clamped(float x, float low, float high) {
  return static_cast<double>(x < low ? low : x > high ? high : x);
}

void store_scalar(const Tensor& t, double value) {
  store_as(kF64, t.scalar_type())(&value, 1, t.mutable_data_ptr(), 1);
}

Error choose_qparams_out(Context& context, const Tensor& input, int64_t low, int64_t high, double epsilon,
                         int64_t type, Tensor& scale_out, Tensor& zero_point_out) {
  constexpr const char* kName = "choose_qparams";
  TORCHETTE_TRY(check_real(kName, input, "input"));
  TORCHETTE_TRY(check_range(kName, static_cast<ScalarType>(type), low, high));
  TORCHETTE_CHECK(low < high && input.numel() > 0, InvalidArgument,
                  "%s: quant_min %d, quant_max %d, %d elements", kName, static_cast<int>(low),
                  static_cast<int>(high), static_cast<int>(input.numel()));
  TORCHETTE_CHECK(is_real(scale_out.scalar_type()) && is_real(zero_point_out.scalar_type()), InvalidType,
                  "%s: scale_out is of type %d, zero_point_out of type %d", kName,
                  static_cast<int>(scale_out.scalar_type()), static_cast<int>(zero_point_out.scalar_type()));
  const SizesType one[] = {1};
  TORCHETTE_TRY(resize_result(scale_out, {one, 1}, "scale_out"));
  TORCHETTE_TRY(resize_result(zero_point_out, {one, 1}, "zero_point_out"));
  Dense from;
  TORCHETTE_TRY(from.read(context, input, ScalarType::Float));
  float min_value, max_value;
  range_of(from.data<float>(), static_cast<size_t>(input.numel()), min_value, max_value);
  const float scale =
      at_least((max_value - min_value) / static_cast<float>(high - low), static_cast<float>(epsilon));
  const float steps = std::rint(min_value / scale);
  store_scalar(scale_out, static_cast<double>(scale));
  store_scalar(zero_point_out,
               clamped(static_cast<float>(low) - steps, static_cast<float>(low), static_cast<float>(high)));
  return Error::Ok;
}

Error choose_qparams_per_token_asymmetric_out(Context& context, const Tensor& input, int64_t,
                                              Tensor& scale_out, Tensor& zero_point_out) {
  constexpr const char* kName = "choose_qparams_per_token_asymmetric";
  TORCHETTE_TRY(check_real(kName, input, "input"));
  Lines lines;
  TORCHETTE_TRY(tokens_of(kName, input, lines));
  TORCHETTE_CHECK(lines.length > 0, InvalidArgument, "%s: input has tokens of size 0", kName);
  SizesType sizes[kMaxDim];
  const auto rank = static_cast<size_t>(input.dim());
  for (size_t d = 0; d < rank; ++d) sizes[d] = d + 1 < rank ? input.sizes()[d] : 1;
  TORCHETTE_TRY(resize_result(scale_out, {sizes, rank}, "scale_out"));
  TORCHETTE_TRY(resize_result(zero_point_out, {sizes, rank}, "zero_point_out"));
  Dense from, scales, zeros;
  TORCHETTE_TRY(from.read(context, input, ScalarType::Float));
  TORCHETTE_TRY(scales.open(context, scale_out, ScalarType::Double));
  TORCHETTE_TRY(zeros.open(context, zero_point_out, ScalarType::Long));
  constexpr float kLow = -128, kHigh = 127;
  for (size_t i = 0; i < lines.count; ++i) {
    float min_value, max_value;
    range_of(from.data<float>() + i * lines.length, lines.length, min_value, max_value);
    const float scale = at_least((max_value - min_value) / (kHigh - kLow), 1.1920928955078125e-07f);
    const float below = min_value / scale, above = max_value / scale;
    const float from_least = kLow + below, from_most = kHigh + above;
    const float zero = from_least + from_most > 0 ? kLow - below : kHigh - above;
    scales.data<double>()[i] = static_cast<double>(scale);
    const double rounded =
        std::rint(clamped(zero, kLow, kHigh));  // may be NaN, which a cast must not receive
    store_as(kF64, ScalarType::Long)(&rounded, 1, zeros.data<int64_t>() + i, 1);
  }
  TORCHETTE_TRY(scales.finish());
  return zeros.finish();
}

// --- Mixed-dtype matrix multiplications ---

/// Multiplies input [m, k] by an int8 weight with scales. The weight is [k, n] with one scale per row or, if
/// `transposed`, [n, k] with one or more scales per row, each for a group of consecutive elements. Errors:
/// NotSupported for zero points, which the reference does not support either.
Error mixed(Context& context, const char* what, bool transposed, const Tensor& input, const Tensor& weight,
            const Tensor& scales, const Optional<Tensor>& zero_points, const Tensor& out) {
  TORCHETTE_TRY(check_real(what, input, "input"));
  TORCHETTE_TRY(check_real(what, scales, "scales"));
  TORCHETTE_TRY(check_real(what, out, "out"));
  TORCHETTE_CHECK(!zero_points.has_value(), NotSupported, "%s: weight_zero_points are not supported", what);
  TORCHETTE_CHECK(input.dim() == 2 && weight.dim() == 2 && weight.scalar_type() == ScalarType::Char &&
                      weight.size(transposed ? 1 : 0) == input.size(1),
                  InvalidArgument, "%s: weight of type %d with %d elements for input with %d", what,
                  static_cast<int>(weight.scalar_type()), static_cast<int>(weight.numel()),
                  static_cast<int>(input.numel()));
  const auto m = static_cast<size_t>(input.size(0)), k = static_cast<size_t>(input.size(1));
  const auto n = static_cast<size_t>(weight.size(transposed ? 0 : 1));
  const auto groups = scales.dim() == 2 ? static_cast<size_t>(scales.size(1)) : 1;
  TORCHETTE_CHECK(
      (scales.dim() == 1 || (transposed && scales.dim() == 2)) && scales.size(0) == weight.size(0) &&
          groups > 0 && k % groups == 0,
      InvalidArgument, "%s: weight_scales of %d dimensions with %d elements for a weight of %d rows", what,
      static_cast<int>(scales.dim()), static_cast<int>(scales.numel()), static_cast<int>(weight.size(0)));
  const SizesType sizes[] = {static_cast<SizesType>(m), static_cast<SizesType>(n)};
  TORCHETTE_TRY(resize_result(out, {sizes, 2}));
  Dense x, w, scale, y;
  TORCHETTE_TRY(x.read(context, input, ScalarType::Float));
  TORCHETTE_TRY(w.read(context, weight, ScalarType::Char));
  TORCHETTE_TRY(scale.read(context, scales, ScalarType::Float));
  TORCHETTE_TRY(y.open(context, out, ScalarType::Float));
  const float* const factors = scale.data<float>();
  const size_t group = k / groups;
  context.parallel_for(m, kMinWork / (n * k + 1) + 1, [&](size_t begin, size_t end, size_t) {
    for (size_t i = begin; i < end; ++i) {
      const float* const row = x.data<float>() + i * k;
      float* const to = y.data<float>() + i * n;
      for (size_t j = 0; j < n; ++j) to[j] = 0;
      for (size_t l = 0; !transposed && l < k; ++l) {
        const float factor = row[l] * factors[l];
        for (size_t j = 0; j < n; ++j) to[j] += factor * static_cast<float>(w.data<int8_t>()[l * n + j]);
      }
      for (size_t j = 0; transposed && j < n; ++j)
        for (size_t g = 0; g < groups; ++g) {
          float sum = 0;
          for (size_t l = g * group; l < (g + 1) * group; ++l)
            sum += row[l] * static_cast<float>(w.data<int8_t>()[j * k + l]);
          to[j] += sum * factors[j * groups + g];
        }
    }
  });
  return y.finish();
}
Error mixed_mm_out(Context& context, const Tensor& input, const Tensor& weight, const Tensor& scales,
                   const Optional<Tensor>& zero_points, Tensor& out) {
  return mixed(context, "mixed_mm", false, input, weight, scales, zero_points, out);
}
Error mixed_linear_out(Context& context, const Tensor& input, const Tensor& weight, const Tensor& scales,
                       const Optional<Tensor>& zero_points, Optional<int64_t>, Tensor& out) {
  return mixed(context, "mixed_linear", true, input, weight, scales, zero_points, out);
}

// --- Embeddings ---

/// Unpacks `n` values of a row, starting at index `at`. A byte contains the first of its values in the
/// highest bits if kBits is 4, in the lowest bits if kBits is 2.
template <int kBits>
void unpack_values(const uint8_t* row, size_t at, size_t n, float* v) {
  constexpr size_t kPerByte = 8 / kBits;
  constexpr int kMiddle = kBits == 8 ? 0 : 1 << (kBits - 1), kMask = (1 << kBits) - 1;
  const auto unpack = [](int byte, size_t part) {
    const size_t position = kBits == 4 ? 4 - 4 * part : kBits * part;
    return static_cast<float>((byte >> position & kMask) - kMiddle);
  };
  size_t j = 0;
  if (at % kPerByte == 0)
    for (; j + kPerByte <= n; j += kPerByte)
      for (size_t part = 0; part < kPerByte; ++part) v[j + part] = unpack(row[(at + j) / kPerByte], part);
  for (; j < n; ++j) v[j] = unpack(row[(at + j) / kPerByte], (at + j) % kPerByte);
}

/// Embedding with rows of `bits`-bit values. Each group of a row has its own scale.
Error embedding(Context& context, unsigned bits, const Tensor& weight, const Tensor& scales,
                const Optional<Tensor>& zero_points, const Tensor& indices, Tensor& out) {
  constexpr const char* what = "embedding of integers";
  const size_t per_byte = 8 / bits;
  const bool is_signed = weight.scalar_type() == ScalarType::Char;
  TORCHETTE_CHECK(weight.dim() == 2 && (weight.scalar_type() == ScalarType::Byte || (bits == 8 && is_signed)),
                  InvalidType, "%s: weight has %d dimensions and is of type %d", what,
                  static_cast<int>(weight.dim()), static_cast<int>(weight.scalar_type()));
  const ScalarType index_type = indices.scalar_type();
  TORCHETTE_CHECK((index_type == ScalarType::Long || index_type == ScalarType::Int) &&
                      static_cast<size_t>(indices.dim()) < kMaxDim,
                  InvalidType, "%s: indices are of type %d and have %d dimensions", what,
                  static_cast<int>(index_type), static_cast<int>(indices.dim()));
  TORCHETTE_TRY(check_real(what, scales, "scales"));
  TORCHETTE_TRY(check_real(what, out, "out"));
  const auto rows = static_cast<size_t>(weight.sizes()[0]);
  const size_t columns = static_cast<size_t>(weight.sizes()[1]) * per_byte;
  const size_t groups = scales.dim() == 2 ? static_cast<size_t>(scales.sizes()[1]) : 1;
  const auto fits = [&](const Tensor& t) {
    return (t.dim() == 1 || t.dim() == 2) && static_cast<size_t>(t.sizes()[0]) == rows &&
           static_cast<size_t>(t.numel()) == rows * groups;
  };
  TORCHETTE_CHECK(fits(scales) && groups > 0 && columns % groups == 0 &&
                      (!zero_points.has_value() ||
                       (fits(*zero_points) && zero_points->scalar_type() == scales.scalar_type())),
                  InvalidArgument, "%s: %d scales and %d zero points do not fit %d rows of %d values", what,
                  static_cast<int>(scales.numel()),
                  static_cast<int>(zero_points.has_value() ? zero_points->numel() : -1),
                  static_cast<int>(rows), static_cast<int>(columns));
  SizesType sizes[kMaxDim];
  const auto rank = static_cast<size_t>(indices.dim());
  for (size_t d = 0; d < rank; ++d) sizes[d] = indices.sizes()[d];
  sizes[rank] = static_cast<SizesType>(columns);
  TORCHETTE_TRY(resize_result(out, {sizes, rank + 1}));
  Dense bytes, scale, zero, index, to;
  TORCHETTE_TRY(bytes.read(context, weight, weight.scalar_type()));
  TORCHETTE_TRY(scale.read(context, scales, scales.scalar_type()));
  if (zero_points.has_value()) TORCHETTE_TRY(zero.read(context, *zero_points, scales.scalar_type()));
  TORCHETTE_TRY(index.read(context, indices, ScalarType::Long));
  TORCHETTE_TRY(to.open(context, out, out.scalar_type()));
  Step step = {};
  step.store = store_as(kF32, out.scalar_type());
  TORCHETTE_CHECK(scales.scalar_type() != ScalarType::Double, InvalidType, "%s: scales are doubles", what);
  if (scales.element_size() == 2) {
    step.to_narrow = store_as(kF32, scales.scalar_type());
    step.from_narrow = load_as(scales.scalar_type(), kF32);
  }
  const size_t length = columns / groups;
  char* y = to.data<char>();
  for (size_t i = 0; i < static_cast<size_t>(indices.numel()); ++i) {
    const int64_t row = index.data<int64_t>()[i];
    TORCHETTE_CHECK(row >= 0 && static_cast<size_t>(row) < rows, InvalidArgument,
                    "%s: index %lld is out of range for %d rows", what, static_cast<long long>(row),
                    static_cast<int>(rows));
    const auto* packed = bytes.data<uint8_t>() + static_cast<size_t>(row) * (columns / per_byte);
    for (size_t at = 0, n; at < columns; at += n) {
      const size_t group = at / length, ends = (group + 1) * length;
      n = ends - at < kChunk ? ends - at : kChunk;
      const auto position = static_cast<ptrdiff_t>(static_cast<size_t>(row) * groups + group);
      const auto s = static_cast<float>(element_at(scale.tensor(), position));
      const float z =
          zero_points.has_value() ? static_cast<float>(element_at(zero.tensor(), position)) : 0.0f;
      float v[kChunk];
      if (bits == 8 && is_signed)
        for (size_t j = 0; j < n; ++j) v[j] = static_cast<int8_t>(packed[at + j]);
      else
        (bits == 8 ? unpack_values<8> : bits == 4 ? unpack_values<4> : unpack_values<2>)(packed, at, n, v);
      for (size_t j = 0; j < n; ++j) v[j] -= z;
      narrow(step, v, n);
      for (size_t j = 0; j < n; ++j) v[j] *= s;
      narrow(step, v, n);
      step.store(v, 1, y + static_cast<ptrdiff_t>(i * columns + at) * out.element_size(), n);
    }
  }
  return to.finish();
}

template <int kBits>
Error embedding_out(Context& context, const Tensor& weight, const Tensor& scales,
                    const Optional<Tensor>& zero_points, int64_t, int64_t, const Tensor& indices,
                    Tensor& out) {
  return embedding(context, kBits, weight, scales, zero_points, indices, out);
}
template <int kBits>
Error embedding_dtype_out(Context& context, const Tensor& weight, const Tensor& scales,
                          const Optional<Tensor>& zero_points, int64_t, int64_t, const Tensor& indices,
                          Optional<int64_t>, Tensor& out) {
  return embedding(context, kBits, weight, scales, zero_points, indices, out);
}

/// torchette/backends/engine/operators/weight_only_embedding.py
Error weight_only_embedding_out(Context& context, const Tensor& weight, const Tensor& scales,
                                const Optional<Tensor>& zeros, int64_t bits, const Tensor& indices,
                                Tensor& out) {
  TORCHETTE_CHECK(bits == 8 || bits == 4 || bits == 2, InvalidArgument,
                  "weight_only_embedding: bits is %lld, expected 8, 4 or 2", static_cast<long long>(bits));
  return embedding(context, static_cast<unsigned>(bits), weight, scales, zeros, indices, out);
}

}  // namespace

TORCHETTE_KERNELS_ONCE(
    quantized, TORCHETTE_KERNEL("cpu::weight_only_embedding.out", weight_only_embedding_out),
    TORCHETTE_KERNEL("quantized_decomposed::add.out", add_out),
    TORCHETTE_KERNEL("quantized_decomposed::mixed_mm.out", mixed_mm_out),
    TORCHETTE_KERNEL("quantized_decomposed::mixed_linear.out", mixed_linear_out),
    TORCHETTE_KERNEL("quantized_decomposed::quantize_per_tensor.out", quantize_per_tensor_out),
    TORCHETTE_KERNEL("quantized_decomposed::quantize_per_tensor.Tensor_out", quantize_per_tensor_tensor_out),
    TORCHETTE_KERNEL("quantized_decomposed::dequantize_per_tensor.out", dequantize_per_tensor_out),
    TORCHETTE_KERNEL("quantized_decomposed::dequantize_per_tensor.Tensor_out",
                     dequantize_per_tensor_tensor_out),
    TORCHETTE_KERNEL("quantized_decomposed::quantize_per_channel.out", quantize_per_channel_out),
    TORCHETTE_KERNEL("quantized_decomposed::dequantize_per_channel.out", dequantize_per_channel_out),
    TORCHETTE_KERNEL("quantized_decomposed::quantize_per_token.out", quantize_per_token_out),
    TORCHETTE_KERNEL("quantized_decomposed::dequantize_per_token.out", dequantize_per_token_out),
    TORCHETTE_KERNEL("quantized_decomposed::choose_qparams.Tensor_out", choose_qparams_out),
    TORCHETTE_KERNEL("quantized_decomposed::choose_qparams_per_token_asymmetric.out",
                     choose_qparams_per_token_asymmetric_out),
    TORCHETTE_KERNEL("quantized_decomposed::embedding_byte.out", embedding_out<8>),
    TORCHETTE_KERNEL("quantized_decomposed::embedding_byte.dtype_out", embedding_dtype_out<8>),
    TORCHETTE_KERNEL("quantized_decomposed::embedding_4bit.out", embedding_out<4>),
    TORCHETTE_KERNEL("quantized_decomposed::embedding_4bit.dtype_out", embedding_dtype_out<4>),
    TORCHETTE_KERNEL("quantized_decomposed::embedding_2bit.out", embedding_out<2>),
    TORCHETTE_KERNEL("quantized_decomposed::embedding_2bit.dtype_out", embedding_dtype_out<2>))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
