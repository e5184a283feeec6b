// SPDX-License-Identifier: BSD-3-Clause
// Each function translates its arguments, asks a Module, and translates the answer. Nothing passes the border
// but plain structs.
#include "torchette/extension/c_api.h"

#include <new>

#include "torchette/extension/backends.h"
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/error_name.h"
#include "torchette/extension/module.h"
#include "torchette/runtime/threads.h"

using namespace torchette;
using namespace torchette::extension;

struct torchette_module {
  template <typename... A>
  explicit torchette_module(A&&... arguments) : module(std::forward<A>(arguments)...) {}
  Module module;
};

namespace {

static_assert(TORCHETTE_MAX_DIM == kMaxDim);
static_assert(TORCHETTE_UINT64 == static_cast<int>(ScalarType::UInt64));
static_assert(TORCHETTE_BOOLEAN == static_cast<int>(Tag::Bool));
static_assert(TORCHETTE_INVALID_ARGUMENT == static_cast<uint32_t>(Error::InvalidArgument));

torchette_error_t code(Error error) { return static_cast<torchette_error_t>(error); }

bool given(const void* pointer, const char* name) {
  if (pointer != nullptr) return true;
  TORCHETTE_LOG(Error, "%s is null", name);
  return false;
}
#define TORCHETTE_GIVEN(pointer) \
  if (!given(pointer, #pointer)) return TORCHETTE_INVALID_ARGUMENT

/// Sizes and order into `out`; the data are set by the caller.
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

/// `held` keeps what a tensor needs besides its data.
Error import(const torchette_value_t& from, Value* to, TensorPtr* held) {
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
      TORCHETTE_LOG(Error, "no input is of kind %d", from.kind);
      return Error::InvalidArgument;
  }
  const torchette_tensor_t& tensor = from.tensor;
  TORCHETTE_CHECK(tensor.dim >= 0 && tensor.dim <= TORCHETTE_MAX_DIM && tensor.dtype >= 0 &&
                      tensor.dtype < static_cast<int>(ScalarType::Undefined),
                  InvalidArgument, "no tensor has %d dimensions and dtype %d", tensor.dim, tensor.dtype);
  const auto n = static_cast<size_t>(tensor.dim);
  std::vector<SizesType> sizes(n);
  for (size_t d = 0; d < n; ++d) {
    TORCHETTE_CHECK(tensor.sizes[d] >= 0 && tensor.sizes[d] <= INT32_MAX, InvalidArgument, "size %lld",
                    static_cast<long long>(tensor.sizes[d]));
    sizes[d] = static_cast<SizesType>(tensor.sizes[d]);
  }
  // a C program leaves the order zeroed for row-major
  std::vector<DimOrderType> order(tensor.order, tensor.order + n);
  bool zeroed = true;
  for (DimOrderType d : order) zeroed = zeroed && d == 0;
  if (zeroed) order.clear();
  *held = make_tensor_ptr(std::move(sizes), tensor.data, std::move(order), {},
                          static_cast<ScalarType>(tensor.dtype));
  if (!*held) return Error::InvalidArgument;
  TORCHETTE_CHECK((*held)->nbytes() == tensor.nbytes, InvalidArgument,
                  "%zu bytes are given for a tensor of %zu", tensor.nbytes, (*held)->nbytes());
  *to = Value(*held);
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
  // a host that has registered some itself keeps them
  static const Error registered = register_all_backends();
  static_cast<void>(registered);
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
  TORCHETTE_GIVEN(module);
  TORCHETTE_GIVEN(method);
  TORCHETTE_GIVEN(info);
  const Result<MethodMeta> meta = module->module.method_meta(method);
  if (!meta.ok()) return code(meta.error());
  const Result<Tag> tag = output ? meta->output_tag(index) : meta->input_tag(index);
  if (!tag.ok()) return code(tag.error());
  *info = {};
  info->kind = static_cast<int32_t>(*tag);
  if (*tag != Tag::Tensor) return TORCHETTE_OK;
  const Result<TensorInfo> tensor = output ? meta->output_tensor_meta(index) : meta->input_tensor_meta(index);
  if (!tensor.ok()) return code(tensor.error());
  describe(tensor->scalar_type(), tensor->sizes(), tensor->dim_order(), tensor->nbytes(), info);
  return TORCHETTE_OK;
}

torchette_error_t count(torchette_module_t* module, const char* method, bool outputs, size_t* count) {
  TORCHETTE_GIVEN(module);
  TORCHETTE_GIVEN(method);
  TORCHETTE_GIVEN(count);
  const Result<MethodMeta> meta = module->module.method_meta(method);
  if (!meta.ok()) return code(meta.error());
  *count = outputs ? meta->num_outputs() : meta->num_inputs();
  return TORCHETTE_OK;
}

torchette_log_fn_t log_function = nullptr;
void forward_log(torchette_timestamp_t, torchette_log_level_t level, const char* filename, const char*,
                 size_t line, const char* message, size_t) {
  if (log_function != nullptr) log_function(static_cast<char>(level), filename, line, message);
}

}  // namespace

extern "C" {

uint32_t torchette_c_api_version(void) { return TORCHETTE_C_API_VERSION; }

const char* torchette_error_name(torchette_error_t error) { return error_name(static_cast<Error>(error)); }

torchette_error_t torchette_module_open(const char* path, int use_mmap, torchette_module_t** module) {
  TORCHETTE_GIVEN(path);
  TORCHETTE_GIVEN(module);
  return open(module, path, use_mmap != 0 ? Module::LoadMode::Mmap : Module::LoadMode::File);
}

torchette_error_t torchette_module_open_buffer(const void* data, size_t size, torchette_module_t** module) {
  TORCHETTE_GIVEN(data);
  TORCHETTE_GIVEN(module);
  return open(module, std::make_shared<BufferDataLoader>(data, size));
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
  TORCHETTE_GIVEN(module);
  return code(module->module.set_num_threads(count));
}

torchette_error_t torchette_method_load(torchette_module_t* module, const char* method) {
  TORCHETTE_GIVEN(module);
  TORCHETTE_GIVEN(method);
  return code(module->module.load_method(method));
}

torchette_error_t torchette_method_unload(torchette_module_t* module, const char* method) {
  TORCHETTE_GIVEN(module);
  TORCHETTE_GIVEN(method);
  return code(module->module.unload_method(method) ? Error::Ok : Error::NotFound);
}

torchette_error_t torchette_method_execute(torchette_module_t* module, const char* method,
                                           const torchette_value_t* inputs, size_t num_inputs) {
  TORCHETTE_GIVEN(module);
  TORCHETTE_GIVEN(method);
  if (num_inputs != 0) TORCHETTE_GIVEN(inputs);
  size_t wanted = 0;
  const torchette_error_t counted = count(module, method, false, &wanted);
  if (counted != TORCHETTE_OK) return counted;
  if (num_inputs != wanted) {
    TORCHETTE_LOG(Error, "%s takes %zu inputs, %zu are given", method, wanted, num_inputs);
    return TORCHETTE_INVALID_ARGUMENT;
  }
  std::vector<Value> values(num_inputs);
  std::vector<TensorPtr> held(num_inputs);
  for (size_t i = 0; i < num_inputs; ++i) {
    const Error error = import(inputs[i], &values[i], &held[i]);
    if (error != Error::Ok) return code(error);
  }
  return code(module->module.execute(method, values).error());
}

torchette_error_t torchette_method_output(torchette_module_t* module, const char* method, size_t index,
                                          torchette_value_t* output) {
  TORCHETTE_GIVEN(module);
  TORCHETTE_GIVEN(method);
  TORCHETTE_GIVEN(output);
  if (!module->module.is_method_loaded(method)) {
    TORCHETTE_LOG(Error, "%s has not been executed", method);
    return code(Error::InvalidState);
  }
  const Result<Value> value = module->module.get_output(method, index);
  if (!value.ok()) return code(value.error());
  to_c(*value, output);
  return TORCHETTE_OK;
}

void torchette_set_log(torchette_log_fn_t log) {
  log_function = log;
  PalImpl pal;
  pal.emit_log_message = forward_log;
  static_cast<void>(register_pal(pal));
}

}  // extern "C"
