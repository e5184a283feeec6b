// SPDX-License-Identifier: BSD-3-Clause
// llm_runner: a program that generates text. In: a language model and a prompt. Out: the answer on the
// standard output, while it is generated; statistics on the standard error stream.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "torchette/extension/backends.h"
#include "torchette/extension/error_name.h"
#include "torchette/llm/engine/config_json.h"
#include "torchette/llm/engine/options.h"
#include "torchette/llm/engine/session_state.h"
#include "torchette/llm/engine/text_llm_runner.h"

using namespace torchette;
using namespace torchette::extension;
using namespace torchette::extension::llm;

namespace {

constexpr char kHelp[] =
    R"(usage: llm_runner --model FILE --prompt TEXT [options]

Generates text after a prompt. The model's file has the defaults of the generation options
(generation_config.json).

  --model FILE             the program (model.pte)
  --tokenizer FILE         tokenizer.json, a SentencePiece model or a tiktoken file; default: the one in the program
  --data FILE              a data file (.ptd) with weights outside the program
  --prompt TEXT            the text; - reads the standard input
  --adapter FILE           a LoRA adapter (.ptd) for a model that was exported with one
  --draft FILE             a small model with the same tokens, for speculative decoding
  --load FILE, --save FILE the conversation before the prompt, and the file to store it in
  --cpu_threads N          threads for the model (default: the physical cores)
  --stats                  print counts and times as one line of JSON
  --help                   this text

Generation options; --no_NAME sets a flag to false, --stop can be repeated:
)";
constexpr char kExitStatus[] = R"(
The exit status is 0, 1 if the model failed, or 2 if an option or a file is wrong.
)";

/// Returns the metavariable of an option in the help.
const char* metavariable(const Option& option) {
  switch (option.type) {
    case Option::Type::Flag:
      return "";
    case Option::Type::Integer:
    case Option::Type::Seed:
      return " N";
    case Option::Type::Number:
      return " X";
    case Option::Type::Texts:
      return " TEXT";
    case Option::Type::Biases:
      return " JSON";
    default:
      return " FILE";
  }
}

void print_help() {
  std::fputs(kHelp, stdout);
  for (const Option& option : llm::options()) {
    const std::string name = std::string("--") + option.name + metavariable(option);
    std::printf("  %-24s %s%s%s\n", name.c_str(), option.description, option.has_range() ? "; " : "",
                option.has_range() ? accepted_values(option).c_str() : "");
  }
  std::fputs(kExitStatus, stdout);
}

[[noreturn]] void stop(int status, const std::string& line) {
  std::fprintf(stderr, "llm_runner: %s\n", line.c_str());
  std::exit(status);
}

long parse_count(const std::string& option, const char* text) {
  char* end = nullptr;
  errno = 0;
  const long value = std::strtol(text, &end, 10);
  if (*text == 0 || *end != 0 || errno != 0 || value < 0)
    stop(2, option + " must be an integer of at least 0, got " + text);
  return value;
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
  Json generation;  // an object, for read_config()
};

Json json_of(Json::Kind kind, std::string text = {}) {
  Json json;
  json.kind = kind;
  json.text = std::move(text);
  return json;
}

/// Returns the value of a generation option from the text of its argument. read_config() checks the type.
Json parse_value(const Option& option, const char* text) {
  if (option.has_range()) {
    char* end = nullptr;
    Json number = json_of(Json::Kind::Number, text);
    number.number = std::strtod(text, &end);
    return *text != 0 && *end == 0 ? number : json_of(Json::Kind::String, text);
  }
  if (option.type == Option::Type::Biases) {
    const Result<Json> parsed = Json::parse(text);
    return parsed.ok() ? *parsed : json_of(Json::Kind::String, text);
  }
  return json_of(Json::Kind::String, option.type == Option::Type::Texts ? text : read_text(text));
}

/// Adds the value of a generation option. The last one counts, except that a list has all of them.
void add_value(const Option& option, Json value, Json* generation) {
  for (size_t i = 0; i < generation->items.size(); ++i)
    if (generation->keys[i] == option.name) {
      Json& before = generation->items[i];
      if (option.type == Option::Type::Texts)
        before.items.push_back(std::move(value));
      else
        before = std::move(value);
      return;
    }
  if (option.type == Option::Type::Texts) {
    Json list = json_of(Json::Kind::Array);
    list.items.push_back(std::move(value));
    value = std::move(list);
  }
  generation->keys.emplace_back(option.name);
  generation->items.push_back(std::move(value));
}

struct Path {
  const char* name;
  std::string Options::* member;
};

constexpr Path kPaths[] = {
    {"--model", &Options::model},     {"--tokenizer", &Options::tokenizer}, {"--data", &Options::data},
    {"--adapter", &Options::adapter}, {"--draft", &Options::draft},         {"--load", &Options::load},
    {"--save", &Options::save},
};

/// Returns the member of a path, or null.
std::string* path_named(const std::string& name, Options* options) {
  for (const Path& path : kPaths)
    if (name == path.name) return &(options->*path.member);
  return nullptr;
}

const Option& generation_option(const std::string& name) {
  const Option* option = name.compare(0, 2, "--") == 0 ? find_option(name.substr(2)) : nullptr;
  if (option == nullptr) stop(2, name + " is not an option; see --help");
  return *option;
}

/// Applies an option without a value. Returns false if the option has one.
bool apply_flag(const std::string& name, Options* options) {
  if (name == "--stats") return options->prints_stats = true;
  if (name == "--prompt" || name == "--cpu_threads" || path_named(name, options) != nullptr) return false;
  const bool is_off = name.compare(0, 5, "--no_") == 0 || name.compare(0, 5, "--no-") == 0;
  const Option& option = generation_option(is_off ? "--" + name.substr(5) : name);
  if (option.type != Option::Type::Flag && !is_off) return false;
  if (option.type != Option::Type::Flag) stop(2, name + " is not an option; see --help");
  add_value(option, json_of(is_off ? Json::Kind::False : Json::Kind::True), &options->generation);
  return true;
}

void apply_option(const std::string& name, const char* text, Options* options) {
  if (std::string* path = path_named(name, options)) {
    *path = text;
  } else if (name == "--prompt") {
    options->prompt = std::strcmp(text, "-") == 0 ? read_standard_input() : text;
    options->has_prompt = true;
  } else if (name == "--cpu_threads") {
    options->num_threads = parse_count(name, text);
  } else {
    const Option& option = generation_option(name);
    add_value(option, parse_value(option, text), &options->generation);
  }
}

Options parse_options(int count, char** words) {
  Options options;
  options.generation.kind = Json::Kind::Object;
  for (int i = 1; i < count; ++i) {
    const std::string name = words[i];
    if (name == "--help") {
      print_help();
      std::exit(0);
    }
    if (apply_flag(name, &options)) continue;
    if (i + 1 == count) stop(2, name + " needs a value; see --help");
    apply_option(name, words[++i], &options);
  }
  if (options.model.empty() || !options.has_prompt) stop(2, "--model and --prompt are required; see --help");
  GenerationConfig config;
  if (read_config(options.generation, &config) != Error::Ok || check(config) != Error::Ok)
    stop(2, "a generation option is wrong; see --help");
  return options;
}

}  // namespace

int main(int count, char** words) {
  const Options options = parse_options(count, words);
  std::unique_ptr<Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    tokenizer = load_tokenizer(options.tokenizer);
    if (!tokenizer) stop(2, options.tokenizer + " is not a tokenizer file");
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
  config->echo = false;
  config->add_special_tokens = true;
  check("options", read_config(options.generation, &*config));
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
