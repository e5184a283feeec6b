/* SPDX-License-Identifier: BSD-3-Clause
 * The native methods of org.torchette.extension.llm.LlmModule, on the C interface of language models. Texts
 * are bytes of UTF-8 with a zero behind them: JNI's own form of strings is another one.
 */
#include <jni.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "torchette/llm/engine/c_api.h"

#define NATIVE(type, name) JNIEXPORT type JNICALL Java_org_torchette_extension_llm_LlmModule_##name

static torchette_llm_t* llm_of(jlong handle) { return (torchette_llm_t*)(intptr_t)handle; }

static const char* text_of(JNIEnv* env, jbyteArray bytes) {
  return bytes == NULL ? NULL : (const char*)(*env)->GetByteArrayElements(env, bytes, NULL);
}
static void leave(JNIEnv* env, jbyteArray bytes, const char* text) {
  if (text != NULL) (*env)->ReleaseByteArrayElements(env, bytes, (jbyte*)text, JNI_ABORT);
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* machine, void* reserved) {
  (void)machine, (void)reserved;
  torchette_set_log(NULL); /* errors go to callbacks */
  return JNI_VERSION_1_6;
}

NATIVE(jint, open)(JNIEnv* env, jclass type, jbyteArray model, jbyteArray tokenizer, jlongArray handle) {
  torchette_llm_t* llm = NULL;
  const char* path = text_of(env, model);
  const char* other = text_of(env, tokenizer);
  const torchette_error_t error = torchette_llm_open(path, other, &llm);
  const jlong opened = (jlong)(intptr_t)llm;
  (void)type;
  leave(env, model, path);
  leave(env, tokenizer, other);
  (*env)->SetLongArrayRegion(env, handle, 0, 1, &opened);
  return (jint)error;
}

/* Gives bytes to a method of the callback; 0 where an exception is on its way. */
static int give(JNIEnv* env, jclass module, jobject callback, jmethodID method, const char* bytes,
                size_t size) {
  const jmethodID make = (*env)->GetStaticMethodID(env, module, "text", "([B)Ljava/lang/String;");
  jbyteArray array = make == NULL ? NULL : (*env)->NewByteArray(env, (jsize)size);
  jstring string = NULL;
  if (array == NULL) return 0;
  (*env)->SetByteArrayRegion(env, array, 0, (jsize)size, (const jbyte*)bytes);
  string = (jstring)(*env)->CallStaticObjectMethod(env, module, make, array);
  if ((*env)->ExceptionCheck(env) || string == NULL) return 0;
  (*env)->CallVoidMethod(env, callback, method, string);
  if ((*env)->ExceptionCheck(env)) return 0;
  (*env)->DeleteLocalRef(env, array);
  (*env)->DeleteLocalRef(env, string);
  return 1;
}

NATIVE(jint, answer)
(JNIEnv* env, jclass type, jlong handle, jbyteArray prompt, jboolean is_chat, jbyteArray options,
 jboolean echo, jboolean warming, jobject callback) {
  jclass listener = (*env)->GetObjectClass(env, callback);
  const jmethodID on_result = (*env)->GetMethodID(env, listener, "onResult", "(Ljava/lang/String;)V");
  const jmethodID on_stats =
      on_result == NULL ? NULL : (*env)->GetMethodID(env, listener, "onStats", "(Ljava/lang/String;)V");
  torchette_llm_config_t config;
  torchette_llm_piece_t piece;
  torchette_llm_stats_t stats;
  torchette_error_t error;
  int goes_on = on_stats != NULL;
  const char* text = goes_on ? text_of(env, prompt) : NULL;
  if (!goes_on) return 0;
  torchette_llm_config_init(&config);
  config.json = text_of(env, options);
  error = is_chat ? torchette_llm_begin_chat(llm_of(handle), text, &config)
                  : torchette_llm_begin(llm_of(handle), text, &config);
  if (error == TORCHETTE_OK && echo && !warming)
    goes_on = give(env, type, callback, on_result, text, strlen(text));
  leave(env, options, config.json);
  leave(env, prompt, text);
  memset(&piece, 0, sizeof(piece));
  while (error == TORCHETTE_OK && goes_on && !piece.is_last) {
    error = torchette_llm_next(llm_of(handle), &piece);
    if (error == TORCHETTE_OK && piece.size > 0 && !warming)
      goes_on = give(env, type, callback, on_result, piece.text, piece.size);
  }
  if (error == TORCHETTE_OK && goes_on && !warming) {
    char line[300];
    torchette_llm_stats(llm_of(handle), &stats);
    snprintf(line, sizeof(line),
             "{\"prompt_tokens\":%lld,\"generated_tokens\":%lld,\"prompt_ms\":%lld,\"first_token_ms\":%lld,"
             "\"total_ms\":%lld,\"finish_reason\":\"%s\"}",
             (long long)stats.prompt_tokens, (long long)stats.generated_tokens, (long long)stats.prompt_ms,
             (long long)stats.first_token_ms, (long long)stats.total_ms, stats.finish_reason);
    give(env, type, callback, on_stats, line, strlen(line));
  }
  return (jint)error;
}

NATIVE(jint, prefill)(JNIEnv* env, jclass type, jlong handle, jbyteArray prompt) {
  const char* text = text_of(env, prompt);
  const torchette_error_t error = torchette_llm_prefill(llm_of(handle), text);
  (void)type;
  leave(env, prompt, text);
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

NATIVE(jint, state)(JNIEnv* env, jclass type, jlong handle, jbyteArray path, jboolean saves) {
  const char* text = text_of(env, path);
  const torchette_error_t error =
      saves ? torchette_llm_save(llm_of(handle), text) : torchette_llm_load(llm_of(handle), text);
  (void)type;
  leave(env, path, text);
  return (jint)error;
}

NATIVE(jint, adapt)(JNIEnv* env, jclass type, jlong handle, jbyteArray path) {
  const char* text = text_of(env, path);
  const torchette_error_t error = torchette_llm_set_adapter(llm_of(handle), text);
  (void)type;
  leave(env, path, text);
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
  return (*env)->NewStringUTF(env, torchette_last_error());
}
