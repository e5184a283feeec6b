/* SPDX-License-Identifier: BSD-3-Clause
 * The native methods of org.torchette.extension.llm.LlmModule, which call the C interface of language models.
 */
#include <jni.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "jni_strings.h"
#include "torchette/llm/engine/c_api.h"

#define NATIVE(type, name) JNIEXPORT type JNICALL Java_org_torchette_extension_llm_LlmModule_##name

static torchette_llm_t* llm_of(jlong handle) { return (torchette_llm_t*)(intptr_t)handle; }

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* machine, void* reserved) {
  (void)machine, (void)reserved;
  torchette_set_log(NULL); /* callbacks receive errors */
  return JNI_VERSION_1_6;
}

/* Sets `*text` to a string in UTF-8, for free(), or null for a null string. Returns 0 if there is an
 * exception.
 */
static int read_text(JNIEnv* env, jstring string, char** text) {
  *text = utf8_of(env, string);
  return *text != NULL || string == NULL;
}

NATIVE(jint, open)(JNIEnv* env, jclass type, jstring model, jstring tokenizer, jlongArray handle) {
  torchette_llm_t* llm = NULL;
  char *path = NULL, *other = NULL;
  torchette_error_t error = TORCHETTE_OK;
  (void)type;
  if (read_text(env, model, &path) && read_text(env, tokenizer, &other)) {
    jlong opened;
    error = torchette_llm_open(path, other, &llm);
    opened = (jlong)(intptr_t)llm;
    (*env)->SetLongArrayRegion(env, handle, 0, 1, &opened);
  }
  free(path);
  free(other);
  return (jint)error;
}

/* The callback of a generation. */
typedef struct {
  JNIEnv* env;
  jobject callback;
  jmethodID on_result, on_stats;
  int has_exception;
} listener_t;

static int find_listener(JNIEnv* env, jobject callback, listener_t* listener) {
  const jclass type = (*env)->GetObjectClass(env, callback);
  listener->env = env;
  listener->callback = callback;
  listener->has_exception = 0;
  listener->on_result = (*env)->GetMethodID(env, type, "onResult", "(Ljava/lang/String;)V");
  if (listener->on_result == NULL) return 0;
  listener->on_stats = (*env)->GetMethodID(env, type, "onStats", "(Ljava/lang/String;)V");
  return listener->on_stats != NULL;
}

/* Passes a text to a method of the callback. */
static void give(listener_t* listener, jmethodID method, const char* text, size_t size) {
  JNIEnv* env = listener->env;
  const jstring string = string_of_bytes(env, text, size);
  if (string != NULL) (*env)->CallVoidMethod(env, listener->callback, method, string);
  listener->has_exception = (*env)->ExceptionCheck(env);
  if (!listener->has_exception) (*env)->DeleteLocalRef(env, string);
}

static int on_piece(const char* piece, size_t size, void* user) {
  listener_t* listener = (listener_t*)user;
  if (!listener->has_exception) give(listener, listener->on_result, piece, size);
  return listener->has_exception;
}

static void give_stats(listener_t* listener, const torchette_llm_stats_t* stats) {
  char line[400];
  snprintf(line, sizeof(line),
           "{\"prompt_tokens\":%lld,\"generated_tokens\":%lld,\"prompt_ms\":%lld,\"first_token_ms\":%lld,"
           "\"total_ms\":%lld,\"drafted_tokens\":%lld,\"accepted_tokens\":%lld,\"finish_reason\":\"%s\"}",
           (long long)stats->prompt_tokens, (long long)stats->generated_tokens, (long long)stats->prompt_ms,
           (long long)stats->first_token_ms, (long long)stats->total_ms, (long long)stats->drafted_tokens,
           (long long)stats->accepted_tokens, stats->finish_reason);
  give(listener, listener->on_stats, line, strlen(line));
}

/* Generates text. `chat` is null if `prompt` is text, or the options of torchette_llm_chat() if it is
 * messages. `options` is a JSON object. */
