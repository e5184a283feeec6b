// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/config_json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "torchette/llm/engine/options.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

using Kind = Json::Kind;

Error refuse(const Option& option, const Json& value) {
  const std::string text = to_json(value);
  TORCHETTE_LOG(Error, "%s must be %s, got %.60s%s", option.name, accepted_values(option).c_str(),
                text.c_str(), text.size() > 60 ? "..." : "");
  return Error::InvalidArgument;
}

/// Whether a value is an integer that T can represent and JavaScript can represent exactly.
template <typename T>
bool is_integer(const Json& value) {
  using Limits = std::numeric_limits<T>;
  return value.is(Kind::Number) && value.number == std::floor(value.number) &&
         std::abs(value.number) <= 0x1p53 && value.number >= static_cast<double>(Limits::min()) &&
         value.number <= static_cast<double>(Limits::max());
}

/// Values beyond the range of a float become infinite.
float to_float(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return value > kMax ? INFINITY : value < -kMax ? -INFINITY : static_cast<float>(value);
}

// One function for each type of a member.
Error read(const Option& option, const Json& value, bool* member) {
  if (!value.is(Kind::True) && !value.is(Kind::False)) return refuse(option, value);
  *member = value.is(Kind::True);
  return Error::Ok;
}

template <typename T>
Error read(const Option& option, const Json& value, T* member) {
  if (!is_integer<T>(value)) return refuse(option, value);
  *member = static_cast<T>(value.number);
  return Error::Ok;
}

Error read(const Option& option, const Json& value, float* member) {
  if (!value.is(Kind::Number)) return refuse(option, value);
  *member = to_float(value.number);
  return Error::Ok;
}

Error read(const Option& option, const Json& value, std::string* member) {
  const bool is_schema = option.type == Option::Type::Schema;  // itself, or as a text
  if (!is_schema && !value.is_string()) return refuse(option, value);
  *member = value.is_string() ? value.text : to_json(value);
  return Error::Ok;
}

Error read(const Option& option, const Json& value, std::vector<std::string>* member) {
  if (!value.is_string() && !value.is(Kind::Array)) return refuse(option, value);
  member->clear();
  for (const Json& text : value.is_string() ? std::vector<Json>{value} : value.items) {
    if (!text.is_string()) return refuse(option, value);
    member->push_back(text.text);
  }
  return Error::Ok;
}

Error read(const Option& option, const Json& value, std::vector<std::pair<uint64_t, float>>* member) {
  if (!value.is(Kind::Object)) return refuse(option, value);
  member->clear();
  for (size_t i = 0; i < value.items.size(); ++i) {
    const std::string& key = value.keys[i];
    char* end = nullptr;
    const unsigned long long token = std::strtoull(key.c_str(), &end, 10);
    if (key.empty() || key[0] < '0' || key[0] > '9' || *end != 0 || !value.items[i].is(Kind::Number))
      return refuse(option, value);
    member->emplace_back(token, to_float(value.items[i].number));
  }
  return Error::Ok;
}

Error read(const Option& option, const Json& value, GenerationConfig* config) {
  const Option* row = options().data();
#define TORCHETTE_OPTION(group, type, name, ...) \
  if (&option == row++) return read(option, value, &config->name);
#include "torchette/llm/engine/options.def"
  return Error::Internal;
}

}  // namespace

Error read_config(const Json& json, GenerationConfig* config) {
  TORCHETTE_CHECK(json.is(Kind::Object), InvalidArgument, "generation options must be a JSON object");
  std::vector<std::pair<const Option*, const std::string*>> seen;
  for (size_t i = 0; i < json.items.size(); ++i) {
    const std::string& name = json.keys[i];
    const Option* option = find_option(name);
    if (option == nullptr) return Error::InvalidArgument;
    if (json.items[i].is(Kind::Null)) continue;
    for (const auto& [other, spelling] : seen)
      TORCHETTE_CHECK(other != option || *spelling == name, InvalidArgument,
                      "%s and %s are the same generation option; set one of them", spelling->c_str(),
                      name.c_str());
    seen.emplace_back(option, &name);
    TORCHETTE_TRY(read(*option, json.items[i], config));
  }
  // a maximum of new tokens replaces a maximum length that `config` had, as in transformers
  const auto is_set = [&](std::string_view name) {
    return std::any_of(seen.begin(), seen.end(), [&](const auto& one) { return one.first->name == name; });
  };
  if (is_set("max_new_tokens") && !is_set("seq_len")) config->seq_len = -1;
  return Error::Ok;
}

Error read_config(std::string_view json, GenerationConfig* config) {
  const Result<Json> parsed = Json::parse(json, Json::kMaxSchemaDepth);
  return parsed.ok() ? read_config(*parsed, config) : parsed.error();
}

}  // namespace torchette::extension::llm
