// SPDX-License-Identifier: BSD-3-Clause
// Loads, executes and destroys methods of one program concurrently, each in a separate thread, on the
// backends of the build, under the thread sanitizer. Argument: a completely delegated program with one input.
#include <cstdio>
#include <thread>
#include <vector>

#include "torchette/extension/file_data_loader.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/runtime/backend.h"
#include "torchette/runtime/method.h"

using namespace torchette;

namespace torchette {
extern Backend null_backend;
#ifdef WITH_XNNPACK
extern Backend xnnpack_backend;
#endif
Span<const Kernels> kernel_table() { return {}; }
}  // namespace torchette

namespace {

Error work(const Program& program) {
  for (int turn = 0; turn < 5; ++turn) {
    const Result<MethodMeta> meta = program.method_meta("forward");
    if (!meta.ok()) return meta.error();
    std::vector<std::vector<uint64_t>> buffers;
    std::vector<Span<uint8_t>> spans;
    for (size_t i = 0; i < meta->num_memory_planned_buffers(); ++i) {
      const size_t bytes = static_cast<size_t>(*meta->memory_planned_buffer_size(i));
      buffers.emplace_back((bytes + 7) / 8);
      spans.emplace_back(reinterpret_cast<uint8_t*>(buffers.back().data()), bytes);
    }
    HierarchicalAllocator planned({spans.data(), spans.size()});
    extension::MallocMemoryAllocator memory, temp;
    MemoryManager manager(&memory, &planned, &temp);
    Result<Method> method = program.load_method("forward", &manager);
    if (!method.ok()) return method.error();
    TensorImpl impl = *method->get_input(0).to_tensor().unsafe_impl();
    std::vector<float> input(static_cast<size_t>(impl.numel), 1.0f);
    impl.data = input.data();
    TORCHETTE_TRY(method->set_input(Value(Tensor(&impl)), 0));
    for (int call = 0; call < 5; ++call) TORCHETTE_TRY(method->execute());
  }
  return Error::Ok;
}

}  // namespace

int main(int, char** argv) {
  if (register_backend(null_backend) != Error::Ok) return 2;
#ifdef WITH_XNNPACK
  if (register_backend(xnnpack_backend) != Error::Ok) return 2;
#endif
  auto loader = extension::FileDataLoader::from(argv[1]);
  if (!loader.ok()) return 2;
  const Result<Program> program = Program::load(&*loader);
  if (!program.ok()) return 2;
  Error errors[4] = {};
  std::vector<std::thread> threads;
  for (Error& error : errors) threads.emplace_back([&] { error = work(*program); });
  for (std::thread& thread : threads) thread.join();
  int failures = 0;
  for (const Error error : errors) failures += error != Error::Ok;
  std::printf("%d failures\n", failures);
  return failures;
}
