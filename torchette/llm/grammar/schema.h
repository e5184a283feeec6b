// SPDX-License-Identifier: BSD-3-Clause
// Converts a JSON schema to a grammar in GBNF of the JSON texts that are valid. Constraints that GBNF cannot
// express are errors that name them, so that no constraint is ignored.
#pragma once

#include <string>
#include <string_view>

#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

/// Objects have their properties in the order of the schema, and other properties only if the schema has
/// `additionalProperties`. `oneOf` means `anyOf`. A schema without constraints accepts any value; one without
/// `type` has the type of its keywords. A number without a bound has at most 15 digits. Errors:
/// InvalidExternalData (not JSON), InvalidArgument (GBNF cannot express a constraint; the log names it and
/// its location).
Result<std::string> grammar_of(std::string_view schema);

/// Returns the grammar of the texts that a regular expression, in the syntax of ECMA-262 with Unicode,
/// matches from beginning to end. Errors: InvalidArgument (GBNF cannot express a part; the log names it and
/// its position).
Result<std::string> grammar_of_pattern(const std::string& pattern);

}  // namespace torchette::extension::llm
