// SPDX-License-Identifier: BSD-3-Clause
// BundledModule: a Module of a bundled program (.bpte). Runs the cases in the file and compares the outputs
// with the expected ones.
#pragma once

#include "torchette/extension/bundled_program.h"
#include "torchette/extension/module.h"

namespace torchette::extension {

class BundledModule : public Module {
 public:
  /// Maps the file. Errors: those of MmapDataLoader::from() and of BundledProgram::load().
  static Result<std::unique_ptr<BundledModule>> from_file(
      const std::string& file_path, std::shared_ptr<MemoryAllocator> memory_allocator = nullptr,
      std::shared_ptr<MemoryAllocator> temp_allocator = nullptr,
      std::shared_ptr<EventTracer> event_tracer = nullptr,
      std::shared_ptr<DataLoader> data_map_loader = nullptr);
  /// The bytes of `bundle` must outlive the module.
  explicit BundledModule(const BundledProgram& bundle,
                         std::shared_ptr<MemoryAllocator> memory_allocator = nullptr,
                         std::shared_ptr<MemoryAllocator> temp_allocator = nullptr,
                         std::shared_ptr<EventTracer> event_tracer = nullptr,
                         std::shared_ptr<DataLoader> data_map_loader = nullptr);

  /// Runs a method on the inputs of a case. Errors: those of Module::load_method(),
  /// BundledProgram::load_bundled_input() and Method::execute().
  Result<std::vector<Value>> execute(const std::string& method_name, size_t testset_idx);
  /// Compares the outputs of the last execute() with those of the case. Errors: those of
  /// BundledProgram::verify_method_outputs().
  Error verify_method_outputs(const std::string& method_name, size_t testset_idx, double rtol = 1e-5,
                              double atol = 1e-8);

 private:
  BundledModule(std::shared_ptr<DataLoader> program, const BundledProgram& bundle,
                std::shared_ptr<MemoryAllocator> memory_allocator,
                std::shared_ptr<MemoryAllocator> temp_allocator, std::shared_ptr<EventTracer> event_tracer,
                std::shared_ptr<DataLoader> data_map_loader);

  BundledProgram bundle_;
};

}  // namespace torchette::extension
