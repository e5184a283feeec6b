/* SPDX-License-Identifier: BSD-3-Clause
 * Converts strings between Java, which uses UTF-16, and the C interfaces, which use UTF-8. JNI's functions
 * with UTF in their names use modified UTF-8, which encodes U+0000 and characters above U+FFFF differently.
 */
#ifndef TORCHETTE_EXTENSION_JAVA_JNI_STRINGS_H
#define TORCHETTE_EXTENSION_JAVA_JNI_STRINGS_H

#include <jni.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPLACEMENT = 0xFFFD }; /* replaces invalid text */

static void throw_no_memory(JNIEnv* env) {
  const jclass type = (*env)->FindClass(env, "java/lang/OutOfMemoryError");
  if (type != NULL) (*env)->ThrowNew(env, type, "cannot allocate memory for a string");
}

/* Writes a character in UTF-8. Returns the position after it. */
static char* put_character(char* to, uint32_t c) {
  if (c < 0x80) {
    *to++ = (char)c;
  } else if (c < 0x800) {
    *to++ = (char)(0xC0 | c >> 6);
    *to++ = (char)(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    *to++ = (char)(0xE0 | c >> 12);
    *to++ = (char)(0x80 | (c >> 6 & 0x3F));
    *to++ = (char)(0x80 | (c & 0x3F));
  } else {
    *to++ = (char)(0xF0 | c >> 18);
    *to++ = (char)(0x80 | (c >> 12 & 0x3F));
    *to++ = (char)(0x80 | (c >> 6 & 0x3F));
    *to++ = (char)(0x80 | (c & 0x3F));
  }
  return to;
}

static void throw_zero(JNIEnv* env, jsize index) {
  const jclass type = (*env)->FindClass(env, "java/lang/IllegalArgumentException");
  char message[80];
  snprintf(message, sizeof(message), "a string contains U+0000 at index %ld, which C cannot represent",
           (long)index);
  if (type != NULL) (*env)->ThrowNew(env, type, message);
}

/* Returns a string as zero-terminated UTF-8, which the caller frees with free(). Returns null for a null
 * string, or with an exception: IllegalArgumentException if the string contains U+0000, which would end it
 * too early. */
static char* utf8_of(JNIEnv* env, jstring string) {
  const jsize length = string == NULL ? 0 : (*env)->GetStringLength(env, string);
  const jchar* units = string == NULL ? NULL : (*env)->GetStringChars(env, string, NULL);
  char* bytes = units == NULL ? NULL : (char*)malloc((size_t)length * 3 + 1);
  char* end = bytes;
  jsize i, zero = -1;
  if (units == NULL) return NULL;
  for (i = 0; bytes != NULL && i < length; ++i) {
    uint32_t c = units[i];
    if (c == 0 && zero < 0) zero = i;
    if (c >= 0xD800 && c <= 0xDFFF) {
      const int is_pair = c <= 0xDBFF && i + 1 < length && units[i + 1] >= 0xDC00 && units[i + 1] <= 0xDFFF;
      c = is_pair ? 0x10000 + ((c - 0xD800) << 10) + (units[++i] - 0xDC00U) : REPLACEMENT;
    }
    end = put_character(end, c);
  }
  (*env)->ReleaseStringChars(env, string, units);
  if (bytes != NULL && zero < 0) {
    *end = 0;
    return bytes;
  }
  if (bytes == NULL)
    throw_no_memory(env);
  else
    throw_zero(env, zero);
  free(bytes);
  return NULL;
}

/* Reads a UTF-8 character at `*at` and advances `*at`. Returns REPLACEMENT for invalid bytes. */
static uint32_t next_character(const unsigned char* bytes, size_t size, size_t* at) {
  const unsigned first = bytes[(*at)++];
  const int more = first < 0x80   ? 0
                   : first < 0xC2 ? -1
                   : first < 0xE0 ? 1
                   : first < 0xF0 ? 2
                   : first < 0xF5 ? 3
                                  : -1;
  uint32_t c = more <= 0 ? first : first & (0x3FU >> more);
  int i;
  if (more < 0) return REPLACEMENT;
  for (i = 0; i < more; ++i) {
    if (*at == size || (bytes[*at] & 0xC0) != 0x80) return REPLACEMENT;
    c = c << 6 | (bytes[(*at)++] & 0x3FU);
  }
  if ((more == 2 && c < 0x800) || (more == 3 && (c < 0x10000 || c > 0x10FFFF)) ||
      (c >= 0xD800 && c <= 0xDFFF))
    return REPLACEMENT;
  return c;
}

/* Returns a string of UTF-8 bytes. Returns null with an exception. */
static jstring string_of_bytes(JNIEnv* env, const char* text, size_t size) {
  jchar* units = (jchar*)malloc((size + 1) * sizeof(jchar));
  size_t at = 0;
  jsize length = 0;
  jstring string;
  if (units == NULL) {
    throw_no_memory(env);
    return NULL;
  }
  while (at < size) {
    const uint32_t c = next_character((const unsigned char*)text, size, &at);
    if (c < 0x10000) {
      units[length++] = (jchar)c;
    } else {
      units[length++] = (jchar)(0xD800 + ((c - 0x10000) >> 10));
      units[length++] = (jchar)(0xDC00 + ((c - 0x10000) & 0x3FF));
    }
  }
  string = (*env)->NewString(env, units, length);
  free(units);
  return string;
}

static jstring string_of(JNIEnv* env, const char* text) { return string_of_bytes(env, text, strlen(text)); }

#endif
