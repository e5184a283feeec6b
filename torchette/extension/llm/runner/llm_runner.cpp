// SPDX-License-Identifier: BSD-3-Clause
// llm_runner: goes on with a text from the shell. In: a language model, a prompt. Out: the answer as it
// comes, on the standard output; figures on the standard error stream.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "torchette/extension/backends.h"
#include "torchette/extension/error_name.h"
#include "torchette/extension/llm/session_state.h"
#include "torchette/extension/llm/text_llm_runner.h"

using namespace torchette;
using namespace torchette::extension;
using namespace torchette::extension::llm;

namespace {

constexpr char kHelp[] =
    R"(usage: llm_runner --model FILE --prompt TEXT [options]

Goes on with a text. What no option says is as the model's file has it (generation_config.json).

  --model FILE             the program (model.pte)
  --tokenizer FILE         tokenizer.json, a SentencePiece model or a tiktoken file; by default the program's own
  --data FILE              a data file (.ptd) with weights outside the program
  --prompt TEXT            the text; - reads the standard input
  --max_new_tokens N       end after N tokens (default: where the context is full)
  --temperature T          0 takes the likeliest token each time
  --top_k K, --top_p P, --min_p P, --repetition_penalty R
                           which tokens may be chosen
  --seed N                 the same seed gives the same answer (0)
  --stop TEXT              end at this text, which is not printed; may be given several times
  --grammar FILE, --schema FILE
                           what the answer keeps to: GBNF, or a JSON schema that it fits
  --adapter FILE           a LoRA adapter (.ptd), of a model that was exported with one
  --draft FILE             a small model with the same tokens, which proposes some
  --load FILE, --save FILE the conversation that the prompt goes on, and where it is kept
  --ignore_eos             tokens that end a text do not
  --no_special_tokens      leave out the tokens that the tokenizer puts around a text
  --echo                   print the prompt, too
  --cpu_threads N          threads for the model (default: the physical cores)
  --stats                  print counts and times as one line of JSON
  --help                   this text

It ends with 0, with 1 where the model failed, with 2 where an option or a file is wrong.
)";

[[noreturn]] void stop(int status, const std::string& line) {
  std::fprintf(stderr, "llm_runner: %s\n", line.c_str());
  std::exit(status);
}

double number(const char* option, const char* text) {
  char* end = nullptr;
  errno = 0;
  const double value = std::strtod(text, &end);
  if (*text == 0 || *end != 0 || errno != 0) stop(2, std::string(option) + " takes a number, not " + text);
  return value;
}

long whole(const char* option, const char* text) {
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text, &end, 10);
  if (*text == 0 || *end != 0 || errno != 0 || value < 0)
    stop(2, std::string(option) + " takes a whole number from 0, not " + text);
  return value;
}

std::string read_standard_input() {
  std::string text;
  char buffer[4096];
  size_t count;
  while ((count = std::fread(buffer, 1, sizeof(buffer), stdin)) > 0) text.append(buffer, count);
  return text;
}

}  // namespace

