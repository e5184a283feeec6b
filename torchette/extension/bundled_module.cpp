// SPDX-License-Identifier: BSD-3-Clause
// Implements BundledModule. The embedded program is loaded in place.
#include "torchette/extension/bundled_module.h"

#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/mmap_data_loader.h"
#include "torchette/extension/shared_ptr_data_loader.h"

namespace torchette::extension {

BundledModule::BundledModule(std::shared_ptr<DataLoader> program, const BundledProgram& bundle,
                             std::shared_ptr<MemoryAllocator> memory_allocator,
                             std::shared_ptr<MemoryAllocator> temp_allocator,
                             std::shared_ptr<EventTracer> event_tracer,
                             std::shared_ptr<DataLoader> data_map_loader)
    : Module(std::move(program), std::move(memory_allocator), std::move(temp_allocator),
             std::move(event_tracer), std::move(data_map_loader)),
      bundle_(bundle) {}

BundledModule::BundledModule(const BundledProgram& bundle, std::shared_ptr<MemoryAllocator> memory_allocator,
                             std::shared_ptr<MemoryAllocator> temp_allocator,
                             std::shared_ptr<EventTracer> event_tracer,
                             std::shared_ptr<DataLoader> data_map_loader)
    : BundledModule(std::make_shared<BufferDataLoader>(bundle.program().data(), bundle.program().size()),
                    bundle, std::move(memory_allocator), std::move(temp_allocator), std::move(event_tracer),
                    std::move(data_map_loader)) {}

Result<std::unique_ptr<BundledModule>> BundledModule::from_file(
    const std::string& file_path, std::shared_ptr<MemoryAllocator> memory_allocator,
    std::shared_ptr<MemoryAllocator> temp_allocator, std::shared_ptr<EventTracer> event_tracer,
    std::shared_ptr<DataLoader> data_map_loader) {
  Result<MmapDataLoader> loader = MmapDataLoader::from(file_path.c_str());
  if (!loader.ok()) return loader.error();
  const Result<size_t> size = loader->size();
  if (!size.ok()) return size.error();
  // `bytes` is a view of the mapping, which outlives the buffer.
  const Result<FreeableBuffer> bytes =
      loader->load(0, *size, DataLoader::SegmentInfo(DataLoader::SegmentInfo::Type::Program));
  if (!bytes.ok()) return bytes.error();
  const Result<BundledProgram> bundle = BundledProgram::load(bytes->data(), *size);
  if (!bundle.ok()) return bundle.error();
  // The loader of the program keeps the mapping alive, so the mapping outlives the methods.
  const auto file = std::make_shared<MmapDataLoader>(std::move(*loader));
  auto program = std::make_shared<SharedPtrDataLoader>(
      std::shared_ptr<const void>(file, bundle->program().data()), bundle->program().size());
  return std::unique_ptr<BundledModule>(
      new BundledModule(std::move(program), *bundle, std::move(memory_allocator), std::move(temp_allocator),
                        std::move(event_tracer), std::move(data_map_loader)));
}

Result<std::vector<Value>> BundledModule::execute(const std::string& method_name, size_t testset_idx) {
  const Result<Method*> loaded = method(method_name);
  if (!loaded.ok()) return loaded.error();
  TORCHETTE_TRY(bundle_.load_bundled_input(**loaded, testset_idx));
  return Module::execute(method_name);
}

Error BundledModule::verify_method_outputs(const std::string& method_name, size_t testset_idx, double rtol,
                                           double atol) {
  const Result<Method*> loaded = method(method_name);
  if (!loaded.ok()) return loaded.error();
  return bundle_.verify_method_outputs(**loaded, testset_idx, rtol, atol);
}

}  // namespace torchette::extension
