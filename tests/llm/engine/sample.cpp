// SPDX-License-Identifier: BSD-3-Clause
// In: on the standard input, a line for each choice: generation_config.json, the end tokens, the
// conversation, the index of the answer in it, a maximum of new tokens and the logits, between tabs. Out, for
// each: the error, and the chosen token or the distribution.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "torchette/extension/error_name.h"
#include "torchette/llm/engine/sampler.h"

using namespace torchette;
using namespace torchette::extension;
using namespace torchette::extension::llm;

template <typename T>
std::vector<T> read_list(const std::string& text) {
  std::istringstream in(text);
  std::vector<T> out;
  for (double value; in >> value;) out.push_back(static_cast<T>(value));
  return out;
}

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::vector<std::string> parts;
    std::istringstream in(line);
    for (std::string part; std::getline(in, part, '\t');) parts.push_back(part);
    const Result<Json> json = Json::parse(parts[0]);
    Result<TokenConstraints> constraints =
        json.ok() ? TokenConstraints::from(*json) : Result<TokenConstraints>(json.error());
    if (!constraints.ok()) {
      std::printf("%s\n", error_name(constraints.error()));
      continue;
    }
    GenerationConfig config;
    config.temperature = json->flag("do_sample") ? 1.0f : 0.0f;
    config.constraints = *constraints;
    config.constraints.end_tokens = read_list<uint64_t>(parts[1]);
    config.max_new_tokens = std::atoi(parts[4].c_str());
    std::vector<float> logits = read_list<float>(parts[5]);
    Sampler sampler(config);
    const Result<Sampler::Choice> choice =
        sampler.choose({logits.data(), logits.size()}, read_list<uint64_t>(parts[2]),
                       std::strtoull(parts[3].c_str(), nullptr, 10));
    std::printf("%s", error_name(choice.ok() ? Error::Ok : choice.error()));
    if (choice.ok() && choice->distribution.empty())
      std::printf(" %llu", static_cast<unsigned long long>(choice->token));
    for (size_t i = 0; choice.ok() && i < choice->distribution.size(); ++i)
      std::printf(" %.17g", choice->distribution[i]);
    std::printf("\n");
  }
}
