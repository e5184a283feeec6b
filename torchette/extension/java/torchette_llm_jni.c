/* SPDX-License-Identifier: BSD-3-Clause
 * The native methods of org.torchette.extension.llm.LlmModule, on the C interface of language models.
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
  torchette_set_log(NULL); /* errors go to callbacks */
  return JNI_VERSION_1_6;
}

NATIVE(jint, open)(JNIEnv* env, jclass type, jstring model, jstring tokenizer, jlongArray handle) {
  torchette_llm_t* llm = NULL;
  char* path = utf8_of(env, model);
  char* other = utf8_of(env, tokenizer);
  const torchette_error_t error = torchette_llm_open(path, other, &llm);
  const jlong opened = (jlong)(intptr_t)llm;
  (void)type;
  free(path);
  free(other);
  (*env)->SetLongArrayRegion(env, handle, 0, 1, &opened);
  return (jint)error;
}

/* Passes a text to a method of the callback. Returns 0 if there is an exception. */
static int give(JNIEnv* env, jobject callback, jmethodID method, const char* text, size_t size) {
  const jstring string = string_of_bytes(env, text, size);
  if (string == NULL) return 0;
  (*env)->CallVoidMethod(env, callback, method, string);
  if ((*env)->ExceptionCheck(env)) return 0;
  (*env)->DeleteLocalRef(env, string);
  return 1;
}

/* `chat` is null for a prompt; for messages, the options of torchette_llm_begin_chat(). */
NATIVE(jint, answer)
(JNIEnv* env, jclass type, jlong handle, jstring prompt, jstring chat, jstring options, jboolean echo,
 jboolean warming, jobject callback) {
  jclass listener = (*env)->GetObjectClass(env, callback);
  const jmethodID on_result = (*env)->GetMethodID(env, listener, "onResult", "(Ljava/lang/String;)V");
  const jmethodID on_stats =
      on_result == NULL ? NULL : (*env)->GetMethodID(env, listener, "onStats", "(Ljava/lang/String;)V");
  torchette_llm_config_t config;
  torchette_llm_piece_t piece;
  torchette_llm_stats_t stats;
  torchette_error_t error;
  int continues = on_stats != NULL;
  char* text = continues ? utf8_of(env, prompt) : NULL;
  char* chat_options = text != NULL ? utf8_of(env, chat) : NULL;
  char* json = text != NULL ? utf8_of(env, options) : NULL;
  (void)type;
  torchette_llm_config_init(&config, sizeof(config));
  config.json = json;
  error = !continues     ? TORCHETTE_OK
          : chat == NULL ? torchette_llm_begin(llm_of(handle), text, &config)
                         : torchette_llm_begin_chat(llm_of(handle), text, chat_options, &config);
  if (error == TORCHETTE_OK && continues && echo && !warming)
    continues = give(env, callback, on_result, text, strlen(text));
  free(json);
  free(chat_options);
  free(text);
  memset(&piece, 0, sizeof(piece));
  while (error == TORCHETTE_OK && continues && !piece.is_last) {
    error = torchette_llm_next(llm_of(handle), &piece);
    if (error == TORCHETTE_OK && piece.size > 0 && !warming)
      continues = give(env, callback, on_result, piece.text, piece.size);
  }
  if (error == TORCHETTE_OK && continues && !warming) {
    char line[400];
    stats.size = sizeof(stats);
    torchette_llm_stats(llm_of(handle), &stats);
    snprintf(line, sizeof(line),
             "{\"prompt_tokens\":%lld,\"generated_tokens\":%lld,\"prompt_ms\":%lld,\"first_token_ms\":%lld,"
             "\"total_ms\":%lld,\"drafted_tokens\":%lld,\"accepted_tokens\":%lld,\"finish_reason\":\"%s\"}",
             (long long)stats.prompt_tokens, (long long)stats.generated_tokens, (long long)stats.prompt_ms,
             (long long)stats.first_token_ms, (long long)stats.total_ms, (long long)stats.drafted_tokens,
             (long long)stats.accepted_tokens, stats.finish_reason);
    give(env, callback, on_stats, line, strlen(line));
  }
  return (jint)error;
}

NATIVE(jint, prefill)(JNIEnv* env, jclass type, jlong handle, jstring prompt) {
  char* text = utf8_of(env, prompt);
  const torchette_error_t error = torchette_llm_prefill(llm_of(handle), text);
  (void)type;
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

/* Without sizes they are samples. */
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
  char* text = utf8_of(env, path);
  const torchette_error_t error =
      saves ? torchette_llm_save(llm_of(handle), text) : torchette_llm_load(llm_of(handle), text);
  (void)type;
  free(text);
  return (jint)error;
}

NATIVE(jint, adapt)(JNIEnv* env, jclass type, jlong handle, jstring path) {
  char* text = utf8_of(env, path);
  const torchette_error_t error = torchette_llm_set_adapter(llm_of(handle), text);
  (void)type;
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
