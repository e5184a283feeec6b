// SPDX-License-Identifier: BSD-3-Clause
// The lexer: a template's source to tokens. It removes whitespace around tags as Jinja does with trim_blocks
// and lstrip_blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "torchette/runtime/result.h"

namespace torchette::extension::llm::jinja {

struct Token {
  enum class Kind : uint8_t {
    Text,  // outside of tags
    Name,
    String,  // without quotes and escapes
    Number,
    Sign,
    BlockBegin,   // {%
    BlockEnd,     // %}
    OutputBegin,  // {{
    OutputEnd,    // }}
    Last,         // the last token of each template
  };
  Kind kind;
  std::string text;
  int line;
};

/// Error: InvalidExternalData (not a valid template).
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace torchette::extension::llm::jinja
