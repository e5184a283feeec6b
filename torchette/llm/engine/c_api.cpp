// SPDX-License-Identifier: BSD-3-Clause
// Each function converts its arguments, calls a TextLLMRunner, and converts the result.
#include "torchette/llm/engine/c_api.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <new>

#include "torchette/llm/engine/config_json.h"
#include "torchette/llm/engine/text_llm_runner.h"

using namespace torchette;
using namespace torchette::extension::llm;

namespace torchette::extension {
// of torchette/extension/c_api.cpp
torchette_error_t end_call(Error error);
void find_backends();
}  // namespace torchette::extension

struct torchette_llm {
  std::shared_ptr<TextLLMRunner> runner;
  AnswerPiece piece;  // the last piece
  std::vector<uint64_t> top_tokens;
  std::vector<float> top_logprobs;
};

namespace {

torchette_error_t code(Error error) { return torchette::extension::end_call(error); }

bool given(const void* pointer, const char* name) {
  if (pointer != nullptr) return true;
  TORCHETTE_LOG(Error, "%s is null", name);
  return false;
}
#define TORCHETTE_GIVEN(pointer) \
  if (!given(pointer, #pointer)) return code(Error::InvalidArgument)

/// Whether a caller has set the member `size` of a structure of any version.
bool is_struct_size(size_t size) { return size >= sizeof(size) && size <= 4096; }

Error import_texts(const char* const* texts, size_t count, const char* name, std::vector<std::string>* to) {
  TORCHETTE_CHECK(texts != nullptr || count == 0, InvalidArgument, "%s is null, and num_%s is %zu", name,
                  name, count);
  for (size_t i = 0; i < count; ++i) {
    TORCHETTE_CHECK(texts[i] != nullptr, InvalidArgument, "%s[%zu] is null", name, i);
    to->emplace_back(texts[i]);
  }
  return Error::Ok;
}

Error import_biases(const torchette_llm_bias_t* biases, size_t count, const char* name,
                    std::vector<std::pair<uint64_t, float>>* to) {
  TORCHETTE_CHECK(biases != nullptr || count == 0, InvalidArgument, "%s is null, and num_%s is %zu", name,
                  name, count);
  for (size_t i = 0; i < count; ++i) to->emplace_back(biases[i].token, biases[i].bias);
  return Error::Ok;
}

// From the C member to the C++ member, by type.
#define TORCHETTE_IMPORT_Flag(name) to->name = config.name != 0;
#define TORCHETTE_IMPORT_Integer(name) to->name = config.name;
#define TORCHETTE_IMPORT_Seed(name) to->name = config.name;
#define TORCHETTE_IMPORT_Number(name) to->name = config.name;
#define TORCHETTE_IMPORT_Text(name) \
  if (config.name != nullptr) to->name = config.name;
#define TORCHETTE_IMPORT_Schema(name) TORCHETTE_IMPORT_Text(name)
#define TORCHETTE_IMPORT_Texts(name) \
  TORCHETTE_TRY(import_texts(config.name, config.num_##name, #name, &to->name));
#define TORCHETTE_IMPORT_Biases(name) \
  TORCHETTE_TRY(import_biases(config.name, config.num_##name, #name, &to->name));

Error import(const torchette_llm_config_t* from, GenerationConfig* to) {
  torchette_llm_config_t config;
  torchette_llm_config_init(&config, sizeof(config));
  if (from != nullptr) {
    TORCHETTE_CHECK(is_struct_size(from->size), InvalidArgument,
                    "config->size is %zu; call torchette_llm_config_init() first", from->size);
    std::memcpy(&config, from, std::min(from->size, sizeof(config)));
  }
#define TORCHETTE_OPTION(group, type, name, ...) TORCHETTE_IMPORT_##type(name)
#include "torchette/llm/engine/options.def"
  return config.json == nullptr ? Error::Ok : read_config(config.json, to);
}

/// Converts sizes. Error: InvalidArgument (a size is not positive).
bool product(std::initializer_list<int32_t> sizes, size_t* count) {
  *count = 1;
  for (int32_t size : sizes) {
    if (size <= 0 || *count > (size_t{1} << 31) / static_cast<size_t>(size)) {
      TORCHETTE_LOG(Error, "a size must be at least 1, got %d", static_cast<int>(size));
      return false;
    }
    *count *= static_cast<size_t>(size);
  }
  return true;
}

template <typename T>
torchette_error_t prefill_image(torchette_llm_t* llm, const T* data, int32_t width, int32_t height,
                                int32_t channels) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(data);
  size_t count = 0;
  if (!product({width, height, channels}, &count)) return code(Error::InvalidArgument);
  return code(llm->runner->prefill({Image(std::vector<T>(data, data + count), width, height, channels)}));
}

Error check_stats(const torchette_llm_stats_t* stats) {
  TORCHETTE_CHECK(stats == nullptr || is_struct_size(stats->size), InvalidArgument,
                  "stats->size is %zu; set it to sizeof(torchette_llm_stats_t)", stats->size);
  return Error::Ok;
}

void export_stats(const Stats& from, torchette_llm_stats_t* to) {
  torchette_llm_stats_t stats = {};
  stats.size = to->size;
  stats.prompt_tokens = from.num_prompt_tokens;
  stats.generated_tokens = from.num_generated_tokens;
  stats.prompt_ms = from.prompt_eval_end_ms - from.token_encode_end_ms;
  stats.first_token_ms = from.first_token_ms == 0 ? 0 : from.first_token_ms - from.inference_start_ms;
  stats.total_ms = from.inference_end_ms - from.inference_start_ms;
  stats.finish_reason = from.finish_reason;
  stats.drafted_tokens = from.num_drafted_tokens;
  stats.accepted_tokens = from.num_accepted_tokens;
  std::memcpy(to, &stats, std::min(to->size, sizeof(stats)));
}

const char* text_or_empty(const char* text) { return text == nullptr ? "" : text; }

/// Generates an answer: `answer` calls the runner.
template <typename Answer>
Error generate(torchette_llm_t* llm, const torchette_llm_config_t* config, torchette_llm_token_fn_t token,
               void* user, torchette_llm_stats_t* stats, const Answer& answer) {
  GenerationConfig ours;
  TORCHETTE_TRY(import(config, &ours));
  TORCHETTE_TRY(check_stats(stats));
  IRunner::TokenCallback on_token;
  if (token != nullptr)
    on_token = [&](const std::string& piece) {
      if (token(piece.c_str(), piece.size(), user) != 0) llm->runner->stop();
    };
  return answer(ours, on_token, IRunner::StatsCallback([&](const Stats& s) {
                  if (stats != nullptr) export_stats(s, stats);
                }));
}

Error import_for_steps(const torchette_llm_config_t* from, GenerationConfig* to) {
  TORCHETTE_TRY(import(from, to));
  TORCHETTE_CHECK(!to->echo, InvalidArgument,
                  "echo requires a callback: call torchette_llm_generate() instead of steps");
  return Error::Ok;
}

}  // namespace

// The default of a C member, by type. Texts and lists are null.
#define TORCHETTE_DEFAULT_Flag(name) filled.name = defaults.name ? 1 : 0;
#define TORCHETTE_DEFAULT_Integer(name) filled.name = defaults.name;
#define TORCHETTE_DEFAULT_Seed(name) filled.name = defaults.name;
#define TORCHETTE_DEFAULT_Number(name) filled.name = defaults.name;
#define TORCHETTE_DEFAULT_Text(name)
#define TORCHETTE_DEFAULT_Schema(name)
#define TORCHETTE_DEFAULT_Texts(name)
#define TORCHETTE_DEFAULT_Biases(name)

void torchette_llm_config_init(torchette_llm_config_t* config, size_t size) {
  if (config == nullptr) return;
  torchette_llm_config_t filled = {};
  filled.size = std::min(size, sizeof(filled));
  const GenerationConfig defaults;
#define TORCHETTE_OPTION(group, type, name, ...) TORCHETTE_DEFAULT_##type(name)
#include "torchette/llm/engine/options.def"
  filled.echo = 0;  // a caller has the prompt
  std::memcpy(config, &filled, filled.size);
}

torchette_error_t torchette_llm_open(const char* model_path, const char* tokenizer_path,
                                     torchette_llm_t** llm) {
  TORCHETTE_GIVEN(llm);
  *llm = nullptr;
  TORCHETTE_GIVEN(model_path);
  torchette::extension::find_backends();
  std::unique_ptr<Tokenizer> tokenizer;
  if (tokenizer_path != nullptr) {
    tokenizer = load_tokenizer(tokenizer_path);
    if (!tokenizer) return code(Error::InvalidExternalData);
  }
  auto* opened =
      new (std::nothrow) torchette_llm{create_text_llm_runner(model_path, std::move(tokenizer)), {}, {}, {}};
  if (opened == nullptr) return code(Error::MemoryAllocationFailed);
  const Error error = opened->runner->load();
  if (error != Error::Ok) {
    delete opened;
    return code(error);
  }
  *llm = opened;
  return code(Error::Ok);
}

void torchette_llm_free(torchette_llm_t* llm) { delete llm; }

torchette_error_t torchette_llm_generate(torchette_llm_t* llm, const char* prompt,
                                         const torchette_llm_config_t* config, torchette_llm_token_fn_t token,
                                         void* user, torchette_llm_stats_t* stats) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(prompt);
  const auto continue_text = [&](const GenerationConfig& ours, const auto& on_token, const auto& on_stats) {
    return llm->runner->generate(prompt, ours, on_token, on_stats);
  };
  return code(generate(llm, config, token, user, stats, continue_text));
}

torchette_error_t torchette_llm_chat(torchette_llm_t* llm, const char* messages, const char* options,
                                     const torchette_llm_config_t* config, torchette_llm_token_fn_t token,
                                     void* user, torchette_llm_stats_t* stats) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(messages);
  const auto chat = [&](const GenerationConfig& ours, const auto& on_token, const auto& on_stats) {
    return llm->runner->chat(messages, text_or_empty(options), ours, on_token, on_stats);
  };
  return code(generate(llm, config, token, user, stats, chat));
}

torchette_error_t torchette_llm_begin(torchette_llm_t* llm, const char* prompt,
                                      const torchette_llm_config_t* config) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(prompt);
  GenerationConfig ours;
  const Error error = import_for_steps(config, &ours);
  return code(error == Error::Ok ? llm->runner->begin(prompt, ours) : error);
}

torchette_error_t torchette_llm_begin_chat(torchette_llm_t* llm, const char* messages, const char* options,
                                           const torchette_llm_config_t* config) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(messages);
  GenerationConfig ours;
  const Error error = import_for_steps(config, &ours);
  if (error != Error::Ok) return code(error);
  return code(llm->runner->begin_chat(messages, text_or_empty(options), ours));
}

torchette_error_t torchette_llm_next(torchette_llm_t* llm, torchette_llm_piece_t* piece) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(piece);
  Result<AnswerPiece> found = llm->runner->next();
  if (!found.ok()) return code(found.error());
  llm->piece = std::move(*found);
  llm->top_tokens.clear();
  llm->top_logprobs.clear();
  for (const AnswerPiece::TokenLogprob& one : llm->piece.top) {
    llm->top_tokens.push_back(one.token);
    llm->top_logprobs.push_back(one.logprob);
  }
  *piece = {llm->piece.text.c_str(),    llm->piece.text.size(),
            llm->piece.is_last ? 1 : 0, llm->piece.token ? static_cast<int64_t>(*llm->piece.token) : -1,
            llm->piece.logprob,         llm->top_tokens.data(),
            llm->top_logprobs.data(),   llm->top_tokens.size()};
  return code(Error::Ok);
}