int main(int count, char** words) {
  std::string model, tokenizer_path, data, prompt, adapter, draft, loaded, saved;
  bool has_prompt = false, prints_stats = false;
  long threads = 0;
  // what the options change of the file's configuration
  std::vector<std::function<void(GenerationConfig*)>> changes = {[](GenerationConfig* c) {
    c->echo = false;
    c->add_special_tokens = true;
  }};
  for (int i = 1; i < count; ++i) {
    const std::string option = words[i];
    const auto is = [&](const char* name) { return option == name; };
    if (is("--help")) return std::fputs(kHelp, stdout), 0;
    if (is("--ignore_eos")) {
      changes.emplace_back([](GenerationConfig* c) { c->ignore_eos = true; });
      continue;
    }
    if (is("--no_special_tokens")) {
      changes.emplace_back([](GenerationConfig* c) { c->add_special_tokens = false; });
      continue;
    }
    if (is("--echo")) {
      changes.emplace_back([](GenerationConfig* c) { c->echo = true; });
      continue;
    }
    if (is("--stats")) {
      prints_stats = true;
      continue;
    }
    if (i + 1 == count) stop(2, option + " is no option, or lacks its value; see --help");
    const char* text = words[++i];
    if (is("--model")) {
      model = text;
    } else if (is("--tokenizer")) {
      tokenizer_path = text;
    } else if (is("--data")) {
      data = text;
    } else if (is("--prompt")) {
      prompt = std::strcmp(text, "-") == 0 ? read_standard_input() : text;
      has_prompt = true;
    } else if (is("--adapter") || is("--draft") || is("--load") || is("--save")) {
      (is("--adapter") ? adapter : is("--draft") ? draft : is("--load") ? loaded : saved) = text;
    } else if (is("--grammar") || is("--schema")) {
      const Result<std::vector<uint8_t>> bytes = read_file(text);
      if (!bytes.ok()) stop(2, std::string(text) + " cannot be read");
      const std::string given(bytes->begin(), bytes->end());
      const bool is_grammar = is("--grammar");
      changes.emplace_back([=](GenerationConfig* c) { (is_grammar ? c->grammar : c->schema) = given; });
    } else if (is("--stop")) {
      changes.emplace_back([=](GenerationConfig* c) { c->stop.emplace_back(text); });
    } else if (is("--cpu_threads")) {
      threads = whole("--cpu_threads", text);
    } else if (is("--max_new_tokens") || is("--top_k")) {
      const long value = std::min(whole(option.c_str(), text), 1L << 30);
      const bool most = is("--max_new_tokens");
      changes.emplace_back(
          [=](GenerationConfig* c) { (most ? c->max_new_tokens : c->top_k) = static_cast<int32_t>(value); });
    } else if (is("--seed")) {
      const long value = whole("--seed", text);
      changes.emplace_back([=](GenerationConfig* c) { c->seed = static_cast<uint64_t>(value); });
    } else {
      float GenerationConfig::* member = is("--temperature")          ? &GenerationConfig::temperature
                                         : is("--top_p")              ? &GenerationConfig::top_p
                                         : is("--min_p")              ? &GenerationConfig::min_p
                                         : is("--repetition_penalty") ? &GenerationConfig::repetition_penalty
                                                                      : nullptr;
      if (member == nullptr) stop(2, option + " is no option; see --help");
      const auto value = static_cast<float>(number(option.c_str(), text));
      changes.emplace_back([=](GenerationConfig* c) { c->*member = value; });
    }
  }
  if (model.empty() || !has_prompt) stop(2, "--model and --prompt are needed; see --help");
  std::unique_ptr<Tokenizer> tokenizer;
  if (!tokenizer_path.empty()) {
    tokenizer = load_tokenizer(tokenizer_path);
    if (!tokenizer) stop(2, tokenizer_path + " is no tokenizer that can be read");
  }
  static_cast<void>(register_all_backends());
  std::optional<const std::string> data_path;
  if (!data.empty()) data_path.emplace(data);
  const auto runner = create_text_llm_runner(model, std::move(tokenizer), data_path);
  const auto check = [&](const char* what, Error error) {
    if (error != Error::Ok) stop(1, model + ": " + what + ": " + error_name(error));
  };
  if (threads > 0) check("cpu_threads", runner->module().set_num_threads(static_cast<size_t>(threads)));
  Result<GenerationConfig> config = runner->default_config();
  check("loading", config.ok() ? Error::Ok : config.error());
  for (const auto& change : changes) change(&*config);
  if (!adapter.empty()) check("the adapter", runner->set_adapter(adapter));
  if (!draft.empty()) runner->set_draft(create_text_llm_runner(draft));
  if (!loaded.empty()) check("the conversation", runner->load_state(loaded));
  const Error error = runner->generate(
      prompt, *config,
      [](const std::string& piece) {
        std::fputs(piece.c_str(), stdout);
        std::fflush(stdout);
      },
      [&](const Stats& stats) {
        if (prints_stats) std::fprintf(stderr, "%s\n", stats_to_json_string(stats).c_str());
      });
  std::fputc('\n', stdout);
  check("generating", error);
  if (!saved.empty()) check("the conversation", runner->save_state(saved));
  return 0;
}