NATIVE(jint, answer)
(JNIEnv* env, jclass type, jlong handle, jstring prompt, jstring chat, jstring options, jobject callback) {
  listener_t listener;
  torchette_llm_config_t config;
  torchette_llm_stats_t stats;
  torchette_error_t error = TORCHETTE_OK;
  char *text = NULL, *chat_options = NULL, *json = NULL;
  (void)type;
  memset(&stats, 0, sizeof(stats));
  stats.size = sizeof(stats);
  torchette_llm_config_init(&config, sizeof(config));
  config.echo = 1; /* the default of LlmGenerationConfig */
  if (find_listener(env, callback, &listener) && read_text(env, prompt, &text) &&
      read_text(env, chat, &chat_options) && read_text(env, options, &json)) {
    config.json = json;
    error = chat == NULL ? torchette_llm_generate(llm_of(handle), text, &config, on_piece, &listener, &stats)
                         : torchette_llm_chat(llm_of(handle), text, chat_options, &config, on_piece,
                                              &listener, &stats);
    /* a discarded generation has no statistics */
    if (error == TORCHETTE_OK && !listener.has_exception && stats.finish_reason != NULL)
      give_stats(&listener, &stats);
  }
  free(json);
  free(chat_options);
  free(text);
  return (jint)error;
}

NATIVE(jint, prefill)(JNIEnv* env, jclass type, jlong handle, jstring prompt) {
  char* text;
  torchette_error_t error = TORCHETTE_OK;
  (void)type;
  if (read_text(env, prompt, &text)) error = torchette_llm_prefill(llm_of(handle), text);
  free(text);
  return (jint)error;
}

NATIVE(jint, prefillImage)
(JNIEnv* env, jclass type, jlong handle, jbyteArray data, jint width, jint height, jint channels) {
  jbyte* bytes = (*env)->GetByteArrayElements(env, data, NULL);
  const torchette_error_t error =
      torchette_llm_prefill_image(llm_of(handle), (const uint8_t*)bytes, width, height, channels);
  (void)type;
  if (bytes != NULL) (*env)->ReleaseByteArrayElements(env, data, bytes, JNI_ABORT);
  return (jint)error;
}

NATIVE(jint, prefillNormalized)
(JNIEnv* env, jclass type, jlong handle, jfloatArray data, jint width, jint height, jint channels) {
  jfloat* values = (*env)->GetFloatArrayElements(env, data, NULL);
  const torchette_error_t error =
      torchette_llm_prefill_normalized_image(llm_of(handle), values, width, height, channels);
  (void)type;
  if (values != NULL) (*env)->ReleaseFloatArrayElements(env, data, values, JNI_ABORT);
  return (jint)error;
}

/* The data contains features, or samples if the sizes are 0. */
NATIVE(jint, prefillSound)
(JNIEnv* env, jclass type, jlong handle, jfloatArray data, jint batch_size, jint bins, jint frames) {
  jfloat* values = (*env)->GetFloatArrayElements(env, data, NULL);
  const torchette_error_t error =
      batch_size > 0
          ? torchette_llm_prefill_audio(llm_of(handle), values, batch_size, bins, frames)
          : torchette_llm_prefill_samples(llm_of(handle), values, (size_t)(*env)->GetArrayLength(env, data));
  (void)type;
  if (values != NULL) (*env)->ReleaseFloatArrayElements(env, data, values, JNI_ABORT);
  return (jint)error;
}

NATIVE(jint, state)(JNIEnv* env, jclass type, jlong handle, jstring path, jboolean saves) {
  char* text;
  torchette_error_t error = TORCHETTE_OK;
  (void)type;
  if (read_text(env, path, &text))
    error = saves ? torchette_llm_save(llm_of(handle), text) : torchette_llm_load(llm_of(handle), text);
  free(text);
  return (jint)error;
}

NATIVE(jint, adapt)(JNIEnv* env, jclass type, jlong handle, jstring path) {
  char* text;
  torchette_error_t error = TORCHETTE_OK;
  (void)type;
  if (read_text(env, path, &text)) error = torchette_llm_set_adapter(llm_of(handle), text);
  free(text);
  return (jint)error;
}

NATIVE(void, stop)(JNIEnv* env, jclass type, jlong handle) {
  (void)env, (void)type;
  torchette_llm_stop(llm_of(handle));
}

NATIVE(void, reset)(JNIEnv* env, jclass type, jlong handle) {
  (void)env, (void)type;
  torchette_llm_reset(llm_of(handle));
}

NATIVE(void, free)(JNIEnv* env, jclass type, jlong handle) {
  (void)env, (void)type;
  torchette_llm_free(llm_of(handle));
}

NATIVE(jstring, message)(JNIEnv* env, jclass type) {
  (void)type;
  return string_of(env, torchette_last_error());
}
