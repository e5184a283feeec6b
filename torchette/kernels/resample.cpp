// SPDX-License-Identifier: BSD-3-Clause
// Image resizing (upsample_*) and sampling at given positions (grid_sampler_*). Resizing processes the last
// dimension first, row by row. Each element of the result is a weighted sum of a few input elements, which a
// table selects. All channels use the same table.
#include "torchette/kernels/resample.h"

#include <cmath>
#include <cstring>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/simd.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// The minimum work of a thread, in weighted input elements: about 20 microseconds.
constexpr size_t kMinWork = size_t{1} << 16;

/// An input row or pixel and its weight.
template <typename T>
struct Weighted {
  const T* values;
  T weight;
};

/// to[b] = sum over k < n of weight[k] values[k][b]. `tap(k)` returns values and weight k.
template <typename T, typename Tap>
TORCHETTE_INLINE void add_up(size_t n, size_t count, const Tap& tap, T* __restrict to) {
  const Weighted<T> first = tap(0);
  if (n == 1) {
    memcpy(to, first.values, count * sizeof(T));
    return;
  }
  const Weighted<T> second = tap(1);
  for (size_t b = 0; b < count; ++b)
    to[b] = first.weight * first.values[b] + second.weight * second.values[b];
  for (size_t k = 2; k < n; ++k) {
    const Weighted<T> more = tap(k);
    for (size_t b = 0; b < count; ++b) to[b] += more.weight * more.values[b];
  }
}

/// Resizes a row to `out` pixels of `inner` values.
template <typename T>
void resize_row(const Taps<T>& taps, size_t out, size_t inner, const T* __restrict from, T* __restrict to) {
  const size_t n = taps.taps;
  const int32_t* __restrict index = taps.index;
  const T* __restrict weight = taps.weight;
  if (inner == 1 && n == 1) {
    for (size_t o = 0; o < out; ++o) to[o] = from[index[o]];
  } else if (inner == 1 && n == 2) {
    for (size_t o = 0; o < out; ++o)
      to[o] = weight[2 * o] * from[index[2 * o]] + weight[2 * o + 1] * from[index[2 * o + 1]];
  } else if (inner == 1) {
    for (size_t o = 0; o < out; ++o, index += n, weight += n) {
      T sum = weight[0] * from[index[0]];
      for (size_t k = 1; k < n; ++k) sum += weight[k] * from[index[k]];
      to[o] = sum;
    }
  } else {
    for (size_t o = 0; o < out; ++o, index += n, weight += n, to += inner)
      add_up(
          n, inner,
          [&](size_t k) { return Weighted<T>{from + static_cast<size_t>(index[k]) * inner, weight[k]}; }, to);
  }
}

/// The taps of the three dimensions of images with `inner` values per pixel.
template <typename T>
struct Resizing {
  Taps<T> taps[3];
  size_t in[3] = {1, 1, 1}, out[3] = {1, 1, 1}, inner;

  size_t lines() const { return taps[0].taps * taps[1].taps; }  // input rows per row of the result
  size_t row() const { return out[2] * inner; }
  /// Number of input rows of a row of the result without repetitions, along the depth or the height.
  size_t slots(size_t d) const { return taps[d].taps < in[d] ? taps[d].taps : in[d]; }
  size_t slots() const { return slots(0) * slots(1); }

  /// Computes rows [begin, end) of the results of all images. `buffer` has space for slots() input rows,
  /// resized along the last dimension, `stored` for their indices.
  void resize(const T* from, T* to, size_t begin, size_t end, T* buffer, size_t* stored) const {
    const size_t depth = taps[0].taps, height = taps[1].taps;
    for (size_t k = 0; k < slots(); ++k) stored[k] = SIZE_MAX;
    for (size_t r = begin; r < end; ++r) {
      const size_t z = r / out[1] % out[0], y = r % out[1], image = r / out[1] / out[0];
      T* const result = to + r * row();
      const auto line = [&](size_t k, T* place, bool shared) {
        const size_t at_z = z * depth + k / height, at_y = y * height + k % height;
        const auto in_z = static_cast<size_t>(taps[0].index[at_z]);
        const auto in_y = static_cast<size_t>(taps[1].index[at_y]);
        // Adjacent rows of the result share input rows.
        const size_t index = (image * in[0] + in_z) * in[1] + in_y;
        const size_t slot = in_z % slots(0) * slots(1) + in_y % slots(1);
        if (shared) place += slot * row();
        if (stored[slot] != index)
          resize_row(taps[2], out[2], inner, from + index * in[2] * inner, place);
        else if (!shared)
          memcpy(place, place - row(), row() * sizeof(T));
        stored[slot] = index;
        return Weighted<T>{place, taps[0].weight[at_z] * taps[1].weight[at_y]};
      };
      if (lines() == 1)
        line(0, result, false);
      else
        add_up(lines(), row(), [&](size_t k) { return line(k, buffer, true); }, result);
    }
  }
};

