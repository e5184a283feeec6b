// SPDX-License-Identifier: BSD-3-Clause
// Image resizing (upsample_*) and sampling at given positions (grid_sampler_*). Resizing processes one
// dimension at a time. Each element of the result is a weighted sum of a few input elements, which a table
// selects.
#include "torchette/kernels/resample.h"

#include <cmath>
#include <cstring>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// to[a, o, b] = sum over k of weight[o, k] from[a, index[o, k], b]. The middle dimension has `in` and `out`
/// elements.
template <typename T>
void resize_middle(const Taps<T>& taps, size_t outer, ptrdiff_t in, ptrdiff_t out, size_t inner,
                   const T* from, T* to) {
  const size_t n = taps.taps;
  for (size_t a = 0; a < outer; ++a, from += static_cast<size_t>(in) * inner)
    for (size_t o = 0; o < static_cast<size_t>(out); ++o, to += inner) {
      const int32_t* index = taps.index + o * n;
      const T* weight = taps.weight + o * n;
      if (n == 1) {
        if (inner == 1)
          *to = from[index[0]];
        else
          memmove(to, from + static_cast<size_t>(index[0]) * inner, inner * sizeof(T));
        continue;
      }
      if (inner == 1) {
        T sum = weight[0] * from[index[0]];
        for (size_t k = 1; k < n; ++k) sum += weight[k] * from[index[k]];
        *to = sum;
        continue;
      }
      const T *first = from + static_cast<size_t>(index[0]) * inner,
              *second = from + static_cast<size_t>(index[1]) * inner;
      for (size_t b = 0; b < inner; ++b) to[b] = weight[0] * first[b] + weight[1] * second[b];
      for (size_t k = 2; k < n; ++k) {
        const T* more = from + static_cast<size_t>(index[k]) * inner;
        for (size_t b = 0; b < inner; ++b) to[b] += weight[k] * more[b];
      }
    }
}

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
    Taps<T> taps[3];
    size_t largest = 0, size = innermost ? static_cast<size_t>(sizes[1]) : 1;
    const size_t channels = size;
    for (size_t d = 0; d < spatial; ++d) size *= static_cast<size_t>(x.sizes()[2 + d]);
    const size_t in_image = size;
    // Starts with the last dimension. The results of all steps except the last are stored in one of two
    // buffers.
    for (size_t d = spatial; d-- > 0;) {
      TORCHETTE_TRY(taps[d].make(context, filter, align_corners, x.sizes()[2 + d], sizes[2 + d], scales[d]));
      size = size / static_cast<size_t>(x.sizes()[2 + d]) * static_cast<size_t>(sizes[2 + d]);
      if (d > 0 && size > largest) largest = size;
    }
    const size_t out_image = size;
    T* buffer = nullptr;
    if (largest > 0) {
      buffer = static_cast<T*>(context.allocate_temp(2 * largest * sizeof(T)));
      TORCHETTE_CHECK(buffer != nullptr, MemoryAllocationFailed, "%s: no scratch memory", name);
    }
    const size_t images = static_cast<size_t>(sizes[0]) * (innermost ? 1 : static_cast<size_t>(sizes[1]));
    for (size_t i = 0; i < images; ++i) {
      const T* step_from = source + i * in_image;
      size_t inner = channels, outer = in_image / channels;
      for (size_t d = spatial; d-- > 0;) {
        const auto in = static_cast<size_t>(x.sizes()[2 + d]);
        outer /= in;
        T* step_to = d == 0 ? target + i * out_image : buffer + (d % 2) * largest;
        resize_middle(taps[d], outer, static_cast<ptrdiff_t>(in), sizes[2 + d], inner, step_from, step_to);
        inner *= static_cast<size_t>(sizes[2 + d]);
        step_from = step_to;
      }
      if (is_integer)
        for (size_t k = 0; k < out_image; ++k) {
          T& value = target[i * out_image + k];
          value = value <= 0 ? 0 : value >= 255 ? 255 : std::nearbyint(value);
        }
    }
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

/// Maps a position into a dimension of `size` elements, unless the padding is zeros.
template <typename T>
T moved_inside(T x, ptrdiff_t size, Beyond beyond, bool align_corners) {
  if (beyond == Beyond::Zeros) return x;
  const T last = static_cast<T>(size - 1);
  if (beyond == Beyond::Reflection) {
    const T low = align_corners ? T(0) : T(-0.5), span = align_corners ? last : static_cast<T>(size);
    if (span == 0) return 0;
    x = std::fabs(x - low);
    const T remainder = std::fmod(x, span);
    x = std::fmod(std::floor(x / span), T(2)) == 0 ? remainder + low : span - remainder + low;
  }
  return x > 0 ? (x < last ? x : last) : T(0);
}

/// The input elements and their weights for one element of the result.
template <typename T>
struct GridTaps {
  ptrdiff_t offset[16] = {0};
  T weight[16] = {1};
  size_t count = 1;
};

/// Sampling mode: aten's interpolation_mode, padding_mode and align_corners.
struct GridMode {
  int64_t mode;
  Beyond beyond;
  bool align_corners;
  size_t taps() const { return mode == 0 ? 2 : mode == 1 ? 1 : 4; }  // per dimension
};

