// SPDX-License-Identifier: BSD-3-Clause
// The text of a grammar in GBNF as rules over bytes.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

/// A set of bytes, a bit for each.
using ByteSet = std::array<uint64_t, 4>;

/// A sequence of symbols: the index of a rule, or ~index of a byte set.
using GrammarSequence = std::vector<int32_t>;
/// The alternatives of a rule.
using GrammarRule = std::vector<GrammarSequence>;

/// Rule 0 is the root. Groups, repeats and classes of characters that are longer than a byte are rules of
/// their own, with the name of the rule that contains them, so that nested repeats do not multiply.
struct GrammarRules {
  std::vector<GrammarRule> rules;
  std::vector<std::string> names;
  std::vector<ByteSet> sets;
};

/// Errors: InvalidArgument (the log has the line, the problem and the text that was found), OutOfResources
/// (the text is too long).
Result<GrammarRules> parse_grammar(std::string_view text, const std::string& root);

}  // namespace torchette::extension::llm
