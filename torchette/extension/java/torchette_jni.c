/* SPDX-License-Identifier: BSD-3-Clause
 * The native methods of org.torchette.Module. Each method converts its arguments, calls the C interface and
 * throws an exception if the call fails. The file has no state.
 */
#include <jni.h>
#include <stdlib.h>
#include <string.h>

#include "jni_strings.h"
#include "torchette/extension/c_api.h"

enum { HEAD = 6 }; /* number of entries of a description before its sizes, as in Module.java */
enum { INPUTS, OUTPUTS, RESULTS };

static torchette_module_t* module_of(jlong handle) { return (torchette_module_t*)(intptr_t)handle; }

/* Returns whether a call succeeded. Throws a TorchetteException if it failed. */
static int check(JNIEnv* env, torchette_error_t error) {
  jclass type;
  jmethodID make;
  jstring name, message;
  if (error == TORCHETTE_OK) return 1;
  type = (*env)->FindClass(env, "org/torchette/TorchetteException");
  if (type == NULL) return 0;
  make = (*env)->GetMethodID(env, type, "<init>", "(ILjava/lang/String;Ljava/lang/String;)V");
  name = string_of(env, torchette_error_name(error));
  message = string_of(env, torchette_last_error());
  if (make == NULL || name == NULL || message == NULL) return 0;
  (*env)->Throw(env, (*env)->NewObject(env, type, make, (jint)error, name, message));
  return 0;
}

/* Returns a string in UTF-8, which the caller frees with free(). Returns null with an exception, also for a
 * null string. */
static char* text(JNIEnv* env, jstring string) {
  if (string == NULL) {
    (*env)->ThrowNew(env, (*env)->FindClass(env, "java/lang/NullPointerException"), "a name or path is null");
    return NULL;
  }
  return utf8_of(env, string);
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* machine, void* reserved) {
  (void)machine, (void)reserved;
  torchette_set_log(NULL); /* errors are thrown instead of logged */
  return JNI_VERSION_1_6;
}

#define NATIVE(type, name) JNIEXPORT type JNICALL Java_org_torchette_Module_##name

NATIVE(jlong, open__Ljava_lang_String_2I)(JNIEnv* env, jclass type, jstring path, jint mmap) {
  torchette_module_t* module = NULL;
  char* path_utf8 = text(env, path);
  (void)type;
  if (path_utf8 == NULL) return 0;
  check(env, torchette_module_open(path_utf8, mmap, &module));
  free(path_utf8);
  return (jlong)(intptr_t)module;
}

NATIVE(void, free)(JNIEnv* env, jclass type, jlong module) {
  (void)env, (void)type;
  torchette_module_free(module_of(module));
}

NATIVE(void, addData)(JNIEnv* env, jclass type, jlong module, jstring path, jint mmap) {
  char* path_utf8 = text(env, path);
  (void)type;
  if (path_utf8 == NULL) return;
  check(env, torchette_module_add_data_file(module_of(module), path_utf8, mmap));
  free(path_utf8);
}

NATIVE(void, setThreads)(JNIEnv* env, jclass type, jlong module, jint count) {
  (void)type;
  check(env, torchette_module_set_num_threads(module_of(module), (size_t)count));
}

NATIVE(jobjectArray, methods)(JNIEnv* env, jclass type, jlong module) {
  const size_t count = torchette_module_num_methods(module_of(module));
  jclass strings = (*env)->FindClass(env, "java/lang/String");
  jobjectArray names = strings == NULL ? NULL : (*env)->NewObjectArray(env, (jsize)count, strings, NULL);
  size_t i;
  (void)type;
  for (i = 0; names != NULL && i < count; ++i) {
    jstring name = string_of(env, torchette_module_method_name(module_of(module), i));
    if (name == NULL) return NULL;
    (*env)->SetObjectArrayElement(env, names, (jsize)i, name);
  }
  return names;
}

NATIVE(jint, count)(JNIEnv* env, jclass type, jlong module, jstring method, jint which) {
  size_t count = 0;
  char* name = text(env, method);
  (void)type;
  if (name == NULL) return 0;
  check(env, which == INPUTS ? torchette_method_num_inputs(module_of(module), name, &count)
                             : torchette_method_num_outputs(module_of(module), name, &count));
  free(name);
  return (jint)count;
}

