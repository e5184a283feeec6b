// SPDX-License-Identifier: BSD-3-Clause
// In: on the standard input, a line for each choice: generation_config.json, options in JSON, the end tokens,
// the conversation, the index of the answer in it, the logits, the allowed tokens or "all", and a count of
// draws, between tabs. Out, for each: the error, the certain token after "token" or the probability of each
// token, and after a semicolon the drawn tokens.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "torchette/extension/error_name.h"
#include "torchette/llm/engine/config_json.h"
#include "torchette/llm/engine/sampler.h"

using namespace torchette;
using namespace torchette::extension;
using namespace torchette::extension::llm;

namespace {

template <typename T>
std::vector<T> read_list(const std::string& text) {
  std::istringstream in(text);
  std::vector<T> out;
  for (std::string word; in >> word;) out.push_back(static_cast<T>(std::strtod(word.c_str(), nullptr)));
  return out;
}

Error sample(const std::vector<std::string>& parts) {
  const Result<Json> json = Json::parse(parts[0]);
  if (!json.ok()) return json.error();
  Result<TokenConstraints> constraints = TokenConstraints::from(*json);
  if (!constraints.ok()) return constraints.error();
  GenerationConfig config;
  config.temperature = json->flag("do_sample") ? 1.0f : 0.0f;
  TORCHETTE_TRY(read_config(parts[1], &config));
  config.constraints = *constraints;
  config.constraints.end_tokens = read_list<uint64_t>(parts[2]);
  std::vector<float> logits = read_list<float>(parts[5]);
  std::vector<bool> allowed(logits.size(), parts[6] == "all");
  if (parts[6] != "all")
    for (uint64_t token : read_list<uint64_t>(parts[6])) allowed[token] = true;
  Sampler sampler(config);
  const Result<Sampler::Choice> choice =
      sampler.choose({logits.data(), logits.size()}, read_list<uint64_t>(parts[3]),
                     std::strtoull(parts[4].c_str(), nullptr, 10), &allowed);
  if (!choice.ok()) return choice.error();
  std::printf("%s", error_name(Error::Ok));
  if (choice->distribution.empty())
    std::printf(" token %llu", static_cast<unsigned long long>(choice->token));
  for (double chance : choice->distribution) std::printf(" %.17g", chance);
  std::printf(";");
  for (int i = std::atoi(parts[7].c_str()); i > 0; --i)
    std::printf(" %llu", static_cast<unsigned long long>(sampler.draw(*choice)));
  return Error::Ok;
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::vector<std::string> parts;
    std::istringstream in(line);
    for (std::string part; std::getline(in, part, '\t');) parts.push_back(part);
    parts.resize(8);
    const Error error = sample(parts);
    if (error != Error::Ok) std::printf("%s", error_name(error));
    std::printf("\n");
  }
}
