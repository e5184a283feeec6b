// SPDX-License-Identifier: BSD-3-Clause
// Runs a program from static memory: every call of malloc between opening the program and its outputs ends
// the process. Usage: heapless MODEL.pte INPUTS OUTPUTS METHOD TEMP PLANNED... INPUTS and OUTPUTS are files
// with the raw bytes of all tensors in sequence. METHOD, TEMP and PLANNED are the bytes of the method
// allocator, the temp allocator and each planned buffer. If INPUTS is "-", the program stops after loading
// the method. If TEMP is "-", there is no temp allocator and the platform has no memory; if it is "heap",
// there is no temp allocator but the platform has memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "torchette/extension/buffer_data_loader.h"
#include "torchette/runtime/backend.h"
#include "torchette/runtime/method.h"

namespace torchette {
extern Backend null_backend;
}
using namespace torchette;

namespace {

constexpr int kMostBuffers = 4;
bool armed = false;  // whether allocations are forbidden
bool has_temp = true;
alignas(64) uint8_t file_pool[128 << 20], input_pool[4 << 20], method_pool[8 << 20],
    planned_pool[64 << 20], temp_pool[32 << 20], output_pool[4 << 20];

[[maybe_unused]] void forbid(const char* what) {
  if (!armed) return;
  armed = false;
  fprintf(stderr, "heapless: %s was called\n", what);
  abort();
}

size_t read_file(const char* path, uint8_t* to, size_t room) {
  FILE* file = fopen(path, "rb");
  if (file == nullptr) return 0;
  const size_t n = fread(to, 1, room, file);
  fclose(file);
  return n;
}

}  // namespace

#ifdef __GLIBC__  // other C libraries lack aliases of these; only the pool sizes are checked there
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void __libc_free(void*);
void* malloc(size_t size) {
  forbid("malloc");
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  forbid("calloc");
  return __libc_calloc(count, size);
}
void* realloc(void* data, size_t size) {
  forbid("realloc");
  return __libc_realloc(data, size);
}
void free(void* data) {
  forbid("free");
  __libc_free(data);
}
}
#endif

static Error run(size_t file_size, Span<const size_t> sizes, bool load_only, size_t* output_size) {
  TORCHETTE_TRY(register_backend(null_backend));
  extension::BufferDataLoader loader(file_pool, file_size);
  Result<Program> program = Program::load(&loader, Program::Verification::InternalConsistency);
  if (!program.ok()) return program.error();

  Span<uint8_t> buffers[kMostBuffers];
  size_t used = 0;
  for (size_t i = 2; i < sizes.size(); ++i) {
    buffers[i - 2] = {planned_pool + used, sizes[i]};
    used += (sizes[i] + 63) / 64 * 64;
  }
  if (sizes[0] > sizeof(method_pool) || sizes[1] > sizeof(temp_pool) || used > sizeof(planned_pool))
    return Error::InvalidArgument;
  MemoryAllocator method_memory(sizes[0], method_pool), temp_memory(sizes[1], temp_pool);
  HierarchicalAllocator planned_memory({buffers, sizes.size() - 2});
  MemoryManager memory(&method_memory, &planned_memory, has_temp ? &temp_memory : nullptr);
  Result<Method> method = program->load_method("forward", &memory);
  if (!method.ok() || load_only) return method.error();

  for (int round = 0; round < 2; ++round) {
    size_t at = 0;
    for (size_t i = 0; i < method->inputs_size(); ++i) {
      TensorImpl impl = *method->get_input(i).to_tensor().unsafe_impl();
      impl.data = input_pool + at;
      TORCHETTE_TRY(method->set_input(Value(Tensor(&impl)), i));
      at += Tensor(&impl).nbytes();
    }
    TORCHETTE_TRY(method->execute());
  }
  for (size_t i = 0; i < method->outputs_size(); ++i) {
    const Tensor out = method->get_output(i).to_tensor();
    memcpy(output_pool + *output_size, out.const_data_ptr(), out.nbytes());
    *output_size += out.nbytes();
  }
  return Error::Ok;
}

int main(int argc, char** argv) {
  size_t sizes[2 + kMostBuffers];
  const int count = argc - 4;
  if (count < 2 || count > 2 + kMostBuffers) return 2;
  for (int i = 0; i < count; ++i) sizes[i] = strtoull(argv[4 + i], nullptr, 10);
  const size_t file_size = read_file(argv[1], file_pool, sizeof(file_pool));
  const bool load_only = strcmp(argv[2], "-") == 0, heap = strcmp(argv[5], "heap") == 0;
  has_temp = !heap && strcmp(argv[5], "-") != 0;
  PalImpl without_memory;
  without_memory.allocate = [](size_t) -> void* { return nullptr; };
  if (!heap) register_pal(without_memory);
  if (!load_only) read_file(argv[2], input_pool, sizeof(input_pool));
  size_t output_size = 0;
  armed = !heap;
  const Error error = run(file_size, {sizes, static_cast<size_t>(count)}, load_only, &output_size);
  armed = false;
  if (error != Error::Ok) {
    fprintf(stderr, "heapless: error 0x%x\n", static_cast<unsigned>(error));
    return 1;
  }
  FILE* file = fopen(argv[3], "wb");
  const bool written = file != nullptr && fwrite(output_pool, 1, output_size, file) == output_size;
  return file != nullptr && fclose(file) == 0 && written ? 0 : 1;
}
