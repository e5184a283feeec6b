// SPDX-License-Identifier: BSD-3-Clause
// A language model as a WebAssembly module. An instance holds one conversation; llm.js calls it. The host
// writes the bytes of texts to the address that reserve() returns, and reads answers as JSON at result().
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "torchette/extension/backends.h"
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/error_name.h"
#include "torchette/llm/engine/config_json.h"
#include "torchette/llm/engine/text_llm_runner.h"
#include "torchette/llm/text/json.h"

#define TORCHETTE_WASM_EXPORT(name) extern "C" __attribute__((export_name(#name)))
#define TORCHETTE_WASM_IMPORT(name) extern "C" __attribute__((import_module("torchette"), import_name(#name)))

TORCHETTE_WASM_IMPORT(log) void host_log(int level, const char* message, size_t length);
TORCHETTE_WASM_IMPORT(now) double host_now();  // milliseconds

namespace torchette::extension::llm {
namespace {

TextLLMRunner* runner = nullptr;
std::string result;

uint32_t code(Error error) { return static_cast<uint32_t>(error); }

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), std::isfinite(value) ? "%.9g" : "null", value);
  return text;
}

std::string list(const std::vector<uint64_t>& tokens) {
  std::string out = "[";
  for (uint64_t token : tokens) out += (out.size() > 1 ? "," : "") + std::to_string(token);
  return out + "]";
}

Result<std::vector<uint64_t>> tokens_of(std::string_view text) {
  const Result<Json> json = Json::parse(text);
  if (!json.ok()) return json.error();
  std::vector<uint64_t> tokens;
  for (const Json& item : json->items) {
    TORCHETTE_CHECK(item.index() >= 0, InvalidArgument, "a token must be an integer of at least 0");
    tokens.push_back(static_cast<uint64_t>(item.index()));
  }
  return tokens;
}

Result<GenerationConfig> config_of(std::string_view options) {
  Result<GenerationConfig> config = runner->default_config();
  if (!config.ok()) return config.error();
  config->echo = false;
  config->add_special_tokens = true;
  TORCHETTE_TRY(read_config(options, &*config));
  TORCHETTE_CHECK(!config->echo, InvalidArgument,
                  "echo requires a callback, which this interface does not have");
  return config;
}

}  // namespace

/// Returns memory for a text or a file of the host, or null if there is not enough.
TORCHETTE_WASM_EXPORT(reserve) void* export_reserve(size_t size) { return std::malloc(size + 1); }
TORCHETTE_WASM_EXPORT(release) void export_release(void* memory) { std::free(memory); }
TORCHETTE_WASM_EXPORT(result) const char* export_result() { return result.data(); }
TORCHETTE_WASM_EXPORT(result_size) size_t export_result_size() { return result.size(); }
TORCHETTE_WASM_EXPORT(error_name) const char* export_error_name(uint32_t error) {
  return error_name(static_cast<Error>(error));
}

