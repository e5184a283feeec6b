// SPDX-License-Identifier: BSD-3-Clause
// Normalizations: native_layer_norm, native_group_norm and batch norms. Mean and variance use two vectorized
// passes, so that a large mean does not reduce the accuracy.
#include <cmath>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/simd.h"

namespace torchette {
namespace TORCHETTE_ISA {

template <typename Math>
struct Moments {
  Math mean;
  Math variance;  // biased
};

/// Moments of n > 0 contiguous floats.
static Moments<float> moments(const float* x, size_t n) {
  Vec sum[4] = {};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) TORCHETTE_UNROLL(4)
  for (int j = 0; j < 4; ++j) sum[j] += load(x + i + static_cast<size_t>(j) * kLanes);
  for (; i < n; i += kLanes) sum[0] += load_partial(x + i, n - i < kLanes ? n - i : kLanes);
  const float mean = horizontal_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / static_cast<float>(n);
  const Vec center = broadcast(mean);
  Vec squares[4] = {};
  for (i = 0; i + 4 * kLanes <= n; i += 4 * kLanes) TORCHETTE_UNROLL(4)
  for (int j = 0; j < 4; ++j) {
    const Vec d = load(x + i + static_cast<size_t>(j) * kLanes) - center;
    squares[j] = fma(d, d, squares[j]);
  }
  for (; i + kLanes <= n; i += kLanes) {
    const Vec d = load(x + i) - center;
    squares[0] = fma(d, d, squares[0]);
  }
  float tail = 0;
  for (; i < n; ++i) tail += (x[i] - mean) * (x[i] - mean);
  const float total = horizontal_sum((squares[0] + squares[1]) + (squares[2] + squares[3])) + tail;
  return {mean, total / static_cast<float>(n)};
}

template <typename Math, typename T>
static Moments<Math> moments(const T* x, size_t n) {
  Math sum = 0, squares = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<Math>(x[i]);
  const Math mean = sum / static_cast<Math>(n);
  for (size_t i = 0; i < n; ++i)
    squares += (static_cast<Math>(x[i]) - mean) * (static_cast<Math>(x[i]) - mean);
  return {mean, squares / static_cast<Math>(n)};
}

template <typename T, typename Math>
static Moments<Math> moments_of(const T* x, size_t n) {
  if constexpr (sizeof(T) == 4)
    return moments(x, n);
  else
    return moments<Math>(x, n);
}

/// y = x * scale + shift with a single scale.
template <typename T, typename Math>
static void affine(const T* x, T* y, size_t n, Math scale, Math shift) {
  if constexpr (sizeof(T) == 4) {
    const Vec a = broadcast(scale), b = broadcast(shift);
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(y + i, fma(load(x + i), a, b));
    if (i < n) store_partial(y + i, fma(load_partial(x + i, n - i), a, b), n - i);
  } else {
    for (size_t i = 0; i < n; ++i) y[i] = static_cast<T>(static_cast<Math>(x[i]) * scale + shift);
  }
}

/// y = (x - mean) * rstd * weight + bias, elementwise; weight and bias may be null.
template <typename T, typename Math>
static void normalise(const T* x, T* y, size_t n, Math mean, Math rstd, const T* weight, const T* bias) {
  if constexpr (sizeof(T) == 4) {
    const Vec center = broadcast(mean), factor = broadcast(rstd);
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      Vec v = (load(x + i) - center) * factor;
      if (weight != nullptr) v = v * load(weight + i);
      if (bias != nullptr) v = v + load(bias + i);
      store(y + i, v);
    }
    for (; i < n; ++i) {
      const float w = weight != nullptr ? weight[i] : 1.0f, b = bias != nullptr ? bias[i] : 0.0f;
      y[i] = (x[i] - mean) * rstd * w + b;
    }
  } else {
    for (size_t i = 0; i < n; ++i) {
      const Math w = weight != nullptr ? static_cast<Math>(weight[i]) : Math(1);
      const Math b = bias != nullptr ? static_cast<Math>(bias[i]) : Math(0);
      y[i] = static_cast<T>((static_cast<Math>(x[i]) - mean) * rstd * w + b);
    }
  }
}

