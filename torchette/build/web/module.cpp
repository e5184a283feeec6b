// SPDX-License-Identifier: BSD-3-Clause
// The runtime as a WebAssembly module. An instance contains one program. All memory is allocated
// consecutively in the instance's linear memory, which grows on demand and is freed with the instance.
// torchette.js calls these exports and depends on the layout of Description.
#include "torchette/extension/backends.h"
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/error_name.h"
#include "torchette/runtime/method.h"

#define TORCHETTE_WASM_EXPORT(name) extern "C" __attribute__((export_name(#name)))
#define TORCHETTE_WASM_IMPORT(name) extern "C" __attribute__((import_module("torchette"), import_name(#name)))

TORCHETTE_WASM_IMPORT(log) void host_log(int level, const char* message, size_t length);
TORCHETTE_WASM_IMPORT(now) double host_now();  // milliseconds
extern "C" uint8_t __heap_base;                // end of static data and the stack; defined by the linker

namespace torchette {
namespace {

constexpr size_t kPage = 65536;

uint8_t* heap_end = &__heap_base;  // the first free byte

/// Allocates zeroed bytes that were never used before. Returns null if the host provides no more memory.
void* allocate_bytes(size_t size, size_t alignment) {
  const size_t start = (reinterpret_cast<uintptr_t>(heap_end) + alignment - 1) & ~(alignment - 1);
  const size_t end = __builtin_wasm_memory_size(0) * kPage;
  // The last page of the address space stays free, so that no address wraps around.
  if (start > SIZE_MAX - kPage || size > SIZE_MAX - kPage - start) return nullptr;
  if (start + size > end &&
      __builtin_wasm_memory_grow(0, (start + size - end + kPage - 1) / kPage) == SIZE_MAX)
    return nullptr;
  heap_end = reinterpret_cast<uint8_t*>(start + size);
  return reinterpret_cast<void*>(start);
}

/// Allocates memory that is freed with the instance.
class PersistentAllocator final : public MemoryAllocator {
 public:
  PersistentAllocator() : MemoryAllocator(0, nullptr) {}
  void* allocate(size_t size, size_t alignment) override { return allocate_bytes(size, alignment); }
};

/// Allocates scratch memory of kernels. Grows in place if it is the last allocation.
class ScratchAllocator final : public MemoryAllocator {
 public:
  ScratchAllocator() : MemoryAllocator(0, nullptr) {}
  void* allocate(size_t size, size_t alignment) override {
    const size_t padding = (0 - reinterpret_cast<uintptr_t>(current_)) & (alignment - 1);
    if (padding + size > free_size() || padding + size < size) {
      const bool here = begin_ != nullptr && end_ == heap_end;
      const size_t start = alignment > 64 ? alignment : 64;
      auto* const more = static_cast<uint8_t*>(here ? allocate_bytes(padding + size - free_size(), 1)
                                                    : allocate_bytes(size, start));
      if (more == nullptr) return nullptr;
      // If it does not grow in place, old allocations stay valid until the reset, which keeps only the new
      // block.
      if (!here) begin_ = current_ = more;
      end_ = heap_end;
    }
    return bump(size, alignment);
  }
};

/// Allocates tensors with sizes that are known only at run time. Freed blocks are reused by size class, a
/// power of two.
class DynamicTensorAllocator final : public DynamicAllocator {
 public:
  void* reallocate(void* old, size_t size) override {
    if (old != nullptr) {
      auto* const block = static_cast<Block*>(old) - 1;
      block->next = free_[block->size_class];
      free_[block->size_class] = block;
    }
    if (size == 0 || size > SIZE_MAX / 4) return nullptr;
    const int size_class = 32 - __builtin_clz(static_cast<unsigned>(size - 1) | 15u);
    Block* block = free_[size_class];
    if (block != nullptr) {
      free_[size_class] = block->next;
    } else {
      block = static_cast<Block*>(allocate_bytes(sizeof(Block) + (size_t{1} << size_class), alignof(Block)));
      if (block == nullptr) return nullptr;
      block->size_class = size_class;
    }
    return block + 1;
  }