/// Opens a program, which must stay in memory, and a tokenizer (empty: that of the file). Result: the
/// properties of the model.
TORCHETTE_WASM_EXPORT(open)
uint32_t export_open(const void* data, size_t size, const char* tokenizer, size_t tokenizer_size) {
  if (const Error error = register_all_backends(); error != Error::Ok) return code(error);
  std::unique_ptr<Tokenizer> own;
  if (tokenizer != nullptr) {
    Result<std::unique_ptr<Tokenizer>> made = make_tokenizer({tokenizer, tokenizer_size});
    if (!made.ok()) return code(made.error());
    own = std::move(*made);
  }
  auto module = std::make_unique<Module>(std::make_shared<BufferDataLoader>(data, size));
  runner = new TextLLMRunner(std::move(module), std::move(own));
  if (const Error error = runner->load(); error != Error::Ok) return code(error);
  result = "{\"maxContext\":" + std::to_string(runner->max_context_len()) +
           ",\"vocabSize\":" + std::to_string(runner->tokenizer()->vocab_size()) +
           ",\"hasTemplate\":" + (runner->has_template() ? "true" : "false") + "}";
  return 0;
}
/// Starts the answer to a text, in steps. Options are an object; see read_config().
TORCHETTE_WASM_EXPORT(begin)
uint32_t export_begin(const char* prompt, size_t size, const char* options, size_t options_size) {
  const Result<GenerationConfig> config = config_of({options, options_size});
  return code(config.ok() ? runner->begin(std::string(prompt, size), *config) : config.error());
}
/// Starts the answer to messages, as in render(). `chat` are the options of TextLLMRunner::begin_chat().
TORCHETTE_WASM_EXPORT(begin_chat)
uint32_t export_begin_chat(const char* messages, size_t size, const char* chat, size_t chat_size,
                           const char* options, size_t options_size) {
  const Result<GenerationConfig> config = config_of({options, options_size});
  return code(config.ok() ? runner->begin_chat({messages, size}, {chat, chat_size}, *config)
                          : config.error());
}
/// Starts the answer to a conversation, which is a list of tokens.
TORCHETTE_WASM_EXPORT(begin_tokens)
uint32_t export_begin_tokens(const char* tokens, size_t size, const char* options, size_t options_size) {
  const Result<GenerationConfig> config = config_of({options, options_size});
  const Result<std::vector<uint64_t>> conversation = tokens_of({tokens, size});
  if (!config.ok() || !conversation.ok()) return code(config.ok() ? conversation.error() : config.error());
  return code(runner->begin_with(*conversation, *config));
}
/// Generates a piece of the answer. Result: the piece.
TORCHETTE_WASM_EXPORT(next) uint32_t export_next() {
  const Result<AnswerPiece> piece = runner->next();
  if (!piece.ok()) return code(piece.error());
  result = "{\"text\":" + json_string(piece->text) + ",\"last\":" + (piece->is_last ? "true" : "false") +
           ",\"token\":" + (piece->token ? std::to_string(*piece->token) : "null") +
           ",\"logprob\":" + number(piece->logprob) + ",\"top\":[";
  for (const auto& one : piece->top)
    result += (&one == piece->top.data() ? "[" : ",[") + std::to_string(one.token) + "," +
              number(one.logprob) + "]";
  result += "]}";
  return 0;
}
/// Result: the statistics of the answer so far.
TORCHETTE_WASM_EXPORT(stats) void export_stats() { result = stats_to_json_string(runner->stats()); }
TORCHETTE_WASM_EXPORT(tokens) void export_tokens() { result = list(runner->tokens()); }
TORCHETTE_WASM_EXPORT(rewind) uint32_t export_rewind(size_t position) {
  return code(runner->rewind(position));
}
TORCHETTE_WASM_EXPORT(encode) uint32_t export_encode(const char* text, size_t size, int special) {
  const std::string input(text, size);
  const Tokenizer& tokenizer = *runner->tokenizer();
  const Result<std::vector<uint64_t>> tokens =
      special != 0 ? tokenizer.encode_with_special_tokens(input) : tokenizer.encode(input);
  if (!tokens.ok()) return code(tokens.error());
  result = list(*tokens);
  return 0;
}
TORCHETTE_WASM_EXPORT(decode) uint32_t export_decode(const char* tokens, size_t size) {
  const Result<std::vector<uint64_t>> given = tokens_of({tokens, size});
  if (!given.ok()) return code(given.error());
  const Result<std::string> text = runner->tokenizer()->decode(*given);
  if (!text.ok()) return code(text.error());
  result = json_string(*text);
  return 0;
}
/// Renders messages, a list of {"role", "content"}, with the template of the file. `chat` is as for
/// begin_chat().
TORCHETTE_WASM_EXPORT(render)
uint32_t export_render(const char* messages, size_t size, const char* chat, size_t chat_size) {
  const Result<std::string> text = runner->render({messages, size}, {chat, chat_size});
  if (!text.ok()) return code(text.error());
  result = json_string(*text);
  return 0;
}

}  // namespace torchette::extension::llm

// The platform.
extern "C" {
void torchette_pal_init(void) {}
void torchette_pal_abort(void) { __builtin_trap(); }
torchette_timestamp_t torchette_pal_current_ticks(void) {
  return static_cast<torchette_timestamp_t>(host_now() * 1e6);
}
torchette_tick_ratio_t torchette_pal_ticks_to_ns_multiplier(void) { return {1, 1}; }
void torchette_pal_emit_log_message(torchette_timestamp_t, torchette_log_level_t level, const char*,
                                    const char*, size_t, const char* message, size_t length) {
  host_log(level, message, length);
}
void* torchette_pal_allocate(size_t size) { return std::malloc(size); }
void torchette_pal_free(void* memory) { std::free(memory); }
}
