/* SPDX-License-Identifier: BSD-3-Clause
 * The runtime for C and for languages that can call C: a module with methods behind an opaque handle.
 * The interface is stable: new versions add functions and constants and do not change existing ones. The
 * header compiles as C99 and as C++.
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

/* 0 is success. Other values are those of torchette::Error: torchette_error_name() returns their names, and
 * the log has a line that explains the failure. Handles and arrays must not be null unless the comment of a
 * function allows it; a null one returns TORCHETTE_INVALID_ARGUMENT. */
typedef uint32_t torchette_error_t;
#define TORCHETTE_OK 0u
#define TORCHETTE_INVALID_STATE 0x2u
#define TORCHETTE_INVALID_ARGUMENT 0x12u

/* The version of this interface. It increases when functions are added. */
#define TORCHETTE_C_API_VERSION 3u
TORCHETTE_API uint32_t torchette_c_api_version(void);
/* Returns the name of an error, such as "InvalidArgument". The string is a constant. */
TORCHETTE_API const char* torchette_error_name(torchette_error_t error);

/* An open .pte file. Only one thread at a time may use a module, except for torchette_method_cancel().
 * Different modules may be used by different threads at the same time. */
typedef struct torchette_module torchette_module_t;

enum { TORCHETTE_MAX_DIM = 16 };

/* The codes of torch's dtypes (c10::ScalarType). */
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

/* The kind of a value, with the codes of torchette::Tag. */
enum {
  TORCHETTE_NONE = 0,
  TORCHETTE_TENSOR = 1,
  TORCHETTE_STRING = 2,
  TORCHETTE_DOUBLE = 3,
  TORCHETTE_INT = 4,
  TORCHETTE_BOOLEAN = 5
};

/* A dense tensor without gaps between its elements. `order` lists the dimensions from outermost to innermost
 * in memory. The caller owns `data` of an input. The module owns `data` of an output, which is valid until
 * the method runs again or is unloaded. */
typedef struct {
  void* data;
  size_t nbytes;
  int32_t dtype;
  int32_t dim;
  int64_t sizes[TORCHETTE_MAX_DIM];
  uint8_t order[TORCHETTE_MAX_DIM];
} torchette_tensor_t;

/* A value. `kind` selects the member that is valid. Kinds without a constant above have no member. */
typedef struct {
  int32_t kind;
  int64_t integer; /* TORCHETTE_INT; 0 or 1 for TORCHETTE_BOOLEAN */
  double number;   /* TORCHETTE_DOUBLE */
  torchette_tensor_t tensor;
} torchette_value_t;

/* Opens a file. Maps it into memory if `use_mmap` is not 0. The caller frees the handle with
 * torchette_module_free(). */
TORCHETTE_API torchette_error_t torchette_module_open(const char* path, int use_mmap,
                                                      torchette_module_t** module);
/* Opens a program in memory. `data` must be aligned to 16 bytes and must outlive the module. */
TORCHETTE_API torchette_error_t torchette_module_open_buffer(const void* data, size_t size,
                                                             torchette_module_t** module);

/* A source of bytes that the caller implements. Its functions are called with `context`. The threads that use
 * the module call `read`. Since version 3, like the functions that accept a loader. */
typedef struct {
  void* context;
  size_t size; /* of the source, in bytes */
  /* Copies `size` bytes, which start at `offset`, to `to`. The range is always within the source. If `read`
   * returns another value than TORCHETTE_OK, the calling function fails. */
  torchette_error_t (*read)(void* context, size_t offset, size_t size, void* to);
  void (*free)(void* context); /* called once, after the last read, also after a failure; may be null */
} torchette_loader_t;
TORCHETTE_API torchette_error_t torchette_module_open_loader(const torchette_loader_t* loader,
                                                             torchette_module_t** module);
/* Adds a .ptd file with weights that are stored outside the program. Returns TORCHETTE_INVALID_STATE if a
 * method is loaded. If two files contain the same name, the first file is used. Since version 3. */
TORCHETTE_API torchette_error_t torchette_module_add_data_file(torchette_module_t* module, const char* path,
                                                               int use_mmap);
TORCHETTE_API torchette_error_t torchette_module_add_data_loader(torchette_module_t* module,
                                                                 const torchette_loader_t* loader);
/* `module` may be null. */
TORCHETTE_API void torchette_module_free(torchette_module_t* module);

TORCHETTE_API size_t torchette_module_num_methods(const torchette_module_t* module);
/* Returns the name of a method, which is valid until the module is freed, or null if `index` is out of range.
 */
TORCHETTE_API const char* torchette_module_method_name(const torchette_module_t* module, size_t index);

/* Describe the inputs and outputs of a method without loading it. The sizes of a tensor are upper bounds and
 * its data is null. */
TORCHETTE_API torchette_error_t torchette_method_num_inputs(torchette_module_t* module, const char* method,
                                                            size_t* count);
