// SPDX-License-Identifier: BSD-3-Clause
// In: a model, perhaps a tokenizer, and a line for each thing to do with a runner on the standard input, its
// words between tabs: generate PROMPT NAME=VALUE..., prefill PROMPT, rewind N, reset, warmup PROMPT. Out, for
// each: the error, the conversation's tokens, the answer in hexadecimal, what ended it and how many pieces it
// had, between bars.
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "torchette/extension/backends.h"
#include "torchette/extension/error_name.h"
#include "torchette/extension/llm/text_llm_runner.h"

using namespace torchette;
using namespace torchette::extension;
using namespace torchette::extension::llm;

int main(int count, char** words) {
  static_cast<void>(register_all_backends());
  const auto runner = create_text_llm_runner(words[1], count > 2 ? load_tokenizer(words[2]) : nullptr);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::vector<std::string> parts(1);
    for (char c : line)
      if (c == '\t')
        parts.emplace_back();
      else
        parts.back() += c;
    Error error = Error::Ok;
    std::string answer, reason;
    int pieces = 0, cancel_at = 0;
    if (parts[0] == "generate") {
      GenerationConfig config;
      config.echo = false;
      config.temperature = 0;
      for (size_t i = 2; i < parts.size(); ++i) {
        const size_t equals = parts[i].find('=');
        const std::string name = parts[i].substr(0, equals), value = parts[i].substr(equals + 1);
        const double number = std::atof(value.c_str());
        if (name == "new") config.max_new_tokens = static_cast<int32_t>(number);
        if (name == "len") config.seq_len = static_cast<int32_t>(number);
        if (name == "temperature") config.temperature = static_cast<float>(number);
        if (name == "top_k") config.top_k = static_cast<int32_t>(number);
        if (name == "top_p") config.top_p = static_cast<float>(number);
        if (name == "min_p") config.min_p = static_cast<float>(number);
        if (name == "penalty") config.repetition_penalty = static_cast<float>(number);
        if (name == "seed") config.seed = static_cast<uint64_t>(number);
        if (name == "stop") config.stop.push_back(value);
        if (name == "bos") config.num_bos = static_cast<int32_t>(number);
        if (name == "special") config.add_special_tokens = number != 0;
        if (name == "ignore_eos") config.ignore_eos = number != 0;
        if (name == "echo") config.echo = number != 0;
        if (name == "cancel") cancel_at = static_cast<int>(number);
      }
      error = runner->generate(
          parts[1], config,
          [&](const std::string& piece) {
            answer += piece;
            if (++pieces == cancel_at) runner->stop();
          },
          [&](const Stats& stats) { reason = stats.finish_reason; });
    } else if (parts[0] == "prefill") {
      error = runner->prefill(parts[1]);
    } else if (parts[0] == "rewind") {
      error = runner->rewind(static_cast<size_t>(std::atol(parts[1].c_str())));
    } else if (parts[0] == "warmup") {
      error = runner->warmup(parts[1], 3);
    } else {
      runner->reset();
    }
    std::printf("%s|", error_name(error));
    for (uint64_t token : runner->tokens()) std::printf("%llu ", static_cast<unsigned long long>(token));
    std::printf("|");
    for (char c : answer) std::printf("%02x", static_cast<uint8_t>(c));
    std::printf("|%s|%d\n", reason.c_str(), pieces);
  }
}
