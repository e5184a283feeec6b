/* SPDX-License-Identifier: BSD-3-Clause
 * Language models for C, and for every language that can call C. The rules of torchette/extension/c_api.h
 * apply here too. The functions are in the library torchette_llm. Compiles as C99 and as C++.
 *
 * Texts that a program passes are UTF-8 and end at a zero byte. Bytes that are not UTF-8, and half a
 * surrogate pair in JSON, are an error. JSON (messages, options, config.json) contains the character U+0000
 * as \u0000; a prompt cannot contain it. The layers of other languages refuse a text with U+0000 that the
 * interface would cut. Texts that the library returns have a size and may contain zero bytes.
 */
#ifndef TORCHETTE_EXTENSION_LLM_C_API_H
#define TORCHETTE_EXTENSION_LLM_C_API_H

#include "torchette/extension/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A conversation with a language model. Not thread-safe, except torchette_llm_stop(). */
typedef struct torchette_llm torchette_llm_t;

/* A value that is added to the logit of a token. */
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

/* The output of one step. The pointers are valid until the next call. */
typedef struct {
  const char* text; /* complete characters of UTF-8, and a zero after them */
  size_t size;
  int32_t is_last; /* the answer has ended */
  int64_t token;   /* -1 in a last piece that has only text that was held back */
  float logprob;
  const uint64_t* top_tokens; /* the most probable tokens */
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
  int64_t first_token_ms; /* time from the beginning of the call; 0 if no token was chosen */
  int64_t total_ms;
  const char* finish_reason; /* a constant: stop, length or cancelled; "" before the end */
  int64_t drafted_tokens;    /* tokens that the draft model proposed */
  int64_t accepted_tokens;   /* proposed tokens that are in the answer */
} torchette_llm_stats_t;

/* Receives a piece of the answer, complete characters of UTF-8; `piece[size]` is 0. A result other than 0
 * stops the answer. */
typedef int (*torchette_llm_token_fn_t)(const char* piece, size_t size, void* user);

/* Fills a configuration with the defaults. `size` is sizeof(torchette_llm_config_t) in the caller; the
 * caller's header may be older than the library. */
TORCHETTE_API void torchette_llm_config_init(torchette_llm_config_t* config, size_t size);
/* Opens and loads a model. `tokenizer_path` may be null if the file has a tokenizer. */
TORCHETTE_API torchette_error_t torchette_llm_open(const char* model_path, const char* tokenizer_path,
                                                   torchette_llm_t** llm);
/* `llm` may be null. */
TORCHETTE_API void torchette_llm_free(torchette_llm_t* llm);
/* Generates an answer to `prompt`, which continues after the last answer. `config`, `token` and `stats` may
 * be null. */
TORCHETTE_API torchette_error_t torchette_llm_generate(torchette_llm_t* llm, const char* prompt,
                                                       const torchette_llm_config_t* config,
                                                       torchette_llm_token_fn_t token, void* user,
                                                       torchette_llm_stats_t* stats);
/* The same for `messages`, the whole conversation as a JSON list of {"role", "content"}: renders them with
 * the chat template of the file and runs only what is new. `options` is a JSON object, or null: "tools" and
 * "tool_choice" in the form of OpenAI, and "template" with other variables of the template, such as
 * {"enable_thinking": false}. */
TORCHETTE_API torchette_error_t torchette_llm_chat(torchette_llm_t* llm, const char* messages,
                                                   const char* options, const torchette_llm_config_t* config,
                                                   torchette_llm_token_fn_t token, void* user,
                                                   torchette_llm_stats_t* stats);
/* The same in steps: begin() or begin_chat() starts an answer, and each next() returns the piece of one
 * token, until the last piece. Steps have no `echo` and no `warming`: a configuration with one of them is
 * TORCHETTE_INVALID_ARGUMENT. */
TORCHETTE_API torchette_error_t torchette_llm_begin(torchette_llm_t* llm, const char* prompt,
                                                    const torchette_llm_config_t* config);
TORCHETTE_API torchette_error_t torchette_llm_begin_chat(torchette_llm_t* llm, const char* messages,
                                                         const char* options,
                                                         const torchette_llm_config_t* config);
TORCHETTE_API torchette_error_t torchette_llm_next(torchette_llm_t* llm, torchette_llm_piece_t* piece);
/* The costs of the answer so far. */
TORCHETTE_API torchette_error_t torchette_llm_stats(const torchette_llm_t* llm, torchette_llm_stats_t* stats);
/* Creates a copy of the conversation that continues independently on the same weights. */
TORCHETTE_API torchette_error_t torchette_llm_fork(torchette_llm_t* llm, torchette_llm_t** other);
TORCHETTE_API torchette_error_t torchette_llm_prefill(torchette_llm_t* llm, const char* prompt);
/* Appends media to the context: an image of bytes or floats, [channels, height, width]; features of sound,
 * [batch, bins, frames]; or samples of sound, from -1 to 1 at the rate of the model. A model that encodes a
 * whole sound starts a new conversation with it. */
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
/* Saves the conversation to a file, and restores it. A state belongs to one model: TextLLMRunner::state(). */
TORCHETTE_API torchette_error_t torchette_llm_save(torchette_llm_t* llm, const char* path);
TORCHETTE_API torchette_error_t torchette_llm_load(torchette_llm_t* llm, const char* path);
/* Uses a LoRA adapter, a .ptd file; null: none. Starts a new conversation. */
TORCHETTE_API torchette_error_t torchette_llm_set_adapter(torchette_llm_t* llm, const char* path);
/* Uses a small model with the same tokens, which proposes `num_tokens` tokens per step; null: none. The draft
 * may be freed, and must not be used otherwise until then. */
TORCHETTE_API torchette_error_t torchette_llm_set_draft(torchette_llm_t* llm, torchette_llm_t* draft,
                                                        int32_t num_tokens);
/* Ends torchette_llm_generate() after the current token; for other threads. */
TORCHETTE_API void torchette_llm_stop(torchette_llm_t* llm);
/* Starts a new conversation; removes all tokens from `position` on. */
TORCHETTE_API void torchette_llm_reset(torchette_llm_t* llm);
TORCHETTE_API torchette_error_t torchette_llm_rewind(torchette_llm_t* llm, size_t position);
/* Returns the count of tokens of the conversation. */
TORCHETTE_API size_t torchette_llm_position(const torchette_llm_t* llm);
/* Encodes a text. Writes at most `capacity` tokens to `tokens`, which may be null, and their count to
 * `count`. */
TORCHETTE_API torchette_error_t torchette_llm_tokenize(torchette_llm_t* llm, const char* text,
                                                       int add_special_tokens, uint64_t* tokens,
                                                       size_t capacity, size_t* count);
/* Decodes tokens. Writes at most `capacity` bytes to `text`, which may be null, a zero included, and the size
 * of the text to `size`. */
TORCHETTE_API torchette_error_t torchette_llm_detokenize(torchette_llm_t* llm, const uint64_t* tokens,
                                                         size_t count, char* text, size_t capacity,
                                                         size_t* size);

#ifdef __cplusplus
}
#endif
#endif
