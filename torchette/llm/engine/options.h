// SPDX-License-Identifier: BSD-3-Clause
// The table of generation options (options.def) at run time: their names, ranges and descriptions.
#pragma once

#include <string>
#include <string_view>

#include "torchette/llm/engine/irunner.h"
#include "torchette/llm/text/json.h"
#include "torchette/runtime/span.h"

namespace torchette::extension::llm {

/// A row of options.def; the comment there describes the columns.
struct Option {
  enum class Type : uint8_t { Flag, Integer, Seed, Number, Text, Texts, Schema, Biases };

  const char* group;
  const char* name;
  Type type;
  bool excludes_lowest;
  double lowest, highest;
  const char* aliases;
  const char* description;

  /// Whether the option is numeric and affects sampling. generation_config.json may contain its default.
  bool is_sampling_number() const {
    return std::string_view(group) == "sampling" && (type == Type::Integer || type == Type::Number);
  }
  bool has_range() const { return type == Type::Integer || type == Type::Seed || type == Type::Number; }
  bool allows(double value) const {
    return (excludes_lowest ? value > lowest : value >= lowest) && value <= highest;
  }
};

/// Returns all options, in the order of the table.
Span<const Option> options();
/// Calls visit(option, member) for each option and its member of `config`.
template <typename Config, typename Visit>
void for_each_option(Config& config, const Visit& visit) {
  const Option* option = options().data();
#define TORCHETTE_OPTION(group, type, name, ...) visit(*option++, config.name);
#include "torchette/llm/engine/options.def"
}
/// Returns the option with this name or alias, written as max_tokens, maxTokens or max-tokens. Returns null
/// if there is none; the log then suggests a name.
const Option* find_option(std::string_view name);
/// Returns the values that an option accepts, such as "a number above 0 and at most 1".
std::string accepted_values(const Option& option);
/// Error: InvalidArgument (a value is out of range; the log names it).
Error check(const GenerationConfig& config);
/// Sets the numeric sampling options that `file`, a generation_config.json, contains.
void read_sampling(const Json& file, GenerationConfig* config);

}  // namespace torchette::extension::llm
