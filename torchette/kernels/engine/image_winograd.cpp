// SPDX-License-Identifier: BSD-3-Clause
// Winograd's F(2x2, 3x3): 4x4 pixel tiles and the filter are transformed, multiplied elementwise (16 GEMMs
// over the channels), and transformed back to 2x2 pixels. The matrices are those of Lavin and Gray, "Fast
// Algorithms for Convolutional Neural Networks" (2015). The filter is transformed in each call, because a
// transformed filter would be 16 / 9 times as large in the file.
#include "torchette/kernels/engine/image_winograd.h"

#include "torchette/kernels/engine/gather.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

constexpr size_t kElements = 16;
// Floats of transformed pixels and GEMM results that should stay in the cache, in addition to the filter.
constexpr size_t kCacheFloats = size_t{3} << 15;
constexpr size_t kMinTiles = 12;

struct Winograd {
  const Window* window;
  const float* images;
  const PackedProduct* product;
  const float* filter;  // transformed: [kElements][panels][channels][kPanelWidth]
  const float* zeros;   // a pixel outside of the image
  size_t channels, columns, per_row, per_image;

  size_t panels() const { return columns / kPanelWidth; }
};

size_t tiles_in(ptrdiff_t pixels) { return static_cast<size_t>((pixels + 1) / 2); }

/// B^T d B of a vector of channels: reads pixels p + c and writes the 16 elements of V at stride `step`.
TORCHETTE_INLINE void transform_pixels(const float* const (&p)[kElements], size_t c, float* to, size_t step) {
  Vec half[4][4];
  TORCHETTE_UNROLL(4)
  for (size_t j = 0; j < 4; ++j) {
    const Vec d0 = load(p[j] + c), d1 = load(p[4 + j] + c), d2 = load(p[8 + j] + c), d3 = load(p[12 + j] + c);
    half[0][j] = d0 - d2;
    half[1][j] = d1 + d2;
    half[2][j] = d2 - d1;
    half[3][j] = d1 - d3;
  }
  TORCHETTE_UNROLL(4)
  for (size_t i = 0; i < 4; ++i) {
    store(to + (4 * i) * step, half[i][0] - half[i][2]);
    store(to + (4 * i + 1) * step, half[i][1] + half[i][2]);
    store(to + (4 * i + 2) * step, half[i][2] - half[i][1]);
    store(to + (4 * i + 3) * step, half[i][1] - half[i][3]);
  }
}

/// G g G^T for the filters of a panel and a channel.
template <typename W>
void transform_filter(const W* filter, size_t tap, float* to, size_t step) {
  for (size_t v = 0; v < kPanelWidth; v += kLanes) {
    Vec half[4][3];
    TORCHETTE_UNROLL(3)
    for (size_t x = 0; x < 3; ++x) {
      const Vec a = load(filter + x * tap + v), b = load(filter + (3 + x) * tap + v);
      const Vec d = load(filter + (6 + x) * tap + v);
      half[0][x] = a;
      half[1][x] = 0.5f * ((a + d) + b);
      half[2][x] = 0.5f * ((a + d) - b);
      half[3][x] = d;
    }
    TORCHETTE_UNROLL(4)
    for (size_t y = 0; y < 4; ++y) {
      const Vec a = half[y][0], b = half[y][1], d = half[y][2];
      store(to + (4 * y) * step + v, a);
      store(to + (4 * y + 1) * step + v, 0.5f * ((a + d) + b));
      store(to + (4 * y + 2) * step + v, 0.5f * ((a + d) - b));
      store(to + (4 * y + 3) * step + v, d);
    }
  }
}

/// A^T m A for all columns of a tile: rows of 2x2 pixels. Returns false if a result is infinite or NaN,
/// because the transforms propagate such values to more outputs than the convolution does.
bool transform_back(const float* m, size_t step, size_t columns, float* rows) {
  VecInt non_finite = {};
  for (size_t n = 0; n < columns; n += kLanes) {
    Vec half[2][4];
    TORCHETTE_UNROLL(4)
    for (size_t j = 0; j < 4; ++j) {
      const Vec m0 = load(m + j * step + n), m1 = load(m + (4 + j) * step + n);
      const Vec m2 = load(m + (8 + j) * step + n), m3 = load(m + (12 + j) * step + n);
      half[0][j] = (m0 + m1) + m2;
      half[1][j] = (m1 - m2) - m3;
    }
    TORCHETTE_UNROLL(2)
    for (size_t i = 0; i < 2; ++i) {
      const Vec left = (half[i][0] + half[i][1]) + half[i][2];
      const Vec right = (half[i][1] - half[i][2]) - half[i][3];
      non_finite |= ((left - left) != 0.0f) | ((right - right) != 0.0f);
      store(rows + (2 * i) * columns + n, left);
      store(rows + (2 * i + 1) * columns + n, right);
    }
  }
  int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= non_finite[i];
  return any == 0;
}

