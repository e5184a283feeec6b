// SPDX-License-Identifier: BSD-3-Clause
// The smallest useful program: loads a method from memory, sets an input, executes it, reads the output. The
// part of the core that it links is the size of the core in a firmware image. It is compiled and measured,
// not run.
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/runtime/method.h"

using namespace torchette;

namespace torchette {
Span<const Kernels> kernel_table() { return {}; }
}  // namespace torchette

extern const unsigned char model[];
extern const size_t model_size;
const unsigned char model[16] = {};
const size_t model_size = sizeof(model);

int main() {
  uint8_t method_pool[512], planned_pool[512];
  Span<uint8_t> planned_span{planned_pool, sizeof(planned_pool)};
  MemoryAllocator method_memory{sizeof(method_pool), method_pool};
  HierarchicalAllocator planned_memory{{&planned_span, 1}};
  MemoryManager memory{&method_memory, &planned_memory};
  extension::BufferDataLoader loader(model, model_size);
  Result<Program> program = Program::load(&loader, Program::Verification::InternalConsistency);
  if (!program.ok()) return static_cast<int>(program.error());
  Result<Method> method = program->load_method("forward", &memory);
  if (!method.ok()) return static_cast<int>(method.error());
  Error error = method->set_input(Value(int64_t{1}), 0);
  if (error == Error::Ok) error = method->execute();
  if (error != Error::Ok) return static_cast<int>(error);
  return method->get_output(0).is_tensor();
}
