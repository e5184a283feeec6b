// SPDX-License-Identifier: BSD-3-Clause
// The serialized state of a conversation, in the format of torchette.llm.Session.save: magic, size of a JSON
// header, header (model, tokens, tensors), bytes of the tensors. read_state() accepts untrusted bytes.
#pragma once

#include <string>
#include <vector>

#include "torchette/llm/engine/decoder.h"

namespace torchette::extension::llm {

/// Serializes a conversation. A tensor with one row per position of the context is stored without unused
/// rows.
std::vector<uint8_t> write_state(const std::string& model, const std::vector<uint64_t>& tokens,
                                 const std::vector<Decoder::Part>& parts, size_t context);
/// Writes the state to `parts` after all checks, and returns the tokens. Error: InvalidExternalData (not a
/// state, or the state of another model; the log states the reason).
Result<std::vector<uint64_t>> read_state(Span<const uint8_t> bytes, const std::string& model,
                                         const std::vector<Decoder::Part>& parts, size_t context,
                                         uint64_t vocab_size, bool has_media);

/// Copies the state of the first `count` tokens between decoders of one program.
void copy_state(const std::vector<Decoder::Part>& from, const std::vector<Decoder::Part>& to, size_t count,
                size_t context);

/// Writes a file atomically. Error: AccessFailed.
Error write_file(const std::string& path, const std::vector<uint8_t>& bytes);
Result<std::vector<uint8_t>> read_file(const std::string& path);

}  // namespace torchette::extension::llm
