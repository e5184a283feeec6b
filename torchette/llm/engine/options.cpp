// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/options.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <type_traits>
#include <vector>

#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

constexpr bool from = false, above = true;
constexpr Option kOptions[] = {
#define TORCHETTE_OPTION(group, type, name, value, bound, lowest, highest, aliases, description) \
  {#group, #name, Option::Type::type, bound, lowest, highest, aliases, description},
#include "torchette/llm/engine/options.def"
};

/// Returns the words of a list; spaces separate them.
template <typename F>
bool any_word(std::string_view list, const F& matches) {
  for (size_t begin = 0, end; begin < list.size(); begin = end + 1) {
    end = std::min(list.find(' ', begin), list.size());
    if (matches(list.substr(begin, end - begin))) return true;
  }
  return false;
}

/// Converts maxTokens and max-tokens to max_tokens.
std::string snake_case(std::string_view name) {
  std::string result;
  for (char c : name) {
    if (c >= 'A' && c <= 'Z') {
      result += '_';
      result += static_cast<char>(c - 'A' + 'a');
    } else {
      result += c == '-' ? '_' : c;
    }
  }
  return result;
}

/// Returns the edit distance: the minimum of inserted, deleted and replaced characters from `a` to `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = j;
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

void log_unknown(std::string_view name) {
  const std::string_view shown = name.substr(0, 60);
  const Option* nearest = nullptr;
  size_t least = 3;
  for (const Option& option : kOptions) {
    const size_t distance = edit_distance(shown, option.name);
    if (distance < least) nearest = &option, least = distance;
  }
  TORCHETTE_LOG(Error, "unknown generation option %.*s%s%s", static_cast<int>(shown.size()), shown.data(),
                nearest == nullptr ? "; options.def lists the options" : "; did you mean ",
                nearest == nullptr ? "" : nearest->name);
}

Error check_range(const Option& option, double value) {
  TORCHETTE_CHECK(option.allows(value), InvalidArgument, "%s must be %s, got %.*g", option.name,
                  accepted_values(option).c_str(), option.type == Option::Type::Number ? 6 : 17, value);
  return Error::Ok;
}

// One function for each type of a member.
Error check_member(const Option& option, int32_t value) { return check_range(option, value); }
Error check_member(const Option& option, float value) {
  return check_range(option, static_cast<double>(value));
}
Error check_member(const Option&, const std::vector<std::pair<uint64_t, float>>& biases) {
  for (const auto& [token, bias] : biases)
    TORCHETTE_CHECK(bias < INFINITY, InvalidArgument,
                    "logit_bias of token %llu must be a number or -infinity, got %g",
                    static_cast<unsigned long long>(token), static_cast<double>(bias));
  return Error::Ok;
}
template <typename T>  // every value is valid
Error check_member(const Option&, const T&) {
  return Error::Ok;
}

}  // namespace

Span<const Option> options() { return {kOptions, std::size(kOptions)}; }

const Option* find_option(std::string_view name) {
  const std::string key = snake_case(name);
  for (const Option& option : kOptions)
    if (key == option.name || any_word(option.aliases, [&](std::string_view one) { return one == key; }))
      return &option;
  log_unknown(key);
  return nullptr;
}

std::string accepted_values(const Option& option) {
  switch (option.type) {
    case Option::Type::Flag:
      return "true or false";
    case Option::Type::Text:
      return "a text";
    case Option::Type::Texts:
      return "a text or a list of texts";
    case Option::Type::Schema:
      return "a JSON schema";
    case Option::Type::Biases:
      return "an object with a number for each token, such as {\"17\": -2.5}";
    default: {
      const char* kind = option.type == Option::Type::Number ? "a number" : "an integer";
      char text[96];
      std::snprintf(text, sizeof(text),
                    option.excludes_lowest ? "%s above %.17g and at most %.17g" : "%s from %.17g to %.17g",
                    kind, option.lowest, option.highest);
      return text;
    }
  }
}

Error check(const GenerationConfig& config) {
  Error first = Error::Ok;
  for_each_option(config, [&](const Option& option, const auto& member) {
    if (first == Error::Ok) first = check_member(option, member);
  });
  return first;
}

void read_sampling(const Json& file, GenerationConfig* config) {
  for_each_option(*config, [&](const Option& option, auto& member) {
    using Member = std::remove_reference_t<decltype(member)>;
    if constexpr (std::is_same_v<Member, int32_t> || std::is_same_v<Member, float>) {
      const Json& value = file[option.name];
      if (!option.is_sampling_number() || !value.is(Json::Kind::Number)) return;
      const bool is_integer = std::is_same_v<Member, int32_t>;  // files write -1 for "no limit"
      member = static_cast<Member>(is_integer ? std::clamp(value.number, option.lowest, option.highest)
                                              : value.number);
    }
  });
}

}  // namespace torchette::extension::llm
