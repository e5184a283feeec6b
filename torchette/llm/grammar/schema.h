// SPDX-License-Identifier: BSD-3-Clause
// Converts a JSON schema to a grammar in GBNF of the JSON texts that are valid, equal to the grammar of
// torchette.llm.grammar_of. Constraints that GBNF cannot express are errors that name them.
#pragma once

#include <string>
#include <string_view>

#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

/// Objects have their properties in the order of the schema, and other properties only if the schema has
/// `additionalProperties`. `oneOf` means `anyOf`. Errors: InvalidExternalData (not JSON), InvalidArgument
/// (GBNF cannot express a constraint; the log names it and its location).
Result<std::string> grammar_of(std::string_view schema);

}  // namespace torchette::extension::llm
