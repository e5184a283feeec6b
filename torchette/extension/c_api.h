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

#if defined(__GNUC__) || defined(__clang__)
#define TORCHETTE_API __attribute__((visibility("default")))
#else /* a static library exports nothing */
#define TORCHETTE_API
#endif

/* 0 is success; other values are those of torchette::Error, which the log explains and torchette_error_name()
 * names. Handles and arrays must not be null where nothing else is said: a null one is
 * TORCHETTE_INVALID_ARGUMENT. */
typedef uint32_t torchette_error_t;
#define TORCHETTE_OK 0u
#define TORCHETTE_INVALID_STATE 0x2u
#define TORCHETTE_INVALID_ARGUMENT 0x12u

/* The version of this interface; grows when functions are added. */
#define TORCHETTE_C_API_VERSION 3u
TORCHETTE_API uint32_t torchette_c_api_version(void);
/* Such as "InvalidArgument"; a constant. */
TORCHETTE_API const char* torchette_error_name(torchette_error_t error);

/* A .pte file that is open. Not for use by two threads at once, but for torchette_method_cancel(); several
 * modules may be. */
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

/* Bytes from elsewhere. The functions are called with `context`, `read` by the threads that use the module.
 * Since version 3, like all that takes one. */
typedef struct {
  void* context;
  size_t size; /* bytes in all */
  /* Writes the `size` bytes from `offset` on to `to`; they are inside. Anything but TORCHETTE_OK fails the
   * call that asked. */
  torchette_error_t (*read)(void* context, size_t offset, size_t size, void* to);
  void (*free)(void* context); /* once, when nothing is read any more, after a failure too; may be null */
} torchette_loader_t;
TORCHETTE_API torchette_error_t torchette_module_open_loader(const torchette_loader_t* loader,
                                                             torchette_module_t** module);
/* Gives weights that lie outside of the program, in a .ptd file, to the methods: TORCHETTE_INVALID_STATE once
 * one is loaded. Of equal names the first file's count. Since version 3. */
TORCHETTE_API torchette_error_t torchette_module_add_data_file(torchette_module_t* module, const char* path,
                                                               int use_mmap);
TORCHETTE_API torchette_error_t torchette_module_add_data_loader(torchette_module_t* module,
                                                                 const torchette_loader_t* loader);
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
 * in backends: those of all modules, and those of one module, which goes first. As many as there are physical
 * cores where neither is called. 0 is TORCHETTE_INVALID_ARGUMENT. Since version 2. */
TORCHETTE_API torchette_error_t torchette_set_num_threads(size_t count);
TORCHETTE_API torchette_error_t torchette_module_set_num_threads(torchette_module_t* module, size_t count);

/* Finds memory for a method and loads it; executing does so by itself. */
TORCHETTE_API torchette_error_t torchette_method_load(torchette_module_t* module, const char* method);
/* Gives the memory back; the method's outputs go with it. */
TORCHETTE_API torchette_error_t torchette_method_unload(torchette_module_t* module, const char* method);
/* Gives mutable state, such as a cache, the values that it had when the method was loaded. Since version 3.
 */
TORCHETTE_API torchette_error_t torchette_method_reset(torchette_module_t* module, const char* method);
/* Ends the execution that runs, or else the next one, with OutOfResources. May be called by another thread
 * while the method executes, not while the module loads or unloads. Since version 3. */
TORCHETTE_API torchette_error_t torchette_method_cancel(torchette_module_t* module, const char* method);
/* Runs a method on `num_inputs` values, all that it takes; numbers of kind TORCHETTE_NONE were fixed by
 * the export. */
TORCHETTE_API torchette_error_t torchette_method_execute(torchette_module_t* module, const char* method,
                                                         const torchette_value_t* inputs, size_t num_inputs);
/* Output `index` of the last execution. */
TORCHETTE_API torchette_error_t torchette_method_output(torchette_module_t* module, const char* method,
                                                        size_t index, torchette_value_t* output);

/* Copies the elements to `to`, which has room for `size` = tensor->nbytes bytes, in row-major order whatever
 * the tensor's is. Since version 3. */
TORCHETTE_API torchette_error_t torchette_tensor_copy(const torchette_tensor_t* tensor, void* to,
                                                      size_t size);

/* Notes when each instruction of methods that are loaded from now on begins and ends, and, where `values` is
 * not null, copies what it writes there. `values` has `size` bytes that stay until the module is freed.
 * TORCHETTE_INVALID_STATE once a method is loaded. Since version 3. */
TORCHETTE_API torchette_error_t torchette_module_trace(torchette_module_t* module, void* values, size_t size);
/* What was noted since the last call, as a file for Inspectors (.etdp): the module's, until the next call or
 * until it is freed; null where nothing ran. Since version 3. */
TORCHETTE_API torchette_error_t torchette_module_etdump(torchette_module_t* module, const void** data,
                                                        size_t* size);

/* The backends of this library. Null where there is no such index. Since version 3. */
TORCHETTE_API size_t torchette_num_backends(void);
TORCHETTE_API const char* torchette_backend_name(size_t index);
/* A setting of a backend: TORCHETTE_BOOLEAN or TORCHETTE_INT in `integer`, or TORCHETTE_STRING, a text of up
 * to 255 bytes and its zero. */
typedef struct {
  int32_t kind;
  int32_t integer;
  char text[256];
} torchette_option_t;
/* Errors: NotFound where there is no such backend or it has no such option. Since version 3. */
TORCHETTE_API torchette_error_t torchette_backend_set_option(const char* backend, const char* key,
                                                             const torchette_option_t* option);
TORCHETTE_API torchette_error_t torchette_backend_get_option(const char* backend, const char* key,
                                                             torchette_option_t* option);

/* Where log lines go instead of the standard error stream; null: nowhere. To be set before anything else is
 * called. `line` ends at a zero. */
typedef void (*torchette_log_fn_t)(char level, const char* file, size_t line_number, const char* line);
TORCHETTE_API void torchette_set_log(torchette_log_fn_t log);
/* The lines of errors of the last call by this thread, if it failed, one below the other, and else an empty
 * text; valid until this thread calls again. Kept since torchette_set_log() was called first, with null as
 * well. Since version 3. */
TORCHETTE_API const char* torchette_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