/// Returns the data of an optional tensor, or null.
template <typename T>
static const T* data_of(const Optional<Tensor>& t) {
  return t.has_value() ? t->const_data_ptr<T>() : nullptr;
}

/// Calls `body` with values of the types (T, Math) of a floating dtype.
template <typename Body>
static Error for_floating(ScalarType type, const Body& body) {
  const auto built = [&](auto t, auto math) {
    if constexpr (has_dtype(kScalarType<decltype(t)>)) body(t, math);
    return Error::Ok;
  };
  switch (type) {
    case ScalarType::Float:
      return built(float(), float());
    case ScalarType::Double:
      return built(double(), double());
    case ScalarType::Half:
      return built(Half(0.0f), float());
    case ScalarType::BFloat16:
      return built(BFloat16(0.0f), float());
    default:
      TORCHETTE_CHECK(false, InvalidType, "input is of unsupported type %d", static_cast<int>(type));
  }
}

static Error check_parameter(const Optional<Tensor>& t, ScalarType type, ptrdiff_t count, const char* what) {
  TORCHETTE_CHECK(!t.has_value() || (t->scalar_type() == type && t->numel() == count && is_contiguous(*t)),
                  InvalidArgument, "%s must be contiguous and have %d elements of the type of input", what,
                  static_cast<int>(count));
  return Error::Ok;
}

static Error check_same(const Tensor& input, const Tensor& a, const Tensor& b, const Tensor& c) {
  const ScalarType type = input.scalar_type();
  TORCHETTE_CHECK(a.scalar_type() == type && b.scalar_type() == type && c.scalar_type() == type, InvalidType,
                  "input is of type %d, which differs from a result, running_mean or running_var",
                  static_cast<int>(type));
  return Error::Ok;
}

static Error native_layer_norm_out(Context& context, const Tensor& input,
                                   Span<const int64_t> normalized_shape, Optional<Tensor> weight,
                                   Optional<Tensor> bias, double eps, Tensor& out, Tensor& mean_out,
                                   Tensor& rstd_out) {
  TORCHETTE_TRY(check_same(input, out, mean_out, rstd_out));
  const auto d = static_cast<size_t>(input.dim()), inner = normalized_shape.size();
  TORCHETTE_CHECK(inner >= 1 && inner <= d, InvalidArgument,
                  "layer_norm: normalized_shape has %zu elements, input has %zu dimensions", inner, d);
  SizesType sizes[kMaxDim];
  size_t rows = 1, n = 1;
  for (size_t i = 0; i < d; ++i) {
    const SizesType size = input.sizes()[i];
    const bool is_row = i + inner < d;
    TORCHETTE_CHECK(is_row || normalized_shape[i + inner - d] == size, InvalidArgument,
                    "layer_norm: normalized_shape differs from the last sizes of input");
    sizes[i] = is_row ? size : 1;
    (is_row ? rows : n) *= static_cast<size_t>(size);
  }
  TORCHETTE_TRY(check_parameter(weight, input.scalar_type(), static_cast<ptrdiff_t>(n), "weight"));
  TORCHETTE_TRY(check_parameter(bias, input.scalar_type(), static_cast<ptrdiff_t>(n), "bias"));
  TORCHETTE_TRY(resize_result(out, input.sizes(), "out0"));
  TORCHETTE_TRY(resize_result(mean_out, {sizes, d}, "out1"));
  TORCHETTE_TRY(resize_result(rstd_out, {sizes, d}, "out2"));
  Dense from, to;
  TORCHETTE_TRY(from.read(context, input, input.scalar_type()));
  TORCHETTE_TRY(to.open(context, out, out.scalar_type()));
  TORCHETTE_TRY(for_floating(input.scalar_type(), [&](auto t, auto m) {
    using T = decltype(t);
    using Math = decltype(m);
    const T* x = from.data<T>();
    T* y = to.data<T>();
    for (size_t r = 0; r < rows; ++r, x += n, y += n) {
      const Moments<Math> found = moments_of<T, Math>(x, n);
      const Math rstd = Math(1) / std::sqrt(found.variance + static_cast<Math>(eps));
      mean_out.mutable_data_ptr<T>()[r] = static_cast<T>(found.mean);
      rstd_out.mutable_data_ptr<T>()[r] = static_cast<T>(rstd);
      normalise<T, Math>(x, y, n, found.mean, rstd, data_of<T>(weight), data_of<T>(bias));
    }
  }));
  return to.finish();
}