torchette_error_t torchette_llm_stats(const torchette_llm_t* llm, torchette_llm_stats_t* stats) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(stats);
  const Error error = check_stats(stats);
  if (error == Error::Ok) export_stats(llm->runner->stats(), stats);
  return code(error);
}

torchette_error_t torchette_llm_fork(torchette_llm_t* llm, torchette_llm_t** other) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(other);
  *other = nullptr;
  Result<std::unique_ptr<TextLLMRunner>> made = llm->runner->fork();
  if (!made.ok()) return code(made.error());
  *other = new (std::nothrow) torchette_llm{std::move(*made), {}, {}, {}};
  return *other == nullptr ? code(Error::MemoryAllocationFailed) : code(Error::Ok);
}

torchette_error_t torchette_llm_prefill(torchette_llm_t* llm, const char* prompt) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(prompt);
  return code(llm->runner->prefill(prompt));
}

torchette_error_t torchette_llm_prefill_image(torchette_llm_t* llm, const uint8_t* data, int32_t width,
                                              int32_t height, int32_t channels) {
  return prefill_image(llm, data, width, height, channels);
}

torchette_error_t torchette_llm_prefill_normalized_image(torchette_llm_t* llm, const float* data,
                                                         int32_t width, int32_t height, int32_t channels) {
  return prefill_image(llm, data, width, height, channels);
}

