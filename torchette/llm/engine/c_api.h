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

/* How a text goes on: the members of GenerationConfig (torchette/llm/engine/irunner.h). To be filled by
 * torchette_llm_config_init() first. */
typedef struct {
  size_t size; /* of this structure, so that it can grow */
  int32_t echo;
  int32_t ignore_eos;
  int32_t add_special_tokens;
  int32_t max_new_tokens;
  int32_t num_bos;
  int32_t num_eos;
  int32_t top_k;
  float temperature;
  float top_p;
  float min_p;
  float repetition_penalty;
  uint64_t seed;
  const char* const* stop; /* texts that end the answer */
  size_t num_stop;
  const char*
      json; /* more members of GenerationConfig, as an object: {"logit_bias": {"17": 2}}; may be null */
  const char* grammar; /* GBNF that the answer keeps to; may be null */
  float presence_penalty;
  float frequency_penalty;
  int32_t slide;
  int32_t keep;
  int32_t logprobs;   /* pieces have them, of so many of the likeliest tokens, too; -1: none */
  const char* schema; /* a JSON schema that the answer fits, instead of a grammar; may be null */
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

/* Milliseconds, and what ended the answer: stop, length, cancelled or context; a constant. */
typedef struct {
  int64_t prompt_tokens;
  int64_t generated_tokens;
  int64_t prompt_ms;
  int64_t first_token_ms; /* since the beginning */
  int64_t total_ms;
  const char* finish_reason;
} torchette_llm_stats_t;

/* A piece of the answer, whole characters of UTF-8; `piece[size]` is 0. Another result than 0 stops it. */
typedef int (*torchette_llm_token_fn_t)(const char* piece, size_t size, void* user);

TORCHETTE_API void torchette_llm_config_init(torchette_llm_config_t* config);
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
/* The same in steps: an answer begins, and next() gives what each token brought, until a piece is the last.
 * `messages` are a list of {"role", "content"} in JSON, the whole conversation; of it is run what is new. */
TORCHETTE_API torchette_error_t torchette_llm_begin(torchette_llm_t* llm, const char* prompt,
                                                    const torchette_llm_config_t* config);
TORCHETTE_API torchette_error_t torchette_llm_begin_chat(torchette_llm_t* llm, const char* messages,
                                                         const torchette_llm_config_t* config);
TORCHETTE_API torchette_error_t torchette_llm_next(torchette_llm_t* llm, torchette_llm_piece_t* piece);
/* Of the answer so far. */
TORCHETTE_API void torchette_llm_stats(const torchette_llm_t* llm, torchette_llm_stats_t* stats);
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
/* How many tokens of the answer the draft has proposed, and how many of them stand. */
TORCHETTE_API void torchette_llm_draft_stats(const torchette_llm_t* llm, int64_t* drafted, int64_t* accepted);
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