static Error native_group_norm_out(Context& context, const Tensor& input, Optional<Tensor> weight,
                                   Optional<Tensor> bias, int64_t batch, int64_t channels, int64_t plane,
                                   int64_t groups, double eps, Tensor& out, Tensor& mean_out,
                                   Tensor& rstd_out) {
  TORCHETTE_TRY(check_same(input, out, mean_out, rstd_out));
  TORCHETTE_CHECK(
      batch >= 0 && channels >= 0 && plane >= 0 && batch <= INT32_MAX && channels <= INT32_MAX &&
          plane <= INT32_MAX && groups >= 1 && groups <= INT32_MAX && channels % groups == 0 &&
          batch * channels <= INT32_MAX && batch * channels * plane == input.numel(),
      InvalidArgument, "group_norm: input of %d elements does not fit N %lld, C %lld, HxW %lld, group %lld",
      static_cast<int>(input.numel()), static_cast<long long>(batch), static_cast<long long>(channels),
      static_cast<long long>(plane), static_cast<long long>(groups));
  TORCHETTE_TRY(check_parameter(weight, input.scalar_type(), static_cast<ptrdiff_t>(channels), "weight"));
  TORCHETTE_TRY(check_parameter(bias, input.scalar_type(), static_cast<ptrdiff_t>(channels), "bias"));
  TORCHETTE_TRY(resize_result(out, input.sizes(), "out0"));
  const SizesType sizes[] = {static_cast<SizesType>(batch), static_cast<SizesType>(groups)};
  TORCHETTE_TRY(resize_result(mean_out, {sizes, 2}, "out1"));
  TORCHETTE_TRY(resize_result(rstd_out, {sizes, 2}, "out2"));
  Dense from, to;
  TORCHETTE_TRY(from.read(context, input, input.scalar_type()));
  TORCHETTE_TRY(to.open(context, out, out.scalar_type()));
  const auto of_group = static_cast<size_t>(channels / groups), hw = static_cast<size_t>(plane);
  TORCHETTE_TRY(for_floating(input.scalar_type(), [&](auto t, auto m) {
    using T = decltype(t);
    using Math = decltype(m);
    const T* x = from.data<T>();
    T* y = to.data<T>();
    const T *w = data_of<T>(weight), *b = data_of<T>(bias);
    for (size_t row = 0; row < static_cast<size_t>(batch * groups); ++row) {
      const Moments<Math> found = moments_of<T, Math>(x, of_group * hw);
      const Math rstd = Math(1) / std::sqrt(found.variance + static_cast<Math>(eps));
      mean_out.mutable_data_ptr<T>()[row] = static_cast<T>(found.mean);
      rstd_out.mutable_data_ptr<T>()[row] = static_cast<T>(rstd);
      for (size_t i = 0; i < of_group; ++i, x += hw, y += hw) {
        const size_t c = row % static_cast<size_t>(groups) * of_group + i;
        const Math scale = w != nullptr ? rstd * static_cast<Math>(w[c]) : rstd;
        const Math shift = (b != nullptr ? static_cast<Math>(b[c]) : Math(0)) - found.mean * scale;
        affine<T, Math>(x, y, hw, scale, shift);
      }
    }
  }));
  return to.finish();
}

/// [N, C, ...] as N planes per channel.
struct Channels {
  size_t batch, channels, plane;
};

static Error describe(const Tensor& input, const Optional<Tensor>& weight, const Optional<Tensor>& bias,
                      Channels& shape) {
  TORCHETTE_CHECK(input.dim() >= 2, InvalidArgument,
                  "batch_norm: input has %d dimensions, expected at least 2", static_cast<int>(input.dim()));
  shape = {static_cast<size_t>(input.size(0)), static_cast<size_t>(input.size(1)), 1};
  for (ptrdiff_t i = 2; i < input.dim(); ++i) shape.plane *= static_cast<size_t>(input.size(i));
  TORCHETTE_TRY(check_parameter(weight, input.scalar_type(), input.size(1), "weight"));
  return check_parameter(bias, input.scalar_type(), input.size(1), "bias");
}

