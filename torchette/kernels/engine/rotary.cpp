// SPDX-License-Identifier: BSD-3-Clause
// cpu::rotary: torchette/backends/engine/operators/rotary.py.
#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/panels.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// out = x cos + (-x2, x1) sin, where x1 and x2 are the halves of x, for one head.
static void rotate(const float* x, const float* cos, const float* sin, size_t half, float* out) {
  size_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec a = load(x + i), b = load(x + half + i);
    const Vec low = fma(a, load(cos + i), -b * load(sin + i));
    const Vec high = fma(b, load(cos + half + i), a * load(sin + half + i));
    store(out + i, low);
    store(out + half + i, high);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    out[i] = a * cos[i] - b * sin[i];
    out[half + i] = b * cos[half + i] + a * sin[half + i];
  }
}

static Error rotary_out(Context& context, const Tensor& input, const Tensor& cos, const Tensor& sin,
                        Tensor& out) {
  TORCHETTE_TRY(check_floats("rotary", input, "input"));
  TORCHETTE_TRY(check_floats("rotary", cos, "cos"));
  TORCHETTE_TRY(check_floats("rotary", sin, "sin"));
  TORCHETTE_CHECK(input.dim() == 4 && input.size(3) % 2 == 0, InvalidArgument,
                  "rotary: input has %d dimensions, expected 4 with an even last size",
                  static_cast<int>(input.dim()));
  for (const Tensor* angles : {&cos, &sin})
    TORCHETTE_CHECK(
        angles->dim() == 3 && (angles->size(0) == 1 || angles->size(0) == input.size(0)) &&
            angles->size(1) == input.size(1) && angles->size(2) == input.size(3),
        InvalidArgument, "rotary: cos or sin with %d dimensions does not fit input with %d tokens of size %d",
        static_cast<int>(angles->dim()), static_cast<int>(input.size(1)), static_cast<int>(input.size(3)));
  TORCHETTE_TRY(check_result("rotary", out, input.sizes()));
  const auto tokens = static_cast<size_t>(input.size(1)), heads = static_cast<size_t>(input.size(2));
  const auto depth = static_cast<size_t>(input.size(3));
  const size_t cos_batch = cos.size(0) == 1 ? 0 : tokens * depth,
               sin_batch = sin.size(0) == 1 ? 0 : tokens * depth;
  context.parallel_for(static_cast<size_t>(input.size(0)) * tokens, min_items(4 * heads * depth),
                       [&](size_t begin, size_t end, size_t) {
                         for (size_t r = begin; r < end; ++r) {
                           const size_t b = r / tokens, t = r % tokens;
                           for (size_t h = 0; h < heads; ++h)
                             rotate(input.const_data_ptr<float>() + (r * heads + h) * depth,
                                    cos.const_data_ptr<float>() + b * cos_batch + t * depth,
                                    sin.const_data_ptr<float>() + b * sin_batch + t * depth, depth / 2,
                                    out.mutable_data_ptr<float>() + (r * heads + h) * depth);
                         }
                       });
  return Error::Ok;
}

TORCHETTE_KERNELS(rotary, TORCHETTE_KERNEL("cpu::rotary.out", rotary_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
