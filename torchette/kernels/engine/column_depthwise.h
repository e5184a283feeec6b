// SPDX-License-Identifier: BSD-3-Clause
// Depthwise convolution of 8-bit images with dot products of four bytes: each column of a window, interleaved
// from four lines, is multiplied by the taps of the windows that contain it.
#pragma once

#include "torchette/kernels/engine/integer_machines.h"

#if TORCHETTE_MAY_HAVE_DOTS && defined(__AVX512BW__)
#define TORCHETTE_HAS_COLUMNS 1
#else
#define TORCHETTE_HAS_COLUMNS 0
#endif

namespace torchette {
namespace TORCHETTE_ISA {
#if TORCHETTE_HAS_COLUMNS
namespace {

/// The windows of a line of the result.
struct ColumnDepthwise {
  // Channels at a time. Lane 4 l + c of vector v contains channel 16 l + 4 v + c, the order of interleave().
  static constexpr size_t kChannels = 64, kVectors = 4, kPanels = kChannels / kPanelWidth;
  static constexpr int kAtOnce = 4;  // pixels of the result at a time

  const Window* window;
  const int8_t* filter;      // [blocks of kChannels][columns][quads of lines][kVectors][kLanes][kQuad]
  const float* terms;        // [blocks][bias, multiplier][kVectors][kLanes]
  const int32_t* zeros;      // [blocks][kVectors][kLanes]: minus the zero point times the sum of the weights
  const uint8_t* outside;    // a line of zero points
  uint8_t input_zero, flip;  // flip is XORed with the bytes, so that they are unsigned
  int32_t zero, low, high;

  static bool fits(const Window& w) {
    return w.in[0] == 1 && w.padding[0] == 0 && w.kernel[0] == 1 && (w.kernel[2] == 3 || w.kernel[2] == 5) &&
           w.kernel[1] <= 2 * static_cast<ptrdiff_t>(kQuad) && w.dilation[2] == 1 && w.stride[2] <= 2;
  }
  static size_t blocks(size_t channels) { return (channels + kChannels - 1) / kChannels; }
  static size_t filter_bytes(const Window& w) {
    return blocks(w.channels) * static_cast<size_t>(w.kernel[2]) *
           quads_of(static_cast<size_t>(w.kernel[1])) * kQuad * kChannels;
  }
  /// Arranges packed weights [panels][taps][kPanelWidth] as `filter`, a panel at a time.
  static void arrange_filter(const Window& w, const int8_t* weight, int8_t* to) {
    const auto lines = static_cast<size_t>(w.kernel[1]), columns = static_cast<size_t>(w.kernel[2]);
    const size_t quads = quads_of(lines), block = columns * quads * kQuad * kChannels;
    memset(to, 0, blocks(w.channels) * block);
    for (size_t p = 0; p < panels_of(w.channels); ++p, weight += lines * columns * kPanelWidth)
      for (size_t kx = 0; kx < columns; ++kx)
        for (size_t q = 0; q < quads; ++q) {
          __m128i taps[kQuad] = {};
          for (size_t i = 0; i < kQuad && q * kQuad + i < lines; ++i)
            taps[i] = _mm_loadu_si128(
                reinterpret_cast<const __m128i*>(weight + ((q * kQuad + i) * columns + kx) * kPanelWidth));
          const __m128i low = _mm_unpacklo_epi8(taps[0], taps[1]), high = _mm_unpackhi_epi8(taps[0], taps[1]),
                        low_next = _mm_unpacklo_epi8(taps[2], taps[3]),
                        high_next = _mm_unpackhi_epi8(taps[2], taps[3]);
          const __m128i vectors[kVectors] = {
              _mm_unpacklo_epi16(low, low_next), _mm_unpackhi_epi16(low, low_next),
              _mm_unpacklo_epi16(high, high_next), _mm_unpackhi_epi16(high, high_next)};
          int8_t* const at = to + p / kPanels * block + (kx * quads + q) * kQuad * kChannels;
          for (size_t v = 0; v < kVectors; ++v)
            memcpy(at + v * sizeof(__m512i) + p % kPanels * sizeof(__m128i), &vectors[v], sizeof(__m128i));
        }
  }
  /// Arranges the requantization terms as `terms` and `zeros`. `input_zero` is that of unsigned bytes.
  static void arrange_terms(const Requantization& how, size_t channels, int32_t input_zero, float* terms,
                            int32_t* zeros) {
    memset(terms, 0, blocks(channels) * 2 * kChannels * sizeof(float));
    memset(zeros, 0, blocks(channels) * kChannels * sizeof(int32_t));
    const auto put = [](const auto* panel, auto* to) TORCHETTE_INLINED {
      for (size_t v = 0; v < kVectors; ++v) memcpy(to + v * kLanes, panel + v * 4, 4 * sizeof(*to));
    };
    for (size_t p = 0; p < panels_of(channels); ++p) {
      const size_t block = p / kPanels, lane = p % kPanels * 4, channel = p * kPanelWidth;
      put(how.bias + channel, terms + block * 2 * kChannels + lane);
      put(how.multiplier + channel, terms + (block * 2 + 1) * kChannels + lane);
      int32_t zero_terms[kLanes];
      store(zero_terms, weight_sums(how.sums + channel) * -input_zero);
      put(zero_terms, zeros + block * kChannels + lane);
    }
  }

