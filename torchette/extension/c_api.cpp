// SPDX-License-Identifier: BSD-3-Clause
// Implements the C interface. Each function converts its arguments, calls a Module and converts the result.
// Only plain structs cross the interface.
#include "torchette/extension/c_api.h"

#include <cstdio>
#include <cstring>
#include <new>

#include "torchette/extension/backends.h"
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/error_name.h"
#include "torchette/extension/etdump.h"
#include "torchette/extension/module.h"
#include "torchette/extension/shared_log.h"
#include "torchette/runtime/backend_options.h"
#include "torchette/runtime/threads.h"

using namespace torchette;
using namespace torchette::extension;

struct torchette_module {
  template <typename... A>
  explicit torchette_module(A&&... arguments) : module(std::forward<A>(arguments)...) {}
  ~torchette_module() { platform_free(dump.buf); }
  std::unique_ptr<ETDumpGen> tracer;  // null if the module is not traced; outlives the methods
  ETDumpResult dump{nullptr, 0};      // result of the last torchette_module_etdump()
  Module module;
};

namespace torchette::extension {
// Also used by torchette/llm/engine/c_api.cpp.
torchette_error_t end_call(Error error);
void find_backends();
}  // namespace torchette::extension

namespace {

static_assert(TORCHETTE_MAX_DIM == kMaxDim);
static_assert(TORCHETTE_UINT64 == static_cast<int>(ScalarType::UInt64));
static_assert(TORCHETTE_BOOLEAN == static_cast<int>(Tag::Bool));
static_assert(TORCHETTE_INVALID_ARGUMENT == static_cast<uint32_t>(Error::InvalidArgument));

/// The error lines of this thread's current or last call. The next call clears them.
struct ErrorText {
  char text[1024];
  size_t length;
  bool is_complete;
};
thread_local ErrorText error_text;

/// Ends a call: every function returns through this one.
torchette_error_t code(Error error) {
  if (error == Error::Ok) error_text.text[error_text.length = 0] = 0;
  error_text.is_complete = true;
  return static_cast<torchette_error_t>(error);
}

bool check_not_null(bool is_set, const char* name) {
  if (is_set) return true;
  TORCHETTE_LOG(Error, "%s is null", name);
  return false;
}
#define TORCHETTE_CHECK_NOT_NULL(pointer) \
  if (!check_not_null((pointer) != nullptr, #pointer)) return code(Error::InvalidArgument)

/// Wraps a loader that the caller implements. Loaded segments are on the heap.
class CallerLoader final : public DataLoader {
 public:
  explicit CallerLoader(const torchette_loader_t& from) : from_(from) {}
  CallerLoader(const CallerLoader&) = delete;
  ~CallerLoader() {
    if (from_.free != nullptr) from_.free(from_.context);
  }

  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo& info) const override {
    constexpr size_t kAlignment = 64;
    void* const memory = size > from_.size ? nullptr : platform_allocate(size + kAlignment);
    TORCHETTE_CHECK(memory != nullptr, MemoryAllocationFailed,
                    "cannot allocate %zu bytes for a segment of a source of %zu bytes", size, from_.size);
    const uintptr_t address = (reinterpret_cast<uintptr_t>(memory) + kAlignment - 1) & ~(kAlignment - 1);
    auto* const bytes = reinterpret_cast<void*>(address);
    FreeableBuffer buffer(bytes, size, [](void* storage, void*, size_t) { platform_free(storage); }, memory);
    TORCHETTE_TRY(load_into(offset, size, info, bytes));
    return buffer;
  }
  Error load_into(size_t offset, size_t size, const SegmentInfo&, void* buffer) const override {
    TORCHETTE_CHECK(offset <= from_.size && size <= from_.size - offset, InvalidArgument,
                    "%zu bytes at offset %zu exceed the source of %zu bytes", size, offset, from_.size);
    const torchette_error_t error =
        size == 0 ? TORCHETTE_OK : from_.read(from_.context, offset, size, buffer);
    TORCHETTE_CHECK(error == TORCHETTE_OK, AccessFailed,
                    "the loader failed to read %zu bytes at offset %zu: error 0x%x", size, offset, error);
    return Error::Ok;
  }
  Result<size_t> size() const override { return from_.size; }

 private:
  torchette_loader_t from_;
};

/// Fills `out` with a tensor of these sizes and this order. The caller sets `data`.
void describe(ScalarType type, Span<const SizesType> sizes, Span<const DimOrderType> order, size_t nbytes,
              torchette_value_t* out) {
  *out = {};
  out->kind = TORCHETTE_TENSOR;
  out->tensor.nbytes = nbytes;
  out->tensor.dtype = static_cast<int32_t>(type);
  out->tensor.dim = static_cast<int32_t>(sizes.size());
  for (size_t d = 0; d < sizes.size() && d < TORCHETTE_MAX_DIM; ++d) {
    out->tensor.sizes[d] = sizes[d];
    out->tensor.order[d] = order[d];
  }
}

/// Converts an input. `storage` keeps the metadata of a tensor alive.
Error import(const torchette_value_t& from, Value* to, TensorPtr* storage) {
  switch (from.kind) {
    case TORCHETTE_NONE:
      *to = Value();
      return Error::Ok;
    case TORCHETTE_INT:
      *to = Value(from.integer);
      return Error::Ok;
    case TORCHETTE_BOOLEAN:
      *to = Value(from.integer != 0);
      return Error::Ok;
    case TORCHETTE_DOUBLE:
      *to = Value(from.number);
      return Error::Ok;
    case TORCHETTE_TENSOR:
      break;
    default:
      TORCHETTE_LOG(Error, "an input has kind %d, which is not supported", from.kind);
      return Error::InvalidArgument;
  }
  const torchette_tensor_t& tensor = from.tensor;
  TORCHETTE_CHECK(tensor.dim >= 0 && tensor.dim <= TORCHETTE_MAX_DIM && tensor.dtype >= 0 &&
                      tensor.dtype < static_cast<int>(ScalarType::Undefined),
                  InvalidArgument, "invalid tensor: %d dimensions (at most %d), dtype %d", tensor.dim,
                  TORCHETTE_MAX_DIM, tensor.dtype);
  const auto n = static_cast<size_t>(tensor.dim);
  std::vector<SizesType> sizes(n);
  for (size_t d = 0; d < n; ++d) {
    TORCHETTE_CHECK(tensor.sizes[d] >= 0 && tensor.sizes[d] <= INT32_MAX, InvalidArgument,
                    "dimension %zu of a tensor has size %lld, expected 0 to 2^31 - 1", d,
                    static_cast<long long>(tensor.sizes[d]));
    sizes[d] = static_cast<SizesType>(tensor.sizes[d]);
  }
  // An order of zeros means row-major, so that a C program may leave it zero-initialized.
  std::vector<DimOrderType> order(tensor.order, tensor.order + n);
  bool is_zero = true;
  for (DimOrderType d : order) is_zero = is_zero && d == 0;
  if (is_zero) order.clear();
  *storage = make_tensor_ptr(std::move(sizes), tensor.data, std::move(order), {},
                             static_cast<ScalarType>(tensor.dtype));
  if (!*storage) return Error::InvalidArgument;
  TORCHETTE_CHECK((*storage)->nbytes() == tensor.nbytes, InvalidArgument,
                  "a tensor's nbytes is %zu, expected %zu from its sizes and dtype", tensor.nbytes,
                  (*storage)->nbytes());
  *to = Value(*storage);
  return Error::Ok;
}

void to_c(const Value& from, torchette_value_t* to) {
  *to = {};
  to->kind = static_cast<int32_t>(from.tag());
  if (from.is_tensor()) {
    const Tensor& tensor = from.toTensor();
    describe(tensor.scalar_type(), tensor.sizes(), tensor.dim_order(), tensor.nbytes(), to);
    to->tensor.data = tensor.mutable_data_ptr();
  } else if (from.is_double()) {
    to->number = from.to_double();
  } else if (from.is_scalar()) {
    to->integer = from.to_int();
  }
}

template <typename... A>
torchette_error_t open(torchette_module_t** module, A&&... arguments) {
  *module = nullptr;
  find_backends();
  auto* opened = new (std::nothrow) torchette_module(std::forward<A>(arguments)...);
  if (opened == nullptr) return code(Error::MemoryAllocationFailed);
  const Error error = opened->module.load();
  if (error == Error::Ok)
    *module = opened;
  else
    delete opened;
  return code(error);
}

torchette_error_t info(torchette_module_t* module, const char* method, size_t index, bool output,
                       torchette_value_t* info) {
  TORCHETTE_CHECK_NOT_NULL(module);
  TORCHETTE_CHECK_NOT_NULL(method);
  TORCHETTE_CHECK_NOT_NULL(info);
  const Result<MethodMeta> meta = module->module.method_meta(method);
  if (!meta.ok()) return code(meta.error());
  const Result<Tag> tag = output ? meta->output_tag(index) : meta->input_tag(index);
  if (!tag.ok()) return code(tag.error());
  *info = {};
  info->kind = static_cast<int32_t>(*tag);
  if (*tag != Tag::Tensor) return code(Error::Ok);
  const Result<TensorInfo> tensor = output ? meta->output_tensor_meta(index) : meta->input_tensor_meta(index);
  if (!tensor.ok()) return code(tensor.error());
  describe(tensor->scalar_type(), tensor->sizes(), tensor->dim_order(), tensor->nbytes(), info);
  return code(Error::Ok);
}

torchette_error_t count(torchette_module_t* module, const char* method, bool outputs, size_t* count) {
  TORCHETTE_CHECK_NOT_NULL(module);
  TORCHETTE_CHECK_NOT_NULL(method);
  TORCHETTE_CHECK_NOT_NULL(count);
  const Result<MethodMeta> meta = module->module.method_meta(method);
  if (!meta.ok()) return code(meta.error());
  *count = outputs ? meta->num_outputs() : meta->num_inputs();
  return code(Error::Ok);
}

/// Loads a method with the options of its module.
Error load_method(torchette_module_t& module, const char* method) {
  return module.module.load_method(method, nullptr, module.tracer.get());
}

Error check_no_method_loaded(const torchette_module_t& module) {
  for (size_t i = 0; const char* name = torchette_module_method_name(&module, i); ++i)
    TORCHETTE_CHECK(!module.module.is_method_loaded(name), InvalidState, "method %s is already loaded", name);
  return Error::Ok;
}

torchette_log_fn_t log_function = nullptr;
torchette::extension::LogFunction registered_log = nullptr;
void forward_log(torchette_timestamp_t time, torchette_log_level_t level, const char* filename,
                 const char* function, size_t line, const char* message, size_t length) {
  if (registered_log != nullptr) registered_log(time, level, filename, function, line, message, length);
  if (level == TORCHETTE_LOG_ERROR || level == TORCHETTE_LOG_FATAL) {
    if (error_text.is_complete) error_text.length = 0;
    error_text.is_complete = false;
    const size_t capacity = sizeof(error_text.text) - error_text.length;
    const int num_written = snprintf(error_text.text + error_text.length, capacity, "%s%.*s",
                                     error_text.length == 0 ? "" : "\n", static_cast<int>(length), message);
    if (num_written > 0)
      error_text.length +=
          static_cast<size_t>(num_written) < capacity ? static_cast<size_t>(num_written) : capacity - 1;
  }
  if (log_function != nullptr) log_function(static_cast<char>(level), filename, line, message);
}

}  // namespace

/// For the functions of C interfaces in other libraries, which also return through code().
torchette_error_t torchette::extension::end_call(Error error) { return code(error); }

void torchette::extension::register_log(LogFunction function) {
  registered_log = function;
  PalImpl pal;
  pal.emit_log_message = forward_log;
  static_cast<void>(register_pal(pal));
}

void torchette::extension::find_backends() {
  static const Error registered = register_all_backends();
  static_cast<void>(registered);
}

extern "C" {

uint32_t torchette_c_api_version(void) { return TORCHETTE_C_API_VERSION; }

const char* torchette_error_name(torchette_error_t error) { return error_name(static_cast<Error>(error)); }

torchette_error_t torchette_module_open(const char* path, int use_mmap, torchette_module_t** module) {
  TORCHETTE_CHECK_NOT_NULL(path);
  TORCHETTE_CHECK_NOT_NULL(module);
  return open(module, path, use_mmap != 0 ? Module::LoadMode::Mmap : Module::LoadMode::File);
}

torchette_error_t torchette_module_open_buffer(const void* data, size_t size, torchette_module_t** module) {
  TORCHETTE_CHECK_NOT_NULL(data);
  TORCHETTE_CHECK_NOT_NULL(module);
  return open(module, std::make_shared<BufferDataLoader>(data, size));
}

torchette_error_t torchette_module_open_loader(const torchette_loader_t* loader,
                                               torchette_module_t** module) {
  TORCHETTE_CHECK_NOT_NULL(loader);
  TORCHETTE_CHECK_NOT_NULL(loader->read);
  auto owned_loader = std::make_shared<CallerLoader>(*loader);
  TORCHETTE_CHECK_NOT_NULL(module);
  return open(module, std::move(owned_loader));
}

torchette_error_t torchette_module_add_data_file(torchette_module_t* module, const char* path, int use_mmap) {
  TORCHETTE_CHECK_NOT_NULL(module);
  TORCHETTE_CHECK_NOT_NULL(path);
  using Mode = Module::LoadMode;
  return code(module->module.add_data_file(path, use_mmap != 0 ? Mode::Mmap : Mode::File));
}

torchette_error_t torchette_module_add_data_loader(torchette_module_t* module,
                                                   const torchette_loader_t* loader) {
  TORCHETTE_CHECK_NOT_NULL(loader);
  TORCHETTE_CHECK_NOT_NULL(loader->read);
  auto owned_loader = std::make_shared<CallerLoader>(*loader);
  TORCHETTE_CHECK_NOT_NULL(module);
  return code(module->module.add_data(std::move(owned_loader)));
}

void torchette_module_free(torchette_module_t* module) { delete module; }

size_t torchette_module_num_methods(const torchette_module_t* module) {
  size_t count = 0;
  while (torchette_module_method_name(module, count) != nullptr) ++count;
  return count;
}

const char* torchette_module_method_name(const torchette_module_t* module, size_t index) {
  const size_t count = module == nullptr ? 0 : module->module.program()->num_methods();
  for (size_t i = 0; i < count; ++i) {
    const Result<const char*> name = module->module.program()->get_method_name(i);
    if (name.ok() && !Module::is_fallback(*name) && index-- == 0) return *name;
  }
  return nullptr;
}

torchette_error_t torchette_method_num_inputs(torchette_module_t* module, const char* method,
                                              size_t* inputs) {
  return count(module, method, false, inputs);
}

torchette_error_t torchette_method_num_outputs(torchette_module_t* module, const char* method,
                                               size_t* outputs) {
  return count(module, method, true, outputs);
}

torchette_error_t torchette_method_input_info(torchette_module_t* module, const char* method, size_t index,
                                              torchette_value_t* input) {
  return info(module, method, index, false, input);
}

torchette_error_t torchette_method_output_info(torchette_module_t* module, const char* method, size_t index,
                                               torchette_value_t* output) {
  return info(module, method, index, true, output);
}

torchette_error_t torchette_set_num_threads(size_t count) { return code(set_num_threads(count)); }

torchette_error_t torchette_module_set_num_threads(torchette_module_t* module, size_t count) {
  TORCHETTE_CHECK_NOT_NULL(module);
  return code(module->module.set_num_threads(count));
}

torchette_error_t torchette_method_load(torchette_module_t* module, const char* method) {
  TORCHETTE_CHECK_NOT_NULL(module);
  TORCHETTE_CHECK_NOT_NULL(method);
  return code(load_method(*module, method));
}

torchette_error_t torchette_method_unload(torchette_module_t* module, const char* method) {
  TORCHETTE_CHECK_NOT_NULL(module);
  TORCHETTE_CHECK_NOT_NULL(method);
  return code(module->module.unload_method(method) ? Error::Ok : Error::NotFound);
}

torchette_error_t torchette_method_reset(torchette_module_t* module, const char* method) {
  TORCHETTE_CHECK_NOT_NULL(module);
  TORCHETTE_CHECK_NOT_NULL(method);
  const Error error = load_method(*module, method);
  return code(error != Error::Ok ? error : (*module->module.method_without_outputs(method))->reset());
}

torchette_error_t torchette_method_cancel(torchette_module_t* module, const char* method) {
  TORCHETTE_CHECK_NOT_NULL(module);
  TORCHETTE_CHECK_NOT_NULL(method);
  if (!module->module.is_method_loaded(method)) {
    TORCHETTE_LOG(Error, "method %s is not loaded", method);
    return code(Error::InvalidState);
  }
  (*module->module.method_without_outputs(method))->cancel();
  return code(Error::Ok);
}

torchette_error_t torchette_method_execute(torchette_module_t* module, const char* method,
                                           const torchette_value_t* inputs, size_t num_inputs) {
  TORCHETTE_CHECK_NOT_NULL(module);
  TORCHETTE_CHECK_NOT_NULL(method);
  if (num_inputs != 0) TORCHETTE_CHECK_NOT_NULL(inputs);
  const Result<MethodMeta> meta = module->module.method_meta(method);
  if (!meta.ok()) return code(meta.error());
  if (num_inputs != meta->num_inputs()) {
    TORCHETTE_LOG(Error, "method %s expects %zu inputs, got %zu", method, meta->num_inputs(), num_inputs);
    return code(Error::InvalidArgument);
  }
  for (size_t i = 0; i < num_inputs; ++i) {
    // Without this check, the method would read the tensor of the last execution, which may have been freed.
    const Result<Tag> tag = meta->input_tag(i);
    if (inputs[i].kind != TORCHETTE_NONE || !tag.ok() || *tag != Tag::Tensor) continue;
    TORCHETTE_LOG(Error, "input %zu of method %s must be a tensor, got None", i, method);
    return code(Error::InvalidArgument);
  }
  std::vector<Value> values(num_inputs);
  std::vector<TensorPtr> storage(num_inputs);
  for (size_t i = 0; i < num_inputs; ++i) {
    const Error error = import(inputs[i], &values[i], &storage[i]);
    if (error != Error::Ok) return code(error);
  }
  const Error error = load_method(*module, method);
  return code(error != Error::Ok ? error : module->module.execute(method, values).error());
}

torchette_error_t torchette_method_output(torchette_module_t* module, const char* method, size_t index,
                                          torchette_value_t* output) {
  TORCHETTE_CHECK_NOT_NULL(module);
  TORCHETTE_CHECK_NOT_NULL(method);
  TORCHETTE_CHECK_NOT_NULL(output);
  if (!module->module.is_method_loaded(method)) {
    TORCHETTE_LOG(Error, "method %s has not been executed", method);
    return code(Error::InvalidState);
  }
  const Result<Value> value = module->module.get_output(method, index);
  if (!value.ok()) return code(value.error());
  to_c(*value, output);
  return code(Error::Ok);
}

torchette_error_t torchette_tensor_copy(const torchette_tensor_t* tensor, void* to, size_t size) {
  TORCHETTE_CHECK_NOT_NULL(tensor);
  if (size != 0) {
    TORCHETTE_CHECK_NOT_NULL(tensor->data);
    TORCHETTE_CHECK_NOT_NULL(to);
  }
  const auto dim = static_cast<size_t>(tensor->dim);
  size_t count = 1;
  uint32_t seen = 0;
  bool is_valid = tensor->dim >= 0 && dim <= TORCHETTE_MAX_DIM && size == tensor->nbytes;
  for (size_t d = 0; is_valid && d < dim; ++d) {
    is_valid = tensor->order[d] < dim && (seen >> tensor->order[d] & 1u) == 0 && tensor->sizes[d] >= 0;
    seen |= 1u << tensor->order[d];
    count *= static_cast<size_t>(tensor->sizes[d]);
  }
  if (!is_valid || (count != 0 && size % count != 0)) {
    TORCHETTE_LOG(Error, "cannot copy a tensor of %zu bytes to a buffer of %zu bytes", tensor->nbytes, size);
    return code(Error::InvalidArgument);
  }
  if (count == 0) return code(Error::Ok);
  const size_t width = size / count;
  size_t strides[TORCHETTE_MAX_DIM], step = width;
  bool is_row_major = true;
  for (size_t i = dim; i-- > 0;) {
    is_row_major = is_row_major && tensor->order[i] == i;
    strides[tensor->order[i]] = step;
    step *= static_cast<size_t>(tensor->sizes[tensor->order[i]]);
  }
  if (is_row_major) {
    memcpy(to, tensor->data, size);
    return code(Error::Ok);
  }
  for (size_t i = 0; i < count; ++i) {
    size_t remaining = i, from = 0;
    for (size_t d = dim; d-- > 0; remaining /= static_cast<size_t>(tensor->sizes[d]))
      from += remaining % static_cast<size_t>(tensor->sizes[d]) * strides[d];
    memcpy(static_cast<char*>(to) + i * width, static_cast<char*>(tensor->data) + from, width);
  }
  return code(Error::Ok);
}

torchette_error_t torchette_module_trace(torchette_module_t* module, void* values, size_t size) {
  TORCHETTE_CHECK_NOT_NULL(module);
#if TORCHETTE_EVENT_TRACER
  const Error error = check_no_method_loaded(*module);
  if (error != Error::Ok) return code(error);
  auto tracer = std::unique_ptr<ETDumpGen>(new ETDumpGen());
  if (!tracer) return code(Error::MemoryAllocationFailed);
  if (values != nullptr) {
    const Result<bool> set = tracer->set_debug_buffer({static_cast<uint8_t*>(values), size});
    if (!set.ok()) return code(set.error());
    tracer->set_event_tracer_debug_level(EventTracerDebugLogLevel::kIntermediateOutputs);
  }
  module->tracer = std::move(tracer);
  return code(Error::Ok);
#else
  static_cast<void>(check_no_method_loaded), static_cast<void>(values), static_cast<void>(size);
  TORCHETTE_LOG(Error, "this library was built with TORCHETTE_EVENT_TRACER=OFF");
  return code(Error::NotSupported);
#endif
}

torchette_error_t torchette_module_etdump(torchette_module_t* module, const void** data, size_t* size) {
  TORCHETTE_CHECK_NOT_NULL(module);
  TORCHETTE_CHECK_NOT_NULL(data);
  TORCHETTE_CHECK_NOT_NULL(size);
  if (!module->tracer) {
    TORCHETTE_LOG(Error, "the module is not traced");
    return code(Error::InvalidState);
  }
  platform_free(module->dump.buf);
  module->dump = module->tracer->get_etdump_data();
  *data = module->dump.buf;
  *size = module->dump.size;
  return code(Error::Ok);
}

size_t torchette_num_backends(void) {
  find_backends();
  return get_num_registered_backends();
}

const char* torchette_backend_name(size_t index) {
  return index < torchette_num_backends() ? *get_backend_name(index) : nullptr;
}

torchette_error_t torchette_backend_set_option(const char* backend, const char* key,
                                               const torchette_option_t* option) {
  TORCHETTE_CHECK_NOT_NULL(backend);
  TORCHETTE_CHECK_NOT_NULL(key);
  TORCHETTE_CHECK_NOT_NULL(option);
  find_backends();
  BackendOptions<1> options;
  Error error = Error::InvalidArgument;
  if (option->kind == TORCHETTE_BOOLEAN)
    error = options.set_option(key, option->integer != 0);
  else if (option->kind == TORCHETTE_INT)
    error = options.set_option(key, static_cast<int>(option->integer));
  else if (option->kind == TORCHETTE_STRING && memchr(option->text, 0, sizeof(option->text)) != nullptr)
    error = options.set_option(key, option->text);
  if (error == Error::Ok) error = set_option(backend, options.view());
  if (error != Error::Ok)
    TORCHETTE_LOG(Error, "backend %s does not accept option %s of kind %d", backend, key, option->kind);
  return code(error);
}

torchette_error_t torchette_backend_get_option(const char* backend, const char* key,
                                               torchette_option_t* option) {
  TORCHETTE_CHECK_NOT_NULL(backend);
  TORCHETTE_CHECK_NOT_NULL(key);
  TORCHETTE_CHECK_NOT_NULL(option);
  find_backends();
  BackendOptions<1> options;
  Error error = options.set_option(key, 0);
  if (error == Error::Ok) error = get_option(backend, options.view());
  if (error != Error::Ok) {
    TORCHETTE_LOG(Error, "backend %s has no option %s", backend, key);
    return code(error);
  }
  *option = {};
  const OptionValue& value = options.view()[0].value;
  if (const int* number = std::get_if<int>(&value)) {
    option->kind = TORCHETTE_INT;
    option->integer = *number;
  } else if (const bool* flag = std::get_if<bool>(&value)) {
    option->kind = TORCHETTE_BOOLEAN;
    option->integer = *flag;
  } else {
    option->kind = TORCHETTE_STRING;
    memcpy(option->text, std::get_if<2>(&value)->data(), sizeof(option->text));
  }
  return code(Error::Ok);
}

const char* torchette_last_error(void) { return error_text.is_complete ? error_text.text : ""; }

void torchette_set_log(torchette_log_fn_t log) {
  log_function = log;
  PalImpl pal;
  pal.emit_log_message = forward_log;
  static_cast<void>(register_pal(pal));
}

}  // extern "C"