/// Fixed-point weights for 8-bit images: integers in units of 2^-shift with up to 15 bits, as in eager mode
/// and Pillow. Taps that the image edge maps to the same element are merged.
struct ByteTaps {
  size_t taps;
  const int32_t* index;
  int16_t* weight;
  int shift = 0;

  Error make(Context& context, const Taps<double>& exact, size_t out) {
    taps = exact.taps;
    index = exact.index;
    const size_t count = out * taps;
    weight = static_cast<int16_t*>(context.allocate_temp(count * sizeof(int16_t)));
    TORCHETTE_CHECK(weight != nullptr, MemoryAllocationFailed, "no scratch memory to resize an image");
    double largest = 0;
    for (size_t o = 0; o < count; o += taps)
      for (size_t k = 0, first = 0; k < taps; ++k) {
        if (exact.index[o + k] != exact.index[o + first]) first = k;
        if (k > first) {
          exact.weight[o + first] += exact.weight[o + k];
          exact.weight[o + k] = 0;
        }
        if (exact.weight[o + first] > largest) largest = exact.weight[o + first];
      }
    while (shift < 22 && largest * (2 << shift) + 0.5 < 1 << 15) ++shift;
    for (size_t i = 0; i < count; ++i) {
      const double units = exact.weight[i] * (1 << shift);
      // A scale that does not match the sizes may yield no valid weights.
      weight[i] =
          std::fabs(units) < INT16_MAX + 0.5 ? static_cast<int16_t>(units + std::copysign(0.5, units)) : 0;
    }
    return Error::Ok;
  }
};

/// As above, with each sum rounded and clamped to a byte.
void resize_middle(const ByteTaps& taps, size_t outer, size_t in, size_t out, size_t inner,
                   const uint8_t* from, uint8_t* to) {
  constexpr size_t kBlock = 64;
  const uint32_t half = (1u << taps.shift) >> 1;
  for (size_t a = 0; a < outer; ++a, from += in * inner)
    for (size_t o = 0; o < out; ++o, to += inner)
      for (size_t start = 0; start < inner; start += kBlock) {
        const size_t n = inner - start < kBlock ? inner - start : kBlock;
        uint32_t sums[kBlock];  // wraps around for weights of an absurd scale
        for (size_t b = 0; b < n; ++b) sums[b] = half;
        for (size_t k = 0; k < taps.taps; ++k) {
          const auto weight = static_cast<uint32_t>(taps.weight[o * taps.taps + k]);
          const uint8_t* row = from + static_cast<size_t>(taps.index[o * taps.taps + k]) * inner + start;
          for (size_t b = 0; b < n; ++b) sums[b] += weight * row[b];
        }
        for (size_t b = 0; b < n; ++b) {
          const int32_t sum = static_cast<int32_t>(sums[b]) >> taps.shift;
          to[start + b] = static_cast<uint8_t>(sum < 0 ? 0 : sum > 255 ? 255 : sum);
        }
      }
}

using Sizes = Span<const int64_t>;
using Scales = Span<const double>;

