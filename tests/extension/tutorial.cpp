// SPDX-License-Identifier: BSD-3-Clause
// A program that uses only the headers and names of ExecuTorch's C++ runtime. It fills the inputs with ones,
// runs a method from static memory, and prints the elements of its first output. Like ExecuTorch's tutorial,
// it uses no temp allocator. Arguments: a .pte file, and optionally the name of a method.
#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/core/hierarchical_allocator.h>
#include <executorch/runtime/core/memory_allocator.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/method_meta.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/log.h>
#include <executorch/runtime/platform/runtime.h>

#include <cstdio>
#include <memory>
#include <vector>

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using executorch::extension::FileDataLoader;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::MemoryAllocator;
using executorch::runtime::MemoryManager;
using executorch::runtime::Method;
using executorch::runtime::MethodMeta;
using executorch::runtime::Program;
using executorch::runtime::Result;
using executorch::runtime::Span;
using executorch::runtime::Tag;
using executorch::runtime::TensorInfo;

static uint8_t method_pool[1024 * 1024U];

int main(int argc, char** argv) {
  executorch::runtime::runtime_init();
  ET_CHECK_MSG(argc > 1, "the path of a .pte file is missing");

  Result<FileDataLoader> loader = FileDataLoader::from(argv[1]);
  ET_CHECK_MSG(loader.ok(), "no loader: 0x%x", static_cast<unsigned>(loader.error()));
  Result<Program> program = Program::load(&loader.get());
  if (!program.ok()) {
    ET_LOG(Error, "no program: 0x%x", static_cast<unsigned>(program.error()));
    return 1;
  }
  const char* method_name = argc > 2 ? argv[2] : nullptr;
  if (method_name == nullptr) {
    const Result<const char*> first = program->get_method_name(0);
    ET_CHECK(first.ok());
    method_name = *first;
  }
  Result<MethodMeta> meta = program->method_meta(method_name);
  if (!meta.ok()) return 1;

  MemoryAllocator method_allocator{MemoryAllocator(sizeof(method_pool), method_pool)};
  std::vector<std::unique_ptr<uint8_t[]>> buffers;
  std::vector<Span<uint8_t>> spans;
  for (size_t id = 0; id < meta->num_memory_planned_buffers(); ++id) {
    const size_t size = static_cast<size_t>(meta->memory_planned_buffer_size(id).get());
    buffers.push_back(std::make_unique<uint8_t[]>(size));
    spans.push_back({buffers.back().get(), size});
  }
  HierarchicalAllocator planned_memory({spans.data(), spans.size()});
  MemoryManager memory_manager(&method_allocator, &planned_memory);

  Result<Method> method = program->load_method(method_name, &memory_manager, nullptr, nullptr);
  if (!method.ok()) return 1;

  std::vector<std::vector<float>> data;
  for (size_t i = 0; i < meta->num_inputs(); ++i) {
    const Result<Tag> tag = meta->input_tag(i);
    ET_CHECK(tag.ok() && *tag == Tag::Tensor);
    const Result<TensorInfo> info = meta->input_tensor_meta(i);
    ET_CHECK(info.ok() && info->scalar_type() == ScalarType::Float);
    std::vector<Tensor::SizesType> sizes(info->sizes().begin(), info->sizes().end());
    data.emplace_back(info->nbytes() / sizeof(float), 1.0f);
    TensorImpl impl(ScalarType::Float, sizes.size(), sizes.data(), data.back().data());
    ET_CHECK(method->set_input(EValue(Tensor(&impl)), i) == Error::Ok);
  }
  const Error status = method->execute();
  ET_CHECK_MSG(status == Error::Ok, "%s failed: 0x%x", method_name, static_cast<unsigned>(status));

  std::vector<EValue> outputs(method->outputs_size());
  ET_CHECK(method->get_outputs(outputs.data(), outputs.size()) == Error::Ok);
  const EValue& output = method->get_output(0);
  ET_CHECK(output.isTensor() && outputs[0].isTensor() && output.tryToInt().error() == Error::InvalidType);
  const Tensor tensor = output.toTensor();
  const float* elements = tensor.const_data_ptr<float>();
  for (ssize_t i = 0; i < tensor.numel(); ++i) std::printf("%.9g\n", elements[i]);
  return 0;
}