 private:
  struct alignas(16) Block {
    int size_class;
    Block* next;
  };
  Block* free_[32] = {};
};

/// A loaded method with its memory. Never destroyed.
struct Loaded {
  HierarchicalAllocator planned;
  MemoryManager manager;
  Span<Span<uint8_t>> input_memory;  // memory of unplanned inputs
  Method* method;
};

extension::BufferDataLoader* loader = nullptr;
Program* program = nullptr;
Loaded** methods = nullptr;  // null if not loaded
PersistentAllocator persistent;
ScratchAllocator scratch;
DynamicTensorAllocator dynamic;

/// A value, for JavaScript; `kind` determines which members are set.
struct Description {
  Tag kind;
  uint32_t dtype;
  uint32_t dim;
  uint32_t nbytes;
  void* data;
  TensorShapeDynamism dynamism;
  double number;
  int64_t integer;
  SizesType sizes[kMaxDim];  // maximum sizes before the method is loaded
  SizesType least[kMaxDim];
  DimOrderType order[kMaxDim];
};
Description description;

/// Allocates `count` objects of T without constructing them.
template <typename T>
T* allocate_array(size_t count) {
  return count > SIZE_MAX / sizeof(T) ? nullptr
                                      : static_cast<T*>(allocate_bytes(count * sizeof(T), alignof(T)));
}

Result<MethodMeta> meta_of(size_t method) {
  const Result<const char*> name = program->get_method_name(method);
  return name.ok() ? program->method_meta(*name) : name.error();
}

template <typename T>
void describe_tensor(const T& tensor) {
  description.dtype = static_cast<uint32_t>(tensor.scalar_type());
  description.dim = static_cast<uint32_t>(tensor.sizes().size());
  description.nbytes = tensor.nbytes();
  description.dynamism = tensor.shape_dynamism();
  for (size_t d = 0; d < description.dim; ++d) {
    description.sizes[d] = description.least[d] = tensor.sizes()[d];
    description.order[d] = tensor.dim_order()[d];
  }
}

Error describe_info(size_t method, bool output, size_t index) {
  const Result<MethodMeta> meta = meta_of(method);
  if (!meta.ok()) return meta.error();
  const Result<Tag> tag = output ? meta->output_tag(index) : meta->input_tag(index);
  if (!tag.ok()) return tag.error();
  description.kind = *tag;
  if (*tag != Tag::Tensor) return Error::Ok;
  const Result<TensorInfo> info = output ? meta->output_tensor_meta(index) : meta->input_tensor_meta(index);
  if (!info.ok()) return info.error();
  describe_tensor(*info);
  if (info->shape_dynamism() == TensorShapeDynamism::STATIC) return Error::Ok;
  const bool known = info->ranges().size() == 2 * description.dim;
  for (size_t d = 0; d < description.dim; ++d) description.least[d] = known ? info->ranges()[2 * d] : 0;
  return Error::Ok;
}

Error load(size_t index) {
  if (methods[index] != nullptr) return Error::Ok;
  const Result<MethodMeta> meta = meta_of(index);
  if (!meta.ok()) return meta.error();
  const size_t count = meta->num_memory_planned_buffers();
  auto* const loaded = allocate_array<Loaded>(1);
  auto* const buffers = allocate_array<Span<uint8_t>>(count);
  auto* const input_memory = allocate_array<Span<uint8_t>>(meta->num_inputs());
  auto* const method = allocate_array<Method>(1);
  TORCHETTE_CHECK(loaded != nullptr && buffers != nullptr && input_memory != nullptr && method != nullptr,
                  MemoryAllocationFailed, "cannot allocate method %zu", index);
  for (size_t i = 0; i < count; ++i) {
    const Result<int64_t> size = meta->memory_planned_buffer_size(i);
    if (!size.ok()) return size.error();
    const bool fits = *size >= 0 && static_cast<uint64_t>(*size) <= SIZE_MAX;
    void* const bytes = fits ? allocate_bytes(static_cast<size_t>(*size), 16) : nullptr;
    TORCHETTE_CHECK(bytes != nullptr, MemoryAllocationFailed,
                    "cannot allocate the %lld bytes of planned buffer %zu", static_cast<long long>(*size), i);
    new (buffers + i) Span<uint8_t>(static_cast<uint8_t*>(bytes), static_cast<size_t>(*size));
  }
  new (loaded) Loaded{HierarchicalAllocator({buffers, count}),
                      MemoryManager(&persistent, &loaded->planned, &scratch, &dynamic),
                      {input_memory, meta->num_inputs()},
                      method};
  allocate_bytes(0, 8);
  Result<Method> made = program->load_method(meta->name(), &loaded->manager);
  if (!made.ok()) return made.error();
  new (method) Method(std::move(*made));
  for (size_t i = 0; i < method->outputs_size(); ++i) {
    if (!method->output_needs_memory(i)) continue;
    const Result<TensorInfo> info = meta->output_tensor_meta(i);
    if (!info.ok()) return info.error();
    void* const bytes = allocate_bytes(info->nbytes(), 16);
    TORCHETTE_CHECK(bytes != nullptr, MemoryAllocationFailed, "cannot allocate output %zu of %zu bytes", i,
                    info->nbytes());
    TORCHETTE_TRY(method->set_output_data_ptr(bytes, info->nbytes(), i));
  }
  methods[index] = loaded;
  return Error::Ok;
}

/// Sets input `index` to a tensor with description.sizes. The caller then writes its bytes to
/// description.data.
Error set_tensor(const Loaded& loaded, size_t index, ScalarType type, size_t dim) {
  const Value& own = loaded.method->get_input(index);
  TORCHETTE_CHECK(own.is_tensor() && dim <= kMaxDim, InvalidArgument,
                  "input %zu is not a tensor of %zu dimensions", index, dim);
  // The dim order of the method.
  const Tensor target = own.to_tensor();
  const auto rank = static_cast<size_t>(target.dim());
  StridesType strides[kMaxDim];
  DimOrderType order[kMaxDim];
  for (size_t d = 0; d < dim; ++d)
    order[d] = dim == rank ? target.dim_order()[d] : static_cast<DimOrderType>(d);
  const Result<int32_t> numel = dense_strides({description.sizes, dim}, order, strides);
  if (!numel.ok()) return numel.error();
  TensorImpl impl = {};
  impl.sizes = description.sizes;
  impl.strides = strides;
  impl.dim_order = order;
  impl.numel = *numel;
  impl.capacity = static_cast<size_t>(*numel);
  impl.dim = static_cast<uint8_t>(dim);
  impl.type = type;
  const size_t nbytes = impl.capacity * element_size(type);
  const Result<TensorInfo> info = loaded.method->method_meta().input_tensor_meta(index);
  if (!info.ok()) return info.error();
  if (info->is_memory_planned()) {
    impl.data = target.mutable_data_ptr();
  } else {
    Span<uint8_t>& memory = loaded.input_memory[index];
    if (memory.size() < nbytes || memory.data() == nullptr) {
      const bool bound =
          info->shape_dynamism() != TensorShapeDynamism::DYNAMIC_UNBOUND && info->nbytes() > nbytes;
      const size_t size = bound ? info->nbytes() : nbytes;
      void* const bytes = allocate_bytes(size, 16);
      TORCHETTE_CHECK(bytes != nullptr, MemoryAllocationFailed, "cannot allocate input %zu of %zu bytes",
                      index, size);
      memory = {static_cast<uint8_t*>(bytes), size};
    }
    impl.data = memory.data();
  }
  TORCHETTE_TRY(loaded.method->set_input(Value(Tensor(&impl)), index));
  description.data = impl.data;
  description.nbytes = nbytes;
  return Error::Ok;
}

void describe_value(const Value& value) {
  description.kind = value.tag();
  if (value.is_tensor()) {
    describe_tensor(value.to_tensor());
    description.data = value.to_tensor().mutable_data_ptr();
  } else if (value.is_double()) {
    description.number = value.to_double();
  } else if (value.is_scalar()) {
    description.integer = value.to_int();
  }
}

uint32_t code(Error error) { return static_cast<uint32_t>(error); }

}  // namespace

// torchette.js opens one program, passes only valid indices, and loads a method before it uses it.

/// Allocates memory for the bytes of a program; returns null on failure.
TORCHETTE_WASM_EXPORT(reserve) void* export_reserve(size_t size) { return allocate_bytes(size, 16); }
TORCHETTE_WASM_EXPORT(open) uint32_t export_open(const void* data, size_t size) {
  loader = allocate_array<extension::BufferDataLoader>(1);
  program = allocate_array<Program>(1);
  if (loader == nullptr || program == nullptr) return code(Error::MemoryAllocationFailed);
  const Error registered = register_all_backends();
  if (registered != Error::Ok) return code(registered);
  new (loader) extension::BufferDataLoader(data, size);
  Result<Program> opened = Program::load(loader);
  if (!opened.ok()) return code(opened.error());
  new (program) Program(std::move(*opened));
  methods = allocate_array<Loaded*>(program->num_methods());
  return code(methods == nullptr ? Error::MemoryAllocationFailed : Error::Ok);
}
TORCHETTE_WASM_EXPORT(num_methods) size_t export_num_methods() { return program->num_methods(); }
TORCHETTE_WASM_EXPORT(method_name) const char* export_method_name(size_t method) {
  const Result<const char*> name = program->get_method_name(method);
  return name.ok() ? *name : "";
}
TORCHETTE_WASM_EXPORT(num_inputs) size_t export_num_inputs(size_t method) {
  const Result<MethodMeta> meta = meta_of(method);
  return meta.ok() ? meta->num_inputs() : 0;
}
TORCHETTE_WASM_EXPORT(num_outputs) size_t export_num_outputs(size_t method) {
  const Result<MethodMeta> meta = meta_of(method);
  return meta.ok() ? meta->num_outputs() : 0;
}
TORCHETTE_WASM_EXPORT(description) Description* export_description() { return &description; }
TORCHETTE_WASM_EXPORT(describe) uint32_t export_describe(size_t method, int output, size_t index) {
  return code(describe_info(method, output != 0, index));
}
TORCHETTE_WASM_EXPORT(load) uint32_t export_load(size_t method) { return code(load(method)); }
TORCHETTE_WASM_EXPORT(set_tensor)
uint32_t export_set_tensor(size_t method, size_t index, uint32_t dtype, size_t dim) {
  return code(set_tensor(*methods[method], index, static_cast<ScalarType>(dtype), dim));
}
TORCHETTE_WASM_EXPORT(set_number)
uint32_t export_set_number(size_t method, size_t index, Tag kind, double number, int64_t integer) {
  const Value value = kind == Tag::Double ? Value(number)
                      : kind == Tag::Int  ? Value(integer)
                                          : Value(integer != 0);
  return code(methods[method]->method->set_input(value, index));
}
TORCHETTE_WASM_EXPORT(execute) uint32_t export_execute(size_t method) {
  return code(methods[method]->method->execute());
}
TORCHETTE_WASM_EXPORT(output) void export_output(size_t method, size_t index) {
  describe_value(methods[method]->method->get_output(index));
}
TORCHETTE_WASM_EXPORT(error_name) const char* export_error_name(uint32_t error) {
  return extension::error_name(static_cast<Error>(error));
}
/// Returns the used bytes of the linear memory: static data, stack, program and allocations.
TORCHETTE_WASM_EXPORT(used) size_t export_used() { return reinterpret_cast<size_t>(heap_end); }

}  // namespace torchette

// Platform functions.
extern "C" {
void torchette_pal_init(void) {}
void torchette_pal_abort(void) { __builtin_trap(); }
torchette_timestamp_t torchette_pal_current_ticks(void) {
  return static_cast<torchette_timestamp_t>(host_now() * 1e6);
}
torchette_tick_ratio_t torchette_pal_ticks_to_ns_multiplier(void) { return {1, 1}; }
void torchette_pal_emit_log_message(torchette_timestamp_t, torchette_log_level_t level, const char*,
                                    const char*, size_t, const char* message, size_t length) {
  host_log(level, message, length);
}
void* torchette_pal_allocate(size_t size) { return torchette::allocate_bytes(size, 16); }
void torchette_pal_free(void*) {}
}
