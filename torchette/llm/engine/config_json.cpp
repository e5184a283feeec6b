// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/config_json.h"

#include <cmath>
#include <cstdlib>

#include "torchette/llm/text/json.h"
#include "torchette/runtime/platform.h"

namespace torchette::extension::llm {
namespace {

using Kind = Json::Kind;

Error wrong(const std::string& name, const char* wanted) {
  TORCHETTE_LOG(Error, "%s is to be %s", name.c_str(), wanted);
  return Error::InvalidArgument;
}

struct Number {
  const char* name;
  float GenerationConfig::* member;
};
constexpr Number kNumbers[] = {{"temperature", &GenerationConfig::temperature},
                               {"top_p", &GenerationConfig::top_p},
                               {"min_p", &GenerationConfig::min_p},
                               {"repetition_penalty", &GenerationConfig::repetition_penalty},
                               {"presence_penalty", &GenerationConfig::presence_penalty},
                               {"frequency_penalty", &GenerationConfig::frequency_penalty}};
struct Whole {
  const char* name;
  int32_t GenerationConfig::* member;
};
constexpr Whole kWholes[] = {{"max_new_tokens", &GenerationConfig::max_new_tokens},
                             {"seq_len", &GenerationConfig::seq_len},
                             {"num_bos", &GenerationConfig::num_bos},
                             {"num_eos", &GenerationConfig::num_eos},
                             {"top_k", &GenerationConfig::top_k},
                             {"keep", &GenerationConfig::keep},
                             {"logprobs", &GenerationConfig::logprobs}};
struct Flag {
  const char* name;
  bool GenerationConfig::* member;
};
constexpr Flag kFlags[] = {{"echo", &GenerationConfig::echo},
                           {"ignore_eos", &GenerationConfig::ignore_eos},
                           {"warming", &GenerationConfig::warming},
                           {"add_special_tokens", &GenerationConfig::add_special_tokens},
                           {"slide", &GenerationConfig::slide}};

bool is_whole(const Json& json, double least, double most) {
  return json.is(Kind::Number) && json.number == std::floor(json.number) && json.number >= least &&
         json.number <= most;
}

Error read(const std::string& name, const Json& value, GenerationConfig* config) {
  for (const Number& one : kNumbers)
    if (name == one.name) {
      if (!value.is(Kind::Number)) return wrong(name, "a number");
      config->*one.member = static_cast<float>(value.number);
      return Error::Ok;
    }
  for (const Whole& one : kWholes)
    if (name == one.name) {
      if (!is_whole(value, INT32_MIN, INT32_MAX)) return wrong(name, "a whole number of 32 bits");
      config->*one.member = static_cast<int32_t>(value.number);
      return Error::Ok;
    }
  for (const Flag& one : kFlags)
    if (name == one.name) {
      if (!value.is(Kind::True) && !value.is(Kind::False)) return wrong(name, "true or false");
      config->*one.member = value.is(Kind::True);
      return Error::Ok;
    }
  if (name == "seed") {
    if (!is_whole(value, 0, 0x1p53)) return wrong(name, "a whole number from 0 to 2^53");
    config->seed = static_cast<uint64_t>(value.number);
    return Error::Ok;
  }
  if (name == "grammar") {
    if (!value.is_string()) return wrong(name, "a text");
    config->grammar = value.text;
    return Error::Ok;
  }
  if (name == "schema") {  // itself, or as a text
    config->schema = value.is_string() ? value.text : to_json(value);
    return Error::Ok;
  }
  if (name == "stop") {
    config->stop.clear();
    for (const Json& text : value.is_string() ? std::vector<Json>{value} : value.items) {
      if (!text.is_string()) return wrong(name, "a text or a list of texts");
      config->stop.push_back(text.text);
    }
    return value.is_string() || value.is(Kind::Array) ? Error::Ok : wrong(name, "a text or a list of texts");
  }
  if (name == "logit_bias") {
    if (!value.is(Kind::Object)) return wrong(name, "an object from tokens to numbers");
    config->logit_bias.clear();
    for (size_t i = 0; i < value.items.size(); ++i) {
      char* end = nullptr;
      const std::string& key = value.keys[i];
      const unsigned long token = std::strtoul(key.c_str(), &end, 10);
      if (key.empty() || key[0] < '0' || key[0] > '9' || *end != 0 || !value.items[i].is(Kind::Number))
        return wrong(name, "an object from tokens to numbers");
      config->logit_bias.emplace_back(token, static_cast<float>(value.items[i].number));
    }
    return Error::Ok;
  }
  TORCHETTE_LOG(Error, "there is no option %s", name.c_str());
  return Error::InvalidArgument;
}

}  // namespace

Error read_config(std::string_view json, GenerationConfig* config) {
  const Result<Json> parsed = Json::parse(json, Json::kDeep);
  if (!parsed.ok()) return parsed.error();
  if (!parsed->is(Kind::Object)) return wrong("the configuration", "an object of JSON");
  for (size_t i = 0; i < parsed->items.size(); ++i)
    TORCHETTE_TRY(read(parsed->keys[i], parsed->items[i], config));
  return Error::Ok;
}

}  // namespace torchette::extension::llm