/// Resizes the rows and then the columns of 8-bit images. A dimension with equal sizes is skipped, regardless
/// of its scale.
Error upsample_bytes(Context& context, const char* name, Filter filter, bool align_corners, const Tensor& x,
                     const double* scales, const Tensor& out) {
  const auto last_is_channel = [](const Tensor& image) { return image.dim_order()[3] == 1; };
  const bool innermost = last_is_channel(x) && last_is_channel(out);
  Dense from, to;
  const uint8_t* source = x.const_data_ptr<uint8_t>();
  uint8_t* target = out.mutable_data_ptr<uint8_t>();
  if (!innermost) {
    TORCHETTE_TRY(from.read(context, x, ScalarType::Byte));
    TORCHETTE_TRY(to.open(context, out, ScalarType::Byte));
    source = from.data<uint8_t>();
    target = to.data<uint8_t>();
  }
  const auto size = [](const Tensor& image, size_t d) { return static_cast<size_t>(image.sizes()[d]); };
  const size_t in_rows = size(x, 2), in_columns = size(x, 3), rows = size(out, 2), columns = size(out, 3);
  const size_t channels = innermost ? size(x, 1) : 1, images = size(x, 0) * size(x, 1) / channels;
  ByteTaps taps[2];
  for (size_t d = 0; d < 2; ++d) {
    if (x.sizes()[2 + d] == out.sizes()[2 + d]) continue;
    Taps<double> exact;
    TORCHETTE_TRY(
        exact.make(context, filter, align_corners, x.sizes()[2 + d], out.sizes()[2 + d], scales[d]));
    TORCHETTE_TRY(taps[d].make(context, exact, size(out, 2 + d)));
  }
  const size_t between = in_rows * columns * channels;
  uint8_t* buffer = nullptr;
  if (in_rows != rows && in_columns != columns) {
    buffer = static_cast<uint8_t*>(context.allocate_temp(between));
    TORCHETTE_CHECK(buffer != nullptr, MemoryAllocationFailed, "%s: no scratch memory", name);
  }
  for (size_t i = 0; i < images; ++i) {
    const uint8_t* image = source + i * in_rows * in_columns * channels;
    uint8_t* const result = target + i * rows * columns * channels;
    if (in_columns != columns) {
      uint8_t* const wide = buffer != nullptr ? buffer : result;
      resize_middle(taps[1], in_rows, in_columns, columns, channels, image, wide);
      image = wide;
    }
    if (in_rows != rows)
      resize_middle(taps[0], 1, in_rows, rows, columns * channels, image, result);
    else if (image != result)
      memcpy(result, image, between);
  }
  return innermost ? Error::Ok : to.finish();
}

/// Resizes the last `spatial` dimensions of `x` to `sizes`. A scale of 0 is computed from the sizes.
Error upsample(Context& context, const char* name, Filter filter, bool align_corners, const Tensor& x,
               Sizes requested, const double* scales, const Tensor& out) {
  const size_t spatial = requested.size();
  TORCHETTE_CHECK(static_cast<size_t>(x.dim()) == spatial + 2, InvalidArgument,
                  "%s: self has %d dimensions, output_size has %zu elements", name, static_cast<int>(x.dim()),
                  spatial);
  TORCHETTE_CHECK(x.scalar_type() == out.scalar_type(), InvalidType,
                  "%s: self or input is of type %d, out is of type %d", name,
                  static_cast<int>(x.scalar_type()), static_cast<int>(out.scalar_type()));
  SizesType sizes[5] = {x.sizes()[0], x.sizes()[1]};
  for (size_t d = 0; d < spatial; ++d) {
    TORCHETTE_CHECK(requested[d] > 0 && requested[d] <= INT32_MAX && x.sizes()[2 + d] > 0, InvalidArgument,
                    "%s: output_size: cannot resize from size %d to %lld", name, x.sizes()[2 + d],
                    static_cast<long long>(requested[d]));
    sizes[2 + d] = static_cast<SizesType>(requested[d]);
  }
  TORCHETTE_TRY(resize_result(out, {sizes, spatial + 2}));
  if (out.numel() == 0) return Error::Ok;
  const bool is_integer = !is_floating(x.scalar_type());
  TORCHETTE_CHECK(!is_integer || x.scalar_type() == ScalarType::Byte, InvalidType,
                  "%s: self or input is of unsupported type %d", name, static_cast<int>(x.scalar_type()));
  if (is_integer && spatial == 2 && filter != Filter::Nearest && filter != Filter::NearestExact)
    return upsample_bytes(context, name, filter, align_corners, x, scales, out);
  const auto body = [&](auto t) {
    using T = decltype(t);
    // Channels-last images keep their layout: the channels are part of the dimensions after the resized one.
    const auto last_is_channel = [&](const Tensor& image) {
      return image.scalar_type() == kScalarType<T> && image.dim_order()[spatial + 1] == 1 && sizes[1] > 1;
    };
    const bool innermost = spatial == 2 && last_is_channel(x) && last_is_channel(out);
    Dense from, to;
    const T* source = x.const_data_ptr<T>();
    T* target = out.mutable_data_ptr<T>();
    if (!innermost) {
      TORCHETTE_TRY(from.read(context, x, kScalarType<T>));
      TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
      source = from.data<T>();
      target = to.data<T>();
    }
    Resizing<T> how;
    how.inner = innermost ? static_cast<size_t>(sizes[1]) : 1;
    for (size_t d = 0; d < 3; ++d) {  // a missing dimension has one element
      const bool is_missing = d + spatial < 3;
      const size_t dim = is_missing ? 0 : d + spatial - 1;
      if (!is_missing) how.in[d] = static_cast<size_t>(x.sizes()[dim]);
      if (!is_missing) how.out[d] = static_cast<size_t>(sizes[dim]);
      TORCHETTE_TRY(how.taps[d].make(context, is_missing ? Filter::Nearest : filter, align_corners,
                                     static_cast<ptrdiff_t>(how.in[d]), static_cast<ptrdiff_t>(how.out[d]),
                                     is_missing ? 0 : scales[d + spatial - 3]));
    }
    const size_t lines = how.lines(), slots = how.slots(), workers = context.workers();
    const uint64_t bytes = uint64_t{workers} * slots * (lines > 1 ? how.row() * sizeof(T) : 1);
    TORCHETTE_CHECK(bytes < PTRDIFF_MAX, MemoryAllocationFailed, "%s: no scratch memory", name);
    auto* buffer = static_cast<T*>(context.allocate_temp(static_cast<size_t>(bytes)));
    auto* stored = static_cast<size_t*>(context.allocate_temp(workers * slots * sizeof(size_t)));
    TORCHETTE_CHECK(buffer != nullptr && stored != nullptr, MemoryAllocationFailed, "%s: no scratch memory",
                    name);
    const size_t work = how.row() * (lines + how.taps[2].taps);
    const size_t rows = static_cast<size_t>(out.numel()) / how.row();
    context.parallel_for(rows, kMinWork / work + 1, [&](size_t begin, size_t end, size_t worker) {
      how.resize(source, target, begin, end, buffer + worker * slots * (lines > 1 ? how.row() : 0),
                 stored + worker * slots);
      if (is_integer)
        for (size_t k = begin * how.row(); k < end * how.row(); ++k)
          target[k] = target[k] <= 0 ? 0 : target[k] >= 255 ? 255 : std::nearbyint(target[k]);
    });
    return innermost ? Error::Ok : to.finish();
  };
  return x.scalar_type() == ScalarType::Double ? body(double()) : body(float());
}

