// SPDX-License-Identifier: BSD-3-Clause
// The parser: tokens of a template to its syntax tree.
#pragma once

#include "torchette/llm/text/jinja/lexer.h"
#include "torchette/llm/text/jinja/tree.h"

namespace torchette::extension::llm::jinja {

/// Errors: InvalidExternalData (not a valid template), NotSupported (an unknown block).
Result<NodePtr> parse(std::vector<Token> tokens);

}  // namespace torchette::extension::llm::jinja