/// out = activation(row + bias + residual)
void finish_row(const PackedProduct& product, float low, float high, Activation left, const float* row,
                size_t pixel) {
  float* const out = product.c + static_cast<ptrdiff_t>(pixel) * product.c_row;
  const float* residual = product.residual;
  if (residual != nullptr) residual += static_cast<ptrdiff_t>(pixel) * product.residual_row;
  const Vec lower = broadcast(low), upper = broadcast(high);
  for (size_t n = 0; n < product.n; n += kLanes) {
    const size_t count = product.n - n < kLanes ? product.n - n : kLanes;
    Vec x = load(row + n);
    if (product.bias != nullptr) x += load_partial(product.bias + n, count);
    if (residual != nullptr) x += load_partial(residual + n, count);
    store_partial(out + n, clamp(x, lower, upper), count);
  }
  activate(left, out, 0, 1, product.n);
}

/// Convolves tiles [first, first + count), counted over all images.
void convolve_tiles(const Winograd& g, size_t first, size_t count, float* scratch) {
  const Window& w = *g.window;
  const PackedProduct& product = *g.product;
  const auto c = static_cast<ptrdiff_t>(g.channels);
  float* const pixels = scratch;                                    // [kElements][count][channels]
  float* const products = pixels + kElements * count * g.channels;  // [kElements][count][columns]
  float* const rows = products + kElements * count * g.columns;     // [4][columns]
  const auto place_of = [&](size_t tile, ptrdiff_t& y, ptrdiff_t& x) {
    y = static_cast<ptrdiff_t>(tile % g.per_image / g.per_row) * 2;
    x = static_cast<ptrdiff_t>(tile % g.per_row) * 2;
    return tile / g.per_image;
  };
  for (size_t t = 0; t < count; ++t) {
    ptrdiff_t y, x;
    const float* const image = g.images + place_of(first + t, y, x) * w.in_pixels() * g.channels;
    const float* p[kElements];
    for (size_t i = 0; i < kElements; ++i) {
      const ptrdiff_t iy = y - w.padding[1] + static_cast<ptrdiff_t>(i / 4);
      const ptrdiff_t ix = x - w.padding[2] + static_cast<ptrdiff_t>(i % 4);
      const bool inside = iy >= 0 && iy < w.in[1] && ix >= 0 && ix < w.in[2];
      p[i] = inside ? image + (iy * w.in[2] + ix) * c : g.zeros;
    }
    for (size_t channel = 0; channel < g.channels; channel += kLanes)
      transform_pixels(p, channel, pixels + t * g.channels + channel, count * g.channels);
  }
  for (size_t position = 0; position < kElements; ++position) {
    PackedProduct at = {};
    at.m = count;
    at.n = g.columns;
    at.k = g.channels;
    at.a = pixels + position * count * g.channels;
    at.a_row = c;
    at.w = g.filter + position * g.columns * g.channels;
    at.c = products + position * count * g.columns;
    at.c_row = static_cast<ptrdiff_t>(g.columns);
    packed_gemm(at, 0, g.panels());
  }
  float low, high;
  const Activation left = split_activation(product.activation, low, high);
  for (size_t t = 0; t < count; ++t) {
    ptrdiff_t y, x;
    const size_t image = place_of(first + t, y, x);
    const bool good = transform_back(products + t * g.columns, count * g.columns, g.columns, rows);
    for (ptrdiff_t i = 0; i < 4; ++i) {
      if (y + i / 2 >= w.out[1] || x + i % 2 >= w.out[2]) continue;
      const auto of_image = static_cast<size_t>((y + i / 2) * w.out[2] + x + i % 2);
      const size_t pixel = image * w.out_pixels() + of_image;
      if (good) {
        finish_row(product, low, high, left, rows + static_cast<size_t>(i) * g.columns, pixel);
        continue;
      }
      // Recomputes the pixel directly; the transformed pixels are no longer needed.
      PackedProduct one = product.rows(pixel, 1);
      gather_windows(w, g.images + image * w.in_pixels() * g.channels, 0, g.channels, of_image, 1, 0.0f,
                     pixels);
      one.a = pixels;
      packed_gemm(one, 0, g.panels());
    }
  }
}

}  // namespace

