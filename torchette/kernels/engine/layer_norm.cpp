// SPDX-License-Identifier: BSD-3-Clause
// cpu::layer_norm and cpu::rms_norm: torchette/backends/engine/operators/norm.py. Mean and variance use two
// passes over a row in the L1 cache, so that a large mean does not reduce the accuracy.
#include <cmath>

#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/panels.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

/// Returns the sum of f(x) over a row. The last vector is zero-padded, so f(0) must be 0 or the caller must
/// correct for it.
template <typename F>
TORCHETTE_INLINE float sum_of(const float* x, size_t n, const F& f) {
  Vec sum[4] = {};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) TORCHETTE_UNROLL(4)
  for (int j = 0; j < 4; ++j) sum[j] += f(load(x + i + static_cast<size_t>(j) * kLanes));
  for (; i + kLanes <= n; i += kLanes) sum[0] += f(load(x + i));
  float tail = 0.0f;
  if (i < n) {
    float lanes[kLanes];
    store(lanes, f(load_partial(x + i, n - i)));
    for (size_t j = 0; j < n - i; ++j) tail += lanes[j];
  }
  return horizontal_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) + tail;
}

/// out = (x - mean) * factor * weight + bias
void normalize(const float* x, size_t n, float mean, float factor, const float* weight, const float* bias,
               float* out) {
  const Vec centre = broadcast(mean), by = broadcast(factor);
  for (size_t i = 0; i < n; i += kLanes) {
    const size_t here = n - i < kLanes ? n - i : kLanes;
    const auto get = [&](const float* p) TORCHETTE_INLINED {
      return here == kLanes ? load(p + i) : load_partial(p + i, here);
    };
    Vec y = (get(x) - centre) * by;
    if (weight != nullptr) y = bias != nullptr ? fma(y, get(weight), get(bias)) : y * get(weight);
    if (weight == nullptr && bias != nullptr) y += get(bias);
    if (here == kLanes)
      store(out + i, y);
    else
      store_partial(out + i, y, here);
  }
}

Error norm(Context& context, const char* op, const Tensor& input, const Optional<Tensor>& weight,
           const Optional<Tensor>& bias, Span<const int64_t> shape, double eps, bool centred, Tensor& out) {
  TORCHETTE_TRY(check_floats(op, input, "input"));
  const auto rank = static_cast<size_t>(input.dim());
  TORCHETTE_CHECK(shape.size() >= 1 && shape.size() <= rank, InvalidArgument,
                  "%s: shape has %d dimensions, input has %d", op, static_cast<int>(shape.size()),
                  static_cast<int>(rank));
  size_t n = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t size = input.size(static_cast<ptrdiff_t>(rank - shape.size() + d));
    TORCHETTE_CHECK(shape[d] == size, InvalidArgument,
                    "%s: dimension %d of input has %lld elements, expected %lld", op,
                    static_cast<int>(rank - shape.size() + d), static_cast<long long>(size),
                    static_cast<long long>(shape[d]));
    n *= static_cast<size_t>(size);
  }
  const Span<const SizesType> last = {input.sizes().data() + (rank - shape.size()), shape.size()};
  TORCHETTE_TRY(check_operand(op, weight, last, "weight"));
  TORCHETTE_TRY(check_operand(op, bias, last, "bias"));
  TORCHETTE_TRY(check_result(op, out, input.sizes()));
  if (n == 0) return Error::Ok;
  const float *const x = input.const_data_ptr<float>(), *const w = floats_of(weight),
                     *const b = floats_of(bias);
  float* const y = out.mutable_data_ptr<float>();
  const float count = static_cast<float>(n);
  context.parallel_for(
      static_cast<size_t>(input.numel()) / n, min_items(4 * n), [&](size_t begin, size_t end, size_t) {
        for (size_t r = begin; r < end; ++r) {
          const float* const row = x + r * n;
          const auto same = [](Vec v) TORCHETTE_INLINED { return v; };
          const float mean = centred ? sum_of(row, n, same) / count : 0.0f;
          const Vec centre = broadcast(mean);
          const float squares =
              sum_of(row, n, [&](Vec v) TORCHETTE_INLINED { return (v - centre) * (v - centre); });
          const float factor = 1.0f / std::sqrt(squares / count + static_cast<float>(eps));
          normalize(row, n, mean, factor, w, b, y + r * n);
        }
      });
  return Error::Ok;
}

}  // namespace

static Error layer_norm_out(Context& context, const Tensor& input, const Optional<Tensor>& weight,
                            const Optional<Tensor>& bias, Span<const int64_t> shape, double eps,
                            Tensor& out) {
  return norm(context, "layer_norm", input, weight, bias, shape, eps, true, out);
}
static Error rms_norm_out(Context& context, const Tensor& input, const Optional<Tensor>& weight,
                          Span<const int64_t> shape, double eps, Tensor& out) {
  return norm(context, "rms_norm", input, weight, Optional<Tensor>(), shape, eps, false, out);
}

TORCHETTE_KERNELS(layer_norm, TORCHETTE_KERNEL("cpu::layer_norm.out", layer_norm_out),
                  TORCHETTE_KERNEL("cpu::rms_norm.out", rms_norm_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