/// Returns the given output sizes, or computes them from the scales.
Error sizes_of(const Tensor& x, const Optional<Sizes>& sizes, const Optional<Scales>& scales, size_t spatial,
               int64_t* requested, double* given) {
  TORCHETTE_CHECK(static_cast<size_t>(x.dim()) == spatial + 2, InvalidArgument,
                  "upsample: self or input has %d dimensions, expected %zu", static_cast<int>(x.dim()),
                  spatial + 2);
  TORCHETTE_CHECK(sizes.has_value() != scales.has_value() &&
                      (sizes.has_value() ? sizes->size() : scales->size()) == spatial,
                  InvalidArgument, "upsample: either output_size or scale_factors must have %zu elements",
                  spatial);
  for (size_t d = 0; d < spatial; ++d) {
    given[d] = scales.has_value() ? (*scales)[d] : 0;
    requested[d] =
        sizes.has_value() ? (*sizes)[d] : truncate(static_cast<double>(x.sizes()[2 + d]) * given[d]);
  }
  return Error::Ok;
}
Error check_count(Sizes sizes, size_t spatial) {
  TORCHETTE_CHECK(sizes.size() == spatial, InvalidArgument,
                  "upsample: output_size has %zu elements, expected %zu", sizes.size(), spatial);
  return Error::Ok;
}

using Scale = Optional<double>;

