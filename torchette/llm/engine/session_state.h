// SPDX-License-Identifier: BSD-3-Clause
// The bytes of a conversation's state, as torchette.llm.Session.save writes them: a mark, the size of a head
// in JSON, the head (which model, which tokens, what parts), and the parts. What comes back may be hostile.
#pragma once

#include <string>
#include <vector>

#include "torchette/llm/engine/decoder.h"

namespace torchette::extension::llm {

/// Parts with a row for each of `context` positions are stored as far as tokens use them.
std::vector<uint8_t> write_state(const std::string& model, const std::vector<uint64_t>& tokens,
                                 const std::vector<Decoder::Part>& parts, size_t context);
/// Writes into `parts`, once all is known to fit; returns the tokens. Error: InvalidExternalData (no state,
/// or another model's; the log says why).
Result<std::vector<uint64_t>> read_state(Span<const uint8_t> bytes, const std::string& model,
                                         const std::vector<Decoder::Part>& parts, size_t context,
                                         uint64_t vocab_size, bool has_media);

/// A file whole or not at all. Error: AccessFailed.
Error write_file(const std::string& path, const std::vector<uint8_t>& bytes);
Result<std::vector<uint8_t>> read_file(const std::string& path);

}  // namespace torchette::extension::llm
