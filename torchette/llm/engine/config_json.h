// SPDX-License-Identifier: BSD-3-Clause
// GenerationConfig from JSON, for hosts in other languages: {"max_new_tokens": 20, "temperature": 0.7}.
#pragma once

#include <string>
#include <string_view>

#include "torchette/llm/engine/irunner.h"
#include "torchette/llm/text/json.h"

namespace torchette::extension::llm {

/// Sets the members of `*config` that `json`, an object, contains. The names are those of options.def, with
/// their aliases; null leaves a member as it is. The ranges of values are checked when an answer begins.
/// Errors: those of Json::parse(); InvalidArgument (a name is unknown, two names set the same option, or a
/// value has the wrong type; the log names the option).
Error read_config(std::string_view json, GenerationConfig* config);
Error read_config(const Json& json, GenerationConfig* config);

}  // namespace torchette::extension::llm