template <size_t kSpatial, typename T>
TORCHETTE_INLINE void find_taps(const Tensor& x, GridMode how, const T* position, GridTaps<T>& found) {
  const size_t taps = how.taps();
  size_t known = 1;  // number of taps of the previous dimensions
  for (size_t d = 0; d < kSpatial; ++d) {
    const ptrdiff_t size = x.sizes()[2 + d];
    const T given = position[kSpatial - 1 - d];  // the last dimension comes first in the grid
    T at = how.align_corners ? (given + 1) / 2 * static_cast<T>(size - 1)
                             : ((given + 1) * static_cast<T>(size) - 1) / 2;
    if (how.mode != 2) at = moved_inside(at, size, how.beyond, how.align_corners);
    const T base = how.mode == 1 ? std::nearbyint(at) : std::floor(at), part = at - base;
    if (part != part && how.mode != 1) {  // the position is infinite or NaN: the result is NaN
      found.offset[0] = 0;
      found.weight[0] = part;
      found.count = 1;
      return;
    }
    ptrdiff_t next[16];
    T share[16];
    size_t count = 0;
    for (size_t k = 0; k < taps; ++k) {
      T tap = base + static_cast<T>(k) - (how.mode == 2 ? 1 : 0);
      const T w = how.mode == 0   ? (k == 0 ? 1 - part : part)
                  : how.mode == 1 ? T(1)
                                  : cubic(static_cast<T>(k) - 1 - part, T(-0.75));
      if (how.mode == 2) tap = moved_inside(tap, size, how.beyond, how.align_corners);
      if (!(tap >= 0 && tap < static_cast<T>(size))) continue;  // padded with zeros
      for (size_t i = 0; i < known; ++i, ++count) {
        next[count] = found.offset[i] * size + static_cast<ptrdiff_t>(tap);
        share[count] = found.weight[i] * w;
      }
    }
    known = count;
    for (size_t i = 0; i < count; ++i) {
      found.offset[i] = next[i];
      found.weight[i] = share[i];
    }
  }
  found.count = known;
}

template <size_t kSpatial>
Error grid_sampler_out(Context& context, const Tensor& x, const Tensor& grid, int64_t mode, int64_t padding,
                       bool align_corners, Tensor& out) {
  constexpr const char* kName = kSpatial == 2 ? "grid_sampler_2d" : "grid_sampler_3d";
  constexpr size_t kRank = kSpatial + 2;
  TORCHETTE_CHECK(x.dim() == kRank && grid.dim() == kRank && x.sizes()[0] == grid.sizes()[0] &&
                      grid.sizes()[kRank - 1] == kSpatial,
                  InvalidArgument, "%s: input with %d dimensions does not fit grid with %d dimensions", kName,
                  static_cast<int>(x.dim()), static_cast<int>(grid.dim()));
  TORCHETTE_CHECK(x.scalar_type() == grid.scalar_type() && x.scalar_type() == out.scalar_type(), InvalidType,
                  "%s: input, grid and out are of types %d, %d and %d, expected one type", kName,
                  static_cast<int>(x.scalar_type()), static_cast<int>(grid.scalar_type()),
                  static_cast<int>(out.scalar_type()));
  TORCHETTE_CHECK(mode >= 0 && mode <= (kSpatial == 2 ? 2 : 1) && padding >= 0 && padding <= 2,
                  InvalidArgument, "%s: interpolation_mode %lld or padding_mode %lld is out of range", kName,
                  static_cast<long long>(mode), static_cast<long long>(padding));
  SizesType sizes[kRank] = {x.sizes()[0], x.sizes()[1]};
  size_t in_plane = 1, out_plane = 1;
  for (size_t d = 0; d < kSpatial; ++d) {
    sizes[2 + d] = grid.sizes()[1 + d];
    TORCHETTE_CHECK(x.sizes()[2 + d] > 0, InvalidArgument, "%s: input has no elements", kName);
    in_plane *= static_cast<size_t>(x.sizes()[2 + d]);
    out_plane *= static_cast<size_t>(sizes[2 + d]);
  }
  TORCHETTE_TRY(resize_result(out, {sizes, kRank}));
  const GridMode how = {mode, static_cast<Beyond>(padding), align_corners};
  const auto channels = static_cast<size_t>(sizes[1]);
  return for_compute<false>(x.scalar_type(), kName, "input", [&](auto t) {
    using T = decltype(t);
    Dense image, positions, result;
    TORCHETTE_TRY(image.read(context, x, kScalarType<T>));
    TORCHETTE_TRY(positions.read(context, grid, kScalarType<T>));
    TORCHETTE_TRY(result.open(context, out, kScalarType<T>));
    const T* position = positions.data<T>();
    for (size_t n = 0; n < static_cast<size_t>(sizes[0]); ++n) {
      const T* from = image.data<T>() + n * channels * in_plane;
      T* to = result.data<T>() + n * channels * out_plane;
      for (size_t p = 0; p < out_plane; ++p, position += kSpatial) {
        GridTaps<T> taps;
        find_taps<kSpatial>(x, how, position, taps);
        for (size_t c = 0; c < channels; ++c) {
          T sum = 0;
          for (size_t i = 0; i < taps.count; ++i)
            sum += taps.weight[i] * from[c * in_plane + static_cast<size_t>(taps.offset[i])];
          to[c * out_plane + p] = sum;
        }
      }
    }
    return result.finish();
  });
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
