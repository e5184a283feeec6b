// SPDX-License-Identifier: BSD-3-Clause
// In: a model, optionally a tokenizer, and on the standard input one action of a runner per line, with tabs
// between its words: generate PROMPT NAME=VALUE..., prefill PROMPT, rewind N, reset, warmup PROMPT, steps
// and chat like generate, render MESSAGES OPTIONS, fork, join, save and load FILE, adapter FILE, draft FILE
// COUNT, drafted, grammar SCHEMA, image FILE WIDTH HEIGHT (bytes), pixels FILE WIDTH HEIGHT and
// sound FILE BINS FRAMES and samples FILE (float32). Out, for each: the error, the conversation's tokens, the
// answer in hexadecimal, what ended it and how many pieces it had, between bars.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>
#include <utility>

#include "torchette/extension/backends.h"
#include "torchette/extension/error_name.h"
#include "torchette/llm/engine/asr_runner.h"
#include "torchette/llm/engine/config_json.h"
#include "torchette/llm/engine/session_state.h"
#include "torchette/llm/engine/text_llm_runner.h"
#include "torchette/llm/grammar/schema.h"

using namespace torchette;
using namespace torchette::extension;
using namespace torchette::extension::llm;

int main(int count, char** words) {
  static_cast<void>(register_all_backends());
  std::vector<std::unique_ptr<TextLLMRunner>> parents;
  auto runner = create_text_llm_runner(words[1], count > 2 ? load_tokenizer(words[2]) : nullptr);
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
    if (parts[0] == "generate" || parts[0] == "steps" || parts[0] == "chat") {
      GenerationConfig config;
      std::string options;
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
        if (name == "presence") config.presence_penalty = static_cast<float>(number);
        if (name == "frequency") config.frequency_penalty = static_cast<float>(number);
        if (name == "slide") config.slide = number != 0;
        if (name == "keep") config.keep = static_cast<int32_t>(number);
        if (name == "grammar") config.grammar = value;
        if (name == "json") error = read_config(value, &config);
        if (name == "options") options = value;
        if (name == "defaults") {  // of the model, instead of the options before
          const Result<GenerationConfig> defaults = runner->default_config();
          error = defaults.ok() ? Error::Ok : defaults.error();
          if (defaults.ok()) config = *defaults;
          config.echo = false;
        }
        if (name == "seed") config.seed = static_cast<uint64_t>(number);
        if (name == "stop") config.stop.push_back(value);
        if (name == "bos") config.num_bos = static_cast<int32_t>(number);
        if (name == "special") config.add_special_tokens = number != 0;
        if (name == "ignore_eos") config.ignore_eos = number != 0;
        if (name == "echo") config.echo = number != 0;
        if (name == "cancel") cancel_at = static_cast<int>(number);
      }
      const auto on_piece = [&](const std::string& piece) {
        answer += piece;
        if (++pieces == cancel_at) runner->stop();
      };
      if (error == Error::Ok && parts[0] == "generate") {
        error = runner->generate(parts[1], config, on_piece,
                                 [&](const Stats& stats) { reason = stats.finish_reason; });
      } else if (error == Error::Ok) {  // in steps, with log-probabilities in place of the text
        error = parts[0] == "chat" ? runner->begin_chat(parts[1], options, config)
                                   : runner->begin(parts[1], config);
        for (bool is_last = false; error == Error::Ok && !is_last;) {
          const Result<AnswerPiece> piece = runner->next();
          if (!piece.ok()) {
            error = piece.error();
            break;
          }
          is_last = piece->is_last;
          if (config.logprobs < 0) on_piece(piece->text);
          if (config.logprobs < 0 || !piece->token) continue;
          answer += std::to_string(*piece->token) + ":" + std::to_string(piece->logprob);
          for (const auto& one : piece->top)
            answer += "," + std::to_string(one.token) + ":" + std::to_string(one.logprob);
          answer += " ";
        }
        reason = runner->stats().finish_reason;
      }
    } else if (parts[0] == "render") {
      const Result<std::string> prompt = runner->render(parts[1], parts[2]);
      error = prompt.ok() ? Error::Ok : prompt.error();
      if (prompt.ok()) answer = *prompt;
    } else if (parts[0] == "prefill") {
      error = runner->prefill(parts[1]);
    } else if (parts[0] == "rewind") {
      error = runner->rewind(static_cast<size_t>(std::atol(parts[1].c_str())));
    } else if (parts[0] == "fork") {  // the fork continues; its parent is kept
      Result<std::unique_ptr<TextLLMRunner>> other = runner->fork();
      error = other.ok() ? Error::Ok : other.error();
      if (other.ok()) parents.push_back(std::exchange(runner, std::move(*other)));
    } else if (parts[0] == "join") {
      runner = std::move(parents.back());
      parents.pop_back();
    } else if (parts[0] == "save" || parts[0] == "load") {
      error = parts[0] == "save" ? runner->save_state(parts[1]) : runner->load_state(parts[1]);
    } else if (parts[0] == "adapter") {
      error = runner->set_adapter(parts[1]);
    } else if (parts[0] == "draft") {
      std::unique_ptr<TextLLMRunner> draft;
      if (!parts[1].empty()) draft = create_text_llm_runner(parts[1]);
      runner->set_draft(std::move(draft), std::atoi(parts.back().c_str()));
    } else if (parts[0] == "drafted") {
      const Stats stats = runner->stats();
      answer = std::to_string(stats.num_drafted_tokens) + " " + std::to_string(stats.num_accepted_tokens);
    } else if (parts[0] == "grammar") {
      const Result<std::string> grammar = grammar_of(parts[1]);
      error = grammar.ok() ? Error::Ok : grammar.error();
      if (grammar.ok()) answer = *grammar;
    } else if (parts[0] == "together") {  // forks generate in separate threads; the last one is stopped
      std::vector<std::unique_ptr<TextLLMRunner>> all;
      for (int i = 0; i < 3 && error == Error::Ok; ++i) {
        Result<std::unique_ptr<TextLLMRunner>> other = runner->fork();
        error = other.ok() ? Error::Ok : other.error();
        if (other.ok()) all.push_back(std::move(*other));
      }
      std::vector<std::string> texts(all.size());
      std::vector<Error> errors(all.size(), Error::Ok);
      std::atomic<bool> has_begun{false};
      GenerationConfig config;
      config.echo = false;
      config.temperature = 0;
      config.ignore_eos = config.slide = true;
      config.max_new_tokens = 30;
      config.schema = R"({"type": "array", "minItems": 5})";
      std::vector<std::thread> threads;
      for (size_t i = 0; i < all.size(); ++i)
        threads.emplace_back([&, i] {
          const bool is_last = i + 1 == all.size();
          GenerationConfig own = config;
          if (is_last) own.max_new_tokens = 1000000, own.schema.clear();
          errors[i] = all[i]->generate(
              parts[1], own,
              [&](const std::string& piece) {
                texts[i] += piece;
                if (is_last) has_begun = true;
              },
              [&](const Stats& stats) {
                if (is_last) reason = stats.finish_reason;
              });
          if (errors[i] == Error::Ok && !is_last)
            errors[i] = all[i]->save_state(words[1] + std::to_string(i));
          if (is_last) has_begun = true;
        });
      while (!has_begun) std::this_thread::yield();
      if (!all.empty()) all.back()->stop();
      for (std::thread& thread : threads) thread.join();
      for (Error one : errors)
        if (one != Error::Ok) error = one;
      answer = texts[0] == texts[1] ? texts[0] : "they differ";
    } else if (parts[0] == "transcribe") {
      const Result<std::vector<uint8_t>> bytes = read_file(parts[1]);
      std::vector<float> values(bytes->size() / sizeof(float));
      std::memcpy(values.data(), bytes->data(), values.size() * sizeof(float));
      asr::AsrRunner hears(words[1], std::nullopt, words[2]);
      asr::AsrTranscribeConfig config;
      config.max_new_tokens = std::atoi(parts[4].c_str());
      config.eos_token_ids = {std::atoi(parts[5].c_str())};
      std::string text;
      const Result<std::vector<int64_t>> said = hears.transcribe(
          make_tensor_ptr({1, std::atoi(parts[2].c_str()), std::atoi(parts[3].c_str())}, values), config,
          [&](const std::string& piece) { text += piece; });
      error = said.ok() ? Error::Ok : said.error();
      for (int64_t token : said.ok() ? *said : std::vector<int64_t>()) answer += std::to_string(token) + " ";
      answer += text;
    } else if (parts[0] == "image") {
      const Result<std::vector<uint8_t>> bytes = read_file(parts[1]);
      error = runner->prefill(
          {Image(std::vector<uint8_t>(*bytes), std::atoi(parts[2].c_str()), std::atoi(parts[3].c_str()), 3)});
    } else if (parts[0] == "pixels" || parts[0] == "sound" || parts[0] == "samples") {
      const Result<std::vector<uint8_t>> bytes = read_file(parts[1]);
      std::vector<float> values(bytes->size() / sizeof(float));
      std::memcpy(values.data(), bytes->data(), values.size() * sizeof(float));
      const int first = parts.size() > 2 ? std::atoi(parts[2].c_str()) : 0;
      const int second = parts.size() > 3 ? std::atoi(parts[3].c_str()) : 0;
      error = parts[0] == "samples" ? runner->prefill({RawAudio::of(values.data(), values.size())})
              : parts[0] == "sound" ? runner->prefill({Audio(std::move(values), 1, first, second)})
                                    : runner->prefill({Image(std::move(values), first, second, 3)});
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
