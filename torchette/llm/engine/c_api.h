/* SPDX-License-Identifier: BSD-3-Clause
 * Language models for C, and for every language that can call C: beside torchette/extension/c_api.h, whose
 * rules hold here, too. In the library torchette_llm. Compiles as C99 and as C++.
 */
#ifndef TORCHETTE_EXTENSION_LLM_C_API_H
#define TORCHETTE_EXTENSION_LLM_C_API_H

#include "torchette/extension/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A conversation with a language model. Not for use by two threads at once, but for torchette_llm_stop(). */
typedef struct torchette_llm torchette_llm_t;

/* A number that is added to the logit of a token. */
typedef struct {
  uint64_t token;
  float bias;
} torchette_llm_bias_t;

/* The declarations of members by the types of options.def. A text may be null. */
#define TORCHETTE_LLM_Flag(name) int32_t name;
#define TORCHETTE_LLM_Integer(name) int32_t name;
#define TORCHETTE_LLM_Seed(name) uint64_t name;
#define TORCHETTE_LLM_Number(name) float name;
#define TORCHETTE_LLM_Text(name) const char* name;
#define TORCHETTE_LLM_Schema(name) const char* name;
#define TORCHETTE_LLM_Texts(name) \
  const char* const* name;        \
  size_t num_##name;
#define TORCHETTE_LLM_Biases(name)  \
  const torchette_llm_bias_t* name; \
  size_t num_##name;

/* The options of an answer: one member for each row of options.def, which describes it. A list has a second
 * member, such as num_stop. Fill the structure with torchette_llm_config_init() first. */
typedef struct {
  size_t size;      /* of the structure, which may grow in later versions */
  const char* json; /* options as a JSON object, {"top_k": 5}, that replace the members; may be null */
#define TORCHETTE_OPTION(group, type, name, ...) TORCHETTE_LLM_##type(name)
#include "torchette/llm/engine/options.def"
} torchette_llm_config_t;

/* What one token brought; `text`, `tokens` and `logprobs` last until the next call. */
typedef struct {
  const char* text; /* whole characters of UTF-8, with a zero behind them */
  size_t size;
  int32_t is_last; /* the answer has ended */
  int64_t token;   /* -1: of a last piece that has only what was held back */
  float logprob;
  const uint64_t* top_tokens; /* the likeliest ones */
  const float* top_logprobs;
  size_t num_top;
} torchette_llm_piece_t;

/* The costs of an answer. Set `size` to sizeof(torchette_llm_stats_t); functions write the members that fit.
 */
typedef struct {
  size_t size; /* of the structure, which may grow in later versions */
  int64_t prompt_tokens;
  int64_t generated_tokens;
  int64_t prompt_ms;
  int64_t first_token_ms; /* from the beginning of the call; 0 if there is no token */
  int64_t total_ms;
  const char* finish_reason; /* a constant: stop, length, cancelled or context; "" before the end */
  int64_t drafted_tokens;    /* tokens that the draft model proposed */
  int64_t accepted_tokens;   /* proposed tokens that are in the answer */
} torchette_llm_stats_t;

/* A piece of the answer, whole characters of UTF-8; `piece[size]` is 0. Another result than 0 stops it. */
typedef int (*torchette_llm_token_fn_t)(const char* piece, size_t size, void* user);

/* Fills a configuration with the defaults. `size` is sizeof(torchette_llm_config_t) of the caller, whose
 * header may be older than the library. */
TORCHETTE_API void torchette_llm_config_init(torchette_llm_config_t* config, size_t size);
/* Opens and loads a model. `tokenizer_path` may be null where the file has its tokenizer. */
TORCHETTE_API torchette_error_t torchette_llm_open(const char* model_path, const char* tokenizer_path,
                                                   torchette_llm_t** llm);
/* `llm` may be null. */
TORCHETTE_API void torchette_llm_free(torchette_llm_t* llm);
/* Goes on with `prompt` where the last answer ended. `config`, `token` and `stats` may be null. */
TORCHETTE_API torchette_error_t torchette_llm_generate(torchette_llm_t* llm, const char* prompt,
                                                       const torchette_llm_config_t* config,
                                                       torchette_llm_token_fn_t token, void* user,
                                                       torchette_llm_stats_t* stats);