  /// Computes line y of the result of an image.
  void run(const uint8_t* image, ptrdiff_t y, uint8_t* to) const {
    const Window& w = *window;
    if (w.kernel[2] == 3)
      w.stride[2] == 1 ? run_line<3, 1>(image, y, to) : run_line<3, 2>(image, y, to);
    else
      w.stride[2] == 1 ? run_line<5, 1>(image, y, to) : run_line<5, 2>(image, y, to);
  }

 private:
  /// Interleaves 64 channels of four lines: quads of the bytes of a channel.
  TORCHETTE_INLINE static void interleave(const uint8_t* const* lines, ptrdiff_t at, __m512i flip,
                                          __mmask64 inside, __m512i (&quads)[kVectors]) {
    __m512i line[4];
    TORCHETTE_UNROLL(4)
    for (int i = 0; i < 4; ++i) line[i] = _mm512_maskz_loadu_epi8(inside, lines[i] + at) ^ flip;
    constexpr __mmask64 kBytes = ~__mmask64{0};  // GCC warns about the intrinsics without masks
    constexpr __mmask32 kWords = ~__mmask32{0};
    const __m512i low = _mm512_maskz_unpacklo_epi8(kBytes, line[0], line[1]),
                  high = _mm512_maskz_unpackhi_epi8(kBytes, line[0], line[1]),
                  low_next = _mm512_maskz_unpacklo_epi8(kBytes, line[2], line[3]),
                  high_next = _mm512_maskz_unpackhi_epi8(kBytes, line[2], line[3]);
    quads[0] = _mm512_maskz_unpacklo_epi16(kWords, low, low_next);
    quads[1] = _mm512_maskz_unpackhi_epi16(kWords, low, low_next);
    quads[2] = _mm512_maskz_unpacklo_epi16(kWords, high, high_next);
    quads[3] = _mm512_maskz_unpackhi_epi16(kWords, high, high_next);
  }