NATIVE(jlongArray, describe)(JNIEnv* env, jclass type, jlong module, jstring method, jint which, jint index) {
  torchette_value_t value;
  torchette_error_t error;
  jlong description[HEAD + TORCHETTE_MAX_DIM];
  jlongArray result = NULL;
  char* name = text(env, method);
  (void)type;
  if (name == NULL) return NULL;
  error = which == INPUTS    ? torchette_method_input_info(module_of(module), name, (size_t)index, &value)
          : which == OUTPUTS ? torchette_method_output_info(module_of(module), name, (size_t)index, &value)
                             : torchette_method_output(module_of(module), name, (size_t)index, &value);
  if (check(env, error)) {
    const int32_t dim = value.kind == TORCHETTE_TENSOR ? value.tensor.dim : 0;
    int32_t d;
    description[0] = value.kind;
    description[1] = value.integer;
    memcpy(&description[2], &value.number, sizeof(value.number));
    description[3] = (jlong)value.tensor.nbytes;
    description[4] = value.tensor.dtype;
    description[5] = dim;
    for (d = 0; d < dim; ++d) description[HEAD + d] = value.tensor.sizes[d];
    result = (*env)->NewLongArray(env, HEAD + dim);
    if (result != NULL) (*env)->SetLongArrayRegion(env, result, 0, HEAD + dim, description);
  }
  free(name);
  return result;
}

NATIVE(void, load)(JNIEnv* env, jclass type, jlong module, jstring method) {
  char* name = text(env, method);
  (void)type;
  if (name == NULL) return;
  check(env, torchette_method_load(module_of(module), name));
  free(name);
}

NATIVE(void, reset)(JNIEnv* env, jclass type, jlong module, jstring method) {
  char* name = text(env, method);
  (void)type;
  if (name == NULL) return;
  check(env, torchette_method_reset(module_of(module), name));
  free(name);
}

NATIVE(void, run)
(JNIEnv* env, jclass type, jlong module, jstring method, jobjectArray values, jobjectArray data) {
  enum { NUM_STACK_INPUTS = 16 };
  torchette_value_t stack_inputs[NUM_STACK_INPUTS], *inputs = stack_inputs;
  const jsize count = (*env)->GetArrayLength(env, values);
  char* name = text(env, method);
  jsize i;
  (void)type;
  if (name == NULL) return;
  if (count > NUM_STACK_INPUTS) {
    inputs = calloc((size_t)count, sizeof(*inputs));
    if (inputs == NULL) {
      (*env)->ThrowNew(env, (*env)->FindClass(env, "java/lang/OutOfMemoryError"),
                       "cannot allocate memory for the inputs");
      free(name);
      return;
    }
  }
  for (i = 0; i < count; ++i) {
    jlongArray description = (jlongArray)(*env)->GetObjectArrayElement(env, values, i);
    jobject buffer = (*env)->GetObjectArrayElement(env, data, i);
    jlong from[HEAD + TORCHETTE_MAX_DIM];
    const jsize size = (*env)->GetArrayLength(env, description);
    const jsize max_size = HEAD + TORCHETTE_MAX_DIM;
    jsize d;
    (*env)->GetLongArrayRegion(env, description, 0, size < max_size ? size : max_size, from);
    memset(&inputs[i], 0, sizeof(inputs[i]));
    inputs[i].kind = (int32_t)from[0];
    inputs[i].integer = from[1];
    memcpy(&inputs[i].number, &from[2], sizeof(inputs[i].number));
    if (buffer != NULL) {
      torchette_tensor_t* tensor = &inputs[i].tensor;
      tensor->data = (*env)->GetDirectBufferAddress(env, buffer);
      tensor->nbytes = (size_t)from[3];
      tensor->dtype = (int32_t)from[4];
      tensor->dim = (int32_t)from[5]; /* execute() reports too many dimensions */
      for (d = HEAD; d < size && d < max_size; ++d) tensor->sizes[d - HEAD] = from[d];
    }
    (*env)->DeleteLocalRef(env, description);
    (*env)->DeleteLocalRef(env, buffer);
  }
  check(env, torchette_method_execute(module_of(module), name, inputs, (size_t)count));
  if (inputs != stack_inputs) free(inputs);
  free(name);
}

NATIVE(void, copy)(JNIEnv* env, jclass type, jlong module, jstring method, jint index, jobject to) {
  torchette_value_t value;
  char* name = text(env, method);
  (void)type;
  if (name == NULL) return;
  if (check(env, torchette_method_output(module_of(module), name, (size_t)index, &value)))
    check(env, torchette_tensor_copy(&value.tensor, (*env)->GetDirectBufferAddress(env, to),
                                     (size_t)(*env)->GetDirectBufferCapacity(env, to)));
  free(name);
}