/// Inference with given statistics. `mean_out` and `rstd_out` become empty, as in eager mode on the CPU.
static Error batch_norm_no_training_out(Context& context, const Tensor& input, Optional<Tensor> weight,
                                        Optional<Tensor> bias, const Tensor& running_mean,
                                        const Tensor& running_var, double, double eps, Tensor& out,
                                        Tensor& mean_out, Tensor& rstd_out) {
  TORCHETTE_TRY(check_same(input, out, running_mean, running_var));
  Channels shape;
  TORCHETTE_TRY(describe(input, weight, bias, shape));
  TORCHETTE_TRY(check_parameter(running_mean, input.scalar_type(), input.size(1), "running_mean"));
  TORCHETTE_TRY(check_parameter(running_var, input.scalar_type(), input.size(1), "running_var"));
  const SizesType none[] = {0};
  TORCHETTE_TRY(resize_result(out, input.sizes(), "out or out0"));
  TORCHETTE_TRY(resize_result(mean_out, {none, 1}, "save_mean or out1"));
  TORCHETTE_TRY(resize_result(rstd_out, {none, 1}, "save_invstd or out2"));
  Dense from, to;
  TORCHETTE_TRY(from.read(context, input, input.scalar_type()));
  TORCHETTE_TRY(to.open(context, out, out.scalar_type()));
  TORCHETTE_TRY(for_floating(input.scalar_type(), [&](auto t, auto m) {
    using T = decltype(t);
    using Math = decltype(m);
    const T* x = from.data<T>();
    T* y = to.data<T>();
    const T *w = data_of<T>(weight), *b = data_of<T>(bias);
    for (size_t i = 0; i < shape.batch * shape.channels; ++i, x += shape.plane, y += shape.plane) {
      const size_t c = i % shape.channels;
      const Math rstd =
          Math(1) / std::sqrt(static_cast<Math>(running_var.const_data_ptr<T>()[c]) + static_cast<Math>(eps));
      const Math scale = w != nullptr ? rstd * static_cast<Math>(w[c]) : rstd;
      const Math shift = (b != nullptr ? static_cast<Math>(b[c]) : Math(0)) -
                         static_cast<Math>(running_mean.const_data_ptr<T>()[c]) * scale;
      affine<T, Math>(x, y, shape.plane, scale, shift);
    }
  }));
  return to.finish();
}