  /// Computes kCount pixels of a block of channels. kInside states that their columns are in the image.
  template <int kTaps, int kStride, int kCount, bool kInside>
  TORCHETTE_INLINE void pixels(const uint8_t* const* lines, size_t quads, size_t block, __mmask64 inside,
                               ptrdiff_t x, const ToBytes& bytes, uint8_t* to) const {
    const Window& w = *window;
    const __m512i mask = _mm512_set1_epi8(static_cast<char>(flip)),
                  beside = _mm512_set1_epi8(static_cast<char>(input_zero)) ^ mask;
    __m512i sums[kCount][kVectors];
    TORCHETTE_UNROLL(4)
    for (int i = 0; i < kCount; ++i) TORCHETTE_UNROLL(4)
    for (size_t v = 0; v < kVectors; ++v)
      sums[i][v] = _mm512_loadu_si512(zeros + block * kChannels + v * kLanes);
    const int8_t* filters = filter + block * static_cast<size_t>(kTaps) * quads * kQuad * kChannels;
    const ptrdiff_t first = x * kStride - w.padding[2];
    for (size_t q = 0; q < quads; ++q, filters += kQuad * kChannels, lines += kQuad) TORCHETTE_UNROLL(16)
    for (int j = 0; j < (kCount - 1) * kStride + kTaps; ++j) {
      const ptrdiff_t column = first + j;
      __m512i column_quads[kVectors] = {beside, beside, beside, beside};
      if (kInside || (column >= 0 && column < w.in[2]))
        interleave(lines, column * static_cast<ptrdiff_t>(w.channels), mask, inside, column_quads);
      TORCHETTE_UNROLL(4)
      for (int i = 0; i < kCount; ++i) {
        const int tap = j - i * kStride;
        if (tap < 0 || tap >= kTaps) continue;
        const int8_t* const weights = filters + static_cast<size_t>(tap) * quads * kQuad * kChannels;
        TORCHETTE_UNROLL(4)
        for (size_t v = 0; v < kVectors; ++v)
          sums[i][v] =
              Dots::dot(sums[i][v], column_quads[v], _mm512_loadu_si512(weights + v * kLanes * kQuad));
      }
    }
    const float* const bias = terms + block * 2 * kChannels;
    TORCHETTE_UNROLL(4)
    for (int i = 0; i < kCount; ++i) {
      Vec scaled[kVectors];
      TORCHETTE_UNROLL(4)
      for (size_t v = 0; v < kVectors; ++v)
        scaled[v] = (to_floats(reinterpret_cast<VecInt>(sums[i][v])) + load(bias + v * kLanes)) *
                    load(bias + kChannels + v * kLanes);
      _mm512_mask_storeu_epi8(to + i * static_cast<ptrdiff_t>(w.channels), inside, bytes.pack(scaled));
    }
  }

  template <int kTaps, int kStride>
  TORCHETTE_NOINLINE void run_line(const uint8_t* image, ptrdiff_t y, uint8_t* to) const {
    const Window& w = *window;
    const size_t quads = quads_of(static_cast<size_t>(w.kernel[1]));
    const ToBytes bytes(zero, low, high);
    for (size_t block = 0; block < blocks(w.channels); ++block) {
      const size_t channel = block * kChannels, left = w.channels - channel;
      const __mmask64 inside = left >= kChannels ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
      const uint8_t* lines[2 * kQuad];
      for (size_t i = 0; i < quads * kQuad; ++i) {  // the weights of lines after the window are zero
        const ptrdiff_t tap = static_cast<ptrdiff_t>(i) < w.kernel[1] ? static_cast<ptrdiff_t>(i) : 0;
        const ptrdiff_t line = y * w.stride[1] - w.padding[1] + tap * w.dilation[1];
        lines[i] = (line < 0 || line >= w.in[1] ? outside
                                                : image + static_cast<size_t>(line * w.in[2]) * w.channels) +
                   channel;
      }
      for (ptrdiff_t x = 0; x < w.out[2];) {
        const ptrdiff_t first = x * kStride - w.padding[2];
        uint8_t* const at = to + static_cast<size_t>(x) * w.channels + channel;
        if (first >= 0 && first + (kAtOnce - 1) * kStride + kTaps <= w.in[2]) {
          pixels<kTaps, kStride, kAtOnce, true>(lines, quads, block, inside, x, bytes, at);
          x += kAtOnce;
        } else {
          pixels<kTaps, kStride, 1, false>(lines, quads, block, inside, x, bytes, at);
          x += 1;
        }
      }
    }
  }
};

}  // namespace
#endif
}  // namespace TORCHETTE_ISA
}  // namespace torchette
