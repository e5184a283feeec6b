// SPDX-License-Identifier: BSD-3-Clause
// llm_runner: a program that generates text. In: a language model and a prompt. Out: the answer on the
// standard output, while it is generated; statistics on the standard error stream.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "torchette/extension/backends.h"
#include "torchette/extension/error_name.h"
#include "torchette/llm/engine/session_state.h"
#include "torchette/llm/engine/text_llm_runner.h"

using namespace torchette;
using namespace torchette::extension;
using namespace torchette::extension::llm;

namespace {

constexpr char kHelp[] =
    R"(usage: llm_runner --model FILE --prompt TEXT [options]

Generates text after a prompt. The model's file has the defaults of the options (generation_config.json).

  --model FILE             the program (model.pte)
  --tokenizer FILE         tokenizer.json, a SentencePiece model or a tiktoken file; default: the one in the program
  --data FILE              a data file (.ptd) with weights outside the program
  --prompt TEXT            the text; - reads the standard input
  --max_new_tokens N       end after N tokens (default: when the context is full)
  --temperature T          0 always chooses the most probable token
  --top_k K, --top_p P, --min_p P, --repetition_penalty R
                           limit the tokens that may be chosen
  --seed N                 the same seed gives the same answer (0)
  --stop TEXT              end at this text, which is not printed; can be repeated
  --grammar FILE, --schema FILE
                           constrain the answer: a grammar in GBNF, or a JSON schema
  --adapter FILE           a LoRA adapter (.ptd) for a model that was exported with one
  --draft FILE             a small model with the same tokens, for speculative decoding
  --load FILE, --save FILE the conversation before the prompt, and the file to store it in
  --ignore_eos             continue after tokens that end a text
  --no_special_tokens      omit the tokens that the tokenizer adds to a text
  --echo                   also print the prompt
  --cpu_threads N          threads for the model (default: the physical cores)
  --stats                  print counts and times as one line of JSON
  --help                   this text

The exit status is 0, 1 if the model failed, or 2 if an option or a file is wrong.
)";

[[noreturn]] void stop(int status, const std::string& line) {
  std::fprintf(stderr, "llm_runner: %s\n", line.c_str());
  std::exit(status);
}

double parse_number(const std::string& option, const char* text) {
  char* end = nullptr;
  errno = 0;
  const double value = std::strtod(text, &end);
  if (*text == 0 || *end != 0 || errno != 0) stop(2, option + " takes a number, not " + text);
  return value;
}

long parse_count(const std::string& option, const char* text) {
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text, &end, 10);
  if (*text == 0 || *end != 0 || errno != 0 || value < 0)
    stop(2, option + " takes a whole number from 0, not " + text);
  return value;
}

int32_t parse_limit(const std::string& option, const char* text) {
  return static_cast<int32_t>(std::min(parse_count(option, text), 1L << 30));
}

std::string read_standard_input() {
  std::string text;
  char buffer[4096];
  size_t count;
  while ((count = std::fread(buffer, 1, sizeof(buffer), stdin)) > 0) text.append(buffer, count);
  return text;
}

std::string read_text(const char* path) {
  const Result<std::vector<uint8_t>> bytes = read_file(path);
  if (!bytes.ok()) stop(2, std::string(path) + " cannot be read");
  return {bytes->begin(), bytes->end()};
}

struct Options {
  std::string model, tokenizer, data, prompt, adapter, draft, load, save;
  bool has_prompt = false, prints_stats = false;
  long num_threads = 0;
  // changes of the configuration of the model's file, which is loaded later
  std::vector<std::function<void(GenerationConfig*)>> changes = {[](GenerationConfig* config) {
    config->echo = false;
    config->add_special_tokens = true;
  }};

  template <typename T>
  void set(T GenerationConfig::* member, T value) {
    changes.emplace_back([=](GenerationConfig* config) { config->*member = value; });
  }
};

struct Flag {
  const char* name;
  void (*apply)(Options*);
};

constexpr Flag kFlags[] = {
    {"--ignore_eos", [](Options* o) { o->set(&GenerationConfig::ignore_eos, true); }},
    {"--no_special_tokens", [](Options* o) { o->set(&GenerationConfig::add_special_tokens, false); }},
    {"--echo", [](Options* o) { o->set(&GenerationConfig::echo, true); }},
    {"--stats", [](Options* o) { o->prints_stats = true; }},
};

struct Path {
  const char* name;
  std::string Options::* member;
};

constexpr Path kPaths[] = {
    {"--model", &Options::model},     {"--tokenizer", &Options::tokenizer}, {"--data", &Options::data},
    {"--adapter", &Options::adapter}, {"--draft", &Options::draft},         {"--load", &Options::load},
    {"--save", &Options::save},
};