/* The same in steps: begin() starts an answer, and each next() returns the piece of one token, until the last
 * piece. begin_chat() renders `messages`, the whole conversation as a JSON list of {"role", "content"}, with
 * the chat template of the file, and runs only what is new. `options` is a JSON object, or null: "tools" and
 * "tool_choice" in the form of OpenAI, and "template" with other variables of the template, such as
 * {"enable_thinking": false}. */
TORCHETTE_API torchette_error_t torchette_llm_begin(torchette_llm_t* llm, const char* prompt,
                                                    const torchette_llm_config_t* config);
TORCHETTE_API torchette_error_t torchette_llm_begin_chat(torchette_llm_t* llm, const char* messages,
                                                         const char* options,
                                                         const torchette_llm_config_t* config);
TORCHETTE_API torchette_error_t torchette_llm_next(torchette_llm_t* llm, torchette_llm_piece_t* piece);
/* The costs of the answer so far. */
TORCHETTE_API torchette_error_t torchette_llm_stats(const torchette_llm_t* llm, torchette_llm_stats_t* stats);
/* Another conversation on the same weights, which goes on from here by itself. */
TORCHETTE_API torchette_error_t torchette_llm_fork(torchette_llm_t* llm, torchette_llm_t** other);
TORCHETTE_API torchette_error_t torchette_llm_prefill(torchette_llm_t* llm, const char* prompt);
/* An image of bytes or numbers, [channels, height, width]; features of sound, [batch, bins, frames]; or its
 * samples, from -1 to 1 at the model's rate. What reads sound as a whole begins anew with it. */
TORCHETTE_API torchette_error_t torchette_llm_prefill_image(torchette_llm_t* llm, const uint8_t* data,
                                                            int32_t width, int32_t height, int32_t channels);
TORCHETTE_API torchette_error_t torchette_llm_prefill_normalized_image(torchette_llm_t* llm,
                                                                       const float* data, int32_t width,
                                                                       int32_t height, int32_t channels);
TORCHETTE_API torchette_error_t torchette_llm_prefill_audio(torchette_llm_t* llm, const float* features,
                                                            int32_t batch_size, int32_t num_bins,
                                                            int32_t num_frames);
TORCHETTE_API torchette_error_t torchette_llm_prefill_samples(torchette_llm_t* llm, const float* samples,
                                                              size_t count);
/* The conversation as a file, and back: of the same model alone, see TextLLMRunner::state(). */
TORCHETTE_API torchette_error_t torchette_llm_save(torchette_llm_t* llm, const char* path);
TORCHETTE_API torchette_error_t torchette_llm_load(torchette_llm_t* llm, const char* path);
/* A LoRA adapter's .ptd file; null: none. The conversation begins anew. */
TORCHETTE_API torchette_error_t torchette_llm_set_adapter(torchette_llm_t* llm, const char* path);
/* A small model with the same tokens that proposes `num_tokens` at a time; null: none. It may be freed, and
 * is not for other use meanwhile. */
TORCHETTE_API torchette_error_t torchette_llm_set_draft(torchette_llm_t* llm, torchette_llm_t* draft,
                                                        int32_t num_tokens);
/* Ends torchette_llm_generate() behind its token; for other threads. */
TORCHETTE_API void torchette_llm_stop(torchette_llm_t* llm);
/* Begins anew, or forgets what is behind `position` tokens. */
TORCHETTE_API void torchette_llm_reset(torchette_llm_t* llm);
TORCHETTE_API torchette_error_t torchette_llm_rewind(torchette_llm_t* llm, size_t position);
/* How many tokens the conversation has. */
TORCHETTE_API size_t torchette_llm_position(const torchette_llm_t* llm);
/* The tokens of a text, as many as `capacity` at `tokens`, which may be null; `count` is how many there are.
 */
TORCHETTE_API torchette_error_t torchette_llm_tokenize(torchette_llm_t* llm, const char* text,
                                                       int add_special_tokens, uint64_t* tokens,
                                                       size_t capacity, size_t* count);
/* The text of tokens, as much as `capacity` at `text`, with a zero behind it; `size` is its size. */
TORCHETTE_API torchette_error_t torchette_llm_detokenize(torchette_llm_t* llm, const uint64_t* tokens,
                                                         size_t count, char* text, size_t capacity,
                                                         size_t* size);

#ifdef __cplusplus
}
#endif
#endif