TORCHETTE_API torchette_error_t torchette_method_num_outputs(torchette_module_t* module, const char* method,
                                                             size_t* count);
TORCHETTE_API torchette_error_t torchette_method_input_info(torchette_module_t* module, const char* method,
                                                            size_t index, torchette_value_t* info);
TORCHETTE_API torchette_error_t torchette_method_output_info(torchette_module_t* module, const char* method,
                                                             size_t index, torchette_value_t* info);

/* Set the number of threads that methods loaded after the call may use, for chains that may run in parallel
 * and in backends. The first function sets it for all modules. The second sets it for one module and takes
 * precedence. The default is the number of physical cores. A count of 0 returns TORCHETTE_INVALID_ARGUMENT.
 * Since version 2. */
TORCHETTE_API torchette_error_t torchette_set_num_threads(size_t count);
TORCHETTE_API torchette_error_t torchette_module_set_num_threads(torchette_module_t* module, size_t count);

/* Allocates memory for a method and loads it. torchette_method_execute() does so if the method is not loaded.
 */
TORCHETTE_API torchette_error_t torchette_method_load(torchette_module_t* module, const char* method);
/* Frees the memory of a method, including the memory of its outputs. */
TORCHETTE_API torchette_error_t torchette_method_unload(torchette_module_t* module, const char* method);
/* Resets mutable state, such as a cache, to the values that it had when the method was loaded. Since
 * version 3. */
TORCHETTE_API torchette_error_t torchette_method_reset(torchette_module_t* module, const char* method);
/* Ends the current execution, or the next one if none is running, with OutOfResources. Another thread may
 * call this function while the method executes, but not while the module loads or unloads methods. Since
 * version 3. */
TORCHETTE_API torchette_error_t torchette_method_cancel(torchette_module_t* module, const char* method);
/* Runs a method. `num_inputs` must be the number of the method's inputs. An integer, double or boolean that
 * the export has fixed may be passed as kind TORCHETTE_NONE. */
TORCHETTE_API torchette_error_t torchette_method_execute(torchette_module_t* module, const char* method,
                                                         const torchette_value_t* inputs, size_t num_inputs);
/* Writes output `index` of the last execution to `output`. */
TORCHETTE_API torchette_error_t torchette_method_output(torchette_module_t* module, const char* method,
                                                        size_t index, torchette_value_t* output);

/* Copies the elements to `to` in row-major order, also if the tensor has another order. `size` is the size of
 * `to` and must be tensor->nbytes. Since version 3. */
TORCHETTE_API torchette_error_t torchette_tensor_copy(const torchette_tensor_t* tensor, void* to,
                                                      size_t size);

/* Traces methods that are loaded after this call: records the start and end time of each instruction. If
 * `values` is not null, also copies the values that the instruction writes to `values`, a buffer of `size`
 * bytes that must outlive the module. Returns TORCHETTE_INVALID_STATE if a method is loaded. Since version 3.
 */
TORCHETTE_API torchette_error_t torchette_module_trace(torchette_module_t* module, void* values, size_t size);
/* Returns the events recorded since the last call as the content of an ETDump file (.etdp), which an
 * Inspector reads. The module owns the memory, which is valid until the next call or until the module is
 * freed. `*data` is null if nothing ran. Since version 3. */
TORCHETTE_API torchette_error_t torchette_module_etdump(torchette_module_t* module, const void** data,
                                                        size_t* size);

/* Return the number of backends in this library and the name of one, or null if `index` is out of range.
 * Since version 3. */
TORCHETTE_API size_t torchette_num_backends(void);
TORCHETTE_API const char* torchette_backend_name(size_t index);
/* The value of a backend option. TORCHETTE_BOOLEAN and TORCHETTE_INT use `integer`. TORCHETTE_STRING uses
 * `text`: at most 255 bytes and the terminating zero. */
typedef struct {
  int32_t kind;
  int32_t integer;
  char text[256];
} torchette_option_t;
/* Set and get an option of a backend. Errors: NotFound if the backend or the option does not exist. Since
 * version 3. */
TORCHETTE_API torchette_error_t torchette_backend_set_option(const char* backend, const char* key,
                                                             const torchette_option_t* option);
TORCHETTE_API torchette_error_t torchette_backend_get_option(const char* backend, const char* key,
                                                             torchette_option_t* option);

/* Sets the function that receives log lines instead of the standard error stream. Null discards the lines.
 * Call it before any other function. `line` is zero-terminated. */
typedef void (*torchette_log_fn_t)(char level, const char* file, size_t line_number, const char* line);
TORCHETTE_API void torchette_set_log(torchette_log_fn_t log);
/* Returns the error lines of this thread's last call, separated by newlines, or an empty string if the call
 * succeeded. Valid until this thread's next call. Lines are recorded after the first call of
 * torchette_set_log(), also if that call passed null. Since version 3. */
TORCHETTE_API const char* torchette_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