/// Training: computes the statistics of the input, and updates the running statistics if there are any.
[[gnu::cold]] static Error batch_norm_training(Context& context, const Tensor& input,
                                               const Optional<Tensor>& weight, const Optional<Tensor>& bias,
                                               const Tensor* running_mean, const Tensor* running_var,
                                               double momentum, double eps, const Tensor& out,
                                               const Tensor& mean_out, const Tensor& rstd_out) {
  TORCHETTE_TRY(check_same(input, out, mean_out, rstd_out));
  Channels shape;
  TORCHETTE_TRY(describe(input, weight, bias, shape));
  const SizesType sizes[] = {static_cast<SizesType>(shape.channels)};
  TORCHETTE_TRY(resize_result(out, input.sizes()));
  TORCHETTE_TRY(resize_result(mean_out, {sizes, 1}, "save_mean"));
  TORCHETTE_TRY(resize_result(rstd_out, {sizes, 1}, "save_invstd"));
  Dense from, to;
  TORCHETTE_TRY(from.read(context, input, input.scalar_type()));
  TORCHETTE_TRY(to.open(context, out, out.scalar_type()));
  TORCHETTE_TRY(for_floating(input.scalar_type(), [&](auto t, auto m) {
    using T = decltype(t);
    using Math = decltype(m);
    const size_t step = shape.channels * shape.plane;
    for (size_t c = 0; c < shape.channels; ++c) {
      const T* x = from.data<T>() + c * shape.plane;
      T* y = to.data<T>() + c * shape.plane;
      // Merges the moments of the planes: the variance within them and between their means.
      Math mean = 0, variance = 0, sum = 0;
      for (size_t b = 0; b < shape.batch; ++b) {
        const Moments<Math> found = moments_of<T, Math>(x + b * step, shape.plane);
        sum += found.mean;
        const Math difference = found.mean - mean, share = Math(1) / static_cast<Math>(b + 1);
        mean += difference * share;
        variance += (found.variance - variance + difference * difference * (1 - share)) * share;
      }
      if (mean != mean) mean = sum / static_cast<Math>(shape.batch);  // infinity - infinity is NaN above
      if (running_mean != nullptr) {
        const auto follow = [momentum](T& value, Math found) {
          value = static_cast<T>(static_cast<Math>(value) * static_cast<Math>(1 - momentum) +
                                 found * static_cast<Math>(momentum));
        };
        const auto count = static_cast<Math>(shape.batch * shape.plane);
        follow(running_mean->mutable_data_ptr<T>()[c], mean);
        follow(running_var->mutable_data_ptr<T>()[c], variance * count / (count - 1));
      }
      const Math rstd = Math(1) / std::sqrt(variance + static_cast<Math>(eps));
      mean_out.mutable_data_ptr<T>()[c] = static_cast<T>(mean);
      rstd_out.mutable_data_ptr<T>()[c] = static_cast<T>(rstd);
      const Math scale = weight.has_value() ? rstd * static_cast<Math>(weight->const_data_ptr<T>()[c]) : rstd;
      const Math shift =
          (bias.has_value() ? static_cast<Math>(bias->const_data_ptr<T>()[c]) : Math(0)) - mean * scale;
      for (size_t b = 0; b < shape.batch; ++b)
        affine<T, Math>(x + b * step, y + b * step, shape.plane, scale, shift);
    }
  }));
  return to.finish();
}

static Error batch_norm_no_stats_out(Context& context, const Tensor& input, Optional<Tensor> weight,
                                     Optional<Tensor> bias, bool training, double momentum, double eps,
                                     Tensor& out, Tensor& mean_out, Tensor& rstd_out) {
  TORCHETTE_CHECK(training, InvalidArgument, "batch_norm: training must be true without running statistics");
  return batch_norm_training(context, input, weight, bias, nullptr, nullptr, momentum, eps, out, mean_out,
                             rstd_out);
}
static Error batch_norm_out(Context& context, const Tensor& input, Optional<Tensor> weight,
                            Optional<Tensor> bias, Tensor& running_mean, Tensor& running_var, bool training,
                            double momentum, double eps, Tensor& out, Tensor& mean_out, Tensor& rstd_out) {
  if (!training)
    return batch_norm_no_training_out(context, input, weight, bias, running_mean, running_var, momentum, eps,
                                      out, mean_out, rstd_out);
  TORCHETTE_CHECK(input.dim() >= 2, InvalidArgument,
                  "batch_norm: input has %d dimensions, expected at least 2", static_cast<int>(input.dim()));
  TORCHETTE_TRY(check_parameter(running_mean, input.scalar_type(), input.size(1), "running_mean"));
  TORCHETTE_TRY(check_parameter(running_var, input.scalar_type(), input.size(1), "running_var"));
  return batch_norm_training(context, input, weight, bias, &running_mean, &running_var, momentum, eps, out,
                             mean_out, rstd_out);
}

TORCHETTE_KERNELS_NARROW(norm, TORCHETTE_KERNEL("aten::native_layer_norm.out", native_layer_norm_out),
                         TORCHETTE_KERNEL("aten::native_group_norm.out", native_group_norm_out),
                         TORCHETTE_KERNEL("aten::_native_batch_norm_legit_no_training.out",
                                          batch_norm_no_training_out),
                         TORCHETTE_KERNEL("aten::_native_batch_norm_legit.out", batch_norm_out),
                         TORCHETTE_KERNEL("aten::_native_batch_norm_legit.no_stats_out",
                                          batch_norm_no_stats_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