bool winograd_pays(const Window& w, size_t outputs) {
  const bool takes = kLanes >= 8 && w.taps() == 9 && w.kernel[1] == 3 && w.kernel[2] == 3 &&
                     w.stride[1] * w.stride[2] * w.dilation[1] * w.dilation[2] == 1 && w.in[0] == 1 &&
                     w.channels % kLanes == 0 && w.channels >= 32 && outputs >= 32;
  if (!takes) return false;
  // Cost in multiply-adds per pair of channels. Transforming and storing the filter costs 12 per element,
  // pixels and results cost 5. Winograd must save at least a fifth.
  const size_t tiles = w.batch * tiles_in(w.out[1]) * tiles_in(w.out[2]);
  const size_t transforms = 5 * kElements * tiles * (w.channels + outputs) / (w.channels * outputs);
  return 5 * (kElements * (tiles + 12) + transforms) < 4 * 9 * w.batch * w.out_pixels();
}

/// Transforms the filter of a panel and a channel, number `i` of all, whose weights are pairs.
static void transform_pairs(const Winograd& g, size_t i, float* to) {
  const size_t panel = i / g.channels, channel = i % g.channels;
  const auto* const words = static_cast<const int32_t*>(g.product->w);
  float taps[9 * kPanelWidth];
  for (size_t tap = 0; tap < 9; ++tap)
    widen_half(words + ((panel * 9 + tap) * g.channels + channel) / 2 * kPanelWidth, channel % 2 != 0,
               taps + tap * kPanelWidth);
  transform_filter(taps, kPanelWidth, to, g.channels * g.columns);
}

bool convolve_by_winograd(Context& context, const Window& w, const float* images,
                          const PackedProduct& product) {
  Winograd g = {&w, images, &product, nullptr, nullptr, w.channels, panels_of(product.n) * kPanelWidth, 0, 0};
  g.per_row = tiles_in(w.out[2]);
  g.per_image = tiles_in(w.out[1]) * g.per_row;
  const size_t tiles = w.batch * g.per_image, of_filter = kElements * g.channels * g.columns;
  const size_t share = (tiles + context.workers() - 1) / context.workers();
  size_t at_once = (kCacheFloats + of_filter / 2) / (kElements * (g.channels + g.columns));
  if (at_once < kMinTiles) at_once = kMinTiles;
  if (at_once > share) at_once = share;
  const size_t each = kElements * at_once * (g.channels + g.columns) + 4 * g.columns;
  float* const scratch = static_cast<float*>(
      context.allocate_temp((g.channels + of_filter + context.workers() * each) * sizeof(float)));
  if (scratch == nullptr) return false;
  for (size_t i = 0; i < g.channels; ++i) scratch[i] = 0.0f;
  g.zeros = scratch;
  float* const filter = scratch + g.channels;
  context.parallel_for(g.panels() * g.channels, min_items(12 * kElements * kPanelWidth),
                       [&](size_t begin, size_t end, size_t) {
                         if (product.stored == Stored::pairs) {
                           for (size_t i = begin; i < end; ++i)
                             transform_pairs(g, i, filter + i * kPanelWidth);
                           return;
                         }
                         with_stored(product.stored, product.w, [&](const auto* weights) {
                           for (size_t i = begin; i < end; ++i) {
                             const size_t panel = i / g.channels, channel = i % g.channels;
                             transform_filter(weights + (panel * 9 * g.channels + channel) * kPanelWidth,
                                              g.channels * kPanelWidth, filter + i * kPanelWidth,
                                              g.channels * g.columns);
                           }
                         });
                       });
  g.filter = filter;
  const size_t blocks = (tiles + at_once - 1) / at_once;
  context.parallel_for(blocks, min_items(kElements * at_once * g.channels * g.columns),
                       [&](size_t begin, size_t end, size_t worker) {
                         for (size_t i = begin; i < end; ++i) {
                           const size_t first = i * at_once;
                           convolve_tiles(g, first, tiles - first < at_once ? tiles - first : at_once,
                                          filter + of_filter + worker * each);
                         }
                       });
  return true;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
