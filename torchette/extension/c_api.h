/* SPDX-License-Identifier: BSD-3-Clause
 * The runtime for C, and for every language that can call C: a module of methods behind an opaque handle.
 * Stable: functions and numbers stay what they are, new ones are added. Compiles as C99 and as C++.
 */
#ifndef TORCHETTE_EXTENSION_C_API_H
#define TORCHETTE_EXTENSION_C_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TORCHETTE_API __attribute__((visibility("default")))

/* 0 is success; other values are those of torchette::Error, which the log explains and torchette_error_name()
 * names. Handles and arrays must not be null where nothing else is said: a null one is
 * TORCHETTE_INVALID_ARGUMENT. */
typedef uint32_t torchette_error_t;
#define TORCHETTE_OK 0u
#define TORCHETTE_INVALID_ARGUMENT 0x12u

/* The version of this interface; grows when functions are added. */
#define TORCHETTE_C_API_VERSION 2u
TORCHETTE_API uint32_t torchette_c_api_version(void);
/* Such as "InvalidArgument"; a constant. */
TORCHETTE_API const char* torchette_error_name(torchette_error_t error);

/* A .pte file that is open. Not for use by two threads at once; several may be, once the first is open. */
typedef struct torchette_module torchette_module_t;

enum { TORCHETTE_MAX_DIM = 16 };

/* torch's numbers of dtypes. */
enum {
  TORCHETTE_UINT8 = 0,
  TORCHETTE_INT8 = 1,
  TORCHETTE_INT16 = 2,
  TORCHETTE_INT32 = 3,
  TORCHETTE_INT64 = 4,
  TORCHETTE_FLOAT16 = 5,
  TORCHETTE_FLOAT32 = 6,
  TORCHETTE_FLOAT64 = 7,
  TORCHETTE_BOOL = 11,
  TORCHETTE_BFLOAT16 = 15,
  TORCHETTE_UINT16 = 27,
  TORCHETTE_UINT32 = 28,
  TORCHETTE_UINT64 = 29
};

/* What a value is; numbers are torchette::Tag's. */
enum {
  TORCHETTE_NONE = 0,
  TORCHETTE_TENSOR = 1,
  TORCHETTE_STRING = 2,
  TORCHETTE_DOUBLE = 3,
  TORCHETTE_INT = 4,
  TORCHETTE_BOOLEAN = 5
};

/* A tensor without gaps. `order` lists the dimensions from outermost to innermost in memory. As an input,
 * `data` and `nbytes` are the caller's; as an output they are the module's, until the method runs again or is
 * unloaded. */
typedef struct {
  void* data;
  size_t nbytes;
  int32_t dtype;
  int32_t dim;
  int64_t sizes[TORCHETTE_MAX_DIM];
  uint8_t order[TORCHETTE_MAX_DIM];
} torchette_tensor_t;

/* A value: by `kind`, the member that holds it. Others than those named above have no member. */
typedef struct {
  int32_t kind;
  int64_t integer; /* TORCHETTE_INT, and 0 or 1 of TORCHETTE_BOOLEAN */
  double number;   /* TORCHETTE_DOUBLE */
  torchette_tensor_t tensor;
} torchette_value_t;

/* Opens a file, by mapping it where `use_mmap` is not 0. The handle is to be given to
 * torchette_module_free(). */
TORCHETTE_API torchette_error_t torchette_module_open(const char* path, int use_mmap,
                                                      torchette_module_t** module);
/* The same of a program in memory, which must stay, from a multiple of 16 on. */
TORCHETTE_API torchette_error_t torchette_module_open_buffer(const void* data, size_t size,
                                                             torchette_module_t** module);
/* `module` may be null. */
TORCHETTE_API void torchette_module_free(torchette_module_t* module);

TORCHETTE_API size_t torchette_module_num_methods(const torchette_module_t* module);
/* Valid until the module is freed; null where there is no such method. */
TORCHETTE_API const char* torchette_module_method_name(const torchette_module_t* module, size_t index);

/* What a method takes and gives, without loading it. A tensor's sizes are its upper bounds, its data null. */
TORCHETTE_API torchette_error_t torchette_method_num_inputs(torchette_module_t* module, const char* method,
                                                            size_t* count);
TORCHETTE_API torchette_error_t torchette_method_num_outputs(torchette_module_t* module, const char* method,
                                                             size_t* count);
TORCHETTE_API torchette_error_t torchette_method_input_info(torchette_module_t* module, const char* method,
                                                            size_t index, torchette_value_t* info);
TORCHETTE_API torchette_error_t torchette_method_output_info(torchette_module_t* module, const char* method,
                                                             size_t index, torchette_value_t* info);

/* How many threads methods that are loaded from now on may use, for chains that may run at the same time and
 * in backends: those of all modules, and those of one module, which goes first. 1 where neither is called. 0
 * is TORCHETTE_INVALID_ARGUMENT. Since version 2. */
TORCHETTE_API torchette_error_t torchette_set_num_threads(size_t count);
TORCHETTE_API torchette_error_t torchette_module_set_num_threads(torchette_module_t* module, size_t count);

/* Finds memory for a method and loads it; executing does so by itself. */
TORCHETTE_API torchette_error_t torchette_method_load(torchette_module_t* module, const char* method);
/* Gives the memory back; the method's outputs go with it. */
TORCHETTE_API torchette_error_t torchette_method_unload(torchette_module_t* module, const char* method);
/* Runs a method on `num_inputs` values, all that it takes; those of kind TORCHETTE_NONE were fixed by the
 * export. */
TORCHETTE_API torchette_error_t torchette_method_execute(torchette_module_t* module, const char* method,
                                                         const torchette_value_t* inputs, size_t num_inputs);
/* Output `index` of the last execution. */
TORCHETTE_API torchette_error_t torchette_method_output(torchette_module_t* module, const char* method,
                                                        size_t index, torchette_value_t* output);

/* Where log lines go instead of the standard error stream; null: nowhere. To be set before anything else is
 * called. `line` ends at a zero. */
typedef void (*torchette_log_fn_t)(char level, const char* file, size_t line_number, const char* line);
TORCHETTE_API void torchette_set_log(torchette_log_fn_t log);

#ifdef __cplusplus
}
#endif
#endif