torchette_error_t torchette_llm_prefill_audio(torchette_llm_t* llm, const float* features, int32_t batch_size,
                                              int32_t num_bins, int32_t num_frames) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(features);
  size_t count = 0;
  if (!product({batch_size, num_bins, num_frames}, &count)) return code(Error::InvalidArgument);
  return code(llm->runner->prefill(
      {Audio(std::vector<float>(features, features + count), batch_size, num_bins, num_frames)}));
}

torchette_error_t torchette_llm_prefill_samples(torchette_llm_t* llm, const float* samples, size_t count) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(samples);
  if (count > INT32_MAX) return code(Error::InvalidArgument);
  return code(llm->runner->prefill({RawAudio::of(samples, count)}));
}

torchette_error_t torchette_llm_save(torchette_llm_t* llm, const char* path) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(path);
  return code(llm->runner->save_state(path));
}

torchette_error_t torchette_llm_load(torchette_llm_t* llm, const char* path) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(path);
  return code(llm->runner->load_state(path));
}

torchette_error_t torchette_llm_set_adapter(torchette_llm_t* llm, const char* path) {
  TORCHETTE_GIVEN(llm);
  return code(llm->runner->set_adapter(path == nullptr ? "" : path));
}

torchette_error_t torchette_llm_set_draft(torchette_llm_t* llm, torchette_llm_t* draft, int32_t num_tokens) {
  TORCHETTE_GIVEN(llm);
  if (draft == llm) {
    TORCHETTE_LOG(Error, "a conversation cannot be its own draft");
    return code(Error::InvalidArgument);
  }
  llm->runner->set_draft(draft == nullptr ? nullptr : draft->runner, num_tokens);
  return code(Error::Ok);
}

