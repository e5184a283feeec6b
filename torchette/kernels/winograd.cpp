// SPDX-License-Identifier: BSD-3-Clause
// Winograd's F(2x2, 3x3): 4x4 input tiles and the filters are transformed, multiplied elementwise (16 GEMMs
// over the channels), and transformed back to 2x2 outputs. The matrices are those of Lavin and Gray, "Fast
// Algorithms for Convolutional Neural Networks" (2015).
#include "torchette/kernels/winograd.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// Number of tiles that are computed together: their 16 x channels floats stay in the cache.
constexpr size_t kTilesAtOnce = 7 * 16;

static size_t tiles_in(ptrdiff_t outputs) { return static_cast<size_t>((outputs + 1) / 2); }

bool Winograd::pays() const {
  constexpr size_t kMaxWeights = size_t{1} << 20;
  const size_t tiles = tiles_in(out_height) * tiles_in(out_width);
  return kLanes >= 8 && in_channels >= 32 && out_channels >= 32 && tiles >= 40 &&
         weight_floats() <= kMaxWeights;
}

size_t Winograd::scratch_floats() const {
  const size_t tiles = tiles_in(out_height) * tiles_in(out_width);
  const size_t at_once = tiles < kTilesAtOnce ? tiles : kTilesAtOnce;
  return 16 * (in_channels + out_channels) * round_to_vectors(at_once) + panel_floats(at_once, in_channels);
}

void Winograd::transform_weight(const float* weight, float* to) const {
  const size_t position = in_channels * out_channels;
  for (size_t o = 0; o < out_channels; ++o) {
    for (size_t c = 0; c < in_channels; c += kLanes) {
      const size_t lanes = in_channels - c < kLanes ? in_channels - c : kLanes;
      const float* from = weight + (o * in_channels + c) * 9;
      float transposed[9][kLanes] = {};
      for (size_t i = 0; i < lanes; ++i)
        for (size_t t = 0; t < 9; ++t) transposed[t][i] = from[i * 9 + t];
      // G g, then (G g) G^T
      Vec half[4][3];
      TORCHETTE_UNROLL(3)
      for (int x = 0; x < 3; ++x) {
        const Vec a = load(transposed[x]), b = load(transposed[3 + x]), d = load(transposed[6 + x]);
        half[0][x] = a;
        half[1][x] = 0.5f * ((a + d) + b);
        half[2][x] = 0.5f * ((a + d) - b);
        half[3][x] = d;
      }
      float* at = to + o * in_channels + c;
      TORCHETTE_UNROLL(4)
      for (int y = 0; y < 4; ++y) {
        const Vec a = half[y][0], b = half[y][1], d = half[y][2];
        const Vec row[4] = {a, 0.5f * ((a + d) + b), 0.5f * ((a + d) - b), d};
        TORCHETTE_UNROLL(4)
        for (int x = 0; x < 4; ++x)
          store_partial(at + static_cast<size_t>(y * 4 + x) * position, row[x], lanes);
      }
    }
  }
}

/// Splits tiles [first, first + count) at the ends of tile rows and at kLanes; calls body(tile, y, x, lanes).
template <typename Body>
static TORCHETTE_INLINE void for_tiles(size_t first, size_t count, size_t per_row, const Body& body) {
  for (size_t t = 0; t < count;) {
    const size_t y = (first + t) / per_row, x = (first + t) % per_row;
    size_t lanes = per_row - x < count - t ? per_row - x : count - t;
    if (lanes > kLanes) lanes = kLanes;
    body(t, static_cast<ptrdiff_t>(y), static_cast<ptrdiff_t>(x), lanes);
    t += lanes;
  }
}

/// The tiles [first, first + count) that are computed together, and the rows of their matrices.
struct Tiles {
  size_t first, count, per_row, row;
};

/// Transforms the inputs of the tiles into `inputs`, [16][in_channels][row].
static TORCHETTE_INLINE void transform_inputs(const Winograd& w, const Tiles& tiles, const float* image,
                                              float* inputs) {
  const size_t in_plane = static_cast<size_t>(w.in_height * w.in_width);
  const size_t row = tiles.row, in_place = w.in_channels * row;
  for_tiles(tiles.first, tiles.count, tiles.per_row, [&](size_t t, ptrdiff_t y, ptrdiff_t x, size_t lanes) {
    const ptrdiff_t iy = 2 * y - w.pad_y, ix = 2 * x - w.pad_x;
    const uint32_t bits = inside_bits(ix, w.in_width), shifted = inside_bits(ix + 2, w.in_width);
    const LaneMask mask[4] = {lane_mask(bits), lane_mask(bits >> kLanes), lane_mask(shifted),
                              lane_mask(shifted >> kLanes)};
    for (size_t c = 0; c < w.in_channels; ++c) {
      Vec d[4][4];
      TORCHETTE_UNROLL(4)
      for (int r = 0; r < 4; ++r) {
        if (iy + r < 0 || iy + r >= w.in_height) {
          for (int j = 0; j < 4; ++j) d[r][j] = Vec{};
          continue;
        }
        const float* p = image + c * in_plane + (iy + r) * w.in_width + ix;
        deinterleave(load_masked(p, mask[0]), load_masked(p + kLanes, mask[1]), d[r][0], d[r][1]);
        deinterleave(load_masked(p + 2, mask[2]), load_masked(p + 2 + kLanes, mask[3]), d[r][2], d[r][3]);
      }
      // B^T d, then (B^T d) B
      Vec half[4][4];
      TORCHETTE_UNROLL(4)
      for (int j = 0; j < 4; ++j) {
        half[0][j] = d[0][j] - d[2][j];
        half[1][j] = d[1][j] + d[2][j];
        half[2][j] = d[2][j] - d[1][j];
        half[3][j] = d[1][j] - d[3][j];
      }
      float* to = inputs + c * row + t;
      TORCHETTE_UNROLL(4)
      for (int i = 0; i < 4; ++i) {
        const Vec v[4] = {half[i][0] - half[i][2], half[i][1] + half[i][2], half[i][2] - half[i][1],
                          half[i][1] - half[i][3]};
        TORCHETTE_UNROLL(4)
        for (int j = 0; j < 4; ++j)
          store_partial(to + static_cast<size_t>(i * 4 + j) * in_place, v[j], lanes);
      }
    }
  });
}

