// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/media/wav.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "torchette/llm/media/features.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

constexpr uint32_t kPcm = 1, kFloat = 3, kExtensible = 0xFFFE;

struct Format {
  uint32_t kind = 0, num_channels = 0, rate = 0, num_bits = 0;
};

uint32_t little_endian(const uint8_t* bytes, size_t size) {
  uint32_t value = 0;
  for (size_t i = 0; i < size; ++i) value |= uint32_t{bytes[i]} << (8 * i);
  return value;
}

bool is_chunk(const uint8_t* bytes, const char* name) { return std::memcmp(bytes, name, 4) == 0; }

template <typename T>
double as(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return std::isfinite(value) ? static_cast<double>(value) : 0;
}

double sample_of(const uint8_t* bytes, const Format& format) {
  if (format.kind == kFloat) return format.num_bits == 32 ? as<float>(bytes) : as<double>(bytes);
  if (format.num_bits == 8) return (bytes[0] - 128) / 128.0;  // 8-bit samples are unsigned
  const size_t size = format.num_bits / 8;
  return static_cast<int32_t>(little_endian(bytes, size) << (32 - format.num_bits)) / 2147483648.0;
}

Error read_format(const uint8_t* bytes, size_t size, Format* format) {
  TORCHETTE_CHECK(size >= 16, InvalidExternalData, "the format chunk has %zu bytes, at least 16 are needed",
                  size);
  *format = {little_endian(bytes, 2), little_endian(bytes + 2, 2), little_endian(bytes + 4, 4),
             little_endian(bytes + 14, 2)};
  if (format->kind == kExtensible && size >= 26)
    format->kind = little_endian(bytes + 24, 2);  // the subformat
  const uint32_t bits = format->num_bits;
  const bool is_pcm = format->kind == kPcm && (bits == 8 || bits == 16 || bits == 24 || bits == 32);
  TORCHETTE_CHECK(
      is_pcm || (format->kind == kFloat && (bits == 32 || bits == 64)), NotSupported,
      "samples have format %u with %u bits; supported: PCM with 8, 16, 24 or 32 bits and float with "
      "32 or 64 bits",
      static_cast<unsigned>(format->kind), static_cast<unsigned>(bits));
  TORCHETTE_CHECK(format->num_channels > 0, InvalidExternalData, "the file has no channels");
  TORCHETTE_CHECK(format->rate == kSampleRate, NotSupported,
                  "the file has %u samples per second, the model requires %d",
                  static_cast<unsigned>(format->rate), kSampleRate);
  return Error::Ok;
}

}  // namespace

Result<std::vector<float>> read_wav(Span<const uint8_t> bytes) {
  TORCHETTE_CHECK(bytes.size() >= 12 && is_chunk(bytes.data(), "RIFF") && is_chunk(bytes.data() + 8, "WAVE"),
                  InvalidExternalData, "it is not a WAV file");
  Format format;
  for (size_t at = 12; bytes.size() - at >= 8;) {
    const uint8_t* const chunk = bytes.data() + at;
    const size_t declared = little_endian(chunk + 4, 4), rest = bytes.size() - at - 8;
    const size_t size = std::min(declared, rest);
    if (is_chunk(chunk, "fmt ")) TORCHETTE_TRY(read_format(chunk + 8, size, &format));
    if (is_chunk(chunk, "data")) {
      TORCHETTE_CHECK(format.kind != 0, InvalidExternalData, "the data chunk comes before the format chunk");
      const size_t width = format.num_bits / 8, frame = width * format.num_channels;
      std::vector<float> samples(size / frame);
      for (size_t i = 0; i < samples.size(); ++i) {
        double sum = 0;
        for (size_t channel = 0; channel < format.num_channels; ++channel)
          sum += sample_of(chunk + 8 + i * frame + channel * width, format);
        samples[i] = static_cast<float>(sum / format.num_channels);
      }
      TORCHETTE_CHECK(!samples.empty(), InvalidExternalData, "the file has no samples");
      return samples;
    }
    at += 8 + size + std::min<size_t>(declared % 2, rest - size);  // chunks begin at even positions
  }
  TORCHETTE_LOG(Error, "the file has no data chunk");
  return Error::InvalidExternalData;
}

}  // namespace torchette::extension::llm