struct Real {
  const char* name;
  float GenerationConfig::* member;
};

constexpr Real kReals[] = {
    {"--temperature", &GenerationConfig::temperature},
    {"--top_p", &GenerationConfig::top_p},
    {"--min_p", &GenerationConfig::min_p},
    {"--repetition_penalty", &GenerationConfig::repetition_penalty},
};

struct Option {
  const char* name;
  void (*apply)(Options*, const std::string& name, const char* text);
};

constexpr Option kOptions[] = {
    {"--prompt",
     [](Options* o, const std::string&, const char* text) {
       o->prompt = std::strcmp(text, "-") == 0 ? read_standard_input() : text;
       o->has_prompt = true;
     }},
    {"--max_new_tokens",
     [](Options* o, const std::string& name, const char* text) {
       o->set(&GenerationConfig::max_new_tokens, parse_limit(name, text));
     }},
    {"--top_k", [](Options* o, const std::string& name,
                   const char* text) { o->set(&GenerationConfig::top_k, parse_limit(name, text)); }},
    {"--seed",
     [](Options* o, const std::string& name, const char* text) {
       o->set(&GenerationConfig::seed, static_cast<uint64_t>(parse_count(name, text)));
     }},
    {"--stop",
     [](Options* o, const std::string&, const char* text) {
       o->changes.emplace_back([=](GenerationConfig* config) { config->stop.emplace_back(text); });
     }},
    {"--grammar", [](Options* o, const std::string&,
                     const char* text) { o->set(&GenerationConfig::grammar, read_text(text)); }},
    {"--schema", [](Options* o, const std::string&,
                    const char* text) { o->set(&GenerationConfig::schema, read_text(text)); }},
    {"--cpu_threads",
     [](Options* o, const std::string& name, const char* text) { o->num_threads = parse_count(name, text); }},
};

template <typename Row, size_t kCount>
const Row* find_row(const Row (&rows)[kCount], const std::string& name) {
  for (const Row& row : rows)
    if (name == row.name) return &row;
  return nullptr;
}

void apply_option(const std::string& name, const char* text, Options* options) {
  if (const Path* path = find_row(kPaths, name))
    options->*path->member = text;
  else if (const Real* real = find_row(kReals, name))
    options->set(real->member, static_cast<float>(parse_number(name, text)));
  else if (const Option* option = find_row(kOptions, name))
    option->apply(options, name, text);
  else
    stop(2, name + " is no option; see --help");
}

Options parse_options(int count, char** words) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = words[i];
    if (name == "--help") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    if (const Flag* flag = find_row(kFlags, name)) {
      flag->apply(&options);
      continue;
    }
    if (i + 1 == count) stop(2, name + " is no option, or lacks its value; see --help");
    apply_option(name, words[++i], &options);
  }
  if (options.model.empty() || !options.has_prompt) stop(2, "--model and --prompt are needed; see --help");
  return options;
}

}  // namespace

int main(int count, char** words) {
  const Options options = parse_options(count, words);
  std::unique_ptr<Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    tokenizer = load_tokenizer(options.tokenizer);
    if (!tokenizer) stop(2, options.tokenizer + " is no tokenizer that can be read");
  }
  static_cast<void>(register_all_backends());
  std::optional<const std::string> data;
  if (!options.data.empty()) data.emplace(options.data);
  const auto runner = create_text_llm_runner(options.model, std::move(tokenizer), data);
  const auto check = [&](const char* step, Error error) {
    if (error != Error::Ok) stop(1, options.model + ": " + step + ": " + error_name(error));
  };
  if (options.num_threads > 0)
    check("cpu_threads", runner->module().set_num_threads(static_cast<size_t>(options.num_threads)));
  Result<GenerationConfig> config = runner->default_config();
  check("loading", config.ok() ? Error::Ok : config.error());
  for (const auto& change : options.changes) change(&*config);
  if (!options.adapter.empty()) check("the adapter", runner->set_adapter(options.adapter));
  if (!options.draft.empty()) runner->set_draft(create_text_llm_runner(options.draft));
  if (!options.load.empty()) check("the conversation", runner->load_state(options.load));
  const Error error = runner->generate(
      options.prompt, *config,
      [](const std::string& piece) {
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
      },
      [&](const Stats& stats) {
        if (options.prints_stats) std::fprintf(stderr, "%s\n", stats_to_json_string(stats).c_str());
      });
  std::fputc('\n', stdout);
  check("generating", error);
  if (!options.save.empty()) check("the conversation", runner->save_state(options.save));
  return 0;
}