/// Transforms `products`, [16][out_channels][row], into the outputs of the tiles. Sets the lanes of
/// `non_finite` with an output that is infinite or NaN.
static TORCHETTE_INLINE void transform_outputs(const Winograd& w, const Tiles& tiles, const float* products,
                                               const float* bias, float* out, VecInt& non_finite) {
  const size_t out_plane = static_cast<size_t>(w.out_height * w.out_width);
  const size_t row = tiles.row, out_place = w.out_channels * row;
  for_tiles(tiles.first, tiles.count, tiles.per_row, [&](size_t t, ptrdiff_t y, ptrdiff_t x, size_t lanes) {
    const ptrdiff_t columns = w.out_width - 2 * x < static_cast<ptrdiff_t>(2 * lanes)
                                  ? w.out_width - 2 * x
                                  : static_cast<ptrdiff_t>(2 * lanes);
    const bool two_rows = 2 * y + 1 < w.out_height;
    for (size_t o = 0; o < w.out_channels; ++o) {
      const float* from = products + o * row + t;
      const Vec start = broadcast(bias != nullptr ? bias[o] : 0.0f);
      // A^T m, then (A^T m) A
      Vec half[2][4];
      TORCHETTE_UNROLL(4)
      for (int j = 0; j < 4; ++j) {
        const Vec m0 = load_partial(from + static_cast<size_t>(j) * out_place, lanes);
        const Vec m1 = load_partial(from + static_cast<size_t>(4 + j) * out_place, lanes);
        const Vec m2 = load_partial(from + static_cast<size_t>(8 + j) * out_place, lanes);
        const Vec m3 = load_partial(from + static_cast<size_t>(12 + j) * out_place, lanes);
        half[0][j] = (m0 + m1) + m2;
        half[1][j] = (m1 - m2) - m3;
      }
      float* to = out + o * out_plane + static_cast<size_t>(2 * y * w.out_width + 2 * x);
      TORCHETTE_UNROLL(2)
      for (int i = 0; i < 2; ++i) {
        const Vec even = (half[i][0] + half[i][1]) + half[i][2] + start;
        const Vec odd = (half[i][1] - half[i][2]) - half[i][3] + start;
        non_finite |= ((even - even) != 0.0f) | ((odd - odd) != 0.0f);
        if (i == 1 && !two_rows) break;
        Vec low, high;
        interleave(even, odd, low, high);
        float* line = to + i * w.out_width;
        if (columns >= kLanes)
          store(line, low);
        else
          store_partial(line, low, static_cast<size_t>(columns));
        if (columns > kLanes) store_partial(line + kLanes, high, static_cast<size_t>(columns - kLanes));
      }
    }
  });
}

bool Winograd::run(const float* image, const float* transformed_weight, const float* bias, float* out,
                   float* scratch) const {
  const size_t per_row = tiles_in(out_width), tiles = tiles_in(out_height) * per_row;
  VecInt non_finite = {};
  for (size_t first = 0; first < tiles; first += kTilesAtOnce) {
    const size_t count = tiles - first < kTilesAtOnce ? tiles - first : kTilesAtOnce;
    const Tiles part = {first, count, per_row, round_to_vectors(count)};
    const size_t in_place = in_channels * part.row, out_place = out_channels * part.row;
    float* inputs = scratch;                    // [16][in_channels][row]
    float* products = scratch + 16 * in_place;  // [16][out_channels][row]
    float* panels = products + 16 * out_place;
    transform_inputs(*this, part, image, inputs);
    for (size_t position = 0; position < 16; ++position)
      gemm_of_rows(
          {out_channels, count, in_channels, transformed_weight + position * in_channels * out_channels,
           static_cast<ptrdiff_t>(in_channels), products + position * out_place,
           static_cast<ptrdiff_t>(part.row), nullptr, nullptr, false},
          inputs + position * in_place, static_cast<ptrdiff_t>(part.row), panels);
    transform_outputs(*this, part, products, bias, out, non_finite);
  }
  int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= non_finite[i];
  return any == 0;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
