// SPDX-License-Identifier: BSD-3-Clause
// The XNNPACK backend on the device: a payload becomes one of the library's runtimes at init, and runs on the
// method's own tensors.
#include <pthreadpool.h>

#include <new>

#include "torchette/backends/xnnpack/graph.h"

namespace torchette {
namespace {

using xnnpack::External;

struct Handle {
  xnnpack::Graph graph;
  xnn_runtime_t runtime = nullptr;
  std::vector<xnn_external_value> pointers;
  std::vector<std::vector<size_t>> shapes;  // of the inputs at the last execution
  bool ready = false;                       // reshaped and set up

  ~Handle() {
    if (runtime != nullptr) xnn_delete_runtime(runtime);
  }
};

std::vector<size_t> shape_of(const Tensor& tensor) {
  if (tensor.dim() == 0) return {1};  // the library's scalars have one dimension
  return {tensor.sizes().begin(), tensor.sizes().end()};
}

class XnnpackBackend final : public BackendInterface {
 public:
  bool is_available() const override { return xnn_initialize(nullptr) == xnn_status_success; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec>) const override {
    void* memory = context.get_runtime_allocator()->allocate(sizeof(Handle), alignof(Handle));
    if (memory == nullptr) return Error::MemoryAllocationFailed;
    Handle* handle = new (memory) Handle;
    const Error error = start(context, *processed, handle);
    if (error != Error::Ok) {
      handle->~Handle();
      return error;
    }
    if (!handle->graph.needs_bytes) processed->Free();
    return static_cast<DelegateHandle*>(handle);
  }

  size_t num_inputs(DelegateHandle* pointer) const override {
    const xnnpack::Graph& graph = static_cast<const Handle*>(pointer)->graph;
    size_t first = graph.inputs.size();
    for (const External& output : graph.outputs) first = std::min<size_t>(first, output.id);
    return first;
  }

  Error execute(BackendExecutionContext&, DelegateHandle* pointer, Span<Value*> arguments) const override {
    Handle& handle = *static_cast<Handle*>(pointer);
    const auto& inputs = handle.graph.inputs;
    const auto& outputs = handle.graph.outputs;
    TORCHETTE_CHECK(arguments.size() == inputs.size() + outputs.size(), InvalidArgument,
                    "XNNPACK is given %zu arguments, its graph has %zu", arguments.size(),
                    inputs.size() + outputs.size());
    bool reshape = !handle.ready, setup = reshape;
    handle.ready = false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      TORCHETTE_TRY(check(*arguments[inputs[i].id], inputs[i]));
      const Tensor tensor = arguments[inputs[i].id]->to_tensor();
      std::vector<size_t> shape = shape_of(tensor);
      if (shape == handle.shapes[i]) continue;
      const xnn_status status =
          xnn_reshape_external_value(handle.runtime, inputs[i].id, shape.size(), shape.data());
      TORCHETTE_CHECK(status == xnn_status_success, InvalidArgument,
                      "XNNPACK refuses the shape of argument %u", inputs[i].id);
      handle.shapes[i] = std::move(shape);
      reshape = true;
    }
    if (reshape) {
      const xnn_status status = xnn_reshape_runtime(handle.runtime);
      TORCHETTE_CHECK(status == xnn_status_success, InvalidArgument,
                      "XNNPACK cannot run with these shapes: status %d", static_cast<int>(status));
      setup = true;
    }
    for (const External& output : outputs) {
      TORCHETTE_TRY(check(*arguments[output.id], output));
      TORCHETTE_TRY(resize(handle, *arguments[output.id], output));
    }
    for (xnn_external_value& it : handle.pointers) {
      void* data = arguments[it.id]->to_tensor().mutable_data_ptr();
      setup = setup || it.data != data;
      it.data = data;
    }
    if (setup) {
      const xnn_status status =
          xnn_setup_runtime_v2(handle.runtime, handle.pointers.size(), handle.pointers.data());
      TORCHETTE_CHECK(status == xnn_status_success, InvalidState, "XNNPACK cannot be set up: status %d",
                      static_cast<int>(status));
    }
    const xnn_status status = xnn_invoke_runtime(handle.runtime);
    TORCHETTE_CHECK(status == xnn_status_success, Internal, "XNNPACK failed: status %d",
                    static_cast<int>(status));
    handle.ready = true;
    return Error::Ok;
  }

  void destroy(DelegateHandle* handle) const override { static_cast<Handle*>(handle)->~Handle(); }

 private:
  static Error start(BackendInitContext& context, const FreeableBuffer& processed, Handle* handle) {
    TORCHETTE_CHECK(xnn_initialize(nullptr) == xnn_status_success, NotSupported,
                    "XNNPACK does not know this processor, or has no memory");
    TORCHETTE_TRY(xnnpack::read_graph(processed, context.get_named_data_map(), &handle->graph));
    const xnn_status status =
        xnn_create_runtime_v4(handle->graph.subgraph, nullptr, nullptr, nullptr, 0, &handle->runtime);
    TORCHETTE_CHECK(status == xnn_status_success, DelegateInvalidCompatibility,
                    "XNNPACK refuses the graph: status %d", static_cast<int>(status));
    for (const auto* list : {&handle->graph.inputs, &handle->graph.outputs})
      for (const External& it : *list) handle->pointers.push_back({it.id, nullptr});
    handle->shapes.resize(handle->graph.inputs.size());
    return Error::Ok;
  }

  static Error check(const Value& value, const External& expected) {
    TORCHETTE_CHECK(value.is_tensor(), InvalidArgument, "argument %u of XNNPACK is no tensor", expected.id);
    const Tensor tensor = value.to_tensor();
    TORCHETTE_CHECK(tensor.scalar_type() == expected.type && is_contiguous(tensor) &&
                        (tensor.const_data_ptr() != nullptr || tensor.numel() == 0),
                    InvalidArgument, "argument %u of XNNPACK has another type or layout than its graph",
                    expected.id);
    TORCHETTE_CHECK(shape_of(tensor).size() == expected.dims.size(), InvalidArgument,
                    "argument %u of XNNPACK has %td dimensions, its graph has %zu", expected.id, tensor.dim(),
                    expected.dims.size());
    return Error::Ok;
  }

  static Error resize(const Handle& handle, const Value& value, const External& output) {
    size_t rank = 0, dims[XNN_MAX_TENSOR_DIMS];
    const xnn_status status = xnn_get_external_value_shape(handle.runtime, output.id, &rank, dims);
    const Tensor tensor = value.to_tensor();
    TORCHETTE_CHECK(status == xnn_status_success && rank == shape_of(tensor).size(), InvalidArgument,
                    "result %u of XNNPACK has %zu dimensions", output.id, rank);
    if (tensor.dim() == 0) return Error::Ok;
    SizesType sizes[XNN_MAX_TENSOR_DIMS];
    for (size_t d = 0; d < rank; ++d) {
      TORCHETTE_CHECK(dims[d] <= INT32_MAX, InvalidArgument, "result %u of XNNPACK is too large", output.id);
      sizes[d] = static_cast<SizesType>(dims[d]);
    }
    return resize_tensor(tensor, {sizes, rank});
  }
};

XnnpackBackend backend;

}  // namespace

Backend xnnpack_backend{"XnnpackBackend", &backend};

}  // namespace torchette