template <Filter kFilter>
Error upsample1d_out(Context& context, const Tensor& x, Sizes sizes, Scale scale, Tensor& out) {
  TORCHETTE_TRY(check_count(sizes, 1));
  const double scales[] = {scale.value_or(0)};
  return upsample(context, "upsample_nearest1d", kFilter, false, x, sizes, scales, out);
}
template <Filter kFilter>
Error upsample2d_out(Context& context, const Tensor& x, Sizes sizes, Scale h, Scale w, Tensor& out) {
  TORCHETTE_TRY(check_count(sizes, 2));
  const double scales[] = {h.value_or(0), w.value_or(0)};
  return upsample(context, "upsample_nearest2d", kFilter, false, x, sizes, scales, out);
}
template <Filter kFilter>
Error upsample3d_out(Context& context, const Tensor& x, Sizes sizes, Scale d, Scale h, Scale w, Tensor& out) {
  TORCHETTE_TRY(check_count(sizes, 3));
  const double scales[] = {d.value_or(0), h.value_or(0), w.value_or(0)};
  return upsample(context, "upsample_nearest3d", kFilter, false, x, sizes, scales, out);
}
Error upsample_linear1d_out(Context& context, const Tensor& x, Sizes sizes, bool align, Scale w,
                            Tensor& out) {
  TORCHETTE_TRY(check_count(sizes, 1));
  const double scales[] = {w.value_or(0)};
  return upsample(context, "upsample_linear1d", Filter::Linear, align, x, sizes, scales, out);
}
template <Filter kFilter>
Error upsample_planes_out(Context& context, const Tensor& x, Sizes sizes, bool align, Scale h, Scale w,
                          Tensor& out) {
  TORCHETTE_TRY(check_count(sizes, 2));
  const double scales[] = {h.value_or(0), w.value_or(0)};
  return upsample(context, "upsample_bilinear2d or bicubic2d", kFilter, align, x, sizes, scales, out);
}
Error upsample_trilinear3d_out(Context& context, const Tensor& x, Sizes sizes, bool align, Scale d, Scale h,
                               Scale w, Tensor& out) {
  TORCHETTE_TRY(check_count(sizes, 3));
  const double scales[] = {d.value_or(0), h.value_or(0), w.value_or(0)};
  return upsample(context, "upsample_trilinear3d", Filter::Linear, align, x, sizes, scales, out);
}
Error upsample_nearest2d_vec_out(Context& context, const Tensor& x, Optional<Sizes> sizes,
                                 Optional<Scales> scales, Tensor& out) {
  int64_t requested[2];
  double given[2];
  TORCHETTE_TRY(sizes_of(x, sizes, scales, 2, requested, given));
  return upsample(context, "upsample_nearest2d", Filter::Nearest, false, x, {requested, 2}, given, out);
}
Error upsample_bilinear2d_vec_out(Context& context, const Tensor& x, Optional<Sizes> sizes, bool align,
                                  Optional<Scales> scales, Tensor& out) {
  int64_t requested[2];
  double given[2];
  TORCHETTE_TRY(sizes_of(x, sizes, scales, 2, requested, given));
  return upsample(context, "upsample_bilinear2d", Filter::Linear, align, x, {requested, 2}, given, out);
}

// --- Sampling at given positions

enum class Beyond : uint8_t { Zeros, Border, Reflection };

/// Lane i is p[index[i]], or 0 if the index is negative.
TORCHETTE_INLINE Vec gather(const float* p, VecInt index) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return _mm256_mask_i32gather_ps(Vec{}, p, reinterpret_cast<__m256i>(index), reinterpret_cast<Vec>(~index),
                                  4);
#else
  Vec lanes = {};
  for (int i = 0; i < kLanes; ++i) lanes[i] = index[i] < 0 ? 0 : p[index[i]];
  return lanes;
#endif
}

/// Sampling mode: aten's interpolation_mode, padding_mode and align_corners.
struct GridMode {
  int64_t mode;
  Beyond beyond;
  bool align_corners;
  size_t taps() const { return mode == 0 ? 2 : mode == 1 ? 1 : 4; }  // per dimension
};

/// The input elements of a chunk of output pixels and their weights, in blocks of kPixels pixels. All loops
/// over the pixels of a block have the same trip count, so that the compiler vectorizes them.
template <typename T>
struct GridTaps {
  // Small processors have small stacks: 3.5 KB for double, otherwise 14 KB.
  static constexpr size_t kPixels = kLanes < 8 ? 16 : 64, kRows = 16;
  static constexpr bool kUsesPairs = kScalarType<T> == ScalarType::Float && kLanes == 8;
  size_t count;                    // taps of each pixel; those of a block are in adjacent rows
  size_t step;                     // rows between the taps of a pair; 0: one tap per dimension
  int32_t offset[kRows][kPixels];  // within a channel; -1: a zero of the padding
  T weight[kRows][kPixels];
  // Of the first row of a block, per vector of pixels: whether no tap is in the padding, and the two taps of
  // each pair along the last dimension are adjacent in memory.
  bool paired[kRows][kPixels / kLanes];

  /// Sets the taps of a block of `pixels` positions. They begin at row `row`.
  void find(const Tensor& x, GridMode how, size_t spatial, const T* position, size_t pixels, size_t row) {
    count = 0;
    for (size_t d = 0; d < spatial; ++d) {
      T given[kPixels];
      const T* from = position + spatial - 1 - d;  // the last dimension comes first in the grid
      if (spatial == 2 && pixels == kPixels)
        for (size_t i = 0; i < kPixels; ++i) given[i] = from[i * 2];
      else
        for (size_t i = 0; i < kPixels; ++i) given[i] = i < pixels ? from[i * spatial] : 0;
      add_dimension(how, x.sizes()[2 + d], given, offset + row, weight + row);
    }
    step = how.taps() == 1 ? 0 : count / how.taps();
    if constexpr (kUsesPairs) find_pairs(row);
  }

