// SPDX-License-Identifier: BSD-3-Clause
// cpu::group_norm: torchette/backends/engine/operators/group_norm.py. The channels of a pixel are contiguous,
// so the sums are computed per channel, a vector of channels at a time, and combined per group. Mean and
// variance use two passes, so that a large mean does not reduce the accuracy.
#include <cmath>

#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/panels.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Number of values that are added in sequence before their sum is added to the total, which limits rounding
// errors.
constexpr size_t kChain = 256;

/// Loads a vector, or its first `channels` lanes if fewer exist.
TORCHETTE_INLINE Vec get(const float* p, size_t channels) {
  return channels >= kLanes ? load(p) : load_partial(p, channels);
}

/// sums[c] = sum of f(pixel[c], centre[c]) over the pixels, for the first `here` <= kLanes channels.
template <typename F>
void sum_pixels(const float* image, size_t pixels, size_t channels, size_t here, Vec centre, const F& f,
                float* sums) {
  Vec sum = {};
  for (size_t first = 0; first < pixels; first += kChain) {
    const size_t past = pixels - first < kChain ? pixels : first + kChain;
    Vec part[2] = {};
    size_t p = first;
    for (; p + 2 <= past; p += 2) {
      part[0] += f(get(image + p * channels, here), centre);
      part[1] += f(get(image + (p + 1) * channels, here), centre);
    }
    if (p < past) part[0] += f(get(image + p * channels, here), centre);
    sum += part[0] + part[1];
  }
  if (here == kLanes)
    store(sums, sum);
  else
    store_partial(sums, sum, here);
}

struct Images {
  const float* x;
  size_t batch, pixels, channels, groups;
};

/// statistic[n, c] = finish(mean of f over the group of channel c in image n), stored for each channel of the
/// group.
template <typename F, typename Finish>
void take_statistic(Context& context, const Images& images, const float* centres, const F& f,
                    const Finish& finish, float* statistic) {
  const size_t channels = images.channels, vectors = (channels + kLanes - 1) / kLanes;
  context.parallel_for(images.batch * vectors, min_items(images.pixels * kLanes),
                       [&](size_t begin, size_t end, size_t) {
                         for (size_t i = begin; i < end; ++i) {
                           const size_t n = i / vectors, c = i % vectors * kLanes, at = n * channels + c;
                           const size_t here = channels - c < kLanes ? channels - c : kLanes;
                           const Vec centre = centres != nullptr ? get(centres + at, here) : Vec{};
                           sum_pixels(images.x + n * images.pixels * channels + c, images.pixels, channels,
                                      here, centre, f, statistic + at);
                         }
                       });
  const size_t of_group = channels / images.groups;
  for (size_t g = 0; g < images.batch * images.groups; ++g) {
    float* const own = statistic + g * of_group;
    double sum = 0;
    for (size_t c = 0; c < of_group; ++c) sum += static_cast<double>(own[c]);
    const float value = finish(sum / static_cast<double>(of_group * images.pixels));
    for (size_t c = 0; c < of_group; ++c) own[c] = value;
  }
}

}  // namespace

static Error group_norm_out(Context& context, const Tensor& input, const Optional<Tensor>& weight,
                            const Optional<Tensor>& bias, int64_t groups, double eps, Tensor& out) {
  TORCHETTE_TRY(check_floats("group_norm", input, "input"));
  TORCHETTE_CHECK(input.dim() >= 2, InvalidArgument,
                  "group_norm: input has %d dimensions, expected at least 2", static_cast<int>(input.dim()));
  const SizesType last = input.size(input.dim() - 1);
  TORCHETTE_CHECK(groups > 0 && groups <= last && last % groups == 0, InvalidArgument,
                  "group_norm: %d channels are not divisible into %lld groups", static_cast<int>(last),
                  static_cast<long long>(groups));
  TORCHETTE_TRY(check_operand("group_norm", weight, {&last, 1}, "weight"));
  TORCHETTE_TRY(check_operand("group_norm", bias, {&last, 1}, "bias"));
  TORCHETTE_TRY(check_result("group_norm", out, input.sizes()));
  if (input.numel() == 0) return Error::Ok;
  const auto channels = static_cast<size_t>(last), batch = static_cast<size_t>(input.size(0));
  const size_t pixels = static_cast<size_t>(input.numel()) / (batch * channels);
  const Images images = {input.const_data_ptr<float>(), batch, pixels, channels, static_cast<size_t>(groups)};
  float* const means = static_cast<float*>(context.allocate_temp(2 * batch * channels * sizeof(float)));
  TORCHETTE_CHECK(means != nullptr, MemoryAllocationFailed, "group_norm: no scratch memory for %d channels",
                  static_cast<int>(channels));
  float* const factors = means + batch * channels;
  take_statistic(
      context, images, nullptr, [](Vec x, Vec) TORCHETTE_INLINED { return x; },
      [](double mean) { return static_cast<float>(mean); }, means);
  take_statistic(
      context, images, means, [](Vec x, Vec centre) TORCHETTE_INLINED { return (x - centre) * (x - centre); },
      [&](double variance) { return static_cast<float>(1.0 / std::sqrt(variance + eps)); }, factors);
  const float *const w = floats_of(weight), *const b = floats_of(bias);
  float* const y = out.mutable_data_ptr<float>();
  context.parallel_for(batch * pixels, min_items(channels), [&](size_t begin, size_t end, size_t) {
    for (size_t p = begin; p < end; ++p) {
      const float *const x = images.x + p * channels, *const mean = means + p / pixels * channels,
                         *const factor = factors + p / pixels * channels;
      for (size_t c = 0; c < channels; c += kLanes) {
        const size_t here = channels - c < kLanes ? channels - c : kLanes;
        Vec value = (get(x + c, here) - get(mean + c, here)) * get(factor + c, here);
        if (w != nullptr) value *= get(w + c, here);
        if (b != nullptr) value += get(b + c, here);
        if (here == kLanes)
          store(y + p * channels + c, value);
        else
          store_partial(y + p * channels + c, value, here);
      }
    }
  });
  return Error::Ok;
}

TORCHETTE_KERNELS(group_norm, TORCHETTE_KERNEL("cpu::group_norm.out", group_norm_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
