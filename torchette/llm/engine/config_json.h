// SPDX-License-Identifier: BSD-3-Clause
// GenerationConfig from JSON, for hosts of other languages: {"max_new_tokens": 20, "temperature": 0.7}.
#pragma once

#include <string>
#include <string_view>

#include "torchette/llm/engine/irunner.h"

namespace torchette::extension::llm {

/// Sets what `json`, an object, has of the members of GenerationConfig; logit_bias is an object from tokens
/// to numbers. Errors: those of Json::parse(); InvalidArgument (a name that is none, or a value that does not
/// fit it; the log says which).
Error read_config(std::string_view json, GenerationConfig* config);

}  // namespace torchette::extension::llm