  /// Samples `pixels` pixels of one channel.
  TORCHETTE_INLINE void sample(const T* from, T* to, size_t pixels, size_t row) const {
    if constexpr (kUsesPairs) {
      for (size_t i = 0; i < pixels; i += kLanes) {
        const Vec sum = paired[row][i / kLanes] ? sum_of_pairs(from, row, i) : sum_of_taps(from, row, i);
        if (pixels - i >= kLanes)
          store(to + i, sum);
        else
          store_partial(to + i, sum, pixels - i);
      }
    } else {
      T sum[kPixels] = {};
      for (size_t k = row; k < row + count; ++k) {
        const int32_t* at = offset[k];
        for (size_t i = 0; i < kPixels; ++i) {
          const T value = from[at[i] < 0 ? 0 : at[i]];
          sum[i] += weight[k][i] * (at[i] < 0 ? 0 : value);
        }
      }
      for (size_t i = 0; i < pixels; ++i) to[i] = sum[i];
    }
  }

 private:
  void find_pairs(size_t row) {
    for (size_t i = 0; i < kPixels; i += kLanes) {
      VecInt outside = {}, apart = {};
      for (size_t k = row; k < row + count; ++k) {
        const VecInt at = load(offset[k] + i);
        outside |= at;
        if (step != 0 && (k - row) / step % 2 == 0) apart |= load(offset[k + step] + i) - at - 1;
      }
      const VecInt bits = (outside < 0) | apart;
      int32_t any = 0;
      for (int lane = 0; lane < kLanes; ++lane) any |= bits[lane];
      paired[row][i / kLanes] = any == 0;
    }
  }
  TORCHETTE_INLINE Vec sum_of_taps(const float* from, size_t row, size_t i) const {
    Vec sum = {};
    for (size_t k = row; k < row + count; ++k)
      sum = fma(load(weight[k] + i), gather(from, load(offset[k] + i)), sum);
    return sum;
  }
  /// The same if the taps are paired: one load for both taps of a pair.
  TORCHETTE_INLINE Vec sum_of_pairs(const float* from, size_t row, size_t i) const {
    Vec sum = {};
    if (step == 0) {
      TORCHETTE_UNROLL(8)
      for (int lane = 0; lane < kLanes; ++lane) sum[lane] = from[offset[row][i + lane]];
      return sum;
    }
    for (size_t k = row; k < row + count; k += 2 * step)
      for (size_t j = k; j < k + step; ++j) {
        TORCHETTE_LANES(Pairs, double, kLanes / 2);
        Pairs pairs[2];
        TORCHETTE_UNROLL(8)
        for (int lane = 0; lane < kLanes; ++lane) {
          double pair;
          memcpy(&pair, from + offset[j][i + lane], sizeof(pair));
          pairs[2 * lane / kLanes][lane % (kLanes / 2)] = pair;
        }
        Vec left, right;
        deinterleave(bit_cast<Vec>(pairs[0]), bit_cast<Vec>(pairs[1]), left, right);
        sum = fma(load(weight[j + step] + i), right, fma(load(weight[j] + i), left, sum));
      }
    return sum;
  }

