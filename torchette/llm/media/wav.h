// SPDX-License-Identifier: BSD-3-Clause
// Reads WAV files (RIFF). The bytes are untrusted.
#pragma once

#include <vector>

#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette::extension::llm {

/// Returns the mean of the channels, from -1 to 1. The format is PCM of 8, 16, 24 or 32 bits, or float of 32
/// or 64 bits, also as WAVE_FORMAT_EXTENSIBLE. A truncated data chunk ends with its last complete frame.
/// Errors: InvalidExternalData (not a WAV file), NotSupported (another format, or not kSampleRate samples per
/// second); the log states the format.
Result<std::vector<float>> read_wav(Span<const uint8_t> bytes);

}  // namespace torchette::extension::llm
