// SPDX-License-Identifier: BSD-3-Clause
// The device part of the null backend. In: at init the payload that preprocess.py wrote, at execute tensors.
// init checks all values of the payload before they are used.
#include <cstring>
#include <type_traits>

#include "torchette/runtime/backend.h"

namespace torchette {
namespace {

constexpr char kMagic[] = {'N', 'U', 'L', '1'};

struct Header {
  char magic[4];
  uint32_t values, inputs, constants, instructions, outputs;
};
struct ValueRecord {
  uint32_t dtype, capacity;
};
struct InstructionRecord {
  uint32_t operation, left, right;
};

/// The parsed payload. It is in the method's memory, so the processed bytes can be freed after init.
struct Plan {
  Header header;
  const ValueRecord* values;
  const InstructionRecord* instructions;
  const uint32_t* outputs;
  void** data;  // of each value; execute() sets those of the inputs
};

ScalarType dtype_of(const ValueRecord& value) { return static_cast<ScalarType>(value.dtype); }

bool is_supported(uint32_t dtype) {
  return dtype == static_cast<uint32_t>(ScalarType::Int) ||
         dtype == static_cast<uint32_t>(ScalarType::Long) ||
         dtype == static_cast<uint32_t>(ScalarType::Float);
}

/// Reads the payload in order.
class Bytes {
 public:
  Bytes(const void* data, size_t size)
      : at_(static_cast<const uint8_t*>(data)), start_(at_), end_(at_ + size) {}

  /// Copies `count` items to the method's memory. Returns null if the payload or the memory is too small.
  template <typename T>
  T* copy(uint32_t count, MemoryAllocator* memory) {
    const uint64_t size = uint64_t{count} * sizeof(T);
    if (size > static_cast<uint64_t>(end_ - at_)) return nullptr;
    T* items = memory->allocate_list<T>(count);
    if (items != nullptr && size != 0) memcpy(items, at_, static_cast<size_t>(size));
    at_ += size;
    return items;
  }
  void align(size_t alignment) {
    const size_t rest = static_cast<size_t>(at_ - start_) % alignment;
    const size_t skip = rest == 0 ? 0 : alignment - rest;
    at_ = skip > static_cast<size_t>(end_ - at_) ? end_ : at_ + skip;
  }

 private:
  const uint8_t* at_;
  const uint8_t* start_;
  const uint8_t* end_;
};

template <typename T>
void run(uint32_t operation, const void* left, const void* right, void* out, ptrdiff_t n) {
  const T* a = static_cast<const T*>(left);
  const T* b = static_cast<const T*>(right);
  T* result = static_cast<T*>(out);
  using U = std::conditional_t<std::is_integral<T>::value, std::make_unsigned<T>, std::common_type<T>>;
  using Wide = typename U::type;  // integers wrap around, like torch
  for (ptrdiff_t i = 0; i < n; ++i) {
    const Wide x = static_cast<Wide>(a[i]), y = static_cast<Wide>(b[i]);
    result[i] = static_cast<T>(operation == 0 ? x + y : x * y);
  }
}

class NullBackend final : public BackendInterface {
 public:
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec>) const override {
    MemoryAllocator* memory = context.get_runtime_allocator();
    Bytes bytes(processed->data(), processed->size());
    const Header* header = bytes.copy<Header>(1, memory);
    if (header == nullptr || memcmp(header->magic, kMagic, sizeof(kMagic)) != 0 ||
        uint64_t{header->inputs} + header->constants + header->instructions != header->values) {
      TORCHETTE_LOG(Error, "the payload does not belong to the null backend of this version");
      return Error::DelegateInvalidCompatibility;
    }
    const ValueRecord* values = bytes.copy<ValueRecord>(header->values, memory);
    const InstructionRecord* instructions = bytes.copy<InstructionRecord>(header->instructions, memory);
    const uint32_t* outputs = bytes.copy<uint32_t>(header->outputs, memory);
    void** data = memory->allocate_list<void*>(header->values);
    Plan* program = memory->allocate_list<Plan>(1);
    if (values == nullptr || instructions == nullptr || outputs == nullptr || data == nullptr ||
        program == nullptr) {
      TORCHETTE_LOG(Error,
                    "the payload of the null backend is truncated, or the method's memory is too small");
      return Error::MemoryAllocationFailed;
    }
    const uint32_t results = header->inputs + header->constants;
    for (uint32_t i = 0; i < header->values; ++i) {
      TORCHETTE_CHECK(is_supported(values[i].dtype) && values[i].capacity < (1u << 30),
                      DelegateInvalidCompatibility,
                      "value %u of the null backend has the unsupported dtype %u", i, values[i].dtype);
      const size_t nbytes = values[i].capacity * element_size(dtype_of(values[i]));
      if (i < header->inputs) {
        data[i] = nullptr;
      } else if (i < results) {
        bytes.align(8);
        data[i] = bytes.copy<uint8_t>(static_cast<uint32_t>(nbytes), memory);
      } else {
        data[i] = memory->allocate(nbytes, 16);
      }
      TORCHETTE_CHECK(i < header->inputs || data[i] != nullptr, MemoryAllocationFailed,
                      "value %u of the null backend has no memory", i);
    }
    for (uint32_t i = 0; i < header->instructions; ++i) {
      const InstructionRecord& it = instructions[i];
      TORCHETTE_CHECK(it.operation < 2 && it.left < results + i && it.right < results + i &&
                          values[it.left].dtype == values[results + i].dtype &&
                          values[it.right].dtype == values[results + i].dtype,
                      DelegateInvalidCompatibility, "instruction %u of the null backend is damaged", i);
    }
    for (uint32_t i = 0; i < header->outputs; ++i)
      TORCHETTE_CHECK(outputs[i] < header->values, DelegateInvalidCompatibility,
                      "output %u of the null backend is damaged", i);
    *program = {*header, values, instructions, outputs, data};
    processed->Free();
    return static_cast<DelegateHandle*>(program);
  }

