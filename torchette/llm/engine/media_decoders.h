// SPDX-License-Identifier: BSD-3-Clause
// The decoders of programs that encode a text, audio or images.
#pragma once

#include "torchette/llm/engine/decoder.h"

namespace torchette::extension::llm {

/// For a program with `text_decoder` and `vision_encoder` or `encoder`. Errors: those of Decoder::make().
Result<std::unique_ptr<Decoder>> make_media_decoder(std::shared_ptr<Module> module,
                                                    const std::unordered_set<std::string>& methods,
                                                    size_t max_context);

}  // namespace torchette::extension::llm