  /// Multiplies the taps by those of one dimension with `size` elements at positions `at`.
  void add_dimension(GridMode how, ptrdiff_t size, T* at, int32_t (*offsets)[kPixels],
                     T (*weights)[kPixels]) {
    const T scale = static_cast<T>(how.align_corners ? size - 1 : size) / 2;
    const T start = how.align_corners ? T(0) : T(0.5);
    for (size_t i = 0; i < kPixels; ++i) at[i] = (at[i] + 1) * scale - start;
    if (how.mode != 2) move_inside(how, size, at);
    T part[kPixels];
    for (size_t i = 0; i < kPixels; ++i) {
      const T base = how.mode == 1 ? std::nearbyint(at[i]) : std::floor(at[i]);
      part[i] = how.mode == 1 ? 0 : at[i] - base;
      at[i] = how.mode == 2 ? base - 1 : base;
    }
    const size_t known = count;
    count = how.taps() * (known == 0 ? 1 : known);
    for (size_t k = how.taps(); k-- > 0;) {  // tap 0 is the last one, since it overwrites the known taps
      T tap[kPixels], share[kPixels];
      for (size_t i = 0; i < kPixels; ++i) {
        tap[i] = at[i] + static_cast<T>(k);
        share[i] = k == 0 ? 1 - part[i] : part[i];
      }
      if (how.mode == 2) {
        for (size_t i = 0; i < kPixels; ++i) share[i] = cubic(static_cast<T>(k) - 1 - part[i], T(-0.75));
        move_inside(how, size, tap);
      }
      int32_t index[kPixels];
      for (size_t i = 0; i < kPixels; ++i)
        index[i] = static_cast<int32_t>(tap[i] >= 0 && tap[i] < static_cast<T>(size) ? tap[i] : T(-1));
      if (known == 0) {
        memcpy(offsets[k], index, sizeof(index));
        memcpy(weights[k], share, sizeof(share));
      }
      for (size_t j = 0; j < known; ++j)
        for (size_t i = 0; i < kPixels; ++i) {
          const int32_t outer = offsets[j][i], at_tap = outer * static_cast<int32_t>(size) + index[i];
          offsets[k * known + j][i] = (outer | index[i]) < 0 ? -1 : at_tap;
          weights[k * known + j][i] = weights[j][i] * share[i];
        }
    }
  }

  /// Maps positions into a dimension of `size` elements, unless the padding is zeros.
  static void move_inside(GridMode how, ptrdiff_t size, T* at) {
    if (how.beyond == Beyond::Zeros) return;
    const T last = static_cast<T>(size - 1), low = how.align_corners ? T(0) : T(-0.5);
    const T span = how.align_corners ? last : static_cast<T>(size), period = 2 * span;
    if (how.beyond == Beyond::Reflection)
      for (size_t i = 0; i < kPixels; ++i) {
        const T x = std::fabs(at[i] - low), rest = x - std::trunc(x / period) * period;
        at[i] = (rest < span ? rest : period - rest) + low;
      }
    for (size_t i = 0; i < kPixels; ++i) at[i] = at[i] > 0 ? (at[i] < last ? at[i] : last) : T(0);
  }
};

Error grid_sampler(Context& context, const char* name, size_t spatial, const Tensor& x, const Tensor& grid,
                   int64_t mode, int64_t padding, bool align_corners, const Tensor& out) {
  const size_t rank = spatial + 2;
  TORCHETTE_CHECK(static_cast<size_t>(x.dim()) == rank && static_cast<size_t>(grid.dim()) == rank &&
                      x.sizes()[0] == grid.sizes()[0] &&
                      static_cast<size_t>(grid.sizes()[rank - 1]) == spatial,
                  InvalidArgument, "%s: input with %d dimensions does not fit grid with %d dimensions", name,
                  static_cast<int>(x.dim()), static_cast<int>(grid.dim()));
  TORCHETTE_CHECK(x.scalar_type() == grid.scalar_type() && x.scalar_type() == out.scalar_type(), InvalidType,
                  "%s: input, grid and out are of types %d, %d and %d, expected one type", name,
                  static_cast<int>(x.scalar_type()), static_cast<int>(grid.scalar_type()),
                  static_cast<int>(out.scalar_type()));
  TORCHETTE_CHECK(mode >= 0 && mode <= (spatial == 2 ? 2 : 1) && padding >= 0 && padding <= 2,
                  InvalidArgument, "%s: interpolation_mode %lld or padding_mode %lld is out of range", name,
                  static_cast<long long>(mode), static_cast<long long>(padding));
  SizesType sizes[5] = {x.sizes()[0], x.sizes()[1]};
  size_t in_plane = 1, out_plane = 1;
  for (size_t d = 0; d < spatial; ++d) {
    sizes[2 + d] = grid.sizes()[1 + d];
    TORCHETTE_CHECK(x.sizes()[2 + d] > 0, InvalidArgument, "%s: input has no elements", name);
    in_plane *= static_cast<size_t>(x.sizes()[2 + d]);
    out_plane *= static_cast<size_t>(sizes[2 + d]);
  }
  TORCHETTE_CHECK(in_plane <= INT32_MAX, InvalidArgument,
                  "%s: input has more than 2^31 - 1 elements per channel", name);
  TORCHETTE_TRY(resize_result(out, {sizes, rank}));
  const GridMode how = {mode, static_cast<Beyond>(padding), align_corners};
  const auto batch = static_cast<size_t>(sizes[0]), channels = static_cast<size_t>(sizes[1]);
  return for_compute<false>(x.scalar_type(), name, "input", [&](auto t) {
    using T = decltype(t);
    constexpr size_t kPixels = GridTaps<T>::kPixels;
    Dense image, positions, result;
    TORCHETTE_TRY(image.read(context, x, kScalarType<T>));
    TORCHETTE_TRY(positions.read(context, grid, kScalarType<T>));
    TORCHETTE_TRY(result.open(context, out, kScalarType<T>));
    const size_t taps = how.taps() * how.taps() * (spatial == 3 ? how.taps() : 1);
    const size_t chunk = GridTaps<T>::kRows / taps * kPixels, chunks = (out_plane + chunk - 1) / chunk;
    context.parallel_for(batch * chunks, kMinWork / (chunk * taps * (channels + 8)) + 1,
                         [&](size_t begin, size_t end, size_t) {
                           GridTaps<T> found;
                           for (size_t b = begin; b < end; ++b) {
                             const size_t n = b / chunks, first = b % chunks * chunk;
                             const size_t count = out_plane - first < chunk ? out_plane - first : chunk;
                             const T* position = positions.data<T>() + (n * out_plane + first) * spatial;
                             const auto for_blocks = [&](const auto& body) {
                               size_t row = 0;
                               for (size_t p = 0; p < count; p += kPixels, row += taps)
                                 body(p, count - p < kPixels ? count - p : kPixels, row);
                             };
                             for_blocks([&](size_t p, size_t pixels, size_t row) {
                               found.find(x, how, spatial, position + p * spatial, pixels, row);
                             });
                             const T* from = image.data<T>() + n * channels * in_plane;
                             T* to = result.data<T>() + n * channels * out_plane + first;
                             for (size_t c = 0; c < channels; ++c, from += in_plane, to += out_plane)
                               for_blocks([&](size_t p, size_t pixels, size_t row) {
                                 found.sample(from, to + p, pixels, row);
                               });
                           }
                         });
    return result.finish();
  });
}

