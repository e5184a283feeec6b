// SPDX-License-Identifier: BSD-3-Clause
// Mutates a program many times and loads and executes each: nothing may crash, whatever the bytes. Built with
// AddressSanitizer and UndefinedBehaviorSanitizer. Arguments: the file, how many mutations, the seed.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "test_kernels.h"
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/runtime/method.h"

using namespace torchette;

#ifndef TORCHETTE_REAL_KERNELS  // else the library's, and the file is a model
namespace torchette {

Span<const Kernels> kernel_table() { return test_table(); }

}  // namespace torchette
#endif

namespace {

constexpr size_t kLargestArena = 1 << 20;

enum class Outcome { NotOpened, NotLoaded, Failed, Ran };

Outcome try_program(const uint8_t* data, size_t size) {
  extension::BufferDataLoader loader(data, size);
  const Result<Program> program = Program::load(&loader, Program::Verification::InternalConsistency);
  if (!program.ok()) return Outcome::NotOpened;
  const Result<const char*> name = program->get_method_name(0);
  if (!name.ok()) return Outcome::NotOpened;
  const Result<MethodMeta> meta = program->method_meta(*name);
  for (size_t i = 0; i < meta->num_inputs() && i < 100; ++i) (void)meta->input_tensor_meta(i).ok();
  for (size_t i = 0; i < meta->num_outputs() && i < 100; ++i) (void)meta->output_tensor_meta(i).ok();
  (void)meta->num_attributes();
  (void)meta->attribute_tensor_meta(0).ok();
  (void)meta->num_instructions();
  // exactly as large as the file says, so that the sanitizer sees each byte beyond
  std::vector<std::vector<uint64_t>> buffers;
  std::vector<Span<uint8_t>> spans;
  for (size_t i = 0; i < meta->num_memory_planned_buffers() && i < 100; ++i) {
    const Result<int64_t> bytes = meta->memory_planned_buffer_size(i);
    if (!bytes.ok() || static_cast<size_t>(*bytes) > kLargestArena) return Outcome::NotLoaded;
    buffers.emplace_back((static_cast<size_t>(*bytes) + 7) / 8);
    spans.emplace_back(reinterpret_cast<uint8_t*>(buffers.back().data()), static_cast<size_t>(*bytes));
  }
  HierarchicalAllocator planned({spans.data(), spans.size()});
  extension::MallocMemoryAllocator method_memory, temp;
  MemoryManager manager(&method_memory, &planned, &temp);
  Result<Method> method = program->load_method(*name, &manager);
  if (!method.ok()) return Outcome::NotLoaded;

  // each input as large as the method takes it, in memory of its own
  std::vector<std::vector<uint64_t>> inputs(method->inputs_size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    Value value = method->get_input(i);
    TensorImpl impl;
    if (value.is_tensor()) {
      impl = *value.to_tensor().unsafe_impl();
      const size_t bytes = static_cast<size_t>(impl.numel) * element_size(impl.type);
      if (bytes > kLargestArena) return Outcome::Failed;
      inputs[i].resize((bytes + 7) / 8);
      impl.data = inputs[i].data();
      value = Value(Tensor(&impl));
    }
    if (method->set_input(value, i) != Error::Ok) return Outcome::Failed;
  }
  std::vector<std::vector<uint64_t>> outputs(method->outputs_size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!method->output_needs_memory(i)) continue;
    const TensorImpl& output = *method->get_output(i).to_tensor().unsafe_impl();
    const size_t bytes = output.capacity * element_size(output.type);
    if (bytes > kLargestArena) return Outcome::Failed;
    outputs[i].resize((bytes + 7) / 8 + 1);
    if (method->set_output_data_ptr(outputs[i].data(), bytes, i) != Error::Ok) return Outcome::Failed;
  }
  // stepwise: a jump backwards may make a loop without end
  for (int steps = 0; steps < 100; ++steps) {
    const Error error = method->step();
    if (error == Error::EndOfMethod) break;
    if (error != Error::Ok) return Outcome::Failed;
  }
  for (size_t i = 0; i < method->outputs_size(); ++i) {
    const Value& output = method->get_output(i);
    if (output.is_tensor() && output.to_tensor().const_data_ptr() != nullptr) touch(output.to_tensor());
  }
  return method->reset() == Error::Ok ? Outcome::Ran : Outcome::Failed;
}

}  // namespace

int main(int argc, char** argv) {
  PalImpl quiet;
  quiet.emit_log_message = [](torchette_timestamp_t, torchette_log_level_t, const char*, const char*, size_t,
                              const char*, size_t) {};
  register_pal(quiet);
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const long count = argc > 2 ? std::atol(argv[2]) : 1000;
  std::mt19937 random(argc > 3 ? static_cast<unsigned>(std::atoi(argv[3])) : 0);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  long outcomes[4] = {};
  if (try_program(bytes.data(), bytes.size()) != Outcome::Ran) {
    std::fprintf(stderr, "the file itself does not run\n");
    return 1;
  }
  constexpr uint32_t kNumbers[] = {0,    1,      2,      4,          0x7f,       0x80,
                                   0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff};
  for (long i = 0; i < count; ++i) {
    std::vector<uint8_t> mutant = bytes;
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      const size_t at = below(mutant.size());
      switch (below(6)) {
        case 0:
          mutant[at] ^= static_cast<uint8_t>(1u << below(8));
          break;
        case 1:
          mutant[at] = static_cast<uint8_t>(random());
          break;
        case 2: {  // a telling number, aligned as the file's are
          const uint32_t number = kNumbers[below(sizeof(kNumbers) / sizeof(*kNumbers))];
          if (at / 4 * 4 + 4 <= mutant.size()) std::memcpy(&mutant[at / 4 * 4], &number, 4);
          break;
        }
        case 3: {  // a small number where another was: indices, offsets, sizes
          mutant[at / 4 * 4] = static_cast<uint8_t>(below(64));
          break;
        }
        case 4: {  // a splice
          const size_t from = below(mutant.size()) / 4 * 4, to = at / 4 * 4, n = 4 * (1 + below(8));
          if (from + n <= mutant.size() && to + n <= mutant.size())
            std::memmove(&mutant[to], &mutant[from], n);
          break;
        }
        default:
          if (below(4) == 0 && mutant.size() > 8) mutant.resize(below(mutant.size()) + 1);
      }
    }
    // in memory of exactly its size, aligned as a file's
    auto* exact = static_cast<uint8_t*>(std::aligned_alloc(16, (mutant.size() + 15) / 16 * 16));
    uint8_t* start = exact + ((mutant.size() + 15) / 16 * 16 - mutant.size()) / 16 * 16;
    std::memcpy(start, mutant.data(), mutant.size());
    ++outcomes[static_cast<int>(try_program(start, mutant.size()))];
    std::free(exact);
  }
  std::printf("%ld not opened, %ld not loaded, %ld failed, %ld ran\n", outcomes[0], outcomes[1], outcomes[2],
              outcomes[3]);
  return 0;
}
