// SPDX-License-Identifier: BSD-3-Clause
// In: a JSON schema. Out: a grammar in GBNF of the JSON texts that fit it, the one that
// torchette.llm.grammar_of makes. What a grammar cannot say is refused by name, so that nothing is promised
// which does not hold.
#pragma once

#include <string>
#include <string_view>

#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

/// Objects have their properties in the schema's order, and others only where `additionalProperties` is
/// given; `oneOf` is read as `anyOf`. Errors: InvalidExternalData (no JSON), InvalidArgument (what it cannot
/// say; the log names it, and where).
Result<std::string> grammar_of(std::string_view schema);

}  // namespace torchette::extension::llm
