// SPDX-License-Identifier: BSD-3-Clause
// Reads WAV files (RIFF), whose bytes may be hostile.
#pragma once

#include <vector>

#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette::extension::llm {

/// Returns the mean of the channels, from -1 to 1. The format is PCM of 8, 16, 24 or 32 bits, or float of 32
/// or 64 bits, also as WAVE_FORMAT_EXTENSIBLE. A data chunk that is cut short ends with its last whole frame.
/// Errors: InvalidExternalData (not a WAV file), NotSupported (another format, or not kSampleRate samples per
/// second); the log says what the file is.
Result<std::vector<float>> read_wav(Span<const uint8_t> bytes);

}  // namespace torchette::extension::llm
