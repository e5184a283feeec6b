// SPDX-License-Identifier: BSD-3-Clause
// In: a model as the argument; on the standard input a request per line, a JSON list of texts: "steps" or
// "whole", "prompt" or "messages", the prompt or the messages, the options of the chat, generation options, a
// draft model. Out: a JSON object per line.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "torchette/extension/backends.h"
#include "torchette/extension/error_name.h"
#include "torchette/llm/engine/config_json.h"
#include "torchette/llm/engine/text_llm_runner.h"
#include "torchette/llm/text/json.h"

using namespace torchette;
using namespace torchette::extension;
using namespace torchette::extension::llm;

namespace {

std::string log_lines;

void keep_log(torchette_timestamp_t, torchette_log_level_t, const char*, const char*, size_t,
              const char* message, size_t length) {
  if (!log_lines.empty()) log_lines += '\n';
  log_lines.append(message, length);
}

struct Answer {
  std::string text, tokens;
  Stats stats;
};

Error steps(TextLLMRunner& runner, const std::vector<std::string>& request, const GenerationConfig& config,
            Answer* answer) {
  TORCHETTE_TRY(request[1] == "messages" ? runner.begin_chat(request[2], request[3], config)
                                         : runner.begin(request[2], config));
  for (bool is_last = false; !is_last;) {
    const Result<AnswerPiece> piece = runner.next();
    if (!piece.ok()) return piece.error();
    answer->text += piece->text;
    if (piece->token) answer->tokens += (answer->tokens.empty() ? "" : ",") + std::to_string(*piece->token);
    is_last = piece->is_last;
  }
  answer->stats = runner.stats();
  return Error::Ok;
}

Error run(TextLLMRunner& runner, const std::vector<std::string>& request, Answer* answer) {
  GenerationConfig config;
  config.echo = false;
  TORCHETTE_TRY(read_config(request[4], &config));
  runner.set_draft(request[5].empty() ? nullptr : create_text_llm_runner(request[5]));
  runner.reset();
  if (request[0] == "steps") return steps(runner, request, config, answer);
  const auto on_piece = [&](const std::string& piece) { answer->text += piece; };
  const auto on_stats = [&](const Stats& stats) { answer->stats = stats; };
  return request[1] == "messages" ? runner.chat(request[2], request[3], config, on_piece, on_stats)
                                  : runner.generate(request[2], config, on_piece, on_stats);
}

}  // namespace

int main(int, char** words) {
  PalImpl pal = PalImpl::create(keep_log, __FILE__);
  if (!register_pal(pal) || register_all_backends() != Error::Ok) return 1;
  const std::unique_ptr<TextLLMRunner> runner = create_text_llm_runner(words[1]);
  if (runner->load() != Error::Ok) return 1;
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> request;
    const Result<Json> list = Json::parse(line);
    for (const Json& text : list->items) request.push_back(text.text);
    Answer answer;
    log_lines.clear();
    const Error error = run(*runner, request, &answer);
    std::printf("{\"error\":\"%s\",\"message\":%s,\"text\":%s,\"tokens\":[%s],\"stats\":%s}\n",
                error_name(error), json_string(log_lines).c_str(), json_string(answer.text).c_str(),
                answer.tokens.c_str(), stats_to_json_string(answer.stats).c_str());
  }
}
