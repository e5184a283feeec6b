// SPDX-License-Identifier: BSD-3-Clause
// Prints the MethodMeta of every method of a program, one property per line, for
// tests/models/test_metadata.py. Usage: print_meta MODEL.pte
#include <cstdio>
#include <cstdlib>

#include "torchette/extension/file_data_loader.h"
#include "torchette/runtime/method_meta.h"
#include "torchette/runtime/program.h"

using namespace torchette;

namespace {

template <class T>
T take(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "error %u\n", static_cast<unsigned>(result.error()));
    std::exit(1);
  }
  return std::move(*result);
}

void print(const char* what, Tag tag, const TensorInfo* tensor) {
  std::printf("%s tag=%u", what, static_cast<unsigned>(tag));
  if (tensor != nullptr) {
    std::printf(" dtype=%d sizes=", static_cast<int>(tensor->scalar_type()));
    for (const auto size : tensor->sizes()) std::printf("%d,", static_cast<int>(size));
    std::printf(" dim_order=");
    for (const auto dim : tensor->dim_order()) std::printf("%d,", static_cast<int>(dim));
    std::printf(" nbytes=%zu planned=%d dynamic=%d name=%.*s", tensor->nbytes(), tensor->is_memory_planned(),
                tensor->shape_dynamism() != TensorShapeDynamism::STATIC,
                static_cast<int>(tensor->name().size()), tensor->name().data());
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  extension::FileDataLoader loader = take(extension::FileDataLoader::from(argv[1]));
  const Program program = take(Program::load(&loader));
  for (size_t m = 0; m < program.num_methods(); ++m) {
    const MethodMeta meta = take(program.method_meta(take(program.get_method_name(m))));
    std::printf("method %s\n", meta.name());
    for (size_t i = 0; i < meta.num_inputs(); ++i) {
      const Tag tag = take(meta.input_tag(i));
      if (tag == Tag::Tensor) {
        const TensorInfo info = take(meta.input_tensor_meta(i));
        print("input", tag, &info);
      } else {
        print("input", tag, nullptr);
      }
    }
    for (size_t i = 0; i < meta.num_outputs(); ++i) {
      const Tag tag = take(meta.output_tag(i));
      if (tag == Tag::Tensor) {
        const TensorInfo info = take(meta.output_tensor_meta(i));
        print("output", tag, &info);
      } else {
        print("output", tag, nullptr);
      }
    }
    for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i)
      std::printf("planned %lld\n", static_cast<long long>(take(meta.memory_planned_buffer_size(i))));
    for (size_t i = 0; i < meta.num_backends(); ++i)
      std::printf("backend %s\n", take(meta.get_backend_name(i)));
    std::printf("instructions %zu\n", meta.num_instructions());
  }
  return 0;
}