void torchette_llm_stop(torchette_llm_t* llm) {
  if (llm != nullptr) llm->runner->stop();
}

void torchette_llm_reset(torchette_llm_t* llm) {
  if (llm != nullptr) llm->runner->reset();
}

torchette_error_t torchette_llm_rewind(torchette_llm_t* llm, size_t position) {
  TORCHETTE_GIVEN(llm);
  return code(llm->runner->rewind(position));
}

size_t torchette_llm_position(const torchette_llm_t* llm) {
  return llm == nullptr ? 0 : llm->runner->tokens().size();
}

torchette_error_t torchette_llm_tokenize(torchette_llm_t* llm, const char* text, int add_special_tokens,
                                         uint64_t* tokens, size_t capacity, size_t* count) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(text);
  TORCHETTE_GIVEN(count);
  const Tokenizer& tokenizer = *llm->runner->tokenizer();
  const Result<std::vector<uint64_t>> found =
      add_special_tokens != 0 ? tokenizer.encode_with_special_tokens(text) : tokenizer.encode(text);
  if (!found.ok()) return code(found.error());
  *count = found->size();
  if (tokens != nullptr) std::copy_n(found->begin(), std::min(capacity, found->size()), tokens);
  return code(Error::Ok);
}

torchette_error_t torchette_llm_detokenize(torchette_llm_t* llm, const uint64_t* tokens, size_t count,
                                           char* text, size_t capacity, size_t* size) {
  TORCHETTE_GIVEN(llm);
  TORCHETTE_GIVEN(size);
  if (count > 0) TORCHETTE_GIVEN(tokens);
  const Result<std::string> found =
      llm->runner->tokenizer()->decode(std::vector<uint64_t>(tokens, tokens + count));
  if (!found.ok()) return code(found.error());
  *size = found->size();
  if (text != nullptr && capacity > 0) {
    const size_t n = std::min(capacity - 1, found->size());
    std::memcpy(text, found->data(), n);
    text[n] = 0;
  }
  return code(Error::Ok);
}