template <size_t kSpatial>
Error grid_sampler_out(Context& context, const Tensor& x, const Tensor& grid, int64_t mode, int64_t padding,
                       bool align_corners, Tensor& out) {
  constexpr const char* kName = kSpatial == 2 ? "grid_sampler_2d" : "grid_sampler_3d";
  return grid_sampler(context, kName, kSpatial, x, grid, mode, padding, align_corners, out);
}

}  // namespace

TORCHETTE_KERNELS_NARROW(
    resample,                                                                                               //
    TORCHETTE_KERNEL("aten::upsample_nearest1d.out", upsample1d_out<Filter::Nearest>),                      //
    TORCHETTE_KERNEL("aten::upsample_nearest2d.out", upsample2d_out<Filter::Nearest>),                      //
    TORCHETTE_KERNEL("aten::upsample_nearest3d.out", upsample3d_out<Filter::Nearest>),                      //
    TORCHETTE_KERNEL("aten::_upsample_nearest_exact1d.out", upsample1d_out<Filter::NearestExact>),          //
    TORCHETTE_KERNEL("aten::_upsample_nearest_exact2d.out", upsample2d_out<Filter::NearestExact>),          //
    TORCHETTE_KERNEL("aten::_upsample_nearest_exact3d.out", upsample3d_out<Filter::NearestExact>),          //
    TORCHETTE_KERNEL("aten::upsample_linear1d.out", upsample_linear1d_out),                                 //
    TORCHETTE_KERNEL("aten::upsample_bilinear2d.out", upsample_planes_out<Filter::Linear>),                 //
    TORCHETTE_KERNEL("aten::upsample_trilinear3d.out", upsample_trilinear3d_out),                           //
    TORCHETTE_KERNEL("aten::upsample_bicubic2d.out", upsample_planes_out<Filter::Cubic>),                   //
    TORCHETTE_KERNEL("aten::_upsample_bilinear2d_aa.out", upsample_planes_out<Filter::LinearAntialiased>),  //
    TORCHETTE_KERNEL("aten::_upsample_bicubic2d_aa.out", upsample_planes_out<Filter::CubicAntialiased>),    //
    TORCHETTE_KERNEL("aten::upsample_nearest2d.vec_out", upsample_nearest2d_vec_out),                       //
    TORCHETTE_KERNEL("aten::upsample_bilinear2d.vec_out", upsample_bilinear2d_vec_out),                     //
    TORCHETTE_KERNEL("aten::grid_sampler_2d.out", grid_sampler_out<2>),                                     //
    TORCHETTE_KERNEL("aten::grid_sampler_3d.out", grid_sampler_out<3>))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