  size_t num_inputs(DelegateHandle* handle) const override {
    return static_cast<const Plan*>(handle)->header.inputs;
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle,
                Span<Value*> arguments) const override {
    const Plan& program = *static_cast<const Plan*>(handle);
    const Header& header = program.header;
    TORCHETTE_CHECK(arguments.size() == size_t{header.inputs} + header.outputs, InvalidArgument,
                    "the null backend received %zu arguments, its program has %u inputs and %u outputs",
                    arguments.size(), header.inputs, header.outputs);
    if (arguments.size() == 0) return Error::Ok;
    // All tensors of a program have the shape of the first tensor.
    Tensor shape = arguments[0]->is_tensor() ? arguments[0]->to_tensor() : Tensor();
    for (size_t i = 0; i < arguments.size(); ++i) {
      TORCHETTE_CHECK(arguments[i]->is_tensor(), InvalidArgument,
                      "argument %zu of the null backend is not a tensor", i);
      const Tensor tensor = arguments[i]->to_tensor();
      const bool input = i < header.inputs;
      const uint32_t value = input ? static_cast<uint32_t>(i) : program.outputs[i - header.inputs];
      if (!input) TORCHETTE_TRY(resize_tensor(tensor, shape.sizes()));
      TORCHETTE_CHECK(tensor.scalar_type() == dtype_of(program.values[value]) &&
                          tensor.numel() == shape.numel() &&
                          (tensor.numel() == 0 || tensor.const_data_ptr() != nullptr),
                      InvalidArgument, "argument %zu of the null backend does not match its program", i);
      if (input) program.data[i] = tensor.mutable_data_ptr();
    }
    const ptrdiff_t n = shape.numel();
    for (uint32_t i = 0; i < header.values; ++i)
      TORCHETTE_CHECK(i < header.inputs || n <= int64_t{program.values[i].capacity}, InvalidArgument,
                      "value %u of the null backend has %u elements, the inputs have %td", i,
                      program.values[i].capacity, n);
    const uint32_t first = header.inputs + header.constants;
    for (uint32_t i = 0; i < header.instructions; ++i) {
      const InstructionRecord& it = program.instructions[i];
      const void *left = program.data[it.left], *right = program.data[it.right];
      void* out = program.data[first + i];
      // the instruction's index is its key in the debug_handle_map
      const EventTracerEntry event = event_tracer_start_profiling_delegate(
          context.event_tracer(), nullptr, static_cast<DelegateDebugIntId>(i));
      switch (dtype_of(program.values[first + i])) {
        case ScalarType::Int:
          run<int32_t>(it.operation, left, right, out, n);
          break;
        case ScalarType::Long:
          run<int64_t>(it.operation, left, right, out, n);
          break;
        default:
          run<float>(it.operation, left, right, out, n);
      }
      event_tracer_end_profiling_delegate(context.event_tracer(), event);
      if (context.event_tracer() != nullptr && context.event_tracer()->event_tracer_debug_level() >=
                                                   EventTracerDebugLogLevel::kIntermediateOutputs) {
        TensorImpl result = *shape.unsafe_impl();
        result.data = out;
        result.type = dtype_of(program.values[first + i]);
        event_tracer_log_output_delegate(context.event_tracer(), nullptr, static_cast<DelegateDebugIntId>(i),
                                         Tensor(&result));
      }
    }
    for (uint32_t i = 0; i < header.outputs; ++i) {
      const Tensor out = arguments[header.inputs + i]->to_tensor();
      if (out.nbytes() != 0) memcpy(out.mutable_data_ptr(), program.data[program.outputs[i]], out.nbytes());
    }
    return Error::Ok;
  }
};

NullBackend backend;

}  // namespace

Backend null_backend{"NullBackend", &backend};

}  // namespace torchette
