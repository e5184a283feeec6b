// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/media/features.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <utility>

namespace torchette::extension::llm {
namespace {

using Complex = std::complex<double>;

constexpr size_t kWindow = 400, kHop = kSamplesPerFrame;
constexpr double kRate = kSampleRate, kPi = 3.14159265358979323846;

/// Computes the discrete Fourier transform of `count` values with a stride of `step`, by mixed-radix steps
/// from the smallest prime factor of `count`. `roots` are the roots of unity of the full transform.
void transform(const Complex* in, size_t step, size_t count, const std::vector<Complex>& roots, Complex* out,
               Complex* work) {
  size_t factor = 2;
  while (factor < count && count % factor != 0) ++factor;
  if (count == 1) {
    *out = *in;
    return;
  }
  const size_t part = count / factor, turn = roots.size() / count;
  for (size_t i = 0; i < factor; ++i)
    transform(in + i * step, step * factor, part, roots, work + i * part, out + i * part);
  for (size_t k = 0; k < count; ++k) {
    Complex sum = 0;
    for (size_t i = 0; i < factor; ++i) sum += work[i * part + k % part] * roots[i * k % count * turn];
    out[k] = sum;
  }
}

double hertz(double mel) {
  return mel < 15 ? mel * 200 / 3 : 1000 * std::exp((mel - 15) * std::log(6.4) / 27);
}

/// Returns the weights [new_size, old_size] of a bilinear resize of one dimension, with antialiasing.
std::vector<double> resize_weights(size_t old_size, size_t new_size) {
  std::vector<double> all(old_size * new_size);
  const double scale = static_cast<double>(old_size) / static_cast<double>(new_size);
  for (size_t i = 0; i < new_size; ++i) {
    double* const row = all.data() + i * old_size;
    double sum = 0;
    for (size_t j = 0; j < old_size; ++j) {
      const double distance =
          std::abs(static_cast<double>(j) + 0.5 - (static_cast<double>(i) + 0.5) * scale) /
          std::max(scale, 1.0);
      sum += row[j] = std::max(1 - distance, 0.0);
    }
    for (size_t j = 0; j < old_size; ++j) row[j] /= sum;
  }
  return all;
}

/// Resizes the rows of `in` [rows, old_size]; returns them transposed, [new_size, rows].
std::vector<double> resize_rows(const std::vector<double>& in, size_t rows, size_t old_size,
                                size_t new_size) {
  const std::vector<double> by = resize_weights(old_size, new_size);
  std::vector<double> out(new_size * rows);
  for (size_t i = 0; i < new_size; ++i) {
    size_t first = 0, last = old_size;
    while (by[i * old_size + first] == 0) ++first;
    while (by[i * old_size + last - 1] == 0) --last;
    for (size_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (size_t j = first; j < last; ++j) sum += in[row * old_size + j] * by[i * old_size + j];
      out[i * rows + row] = sum;
    }
  }
  return out;
}

}  // namespace

std::vector<float> log_mel(const float* samples, size_t count, size_t bands, size_t frames) {
  const size_t length = frames * kHop, bins = kWindow / 2 + 1, half = kWindow / 2;
  const auto sample = [&](std::ptrdiff_t at) -> double {  // mirrored at both ends
    const auto end = static_cast<std::ptrdiff_t>(length);
    if (at < 0) at = -at;
    if (at >= end) at = 2 * (end - 1) - at;
    return at >= 0 && static_cast<size_t>(at) < count ? static_cast<double>(samples[at]) : 0;
  };
  std::vector<double> window(kWindow);
  std::vector<Complex> roots(kWindow), in(kWindow), out(kWindow), work(kWindow);
  for (size_t i = 0; i < kWindow; ++i) {
    const double angle = 2 * kPi * static_cast<double>(i) / kWindow;
    window[i] = 0.5 - 0.5 * std::cos(angle);
    roots[i] = {std::cos(angle), -std::sin(angle)};
  }
  const double top = 15 + 27 * std::log(kRate / 2 / 1000) / std::log(6.4);
  std::vector<double> edges(bands + 2);
  for (size_t i = 0; i < edges.size(); ++i)
    edges[i] = hertz(top * static_cast<double>(i) / static_cast<double>(bands + 1));
  std::vector<double> filters(bands * bins);
  std::vector<std::pair<size_t, size_t>> reach(bands);  // range of the nonzero weights of each band
  for (size_t band = 0; band < bands; ++band) {
    const double low = edges[band], middle = edges[band + 1], high = edges[band + 2];
    for (size_t i = 0; i < bins; ++i) {
      const double at = kRate / 2 * static_cast<double>(i) / static_cast<double>(bins - 1);
      const double slope = std::min((at - low) / (middle - low), (high - at) / (high - middle));
      if (slope <= 0) continue;
      filters[band * bins + i] = slope * 2 / (high - low);
      if (reach[band].second == 0) reach[band].first = i;
      reach[band].second = i + 1;
    }
  }
  std::vector<double> log_power(bands * frames), power(bins);
  double max_log_power = -INFINITY;
  for (size_t frame = 0; frame < frames; ++frame) {
    const auto start = static_cast<std::ptrdiff_t>(frame * kHop) - static_cast<std::ptrdiff_t>(half);
    for (size_t i = 0; i < kWindow; ++i) in[i] = window[i] * sample(start + static_cast<std::ptrdiff_t>(i));
    transform(in.data(), 1, kWindow, roots, out.data(), work.data());
    for (size_t i = 0; i < bins; ++i) power[i] = std::norm(out[i]);
    for (size_t band = 0; band < bands; ++band) {
      double sum = 0;
      for (size_t i = reach[band].first; i < reach[band].second; ++i)
        sum += filters[band * bins + i] * power[i];
      const double found = std::log10(std::max(sum, 1e-10));
      log_power[band * frames + frame] = found;
      max_log_power = std::max(max_log_power, found);
    }
  }
  std::vector<float> all(log_power.size());
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = static_cast<float>((std::max(log_power[i], max_log_power - 8) + 4) / 4);
  return all;
}

std::vector<float> pixels(const Image& image, size_t height, size_t width, const std::vector<double>& mean,
                          const std::vector<double>& std) {
  const auto given_width = static_cast<size_t>(image.width()),
             given_height = static_cast<size_t>(image.height());
  const std::vector<uint8_t>& bytes = image.get_uint8_data();
  std::vector<double> planes(bytes.size());
  for (size_t i = 0; i < planes.size(); ++i) planes[i] = bytes[i] / 255.0;
  // [3 given_height, given_width] -> [width, 3 given_height] = [3 width, given_height] -> [height, 3 width]
  const std::vector<double> resized_rows = resize_rows(planes, 3 * given_height, given_width, width);
  const std::vector<double> resized = resize_rows(resized_rows, 3 * width, given_height, height);
  std::vector<float> out(3 * height * width);
  for (size_t y = 0; y < height; ++y)
    for (size_t x = 0; x < width; ++x)
      for (size_t c = 0; c < 3; ++c)
        out[(c * height + y) * width + x] =
            static_cast<float>((resized[y * 3 * width + x * 3 + c] - mean[c]) / std[c]);
  return out;
}

}  // namespace torchette::extension::llm
