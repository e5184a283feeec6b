// SPDX-License-Identifier: BSD-3-Clause
// Runs a program from static memory alone: from opening it to its outputs every call of malloc ends the
// process. Usage: heapless MODEL.pte INPUTS OUTPUTS, the latter two files of raw bytes, tensor after tensor.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "torchette/extension/buffer_data_loader.h"
#include "torchette/runtime/method.h"

using namespace torchette;

namespace {

bool armed = false;  // from now on nothing may be allocated
alignas(64) uint8_t file_pool[128 << 20], input_pool[4 << 20], method_pool[8 << 20],
    planned_pool[64 << 20], temp_pool[32 << 20], output_pool[4 << 20];

void forbid(const char* what) {
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

static Error run(size_t file_size, size_t* output_size) {
  extension::BufferDataLoader loader(file_pool, file_size);
  Result<Program> program = Program::load(&loader, Program::Verification::InternalConsistency);
  if (!program.ok()) return program.error();
  Result<MethodMeta> meta = program->method_meta("forward");
  if (!meta.ok()) return meta.error();

  Span<uint8_t> buffers[4];
  size_t used = 0;
  if (meta->num_memory_planned_buffers() > 4) return Error::NotSupported;
  for (size_t i = 0; i < meta->num_memory_planned_buffers(); ++i) {
    Result<int64_t> size = meta->memory_planned_buffer_size(i);
    if (!size.ok()) return size.error();
    buffers[i] = {planned_pool + used, static_cast<size_t>(*size)};
    used += (static_cast<size_t>(*size) + 63) / 64 * 64;
    if (used > sizeof(planned_pool)) return Error::MemoryAllocationFailed;
  }
  MemoryAllocator method_memory(sizeof(method_pool), method_pool), temp_memory(sizeof(temp_pool), temp_pool);
  HierarchicalAllocator planned_memory({buffers, meta->num_memory_planned_buffers()});
  MemoryManager memory(&method_memory, &planned_memory, &temp_memory);
  Result<Method> method = program->load_method("forward", &memory);
  if (!method.ok()) return method.error();

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

int main(int, char** argv) {
  const size_t file_size = read_file(argv[1], file_pool, sizeof(file_pool));
  read_file(argv[2], input_pool, sizeof(input_pool));
  size_t output_size = 0;
  armed = true;
  const Error error = run(file_size, &output_size);
  armed = false;
  if (error != Error::Ok) {
    fprintf(stderr, "heapless: error 0x%x\n", static_cast<unsigned>(error));
    return 1;
  }
  FILE* file = fopen(argv[3], "wb");
  const bool written = file != nullptr && fwrite(output_pool, 1, output_size, file) == output_size;
  return file != nullptr && fclose(file) == 0 && written ? 0 : 1;
}
